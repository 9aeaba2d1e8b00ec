"""Puzzles of several moves, the protocols, the retries, and what each result says."""

import pytest

from tests.whale_jax.domains.chess.positions import PAPER_LINE, TWO_MATES
from whale_jax.domains.chess.game import MAX_UNREADABLE, Game
from whale_jax.domains.chess.library import chess
from whale_jax.domains.chess.observation import observation
from whale_jax.domains.chess.verifier import judge
from whale_jax.domains.verdict import Verdict


def say(move):
    return f"<move>{move}</move>"


def test_the_papers_example_line():
    game = Game(PAPER_LINE)
    assert "Side to move: Black" in game.observe()
    assert "[b2b1] SAN=Qb1+" in game.observe()
    second = game.play(say("b2b1"))
    assert "Last opponent move: [f3d1] SAN=Bd1" in second
    assert "Puzzle move: 2" in second
    assert "[b1d1] SAN=Qxd1#" in second
    assert game.play(say("b1d1")) == "Puzzle over: the line is played."
    for protocol in ("honest", "paper"):
        assert judge(game, say("b1d1"), protocol=protocol) == Verdict(1, "b1d1", "the line is played")


def test_half_of_the_line_is_nothing():
    game = Game(PAPER_LINE)
    game.play(say("b2b1"))
    assert judge(game, say("b2b1"), protocol="honest") == Verdict(0, "b2b1", "the line is not finished, at move 2")


def test_a_legal_wrong_move_ends_the_puzzle_at_once():
    game = Game(PAPER_LINE)
    game.play(say("b2b1"))
    assert game.play(say("b1b2")) == "Puzzle over: that is not the move."
    assert game.play(say("b1d1")) == game.observe() == "Puzzle over: that is not the move."
    assert judge(game, say("b1b2"), protocol="honest") == Verdict(0, "b1b2", "wrong move, at move 2")


@pytest.mark.parametrize(("protocol", "reward"), [("honest", 1), ("paper", 0)])
def test_another_mate_in_one(protocol, reward):
    game = Game(TWO_MATES)
    assert game.play(say("a1a8")) == "Puzzle over: checkmate."
    verdict = judge(game, say("a1a8"), protocol=protocol)
    assert (verdict.reward, verdict.answer) == (reward, "a1a8")
    assert "another move than the stored one" in verdict.reason


@pytest.mark.parametrize("protocol", ["honest", "paper"])
def test_the_stored_mate_is_right_in_both_protocols(protocol):
    game = Game(TWO_MATES)
    game.play("Rb8#")
    assert judge(game, "Rb8#", protocol=protocol).reward == 1


def test_a_reply_that_names_no_single_move_is_not_played():
    game = Game(PAPER_LINE)
    before = game.observe()
    assert game.play("I resign.") == "No move read: write one move, as <move>e2e4</move>."
    assert game.play(say("b2b1") + say("b2c1")) == "No move read: several moves are named: b2b1, b2c1."
    assert game.play("<move> </move>") == "No move read: there is no move in the tags."
    assert game.play(say("Qh9")) == "No move read: Qh9: this is neither UCI nor SAN."
    assert game.play(say("b2b1"), "b2c1") == "No move read: the reply names b2b1, not b2c1."
    assert game.observe() == before
    assert (game.answer, game.found) == (None, 0)


def test_what_the_harness_read_may_be_spelled_otherwise():
    game = Game(PAPER_LINE)
    assert "Puzzle move: 2" in game.play("1...Qb1+ it is", "b2b1")


def test_retries_of_either_kind_are_bounded():
    game = Game(PAPER_LINE)
    for _ in range(MAX_UNREADABLE):
        assert game.play("hm").startswith("No move read: ")
    assert game.play(say("b2b2")).startswith("Illegal move: ")  # the other kind has its own count
    assert game.play("hm") == "Puzzle over: too many replies without one readable move."
    assert judge(game, "hm", protocol="honest").answer is None


def test_a_returned_reply_that_was_not_played_is_played():
    game = Game(PAPER_LINE)
    game.play(say("b2b1"))
    assert judge(game, say("Qxd1"), protocol="honest").reward == 1
    assert judge(game, say("Qxd1"), protocol="honest").reward == 1  # asking again changes nothing


def test_the_returned_reply_must_be_the_one_that_ended_the_puzzle():
    game = Game(TWO_MATES)
    game.play(say("b1b8"))
    verdict = judge(game, "Something else.", protocol="honest")
    assert verdict == Verdict(0, None, "the puzzle was over before the returned reply")
    assert judge(game, None, protocol="honest") == Verdict(0, None, "no reply to read")


def test_errors_are_short_enough_to_pass_for_an_empty_result():
    """The proposers' signs take a result under 80 characters for one that says next to nothing."""
    game = Game(PAPER_LINE)
    for text in ("", say("b2b1") + say("b2c1") + say("h2h3"), say("h7h8"), say("Qxxxxxxxxxxxxxxxxxx"), say("g7g8")):
        assert len(game.play(text)) < 80


def test_the_observation():
    board = chess.Board("7k/8/5K2/6Q1/8/8/8/8 w - - 4 9")
    text = observation(board, 3)
    assert text.splitlines()[:13] == [
        "Chess puzzle: find the best move for White.",
        "Side to move: White",
        "FEN: 7k/8/5K2/6Q1/8/8/8/8 w - - 4 9",
        "Board:",
        "8 . . . . . . . k",
        "7 . . . . . . . .",
        "6 . . . . . K . .",
        "5 . . . . . . Q .",
        "4 . . . . . . . .",
        "3 . . . . . . . .",
        "2 . . . . . . . .",
        "1 . . . . . . . .",
        "  a b c d e f g h",
    ]
    assert "Last opponent move: none\nPuzzle move: 3\nLegal moves:\n[f6e5] SAN=Ke5\n" in text
    moves = text.partition("Legal moves:\n")[2].splitlines()
    assert moves == sorted(moves)
    assert "[g5g7] SAN=Qg7#" in moves
    assert len(moves) == board.legal_moves.count()
