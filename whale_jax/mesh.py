"""The mesh that a run trains on, from its settings, checked before anything heavy starts."""

from pathlib import Path
from typing import Any

import jax
from jax.sharding import SingleDeviceSharding

from whale_jax.config import ConfigError, RunConfig
from whale_jax.qwen3_5.config import ConfigError as CheckpointConfigError
from whale_jax.qwen3_5.config import Qwen35Config
from whale_jax.qwen3_5.params import abstract_params
from whale_jax.qwen3_5.sharding import AXES, Placement, ShardingError, check, make_mesh


def require_devices(config: RunConfig, checkpoint: Path) -> Any:
    """Checks the mesh of the settings against the devices and the checkpoint's config.json; without a mesh, nothing.

    Returns:
        Where the checkpoint is read to, for `load_checkpoint`: with a mesh into the host's memory, since no chip need
        hold all of it.

    Raises:
        ConfigError: there are more or fewer devices, or an axis does not divide what it must; every one is named.
    """
    if config.mesh.sizes is None:
        return None
    try:
        shape = Qwen35Config.from_dir(checkpoint)
    except CheckpointConfigError as error:
        raise ConfigError(f"--checkpoint={checkpoint}: {error}") from error
    make_placement(config, shape)
    return on_the_host(shape)


def on_the_host(shape: Qwen35Config) -> Any:
    """Shardings that keep parameters in host memory where there are accelerators: in fp32 one may not hold them.

    None, the default, on CPUs and where JAX_PLATFORMS leaves the CPU out.
    """
    if jax.default_backend() == "cpu":
        return None
    try:
        host = SingleDeviceSharding(jax.local_devices(backend="cpu")[0])
    except RuntimeError:
        return None
    return jax.tree.map(lambda _: host, abstract_params(shape))


def mesh_flags(sizes: tuple[int, int, int]) -> str:
    """The flags of a mesh of data x fsdp x tensor devices."""
    return " ".join(f"--mesh_{axis}={size}" for axis, size in zip(AXES, sizes, strict=True))


def make_placement(config: RunConfig, shape: Qwen35Config) -> Placement | None:
    """Where the policy is trained: on the mesh of all devices of all processes; None without one.

    Raises:
        ConfigError: as `require_devices`.
    """
    sizes = config.mesh.sizes
    if sizes is None:
        return None
    data, fsdp, tensor = sizes
    flags = mesh_flags(sizes)
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
