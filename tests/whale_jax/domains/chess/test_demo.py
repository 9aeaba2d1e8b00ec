"""The embedded demo's promises: sizes, verified puzzles, disjoint positions, reproducible rows."""

import random
from collections import Counter
from importlib import resources
from itertools import islice

from whale_jax.domains.chess import domain, generate
from whale_jax.domains.chess.demo import FILE, demo_rows, demo_tasks
from whale_jax.domains.chess.game import Ending, Game
from whale_jax.domains.chess.library import chess
from whale_jax.domains.chess.puzzle import Puzzle, check_rules
from whale_jax.domains.chess.tasks import puzzle_of_task
from whale_jax.domains.task import Split, check_disjoint

PUZZLES = [(Puzzle("", row["fen"], tuple(row["moves"].split())), Split(row["split"])) for row in demo_rows()]


def solver_boards(puzzle: Puzzle):
    """Each position in which the solver is to move."""
    board = chess.Board(puzzle.fen)
    for place, uci in enumerate(puzzle.moves):
        if place % 2:
            yield board.copy(stack=False)
        board.push_uci(uci)


def test_sizes():
    counts = {split: len(tasks) for split, tasks in demo_tasks().items()}
    assert sum(counts.values()) == len(PUZZLES) >= 2_000
    assert counts[Split.WEIGHT] >= 900
    assert counts[Split.HARNESS] >= 300
    assert counts[Split.VALIDATION] >= 250
    assert counts[Split.TEST] >= 300
    assert len({task.id for tasks in demo_tasks().values() for task in tasks}) == len(PUZZLES)
    assert len((resources.files("whale_jax.domains.chess") / FILE).read_bytes()) <= 300_000


def test_every_split_has_mates_in_one_and_two_in_like_shares():
    for tasks in demo_tasks().values():
        kinds = Counter(theme for task in tasks for theme in task.reference["themes"])
        assert set(kinds) == {"mateIn1", "mateIn2"}
        assert 0.2 < kinds["mateIn2"] / len(tasks) < 0.45


def test_splits_share_no_task():
    check_disjoint(demo_tasks())


def test_no_position_or_image_of_one_is_seen_in_two_splits():
    seen: dict[str, Split] = {}
    for puzzle, split in PUZZLES:
        for board in solver_boards(puzzle):
            assert seen.setdefault(generate.image_class(board), split) is split


def test_positions_are_small():
    for puzzle, _ in PUZZLES:
        for board in solver_boards(puzzle):
            assert board.legal_moves.count() <= generate.MAX_LEGAL_MOVES
            assert chess.popcount(board.occupied) <= 6


def test_a_sample_is_searched_anew():
    """Every solver move is the only one that mates, or that forces mate in two."""
    for puzzle, _ in random.Random(0).sample(PUZZLES, 60):
        board = check_rules(puzzle)
        at_once = generate.mates(board)
        if puzzle.solver_moves == 2:
            assert at_once == []
            assert [move.uci() for move in generate.mates_in_two(board)] == [puzzle.moves[1]]
            board.push_uci(puzzle.moves[1])
            board.push_uci(puzzle.moves[2])
            at_once = generate.mates(board)
        assert [move.uci() for move in at_once] == [puzzle.moves[-1]]


def test_every_line_ends_in_mate_and_is_played_by_a_game():
    for split in Split:
        for task in demo_tasks()[split][:40]:
            puzzle = puzzle_of_task(task)
            game = Game(puzzle)
            for uci in puzzle.moves[1::2]:
                assert f"[{uci}] SAN=" in game.observe()
                game.play(f"<move>{uci}</move>")
            assert game.ending is Ending.SOLVED


def test_a_game_is_a_pure_function_of_its_seed():
    first = list(islice(generate.games(5), 4))
    assert first == list(islice(generate.games(5), 4))
    assert first != list(islice(generate.games(6), 4))


def test_image_class():
    board = chess.Board("8/8/8/8/8/2k5/1q6/K7 w - - 0 1")
    for image in (board.mirror(), board.transform(chess.flip_horizontal), board.transform(chess.flip_diagonal)):
        assert generate.image_class(image) == generate.image_class(board)
    other = chess.Board("8/8/8/8/8/2k5/2q5/K7 w - - 0 1")
    assert generate.image_class(other) != generate.image_class(board)
    pawn = chess.Board("4k3/8/8/8/8/8/P7/4K3 w - - 0 1")
    assert generate.image_class(pawn) == generate.image_class(pawn.transform(chess.flip_horizontal))
    assert generate.image_class(pawn) != generate.image_class(pawn.transform(chess.flip_vertical))


def test_the_hash_of_the_data_is_stable():
    assert domain.load().data_hash == domain.load().data_hash


def test_the_first_rows_are_made_anew_from_the_seed():
    """The shipped rows are those that the script makes: each of the first finds is among them."""
    shipped = {puzzle.fen: puzzle.moves for puzzle, _ in PUZZLES}
    found = list(islice(generate.games(0), 40))
    assert sum(shipped.get(one.fen) == one.moves for one in found) >= 36  # a few are images of others
