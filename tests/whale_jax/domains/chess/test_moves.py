"""What a reply names, and that nothing it holds raises."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_jax.domains.chess.library import chess
from whale_jax.domains.chess.moves import MAX_WRITTEN, named, read, tagged

BOARD = chess.Board("6k1/5ppp/8/8/8/8/5PPP/R5K1 w - - 0 1")

REPLIES = [
    ("<move>a1a8</move>", ["a1a8"]),
    ("It is <move>a1a8</move>, not Kf1.", ["a1a8"]),
    ("<move>draft <move>a1a8</move>", ["a1a8"]),
    ("<move>a1a8</move> or <move>Ra8#</move>", ["a1a8"]),
    ("<move>a1a8</move> or <move>g1f1</move>", ["a1a8", "g1f1"]),
    ("<move></move>", [""]),
    ("<move>a1a8", ["a1a8"]),  # without a pair the text is read
    ("<MOVE>a1a8</MOVE>", ["a1a8"]),
    ("</move> <move>", []),
    ("I play Ra8#.", ["a1a8"]),
    ("[a1a8] SAN=Ra8#", ["a1a8"]),
    ("First Ra8+, then Kf1.", ["a1a8", "g1f1"]),
    ("The king on g8 cannot leave the back rank: Ra8#", ["a1a8"]),
    ("h3", ["h2h3"]),  # a pawn can go there
    ("h5", []),  # a square that no pawn reaches
    ("Qd8 mates", ["Qd8"]),
    ("I do not know", []),
    ("a1a8 in thinking</think>nothing", []),
    ("", []),
    ("<move>Ra8 mate</move>", ["a1a8"]),
    ("I write <move>uci</move>: <move>a1a8</move>", ["a1a8"]),
    ("<move>uci</move> <move>san</move>", ["uci", "san"]),
]


@pytest.mark.parametrize(("text", "names"), REPLIES)
def test_what_a_reply_names(text, names):
    assert [reading.name for reading in named(BOARD, text)] == names


@pytest.mark.parametrize("uci", sorted(move.uci() for move in BOARD.legal_moves))
def test_every_legal_move_is_read_in_uci_and_san(uci):
    move = chess.Move.from_uci(uci)
    assert read(BOARD, uci).move == read(BOARD, BOARD.san(move)).move == read(BOARD, uci.upper()).move == move


MOVE_LIKE = st.text(alphabet="abcdefgh12345678KQRBNOo0x-+#=<>/move. !é…", max_size=40)


@given(st.one_of(MOVE_LIKE, st.text(max_size=60)))
def test_no_text_raises_and_what_is_read_is_legal(text):
    for reading in named(BOARD, text):
        assert (reading.move is None) == (reading.problem is not None)
        assert reading.move is None or BOARD.is_legal(reading.move)
        if reading.problem:
            assert len(reading.problem) < 80 - len("Illegal move: ")
            assert "\n" not in reading.problem
    read(BOARD, text)


@given(st.lists(st.sampled_from(["<move>", "</move>", "x", " "]), max_size=30))
def test_tags_pair_with_the_nearest_opener(parts):
    text = "".join(parts)
    for inside in tagged(text):
        assert f"<move>{inside}</move>" in text
        assert "<move>" not in inside
        assert "</move>" not in inside


def test_long_and_unprintable_spellings_are_quoted_short():
    problem = read(BOARD, "Q\x07" + string.ascii_letters * 50).problem
    assert problem is not None
    assert len(problem.partition(":")[0]) <= MAX_WRITTEN
    assert problem.isprintable()
