"""The text that the chess demo model learns from."""

import itertools
import random
from dataclasses import replace

import pytest

from tests.whale_jax.demo.wording import shared
from whale_jax.demo.chess import positions, prompts, stream
from whale_jax.demo.chess.episodes import BASE, chat_episode
from whale_jax.demo.spans import Span, Told
from whale_jax.demo.tokenizer import DEMO_DIR
from whale_jax.domains.chess import catalogue, h0, strong
from whale_jax.domains.chess.game import Ending, Game
from whale_jax.domains.chess.generate import Found, image_class, mates
from whale_jax.domains.chess.library import chess
from whale_jax.qwen3_5.template import ChatTemplate


@pytest.fixture(scope="module")
def template() -> ChatTemplate:
    return ChatTemplate.from_dir(DEMO_DIR)


@pytest.fixture(scope="module")
def found() -> list[Found]:
    return list(itertools.islice(positions.puzzles(), 40))


def said(spans: list[Span]) -> list[str]:
    """The finished assistant turns."""
    return [span.text.removesuffix("<|im_end|>") for span in spans if span.text.endswith("<|im_end|>") and span.weight]


def test_no_position_of_any_split_occurs_in_any_image(found: list[Found]) -> None:
    known = positions.demo_classes()
    assert len(known) > 2_150
    rng = random.Random(1)
    for one in found:
        puzzle = positions.image(one, rng)
        board = chess.Board(puzzle.fen)
        for number, move in enumerate(puzzle.moves):
            board.push_uci(move)
            if number % 2 == 0:
                assert image_class(board) not in known


def test_an_image_is_the_same_puzzle(found: list[Found]) -> None:
    rng = random.Random(2)
    for one in found:
        puzzle = positions.image(one, rng)
        assert chess.Board(puzzle.fen).is_valid()
        game = Game(puzzle)
        for move in puzzle.moves[1::2]:
            game.play(f"<move>{move}</move>")
        assert game.ending is Ending.SOLVED
        board = chess.Board(puzzle.fen)
        for move in puzzle.moves[:-1]:
            board.push_uci(move)
        assert [move.uci() for move in mates(board)] == [puzzle.moves[-1]]


def test_an_assistant_without_flaws_solves_every_puzzle(found: list[Found], template: ChatTemplate) -> None:
    rng = random.Random(3)
    for one in found:
        puzzle = positions.image(one, rng)
        turns = said(chat_episode(rng, puzzle, template, manner=replace(BASE, flaws=0.0)))
        assert turns[-1].endswith(f"<move>{puzzle.moves[-1]}</move>")


def test_a_flawed_assistant_fails_often_and_in_many_ways(found: list[Found], template: ChatTemplate) -> None:
    rng = random.Random(4)
    turns = [said(chat_episode(rng, positions.image(rng.choice(found), rng), template)) for _ in range(200)]
    assert 15 < sum(not t or "<move>" not in t[-1] for t in turns) < 150
    wrong = sum(f"<move>{one}</move>" in t[0] for t in turns if t for one in ["e4", "Ke2"])
    assert wrong < 20


def test_a_layout_leaves_parts_out(found: list[Found]) -> None:
    text = Game(positions.image(found[0], random.Random(5))).observe()
    layout = prompts.Layout(random.Random(5))
    layout.board = layout.fen = layout.san = layout.list = layout.asks = True
    shown = layout(text, random.Random(5), Told({}))
    assert shown.startswith(text)
    assert "<move>" in shown
    layout.board = layout.fen = layout.san = layout.list = layout.asks = False
    bare = layout(text, random.Random(5), Told({}))
    assert not any(part in bare for part in ("Board:", "FEN:", "SAN=" + "K", "Legal moves:"))


def test_a_list_to_pick_from_names_its_moves() -> None:
    rng = random.Random(6)
    for _ in range(20):
        spans = stream.exercise(rng, 12)
        given = spans[0].text
        assert spans[-1] == Span("<|endoftext|>", 1.0)
        for span in spans[1:-1]:
            if "<move>" in span.text:
                assert f"[{span.text.split('<move>')[1][:4]}]" in given


@pytest.mark.parametrize("module", [catalogue, strong])
def test_no_edit_says_what_the_model_was_trained_to_obey(module) -> None:
    assert not shared(module, prompts, h0)
