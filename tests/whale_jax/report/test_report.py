"""Progress, metrics and the picture."""

import io
import json

from whale_jax.report.metrics import MetricsWriter
from whale_jax.report.picture import Point, Span, draw
from whale_jax.report.progress import Progress


def test_plain_lines_where_there_is_no_terminal():
    stream = io.StringIO()
    progress = Progress(stream=stream, interval=3600)
    progress.show("first")
    progress.show("too soon")
    progress.say("stays [red]as written")
    progress.close()
    assert stream.getvalue().splitlines() == ["first", "stays [red]as written"]


def test_time_left_rests_on_what_was_done_here():
    progress = Progress(stream=io.StringIO())
    progress.work_total = 100
    assert progress.time_left == ""
    progress.advance(90, replayed=True)
    assert progress.time_left == ""
    progress.advance(5)
    assert progress.time_left.endswith("left")


def test_metrics_are_appended_line_by_line(tmp_path):
    for step in (1, 2):
        writer = MetricsWriter(tmp_path)
        writer.write("weight", step, {"reward": 0.5, "loss": None, "label": "x", "grad_norm": float("inf")})
        writer.close()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert lines[0]["reward"] == 0.5
    assert lines[0]["loss"] is None
    assert lines[0]["grad_norm"] == "inf"


def test_half_a_line_of_a_killed_job_is_dropped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"ste')
    writer = MetricsWriter(tmp_path)
    writer.write("weight", 2, {})
    writer.close()
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2]


def test_the_picture_of_a_run_and_of_its_start(tmp_path):
    points = [Point(0, 0.2, 0.1, 0.3), Point(100, 0.5, 0.4, 0.6)]
    draw(
        tmp_path / "run.png",
        title="run",
        validation=points,
        training=[(10, 0.1), (90, 0.4)],
        phases=[Span("weights", 0, 60), Span("search", 60, 100)],
    )
    draw(tmp_path / "start.png", title="start", validation=points[:1], training=[], phases=[])
    for name in ("run.png", "start.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
