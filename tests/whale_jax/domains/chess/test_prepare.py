"""From a database to task files, and on to a domain."""

import random
from importlib import metadata

import pytest
import zstandard

from tests.whale_jax.domains.chess.positions import csv_row
from whale_jax.domains.chess import domain
from whale_jax.domains.chess.library import chess
from whale_jax.domains.chess.lichess import COLUMNS
from whale_jax.domains.chess.prepare import PUBLIC_FILES, prepare
from whale_jax.domains.chess.puzzle import Puzzle
from whale_jax.domains.manifest import Manifest, digest
from whale_jax.domains.task import Split, TaskError

SIZES = {Split.TEST: 4, Split.VALIDATION: 3, Split.HARNESS: 3, Split.WEIGHT: 12}


def made_up(count: int) -> list[Puzzle]:
    """Legal lines out of random games; nobody says that they are good puzzles."""
    rng = random.Random(5)
    puzzles: list[Puzzle] = []
    while len(puzzles) < count:
        board = chess.Board()
        for _ in range(rng.randrange(6, 12)):
            board.push(rng.choice(list(board.legal_moves)))
        fen, line = board.fen(), []
        while len(line) < 4 and not board.is_game_over():
            line.append(rng.choice(list(board.legal_moves)))
            board.push(line[-1])
        if len(line) == 4:
            number, moves = len(puzzles), tuple(map(chess.Move.uci, line))
            puzzles.append(Puzzle(f"p{number:03d}", fen, moves, 1000 + number, ("made", "up")))
    return puzzles


PUZZLES = made_up(60)
ILLEGAL = Puzzle("bad", "4k3/8/8/8/8/8/8/4RK2 w - - 0 1", ("e1e2", "e8e7"))


def write(path, puzzles, *, packed=True):
    text = "\n".join([",".join(COLUMNS), *map(csv_row, puzzles)]) + "\n"
    path.write_bytes(zstandard.compress(text.encode()) if packed else text.encode())
    return path


def test_prepared_data_is_a_domain(tmp_path):
    source = write(tmp_path / "puzzles.csv.zst", PUZZLES)
    manifest = prepare(source, tmp_path / "out", seed=42, sizes=SIZES)
    loaded = domain.load(task_dir=tmp_path / "out")
    assert {split: len(loaded.tasks(split)) for split in Split} == SIZES
    by_id = {puzzle.id: puzzle for puzzle in PUZZLES}
    for split in Split:
        for task in loaded.tasks(split):
            assert set(task.inputs) == {"position", "placement"}
            assert task.reference["moves"] == list(by_id[task.id].moves)
            assert (task.reference["rating"], task.reference["themes"]) == (by_id[task.id].rating, ["made", "up"])
    assert Manifest.read(tmp_path / "out") == manifest
    (file,) = manifest.sources
    assert (file.path, file.rows, file.bad_rows, file.licence) == ("puzzles.csv.zst", 60, 0, "CC0-1.0")
    assert (file.bytes, file.sha256) == digest(source)
    assert file.origin == PUBLIC_FILES[0].origin
    assert (manifest.domain, manifest.seed) == ("chess", 42)
    assert [(one.path, one.rows) for one in manifest.outputs] == [(f"{split}.jsonl", SIZES[split]) for split in Split]
    assert all((one.bytes, one.sha256) == digest(tmp_path / "out" / one.path) for one in manifest.outputs)
    assert metadata.version("chess") in manifest.notes[0]


def test_the_same_source_and_seed_give_the_same_bytes_whatever_the_order(tmp_path):
    shuffled = list(PUZZLES)
    random.Random(1).shuffle(shuffled)
    prepare(write(tmp_path / "a.csv", PUZZLES, packed=False), tmp_path / "a", seed=42, sizes=SIZES)
    prepare(write(tmp_path / "b.csv", shuffled), tmp_path / "b", seed=42, sizes=SIZES)
    prepare(tmp_path / "b.csv", tmp_path / "c", seed=43, sizes=SIZES)
    files = [f"{split}.jsonl" for split in Split]
    assert all((tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in files)
    assert any((tmp_path / "a" / name).read_bytes() != (tmp_path / "c" / name).read_bytes() for name in files)


def test_a_larger_weight_split_leaves_the_others_as_they_are(tmp_path):
    source = write(tmp_path / "p.csv", PUZZLES)
    prepare(source, tmp_path / "a", seed=42, sizes=SIZES)
    prepare(source, tmp_path / "b", seed=42, sizes={**SIZES, Split.WEIGHT: 30})
    for name in ("test.jsonl", "validation.jsonl", "harness.jsonl"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_what_is_left_out_is_counted(tmp_path):
    long = Puzzle("long", "4k3/8/8/8/8/8/8/4K3 w - - 0 1", ("e1e2", "e8e7") * 10)
    clocks = PUZZLES[0].fen.rsplit(" ", 2)[0] + " 40 90"
    twin = PUZZLES[0]._replace(id="twin", fen=clocks)
    source = write(tmp_path / "p.csv", [*PUZZLES, twin, long, ILLEGAL])
    manifest = prepare(source, tmp_path / "out", seed=42, sizes=SIZES, max_bad_rows=0.1)
    assert manifest.counts == {
        "left out: more than 9 solver moves": 1,
        "left out: same position as an earlier row": 1,
    }
    assert (manifest.sources[0].rows, manifest.sources[0].bad_rows) == (63, 1)
    (note,) = manifest.notes[1:]
    assert note.startswith("p.csv:64 could not be used: impossible position")


def test_too_many_bad_rows_too_few_puzzles_or_a_full_folder_write_nothing(tmp_path):
    source = write(tmp_path / "p.csv", [*PUZZLES[:30], ILLEGAL])
    with pytest.raises(TaskError, match=r"1 of 31 rows are bad.*p\.csv:32: impossible position"):
        prepare(source, tmp_path / "out", seed=42, sizes=SIZES)
    with pytest.raises(TaskError, match="22 puzzles are needed and 10 can be used"):
        prepare(write(tmp_path / "few.csv", PUZZLES[:10]), tmp_path / "out", seed=42, sizes=SIZES)
    assert not (tmp_path / "out").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "weight.jsonl").write_text("")
    with pytest.raises(TaskError, match="must be a new or an empty folder"):
        prepare(source, tmp_path / "full", seed=42, sizes=SIZES)


def test_a_missing_source_says_where_it_is_to_be_had(tmp_path):
    for place in (tmp_path / "no.csv.zst", tmp_path):
        with pytest.raises(
            TaskError, match=r"there is no such file; .*\n.*\n.*https://database\.lichess\.org.*\n.*CC0"
        ):
            prepare(place, tmp_path / "out", seed=42)


@pytest.mark.parametrize("packed", [True, False])
def test_the_source_may_be_the_folder_of_the_database(tmp_path, packed):
    name = "lichess_db_puzzle.csv.zst" if packed else "lichess_db_puzzle.csv"
    write(tmp_path / name, PUZZLES, packed=packed)
    assert prepare(tmp_path, tmp_path / "out", seed=42, sizes=SIZES).sources[0].path == name
