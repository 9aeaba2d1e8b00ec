"""Makes the report of runs: `python -m whale_jax.report RUN [RUN …] --out=report.html [--watch]`.

Runs, local or gs://, are only read, also while they go on. See docs/report.md.
Exit status: 0 done; 2 bad settings or input; 3 the page cannot be written, or a bucket not be read; 130 interrupted.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from absl import flags as absl_flags

from whale_jax.config import ConfigError
from whale_jax.report.page import MEGABYTES, TRAJECTORIES, write_report
from whale_jax.report.run_files import ReportError
from whale_jax.storage.bucket import BucketError
from whale_jax.storage.home import Home
from whale_jax.storage.opening import run_to_read


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns its exit status."""
    values = absl_flags.FlagValues()
    _define(values)
    try:
        named = values(list(argv))[1:]
        if values["help"].value:
            print(f"{__doc__}\n{values.get_help()}")
            return 0
        if not named:
            raise ReportError("name one or more run directories: python -m whale_jax.report RUN [RUN …]")
        out = Path(str(values["out"].value))
        options = {"trajectories": values["max_trajectories"].value, "megabytes": values["max_megabytes"].value}
        with contextlib.ExitStack() as stack:
            homes = [stack.enter_context(run_to_read(run)) for run in named]
            runs = [home.directory for home in homes]
            if values["watch"].value:
                seconds: int = values["every"].value  # type: ignore[assignment]
                write = lambda: _write(runs, out, **options, refresh_seconds=seconds)  # noqa: E731
                watch(runs, write, seconds, lambda seconds: _wait(homes, seconds))
            _write(runs, out, **options)
        return 0
    except (absl_flags.Error, ConfigError, ReportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (BucketError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def watch(runs: Sequence[Path], write: Callable[[], None], seconds: float, wait: Callable[[float], None]) -> None:
    """Writes the page after every commit of the runs, until each has its summary.

    Args:
        runs: run directories.
        write: writes the page.
        seconds: between two looks.
        wait: lets so many seconds pass.
    """
    seen: object = None
    while not all((run / "summary.json").is_file() for run in runs):
        found = _state(runs)
        if found != seen:
            write()
            seen = found
        wait(seconds)


def _wait(homes: Sequence[Home], seconds: float) -> None:
    time.sleep(seconds)
    for home in homes:
        home.fetch()


def _state(runs: Sequence[Path]) -> object:
    """What changes with every commit."""
    return [sorted(path.name for path in run.glob("journal/[0-9]*.json")) for run in runs]


def _write(runs: Sequence[Path], out: Path, **options: Any) -> None:
    write_report(runs, out, **options)
    print(f"{out}: {out.stat().st_size / 1e6:.1f} MB", flush=True)


def _define(values: absl_flags.FlagValues) -> None:
    module: dict[str, Any] = {"flag_values": values, "module_name": "the report"}
    absl_flags.DEFINE_string("out", "report.html", "file to write", **module)
    absl_flags.DEFINE_bool("watch", False, "write it anew after every commit, until the runs are finished", **module)
    absl_flags.DEFINE_integer("every", 15, "with --watch: seconds between two looks", 1, **module)
    absl_flags.DEFINE_integer(
        "max_trajectories", TRAJECTORIES, "trajectories in the page, all runs together; of more, the same tasks of "
        "every candidate are taken", 0, **module
    )  # fmt: skip
    absl_flags.DEFINE_float("max_megabytes", MEGABYTES, "largest size of the page, in 10^6 bytes", 1.0, **module)
    absl_flags.DEFINE_bool("help", False, "print all flags and stop", short_name="h", **module)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
