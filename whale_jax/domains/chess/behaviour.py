"""How a pair behaves on puzzles, beside how often it solves them (PAPER section 6): shares that explain a score.

Everything is read from public traces (`Trace.to_public_json`) and, for themes and ratings, from the tasks.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from whale_jax.domains.chess import moves, verifier
from whale_jax.domains.chess.game import Ending
from whale_jax.domains.domain import defined_figures
from whale_jax.domains.task import Task

THINK_END = moves.THINK_END
RATING_STEP = 400
_CONTROL_TOKENS = ("<|im_end|>", "<|endoftext|>")
_AT_MOVE = ", at move "

_REPLY_FIGURES = {
    "closed_thinking": "replies that closed their thinking, among those that were to think",
    "in_format": "replies with one move in <move> tags",
    "at_limit": "replies cut by a length limit",
    "moves_found": "mean number of stored solver moves played",
}
_ENDINGS = {
    "solved": Ending.SOLVED,
    "other_mate": Ending.OTHER_MATE,
    "wrong_move": Ending.WRONG_MOVE,
    "unreadable": Ending.UNREADABLE,
    "illegal": Ending.ILLEGAL,
    "unfinished": verifier.UNFINISHED,
    "other_reply": verifier.OTHER_REPLY,
    "no_reply": verifier.NO_REPLY,
}
FIGURES = _REPLY_FIGURES | {name: f"episodes that ended so: {text}" for name, text in _ENDINGS.items()}

PublicTrace = Mapping[str, Any]


@dataclass(frozen=True)
class Group:
    """Episodes of tasks that share a theme or a rating band; `solved` is the mean reward over the scored ones."""

    tasks: int
    episodes: int
    solved: float | None


@dataclass(frozen=True)
class ChessBehaviour:
    """Shares over episodes, or over all their sampled replies; None where there is nothing to divide by.

    Attributes:
        episodes: those that infrastructure did not break.
        replies: sampled replies in them.
        closed_thinking: share of replies with an end of thinking, among those that were to think.
        in_format: share of replies with one move in `<move>` tags, and no other in further tags.
        at_limit: share of replies cut by a length limit.
        endings: how the puzzle ended (`Ending`, or one of the verifier's own reasons) → share of episodes. Episodes
            that came to no verdict are under their end reason.
        moves_found: mean number of stored solver moves played, over the episodes with a verdict.
        by_theme: theme → figures.
        by_rating: rating band, `1200-1599` → figures.
    """

    episodes: int
    replies: int
    closed_thinking: float | None
    in_format: float | None
    at_limit: float | None
    endings: dict[str, float]
    moves_found: float | None
    by_theme: dict[str, Group]
    by_rating: dict[str, Group]

    def to_json(self) -> dict[str, Any]:
        """JSON-able form."""
        return asdict(self)

    @property
    def figures(self) -> dict[str, float]:
        """Those of `FIGURES` that are defined."""
        endings = {name: self.endings.get(text, 0.0) for name, text in _ENDINGS.items()} if self.episodes else {}
        return defined_figures(_REPLY_FIGURES, self) | endings


def behaviour(traces: Iterable[PublicTrace], tasks: Iterable[Task]) -> ChessBehaviour:
    """The behaviour in some episodes, in any order. `tasks` holds at least those of the traces."""
    by_id = {task.id: task for task in tasks}
    episodes = [trace for trace in traces if trace["end"] != "infrastructure"]
    replies = [reply for trace in episodes for reply in replies_of(trace)]
    thinking = [reply.visible is not None for reply in replies if reply.thinks]
    endings = Counter(ending(trace) for trace in episodes)
    found = [count for trace in episodes if (count := moves_found(trace, by_id[trace["task_id"]])) is not None]
    return ChessBehaviour(
        episodes=len(episodes),
        replies=len(replies),
        closed_thinking=_share(thinking),
        in_format=_share(_in_format(reply.visible or "") for reply in replies),
        at_limit=_share(reply.cut for reply in replies),
        endings={name: endings[name] / len(episodes) for name in sorted(endings)},
        moves_found=sum(found) / len(found) if found else None,
        by_theme=_groups(episodes, by_id, _themes),
        by_rating=_groups(episodes, by_id, _rating_band),
    )


def ending(trace: PublicTrace) -> str:
    """How the puzzle of an episode ended, without the number of the move."""
    reason = str(trace["reason"]).partition(_AT_MOVE)[0]
    known = {*map(str, Ending), verifier.NO_REPLY, verifier.OTHER_REPLY, verifier.UNFINISHED}
    return reason if reason in known else str(trace["end"])


def moves_found(trace: PublicTrace, task: Task) -> int | None:
    """How many of the stored solver moves were played; None when the verdict does not tell."""
    if ending(trace) == Ending.SOLVED:
        return len(task.reference["moves"]) // 2
    _, mark, rest = str(trace["reason"]).partition(_AT_MOVE)
    number = rest.partition(":")[0]
    return int(number) - 1 if mark and number.isdigit() else None


@dataclass(frozen=True)
class Reply:
    """One assistant turn of a trace.

    Attributes:
        thinks: whether it was to think before it answers.
        visible: its text after thinking, without control tokens; None while thinking is open.
        cut: whether a length limit ended it.
    """

    thinks: bool
    visible: str | None
    cut: bool


def replies_of(trace: PublicTrace) -> Iterator[Reply]:
    """The assistant turns of a trace, chat by chat."""
    for chat in trace["chats"]:
        thinks = any(segment["source"] == "prompt" and segment["text"].rstrip().endswith("<think>") for segment in chat)
        turns: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
        for segment in chat:
            if segment.get("turn") is not None:
                turns[segment["turn"]].append(segment)
        for segments in turns.values():
            sampled = [segment for segment in segments if segment["source"] == "sampled"]
            _, closed, text = "".join(segment["text"] for segment in segments).rpartition(THINK_END)
            cut = bool(sampled) and sampled[-1]["finish"] == "length"
            for token in _CONTROL_TOKENS:
                text = text.replace(token, "")
            yield Reply(thinks, text if closed or not thinks else None, cut)


def _in_format(visible: str) -> bool:
    found = {moves.undecorated(spelling) for spelling in moves.tagged(visible)}
    return len(found) == 1 and "" not in found


def _share(flags: Iterable[bool]) -> float | None:
    values = list(flags)
    return sum(values) / len(values) if values else None


def _groups(
    episodes: list[PublicTrace], tasks: Mapping[str, Task], names: Callable[[Task], list[str]]
) -> dict[str, Group]:
    members: dict[str, list[PublicTrace]] = defaultdict(list)
    for trace in episodes:
        for name in names(tasks[trace["task_id"]]):
            members[name].append(trace)
    return {name: _group(members[name]) for name in sorted(members)}


def _group(traces: list[PublicTrace]) -> Group:
    rewards = [trace["reward"] for trace in traces if trace["reward"] is not None]
    solved = sum(rewards) / len(rewards) if rewards else None
    return Group(len({trace["task_id"] for trace in traces}), len(traces), solved)


def _themes(task: Task) -> list[str]:
    return list(dict.fromkeys(task.reference["themes"]))


def _rating_band(task: Task) -> list[str]:
    rating = task.reference["rating"]
    if rating is None:
        return []
    low = rating // RATING_STEP * RATING_STEP
    return [f"{low}-{low + RATING_STEP - 1}"]
