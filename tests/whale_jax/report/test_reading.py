"""What a report reads of a run directory: journal, archives, trajectories, and what is damaged or missing of them."""

import json

import pytest

from harness_search.scoring import Score
from tests.whale_jax.report.made_run import SETTINGS, MadeRun, trace, two_cycles
from whale_jax.report.archives import archive_json, read_archives
from whale_jax.report.packing import pack, unpack
from whale_jax.report.run_files import ReportError, read_run
from whale_jax.report.trajectories import CHUNK, COLUMNS, LONGEST_SEGMENT, pack_trajectories


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A finished run that no test changes."""
    return two_cycles(tmp_path_factory.mktemp("made") / "run").directory


def everything(directory):
    return {path: path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def test_a_run_is_only_read(made):
    before = everything(made)
    run = read_run(made)
    archives = read_archives(run)
    pack_trajectories(archives, most=100)
    assert everything(made) == before
    assert (run.finished, run.name, len(run.moments)) == (True, "run", 12)
    assert [(moment.kind, moment.before, moment.after) for moment in run.moments[:5]] == [
        ("evaluation", 0, 0), ("weight", 0, 24), ("evaluation", 24, 24), ("search", 24, 30), ("search", 30, 42),
    ]  # fmt: skip
    assert run.evidence[0]["domain_figures"] == {"retrieved": 0.25}


def test_a_run_without_a_journal_is_read_and_gets_none(tmp_path):
    run = MadeRun(tmp_path / "run")
    (run.directory / "journal").rmdir()
    assert read_run(run.directory).moments == []
    assert not (run.directory / "journal").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", None, "cannot be read"),
        ("config.json", "{", "not JSON"),
        ("config.json", "[" * 100_000, "not JSON"),
        ("config.json", '{"settings": 1}', "is not the record of a run"),
        ("journal/000001.json", "{}", "does not follow the entry before it"),
    ],
)
def test_what_is_no_run_is_refused_by_name(tmp_path, name, content, message):
    directory = two_cycles(tmp_path / "run").directory
    (directory / name).unlink()
    if content is not None:
        (directory / name).write_text(content)
    with pytest.raises(ReportError, match=message) as raised:
        read_run(directory)
    assert str(directory / name) in str(raised.value)


def test_a_summary_of_a_shorter_journal_is_not_this_runs(tmp_path):
    made = two_cycles(tmp_path / "run")
    made.evaluation("late", "validation", [[1, 1]])
    assert not read_run(made.directory).finished
    (made.directory / "summary.json").write_text("[")
    assert not read_run(made.directory).finished


def test_damaged_lines_and_files_leave_gaps(tmp_path):
    made = two_cycles(tmp_path / "run")
    made.warn("first", "half \udc80 a character")
    with (made.directory / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "wei\n[1]\n')
    (made.directory / "evals" / "000000.json").write_text("{")
    run = read_run(made.directory)
    assert len(run.metrics) == 13
    assert run.warnings[0] == "first"
    assert 0 not in run.evidence
    assert 2 in run.evidence


def test_the_archive_of_a_phase(made):
    first, second = read_archives(read_run(made))
    content = archive_json(first)
    assert (content["cycle"], content["best"], len(content["tasks"])) == (0, "001", 6)
    by_id = {one["id"]: one for one in content["candidates"]}
    assert list(by_id) == ["000", "001", "002", "003"]
    assert by_id["001"]["score"]["mean"] == pytest.approx(4 / 6)
    assert by_id["001"]["score"]["ci95"][0] < 4 / 6 < by_id["001"]["score"]["ci95"][1]
    assert by_id["001"]["versus"]["mean"] == pytest.approx(1 / 6)
    assert by_id["001"]["rewards"] == [1, 1, 0, 1, 1, 0]
    assert (by_id["001"]["accepted"], by_id["001"]["best"]) == (True, True)
    assert (by_id["000"]["accepted"], by_id["000"]["best"]) == (False, False)
    assert (by_id["002"]["score"], by_id["002"]["errors"], by_id["002"]["detail"]) == (
        None,
        ["the error"],
        "the detail",
    )
    assert content["sessions"] == [{"iteration": 1, "state": "completed", "error": "the session error"}]
    assert content["inflation"]["best_search_score"] == pytest.approx(4 / 6)
    assert second.candidates[1].score is not None
    assert archive_json(second)["candidates"][1]["rewards"][-1] is None
    assert archive_json(second)["candidates"][1]["score"]["mean"] == 1.0


def test_an_unfinished_candidate_is_not_there(tmp_path):
    made = two_cycles(tmp_path / "run")
    (made.directory / "cycle_000" / "search" / "candidates" / ".tmp-004").mkdir()
    archive = read_archives(read_run(made.directory))[0]
    assert [one.id for one in archive.candidates] == ["000", "001", "002", "003"]
    assert (made.directory / "cycle_000" / "search" / "candidates" / ".tmp-004").exists()


def test_damaged_scores_are_named(tmp_path):
    made = two_cycles(tmp_path / "run")
    path = made.directory / "cycle_000" / "search" / "candidates" / "001" / "scores.json"
    path.write_text('{"results": [{}]}')
    with pytest.raises(ReportError, match=r"candidates/001/scores\.json is damaged"):
        read_archives(read_run(made.directory))


def test_trajectories_are_listed_and_packed_in_order(made):
    packed = pack_trajectories(read_archives(read_run(made)), most=1000)
    assert packed.found == len(packed.rows) == 30
    first = dict(zip(COLUMNS, packed.rows[0], strict=True))
    assert (first["cycle"], first["candidate"], first["task"], first["reward"]) == (0, "000", "task-0", 1)
    assert packed.rows[-1][COLUMNS.index("reward")] is None
    (chunk,) = packed.chunks
    trajectories = unpack(chunk)
    assert len(trajectories) == 30 <= CHUNK
    source, turn, tokens, finish, text, left = trajectories[0]["chats"][0][3]
    assert (source, turn, tokens, finish, left) == ("sampled", 0, 9, "stop", 0)
    assert text.startswith("I look.")


def test_of_too_many_the_same_tasks_of_every_candidate_are_taken(made):
    packed = pack_trajectories(read_archives(read_run(made)), most=11)
    tasks: dict[tuple, set] = {}
    for row in packed.rows:
        tasks.setdefault((row[0], row[1]), set()).add(row[2])
    assert packed.found == 30
    assert 0 < len(packed.rows) <= 11
    assert len({frozenset(one) for one in tasks.values()}) == 1
    assert len(tasks) == 5
    assert pack_trajectories(read_archives(read_run(made)), most=0).rows == []


def test_a_damaged_file_of_trajectories_is_named(tmp_path):
    made = two_cycles(tmp_path / "run")
    path = made.directory / "cycle_000" / "search" / "candidates" / "001" / "traces.jsonl.zst"
    path.write_bytes(path.read_bytes()[:40])
    packed = pack_trajectories(read_archives(read_run(made.directory)), most=1000)
    assert len(packed.rows) >= 24
    assert len(packed.unreadable) == 1
    assert "cycle_000/search/candidates/001" in packed.unreadable[0]


def test_a_trajectory_that_fails_leaves_the_others_in_their_places(made):
    def boards(trace):
        return [] if trace["task_id"] != "task-3" else trace["not there"]

    packed = pack_trajectories(read_archives(read_run(made)), most=1000, boards=boards)
    shown = [one["chats"][0][1][4] for chunk in packed.chunks for one in unpack(chunk)]
    assert shown == [f"user\nWhat is {row[COLUMNS.index('task')]}?<|im_end|>" for row in packed.rows]
    assert len(packed.rows) == 15
    assert "cannot be read (KeyError: 'not there')" in packed.unreadable[0]


def test_long_segments_are_cut_and_say_so(tmp_path):
    run = MadeRun(
        tmp_path / "run", trace_of=lambda task, reward: trace(task, reward, texts=[("tool", "x" * 1_000_000)])
    )
    run.search(0, {"000": [1] * 6})
    packed = pack_trajectories(read_archives(read_run(run.directory)), most=10)
    segment = unpack(packed.chunks[0])[0]["chats"][0][0]
    assert (len(segment[4]), segment[5]) == (LONGEST_SEGMENT, 1_000_000 - LONGEST_SEGMENT)


def test_packing_keeps_every_text():
    texts = ["</script><!--", "\ud800 half", "\u202e\u0000\u2028", "é", "__proto__"]
    assert unpack(pack(texts)) == texts
    assert set(pack(texts)) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=")
    assert pack(texts) == pack(list(texts))


def test_scores_are_read_as_they_were_written(made):
    candidate = read_archives(read_run(made))[0].candidates[1]
    written = json.loads((candidate.folder / "scores.json").read_bytes())
    assert candidate.score == Score.from_json(written)
    assert SETTINGS["prompts_per_step"] == 4
