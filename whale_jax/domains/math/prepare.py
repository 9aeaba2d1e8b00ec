"""Preparation of the public sets: DAPO-Math-17k for weights, harness and validation, AIME 2024 and 2025 for the test.

    report = prepare(Path("downloads"), Path("data/math"))
    print(report.text())

It downloads nothing. `SOURCES` says where each file is to be had; put the files into one folder and name it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from whale_jax.domains.math.rows import NAME, read_problems
from whale_jax.domains.row_files import ROW_SUFFIXES
from whale_jax.domains.task import ParsedTask, Split, TaskError, content_hash

HARNESS_TASKS = 256
"""PAPER section 5."""
VALIDATION_TASKS = 256
"""Open in the paper, which has no validation set."""
MANIFEST = "prepared.json"
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Source:
    """A public set.

    Attributes:
        name: how it is called in the manifest.
        words: a file whose name holds all of them (folded, separators apart) is taken for it.
        where: where it is to be had.
        licence: as its page states it.
        expected: distinct problems, by the paper; 0 where it does not say.
    """

    name: str
    words: tuple[str, ...]
    where: str
    licence: str
    expected: int


DAPO = Source(
    "DAPO-Math-17k",
    ("dapo", "math", "17k"),
    "https://huggingface.co/datasets/BytedTsinghua-SIA/DAPO-Math-17k (data/dapo-math-17k.parquet)",
    "Apache-2.0",
    17_917,
)
AIME_2024 = Source(
    "AIME-2024",
    ("aime", "2024"),
    "https://huggingface.co/datasets/Maxwell-Jia/AIME_2024 (aime_2024_problems.parquet)",
    "see the page; the problems are the Mathematical Association of America's",
    30,
)
AIME_2025 = Source(
    "AIME-2025",
    ("aime", "2025"),
    "https://huggingface.co/datasets/math-ai/aime25 (test.jsonl, saved as aime-2025.jsonl)",
    "Apache-2.0 for the collection; the problems are the Mathematical Association of America's",
    30,
)
SOURCES = (DAPO, AIME_2024, AIME_2025)


@dataclass(frozen=True)
class SourceReport:
    """What was read of one set: its file with hash and size, its rows, and what was left out."""

    name: str
    file: str
    sha256: str
    size: int
    where: str
    licence: str
    problems: int
    expected: int
    copies: int
    bad_rows: tuple[str, ...]


@dataclass(frozen=True)
class SplitReport:
    """One file that was written."""

    split: str
    file: str
    sha256: str
    size: int
    tasks: int


@dataclass(frozen=True)
class Prepared:
    """The manifest, also written as `prepared.json` beside the splits."""

    domain: str
    seed: int
    overlap: bool
    held_out_copies: int
    """Problems of the training set that were left out because the test set holds them."""
    sources: tuple[SourceReport, ...]
    splits: tuple[SplitReport, ...]

    def to_json(self) -> dict[str, Any]:
        """JSON-able form."""
        return asdict(self)

    def text(self) -> str:
        """A summary for people, with every number that is not the expected one."""
        lines = []
        for source in self.sources:
            note = "" if source.problems == source.expected else f" (expected {source.expected:,})"
            lines.append(
                f"{source.name}: {source.problems:,} problems{note}, {source.copies:,} copies dropped, "
                f"{len(source.bad_rows)} bad rows, {source.size:,} bytes, sha256 {source.sha256[:12]}; {source.licence}"
            )
            lines += [f"  {row}" for row in source.bad_rows[:5]]
        lines += [f"{split.split}: {split.tasks:,} tasks in {split.file}" for split in self.splits]
        if self.held_out_copies:
            lines.append(f"{self.held_out_copies} training problems were left out: the test set holds them")
        return "\n".join(lines)


def prepare(
    source: Path,
    out: Path,
    *,
    seed: int = 0,
    harness_tasks: int = HARNESS_TASKS,
    validation_tasks: int = VALIDATION_TASKS,
    overlap: bool = False,
    max_bad_rows: float = 0.01,
) -> Prepared:
    """Writes weight.jsonl, harness.jsonl, validation.jsonl, test.jsonl and the manifest into `out`.

    Validation and D_harness are drawn from DAPO-Math-17k by a seeded hash of the problem, so that they do not depend on
    the order of the file; what is left is D_weight. Training problems that the test set holds are left out.

    Args:
        source: folder with the files of `SOURCES`, under names that hold the sets' names and end as `ROW_SUFFIXES` say.
        out: folder to write to; it is made. Existing files of these names are replaced.
        seed: of the draw.
        overlap: draw D_harness from D_weight and leave it there, as the paper does (a run then needs --allow_overlap).
        max_bad_rows: the share of a file's rows that may be unusable.

    Raises:
        TaskError: a file is missing, ambiguous or unusable, or there are too few problems.
    """
    files = {one.name: _find(source, one) for one in SOURCES}
    read = {one.name: read_problems(files[one.name], max_bad_rows=max_bad_rows) for one in SOURCES}
    test = _unique([*read[AIME_2024.name].problems, *read[AIME_2025.name].problems])
    tested = {content_hash(NAME, problem.inputs) for problem in test}
    training = [one for one in read[DAPO.name].problems if content_hash(NAME, one.inputs) not in tested]
    needed = harness_tasks + validation_tasks + 1
    if len(training) < needed:
        raise TaskError(f"{files[DAPO.name]}: {len(training)} problems are too few; the splits need at least {needed}")
    training.sort(key=lambda problem: _draw(problem, seed))
    validation, rest = training[:validation_tasks], training[validation_tasks:]
    parts = {
        Split.WEIGHT: rest if overlap else rest[harness_tasks:],
        Split.HARNESS: rest[:harness_tasks],
        Split.VALIDATION: validation,
        Split.TEST: test,
    }
    out.mkdir(parents=True, exist_ok=True)
    prepared = Prepared(
        domain=NAME,
        seed=seed,
        overlap=overlap,
        held_out_copies=len(read[DAPO.name].problems) - len(training),
        sources=tuple(
            SourceReport(
                name=one.name,
                file=files[one.name].name,
                sha256=_file_hash(files[one.name]),
                size=files[one.name].stat().st_size,
                where=one.where,
                licence=one.licence,
                problems=len(read[one.name].problems),
                expected=one.expected,
                copies=read[one.name].copies,
                bad_rows=tuple(f"row {row.line}: {row.reason}" for row in read[one.name].bad_rows),
            )
            for one in SOURCES
        ),
        splits=tuple(_write_split(out, split, problems) for split, problems in parts.items()),
    )
    _write(out / MANIFEST, (json.dumps(prepared.to_json(), indent=2, ensure_ascii=False) + "\n").encode())
    return prepared


def _find(folder: Path, source: Source) -> Path:
    """The one file in `folder` (not below it) that is `source` by its name."""
    if not folder.is_dir():
        raise TaskError(f"{folder}: is no folder; put the files of the public sets into one")
    found = [
        path
        for path in sorted(folder.iterdir())
        if path.name.endswith(ROW_SUFFIXES) and all(word in _folded(path.name) for word in source.words)
    ]
    if len(found) == 1:
        return found[0]
    wanted = f"a {' or '.join(ROW_SUFFIXES)} file whose name holds {', '.join(source.words)}"
    if found:
        raise TaskError(f"{folder}: more than one is {wanted}: {', '.join(path.name for path in found)}")
    raise TaskError(f"{folder}: {source.name} is missing ({wanted}); it is to be had at {source.where}")


def _folded(name: str) -> str:
    return name.casefold().replace("aime24", "aime2024").replace("aime25", "aime2025")


def _unique(problems: Sequence[ParsedTask]) -> list[ParsedTask]:
    return list({content_hash(NAME, problem.inputs): problem for problem in problems}.values())


def _draw(problem: ParsedTask, seed: int) -> bytes:
    return hashlib.sha256(f"{seed}\x1f{content_hash(NAME, problem.inputs)}".encode()).digest()


def _write_split(out: Path, split: Split, problems: Sequence[ParsedTask]) -> SplitReport:
    data = "".join(_rows(problems)).encode()
    path = out / f"{split.value}.jsonl"
    _write(path, data)
    return SplitReport(split.value, path.name, hashlib.sha256(data).hexdigest(), len(data), len(problems))


def _rows(problems: Sequence[ParsedTask]) -> Iterator[str]:
    """Rows in one layout. The id is the content's: those of different sets may clash."""
    for problem in problems:
        row = {
            "id": content_hash(NAME, problem.inputs),
            "problem": problem.inputs["question"],
            "answer": problem.reference["answer"],
            "source_id": problem.id,
        }
        yield json.dumps(row, ensure_ascii=False) + "\n"


def _write(path: Path, data: bytes) -> None:
    """Whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(data)
    os.replace(partial, path)


def _file_hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
