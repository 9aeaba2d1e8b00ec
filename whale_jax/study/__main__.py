"""Makes a study, run by run, and its page: `python -m whale_jax.study --study=configs/study/demo.toml --out=DIR`.

    --dry_run               check every configuration, print what would be done and what it is expected to take
    --only=searchqa/adaptive,chess    these runs alone: domain, domain/method or domain/method/seed
    --max_hours=2           end after so long; what was begun goes on with the same command
    --report=DIR            the tables and figures of --page, from the results in DIR alone

The same command goes on wherever it ended, however it ended. See docs/study/README.md. Exit status: 0 done, or
--max_hours are over; 2 bad settings or input, something frozen that changed included; 3 infrastructure (mend it, the
same command goes on); 4 training diverged in a run, all others are done; 5 ended by SIGTERM; 130 interrupted.
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags as absl_flags

from whale_jax.report.run_files import ReportError
from whale_jax.study.design import StudyError, read_study


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns its exit status."""
    values = absl_flags.FlagValues()
    _define(values)
    try:
        rest = values(list(argv))[1:]
        if values["help"].value:
            print(f"{__doc__}\n{values.get_help()}")
            return 0
        options: dict[str, Any] = {name: values[name].value for name in values}
        if rest:
            raise StudyError(f"unexpected arguments: {' '.join(rest)} (flags are written --name=value)")
        if options["report"]:
            return _report(Path(options["report"]), Path(options["page"]))
        if not options["study"]:
            raise StudyError("name a study (--study=configs/study/demo.toml), or a study's directory (--report=DIR)")
        return _study(options)
    except (absl_flags.Error, StudyError, ReportError) as error:
        return _failed(2, error)
    except OSError as error:
        return _failed(3, error)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
        return 130


def _report(directory: Path, page: Path) -> int:
    from whale_jax.study.page import write_page

    for path in write_page(directory, page):
        print(path)
    return 0


def _study(options: dict[str, Any]) -> int:
    if not options["out"]:
        raise StudyError("--out=DIR is needed: where the runs and their results go")
    study, out = read_study(Path(options["study"])), Path(options["out"])
    chosen = study.chosen(options["only"])
    # JAX starts with what follows; a report does without.
    from whale_jax.hosts.agree import code_hash
    from whale_jax.study import jobs
    from whale_jax.study.extract import made_by
    from whale_jax.study.freeze import FILE, changes, freeze, manifest, read_manifest
    from whale_jax.study.make import JobFailed, Maker, claim
    from whale_jax.study.plan import plan_study
    from whale_jax.study.shown import plan_lines

    planned = plan_study(study, out)
    frozen = manifest(study, planned)
    if options["dry_run"]:
        print("\n".join(plan_lines(planned, chosen, out)))
        if (out / FILE).is_file() and (changed := changes(read_manifest(out), frozen)):
            raise StudyError("\n".join(f"{out / FILE}: {line}" for line in changed))
        return 0
    deadline = time.monotonic() + 3600 * options["max_hours"] if options["max_hours"] else None
    with claim(out), jobs.sigterm_raises():
        if freeze(out, frozen):
            say(f"frozen in {out / FILE}")
        maker = Maker(
            study, out, frozen, jobs.Processes(deadline), made_by(code_hash()), say, keep_runs=options["keep_runs"]
        )
        try:
            maker.make(chosen)
        except JobFailed as error:
            return _failed(error.status, error)
        except jobs.TimeUsed:
            left = sum(not maker.has_result(spec) for spec in chosen)
            say(f"--max_hours={options['max_hours']:g} are over: {left} of {len(chosen)} runs are left")
            return 0
        except jobs.Terminated:
            print("terminated; the same command goes on", file=sys.stderr)
            return jobs.TERMINATED
    if maker.diverged:
        return _failed(4, f"training diverged in {', '.join(maker.diverged)}; all other runs are done")
    say(f"all {len(chosen)} runs are done: python -m whale_jax.study --report={out}")
    return 0


def say(line: str) -> None:
    """Tells the user, at once."""
    print(line, flush=True)


def _failed(status: int, error: object) -> int:
    print("\n".join(f"error: {line}" for line in str(error).splitlines()), file=sys.stderr)
    return status


def _define(values: absl_flags.FlagValues) -> None:
    module: dict[str, Any] = {"flag_values": values, "module_name": "the study"}
    absl_flags.DEFINE_string("study", None, "study file, such as configs/study/demo.toml", **module)
    absl_flags.DEFINE_string("out", None, "directory of its runs, results, logs and manifest", **module)
    absl_flags.DEFINE_list("only", [], "runs to make: domain, domain/method or domain/method/seed, by commas", **module)
    absl_flags.DEFINE_float(
        "max_hours", 0.0, "end after so many hours: the run at work is sent SIGTERM; 0: no limit", 0.0, **module
    )
    absl_flags.DEFINE_bool("keep_runs", False, "leave run directories, which else go with their result", **module)
    absl_flags.DEFINE_bool("dry_run", False, "check everything, print the plan, and stop", **module)
    absl_flags.DEFINE_string("report", None, "directory of a study: write its page from its results", **module)
    absl_flags.DEFINE_string("page", "docs/study", "with --report: folder of the page, README.md in it", **module)
    absl_flags.DEFINE_bool("help", False, "print all flags and stop", short_name="h", **module)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
