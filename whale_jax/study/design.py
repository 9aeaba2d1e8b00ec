"""A study as it is written down: which methods, on which domains, with which seeds, and in which order.

The form of a study file (TOML) is that of `configs/study/demo.toml`. Runs come in rounds, one seed of every domain in
each: wherever a study is cut, what is there is a smaller study of the same kind.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class StudyError(Exception):
    """A study cannot be made, gone on with or read; the message names the file or run and what to do."""


@dataclass(frozen=True)
class Fork:
    """Where a branch leaves another run of the same seed.

    Attributes:
        method: of that run.
        entry: number of the last journal entry that both share.
    """

    method: str
    entry: int


@dataclass(frozen=True)
class RunSpec:
    """One run of a study.

    Attributes:
        flagfiles: its flags, later ones going before earlier ones.
        fork: what it branches from; None for a run of its own.
        matrix: whether all its weights are scored under all its harnesses when it has ended.
        cost: of one of its episodes, in ordinary ones; for the plan alone.
        ends_early: its schedule may end well before the rollouts that all methods have.
    """

    domain: str
    method: str
    seed: int
    flagfiles: tuple[Path, ...]
    fork: Fork | None = None
    matrix: bool = False
    cost: float = 1.0
    ends_early: bool = False

    @property
    def name(self) -> str:
        """`domain/method/seed`."""
        return f"{self.domain}/{self.method}/{self.seed}"

    @property
    def parent(self) -> str | None:
        """The name of the run that it branches from."""
        return None if self.fork is None else f"{self.domain}/{self.fork.method}/{self.seed}"

    def place(self, out: Path) -> Path:
        """Its run directory."""
        return out / "runs" / self.name

    def argv(self, out: Path) -> list[str]:
        """Its flags for the main job."""
        flags = [f"--flagfile={path}" for path in self.flagfiles]
        flags += [f"--seed={self.seed}", f"--run_dir={self.place(out)}"]
        if self.fork is not None:
            flags.append(f"--fork_from={out / 'runs' / str(self.parent)}@{self.fork.entry}")
        return flags


@dataclass(frozen=True)
class Study:
    """A study: its runs in the order in which they are made.

    Attributes:
        path: the study file.
        seconds_per_episode: measured somewhere, for the plan alone.
    """

    name: str
    path: Path
    seconds_per_episode: float
    runs: tuple[RunSpec, ...]

    def run(self, name: str) -> RunSpec:
        """The run of that name."""
        return next(run for run in self.runs if run.name == name)

    def chosen(self, only: Sequence[str]) -> list[RunSpec]:
        """The runs that `--only` names (`domain`, `domain/method` or `domain/method/seed`, any of several); all for
        none.

        Raises:
            StudyError: nothing has such a name.
        """
        for one in only:
            if not any(_under(run.name, one) for run in self.runs):
                known = ", ".join(dict.fromkeys(f"{run.domain}/{run.method}" for run in self.runs))
                raise StudyError(f"--only={one}: {self.path} has no such run; it has {known}, each with /seed")
        return [run for run in self.runs if not only or any(_under(run.name, one) for one in only)]

    def branches(self, name: str) -> list[RunSpec]:
        """The runs that branch from the one of that name."""
        return [run for run in self.runs if run.parent == name]


def read_study(path: Path) -> Study:
    """Reads a study file.

    Raises:
        StudyError: it cannot be read, is not of this form, or names a flagfile that is not there.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise StudyError(f"{path}: cannot be read as TOML: {error}") from error
    try:
        return _study(path, content)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StudyError(f"{path}: not of the form of configs/study/demo.toml: {error!r}") from error


def _study(path: Path, content: Mapping[str, Any]) -> Study:
    _refuse_others(path, content, {"name", "seconds_per_episode", "domain"})
    domains = [_rounds(path, domain) for domain in content["domain"]]
    runs = tuple(
        run
        for number in range(max(map(len, domains)))
        for rounds in domains
        if number < len(rounds)
        for run in rounds[number]
    )
    names = [run.name for run in runs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise StudyError(f"{path}: {', '.join(twice)} is there twice")
    return Study(str(content["name"]), path, float(content["seconds_per_episode"]), runs)


def _rounds(path: Path, domain: Mapping[str, Any]) -> list[list[RunSpec]]:
    """The runs of one domain, seed by seed: its methods, each followed by its branches."""
    _refuse_others(path, domain, {"name", "seeds", "methods", "matrix", "cost", "ends_early", "branch"})
    name, methods, branches = domain["name"], domain["methods"], domain.get("branch", [])
    for branch in branches:
        _refuse_others(path, branch, {"name", "from", "entry"})
        if branch["from"] not in methods:
            raise StudyError(f"{path}: {branch['name']} branches from {branch['from']}, which is no method of {name}")
    named = [*methods, *(branch["name"] for branch in branches)]
    told = {*domain.get("matrix", []), *domain.get("cost", {}), *domain.get("ends_early", [])}
    if unknown := sorted(told - set(named)):
        raise StudyError(f"{path}: {name} has no method {', '.join(unknown)}")

    def spec(method: str, seed: int, fork: Fork | None = None) -> RunSpec:
        files = _flagfiles(path, name, method)
        matrix, cost = method in domain.get("matrix", []), float(domain.get("cost", {}).get(method, 1.0))
        return RunSpec(name, method, int(seed), files, fork, matrix, cost, method in domain.get("ends_early", []))

    def of(method: str, seed: int) -> Iterator[RunSpec]:
        yield spec(method, seed)
        for branch in branches:
            if branch["from"] == method:
                yield spec(branch["name"], seed, Fork(method, int(branch["entry"])))

    return [[run for method in methods for run in of(method, seed)] for seed in domain["seeds"]]


def _flagfiles(path: Path, domain: str, method: str) -> tuple[Path, ...]:
    folder = path.parent
    own, shared = folder / domain / f"{method}.flags", folder / "methods" / f"{method}.flags"
    files = (folder / domain / "domain.flags", own if own.is_file() else shared)
    for file in files:
        if not file.is_file():
            raise StudyError(f"{file}: is missing, and {path} needs it for {domain}/{method}")
    return files


def _refuse_others(path: Path, content: Mapping[str, Any], known: Iterable[str]) -> None:
    if unknown := sorted(set(content) - set(known)):
        raise StudyError(f"{path}: {', '.join(unknown)} means nothing here; known are {', '.join(sorted(known))}")


def _under(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix.rstrip("/") + "/")
