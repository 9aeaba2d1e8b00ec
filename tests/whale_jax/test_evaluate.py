"""The evaluation command: which pair it scores, what it keeps of a matrix, and what it refuses before heavy work.

The model is replaced by a rule: a pair's rewards depend on its weights, its harness and the task alone. One slow test
runs the real one.
"""

import contextlib
import dataclasses
import hashlib
import json
import shutil
from pathlib import Path

import pytest

from harness_search.contract import EndReason
from tests.whale_jax.evaluation.finished_run import BETTER, KEPT, files, make_run
from whale_jax import evaluate
from whale_jax.assemble import Parts, read_harness, read_parts
from whale_jax.config import RunConfig
from whale_jax.domains.task import Split
from whale_jax.domains.verdict import Verdict
from whale_jax.evaluation import subject
from whale_jax.evaluation.evaluate import evaluation_from_traces, evaluation_requests
from whale_jax.rollout.trace import ChatTrace, Segment, Source, Trace
from whale_jax.run import require_coverage


@pytest.fixture(scope="module")
def parts() -> Parts:
    return read_parts(RunConfig())


@pytest.fixture
def quick(monkeypatch, parts):
    """Inputs that were read once: what `read_parts` gives for settings that differ in tasks and harness alone."""

    def read(config: RunConfig) -> Parts:
        limits = {split: getattr(config.data, f"{split.value}_tasks") or None for split in Split}
        splits = {split: parts.domain.tasks(split)[:limit] for split, limit in limits.items()}
        harness = read_harness(config.model.harness) if config.model.harness else parts.domain.h0
        return dataclasses.replace(parts, splits=splits, harness=harness)

    monkeypatch.setattr(subject, "read_parts", read)


@pytest.fixture(scope="module")
def finished(parts, tmp_path_factory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "run", parts, RunConfig())


@pytest.fixture
def run_dir(finished, tmp_path) -> Path:
    """A copy of the finished run, to be damaged at will."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


class Server:
    """Answers for the engine; `scored` are the pairs and tasks that it was asked for. Breaks off after `breaks`."""

    def __init__(self, breaks: int | None = None, unscored: bool = False):
        self.scored: list[tuple[int, str, list[str], int]] = []
        self.config: RunConfig | None = None
        self._breaks = breaks
        self._unscored = unscored

    async def rollout(self, pair, requests):
        return [self._trace(pair, request) for request in requests]

    async def evaluate(self, pair, tasks, *, samples):
        if self._breaks == len(self.scored):
            raise KeyboardInterrupt
        self.scored.append((pair.step, pair.harness, [task.id for task in tasks], samples))
        requests = evaluation_requests(tasks, samples=samples, purpose="validation")
        return self.evaluated(await self.rollout(pair, requests), tasks, samples=samples)

    def evaluated(self, traces, tasks, *, samples):
        evaluation = evaluation_from_traces(traces, k=samples, domain_figures={"hit": 0.25})
        require_coverage(evaluation.ledger, "", "repeat it")
        return evaluation

    async def close(self):
        pass

    def _trace(self, pair, request):
        digest = hashlib.sha256(f"{pair.weights}{pair.harness}{request.task.id}{request.sample}".encode()).digest()
        chat = ChatTrace((Segment((5, 6), Source.HARNESS), Segment((7, 8), Source.SAMPLED, 0, (-1.0, -1.0), 0, "stop")))
        verdict = Verdict(None if self._unscored else digest[0] % 2, "a", "made up")
        return Trace(request.task.id, request.sample, (chat,), EndReason.ANSWERED, verdict, (0, 0), None, 1, 0)


@pytest.fixture
def serve(monkeypatch, quick):
    """Puts a `Server` in the engine's place."""

    def put(server: Server) -> Server:
        @contextlib.contextmanager
        def pair_server(config, parts, directory):
            server.config = config
            yield server

        monkeypatch.setattr(evaluate, "pair_server", pair_server)
        return server

    return put


def result(capsys, *flags) -> dict:
    """The object of `--json` after a run that went well."""
    assert evaluate.main(["evaluate", "--json", *flags]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_the_first_tasks_under_h0(serve, parts, capsys):
    server = serve(Server())
    found = result(capsys, "--num_tasks=3", "--samples=2", "--max_len=4096")
    tasks = [task.id for task in parts.domain.tasks(Split.VALIDATION)[:3]]
    assert server.scored == [(0, parts.domain.h0, tasks, 2)]
    assert (found["split"], found["k"], found["tasks"], found["episodes"]) == ("validation", 2, 3, 6)
    assert found["pair"]["weights"] == parts.initial.weights
    assert list(found["rewards"]) == sorted(tasks)


def test_a_harness_file_and_another_split(serve, parts, capsys, tmp_path):
    (tmp_path / "h.py").write_text(BETTER)
    server = serve(Server())
    found = result(capsys, f"--harness={tmp_path / 'h.py'}", "--split=harness", "--num_tasks=2")
    assert server.scored[0][:2] == (0, BETTER)
    assert (found["k"], found["pair"]["label"]) == (1, str(tmp_path / "h.py"))
    assert found["pair"]["harness"] == hashlib.sha256(BETTER.encode()).hexdigest()


def test_a_flagfile_of_the_main_job_is_taken(serve, capsys, tmp_path):
    (tmp_path / "settings.flags").write_text(
        "--validation_tasks=5\n--validation_samples=3\n--learning_rate=0.5\n--seed=9\n"
    )
    server = serve(Server())
    found = result(capsys, f"--flagfile={tmp_path / 'settings.flags'}")
    assert (found["num_tasks"], found["k"], found["seed"]) == (5, 3, 9)
    assert server.config is not None
    assert server.config.run.seed == 9


def test_show_prints_conversations_and_scores_them_alike(serve, capsys):
    serve(Server())
    plain = result(capsys, "--num_tasks=2", "--samples=2")
    assert evaluate.main(["evaluate", "--num_tasks=2", "--samples=2", "--show", "--json"]) == 0
    printed = capsys.readouterr().out.splitlines()
    shown = json.loads(printed[-1])
    assert sum(line.startswith("── episode ") for line in printed) == len(shown["conversations"]) == 4
    assert {**plain, "conversations": shown["conversations"]} == shown
    assert plain["domain_figures"] == {"hit": 0.25}
    assert any("hit 0.250" in line for line in printed)


@pytest.mark.parametrize(
    ("step", "expected"),
    [("initial", (0, None)), ("0", (0, None)), ("4", (4, BETTER)), ("returned", (4, BETTER))],
)
def test_pairs_of_a_run(serve, capsys, parts, run_dir, step, expected):
    server = serve(Server())
    before = files(run_dir)
    result(capsys, f"--run_dir={run_dir}", f"--step={step}", "--num_tasks=1")
    assert server.scored[0][:2] == (expected[0], expected[1] or parts.domain.h0)
    assert files(run_dir) == before


def test_weights_of_a_run_under_another_harness(serve, capsys, parts, run_dir, tmp_path):
    (tmp_path / "h.py").write_text(BETTER + "A = 1\n")
    server = serve(Server())
    found = result(capsys, f"--run_dir={run_dir}", "--step=4", f"--harness={tmp_path / 'h.py'}", "--num_tasks=1")
    assert server.scored[0][:2] == (4, BETTER + "A = 1\n")
    assert found["pair"]["label"] == f"cycle 2, search with {tmp_path / 'h.py'}"


def test_a_matrix_names_weights_that_were_not_kept(serve, capsys, parts, run_dir):
    server = serve(Server())
    before = files(run_dir)
    found = result(capsys, f"--run_dir={run_dir}", "--matrix", "--num_tasks=4", "--samples=2")["matrix"]
    assert [(arm["label"], arm["step"]) for arm in found["weights"]] == [("initial", 0), ("cycle 2", KEPT)]
    assert [arm["label"] for arm in found["harnesses"]] == ["initial = cycle 1", "cycle 2"]
    assert [(arm["label"], arm["step"]) for arm in found["left_out"]] == [("cycle 1", 2)]
    assert [scored[:2] for scored in server.scored] == [
        (0, parts.domain.h0), (0, BETTER), (KEPT, parts.domain.h0), (KEPT, BETTER)
    ]  # fmt: skip
    assert {(cell["weights"], cell["harness"]) for cell in found["cells"]} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert found["cells"][0]["minus_initial"]["mean"] == 0
    after = files(run_dir)
    assert {name: after[name] for name in before} == before
    assert {Path(name).parent.name for name in after.keys() - before.keys()} == {"matrix"}


def test_an_interrupted_matrix_goes_on(serve, capsys, run_dir):
    flags = (f"--run_dir={run_dir}", "--matrix", "--num_tasks=4", "--json")
    whole = serve(Server())
    expected = result(capsys, *flags)
    for cell in (run_dir / "matrix").iterdir():
        cell.unlink()
    serve(Server(breaks=3))
    assert evaluate.main(["evaluate", *flags]) == 130
    assert "are kept" in capsys.readouterr().err
    rest = serve(Server())
    assert result(capsys, *flags) == expected
    assert rest.scored == whole.scored[3:]
    third = serve(Server())
    assert result(capsys, *flags) == expected
    assert third.scored == []


@pytest.mark.parametrize("other", ["--num_tasks=3", "--samples=4", "--max_turns=2", "--temperature=0.5", "--seed=5"])
def test_a_cell_measured_otherwise_is_not_taken(serve, capsys, run_dir, other):
    flags = [f"--run_dir={run_dir}", "--matrix", "--num_tasks=2", "--samples=1"]
    serve(Server())
    result(capsys, *flags)
    again = serve(Server())
    result(capsys, *flags, other)
    assert len(again.scored) == 4


def test_a_damaged_cell_is_named(serve, capsys, run_dir):
    serve(Server())
    result(capsys, f"--run_dir={run_dir}", "--matrix", "--num_tasks=1")
    cell = next((run_dir / "matrix").iterdir())
    cell.write_text(cell.read_text().replace('"harness"', '"horse"'))
    assert evaluate.main(["evaluate", f"--run_dir={run_dir}", "--matrix", "--num_tasks=1"]) == 2
    assert f"{cell}: is damaged" in capsys.readouterr().err


def test_the_test_set_is_sealed_and_a_run_remembers_a_look(serve, capsys, run_dir):
    serve(Server())
    flags = [f"--run_dir={run_dir}", "--step=returned", "--split=test", "--num_tasks=1"]
    assert evaluate.main(["evaluate", *flags]) == 2
    assert capsys.readouterr().err == (
        "error: --split=test: the test set is sealed until the end of a run; --unseal opens it\n"
    )
    assert not (run_dir / "warnings.txt").exists()
    result(capsys, *flags, "--unseal")
    assert "test was scored for 'cycle 2, search' outside the run" in (run_dir / "warnings.txt").read_text()


def test_too_many_unscored_episodes_are_no_figure(serve, capsys):
    serve(Server(unscored=True))
    assert evaluate.main(["evaluate", "--num_tasks=1", "--show"]) == 3
    assert "1 of 1 episodes could not be scored" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--no_such=1"], "no_such"),
        (["--num_tasks=0"], "num_tasks"),
        (["--num_tasks=100000"], "--num_tasks=100000: the validation split holds"),
        (["--step=4"], "--step=4 needs --run_dir"),
        (["--matrix"], "--matrix needs --run_dir"),
        (["--run_dir=/nowhere"], "--run_dir needs --step"),
        (["--run_dir=/nowhere", "--matrix"], "/nowhere/config.json: cannot be read"),
        (["--run_dir=/nowhere", "--matrix", "--show"], "--show does not go with it"),
        (["--harness=/nowhere.py"], "--harness=/nowhere.py: cannot be read"),
        (["--checkpoint=/nowhere"], "--checkpoint=/nowhere: no config.json there"),
        (["extra"], "unexpected arguments: extra"),
        (["--probe"], "--probe needs --run_dir"),
        (["--run_dir=/nowhere", "--probe", "--matrix"], "--probe does not go with it"),
        (["--run_dir=/nowhere", "--probe", "--split=harness"], "--probe measures on validation"),
        (["--run_dir=/nowhere", "--probe"], "/nowhere/config.json: cannot be read"),
    ],
)
def test_what_is_refused(capsys, flags, message):
    assert evaluate.main(["evaluate", *flags]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err
    assert all(line.startswith("error: ") for line in printed.err.splitlines())


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("2", "--step=2: the checkpoint of step 2 was not kept; there are those of 4, and the initial weights"),
        ("9", "--step=9: the run has committed the steps 0, 1, 2, 4"),
        ("best", "--step=best: "),
    ],
)
def test_steps_that_a_run_does_not_have(quick, capsys, run_dir, step, message):
    assert evaluate.main(["evaluate", f"--run_dir={run_dir}", f"--step={step}"]) == 2
    assert message in capsys.readouterr().err


def test_a_run_that_changed_is_refused(quick, capsys, run_dir):
    flags = ["evaluate", f"--run_dir={run_dir}", "--step=returned"]
    harness = run_dir / "cycle_001/search/candidates/000/harness.py"
    harness.write_text(BETTER + "\n")
    assert evaluate.main(flags) == 2
    assert "was changed after it was accepted" in capsys.readouterr().err
    harness.unlink()
    assert evaluate.main(flags) == 2
    assert f"{harness}: cannot be read" in capsys.readouterr().err
    harness.write_text(BETTER)
    (run_dir / "summary.json").unlink()
    assert evaluate.main(flags) == 2
    assert "no pair was returned yet" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "message"),
    [("weights", "the checkpoint changed"), ("data", "the data changed"), ("harness", "the run's initial harness")],
)
def test_inputs_that_are_not_the_runs(quick, capsys, run_dir, name, message):
    path = run_dir / "config.json"
    record = json.loads(path.read_text())
    record["inputs"][name] = "0" * 64
    path.write_text(json.dumps(record))
    assert evaluate.main(["evaluate", f"--run_dir={run_dir}", "--step=initial"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_the_real_model_on_a_pair_of_a_run(capsys, run_dir):
    flags = [f"--run_dir={run_dir}", "--num_tasks=2", "--samples=1", "--slots=4", "--replicas=1"]
    found = result(capsys, *flags, "--step=4", "--show")
    sampled = [
        segment
        for conversation in found["conversations"]
        for chat in conversation["chats"]
        for segment in chat
        if segment["source"] == "sampled"
    ]
    assert sum(segment["tokens"] for segment in sampled) == found["sampled_tokens"] > 0
    assert found["tasks"] == 2


@pytest.mark.slow
def test_a_real_probe_leaves_the_run_as_it_was(capsys, run_dir):
    before = files(run_dir)
    small = ("--prompts_per_step=2", "--samples_per_prompt=2", "--harness_tasks=2", "--candidates=1", "--rows=1")
    own = ("--probe", "--probe_steps=1", "--num_tasks=2", "--samples=1", "--slots=4", "--replicas=1")
    found = result(capsys, f"--run_dir={run_dir}", *small, *own)
    assert files(run_dir) == before
    assert [path.name for path in run_dir.parent.iterdir()] == ["run"]
    assert (found["pair"]["label"], found["pair"]["step"]) == ("cycle 2, search", KEPT)
    trials = found["probe"]["trials"]
    # No edit of the catalogue fits a harness as short as this one, so the incoming harness alone is evaluated.
    assert (trials["weights"]["rollouts"], trials["search"]["rollouts"]) == (4, 2)
    assert trials["search"]["gain"]["mean"] == 0
    assert found["probe"]["bottleneck"] is None
