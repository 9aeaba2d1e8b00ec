"""Preparation of the public sets: DAPO-Math-17k for weights, harness and validation, AIME 2024 and 2025 for the test.

It downloads nothing. `SOURCES` says where each file is to be had; put the files into one folder and name it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whale_jax.domains.manifest import (
    Manifest,
    PublicFile,
    SourceFile,
    bad_row_notes,
    require_new_folder,
    source_file,
    write_split,
)
from whale_jax.domains.math.rows import NAME, ProblemFile, read_problems
from whale_jax.domains.row_files import ROW_SUFFIXES
from whale_jax.domains.task import ParsedTask, Split, TaskError, content_hash

HARNESS_TASKS = 256
"""PAPER section 5."""
VALIDATION_TASKS = 256
"""Open in the paper, which has no validation set."""


@dataclass(frozen=True)
class Source:
    """A public set.

    Attributes:
        name: how it is called in the manifest.
        words: a file whose name holds all of them (folded, separators apart) is taken for it.
        file: its file as it is published.
        expected: distinct problems, by the paper.
    """

    name: str
    words: tuple[str, ...]
    file: PublicFile
    expected: int


DAPO = Source(
    "DAPO-Math-17k",
    ("dapo", "math", "17k"),
    PublicFile(
        "dapo-math-17k.parquet",
        "D_weight, D_harness and validation",
        "https://huggingface.co/datasets/BytedTsinghua-SIA/DAPO-Math-17k (data/dapo-math-17k.parquet)",
        "Apache-2.0",
    ),
    17_917,
)
AIME_2024 = Source(
    "AIME-2024",
    ("aime", "2024"),
    PublicFile(
        "aime_2024_problems.parquet",
        "test",
        "https://huggingface.co/datasets/Maxwell-Jia/AIME_2024 (aime_2024_problems.parquet)",
        "see the page; the problems are the Mathematical Association of America's",
    ),
    30,
)
AIME_2025 = Source(
    "AIME-2025",
    ("aime", "2025"),
    PublicFile(
        "aime-2025.jsonl",
        "test",
        "https://huggingface.co/datasets/math-ai/aime25 (test.jsonl, saved as aime-2025.jsonl)",
        "Apache-2.0 for the collection; the problems are the Mathematical Association of America's",
    ),
    30,
)
SOURCES = (DAPO, AIME_2024, AIME_2025)
PUBLIC_FILES = tuple(source.file for source in SOURCES)


def prepare(
    source: Path,
    out: Path,
    *,
    seed: int,
    harness_tasks: int = HARNESS_TASKS,
    validation_tasks: int = VALIDATION_TASKS,
    overlap: bool = False,
    max_bad_rows: float = 0.01,
) -> Manifest:
    """Writes weight.jsonl, harness.jsonl, validation.jsonl, test.jsonl and the manifest.

    Validation and D_harness are drawn from DAPO-Math-17k by a seeded hash of the problem, so that they do not depend on
    the order of the file; what is left is D_weight. Training problems that the test set holds are left out.

    Args:
        source: folder with the files of `SOURCES`, under names that hold the sets' names and end as `ROW_SUFFIXES` say.
        out: a folder that does not exist yet, or is empty.
        seed: of the draw.
        harness_tasks: how many tasks D_harness holds.
        validation_tasks: how many validation holds.
        overlap: draw D_harness from D_weight and leave it there, as the paper does (a run then needs --allow_overlap).
        max_bad_rows: the share of a file's rows that may be unusable.

    Raises:
        TaskError: a file is missing, ambiguous or unusable, there are too few problems, or `out` is not empty.
    """
    require_new_folder(out)
    paths = {one: _find(source, one) for one in SOURCES}
    read = {one: read_problems(path, max_bad_rows=max_bad_rows) for one, path in paths.items()}
    test = _unique([*read[AIME_2024].problems, *read[AIME_2025].problems])
    tested = {content_hash(NAME, problem.inputs) for problem in test}
    training = [one for one in read[DAPO].problems if content_hash(NAME, one.inputs) not in tested]
    needed = harness_tasks + validation_tasks + 1
    if len(training) < needed:
        raise TaskError(f"{paths[DAPO]}: {len(training)} problems are too few; the splits need at least {needed}")
    held_out = len(read[DAPO].problems) - len(training)
    training.sort(key=lambda problem: _draw(problem, seed))
    validation, rest = training[:validation_tasks], training[validation_tasks:]
    splits = {
        Split.WEIGHT: rest if overlap else rest[harness_tasks:],
        Split.HARNESS: rest[:harness_tasks],
        Split.VALIDATION: validation,
        Split.TEST: test,
    }
    out.mkdir(parents=True, exist_ok=True)
    manifest = Manifest(
        domain=NAME,
        seed=seed,
        sources=tuple(_source_file(one, paths[one], read[one]) for one in SOURCES),
        outputs=tuple(write_split(out, split, _rows(problems)) for split, problems in splits.items()),
        counts={
            **{name: count for one in SOURCES for name, count in _counts(one, read[one]).items()},
            "training problems that the test set holds": held_out,
            "harness tasks that D_weight holds": harness_tasks if overlap else 0,
        },
        notes=(
            "A task's id is the hash of its problem; source_id is its id in the public file.",
            *(["D_harness is part of D_weight: a run needs --allow_overlap."] if overlap else []),
            *(note for one in SOURCES for note in bad_row_notes(paths[one].name, read[one].bad_rows)),
        ),
    )
    manifest.write(out)  # last: a folder without it is not finished
    return manifest


def _source_file(source: Source, path: Path, file: ProblemFile) -> SourceFile:
    return source_file(
        path.parent,
        path.name,
        origin=source.file.origin,
        licence=source.file.licence,
        rows=len(file.problems) + file.copies + len(file.bad_rows),
        bad_rows=len(file.bad_rows),
    )


def _counts(source: Source, file: ProblemFile) -> dict[str, int]:
    return {
        f"{source.name} problems": len(file.problems),
        f"{source.name} problems by the paper": source.expected,
        f"{source.name} copies": file.copies,
    }


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
    raise TaskError(f"{folder}: {source.name} is missing ({wanted}); it is to be had at {source.file.origin}")


def _folded(name: str) -> str:
    return name.casefold().replace("aime24", "aime2024").replace("aime25", "aime2025")


def _unique(problems: Sequence[ParsedTask]) -> list[ParsedTask]:
    return list({content_hash(NAME, problem.inputs): problem for problem in problems}.values())


def _draw(problem: ParsedTask, seed: int) -> bytes:
    return hashlib.sha256(f"{seed}\x1f{content_hash(NAME, problem.inputs)}".encode()).digest()


def _rows(problems: Sequence[ParsedTask]) -> Iterator[Mapping[str, Any]]:
    """Rows in one layout. The id is the content's: those of different sets may clash."""
    for problem in problems:
        yield {
            "id": content_hash(NAME, problem.inputs),
            "problem": problem.inputs["question"],
            "answer": problem.reference["answer"],
            "source_id": problem.id,
        }
