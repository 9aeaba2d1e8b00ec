"""The database as it is found: plain, compressed, in frames, cut off, with bad rows."""

from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tests.whale_jax.domains.chess.positions import CARD, PAPER_LINE, TWO_MATES, csv_row
from whale_jax.domains.chess.lichess import COLUMNS, read_puzzles
from whale_jax.domains.chess.puzzle import Puzzle
from whale_jax.domains.task import BadRow, TaskError

HEADER = ",".join(COLUMNS)
TEXT = "\n".join([HEADER, *map(csv_row, (CARD, PAPER_LINE, TWO_MATES))]) + "\n"


def write(path: Path, content: bytes | str) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def read(path: Path) -> list:
    return list(read_puzzles(path))


def test_rows_become_puzzles_with_their_lines(tmp_path):
    assert read(write(tmp_path / "p.csv", TEXT)) == [(2, CARD), (3, PAPER_LINE), (4, TWO_MATES)]


@pytest.mark.parametrize("frames", [1, 3])
def test_zstd_in_one_or_more_frames(tmp_path, frames):
    data, step = TEXT.encode(), len(TEXT) // frames + 1
    packed = b"".join(zstandard.compress(data[start : start + step]) for start in range(0, len(data), step))
    rows = read(write(tmp_path / "p.csv.zst", packed))
    assert rows == [(2, CARD), (3, PAPER_LINE), (4, TWO_MATES)]


@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: data + b"tail", lambda data: data[:9]])
def test_a_damaged_zstd_file_is_an_error(tmp_path, damage):
    path = write(tmp_path / "p.csv.zst", damage(zstandard.compress(TEXT.encode())))
    with pytest.raises(TaskError, match=r"p\.csv\.zst: (the zstd file ends in the middle|not a sound zstd file)"):
        read(path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(TaskError, match="cannot be read"):
        read(tmp_path / "no.csv")


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("start", ["", "\ufeff"])
def test_line_ends_and_byte_order_mark(tmp_path, start, ending):
    assert read(write(tmp_path / "p.csv", start + TEXT.replace("\n", ending).removesuffix(ending))) == [
        (2, CARD),
        (3, PAPER_LINE),
        (4, TWO_MATES),
    ]


def test_no_header_fewer_columns_and_another_order(tmp_path):
    assert read(write(tmp_path / "a.csv", csv_row(CARD))) == [(1, CARD)]
    short = ",".join(csv_row(CARD).split(",")[:8])
    assert read(write(tmp_path / "b.csv", short)) == [(1, CARD)]
    moved = f"Moves,FEN,PuzzleId\n{' '.join(CARD.moves)},{CARD.fen},{CARD.id}\n"
    assert read(write(tmp_path / "c.csv", moved)) == [(2, Puzzle(CARD.id, CARD.fen, CARD.moves))]
    with pytest.raises(TaskError, match="header lacks Moves"):
        read(write(tmp_path / "d.csv", "PuzzleId,FEN\nx,y\n"))


BAD = {
    "PuzzleId is empty": {"PuzzleId": " "},
    "FEN must have six fields, got 4": {"FEN": "8/8/8/8/8/8/8/8 w - -"},
    "moves must be UCI": {"Moves": "b6c5 Bg4"},
    "there are no moves": {"Moves": ""},
    "must be even": {"Moves": "b6c5"},
    "Rating must be a whole number, got 'high'": {"Rating": "high"},
    "a row must have 10 columns, got 11": {"OpeningTags": "a,b"},
}


@pytest.mark.parametrize("reason", BAD)
def test_a_bad_row_is_named_and_the_next_one_read(tmp_path, reason):
    path = write(tmp_path / "p.csv", "\n".join([HEADER, csv_row(CARD, **BAD[reason]), csv_row(TWO_MATES)]))
    (line, bad), good = read(path)
    assert (line, bad.line, bad.path) == (2, 2, str(path))
    assert reason in bad.reason
    assert good == (3, TWO_MATES)


def test_bytes_that_are_no_text_and_quotes_that_do_not_close(tmp_path):
    rows = read(write(tmp_path / "p.csv", b"\xff\xfe,a,b\n" + csv_row(CARD, OpeningTags='"x').encode()))
    assert [(line, type(row)) for line, row in rows] == [(1, BadRow), (2, BadRow)]
    assert read(write(tmp_path / "q.csv", csv_row(CARD, OpeningTags='"a,b"'))) == [(1, CARD)]


@given(st.lists(st.one_of(st.text(max_size=30), st.just(csv_row(CARD))), max_size=6), st.integers(0, 3))
def test_whatever_the_lines_hold_each_gets_a_row_or_a_reason(tmp_path_factory, lines, blank):
    clean = [line.replace("\n", " ").replace("\r", " ") for line in lines]
    content = "\n".join([HEADER, *clean, *[""] * blank]).encode("utf-8", "surrogatepass")
    rows = read(write(tmp_path_factory.mktemp("any") / "p.csv", content))
    assert [line for line, _ in rows] == [number for number, line in enumerate(clean, start=2) if line]
    assert all(isinstance(row, Puzzle | BadRow) for _, row in rows)
