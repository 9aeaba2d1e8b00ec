"""Makes the runs of a study that have no result yet, one after the other, in its order.

A run that was begun goes on where it was (its directory is exactly resumable), so the same command can be given again
after any end. A run directory is removed once nothing needs it: its result is written, and those of its branches.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whale_jax.study.design import RunSpec, Study, StudyError
from whale_jax.study.extract import extract
from whale_jax.study.jobs import Jobs, last_lines
from whale_jax.study.results import check_frozen, read_result, result_path, write_result

DIVERGED = 4
"""Exit status of a run whose training diverged: an outcome of that run, which leaves the others as they are."""


class JobFailed(Exception):
    """A job ended with an error; `status` is the study's exit status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class Maker:
    """A study being made.

    Attributes:
        out: the study's directory.
        manifest: what was frozen.
        jobs: runs the main job and the evaluation.
        code: what makes the results (`extract.made_by`).
        say: tells the user.
        keep_runs: leave all run directories where they are.
        diverged: names of runs whose training diverged.
    """

    study: Study
    out: Path
    manifest: Mapping[str, Any]
    jobs: Jobs
    code: Mapping[str, str | None]
    say: Callable[[str], None]
    keep_runs: bool = False
    diverged: list[str] = field(default_factory=list)

    def make(self, chosen: Sequence[RunSpec]) -> None:
        """Makes what is missing of the chosen runs, and of those that they branch from.

        Raises:
            JobFailed: a job could not do its work; what was done is kept.
            TimeUsed: see `jobs.Jobs`.
            StudyError, ReportError: a result or run directory is damaged or another one's.
        """
        for number, spec in enumerate(chosen, start=1):
            if self.has_result(spec):
                self._tidy(spec)
                continue
            where = f"{spec.name} ({number} of {len(chosen)})"
            if spec.parent is not None and not self._is_ready(self.study.run(spec.parent)):
                self.say(f"{where}: left out, since {spec.parent} has no end to branch from")
                continue
            self.say(f"{where} {'goes on' if spec.place(self.out).exists() else 'begins'}")
            if self._main_job(spec):
                self._keep(spec)
                self._tell(spec)
                self._tidy(spec)

    def has_result(self, spec: RunSpec) -> bool:
        """Whether a result is there, and is that of the frozen run."""
        path = result_path(self.out, spec.name)
        if not path.is_file():
            return False
        check_frozen(path, read_result(path).content, spec.name, self.manifest)
        return True

    def _is_ready(self, parent: RunSpec) -> bool:
        """Makes a run that others branch from, again where its directory is gone; False where it diverged."""
        if self.has_result(parent) and (parent.place(self.out) / "summary.json").is_file():
            return True
        if parent.name in self.diverged or not self._main_job(parent):
            return False
        self._keep(parent)
        return True

    def _main_job(self, spec: RunSpec) -> bool:
        """Runs a run to its end; False where it diverged."""
        log = self.out / "logs" / f"{spec.name}.log"
        status = self.jobs.run("whale_jax.main", spec.argv(self.out), log)
        if status == DIVERGED:
            self.diverged.append(spec.name)
            self.say(f"{spec.name}: training diverged; it has no result, and the others go on. See {log}")
            return False
        self._require(status, spec.name, log)
        return True

    def _keep(self, spec: RunSpec) -> None:
        """Measures the matrix where one is wanted, and writes the result."""
        directory = spec.place(self.out)
        if spec.matrix:
            log = self.out / "logs" / f"{spec.name}.matrix.log"
            status = self.jobs.run("whale_jax.evaluate", [f"--run_dir={directory}", "--matrix"], log)
            self._require(status, f"the matrix of {spec.name}", log)
        catalogue = self.manifest["domains"][spec.domain].get("catalogue.py")  # checked when this command began
        content = extract(spec, directory, self.code) | {"catalogue": catalogue}
        check_frozen(directory, content, spec.name, self.manifest)
        write_result(self.out, spec.name, content)

    def _tell(self, spec: RunSpec) -> None:
        result = read_result(result_path(self.out, spec.name))
        minutes = f"{result.content['seconds'] / 60:.1f} min" if result.content["seconds"] else "time not measured"
        self.say(
            f"{spec.name}: test {100 * result.initial.mean:.1f} -> {100 * result.returned.mean:.1f} %, "
            f"{result.rollouts:,} rollouts, {minutes}"
        )

    def _require(self, status: int, what: str, log: Path) -> None:
        if status == 0:
            return
        end = "".join(f"\n  {line}" for line in last_lines(log))
        wanted = status if status in (2, 3, 5, 130) else 1
        raise JobFailed(wanted, f"{what} ended with status {status} (docs/operations.md says what that means){end}")

    def _tidy(self, spec: RunSpec) -> None:
        """Removes the run's directory, and that of its parent, if they are not needed any more."""
        if self.keep_runs:
            return
        for name in (spec.name, spec.parent):
            if name is None:
                continue
            one = self.study.run(name)
            needed = any(not result_path(self.out, branch.name).is_file() for branch in self.study.branches(name))
            if not needed and result_path(self.out, name).is_file() and one.place(self.out).exists():
                shutil.rmtree(one.place(self.out))


@contextlib.contextmanager
def claim(out: Path) -> Iterator[None]:
    """Makes the study's directory this process's own.

    Raises:
        StudyError: it cannot be written, or another process makes the study.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = open(out / ".lock", "w")  # noqa: SIM115 - held until the context ends
    except OSError as error:
        raise StudyError(f"--out={out}: cannot be written ({error.strerror})") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StudyError(f"--out={out}: another process makes this study") from None
        yield
