"""What a study rests on, written down before its first run: h0, catalogues, checkpoints, data, budgets, by hash.

`manifest.json` in the study's directory is written once. A study whose settings or inputs are no longer those is
refused: a figure that was measured after one of them moved could have been chosen. Where a fault of the study itself
has to be mended, the manifest is changed by hand, and its key `amended` says to every reader of the page what and why.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from whale_jax.journal import write_once
from whale_jax.study.design import Study, StudyError
from whale_jax.study.plan import Planned

FORMAT = 1
FILE = "manifest.json"
_SOURCES = ("h0.py", "strong.py", "catalogue.py")


def manifest(study: Study, planned: Sequence[Planned]) -> dict[str, Any]:
    """`domains` (hashes of inputs and of the domain's sources) and `runs` (of each, the configuration's hash, the
    initial harness's, and the budget of rollouts), beside the study's `name` and the `format`."""
    domains: dict[str, Any] = {}
    for one in planned:
        if one.spec.domain not in domains:
            inputs = dataclasses.asdict(one.inputs)
            domains[one.spec.domain] = {
                **{name: value for name, value in inputs.items() if name != "harness"},
                **_sources(one.spec.domain),
            }
    runs = {
        one.spec.name: {
            "config": one.config.hash(),
            "harness": one.inputs.harness,
            "max_rollouts": one.config.run.max_rollouts,
            "branch": None if one.spec.fork is None else f"{one.spec.parent}@{one.spec.fork.entry}",
            "matrix": one.spec.matrix,
        }
        for one in planned
    }
    return {"format": FORMAT, "name": study.name, "domains": domains, "runs": runs}


def _sources(domain: str) -> dict[str, str]:
    """SHA-256 of the initial harness, the strong one and the catalogue, as far as the domain has such files."""
    module = importlib.import_module(domain.partition(":")[0] if ":" in domain else f"whale_jax.domains.{domain}")
    folder = Path(str(module.__file__)).parent
    present = [folder / name for name in _SOURCES if (folder / name).is_file()]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in present}


def freeze(out: Path, content: Mapping[str, Any]) -> bool:
    """Writes the manifest, or checks that it is the one that was written; says whether it was written now.

    Raises:
        StudyError: something that was frozen has changed; every change is named.
    """
    path = out / FILE
    if not path.exists():
        out.mkdir(parents=True, exist_ok=True)
        write_once(path, (json.dumps(content, indent=1) + "\n").encode())  # in the order of the study
        return True
    if changed := changes(read_manifest(out), content):
        raise StudyError(
            "\n".join(f"{path}: {line}" for line in changed) + f"\n{path}: what was frozen before the first run has "
            "changed. Put it back to go on, or name a fresh --out for a new study"
        )
    return False


def changes(frozen: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What is not as it was frozen, one line each."""
    before, after = dict(_leaves({key: frozen[key] for key in frozen if key != "amended"})), dict(_leaves(now))
    return [
        f"{name} was {_shown(before, name)}, is {_shown(after, name)}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def read_manifest(out: Path) -> dict[str, Any]:
    """The manifest of a study's directory.

    Raises:
        StudyError: there is none, or it is damaged or of another version.
    """
    path = out / FILE
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise StudyError(f"{path}: cannot be read ({error.strerror}); name the directory of a study") from error
    except ValueError as error:
        raise StudyError(f"{path}: not JSON ({error}); restore it from a copy") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise StudyError(f"{path}: is not the manifest of a study of this version")
    return content


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, f"{name}: {key}" if name else key)
    else:
        yield name, value


def _shown(leaves: Mapping[str, Any], name: str) -> str:
    value = leaves.get(name, "not there")
    return value[:12] if isinstance(value, str) and len(value) == 64 else str(value)
