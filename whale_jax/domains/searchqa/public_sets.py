"""The public question-answering sets: what they are, where they are to be had, and how their files are read.

Two layouts of a folder are understood: a folder per set with a file per part (`nq/train.jsonl`, `hotpotqa/dev.jsonl`),
or one file per part for all sets (`train.parquet`, `test.parquet`), whose rows name their set in `data_source`. A file
may end in .jsonl, .jsonl.zst, .jsonl.gz or .parquet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whale_jax.domains.manifest import PublicFile, SourceFile, source_file
from whale_jax.domains.row_files import ROW_SUFFIXES, find_rows
from whale_jax.domains.searchqa.question_rows import parse_row
from whale_jax.domains.task import BadRow, ParsedTask, TaskError, content_hash, read_rows

NAME = "searchqa"
TRAIN_PARTS: Mapping[str, str] = {"nq": "train", "hotpotqa": "train"}
"""The two training sets and the part of each that serves."""
TEST_PARTS: Mapping[str, str] = {
    "nq": "test",
    "triviaqa": "test",
    "popqa": "test",
    "hotpotqa": "dev",
    "2wikimultihopqa": "dev",
    "musique": "dev",
    "bamboogle": "test",
}
"""The seven test sets. Three of them publish no answers for their test part, so their development part serves."""

_COLLECTION = "https://huggingface.co/datasets/RUC-NLPIR/FlashRAG_datasets"
_MERGED = "https://huggingface.co/datasets/PeterJinGo/nq_hotpotqa_train"
_LICENCES = {
    "nq": "CC BY-SA 3.0 (Natural Questions)",
    "triviaqa": "Apache-2.0 (TriviaQA); questions and documents belong to their authors",
    "popqa": "MIT (PopQA)",
    "hotpotqa": "CC BY-SA 4.0 (HotpotQA)",
    "2wikimultihopqa": "Apache-2.0 (2WikiMultihopQA)",
    "musique": "CC BY 4.0 (MuSiQue)",
    "bamboogle": "MIT (Bamboogle)",
}


def _public(name: str, part: str, what: str) -> PublicFile:
    return PublicFile(f"{name}/{part}.jsonl", what, f"{_COLLECTION} ({name}/{part}.jsonl)", _LICENCES[name])


PUBLIC_FILES = (
    *(_public(name, part, "D_weight, D_harness and validation") for name, part in TRAIN_PARTS.items()),
    *(_public(name, part, "test") for name, part in TEST_PARTS.items()),
)
"""What a folder of the first layout holds."""
MERGED_FILES = (
    *(
        PublicFile(f"{part}.parquet", f"in place of all {part} files above", _MERGED, "that of each set in it", False)
        for part in ("train", "test")
    ),
)
"""What a folder of the second layout holds."""
CORPUS = PublicFile(
    "corpus.jsonl",
    "the passages to search: wiki-18, 21 M rows with id and contents",
    "https://huggingface.co/datasets/PeterJinGo/wiki-18-corpus (wiki-18.jsonl.gz)",
    "CC BY-SA 3.0 (Wikipedia)",
    needed=False,
)


@dataclass(frozen=True)
class Question:
    """A question of a set; `content` is the hash of what it asks."""

    set: str
    content: str
    task: ParsedTask


class PublicSets:
    """A folder of public files. Keeps the record of what was read.

    Attributes:
        files: the files read, by name.
        copies: questions that stood in their set already.
    """

    def __init__(self, folder: Path, *, max_bad_rows: float) -> None:
        self.files: dict[str, SourceFile] = {}
        self.copies = 0
        self._folder = folder
        self._max_bad_rows = max_bad_rows

    def questions(self, merged_name: str, parts: Mapping[str, str]) -> dict[str, list[Question]]:
        """The distinct questions of each set.

        Args:
            merged_name: the name, without its ending, of the file that holds all these sets in the second layout.
            parts: set → the part of it that is read.

        Raises:
            TaskError: files are missing or cannot be used.
        """
        own = {name: find_rows(self._folder / name, part) for name, part in parts.items()}
        missing = [name for name, path in own.items() if path is None]
        merged = find_rows(self._folder, merged_name)
        if missing and merged is None:
            raise TaskError(_what_is_missing(self._folder, [f"{name}/{parts[name]}" for name in missing]))
        found: dict[str, dict[str, Question]] = {name: {} for name in parts}
        for name, path in own.items():
            if path is not None:
                self._read(path, {name: found[name]}, set_name=name, origin=_COLLECTION)
        if missing and merged is not None:
            self._read(merged, {name: found[name] for name in missing}, set_name=None, origin=_MERGED)
        return {name: list(questions.values()) for name, questions in found.items()}

    def corpus(self) -> SourceFile | None:
        """The record of the corpus, when there is one."""
        path = find_rows(self._folder, "corpus")
        if path is None:
            return None
        return source_file(self._folder, path.name, origin=CORPUS.origin, licence=CORPUS.licence)

    def _read(self, path: Path, found: Mapping[str, dict[str, Question]], *, set_name: str | None, origin: str) -> None:
        """Adds the questions of a file to the sets in `found`; rows of other sets are passed over.

        Args:
            path: the file.
            found: set → its questions so far.
            set_name: the set of all its rows; None where each row names its own.
            origin: where the file is to be had.
        """

        def parse(row: Mapping[str, Any]) -> tuple[str, ParsedTask]:
            return set_name or str(row.get("data_source")), parse_row(row)

        bad: list[BadRow] = []
        rows = 0
        for item in read_rows(path, parse):
            rows += 1
            if isinstance(item, BadRow):
                bad.append(item)
                continue
            name, task = item
            if name in found:
                content = content_hash(NAME, task.inputs)
                self.copies += content in found[name]
                found[name].setdefault(content, Question(name, content, task))
        if len(bad) > self._max_bad_rows * rows:
            shown = "; ".join(map(str, bad[:5]))
            limit = f"a share of {self._max_bad_rows:g}"
            raise TaskError(f"{path}: {len(bad)} of {rows} rows are bad, more than {limit}: {shown}")
        name, licence = path.relative_to(self._folder).as_posix(), "; ".join(_LICENCES[name] for name in found)
        self.files[name] = source_file(self._folder, name, origin=origin, licence=licence, rows=rows, bad_rows=len(bad))


def _what_is_missing(folder: Path, stems: Sequence[str]) -> str:
    files = "\n  ".join(str(file) for file in PUBLIC_FILES if file.path.removesuffix(".jsonl") in stems)
    merged: Iterable[str] = (f"{file.path} from {file.origin}" for file in MERGED_FILES)
    endings = ", ".join(ROW_SUFFIXES)
    return (
        f"{folder}: {len(stems)} file(s) are missing (any of {endings} will do):\n  {files}\n"
        f"or in their place {'; '.join(merged)}"
    )
