"""What the domain hands to a run."""

import asyncio
import json

import pytest

from harness_search.contract import TaskView, check_source, read_info
from tests.whale_jax.domains.chess.positions import CARD, PAPER_LINE, TWO_MATES
from whale_jax.domains.chess import domain
from whale_jax.domains.chess.library import chess
from whale_jax.domains.chess.observation import ascii_board, legal_moves
from whale_jax.domains.chess.prepare import to_row
from whale_jax.domains.chess.tasks import parse_row
from whale_jax.domains.task import RowError, Split, TaskError, content_hash


@pytest.fixture(scope="module")
def demo():
    return domain.load()


def test_the_demo_observes_and_scores(demo):
    task = demo.tasks(Split.TEST)[0]
    assert demo.env(task).names == demo.tool_names == {"observe", "play"}
    assert asyncio.run(demo.env(task).call("observe", (), {})).startswith("Chess puzzle: ")
    one = next(task for task in demo.tasks(Split.TEST) if task.reference["themes"] == ["mateIn1"])
    assert demo.verify(one, f"<move>{one.reference['moves'][1]}</move>").reward == 1
    assert demo.verify(one, "I do not know.").reward == 0
    assert demo.verify(one, None).answer is None


def test_the_inputs_hold_the_position_alone(demo):
    for split in Split:
        for task in demo.tasks(split):
            assert set(task.inputs) == {"position", "placement"}
            assert not any(move in str(task.inputs) for move in task.reference["moves"])
    task = demo.tasks(Split.TEST)[0]
    assert TaskView(task.id, task.inputs).position == task.inputs["position"]


def test_harnesses_obey_the_contract_and_the_skill_names_what_there_is(demo):
    for source in (demo.h0, demo.strong):
        assert check_source(source) == []
        assert read_info(source).tools == ()
    for word in ("env.observe()", "env.play(reply, move=None)", "task.position", "task.placement", "Puzzle over: "):
        assert word in demo.skill


def test_the_scripted_result_is_laid_out_as_a_real_one(demo):
    lines = demo.scripted_result.splitlines()
    board = chess.Board(lines[2].removeprefix("FEN: "))
    assert lines[4:13] == ascii_board(board)
    assert set(lines[16:]) < set(legal_moves(board))
    assert demo.scripted_replies[-1].endswith("<move>a1a8</move>")


def test_content_is_pieces_and_side_to_move():
    def content(fen, moves):
        return content_hash("chess", parse_row({"fen": fen, "moves": moves}).inputs)

    one = content("7k/8/6K1/8/8/8/8/RR6 b - - 0 1", "h8g8 b1b8")
    assert one == content("7k/8/6K1/8/8/8/8/RR6 b - - 40 90", ["h8g8", "a1a8"])
    assert one == content("5k2/8/6K1/8/8/8/8/RR6 b - - 0 1", "f8g8 b1b8")  # the same position, reached otherwise
    assert one != content("7K/8/6k1/8/8/8/8/rr6 w - - 0 1", "h8g8 b1b8")  # colours swapped: only the case differs


def write_folder(folder, **files):
    folder.mkdir()
    rows = dict(zip(Split, [*(to_row(puzzle) for puzzle in (CARD, PAPER_LINE, TWO_MATES)), OTHER], strict=True))
    for split in Split:
        text = files.get(split) or json.dumps(rows[split])
        (folder / f"{split}.jsonl").write_text(text + "\n", encoding="utf-8")
    return folder


OTHER = {"fen": "6k1/5ppp/8/8/8/8/r7/6K1 w - - 0 1", "moves": "g1f1 a2a1"}


def test_a_folder_of_task_files_is_loaded(tmp_path):
    loaded = domain.load(task_dir=write_folder(tmp_path / "data"))
    (task,) = loaded.tasks(Split.WEIGHT)
    assert task.id == "0009B"
    assert task.reference == {
        "fen": CARD.fen,
        "moves": list(CARD.moves),
        "rating": 1112,
        "themes": ["advantage", "middlegame", "short"],
    }
    assert loaded.budgets == domain.PAPER_BUDGETS
    assert loaded.budgets.assistant_tokens == 8_129
    assert loaded.data_hash != domain.load().data_hash
    (other,) = loaded.tasks(Split.TEST)
    assert other.reference["rating"] is None
    assert loaded.verify(other, "Ra1+").reward == 1


def test_bad_rows_and_overlaps_stop_the_run(tmp_path):
    illegal = json.dumps({**OTHER, "moves": "g1g3 a2a1"})
    folder = write_folder(tmp_path / "bad", test="\n".join([json.dumps(OTHER), illegal, "{}"]))
    with pytest.raises(TaskError, match=r"2 of 3 rows.*test\.jsonl:2: move 1 \(g1g3\) is illegal.*jsonl:3: `fen`"):
        domain.load(task_dir=folder)
    assert [row.line for row in domain.load(task_dir=folder, max_bad_rows=0.7).bad_rows] == [2, 3]
    with pytest.raises(TaskError, match="weight and test share 1 task"):
        domain.load(task_dir=write_folder(tmp_path / "same", test=json.dumps({**to_row(CARD), "id": "other"})))
    with pytest.raises(TaskError, match=r"nowhere: no weight tasks: one of weight\.jsonl, .* must be there"):
        domain.load(task_dir=tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"fen": None}, "`fen` must be a text"),
        ({"moves": 7}, "`moves` must be a text or a list of texts"),
        ({"moves": [7]}, "`moves` must be a text or a list of texts"),
        ({"moves": "g1f1 a2a1 f1g1"}, "must be even"),
        ({"moves": " ".join(["g1f1", "g8f8", "f1g1", "f8g8"] * 5)}, "9 solver moves, got 10"),
        ({"rating": "1500"}, "`rating` must be a whole number"),
        ({"themes": 3}, "`themes` must be a text"),
    ],
)
def test_bad_fields_are_named(changed, message):
    with pytest.raises(RowError, match=message):
        parse_row({**OTHER, **changed})


def test_themes_may_be_a_text():
    assert parse_row({**OTHER, "themes": "mate short"}).reference["themes"] == ["mate", "short"]
