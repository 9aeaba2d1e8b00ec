"""Makes the task files of a run from public data: `python -m whale_jax.prepare searchqa --source=… --out=…`.

    searchqa   a folder with the public question-answering sets
    math       a folder with DAPO-Math-17k and AIME
    chess      the Lichess puzzle database, .csv or .csv.zst

It downloads nothing: when a file is missing, it prints where it is to be had. What was read and made, with hashes,
sizes, licences and the seed, is printed and kept as prepared.json beside the splits; a run's --task_dir is that folder.

Exit status: 0 done, 2 bad arguments or data.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from whale_jax.domains.manifest import MANIFEST_NAME
from whale_jax.domains.task import TaskError

DOMAINS = ("searchqa", "math", "chess")
SEED = 42


class Prepare(Protocol):
    """A domain's preparation. It writes its record as prepared.json into `out`, and raises TaskError."""

    def __call__(self, source: Path, out: Path, *, seed: int) -> object: ...


def preparer(domain: str) -> Prepare:
    """The preparation of a domain, imported only now: a domain may need packages of its own.

    Raises:
        TaskError: such a package is not installed.
    """
    try:
        return importlib.import_module(f"whale_jax.domains.{domain}.prepare").prepare
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("whale_jax"):
            raise
        hint = f"pip install 'whale-jax[{domain}]'"
        raise TaskError(f"preparing {domain} needs the package {error.name}: {hint}") from error


def main(argv: Sequence[str], *, find: Callable[[str], Prepare] = preparer) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m whale_jax.prepare", description="Prepare public data for a run.")
    parser.add_argument("domain", choices=DOMAINS, help="what the data is for")
    parser.add_argument("--source", type=Path, required=True, help="folder (chess: file) of the public data")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to, new or empty")
    parser.add_argument("--seed", type=int, default=SEED, help="seed of the splits")
    options = parser.parse_args(argv[1:])
    try:
        find(options.domain)(options.source, options.out, seed=options.seed)
        record = (options.out / MANIFEST_NAME).read_text(encoding="utf-8")
    except TaskError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    print(record, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
