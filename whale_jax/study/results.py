"""The result files of a study: `results/<domain>/<method>/<seed>.json`, from which alone its page is made."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whale_jax.study.design import StudyError
from whale_jax.study.extract import FORMAT
from whale_jax.study.freeze import read_manifest
from whale_jax.study.scores import Scores


@dataclass(frozen=True)
class Point:
    """A validation score: rollouts of training and search before it, and what was right."""

    label: str
    rollouts: int
    step: int
    scores: Scores


@dataclass(frozen=True)
class Matrix:
    """Every weights under every harness of a run, on validation.

    Attributes:
        weights, harnesses: labels of columns and rows; the first of each is the initial one.
        found_on: for each harness the column of the weights that it was found on; None for the initial one.
        cells: by (row, column), as far as they were measured.
    """

    weights: Sequence[str]
    harnesses: Sequence[str]
    found_on: Sequence[int | None]
    cells: Mapping[tuple[int, int], Scores]


@dataclass(frozen=True)
class Result:
    """One finished run.

    Attributes:
        content: the whole file: beside what follows `config` (hash of the settings), `inputs` and `catalogue` (hashes),
            `environment`, `commit` and `code` that made it, `journal`, `budget`, `episodes`, `sampled_tokens`, `flops`,
            `seconds`, `warnings`.
        initial, returned: test scores of the pair that the run began with, and of the one that it returned.
        rollouts: of training and search.
        curve: validation, in order.
        phases: each with `kind`, `cycle`, `rollouts`, `steps` and `epochs` or `iterations`, and the `reason` that ended
            it.
        searches: each with the search scores of its `incoming` and its `best` harness, whether it `changed` anything,
            the `edits` that it accepted, and how much of its best score is likely to be luck (`expected_luck`).
        matrix: None where it was not asked for.
    """

    content: Mapping[str, Any]
    initial: Scores
    returned: Scores
    rollouts: int
    curve: Sequence[Point]
    phases: Sequence[Mapping[str, Any]]
    searches: Sequence[Mapping[str, Any]]
    matrix: Matrix | None

    @property
    def domain(self) -> str:
        return self.content["domain"]

    @property
    def method(self) -> str:
        return self.content["method"]

    @property
    def seed(self) -> int:
        return self.content["seed"]

    @property
    def name(self) -> str:
        """`domain/method/seed`."""
        return f"{self.domain}/{self.method}/{self.seed}"

    @property
    def returned_point(self) -> Point:
        """The validation score of the returned pair."""
        return next(point for point in self.curve if point.label == self.content["returned"])

    @property
    def rewritten(self) -> bool:
        """Whether the returned pair has another harness than the run began with."""
        return self.rewritten_by(self.content["returned"])

    def rewritten_by(self, label: str) -> bool:
        """The same of the pair of a point of the curve."""
        labels = [point.label for point in self.curve]
        until = labels.index(label)
        return any(one["changed"] and labels.index(search_label(one)) <= until for one in self.searches)


def search_label(search: Mapping[str, Any]) -> str:
    """The label of the point of the curve after a search phase."""
    return f"cycle {search['cycle'] + 1}, search"


@dataclass(frozen=True)
class Results:
    """What there is of a study.

    Attributes:
        manifest: what was frozen.
        by_name: the results that there are, in the study's order.
        missing: names of the runs that have none.
    """

    manifest: Mapping[str, Any]
    by_name: Mapping[str, Result]
    missing: Sequence[str]

    @property
    def domains(self) -> list[str]:
        """In the study's order."""
        return list(dict.fromkeys(name.split("/")[0] for name in self.manifest["runs"]))

    def methods(self, domain: str) -> list[str]:
        """Of a domain, branches included, in the study's order, whether there are results or not."""
        return list(
            dict.fromkeys(name.split("/")[1] for name in self.manifest["runs"] if name.startswith(domain + "/"))
        )

    def of(self, domain: str, method: str) -> dict[int, Result]:
        """The results of a method by seed."""
        return {one.seed: one for one in self.by_name.values() if (one.domain, one.method) == (domain, method)}


def result_path(out: Path, name: str) -> Path:
    """Where the result of a run is kept."""
    return out / "results" / f"{name}.json"


def write_result(out: Path, name: str, content: Mapping[str, Any]) -> None:
    """Writes a result, whole or not at all.

    Raises:
        StudyError: there is one already, of a run that went otherwise.
    """
    path = result_path(out, name)
    if path.exists() and json.loads(path.read_bytes()).get("journal") != content["journal"]:
        raise StudyError(
            f"{path}: the run was made anew and ended with another journal (other hardware or versions?). Remove this "
            "file and those of its branches to take the new one"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":"), sort_keys=True) + "\n")
    temporary.replace(path)


def read_result(path: Path) -> Result:
    """Reads one result.

    Raises:
        StudyError: the file is damaged or of another version.
    """
    try:
        content = json.loads(path.read_bytes())
        if content["format"] != FORMAT:
            raise StudyError(f"{path}: is of format {content['format']}, and this version reads {FORMAT}")
        curve = [
            Point(point["label"], point["rollouts"], point["step"], Scores.from_json(point))
            for point in content["curve"]
        ]
        tests = {which: Scores.from_json(content["test"][which]) for which in ("initial", "returned")}
        if content["returned"] not in [point.label for point in curve]:
            raise ValueError(f"no validation score of the returned pair ({content['returned']})")
        return Result(
            content, tests["initial"], tests["returned"], content["rollouts"], curve, content["phases"],
            content["searches"], _matrix(content["matrix"]),
        )  # fmt: skip
    except OSError as error:
        raise StudyError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StudyError(f"{path}: is damaged ({error!r}); remove it, and the run is made again") from error


def _matrix(content: Mapping[str, Any] | None) -> Matrix | None:
    if content is None:
        return None
    cells = {
        (row, column): Scores.from_json(cell)
        for row, line in enumerate(content["cells"])
        for column, cell in enumerate(line)
        if cell is not None
    }
    return Matrix(
        [one["label"] for one in content["weights"]],
        [one["label"] for one in content["harnesses"]],
        [one["found_on"] for one in content["harnesses"]],
        cells,
    )


def read_results(out: Path) -> Results:
    """All results of a study's directory.

    Raises:
        StudyError: there is no manifest, or a result is damaged or of a run with other settings or inputs.
    """
    manifest = read_manifest(out)
    found: dict[str, Result] = {}
    for name in manifest["runs"]:
        if (path := result_path(out, name)).is_file():
            found[name] = read_result(path)
            check_frozen(path, found[name].content, name, manifest)
    return Results(manifest, found, [name for name in manifest["runs"] if name not in found])


def check_frozen(path: Path, content: Mapping[str, Any], name: str, manifest: Mapping[str, Any]) -> None:
    """Raises StudyError unless a result is that of the run `name` with the settings and inputs that were frozen."""
    run, domain = manifest["runs"][name], manifest["domains"][name.split("/")[0]]
    frozen = {"config": run["config"], "harness": run["harness"]}
    frozen |= {what: domain[what] for what in ("data", "weights", "tokenizer", "template")}
    frozen["catalogue"] = domain.get("catalogue.py")
    has = {"config": content["config"], "catalogue": content.get("catalogue"), **content["inputs"]}
    if others := [what for what, value in frozen.items() if has.get(what) != value]:
        raise StudyError(f"{path}: is of a run with another {', '.join(others)} than was frozen; remove it")
    if f"{content['domain']}/{content['method']}/{content['seed']}" != name:
        raise StudyError(f"{path}: is the result of another run; remove it")
