"""h0, the strong harness and every composition of catalogue edits, run against a model that says what it is told to."""

import asyncio
import random
from types import SimpleNamespace

import pytest

from harness_search.contract import check_source, read_info
from harness_search.proposers.edits import check_catalogue
from harness_search.proposers.signs import Sign, signs
from harness_search.validate import prompt_only_errors
from tests.whale_jax.domains.chess.positions import PAPER_LINE, TWO_MATES
from whale_jax.domains.chess import domain
from whale_jax.domains.chess.catalogue import CATALOGUE
from whale_jax.domains.chess.environment import PuzzleEnv
from whale_jax.domains.chess.library import chess
from whale_jax.domains.chess.observation import legal_moves
from whale_jax.domains.chess.puzzle import Puzzle
from whale_jax.domains.domain import SampledText

SOURCES = {name: domain._source(f"{name}.py") for name in ("h0", "strong")}
H0, STRONG = SOURCES["h0"], SOURCES["strong"]


class FakeModel:
    """Offers what `model` and its chats offer inside the sandbox; replies come from a list, the last one for ever."""

    def __init__(self, *replies, tokens=256):
        self.budgets = SimpleNamespace(assistant_tokens=tokens, turns=8, tool_calls=12)
        self.replies, self.turns, self.log = list(replies), 0, []

    def chat(self, system=None, tools=None):
        self.log.append(("system", system))
        return self

    def user(self, text):
        self.log.append(("user", text))

    async def reply(self, max_tokens=None):
        raw, finish = self.replies[min(self.turns, len(self.replies) - 1)]
        self.turns += 1
        thinking, closed, text = raw.rpartition("</think>")
        self.log.append(("reply", raw))
        return SimpleNamespace(
            text=text if closed else "",
            thinking=thinking if closed else raw,
            raw=raw,
            finish=finish,
            remaining=SimpleNamespace(tokens=9, turns=9, tool_calls=9),
            tool_calls=[],
        )

    async def extend_reply(self, text, max_tokens=None):
        self.log.append(("extend", text))
        return await self.reply(max_tokens)

    def said(self, kind):
        return [text for found, text in self.log if found == kind]


class FakeEnv:
    """`env` as a harness sees it, on the real environment; a reply crosses as the text that was sampled."""

    def __init__(self, puzzle):
        self.real = PuzzleEnv(puzzle)
        self.calls = []

    async def observe(self):
        return await self.real.call("observe", (), {})

    async def play(self, reply, move=None):
        self.calls.append(move)
        return await self.real.call("play", (SampledText(reply.text), move), {})


def say(text, finish="stop"):
    return f"Hm.</think>\n\n{text}", finish


def move(uci):
    return say(f"<move>{uci}</move>")


ENDLESS = ("and so on", "length")


def run(source, *replies, puzzle: Puzzle = PAPER_LINE):
    """The model's log, the environment, and the reward of what the harness returned."""
    names = {}
    exec(compile(source, "harness.py", "exec"), names)
    model, env = FakeModel(*replies), FakeEnv(puzzle)
    task = SimpleNamespace(id=puzzle.id, position="White: …", placement="8/…")
    reply = asyncio.run(names["run"](task, model, env))
    return model, env, env.real.verify(reply.text, protocol="honest")


def edited(*edit_names, source=H0):
    for edit_name in edit_names:
        (edit,) = [edit for edit in CATALOGUE if edit.name == edit_name]
        source = edit.apply(source)
        assert source is not None, edit_name
    return source


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_the_line_is_played(source):
    model, env, verdict = run(source, move("b2b1"), move("b1d1"))
    assert (model.turns, len(env.calls), verdict.reward) == (2, 2, 1)


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_a_wrong_move_ends_the_episode(source):
    model, _, verdict = run(source, move("g7g6"), move("b2b1"))
    assert (model.turns, verdict.reward) == (1, 0)


def test_h0_shows_the_position_as_it_comes_and_allows_one_retry_of_each_kind():
    model, env, verdict = run(H0, say("Qb1+"), move("b2b2"), move("b2b1"), move("b1d1"))
    assert verdict.reward == 1
    observation = asyncio.run(PuzzleEnv(PAPER_LINE).call("observe", (), {}))
    assert model.said("user")[:3] == [
        observation,
        *["That move cannot be played. Answer again with <move>uci</move>."] * 2,
    ]
    assert env.calls == ["b2b2", "b2b1", "b1d1"]
    assert run(H0, say("Qb1+"))[0].turns == 2
    assert run(H0, move("b2b2"))[0].turns == 2
    assert run(H0, ENDLESS)[2].reward == 0


def test_h0_never_gets_beyond_its_turns():
    long = Puzzle("long", "4k3/8/8/8/8/8/8/4K3 w - - 0 1", ("e1e2", "e8e7", "e2e1", "e7e8") * 4 + ("e1e2", "e8e7"))
    replies = [move(uci) for uci in long.moves[1::2]]
    model, _, verdict = run(H0, *replies, puzzle=long)
    assert (model.turns, verdict.reward) == (9, 1)


def test_strong_reads_any_spelling_says_what_was_wrong_and_opens_a_chat_per_position():
    model, _, verdict = run(
        STRONG, ENDLESS, say("Qb1+ or Qc1+"), say("Qb9"), say("**1... Qb1+**"), say("<move>Qxd1#</move>")
    )
    assert verdict.reward == 1
    assert model.said("extend") == ["\n</think>\n\n"]
    assert len(model.said("system")) == 2
    asked = model.said("user")
    assert all("Board:" not in text for text in asked)
    assert all("Legal moves:\n[" in asked[place] for place in (0, -1))
    assert any(text.startswith("No move read: several moves are named: b2b1, b2c1.") for text in asked)
    assert run(STRONG, say("I resign."))[0].turns == 5


def test_the_catalogue_is_sound():
    check_catalogue(CATALOGUE)
    kinds = [edit.kind for edit in CATALOGUE]
    assert len(CATALOGUE) >= 10
    assert 3 * (len(kinds) - kinds.count("useful")) >= len(kinds)
    assert {"useless", "harmful"} <= set(kinds)
    assert len({edit.axis for edit in CATALOGUE}) == 6
    assert all(edit.addresses for edit in CATALOGUE)
    assert all(edit.hypothesis.count(". ") == 0 and edit.hypothesis.endswith(".") for edit in CATALOGUE)


@pytest.mark.parametrize("edit", CATALOGUE, ids=lambda edit: edit.name)
def test_each_edit_applies_to_h0_once(edit):
    changed = edit.apply(H0)
    assert changed is not None
    assert check_source(changed) == []
    assert edit.apply(changed) is None
    assert edit.apply("x = 1\n") is None


def test_some_edits_are_left_in_prompt_only_search():
    changed = [edit.apply(H0) for edit in CATALOGUE]
    assert sum(not prompt_only_errors(source, H0) for source in changed if source) >= 5


SCRIPTS = [
    (move("b2b1"), move("b1d1")),
    (say("Qb1+"), say("Qxd1#")),
    (say("no idea"),),
    (ENDLESS,),
    (move("b2b2"), say(""), say("<move>"), move("Z")),
    (move("b2b1"), ENDLESS, say("<MOVE>B1D1</MOVE>")),
]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_any_sequence_of_edits_gives_a_working_harness(source, seed):
    rng = random.Random(seed)
    for edit in rng.sample(CATALOGUE, rng.randrange(1, len(CATALOGUE) + 1)):
        source = edit.apply(source) or source
    assert check_source(source) == []
    assert "<move>uci</move>" in read_info(source).prompts["RETRY_PROMPT"]
    for script in SCRIPTS:
        model, _, verdict = run(source, *script)
        assert model.turns <= 2 * 16
        assert verdict.scored


def test_what_single_edits_do():
    first = run(edited("without_the_board"), move("b2b1"))[0].said("user")[0]
    assert "Board:" not in first
    assert "a b c d" not in first
    assert "\nLast opponent move: [a1a7] SAN=Ra7\n" in first
    assert "FEN:" not in run(edited("without_the_fen"), move("b2b1"))[0].said("user")[0]
    assert "[" not in run(edited("without_the_list"), move("b2b1"))[0].said("user")[0].splitlines()[-1]
    assert "SAN=" not in run(edited("without_san"), move("b2b1"))[0].said("user")[0]
    assert run(edited("ask_below_the_position"), move("b2b1"))[0].said("user")[0].endswith("as <move>uci</move>.")
    assert run(edited("any_spelling"), say("Qb1+"), say("Qxd1#"))[2].reward == 1
    assert run(edited("san_in_tags"), move("Qb1+"), move("Qxd1#"))[2].reward == 1
    assert run(edited("san_in_tags"), say("Qb1+"))[2].reward == 0
    assert run(edited("tags_alone"), say("It is <move>b2b1</move>"))[1].calls == []
    assert run(edited("fold_case"), say("<move>B2B1</move>"), move("b1d1"))[2].reward == 1
    assert run(edited("say_why"), move("b2b2"))[0].said("user")[1].startswith("Illegal move: b2b2: ")
    assert run(edited("position_again"), move("b2b2"))[0].said("user")[2].startswith("Chess puzzle: ")
    assert run(edited("doubt_the_move"), move("g7g6"), move("b2b1"), move("b1d1"))[2].reward == 1
    assert run(edited("more_retries"), move("b2b2"))[0].turns == 5
    assert run(edited("no_retries"), move("b2b2"))[0].turns == 1
    assert run(edited("one_turn"), move("b2b1"))[0].turns == 1
    assert run(edited("close_thinking"), ENDLESS)[0].said("extend")
    assert len(run(edited("fresh_chat_per_position"), move("b2b1"), move("b1d1"))[0].said("system")) == 2
    assert len(run(edited("forget_the_retry"), move("b2b2"), move("b2b1"), move("b1d1"))[0].said("system")) == 2


def trace(answer, end="answered"):
    """The public trace of an episode of h0 that failed at the first position."""
    observation = asyncio.run(PuzzleEnv(TWO_MATES).call("observe", (), {}))
    chat = [
        {"source": "tool", "text": observation},
        {"source": "sampled", "text": "…</think>…", "turn": 0, "finish": "stop"},
    ]
    return {"end": end, "answer": answer, "chats": [chat]}


def test_the_signs_tell_wrong_moves_from_illegal_ones():
    assert Sign.GROUNDED_WRONG in signs(trace("a1a2"))
    assert Sign.UNUSED_RESULT in signs(trace("a1c3"))
    assert {Sign.NO_ANSWER, Sign.FORMAT, Sign.SINGLE_CALL} <= signs(trace(None, "format"))


@pytest.mark.parametrize("name", ["h0", "strong", *(edit.name for edit in CATALOGUE)])
def test_no_harness_ranks_marks_or_picks_moves(name):
    """Whatever is shown of the list of legal moves is all of it, in its own order, each line laid out alike."""
    source = SOURCES.get(name) or edited(name)
    model, env, _ = run(source, move("b2b1"), move("b1d1"))
    listed = [line for text in model.said("user") for line in text.splitlines() if line.startswith("[")]
    board = chess.Board(PAPER_LINE.fen)
    expected = []
    for place, uci in enumerate(PAPER_LINE.moves[:3]):
        board.push_uci(uci)
        if place != 1:
            expected += legal_moves(board)
    full = {" ".join(expected), " ".join(line.partition(" ")[0] for line in expected)}
    assert not listed or any(" ".join(listed) in one for one in full)
    assert all(given in ("b2b1", "b1d1", None) for given in env.calls)  # the model's own moves, or left to the host
