"""Benchmarks: `python -m whale_jax.bench NAME [--json] [options]`; without a name, the list of them.

Each prints a table; with `--json`, one JSON object is the last line. Times are medians over `--repeats` runs after one
that compiles. They hold for the machine and the load they were measured under, and are never compared in a test.
"""

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence

import jax

from whale_jax.bench import delta_rule, rollout, soak, train
from whale_jax.bench.bench import Bench, Result
from whale_jax.bench.huge_pages import start_again_with_huge_pages
from whale_jax.main import use_all_cores

BENCHES: dict[str, Bench] = {
    "delta_rule": delta_rule.BENCH,
    "rollout": rollout.BENCH,
    "soak": soak.BENCH,
    "train": train.BENCH,
}


def main(argv: Sequence[str]) -> int:
    """Runs one benchmark; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m whale_jax.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = parser.add_subparsers(dest="name", metavar="NAME", required=True)
    for name, bench in BENCHES.items():
        sub = names.add_parser(name, help=bench.help, description=bench.help)
        sub.add_argument("--json", action="store_true", help="print one JSON object as the last line")
        sub.add_argument("--repeats", type=int, default=3, help="timed runs, of which the median counts")
        bench.add_arguments(sub)
    args = parser.parse_args(argv)
    if args.repeats < 1:
        parser.error(f"--repeats must be >= 1, got {args.repeats}")
    try:
        result = BENCHES[args.name].run(args)
    except ValueError as error:
        parser.error(str(error))
    print(table(result))
    if args.json:
        device = jax.devices()[0]
        where = {"device": device.device_kind, "platform": device.platform, "jax": jax.__version__}
        print(json.dumps({"bench": args.name, **where, "host": platform.machine(), **result.to_json()}))
    return 0


def table(result: Result) -> str:
    """The result as aligned text: settings and notes on lines of their own, a row per measurement, the figures."""
    columns = list(result.rows[0])
    cells = [columns, *([_cell(row[column]) for column in columns] for row in result.rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(line))
        for line in ([*zip(row, widths, strict=True)] for row in cells)
    ]
    settings = ", ".join(f"{name} {value}" for name, value in result.settings.items())
    figures = [f"{name}: {_cell(value)}" for name, value in result.figures.items()]
    return "\n".join([settings, *result.notes, *lines, *figures])


def _cell(value: str | float | None) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else f"{value:.3g}"


if __name__ == "__main__":
    start_again_with_huge_pages()
    for bench in [BENCHES[name] for name in sys.argv[1:2] if name in BENCHES]:
        if bench.all_cores:
            use_all_cores()
        if bench.one_core:  # before JAX or torch count them
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    sys.exit(main(sys.argv[1:]))
