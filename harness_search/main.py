"""`python -m harness_search.main`: a stand-alone harness search, or the A/A test that says what a search could see.

    python -m harness_search.main --evaluate=package.module:problem --harness=h0.py --dir=search --proposer=offline
    python -m harness_search.main --evaluate=package.module:problem --harness=h0.py --aa_test --json

`--evaluate` names a `problem.Problem`, a function that makes one, or with `--tasks` a bare `evaluate`. The same command
goes on with a search that was cut. Exit status: 0 done; 1 settings; 3 infrastructure or a proposer out of reach: run
the same command again later.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness_search import search
from harness_search.aa import aa_test
from harness_search.accept import AcceptRule, ArchiveMax, Paired
from harness_search.archive import Archive, ArchiveError
from harness_search.audit import audit
from harness_search.contract import check_source
from harness_search.problem import Problem, ProblemError, load_problem
from harness_search.proposers.base import ProposerSettingsError, ProposerUnreachable
from harness_search.proposers.build import NAMES, ProposerOptions, make_proposer
from harness_search.proposers.session_log import SessionRecordError
from harness_search.records import IterationRecord
from harness_search.sandbox.backends import BackendName, SandboxUnavailable, detect
from harness_search.search import SearchBudgetError, SearchInfrastructureError, SearchSignals
from harness_search.tables import summary, summary_text
from harness_search.validate import SearchSpace, Validator

SETTINGS, INFRASTRUCTURE = 1, 3


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line and returns its exit status."""
    flags = _parser().parse_args(arguments)
    try:
        problem = load_problem(flags.evaluate, flags.tasks)
        source = _harness(flags.harness)
        if flags.aa_test:
            floor = asyncio.run(
                aa_test(problem.evaluate, source, problem.task_ids, problem.tag, rollouts=flags.aa_rollouts)
            )
            print(json.dumps(floor.to_json()) if flags.json else floor.text())
            return 0
        content = asyncio.run(_search(flags, problem, source))
    except (ProblemError, ProposerSettingsError, SandboxUnavailable, SearchBudgetError, ArchiveError) as error:
        print(error, file=sys.stderr)
        return SETTINGS
    except (SearchInfrastructureError, ProposerUnreachable, SessionRecordError) as error:
        print(error, file=sys.stderr)
        return INFRASTRUCTURE
    print(json.dumps(content) if flags.json else summary_text(content))
    return 0


async def _search(flags: argparse.Namespace, problem: Problem, source: str) -> dict[str, Any]:
    if flags.dir is None:
        raise ProblemError("a search needs --dir, the folder of its archive")
    backend = detect(flags.sandbox)
    validator = Validator(
        h0=source,
        search_space=SearchSpace(flags.search_space),
        backend=backend,
        scripted=problem.scripted,
        harness_task_texts=problem.task_texts,
    )
    names = [one.name for one in dataclasses.fields(ProposerOptions)]
    options = ProposerOptions(**{name: getattr(flags, name) for name in names})
    proposer = make_proposer(
        flags.proposer,
        options,
        catalogue=problem.catalogue,
        skill=problem.skill,
        search_space=SearchSpace(flags.search_space),
        backend=backend,
        check=validator,
    )
    archive = Archive(flags.dir)
    rule: AcceptRule = Paired(flags.confirm_rollouts) if flags.acceptance == "paired" else ArchiveMax()

    def on_commit(record: IterationRecord) -> None:
        if not flags.json:
            scores = ", ".join(f"{one.candidate or 'slot'} {one.state}" for one in record.slots)
            print(f"iteration {record.iteration}: {scores}; best is {record.incumbent} at {record.best_score:.3f}")

    await search.run(
        problem.evaluate,
        archive=archive,
        incoming_source=source,
        proposer=proposer,
        task_ids=problem.task_ids,
        seeds=range(flags.rollouts_per_task),
        tag=problem.tag,
        candidates=flags.candidates,
        stop=stopping(flags.iterations, flags.patience),
        validate=validator,
        on_commit=on_commit,
        seed=flags.seed,
        rule=rule,
        max_rollouts=flags.max_rollouts or None,
    )
    audits = audit(archive, problem.answers) if problem.answers is not None else {}
    content: dict[str, Any] = {**summary(archive, audits), "sandbox": str(backend.name)}
    (flags.dir / "summary.json").write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", "utf-8")
    (flags.dir / "best.py").write_text(archive.candidates[content["best"]["candidate"]].source, "utf-8")
    return content


def stopping(iterations: int, patience: int) -> Callable[[SearchSignals], bool]:
    """Stops after so many iterations, or after `patience` of them without a new best; 0: no patience rule."""

    def stop(signals: SearchSignals) -> bool:
        best = [round(score, 4) for score in signals.best_scores]
        waited = signals.iteration - best.index(max(best))
        return signals.iteration >= iterations or 0 < patience <= waited

    return stop


def _harness(path: Path) -> str:
    try:
        source = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ProblemError(f"--harness={path}: cannot be read: {error}") from None
    if problems := check_source(source):
        raise ProblemError(f"--harness={path} does not obey the harness contract: {'; '.join(problems)}")
    return source


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m harness_search.main", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--evaluate", required=True, help="package.module:name of a Problem or an evaluate function")
    add("--tasks", type=Path, help="for a bare evaluate: a file with one task id per line")
    add("--harness", type=Path, required=True, help="file of the initial harness")
    add("--dir", type=Path, help="folder of the search's archive; an existing one is gone on with")
    add("--aa_test", action="store_true", help="evaluate the harness against itself and print the noise floor")
    add("--aa_rollouts", type=_positive, default=4, help="A/A test: rollouts per task, each time")
    add("--json", action="store_true", help="print one JSON object")
    add("--proposer", choices=NAMES, default="offline", help="who rewrites the harness")
    add("--acceptance", choices=("archive_max", "paired"), default="archive_max", help="rule that picks the best")
    add("--confirm_rollouts", type=_positive, default=4, help="paired: fresh rollouts per task and arm of a trial")
    add("--candidates", type=_positive, default=3, help="candidates per iteration")
    add("--iterations", type=_positive, default=6, help="proposing iterations")
    add("--patience", type=int, default=0, help="stop after so many iterations without a new best; 0: never")
    add("--rollouts_per_task", type=_positive, default=1, help="rollouts per task and candidate in the search")
    add("--max_rollouts", type=int, default=0, help="budget of rollouts; 0: none")
    add("--seed", type=int, default=0, help="root of the proposer sessions' seeds")
    add("--search_space", choices=[one.value for one in SearchSpace], default="full", help="what may be changed")
    add("--sandbox", choices=["auto", *(one.value for one in BackendName)], default="auto", help="cage of harness code")
    for one in dataclasses.fields(ProposerOptions):
        text = one.metadata["help"].replace("%", "%%")
        if isinstance(one.default, bool):
            add(f"--{one.name}", action=argparse.BooleanOptionalAction, default=one.default, help=text)
        else:
            add(f"--{one.name}", type=type(one.default), default=one.default, help=text)
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


if __name__ == "__main__":
    sys.exit(main())
