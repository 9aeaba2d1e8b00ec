"""CASES.md, section e: chess. The id of each test is the id of its case."""

import pytest

from tests.whale_jax.domains.chess.positions import CARD, PAPER_LINE, TWO_MATES
from whale_jax.domains.chess.game import MAX_ILLEGAL, Game
from whale_jax.domains.chess.library import chess
from whale_jax.domains.chess.moves import read
from whale_jax.domains.chess.puzzle import Puzzle, check_form, check_rules
from whale_jax.domains.chess.verifier import judge
from whale_jax.domains.task import RowError

PROMOTION = "8/3P4/8/8/8/8/k7/4K3 w - - 0 1"
CASTLING = "4k3/8/8/8/8/8/8/R3K2R w KQ - 0 1"
EN_PASSANT = "4k3/8/8/3pP3/8/8/8/4K3 w - d6 0 1"
BACK_RANK = "6k1/5ppp/8/8/8/8/8/R5K1 w - - 0 1"
BACK_RANK_BLACK = "r5k1/8/8/8/8/8/5PPP/6K1 b - - 0 1"

SPELLINGS = [
    *(pytest.param(PROMOTION, text, "d7d8q", id=f"E127-{text}") for text in ("d8=Q", "d8Q", "d8q", "d7d8q", "d7d8=Q")),
    *(
        pytest.param(CASTLING, text, "e1g1", id=f"E129-{text}")
        for text in ("O-O", "0-0", "e1g1", "e1h1", "o-o", "00", "Kg1", "O–O", "Ke1g1", "O-O+")
    ),
    *(pytest.param(CASTLING, text, "e1c1", id=f"E129-{text}") for text in ("O-O-O", "0-0-0", "000", "Kc1", "e1a1")),
    *(
        pytest.param(BACK_RANK, text, "a1a8", id=f"E134-{text.strip()}")
        for text in (
            "Ra8!!",
            "1. Ra8#",
            "**Ra8#**",
            "Ra8#.",
            " Ra8#",
            "Ra8",
            "Ra8+",
            "Ra8#",
            "Ra1-a8#",
            "♖a8#",
            "`Ra8`",
        )
    ),
    pytest.param(BACK_RANK_BLACK, "1...Ra1#", "a8a1", id="E134-1...Ra1#"),
    pytest.param(BACK_RANK_BLACK, "31… Ra1#", "a8a1", id="E134-31…"),
    *(
        pytest.param(EN_PASSANT, text, "e5d6", id=f"E136-{text}")
        for text in ("exd6", "ed6", "e5d6", "exd6 e.p.", "exd6e.p.", "e5xd6 ep", "exd6 (e.p.)")
    ),
]


@pytest.mark.parametrize(("fen", "text", "uci"), SPELLINGS)
def test_spellings(fen, text, uci):
    board = chess.Board(fen)
    move = read(board, text).move
    assert move == chess.Move.from_uci(uci)
    assert board.is_en_passant(move) == (fen == EN_PASSANT)


REFUSED = [
    pytest.param(PROMOTION, "d7d8", "name the new piece, as in d7d8q", id="E127-uci"),
    pytest.param(PROMOTION, "d8", "name the new piece, as in d7d8q", id="E127-san"),
    pytest.param(PROMOTION, "e1e2q", "no promotion here", id="E127-no-pawn"),
    pytest.param(BACK_RANK, "0000", "passing is not a move", id="E131-uci"),
    pytest.param(BACK_RANK, "--", "passing is not a move", id="E131-san"),
    pytest.param(BACK_RANK, "Z0", "passing is not a move", id="E131-z0"),
    pytest.param(chess.STARTING_FEN, "e2e5", "the pawn on e2 cannot go to e5", id="E132-cannot"),
    pytest.param(chess.STARTING_FEN, "e4e5", "there is no piece on e4", id="E132-empty"),
    pytest.param(chess.STARTING_FEN, "e7e5", "the pawn on e7 is not yours", id="E132-theirs"),
    pytest.param("4r1k1/8/8/8/8/8/4R3/4K3 w - - 0 1", "e2d2", "it puts your king in check", id="E132-pinned"),
    pytest.param("4r1k1/8/8/8/8/8/R7/4K3 w - - 0 1", "a2a3", "it leaves your king in check", id="E132-in-check"),
    pytest.param(BACK_RANK, "O-O", "castling is not possible here", id="E129-not-here"),
    pytest.param("6k1/8/8/8/8/8/1K6/R6R w - - 0 1", "Rd1", "several pieces can do this", id="E134-ambiguous"),
    pytest.param(BACK_RANK, "Kg1", "no piece can make this move", id="E129-king-is-there"),
    pytest.param(BACK_RANK, "a8a8", "that is not a move", id="E146-same-square"),
]


@pytest.mark.parametrize(("fen", "text", "problem"), REFUSED)
def test_refused(fen, text, problem):
    reading = read(chess.Board(fen), text)
    assert reading.move is None
    assert problem in (reading.problem or "")


E137 = [
    pytest.param("8/8/8/8/8/8/8/4K3 w - - 0 1", "one king", id="E137-no-black-king"),
    pytest.param("4k3/8/8/8/8/8/8/3KK3 w - - 0 1", "one king", id="E137-two-kings"),
    pytest.param("P3k3/8/8/8/8/8/8/4K3 w - - 0 1", "impossible position", id="E137-pawn-on-the-back-rank"),
    pytest.param("4k3/8/8/8/8/8/8/4RK2 w - - 0 1", "impossible position", id="E137-side-not-to-move-in-check"),
    pytest.param("4k3/8/8/8/8/8/8/4K3 w KQkq - 0 1", "impossible position", id="E137-castling-without-rooks"),
    pytest.param("4k3/8/8/8/8/8/8/4K3 w -", "six fields, got 3", id="E141-short"),
    pytest.param("4k3/8/8/8/8/8/8/4K3 w - - 0", "six fields, got 5", id="E141-five"),
    pytest.param("4k3/8/8/8/8/8/8/4K3", "six fields, got 1", id="E141-board-only"),
    pytest.param("", "six fields, got 0", id="E141-empty"),
    pytest.param("4k3/8/8/8/8/8/8/4K3 x - - 0 1", "malformed", id="E141-bad-turn"),
    pytest.param("4k4/8/8/8/8/8/8/4K3 w - - 0 1", "8 ranks of 8", id="E141-nine-in-a-rank"),
    pytest.param("4k3/8/8/8/8/8/4K3 w - - 0 1", "8 ranks of 8", id="E141-seven-ranks"),
]


@pytest.mark.parametrize(("fen", "problem"), E137)
def test_bad_positions_are_rejected_with_a_reason(fen, problem):
    with pytest.raises(RowError, match=problem):
        check_rules(Puzzle("x", fen, check_form(fen, "e1e2 e8e7")))


def test_e139_some_impossible_checks_pass():
    board = chess.Board("8/8/N7/2k5/N7/8/8/3K4 b - - 0 1")
    assert board.is_valid()  # the known limit of python-chess: no last move gives check from a4 and a6 together


def test_e142_the_first_move_is_the_opponents():
    board = check_rules(CARD)
    assert board.fen() == "r2qr1k1/b1p2ppp/p5n1/P1p1p3/4P1n1/B2P2Pb/3NBP1P/RN1QR1K1 w - - 0 17"
    game = Game(CARD)
    assert "Last opponent move: [b6c5] SAN=bxc5" in game.observe()
    assert "Last opponent move: [h3g4] SAN=Bxg4" in game.play("<move>e2g4</move>")
    assert game.play("<move>Qxg4</move>") == "Puzzle over: the line is played."
    with pytest.raises(RowError, match="must be even"):
        check_form(CARD.fen, "b6c5 e2g4 h3g4")


def test_e144_a_slower_mate_is_wrong():
    game = Game(TWO_MATES)
    game.play("<move>a1a7</move>")  # still winning
    assert judge(game, "<move>a1a7</move>", protocol="honest").reward == 0


def test_e146_an_illegal_move_again_and_again_comes_to_an_end():
    game = Game(PAPER_LINE)
    results = [game.play("<move>a8a8</move>") for _ in range(MAX_ILLEGAL + 1)]
    assert all(result.startswith("Illegal move: a8a8") for result in results[:-1])
    assert results[-1] == "Puzzle over: too many illegal moves."
    verdict = judge(game, "<move>a8a8</move>", protocol="honest")
    assert (verdict.reward, verdict.answer) == (0, "a8a8")
