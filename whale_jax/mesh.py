"""The mesh that a run trains on, from its settings, checked before anything heavy starts."""

from pathlib import Path

import jax

from whale_jax.config import ConfigError, RunConfig
from whale_jax.qwen3_5.config import ConfigError as CheckpointConfigError
from whale_jax.qwen3_5.config import Qwen35Config
from whale_jax.qwen3_5.sharding import Placement, ShardingError, check, make_mesh


def require_devices(config: RunConfig, checkpoint: Path) -> None:
    """Checks the mesh of the settings against the devices and the checkpoint's config.json; without a mesh, nothing.

    Raises:
        ConfigError: there are more or fewer devices, or an axis does not divide what it must; every one is named.
    """
    if config.mesh.sizes is None:
        return
    try:
        shape = Qwen35Config.from_dir(checkpoint)
    except CheckpointConfigError as error:
        raise ConfigError(f"--checkpoint={checkpoint}: {error}") from error
    make_placement(config, shape)


def make_placement(config: RunConfig, shape: Qwen35Config) -> Placement | None:
    """Where the policy is trained: on the mesh of all devices of all processes; None without one.

    Raises:
        ConfigError: as `require_devices`.
    """
    sizes = config.mesh.sizes
    if sizes is None:
        return None
    data, fsdp, tensor = sizes
    flags = f"--mesh_data={data} --mesh_fsdp={fsdp} --mesh_tensor={tensor}"
    count = jax.device_count()
    if data * fsdp * tensor != count:
        hosts = f" in {jax.process_count()} processes" if jax.process_count() > 1 else ""
        raise ConfigError(f"{flags}: their product must be the number of devices, {count}{hosts}")
    mesh = make_mesh(data, fsdp, tensor, jax.devices())
    try:
        check(shape, mesh, rows=config.training.rows)
    except ShardingError as error:
        raise ConfigError(f"{flags} --rows={config.training.rows}: {error}") from error
    return Placement(shape, mesh)
