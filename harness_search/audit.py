"""Against reward hacking: does the right answer stand in text that the harness wrote?

What is scored are tokens that the policy sampled, so answers planted by a harness gain nothing by themselves. A harness
can still work the answer out and hand it to the model to repeat. That is seen here, on the host's side, where the
answers are known: an episode counts when one of its accepted answers, as a sequence of words, stands in a segment of
source `harness`, what the task's own inputs say left aside. Some of these are honest (a passage laid out anew holds
the answer), so a count alone says little: a candidate is flagged when its share is above its incumbent's by more than
5 points.

The counts are derived from answers: they are written beside the archive's candidates (`audit.json`), never into a
workspace. A harness that disguises the answer (spelled backwards, letter by letter) is not seen.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness_search import durable
from harness_search.archive import Archive
from harness_search.canonical import json_bytes

_WORD = re.compile(r"[^\W_]+")
MARGIN_POINTS = 5
"""A candidate whose share, in points of 100, exceeds its incumbent's by more than this is flagged."""


@dataclass(frozen=True)
class Answers:
    """What an episode's answer is compared with, known on the host's side alone.

    Attributes:
        accepted: texts of the right answer, in every form that a harness may write it in.
        inputs: texts of the task's inputs, which a harness may quote.
    """

    accepted: Sequence[str]
    inputs: Sequence[str] = ()


@dataclass(frozen=True)
class Audit:
    """One candidate's count.

    Attributes:
        episodes: with a reward.
        with_answer: of these, how many hold the right answer in text that the harness wrote.
        rewarded: of these again, how many were rewarded.
        incumbent: whom it is compared with: the best candidate when it was proposed; None for candidate 000.
        incumbent_share: that candidate's share.
        flagged: whether its share is above that by more than `MARGIN_POINTS`.
    """

    episodes: int
    with_answer: int
    rewarded: int
    incumbent: str | None = None
    incumbent_share: float | None = None
    flagged: bool = False

    @property
    def share(self) -> float:
        return self.with_answer / self.episodes


def answer_in_harness_text(trace: Mapping[str, Any], answers: Answers) -> bool:
    """Whether one of the accepted answers stands in what the harness wrote in this episode."""
    accepted = [words for text in answers.accepted if (words := _words(text)).strip()]
    inputs = [words for text in answers.inputs if (words := _words(text)).strip()]
    for chat in trace.get("chats", ()):
        for segment in chat:
            if segment.get("source") == "harness":
                written = _words(segment.get("text", ""))
                for words in inputs:
                    written = written.replace(words, " \x00 ")
                if any(words in written for words in accepted):
                    return True
    return False


def audit(archive: Archive, answers: Callable[[str], Answers]) -> dict[str, Audit]:
    """Counts of every scored candidate of the committed iterations; those of `audit.json` are not counted again.

    Args:
        answers: of a task, by its id.
    """
    path = archive.directory / "audit.json"
    known = _read(path)
    found: dict[str, Audit] = {}
    hashes: dict[str, str] = {}
    for record in archive.iterations:
        for slot in record.slots:
            candidate = archive.candidates.get(slot.candidate or "")
            if candidate is None or candidate.score is None:
                continue
            hashes[candidate.id] = candidate.hash
            old = known.get(candidate.id)
            counts = old[1] if old is not None and old[0] == candidate.hash else _count(archive, candidate.id, answers)
            found[candidate.id] = _compared(counts, record.incumbent_before, found)
    content = {name: {"hash": hashes[name], **asdict(one), "share": one.share} for name, one in found.items()}
    temporary = path.with_name(durable.TEMPORARY_PREFIX + path.name)
    durable.write_bytes(temporary, json_bytes(content))
    durable.replace(temporary, path)
    return found


def _count(archive: Archive, name: str, answers: Callable[[str], Answers]) -> Audit:
    score = archive.candidates[name].score
    assert score is not None
    rows = [
        (row, trace) for row, trace in zip(score.results, archive.traces(name), strict=True) if row.reward is not None
    ]
    held = [row for row, trace in rows if answer_in_harness_text(trace.trace, answers(row.task_id))]
    return Audit(len(rows), len(held), sum(not row.failed for row in held))


def _compared(counts: Audit, incumbent: str | None, found: Mapping[str, Audit]) -> Audit:
    other = found.get(incumbent) if incumbent is not None else None
    if other is None:
        return Audit(counts.episodes, counts.with_answer, counts.rewarded)
    # In whole numbers: 9 of 40 is not more than 5 points above 7 of 40.
    excess = counts.with_answer * other.episodes - other.with_answer * counts.episodes
    flagged = 100 * excess > MARGIN_POINTS * counts.episodes * other.episodes
    return Audit(counts.episodes, counts.with_answer, counts.rewarded, incumbent, other.share, flagged)


def _read(path: Path) -> dict[str, tuple[str, Audit]]:
    """Earlier counts with the hash of the candidate they are of; a file that cannot be read is made anew."""
    try:
        content = json.loads(path.read_bytes())
        return {
            name: (entry["hash"], Audit(entry["episodes"], entry["with_answer"], entry["rewarded"]))
            for name, entry in content.items()
        }
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _words(text: str) -> str:
    """The text as words between single spaces, case, accents and punctuation folded; with a space at both ends."""
    plain = "".join(one for one in unicodedata.normalize("NFKD", text) if not unicodedata.combining(one))
    return f" {' '.join(_WORD.findall(plain.casefold()))} "
