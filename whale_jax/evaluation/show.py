"""Episodes and figures for a terminal of 80 to 120 columns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from whale_jax.domains.task import Task
from whale_jax.evaluation.calls import Call
from whale_jax.evaluation.evaluate import Evaluation
from whale_jax.rollout.trace import Segment, Source, TextDecoder, Trace

_GUTTER = 10
_STYLES = {Source.PROMPT: "dim", Source.HARNESS: "cyan", Source.TOOL: "yellow", Source.SAMPLED: "bold green"}
_FINISHES = {"stop": "ended", "length": "cut"}


def columns(console: Console) -> int:
    """The width that is written for: the terminal's, held between 80 and 120."""
    return min(max(console.width, 80), 120)


def print_episode(
    console: Console, title: str, task: Task, trace: Trace, calls: Sequence[Call], decoder: TextDecoder
) -> None:
    """One episode: the task's inputs, every chat segment by segment with its source, the calls, and how it ended.

    Texts are those that the engine read and sampled, control tokens included; a last line break of a segment is left
    out, and characters that a terminal would act on are written as escapes.
    """
    console.print(Text(f"── {title} ".ljust(columns(console), "─"), "bold"), soft_wrap=True)
    for name, value in task.inputs.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        _print_block(console, [name[: _GUTTER - 1]], text, "dim")
    for number, chat in enumerate(trace.chats, start=1):
        if len(trace.chats) > 1:
            console.print(Text(f"chat {number} of {len(trace.chats)}", "bold"))
        for segment in chat.segments:
            text = decoder.decode(segment.ids).removesuffix("\n") or r"\n"
            _print_block(console, _labels(segment), text, _STYLES[segment.source])
    shown = [decoder.decode(segment.ids) for segment in trace.segments if segment.source is Source.TOOL]
    for number, call in enumerate(calls, start=1):
        _print_block(console, [f"call {number}"], _call_text(call, shown), "magenta")
    _print_block(console, ["end"], _end_text(trace), "bold")
    verdict = trace.verdict
    reward = "unscored" if verdict.reward is None else f"reward {verdict.reward}"
    answer = "no answer" if verdict.answer is None else f"answer {verdict.answer!r}"
    _print_block(console, ["verdict"], " · ".join(part for part in (reward, answer, verdict.reason) if part), "bold")
    if trace.error:
        _print_block(console, ["error"], trace.error, "bold red")
    console.print()


def print_evaluation(console: Console, label: str, split: str, evaluation: Evaluation) -> None:
    """mean@k with its interval as a table of one row, and the behaviour behind it."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("", f"{split} mean@{evaluation.k}, %", "95 % interval", "tasks", "unscored"):
        table.add_column(column, justify="right" if column else "left", overflow="fold")
    mean, interval = percent(evaluation)
    table.add_row(Text(label), mean, interval, f"{evaluation.tasks:,}", f"{evaluation.ledger.unscored:,}")
    console.print(table, width=columns(console))
    behaviour = evaluation.behaviour
    shares = {
        "answered": behaviour.answered,
        "right when answered": behaviour.right_when_answered,
        "ended by itself": behaviour.ended_by_itself,
        "cut": behaviour.cut,
        "used tools": behaviour.used_tools,
    }
    means = {"turns": behaviour.turns, "calls": behaviour.tool_calls, "sampled tokens": behaviour.sampled_tokens}
    texts = [f"{name} {100 * value:.1f} %" for name, value in shares.items() if value is not None]
    texts += [f"{name} {value:.1f}" for name, value in means.items() if value is not None]
    _print_block(console, ["behaviour"], ", ".join(texts), "dim")
    if evaluation.domain_figures:
        figures = ", ".join(f"{name} {value:.3f}" for name, value in evaluation.domain_figures.items())
        _print_block(console, ["domain"], figures, "dim")
    ends = ", ".join(f"{name} {count:,}" for name, count in evaluation.ledger.ends.items())
    _print_block(console, ["ends"], ends, "dim")


def percent(evaluation: Evaluation) -> tuple[str, str]:
    """mean@k and its interval in per cent; a dash where nothing is scored."""
    low, high = evaluation.ci95
    return f"{100 * evaluation.mean:.1f}" if evaluation.tasks else "–", f"{100 * low:.1f} to {100 * high:.1f}"


def visible(text: str) -> str:
    """The text with tabs as spaces and every other character that is not shown as such written as its escape."""
    return "".join(
        one if one == "\n" or one.isprintable() else "    " if one == "\t" else one.encode("unicode_escape").decode()
        for one in text
    )


def _labels(segment: Segment) -> list[str]:
    labels = [segment.source.value]
    if segment.turn is not None:
        labels.append(f"turn {segment.turn + 1}")
    if segment.finish is not None:
        labels += [f"{len(segment.ids)} ids", _FINISHES[segment.finish]]
    return labels


def _call_text(call: Call, shown: Sequence[str]) -> str:
    arguments = [_value(value) for value in call.args]
    arguments += [f"{name}={_value(value)}" for name, value in call.kwargs.items()]
    text = f"{call.name}({', '.join(arguments)})"
    if call.result is None:
        return f"{text}\nrefused: {call.error}"
    if any(call.result in one for one in shown):
        return f"{text}\n{len(call.result):,} characters, passed on as they are"
    return f"{text}\n{call.result}"


def _value(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _end_text(trace: Trace) -> str:
    counts = ((trace.turns, "turn"), (trace.tool_calls, "call"), (trace.sampled_tokens, "sampled token"))
    numbers = [f"{count:,} {name}{'' if count == 1 else 's'}" for count, name in counts]
    return " · ".join([trace.end.value, *numbers, f"{trace.prompt_tokens:,} read"])


def _print_block(console: Console, labels: Sequence[str], text: str, style: str) -> None:
    """Labels one below the other in the gutter, the folded text beside them."""
    lines = Text(visible(text)).wrap(console, columns(console) - _GUTTER, overflow="fold")
    for row in range(max(len(labels), len(lines))):
        label = labels[row] if row < len(labels) else ""
        line = lines[row] if row < len(lines) else Text()
        line.rstrip()
        console.print(Text.assemble((label.ljust(_GUTTER) if line else label, style), line), soft_wrap=True)
