"""A checkpoint behind google-jetstream's gRPC server: `python -m whale_jax.serve [--checkpoint=…] [--port=…]`.

Greedy replies to ids or text, as docs/serve.md says; without `--checkpoint` it is the demo's. It ends on SIGINT or
SIGTERM. Exit status: 0 ended, 2 refused (bad flags or checkpoint, the address is taken).
"""

import dataclasses
import logging
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import jax.numpy as jnp
from absl import flags as absl_flags

from whale_jax.assemble import checkpoint_directory
from whale_jax.config import ConfigError
from whale_jax.flags import refuse_leftovers
from whale_jax.main import print_errors, use_all_cores
from whale_jax.qwen3_5.chat import ChatCodec
from whale_jax.qwen3_5.config import ConfigError as CheckpointConfigError
from whale_jax.qwen3_5.convert import CheckpointError, load_checkpoint
from whale_jax.qwen3_5.params import cast_params
from whale_jax.serving.driver import ServingError, make_driver
from whale_jax.serving.engine import Engine
from whale_jax.serving.replicas import replica_devices
from whale_jax.storage.bucket import BucketError


@dataclasses.dataclass(frozen=True)
class ServeSettings:
    """What is served, where, and with how much room.

    Attributes:
      checkpoint: a Hugging Face folder; None: the demo's.
      host, port: where to listen; port 0: any free one.
      slots: sequences that one engine decodes together.
      max_len: ids of one conversation, the reply included.
      max_waiting: calls that wait for a slot of one engine; more are refused.
      replicas: engines, one per device (on a CPU all on the first); 0: for all devices.
      dtype: of activations and matrices.
      thinking: whether the reply to a text begins inside a think block.
    """

    checkpoint: str | None = None
    host: str = "127.0.0.1"
    port: int = 9000
    slots: int = 32
    max_len: int = 768
    max_waiting: int = 256
    replicas: int = 0
    dtype: str = "float32"
    thinking: bool = True


@contextmanager
def serving(settings: ServeSettings) -> Iterator[Any]:
    """A started `jetstream_server.Server`; it and its engines are stopped when the context ends.

    Raises:
      ConfigError: the checkpoint is not one, google-jetstream is not installed, there are fewer devices than replicas,
        or the address cannot be bound.
    """
    directory = checkpoint_directory(settings.checkpoint)
    try:
        codec = ChatCodec.from_dir(directory)
        config, params = load_checkpoint(directory)
    except (CheckpointConfigError, CheckpointError) as error:
        raise ConfigError(f"--checkpoint={directory}: {error}") from error
    try:
        devices = replica_devices(settings.replicas)
    except ValueError as error:
        raise ConfigError(f"--replicas={settings.replicas}: {error}") from error
    dtype = jnp.dtype(settings.dtype)
    params = cast_params(params, dtype)
    with ExitStack() as stack:
        drivers: list[Any] = []
        for device in devices:
            engine = Engine(
                config,
                params,
                slots=settings.slots,
                max_len=settings.max_len,
                stop_ids=codec.stop_ids,
                extend_chunk=min(32, settings.max_len),
                compute_dtype=dtype,
                device=device,
            )
            try:
                drivers.append(stack.enter_context(make_driver("jetstream", engine)))
            except ServingError as error:
                raise ConfigError(f"the server is google-jetstream's: {error}") from error
        del params
        from whale_jax.serving.jetstream_server import Server, Servicer  # needs the package, which is there now

        def stop_drivers() -> None:
            for driver in drivers:
                driver.stop()

        servicer = Servicer(
            drivers, codec, max_in_flight=settings.slots + settings.max_waiting, thinking=settings.thinking
        )
        try:
            server = Server(servicer, stop=stop_drivers, host=settings.host, port=settings.port)
        except RuntimeError as error:
            raise ConfigError(f"--host={settings.host} --port={settings.port}: {error}") from error
        stack.callback(server.stop)
        server.start()
        yield server


def main(argv: Sequence[str]) -> int:
    """Runs the command until a signal ends it; returns its exit status."""
    values = absl_flags.FlagValues()
    module = {"flag_values": values, "module_name": "the server"}
    initial = ServeSettings()
    integers = (
        ("port", 0, "port to listen on; 0: any free one"),
        ("slots", 1, "sequences that one engine decodes together"),
        ("max_len", 16, "ids of one conversation, the reply included"),
        ("max_waiting", 0, "calls that wait for a slot of one engine; more are refused"),
        ("replicas", 0, "engines, one per device (on a CPU all on the first); 0: for all devices"),
    )
    absl_flags.DEFINE_string("checkpoint", None, "Hugging Face folder; default: the demo's", **module)
    absl_flags.DEFINE_string("host", initial.host, "address to listen on; there is no access control", **module)
    for name, least, text in integers:
        absl_flags.DEFINE_integer(name, getattr(initial, name), text, lower_bound=least, **module)
    absl_flags.DEFINE_enum("dtype", initial.dtype, ["float32", "bfloat16"], "of activations and matrices", **module)
    absl_flags.DEFINE_bool("thinking", True, "open the think block in replies to text", **module)
    absl_flags.DEFINE_bool("help", False, "print all flags and stop", short_name="h", **module)
    ended = threading.Event()
    try:
        if "--help" in argv or "-h" in argv:
            print(f"{__doc__}\n{values.get_help()}")
            return 0
        refuse_leftovers(values(list(argv)))
        given: dict[str, Any] = {spec.name: values[spec.name].value for spec in dataclasses.fields(ServeSettings)}
        settings = ServeSettings(**given)
        before = {one: signal.signal(one, lambda *_: ended.set()) for one in (signal.SIGINT, signal.SIGTERM)}
        try:
            with serving(settings) as server:
                print(f"serving on {settings.host}:{server.port}", flush=True)
                ended.wait()
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)
    except (absl_flags.Error, BucketError, ConfigError) as error:
        print_errors(error)
        return 2
    return 0


if __name__ == "__main__":
    use_all_cores()
    logging.basicConfig(level=logging.WARNING)
    sys.exit(main(sys.argv))
