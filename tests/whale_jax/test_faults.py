"""However a job ends, the run that goes on ends like one that was never disturbed, to the bit."""

import asyncio
import contextlib
import functools
import gc
import inspect
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import orbax.checkpoint as ocp
import pytest

import whale_jax.hand_over
import whale_jax.main
import whale_jax.storage.home
from harness_search.proposers.edits import Edit
from harness_search.proposers.offline import OfflineProposer
from tests.whale_jax.small_world import Driver, Proposer, export, outcome, settings, small_run, whole
from whale_jax.hosts.hosts import Alone
from whale_jax.journal import Journal
from whale_jax.policy import Policy
from whale_jax.preemption import EXIT_STATUS, Preempted, Preemption
from whale_jax.run import Run
from whale_jax.storage.home import LocalHome

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

BOUNDARIES = {
    "entry or evidence published": (os, "link"),
    "candidate, iteration or checkpoint published": (os, "rename"),
    "manifest published": (os, "replace"),
    "checkpoint written": (ocp.Checkpointer, "save"),
    "trained": (Policy, "train"),
    "weights swapped": (Driver, "set_weights"),
    "sampled": (Driver, "generate"),
    "proposed": (Proposer, "propose"),
    "evaluated": (Run, "_report_evaluation"),
    "exported": (whale_jax.hand_over, "export_checkpoint"),
}
"""What a job does that another thing rests on; a fault comes right before it, or right after."""


def edit_to(value):
    more = f"B_{value} = {value}\n"
    return Edit(f"set {value}", f"axis {value}", "it helps", "useless", (), lambda source: source + more)


CATALOGUE = [edit_to(value) for value in range(6)]
"""For the offline proposer, on the harness of the small run."""


class Killed(KeyboardInterrupt):
    """Stands for SIGKILL: no handler of errors sees it, and nothing is written after it."""


def strike(fault, dead):
    if fault == "SIGTERM":
        os.kill(os.getpid(), signal.SIGTERM)
    elif fault == "SIGKILL":
        dead.set()
        raise Killed
    elif fault == "exception":
        raise RuntimeError("injected")


@contextlib.contextmanager
def faults(monkeypatch, decide):
    """`decide(boundary, when, number)` names the fault to come at the number-th crossing of a boundary, or None."""
    dead, crossed, lock = threading.Event(), Counter(), threading.Lock()

    def at(boundary, when):
        if dead.is_set():
            raise Killed
        with lock:
            crossed[boundary, when] += 1
            number = crossed[boundary, when]
        strike(decide(boundary, when, number), dead)

    def guarded(boundary, original):
        if inspect.isasyncgenfunction(original):

            async def call(*args, **kwargs):
                at(boundary, "before")
                async with contextlib.aclosing(original(*args, **kwargs)) as items:
                    async for item in items:
                        yield item
                        at(boundary, "after")
        elif inspect.iscoroutinefunction(original):

            async def call(*args, **kwargs):
                at(boundary, "before")
                result = await original(*args, **kwargs)
                at(boundary, "after")
                return result
        else:

            def call(*args, **kwargs):
                at(boundary, "before")
                result = original(*args, **kwargs)
                at(boundary, "after")
                return result

        return functools.wraps(original)(call)

    with monkeypatch.context() as patch:
        patch.setattr(whale_jax.hand_over, "export_checkpoint", export)
        for boundary, (owner, name) in BOUNDARIES.items():
            patch.setattr(owner, name, guarded(boundary, getattr(owner, name)))
        yield crossed


def job(directory, monkeypatch, decide=lambda *crossing: None, proposer=None):
    """One process's part of the run: the boundaries it crossed, and whether it got to the end."""
    with faults(monkeypatch, decide) as crossed, Preemption(60).watch() as preemption:
        try:
            with small_run(directory, settings()) as run:
                run.proposer = proposer or run.proposer
                asyncio.run(whole(run, preemption))
        except (Killed, RuntimeError, asyncio.CancelledError, Preempted):
            ended = False
        else:
            ended = True
    if not ended:
        gc.collect()  # what was cut complains here of never being awaited, not in another test
    return crossed, ended


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The outcome of a run without faults, and how often it crosses each boundary."""
    directory = tmp_path_factory.mktemp("undisturbed") / "run"
    with pytest.MonkeyPatch.context() as patch:
        crossed, ended = job(directory, patch)
    assert ended
    return outcome(directory), crossed


def assert_goes_on(directory, monkeypatch, expected, proposer=None):
    """What is there is a part of the undisturbed run, and the next job makes it whole."""
    for name, data in outcome(directory).items():
        if name.startswith("journal/"):
            assert expected[name] == data, name
    _, ended = job(directory, monkeypatch, proposer=proposer)
    assert ended
    assert outcome(directory) == expected


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_a_kill_at_every_kind_of_boundary(undisturbed, tmp_path, monkeypatch, boundary, when):
    expected, crossed = undisturbed
    at = 1 + crossed[boundary, when] // 2
    _, ended = job(tmp_path / "run", monkeypatch, lambda *place: "SIGKILL" if place == (boundary, when, at) else None)
    assert not ended
    assert_goes_on(tmp_path / "run", monkeypatch, expected)


def test_a_kill_in_every_session_of_the_offline_proposer(tmp_path, monkeypatch):
    """Before a session's first proposal, and between one and the next: in both cycles the next job takes it up."""
    monkeypatch.setitem(BOUNDARIES, "proposed", (OfflineProposer, "propose"))
    _, ended = job(tmp_path / "undisturbed", monkeypatch, proposer=OfflineProposer(CATALOGUE))
    expected = outcome(tmp_path / "undisturbed")
    assert ended
    assert sum(b"set " in data for name, data in expected.items() if name.endswith("proposal.json")) == 4
    directory = tmp_path / "run"
    for place in [("proposed", "before", 1), ("proposed", "after", 1), ("proposed", "after", 3)]:
        _, ended = job(
            directory, monkeypatch, lambda *here, place=place: "SIGKILL" if here == place else None,
            OfflineProposer(CATALOGUE),
        )  # fmt: skip
        assert not ended, place
    assert_goes_on(directory, monkeypatch, expected, OfflineProposer(CATALOGUE))


@pytest.mark.slow
def test_thirty_faults_at_random_moments(undisturbed, tmp_path, monkeypatch):
    """SIGKILL, SIGTERM and exceptions in turn, several to a run, each anywhere in what is left of it."""
    expected, crossed = undisturbed
    moments = random.Random(6)
    places = [(*boundary, number) for boundary, count in crossed.items() for number in range(1, count + 1)]
    struck, runs = Counter(), 0
    while sum(struck.values()) < 30:
        directory, ended = tmp_path / f"run{runs}", False
        runs += 1
        while not ended and sum(struck.values()) < 30:
            fault = ("SIGKILL", "SIGTERM", "exception")[sum(struck.values()) % 3]
            # The first crossings of a job fall into what it goes on with, so a run is hit in every part of it.
            place = moments.choice([place for place in places if place[2] <= 1 + crossed[place[:2]] // 3])
            hit = []

            def decide(*here, place=place, fault=fault, hit=hit):
                if here == place:
                    hit.append(fault)
                    return fault
                return None

            _, ended = job(directory, monkeypatch, decide)
            struck.update(hit)
        assert_goes_on(directory, monkeypatch, expected)
    assert set(struck) == {"SIGKILL", "SIGTERM", "exception"}


def test_a_kill_between_a_checkpoint_and_its_entry_costs_no_other_checkpoint(tmp_path, monkeypatch):
    """With a single one kept, the journal still stands at the one before."""
    directory, config = tmp_path / "run", settings(keep_last=1, keep_every=0)
    written = whale_jax.storage.home.write_once

    def cut(path, data):
        if json.loads(data).get("step") == 5 and json.loads(data)["kind"] == "weight":
            raise Killed
        written(path, data)

    def run_whole():
        with small_run(directory, config) as run:
            asyncio.run(whole(run))

    monkeypatch.setattr(whale_jax.hand_over, "export_checkpoint", export)
    with monkeypatch.context() as patch:
        patch.setattr(whale_jax.storage.home, "write_once", cut)
        with pytest.raises(Killed):
            run_whole()
    run_whole()
    assert max(entry["step"] for entry in Journal(directory / "journal").entries if entry["kind"] == "weight") == 5


def sigterm_in_step_2(boundary, when, number):
    """While the second step samples: the first, which no commit has yet, is trained."""
    return "SIGTERM" if (boundary, when, number) == ("sampled", "before", 12) else None


def test_what_sigterm_finds_trained_is_not_trained_again(undisturbed, tmp_path, monkeypatch):
    expected, everything = undisturbed
    directory = tmp_path / "run"
    crossed, ended = job(directory, monkeypatch, sigterm_in_step_2)
    assert (ended, crossed["trained", "after"]) == (False, 1)
    assert [entry["kind"] for entry in Journal(directory / "journal").entries] == ["evaluation"]
    assert [path.name for path in (directory / "unfinished").iterdir()] == ["1"]
    again, ended = job(directory, monkeypatch)
    assert ended
    assert again["trained", "after"] == everything["trained", "after"] - 1
    assert not (directory / "unfinished").exists()
    assert outcome(directory) == expected


def test_sigterm_has_an_exit_status_of_its_own_and_names_the_way_on(undisturbed, tmp_path, monkeypatch, capsys):
    parts = SimpleNamespace(
        splits={}, domain=SimpleNamespace(bad_rows=[], name="small"), backend=SimpleNamespace(name="none"),
        initial=SimpleNamespace(config=SimpleNamespace(num_layers=1, hidden_size=1)),
    )  # fmt: skip
    monkeypatch.setattr(whale_jax.main, "assemble", lambda config, parts, directory, progress, hosts, home: small_run(
        directory, config, hosts))  # fmt: skip
    monkeypatch.setattr(whale_jax.main, "_description", lambda parts: "small")
    with faults(monkeypatch, sigterm_in_step_2), Preemption(60).watch() as preemption:
        status = whale_jax.main._job(settings(), parts, LocalHome(tmp_path / "run"), [], preemption, Alone())  # type: ignore[arg-type]
    assert status == EXIT_STATUS == 5
    assert "the same command goes on from here" in capsys.readouterr().err


def test_a_job_that_does_not_end_in_time_is_ended():
    """A real process that never looks up."""
    program = (
        "from whale_jax.preemption import Preemption\nimport asyncio, threading\n"
        "async def deaf():\n"
        "    with preemption.cancels(asyncio.current_task()):\n"
        "        print('ready', flush=True)\n"
        "        while True:\n"
        "            try:\n                await asyncio.Event().wait()\n"
        "            except asyncio.CancelledError:\n                pass\n"
        "with Preemption(0.2).watch() as preemption:\n    asyncio.run(deaf())\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        cwd=Path(__file__).parents[2],
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        _, errors = process.communicate(timeout=60)
    assert process.returncode == EXIT_STATUS
    assert "--grace_seconds" in errors


def test_stop_after_counts_a_phase_whose_evaluation_was_cut(tmp_path, monkeypatch):
    """The job that makes up for the evaluation ends there, and does not run on into the next phase."""
    directory = tmp_path / "run"
    job(directory, monkeypatch, lambda *place: "SIGKILL" if place == ("evaluated", "before", 2) else None)
    (directory / "journal" / "000003.json").unlink()  # the evaluation after the phase: its commit never came
    with (
        faults(monkeypatch, lambda *place: None),
        small_run(directory, settings(stop_after="weight_phase")) as run,
        pytest.raises(whale_jax.main.Stopped),
    ):
        asyncio.run(whole(run))
    assert [entry["kind"] for entry in Journal(directory / "journal").entries][1:] == ["weight", "weight", "evaluation"]


def test_an_export_that_was_changed_or_cut_is_made_again(undisturbed, tmp_path, monkeypatch):
    expected, _ = undisturbed
    directory = tmp_path / "run"
    job(directory, monkeypatch)
    (directory / "export" / "checkpoint" / "model").write_text("something else")
    (directory / "export" / ".checkpoint.cut").mkdir()
    job(directory, monkeypatch)
    assert outcome(directory) == expected
    assert not (directory / "export" / ".checkpoint.cut").exists()
    again, _ = job(directory, monkeypatch)
    assert again["exported", "before"] == 0
