"""From the public question-answering sets to the four task files of a run (PAPER section 5).

- Test: 100 questions of each of the seven sets.
- D_harness: 200 HotpotQA and 56 NQ training questions. Validation, which the paper does not have, has the same make-up.
- D_weight: 18,946 training questions, from the two sets in proportion to what is left of them (open in the paper).

Which questions are taken follows from a seeded hash of their content, whatever the order of the files. A training
question that stands in any of the seven test files, chosen there or not, is left out. Splits are filled in the order
harness, validation, weight, so another size of D_weight leaves the others as they are.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whale_jax.domains.manifest import Manifest, require_new_folder, write_split
from whale_jax.domains.searchqa import public_sets
from whale_jax.domains.searchqa.public_sets import CORPUS, NAME, TEST_PARTS, TRAIN_PARTS, PublicSets, Question
from whale_jax.domains.task import Split, TaskError

PUBLIC_FILES = (*public_sets.PUBLIC_FILES, *public_sets.MERGED_FILES, CORPUS)


@dataclass(frozen=True)
class Sizes:
    """Questions per split and set. The defaults are the paper's; validation has the make-up of D_harness."""

    weight: int = 18_946
    harness: Mapping[str, int] = field(default_factory=lambda: {"hotpotqa": 200, "nq": 56})
    validation: Mapping[str, int] = field(default_factory=lambda: {"hotpotqa": 200, "nq": 56})
    test_per_set: int = 100


def prepare(source: Path, out: Path, *, seed: int, sizes: Sizes = Sizes(), max_bad_rows: float = 0.01) -> Manifest:
    """Writes weight.jsonl, harness.jsonl, validation.jsonl, test.jsonl and the manifest.

    Args:
        source: folder of the public files.
        out: a folder that does not exist yet, or is empty.
        seed: of the hash that chooses.
        sizes: how many questions.
        max_bad_rows: the share of a file's rows that may be unusable.

    Raises:
        TaskError: files are missing or unusable, there are too few questions, or `out` is not empty.
    """
    require_new_folder(out)
    sets = PublicSets(source, max_bad_rows=max_bad_rows)
    tested = sets.questions("test", TEST_PARTS)
    trained = sets.questions("train", TRAIN_PARTS)
    held_out = {question.content for questions in tested.values() for question in questions}
    test = _test(tested, seed, sizes.test_per_set)
    pools, left_out = _train_pools(trained, held_out, seed)
    harness = _take(pools, sizes.harness, "D_harness")
    validation = _take(pools, sizes.validation, "validation")
    weight = _take(pools, _shares(pools, sizes.weight), "D_weight")
    splits = {Split.WEIGHT: weight, Split.HARNESS: harness, Split.VALIDATION: validation, Split.TEST: test}
    out.mkdir(parents=True, exist_ok=True)
    corpus = sets.corpus()
    manifest = Manifest(
        domain=NAME,
        seed=seed,
        sources=(*sets.files.values(), *([corpus] if corpus else [])),
        outputs=tuple(
            write_split(out, split, map(_row, _sorted(questions, seed))) for split, questions in splits.items()
        ),
        counts={
            **{
                f"{split} {name}": count
                for split, questions in splits.items()
                for name, count in sorted(Counter(question.set for question in questions).items())
            },
            "copies inside a set": sets.copies,
            "training questions that a test set holds, or another training set": left_out,
        },
        notes=(
            "A task's id is the hash of its question; source_id is its id in the public file.",
            "A run also needs a retrieval service, or a corpus beside the splits: corpus.jsonl, or index/ (made by "
            f"index_build). The paper's is {CORPUS.what}: {CORPUS.origin}; licence {CORPUS.licence}.",
        ),
    )
    manifest.write(out)  # last: a folder without it is not finished
    return manifest


def _order(question: Question, seed: int) -> bytes:
    return hashlib.sha256(f"{seed}\x1f{question.set}\x1f{question.content}".encode()).digest()


def _sorted(questions: Iterable[Question], seed: int) -> list[Question]:
    return sorted(questions, key=lambda question: _order(question, seed))


def _test(tested: Mapping[str, Sequence[Question]], seed: int, per_set: int) -> list[Question]:
    """The chosen test questions. One that stands in two sets is taken for the first of them alone."""
    taken: dict[str, Question] = {}
    for name, questions in tested.items():
        fresh = [question for question in _sorted(questions, seed) if question.content not in taken]
        if len(fresh) < per_set:
            raise TaskError(f"test set {name}: {per_set} questions are needed and {len(fresh)} can be used")
        taken |= {question.content: question for question in fresh[:per_set]}
    return list(taken.values())


def _train_pools(
    trained: Mapping[str, Sequence[Question]], held_out: set[str], seed: int
) -> tuple[dict[str, list[Question]], int]:
    """The training questions of each set that may be used, in the order of the hash, and how many may not."""
    pools: dict[str, list[Question]] = {}
    seen = set(held_out)
    for name, questions in trained.items():
        pools[name] = [question for question in _sorted(questions, seed) if question.content not in seen]
        seen |= {question.content for question in pools[name]}
    return pools, sum(map(len, trained.values())) - sum(map(len, pools.values()))


def _take(pools: dict[str, list[Question]], counts: Mapping[str, int], split: str) -> list[Question]:
    """Takes the first questions out of the pools."""
    taken: list[Question] = []
    for name, count in counts.items():
        if len(pools[name]) < count:
            raise TaskError(f"{split}: {count} questions of {name} are needed and {len(pools[name])} are left")
        taken += pools[name][:count]
        pools[name] = pools[name][count:]
    return taken


def _shares(pools: Mapping[str, Sequence[Question]], total: int) -> dict[str, int]:
    """`total` split over the pools in proportion to their sizes; the last pool takes what rounding leaves."""
    everything = sum(map(len, pools.values()))
    *others, last = pools
    counts = {name: round(total * len(pools[name]) / everything) if everything else 0 for name in others}
    return counts | {last: total - sum(counts.values())}


def _row(question: Question) -> dict[str, Any]:
    return {
        "id": f"{question.set}-{question.content[:16]}",
        "question": question.task.inputs["question"],
        "golden_answers": question.task.reference["answers"],
        "data_source": question.set,
        "source_id": question.task.id,
    }
