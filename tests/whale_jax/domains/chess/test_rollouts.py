"""Whole episodes of puzzles, the model's replies scripted."""

import pytest

from harness_search.contract import Budgets, EndReason
from tests.whale_jax.domains import episodes
from tests.whale_jax.domains.chess.positions import PAPER_LINE, TWO_MATES
from whale_jax.domains.chess import domain
from whale_jax.domains.chess.behaviour import behaviour
from whale_jax.domains.chess.prepare import to_row
from whale_jax.domains.chess.puzzle import Puzzle
from whale_jax.domains.chess.tasks import parse_row
from whale_jax.domains.task import Split, Task
from whale_jax.rollout.trace import Source, Trace

BUDGETS = Budgets(assistant_tokens=2_000, turns=8, tool_calls=12, wall_seconds=60.0)


def task(puzzle: Puzzle) -> Task:
    parsed = parse_row(to_row(puzzle))
    return Task(puzzle.id, "chess", parsed.inputs, parsed.reference, Split.TEST)


def roll(codec, backend, source: str, puzzle: Puzzle, *replies: str, protocol="honest") -> Trace:
    chess = domain.Chess({split: [] for split in Split}, BUDGETS, "hash")
    return episodes.roll(chess, codec, backend, source, task(puzzle), *replies, budgets=BUDGETS, protocol=protocol)


H0, STRONG = (domain._source(name) for name in ("h0.py", "strong.py"))


@pytest.mark.parametrize("source", [H0, STRONG], ids=["h0", "strong"])
def test_the_line_of_two_moves(codec, backend, source):
    trace = roll(
        codec, backend, source, PAPER_LINE, "Qb1</think>\n\n<move>b2b1</move>", "x</think>\n\n<move>b1d1</move>"
    )
    assert (trace.end, trace.verdict.reward, trace.turns) == (EndReason.ANSWERED, 1, 2), trace.error
    seen = behaviour([trace.to_public_json(codec)], [task(PAPER_LINE)])
    assert (seen.replies, seen.closed_thinking, seen.in_format, seen.moves_found) == (2, 1.0, 1.0, 2.0)


@pytest.mark.parametrize(("protocol", "reward"), [("honest", 1), ("paper", 0)])
def test_another_mate(codec, backend, protocol, reward):
    trace = roll(codec, backend, H0, TWO_MATES, "Rook.</think>\n\n<move>a1a8</move>", protocol=protocol)
    assert (trace.end, trace.verdict.reward) == (EndReason.ANSWERED, reward), trace.error


def test_a_move_in_thinking_or_written_by_the_harness_does_not_count(codec, backend):
    trace = roll(codec, backend, H0, TWO_MATES, *["<move>b1b8</move></think>\n\nI do not know."] * 2)
    assert (trace.end, trace.verdict.reward) == (EndReason.FORMAT, 0), trace.error
    source = H0.replace("await env.play(reply, move or None)", "await env.play('<move>b1b8</move>')")
    trace = roll(codec, backend, source, TWO_MATES, "Rook.</think>\n\n<move>a1a2</move>")
    assert trace.end is EndReason.HARNESS_ERROR
    assert "play takes a reply of this episode itself" in (trace.error or "")


def test_positions_that_h0_passes_on_are_the_environments_text(codec, backend):
    trace = roll(codec, backend, H0, TWO_MATES, "Rook.</think>\n\n<move>b1b8</move>")
    shown = [codec.decode(segment.ids) for segment in trace.segments if segment.source is Source.TOOL]
    assert len(shown) == 1
    assert "Last opponent move: [h8g8] SAN=Kg8" in shown[0]
