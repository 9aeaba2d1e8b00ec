"""Makes the demo's puzzles: `python -m whale_jax.domains.chess.generate --out=demo_puzzles.jsonl`.

Few pieces are put on the board at random and both sides play at random. Wherever the stronger side is to move, every
line is searched: a position with exactly one mate in one, or with none and exactly one move that mates in two whatever
the answer, is a puzzle. For a mate in two, one of the answers after which there is exactly one mate is stored. So every
solver move is the only one, and both protocols agree. The searching here is for making and checking tasks; no text,
tool or harness of an episode uses it.

Positions that are turned, mirrored or colour-swapped images of one another are one puzzle. The split follows from the
position before the mating move: a mate in two is in the split of the mate in one that it leads to, and no position
that a solver sees in one split, nor an image of it, is seen in another.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from whale_jax.domains.chess.library import chess
from whale_jax.domains.task import Split

MATERIAL = ("Q/", "R/", "RR/", "QR/", "QP/", "RP/", "QN/", "QB/", "RB/", "RN/", "Q/P", "R/P", "RR/P", "Q/N", "QR/P")
"""Pieces beside the kings: the solver's, then the opponent's."""
MAX_LEGAL_MOVES = 22
"""A position that the solver sees has at most so many legal moves: its list stays short enough for a small model."""
GAME_PLIES = 12
MAX_FLIGHTS = 2
"""A mate in two is looked for where the weaker king has at most so many moves: it costs forty times as much as a mate
in one, and elsewhere it is rarely found."""
COUNTS = {1: 1_500, 2: 650}
"""Puzzles by number of solver moves."""
SHARES = {Split.WEIGHT: 0.46, Split.HARNESS: 0.16, Split.VALIDATION: 0.14, Split.TEST: 0.24}

_EDGE = list(chess.SquareSet(chess.BB_RANK_1 | chess.BB_RANK_8 | chess.BB_FILE_A | chess.BB_FILE_H))
_TURNS = (
    lambda square: square,
    chess.square_mirror,
    lambda square: square ^ 0x07,
    lambda square: square ^ 0x3F,
    lambda square: _diagonal(square),
    lambda square: _diagonal(chess.square_mirror(square)),
    lambda square: _diagonal(square ^ 0x07),
    lambda square: _diagonal(square ^ 0x3F),
)


@dataclass(frozen=True)
class Found:
    """A puzzle as found.

    Attributes:
        fen: before the opponent's first move.
        moves: the whole line in UCI.
        seen: the image class of each position that the solver sees.
    """

    fen: str
    moves: tuple[str, ...]
    seen: tuple[str, ...]

    @property
    def split(self) -> Split:
        """The split that the last position belongs to."""
        place = int.from_bytes(blake2b(self.seen[-1].encode(), digest_size=8, person=b"split").digest(), "big") / 2**64
        for split, share in SHARES.items():
            place -= share
            if place < 0:
                return split
        return Split.TEST

    def row(self) -> str:
        """A line of the file."""
        themes = [f"mateIn{len(self.moves) // 2}"]
        return json.dumps({"fen": self.fen, "moves": " ".join(self.moves), "themes": themes, "split": str(self.split)})


def mates(board: chess.Board) -> list[chess.Move]:
    """Every move that mates at once, in the order of UCI."""
    return [move for move in _moves(board) if board.gives_check(move) and _mates(board, move)]


def mates_in_two(board: chess.Board) -> list[chess.Move]:
    """Every move after which each answer allows a mate; there is at least one answer."""
    return [move for move in _moves(board) if _forces(board, move)]


def image_class(board: chess.Board) -> str:
    """One spelling for a position and all its images: the side to move made White, then the least of the eight turned
    and mirrored boards, or of the two with a pawn on the board. Castling and en passant do not occur here."""
    white = board if board.turn == chess.WHITE else board.mirror()
    turns = (_TURNS[0], _TURNS[2]) if white.pawns else _TURNS
    pieces = [(piece.symbol(), square) for square, piece in white.piece_map().items()]
    return min(" ".join(sorted(f"{symbol}{turn(square):02d}" for symbol, square in pieces)) for turn in turns)


def games(seed: int) -> Iterator[Found]:
    """Puzzles without end, a pure function of the seed; the same one may come again."""
    number = 0
    while True:
        yield from _game(random.Random(f"chess-demo/{seed}/{number}"))
        number += 1


def generate(seed: int) -> list[Found]:
    """The demo's puzzles, in the order of a seeded hash."""
    left = dict(COUNTS)
    found: dict[str, Found] = {}
    for puzzle in games(seed):
        length = len(puzzle.moves) // 2
        if left[length] and puzzle.seen[0] not in found:
            found[puzzle.seen[0]] = puzzle
            left[length] -= 1
            if not any(left.values()):
                break
    return sorted(found.values(), key=lambda one: blake2b(f"{seed}/{one.fen}".encode(), digest_size=16).digest())


def _game(rng: random.Random) -> Iterator[Found]:
    """The puzzles of one random game."""
    solver = rng.choice(chess.COLORS)
    board = _placed(rng, rng.choice(MATERIAL), solver)
    for _ in range(GAME_PLIES):
        moves = _moves(board)
        if not moves:
            return
        before = board.copy(stack=False)
        move = rng.choice(moves)
        asked = board.turn != solver
        board.push(move)
        board.halfmove_clock, board.fullmove_number = 0, 1  # clocks are no part of a puzzle
        if asked and (line := _line(board.copy(stack=False), rng)):
            line_moves, seen = line
            yield Found(before.fen(), (move.uci(), *line_moves), seen)


def _placed(rng: random.Random, material: str, solver: chess.Color) -> chess.Board:
    """A possible position with the given pieces on random squares, the kings near each other and the weaker one on the
    edge (far from both, mates are rare), and either side to move."""
    own, other = material.split("/")
    pieces = [chess.Piece(chess.PIECE_SYMBOLS.index(symbol.lower()), solver) for symbol in own]
    pieces += [chess.Piece(chess.PIECE_SYMBOLS.index(symbol.lower()), not solver) for symbol in other]
    while True:
        board = chess.Board(None)
        board.turn = rng.choice(chess.COLORS)
        weak = rng.choice(_EDGE)
        strong = rng.choice([square for square in chess.SQUARES if 2 <= chess.square_distance(square, weak) <= 3])
        board.set_piece_at(weak, chess.Piece(chess.KING, not solver))
        board.set_piece_at(strong, chess.Piece(chess.KING, solver))
        free = [square for square in chess.SQUARES if square not in (weak, strong)]
        for piece, square in zip(pieces, rng.sample(free, len(pieces)), strict=True):
            board.set_piece_at(square, piece)
        if board.is_valid():
            return board


def _line(board: chess.Board, rng: random.Random) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """The only line of a mate in one or two and the classes of the solver's positions; None without such a line."""
    if not _short(board) or board.is_insufficient_material():
        return None
    at_once = mates(board)
    if at_once:
        return ((at_once[0].uci(),), (image_class(board),)) if len(at_once) == 1 else None
    keys = mates_in_two(board) if _cornered(board) else []
    if len(keys) != 1:
        return None
    start = image_class(board)
    board.push(keys[0])
    answers = _moves(board)
    rng.shuffle(answers)
    for answer in answers:
        board.push(answer)
        last = mates(board)
        if len(last) == 1 and _short(board):
            return (keys[0].uci(), answer.uci(), last[0].uci()), (start, image_class(board))
        board.pop()
    return None


def _short(board: chess.Board) -> bool:
    return 2 <= board.legal_moves.count() <= MAX_LEGAL_MOVES


def _cornered(board: chess.Board) -> bool:
    """Whether the king of the side that is not to move could make few moves if the other side passed."""
    king = board.king(not board.turn)
    if king is None or board.is_check():
        return False
    board.push(chess.Move.null())
    flights = sum(1 for _ in board.generate_legal_moves(chess.BB_SQUARES[king]))
    board.pop()
    return flights <= MAX_FLIGHTS


def _moves(board: chess.Board) -> list[chess.Move]:
    return sorted(board.legal_moves, key=chess.Move.uci)


def _mates(board: chess.Board, move: chess.Move) -> bool:
    board.push(move)
    mate = board.is_checkmate()
    board.pop()
    return mate


def _forces(board: chess.Board, move: chess.Move) -> bool:
    board.push(move)
    answers = list(board.legal_moves)
    forced = bool(answers)
    for answer in answers:
        board.push(answer)
        forced = any(board.gives_check(last) and _mates(board, last) for last in board.legal_moves)
        board.pop()
        if not forced:
            break
    board.pop()
    return forced


def _diagonal(square: chess.Square) -> chess.Square:
    return chess.square(chess.square_rank(square), chess.square_file(square))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="file to write")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    lines = [puzzle.row() for puzzle in generate(arguments.seed)]
    arguments.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(lines)} puzzles, {arguments.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
