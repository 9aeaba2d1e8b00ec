"""Commands run one after the other, their output in a file, and end when the time is over."""

import os
import signal
import threading
import time

import pytest

from whale_jax.study.jobs import Processes, Terminated, TimeUsed, last_lines, sigterm_raises

SLEEP = ("timeit", ["-n1", "-r1", "import time; time.sleep(60)"])


def test_the_status_and_the_output_of_a_job(tmp_path):
    log = tmp_path / "logs/run.log"
    assert Processes().run("timeit", ["-n1", "-r1", "print('done')"], log) == 0
    assert Processes(time.monotonic() + 60).run("timeit", ["--nonsense"], log) == 2
    text = log.read_text()
    assert text.startswith("$ python -m timeit -n1 -r1 print('done')\ndone\n")
    assert "option --nonsense not recognized" in text
    assert len(last_lines(log, 2)) == 2
    assert last_lines(tmp_path / "none") == []


def test_a_job_is_ended_when_the_time_is_over_and_none_begins_after_it(tmp_path):
    with pytest.raises(TimeUsed):
        Processes(time.monotonic() + 0.2).run(*SLEEP, tmp_path / "log")
    with pytest.raises(TimeUsed):
        Processes(time.monotonic() - 1).run(*SLEEP, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_sigterm_ends_the_job_first(tmp_path):
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM))
    before = signal.getsignal(signal.SIGTERM)
    with sigterm_raises():
        timer.start()
        with pytest.raises(Terminated):
            Processes().run(*SLEEP, tmp_path / "log")
    assert signal.getsignal(signal.SIGTERM) is before
