"""Hand-made puzzles that several tests share."""

from whale_jax.domains.chess.puzzle import Puzzle

PAPER_LINE = Puzzle("paper", "6k1/5ppp/8/8/8/5B2/1q3PPP/R5K1 w - - 0 1", ("a1a7", "b2b1", "f3d1", "b1d1"))
"""The line of the paper's example, ...Qb1+ Bd1 Qxd1#: two solver moves, the opponent's answer between them."""

TWO_MATES = Puzzle("two", "7k/8/6K1/8/8/8/8/RR6 b - - 0 1", ("h8g8", "b1b8"), 900, ("mateIn1", "backRankMate"))
"""Black's king goes to g8; the stored mate is Rb8#, and Ra8# mates as well."""

CARD = Puzzle(
    "0009B",
    "r2qr1k1/b1p2ppp/pp4n1/P1P1p3/4P1n1/B2P2Pb/3NBP1P/RN1QR1K1 b - - 1 16",
    ("b6c5", "e2g4", "h3g4", "d1g4"),
    1112,
    ("advantage", "middlegame", "short"),
)
"""A row of the puzzle source."""


def csv_row(puzzle: Puzzle, **changed: str) -> str:
    """A row of the Lichess CSV."""
    rating = "" if puzzle.rating is None else str(puzzle.rating)
    fields = {
        "PuzzleId": puzzle.id, "FEN": puzzle.fen, "Moves": " ".join(puzzle.moves), "Rating": rating,
        "RatingDeviation": "74", "Popularity": "87", "NbPlays": "569", "Themes": " ".join(puzzle.themes),
        "GameUrl": "https://lichess.org/4MWQCxQ6/black#32", "OpeningTags": "",
    }  # fmt: skip
    return ",".join({**fields, **changed}.values())
