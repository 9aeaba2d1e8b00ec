"""What is missing is made in order, what was cut goes on, and nothing is kept longer than it is needed."""

import json
import shutil

import pytest

from harness_search.canonical import sha256
from tests.whale_jax.report.made_run import H0
from tests.whale_jax.study.finished import cell, finished_run
from tests.whale_jax.study.made_study import INPUTS
from whale_jax.study.design import Fork, RunSpec, Study, StudyError
from whale_jax.study.jobs import TimeUsed
from whale_jax.study.make import JobFailed, Maker, claim
from whale_jax.study.results import result_path

A, B, C = (
    RunSpec("searchqa", "weight_only", 1, ()),
    RunSpec("searchqa", "later", 1, (), Fork("weight_only", 2)),
    RunSpec("searchqa", "adaptive", 1, (), matrix=True),
)
FROZEN = {"config": "c" * 64, "harness": sha256(H0.encode()), "max_rollouts": 100}
MANIFEST = {
    "domains": {"searchqa": {**INPUTS, "catalogue.py": "e" * 64}},
    "runs": {run.name: FROZEN for run in (A, B, C)},
}


class FakeJobs:
    """Leaves finished runs, unless told otherwise; remembers what was asked."""

    def __init__(self, out, **ends):
        """Args:
        ends: method, or "matrix" → statuses or exceptions of its next calls; after them it succeeds.
        """
        self.out, self.ends, self.asked = out, ends, []

    def run(self, module, argv, log):
        directory = self._directory(argv)
        method = directory.parent.name
        self.asked.append(f"{module.rpartition('.')[2]} {method}")
        if ends := self.ends.get("matrix" if module == "whale_jax.evaluate" else method):
            end = ends.pop(0)
            directory.mkdir(parents=True, exist_ok=True)
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text("error: the disk is full\n")
            if isinstance(end, BaseException):
                raise end
            return end
        if module == "whale_jax.evaluate":
            cell(directory, "w" * 64, FROZEN["harness"], {"validation-0": [1, 0]})
        elif not (directory / "summary.json").exists():
            shutil.rmtree(directory, ignore_errors=True)
            finished_run(directory, FROZEN, tokenizer=INPUTS["tokenizer"], template=INPUTS["template"])
        return 0

    def _directory(self, argv):
        places = [arg.removeprefix("--run_dir=") for arg in argv if arg.startswith("--run_dir=")]
        return self.out / "runs" / places[0].split("/runs/")[1]


def make(out, jobs, chosen=(A, B, C), runs=(A, B, C), **options):
    said = []
    study = Study("small", out / "study.toml", 1.0, tuple(runs))
    maker = Maker(study, out, MANIFEST, jobs, {"commit": None, "code": "c"}, said.append, **options)
    maker.make(list(chosen))
    return maker, said


def there(out):
    return sorted(path.parent.name for path in out.glob("results/*/*/*.json"))


def test_all_that_is_missing_is_made_in_order_and_directories_go(tmp_path):
    jobs = FakeJobs(tmp_path)
    _, said = make(tmp_path, jobs)
    assert jobs.asked == ["main weight_only", "main later", "main adaptive", "evaluate adaptive"]
    assert there(tmp_path) == ["adaptive", "later", "weight_only"]
    assert json.loads(result_path(tmp_path, A.name).read_bytes())["catalogue"] == "e" * 64
    assert list(tmp_path.glob("runs/*/*/*")) == []
    assert said[0] == "searchqa/weight_only/1 (1 of 3) begins"
    assert said[1] == "searchqa/weight_only/1: test 12.5 -> 87.5 %, 70 rollouts, 2.0 min"
    again = FakeJobs(tmp_path)
    assert make(tmp_path, again)[1] == []
    assert again.asked == []


def test_a_parent_stays_until_its_branches_have_results(tmp_path):
    make(tmp_path, FakeJobs(tmp_path), chosen=[A, C])
    assert A.place(tmp_path).is_dir()
    assert not C.place(tmp_path).exists()
    jobs = FakeJobs(tmp_path)
    make(tmp_path, jobs, chosen=[B])
    assert jobs.asked == ["main later"]
    assert not A.place(tmp_path).exists()


def test_run_directories_can_be_kept(tmp_path):
    make(tmp_path, FakeJobs(tmp_path), keep_runs=True)
    assert [run.place(tmp_path).is_dir() for run in (A, B, C)] == [True] * 3
    make(tmp_path, FakeJobs(tmp_path))
    assert list(tmp_path.glob("runs/*/*/*")) == []


def test_a_branch_makes_its_parent_again_where_that_is_gone(tmp_path):
    make(tmp_path, FakeJobs(tmp_path), chosen=[A], keep_runs=True)
    shutil.rmtree(A.place(tmp_path))
    jobs = FakeJobs(tmp_path)
    make(tmp_path, jobs, chosen=[B])
    assert jobs.asked == ["main weight_only", "main later"]
    shutil.rmtree(tmp_path / "results/searchqa/later")
    path = result_path(tmp_path, A.name)
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"journal": "k"}))
    with pytest.raises(StudyError, match="was made anew and ended with another journal"):
        make(tmp_path, FakeJobs(tmp_path), chosen=[B])


def test_a_study_that_is_cut_goes_on_where_it_was(tmp_path):
    """Killed in a run, in its matrix, and between a run and its result."""
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path, FakeJobs(tmp_path, later=[KeyboardInterrupt()]))
    assert there(tmp_path) == ["weight_only"]
    jobs = FakeJobs(tmp_path, matrix=[TimeUsed()])
    with pytest.raises(TimeUsed):
        make(tmp_path, jobs)
    assert jobs.asked == ["main later", "main adaptive", "evaluate adaptive"]
    assert there(tmp_path) == ["later", "weight_only"]
    last = FakeJobs(tmp_path)
    _, said = make(tmp_path, last)
    assert last.asked == ["main adaptive", "evaluate adaptive"]
    assert said[0] == "searchqa/adaptive/1 (3 of 3) goes on"
    assert there(tmp_path) == ["adaptive", "later", "weight_only"]


@pytest.mark.parametrize(("status", "wanted"), [(2, 2), (3, 3), (5, 5), (130, 130), (-9, 1)])
def test_a_job_that_fails_ends_the_study_and_its_log_is_shown(tmp_path, status, wanted):
    with pytest.raises(
        JobFailed, match=rf"searchqa/weight_only/1 ended with status {status} .*\n  error: the disk is full"
    ) as raised:
        make(tmp_path, FakeJobs(tmp_path, weight_only=[status]))
    assert raised.value.status == wanted
    assert there(tmp_path) == []


def test_a_run_that_diverges_has_no_result_and_the_others_are_made(tmp_path):
    jobs = FakeJobs(tmp_path, weight_only=[4])
    maker, said = make(tmp_path, jobs)
    assert maker.diverged == [A.name]
    assert jobs.asked == ["main weight_only", "main adaptive", "evaluate adaptive"]
    assert there(tmp_path) == ["adaptive"]
    assert "searchqa/later/1 (2 of 3): left out, since searchqa/weight_only/1 has no end to branch from" in said


def test_a_run_with_other_inputs_than_frozen_gets_no_result(tmp_path):
    class Other(FakeJobs):
        def run(self, module, argv, log):
            finished_run(self._directory(argv), FROZEN, tokenizer="f" * 64, template=INPUTS["template"])
            return 0

    with pytest.raises(StudyError, match="is of a run with another tokenizer than was frozen"):
        make(tmp_path, Other(tmp_path), chosen=[A])
    assert there(tmp_path) == []


def test_one_process_at_a_time_makes_a_study(tmp_path):
    with (
        claim(tmp_path / "out"),
        pytest.raises(StudyError, match="another process makes this study"),
        claim(tmp_path / "out"),
    ):
        pass
    with claim(tmp_path / "out"):
        pass
    (tmp_path / "file").write_text("")
    with pytest.raises(StudyError, match="cannot be written"), claim(tmp_path / "file"):
        pass
