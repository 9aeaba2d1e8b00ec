"""Moves as a model writes them: found in a reply, read against a position, refused with a reason.

Rules, in the order in which they apply:

- Tags are `<move>` and `</move>`, lower case and without spaces. Each `</move>` is paired with the nearest `<move>`
  before it. With at least one pair, what the pairs enclose is what the reply names; text outside does not count.
- Without a pair, every move in the text counts: UCI (`e2e4`), SAN (`Qxh7#`, `exd6`, `O-O`), and a bare square (`e4`)
  where a pawn can go there.
- A move may be UCI or SAN, with or without decoration: move number, `+`, `#`, `!?`, Markdown, `e.p.`, typographic
  dashes, figurines, the word "mate". A wrong check or mate sign is no error (case E134). Castling may be spelled with
  o, O or 0, or as the king's two steps (`e1g1`, `Kg1`) or as king takes rook (`e1h1`).
- Only what follows the last `</think>` is read, should the text hold one.
- Promotion must name the piece. A null move (`0000`, `--`) is no move of a puzzle.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from whale_jax.domains.chess.library import chess

THINK_END = "</think>"
OPEN, CLOSE = "<move>", "</move>"
MAX_WRITTEN = 16
"""Characters of a model's spelling that are quoted back to it."""

_UCI = re.compile(r"([a-h][1-8])[-x:]?([a-h][1-8])=?([qrbnk])?", re.IGNORECASE)
_CASTLING = re.compile(r"[o0](-?)[o0](\1[o0])?", re.IGNORECASE)
_NUMBER = re.compile(r"^\d{1,3}\s*(?:\.+|…)\s*")
_REMARK = re.compile(r"\s*\(?(?:e\.?\s?p\.?|check(?:mate)?|mate)\)?$", re.IGNORECASE)
_DECORATION = "*_`~\"'()[]{}.,;:!?+#†‡±=≈ \t\r\n"
_SIGNS = str.maketrans(
    {
        **dict.fromkeys("‐‑‒–—―−", "-"), "×": "x", "…": "...",
        **dict(zip("♔♕♖♗♘♚♛♜♝♞", "KQRBNKQRBN", strict=True)), "♙": "", "♟": "", "\ufe0e": "", "\ufe0f": "",
    }
)  # fmt: skip
_IN_PROSE = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"[a-h][1-8][-x]?[a-h][1-8](?:=?[qrbnQRBN])?"
    r"|[KQRBN][a-h]?[1-8]?[x-]?[a-h][1-8]"
    r"|(?:[a-h]x?)?[a-h][1-8](?:=?[QRBN])?"
    r"|[Oo0]-[Oo0](?:-[Oo0])?"
    r")(?![A-Za-z0-9])"
)
_BARE_SQUARE = re.compile(r"[a-h][1-8]")


class Kind(Enum):
    """What a spelling is."""

    MOVE = auto()
    """One move, be it illegal."""
    AMBIGUOUS = auto()
    """Several legal moves."""
    OTHER = auto()
    """No move in any notation."""


@dataclass(frozen=True)
class Reading:
    """One spelling, read against a position.

    Attributes:
        written: the spelling, without decoration.
        move: the legal move that it means; None when there is none.
        problem: why there is none, for the model to read; None when there is a move.
        kind: what the spelling is.
    """

    written: str
    move: chess.Move | None
    problem: str | None = None
    kind: Kind = Kind.MOVE

    @property
    def name(self) -> str:
        """The move in UCI, or what was written."""
        return self.move.uci() if self.move else self.written


def tagged(text: str) -> list[str]:
    """What each pair of move tags in `text` encloses, in order. Linear in the text."""
    found: list[str] = []
    pieces = text.split(CLOSE)
    for piece in pieces[:-1]:
        _, tag, inside = piece.rpartition(OPEN)
        if tag:
            found.append(inside)
    return found


def named(board: chess.Board, text: str) -> list[Reading]:
    """The different moves that a reply names, in order of appearance; illegal ones are told apart by their spelling.
    What is no move at all (`<move>uci</move>`, said of the form) is listed only when there is nothing else."""
    text = text.rpartition(THINK_END)[2]
    spellings = tagged(text)
    prose = not spellings
    if prose:
        spellings = [match.group() for match in _IN_PROSE.finditer(text.translate(_SIGNS))]
    readings: dict[str, Reading] = {}
    for spelling in dict.fromkeys(spellings):
        reading = read(board, spelling)
        if prose and reading.move is None and _BARE_SQUARE.fullmatch(spelling):
            continue  # a square that is talked about
        readings.setdefault(reading.name, reading)
    found = list(readings.values())
    return [reading for reading in found if reading.kind is not Kind.OTHER] or found


def read(board: chess.Board, spelling: str) -> Reading:
    """The legal move of `board` that a spelling means, or why there is none. Never raises."""
    written = undecorated(spelling)
    shown = quoted(written)
    if not written:
        return Reading("", None, "there is no move in the tags", Kind.OTHER)
    if written in ("0000", "--", "@@@@"):
        return Reading(written, None, f"{shown}: passing is not a move")
    if uci := _UCI.fullmatch(written):
        return _from_uci(board, written, *uci.groups())
    if castling := _CASTLING.fullmatch(written):
        san = "O-O-O" if castling.group(2) else "O-O"
        move = next((move for move in board.legal_moves if _is_castling(board, move, san)), None)
        return Reading(written, move, None if move else f"{shown}: castling is not possible here")
    return _from_san(board, written)


def undecorated(spelling: str) -> str:
    """A spelling without move number, annotation, Markdown and the like (cases E129, E134, E136)."""
    text = spelling[:200].translate(_SIGNS).strip(_DECORATION)
    text = _NUMBER.sub("", text)
    text = _REMARK.sub("", text)
    return "".join(text.strip(_DECORATION).split())


def quoted(written: str) -> str:
    """A model's spelling, short and on one line, fit to be put into a message."""
    short = written if len(written) <= MAX_WRITTEN else written[: MAX_WRITTEN - 1] + "…"
    return "".join(character if character.isprintable() else "�" for character in short)


def listed(readings: Sequence[Reading]) -> str:
    """The first few moves by name, for a message."""
    return ", ".join(quoted(reading.name) for reading in readings[:3]) + (", …" if len(readings) > 3 else "")


def _from_uci(board: chess.Board, written: str, start: str, end: str, piece: str | None) -> Reading:
    text = (start + end + (piece or "")).lower()
    try:
        return Reading(written, board.parse_uci(text))  # it also takes "king takes rook" for castling
    except chess.InvalidMoveError:  # a move to its own square
        return Reading(written, None, f"{quoted(written)}: that is not a move")
    except chess.IllegalMoveError:
        move = chess.Move.from_uci(text)
        return Reading(written, None, f"{quoted(written)}: {_why_illegal(board, move)}")


def _from_san(board: chess.Board, written: str) -> Reading:
    shown = quoted(written)
    try:
        move = board.parse_san(written)
    except chess.InvalidMoveError:
        return Reading(written, None, f"{shown}: this is neither UCI nor SAN", Kind.OTHER)
    except chess.AmbiguousMoveError:
        return Reading(written, None, f"{shown}: several pieces can do this; write it in UCI", Kind.AMBIGUOUS)
    except chess.IllegalMoveError:
        if castling := _king_steps(board, written):
            return Reading(written, castling)
        if promotion := _unnamed_promotion(board, written):
            return Reading(written, None, f"{shown}: name the new piece, as in {promotion}")
        return Reading(written, None, f"{shown}: no piece can make this move")
    if not move:
        return Reading(written, None, f"{shown}: passing is not a move")
    return Reading(written, move)


def _why_illegal(board: chess.Board, move: chess.Move) -> str:
    """One short clause, about the rules alone."""
    start, end = chess.square_name(move.from_square), chess.square_name(move.to_square)
    piece = board.piece_at(move.from_square)
    if piece is None:
        return f"there is no piece on {start}"
    name = chess.piece_name(piece.piece_type)
    if piece.color != board.turn:
        return f"the {name} on {start} is not yours"
    if move.promotion is None and board.is_legal(chess.Move(move.from_square, move.to_square, chess.QUEEN)):
        return f"name the new piece, as in {start}{end}q"
    if move.promotion is not None and board.is_legal(chess.Move(move.from_square, move.to_square)):
        return "there is no promotion here"
    if board.is_pseudo_legal(move):
        return "it leaves your king in check" if board.is_check() else "it puts your king in check"
    return f"the {name} on {start} cannot go to {end}"


def _is_castling(board: chess.Board, move: chess.Move, san: str) -> bool:
    long = chess.square_file(move.to_square) < chess.square_file(move.from_square)
    return board.is_castling(move) and long == (san == "O-O-O")


def _king_steps(board: chess.Board, written: str) -> chess.Move | None:
    """Castling spelled as the king's own move, `Kg1`."""
    match = re.fullmatch(r"K(?:e[18]-?)?([cg][18])", written)
    if not match:
        return None
    target = chess.parse_square(match.group(1))
    return next((move for move in board.legal_moves if board.is_castling(move) and move.to_square == target), None)


def _unnamed_promotion(board: chess.Board, written: str) -> str | None:
    """The UCI of the promotion to a queen that a SAN without a piece must mean, if there is one."""
    try:
        return board.parse_san(written + "=Q").uci()
    except ValueError:
        return None
