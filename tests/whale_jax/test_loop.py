"""The whole loop, small: it ends, repeats itself to the bit, survives kills, and refuses what it must."""

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.whale_jax.demo_run import ONE_DEVICE, command, complete, environment, outcome
from whale_jax.journal import Journal


@pytest.fixture(scope="module")
def finished(tmp_path_factory, cache):
    """An uninterrupted run: its directory, its outcome and what it printed."""
    run_dir = tmp_path_factory.mktemp("runs") / "uninterrupted"
    done = complete(run_dir, cache)
    return run_dir, outcome(run_dir), done.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_leaves_what_it_promises(finished):
    run_dir, _, printed = finished
    kinds = [entry["kind"] for entry in Journal(run_dir / "journal").entries]
    cycle = ["weight", "weight", "evaluation", "search", "search", "evaluation"]
    second = ["weight", "weight", "evaluation", "search", "search", "evaluation"]
    assert kinds[: 1 + len(cycle) + len(second)] == ["evaluation", *cycle, *second]
    assert set(kinds[1 + len(cycle) + len(second) :]) == {"evaluation"}
    summary = json.loads((run_dir / "summary.json").read_text())
    for pair in ("initial", "returned"):
        for split in ("validation", "test"):
            assert summary[pair][split].keys() == {"mean_at_k", "k", "tasks", "ci95", "behaviour"}
            assert summary["figures"].keys() >= summary[pair][split]["behaviour"].keys() >= {"searched", "hit"}
    assert summary["paired_difference"].keys() == {"mean", "ci95"}
    assert summary["cycles"] == 2
    assert summary["rollouts"] == 5 * 8 + 2 * 3 * 4
    best = max(summary["milestones"], key=lambda milestone: milestone["validation"]["mean_at_k"])
    assert summary["returned"]["validation"] == best["validation"]
    assert (run_dir / "export/checkpoint/model.safetensors").is_file()
    assert (run_dir / "export/harness.py").is_file()
    assert (run_dir / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    assert "returned pair" in (run_dir / "report.html").read_text(encoding="utf-8")
    metrics = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert {line["kind"] for line in metrics} == {
        "weight", "search", "evaluation_validation", "evaluation_test", "account"
    }  # fmt: skip
    spent = summary["account"]
    assert spent["total"]["measured"] == spent["total"]["commits"] == len(kinds)
    assert [phase["phase"] for phase in spent["phases"]][:3] == [
        "evaluation, validation", "cycle 1, weights", "cycle 1, search"
    ]  # fmt: skip
    assert spent["total"]["rollouts"] == summary["rollouts"] + 5 * 4 * 2 + 4 * 2 * kinds[13:].count("evaluation")
    assert spent["total"]["computed_tokens"] > spent["total"]["sampled_tokens"] > 0
    assert spent["total"]["trained_tokens"] > 0
    assert 0 < spent["total"]["idle_seconds"] < spent["total"]["seconds"]
    assert (spent["jobs"], spent["notes"]) == (1, [])
    evaluations = [line for line in metrics if line["kind"] == "evaluation_test"]
    assert evaluations[0]["behaviour_hit"] == summary["initial"]["test"]["behaviour"]["hit"]
    assert "behaviour on test" in printed
    assert list((run_dir / "tensorboard").iterdir())
    assert "returned pair minus initial pair on test" in printed


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_step_samples_with_the_weights_that_it_trains(cache, tmp_path):
    """Also between two commits: trainer's and sampler's log-probabilities agree before every update."""
    two_steps = ("--weight_tasks=8", "--prompts_per_step=8", "--samples_per_prompt=4", "--checkpoint_every=2")
    one_phase = ("--weight_budget_epochs=2", "--weight_phase_epochs=2", "--stop_after=weight_phase")
    complete(tmp_path / "run", cache, *two_steps, *one_phase)
    commits = [entry for entry in Journal(tmp_path / "run/journal").entries if entry["kind"] == "weight"]
    assert [[step["updates"] > 0 for step in commit["steps"]] for commit in commits] == [[True, True]]
    metrics = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    mismatch = [line["mismatch_max"] for line in metrics if line["kind"] == "weight"]
    assert len(mismatch) == 2
    assert max(mismatch) < 1e-4


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_same_seed_twice_is_the_same_run(finished, cache, tmp_path):
    _, expected, _ = finished
    complete(tmp_path / "again", cache, "--seed=0")
    assert outcome(tmp_path / "again") == expected


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_neither_the_driver_nor_the_load_shows_in_a_run(finished, cache, tmp_path):
    _, expected, _ = finished
    complete(tmp_path / "jetstream", cache, "--rollout_driver=jetstream", "--concurrency=5")
    assert outcome(tmp_path / "jetstream") == expected


KILLED = ("--validation_tasks=2", "--validation_samples=1", "--test_tasks=2", "--test_samples=1", "--harness_tasks=2")
"""Flags of the run that is killed: every kind of entry, and evaluations that are over soon."""


def entries_in(run_dir):
    return len(list((run_dir / "journal").glob("[0-9]*.json")))


def run_through_kills(run_dir, cache, moments, expected):
    """SIGKILL at each of `moments`, then the same command again; a run that ended starts anew elsewhere.

    A run that ended before its kill had a moment that lay too late for this machine: the next one is killed sooner.

    Args:
      moments: (entries, seconds): so long after the job has written so many journal entries, or after its start.

    Returns:
      The number of journal entries at each kill.
    """
    entries, runs, moments = [], 0, list(moments)
    while moments:
        here = run_dir / str(runs)
        runs += 1
        while moments and not (here / "summary.json").exists():
            more, seconds = moments[0]
            wanted = entries_in(here) + more
            with subprocess.Popen(
                command(here, *KILLED),
                env=environment(cache) | ONE_DEVICE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            ) as process:  # fmt: skip
                try:
                    waited_until = time.monotonic() + 280
                    while more and process.poll() is None and entries_in(here) < wanted:
                        assert time.monotonic() < waited_until, f"{here}: no entry {wanted} after 280 s"
                        time.sleep(0.02)
                    printed, _ = process.communicate(timeout=seconds)
                    assert process.returncode == 0, printed
                    moments[0] = (more, seconds / 2)
                except subprocess.TimeoutExpired:
                    process.kill()
                    del moments[0]
                    entries.append(entries_in(here))
                finally:
                    process.kill()
        complete(here, cache, *KILLED, **ONE_DEVICE)
        assert outcome(here) == expected
    return entries


@pytest.fixture(scope="module")
def never_killed(tmp_path_factory, cache):
    """The outcome of the run that is killed elsewhere."""
    run_dir = tmp_path_factory.mktemp("runs") / "never_killed"
    complete(run_dir, cache, *KILLED, **ONE_DEVICE)
    return outcome(run_dir)


STRIKES = (("evaluated", 1), ("trained", 1), ("checkpoint written", 2), ("proposed", 1), ("exported", 1))
"""One kind of boundary per job (see `struck`), in the order in which a run comes to them."""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_kill_at_every_kind_of_boundary_changes_nothing(never_killed, cache, tmp_path):
    """SIGKILL in the first evaluation, in a weight phase, during a save, in a session of the offline proposer, and
    before the export is declared whole."""
    run_dir = tmp_path / "run"
    for boundary, number in STRIKES:
        struck = subprocess.run(
            [sys.executable, "-m", "tests.whale_jax.struck", boundary, str(number), *command(run_dir, *KILLED)[3:]],
            env=environment(cache) | ONE_DEVICE, capture_output=True, text=True, timeout=560, check=False,
        )  # fmt: skip
        assert struck.returncode == -signal.SIGKILL, f"{boundary}: {struck.stdout}{struck.stderr}"
    assert not (run_dir / "summary.json").exists()
    complete(run_dir, cache, *KILLED, **ONE_DEVICE)
    assert outcome(run_dir) == never_killed


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_kills_change_nothing(never_killed, cache, tmp_path):
    """SIGKILL at ten random moments; the same command goes on, and the end is that of an uninterrupted run."""
    draw = random.Random(20)
    # By the clock alone, on a busy machine, all would fall into the start of a job.
    chains = [[(draw.randrange(4), draw.uniform(0.1, 6.0)) for _ in range(5)] for _ in range(2)]
    with ThreadPoolExecutor(len(chains)) as pool:  # a run keeps about one core busy
        done = [
            pool.submit(run_through_kills, tmp_path / f"chain{number}", cache, chain, never_killed)
            for number, chain in enumerate(chains)
        ]
        entries = [count for chain in done for count in chain.result()]
    assert len(entries) == 10
    assert len(set(entries)) > 2, "the kills all fell into the same part of the run"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_finished_run_is_left_as_it_is_and_a_changed_flag_is_refused(finished, cache):
    run_dir, expected, _ = finished
    metrics, summary = (run_dir / "metrics.jsonl").read_bytes(), (run_dir / "summary.json").read_bytes()
    complete(run_dir, cache, "--slots=4")
    assert outcome(run_dir) == expected
    assert (run_dir / "metrics.jsonl").read_bytes() == metrics
    assert (run_dir / "summary.json").read_bytes() == summary
    changed = subprocess.run(
        command(run_dir, "--learning_rate=0.5", "--candidates=3"),
        env=environment(cache), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert changed.returncode == 2
    assert "--learning_rate was" in changed.stderr
    assert "is 0.5" in changed.stderr
    assert "--candidates was 2, is 3" in changed.stderr
    assert outcome(run_dir) == expected


def edit_json(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda run: edit_json(run / "cycle_000/search/iterations/001.json", best_score=1.0), "best_score differ"),
        (lambda run: (run / "evals/000000.json").unlink(), "evals/000000.json is missing"),
        (lambda run: edit_json(run / "evals/000000.json", k=3), "evals/000000.json was changed"),
        (lambda run: (run / "evals/000000.behaviour.json").write_text("{"), "000000.behaviour.json is damaged"),
    ],
    ids=["an iteration's record", "an evaluation missing", "an evaluation changed", "figures damaged"],
)
def test_changed_evidence_is_named(finished, cache, tmp_path, damage, message):
    run_dir = tmp_path / "run"
    shutil.copytree(finished[0], run_dir)
    damage(run_dir)
    done = subprocess.run(
        command(run_dir), env=environment(cache), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert message in line
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_stopping_at_phase_ends_gives_the_same_run(finished, cache, tmp_path):
    _, expected, _ = finished
    run_dir = tmp_path / "run"
    ends = []
    for _ in range(3):
        complete(run_dir, cache, "--stop_after=weight_phase")
        ends.append(len(Journal(run_dir / "journal").entries))
    assert ends[0] == 4  # the initial evaluation, two commits and the evaluation after the phase
    assert outcome(run_dir) == expected
