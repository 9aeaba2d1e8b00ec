"""Puzzles for the chess text: made like the demo's, turned and mirrored at random, and none of them an image of a
position that a solver sees in the demo, in whatever split."""

import functools
import random
from collections.abc import Iterator

from whale_jax.domains.chess.demo import demo_rows
from whale_jax.domains.chess.generate import Found, games, image_class
from whale_jax.domains.chess.library import chess
from whale_jax.domains.chess.puzzle import Puzzle

POOL = {1: 2_400, 2: 1_000}
"""Puzzles by number of solver moves; each has up to sixteen images."""
SEED = 20_261_130
_WHOLE_TURNS = (0x00, 0x07, 0x38, 0x3F)
"""Square numbers under exclusive or: as it is, mirrored by files, by ranks, and both."""


@functools.cache
def demo_classes() -> frozenset[str]:
    """The image classes of all positions of the demo that a solver sees."""
    classes = set()
    for row in demo_rows():
        board = chess.Board(row["fen"])
        for number, move in enumerate(row["moves"].split()):
            board.push_uci(move)
            if number % 2 == 0:
                classes.add(image_class(board))
    return frozenset(classes)


def puzzles(seed: int = SEED) -> Iterator[Found]:
    """Puzzles without end whose positions, all of them, are in no split of the demo."""
    known = demo_classes()
    return (found for found in games(seed) if not known & set(found.seen))


@functools.cache
def pool() -> dict[int, tuple[Found, ...]]:
    """`POOL`'s puzzles by number of solver moves; takes a minute or two."""
    pools: dict[int, dict[str, Found]] = {length: {} for length in POOL}
    for found in puzzles():
        wanted = pools[len(found.moves) // 2]
        if len(wanted) < POOL[len(found.moves) // 2]:
            wanted.setdefault(found.seen[0], found)
        if all(len(pools[length]) == count for length, count in POOL.items()):
            return {length: tuple(few.values()) for length, few in pools.items()}
    raise AssertionError("games never end")


def image(found: Found, rng: random.Random) -> Puzzle:
    """The puzzle with colours swapped or not, and turned or mirrored at random; with a pawn, by files alone."""
    board = chess.Board(found.fen)
    flips = (0x00, 0x07) if board.pawns else _WHOLE_TURNS
    flip, swap = rng.choice(flips), rng.random() < 0.5
    diagonal = not board.pawns and rng.random() < 0.5

    def placed(square: int) -> int:
        square ^= flip
        square = chess.square(chess.square_rank(square), chess.square_file(square)) if diagonal else square
        return chess.square_mirror(square) if swap else square

    turned = chess.Board(None)
    for square, piece in board.piece_map().items():
        turned.set_piece_at(placed(square), chess.Piece(piece.piece_type, piece.color ^ swap))
    turned.turn = board.turn ^ swap
    moves = [chess.Move.from_uci(uci) for uci in found.moves]
    line = [chess.Move(placed(m.from_square), placed(m.to_square), m.promotion).uci() for m in moves]
    return Puzzle("image", turned.fen(), tuple(line))


def draw(rng: random.Random) -> Puzzle:
    """A puzzle of the pool in one of its images, two of three with a mate in one."""
    return image(rng.choice(pool()[1 if rng.random() < 0.67 else 2]), rng)
