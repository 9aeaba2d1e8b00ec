"""Makes the task files of a run from public data: `python -m whale_jax.prepare searchqa --source=… --out=…`.

    searchqa   a folder with the public question-answering sets
    math       a folder with DAPO-Math-17k and AIME
    chess      the Lichess puzzle database, .csv or .csv.zst, or a folder with it

    python -m whale_jax.prepare chess      prints which public files are needed, and where each is to be had

It downloads nothing. What was read and made, with hashes, sizes, licences and the seed, is printed and kept as
prepared.json beside the splits; a run's --task_dir is that folder.

Exit status: 0 done, 2 bad arguments or data.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from whale_jax.domains.manifest import Manifest, PublicFile
from whale_jax.domains.task import TaskError
from whale_jax.settings import DOMAINS

SEED = 42


class Prepare(Protocol):
    """A domain's preparation. It writes its record as prepared.json into `out`, and raises TaskError."""

    def __call__(self, source: Path, out: Path, *, seed: int) -> Manifest: ...


@dataclass(frozen=True)
class Preparation:
    """What a domain's module `prepare` offers: its function, and the public files that it reads."""

    prepare: Prepare
    public_files: Sequence[PublicFile]


def preparation(domain: str) -> Preparation:
    """The preparation of a domain, imported only now: a domain may need packages of its own.

    Raises:
        TaskError: such a package is not installed.
    """
    try:
        module = importlib.import_module(f"whale_jax.domains.{domain}.prepare")
        return Preparation(module.prepare, module.PUBLIC_FILES)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("whale_jax"):
            raise
        hint = f"pip install 'whale-jax[{domain}]'"
        raise TaskError(f"preparing {domain} needs the package {error.name}: {hint}") from error


def main(argv: Sequence[str], *, find: Callable[[str], Preparation] = preparation) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m whale_jax.prepare", description="Prepare public data for a run.")
    parser.add_argument("domain", choices=DOMAINS, help="what the data is for")
    parser.add_argument("--source", type=Path, help="folder (chess: also the file) of the public data")
    parser.add_argument("--out", type=Path, help="folder to write to, new or empty")
    parser.add_argument("--seed", type=int, default=SEED, help="seed of the splits")
    options = parser.parse_args(argv[1:])
    if (options.source is None) != (options.out is None):
        parser.error("--source and --out go together; without both, what is needed is listed")
    try:
        found = find(options.domain)
        listing = "\n".join([f"public files of {options.domain}:", *map(str, found.public_files)])
        if options.source is None:
            print(listing)
            return 0
        print(listing, file=sys.stderr)  # the record alone goes to the standard output
        manifest = found.prepare(options.source, options.out, seed=options.seed)
    except TaskError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    print(manifest.to_text(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
