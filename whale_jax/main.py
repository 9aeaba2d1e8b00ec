"""The main job: `python -m whale_jax.main [--flagfile=configs/…] [flags]`. Without flags it is the SearchQA demo.

Exit status: 0 done, or ended where `--stop_after` says; 2 bad settings or input, a damaged run directory included; 4
training diverged; 5 ended by SIGTERM (the same command goes on, after what was saved within the grace period); 130
interrupted. With 6 (the disk is full), 8 (a bucket cannot be reached), 9 (the proposer cannot) and 3 (any other trouble
of the infrastructure) the run stands at its last commit, and the same command goes on. Anything else is a fault.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from absl import flags as absl_flags
from rich.console import Console

from harness_search.archive import ArchiveError
from harness_search.contract import HarnessError
from harness_search.sandbox.backends import BackendName
from whale_jax import flags
from whale_jax.alternate import Returned, Stopped, alternate
from whale_jax.assemble import Parts, assemble, checkpoint_directory, read_parts
from whale_jax.config import ConfigError, RunConfig
from whale_jax.domains.task import Split
from whale_jax.ends import GOES_ON_WHEN_MENDED, End, end_of
from whale_jax.fork import complete_fork, fork_point
from whale_jax.hand_over import hand_over
from whale_jax.hosts.agree import agree
from whale_jax.hosts.channel import HostsError
from whale_jax.hosts.company import in_company
from whale_jax.hosts.follow import follow
from whale_jax.hosts.follower import Follower
from whale_jax.hosts.hosts import Hosts
from whale_jax.journal import Journal, JournalError
from whale_jax.preemption import Preempted, Preemption
from whale_jax.qwen3_5.config import Qwen35Config
from whale_jax.report import summary as report
from whale_jax.report.page import write_for_run
from whale_jax.report.progress import Progress
from whale_jax.run import Run
from whale_jax.rundir import check_same_fork, is_begun, look, open_config, refuse_inside, remember
from whale_jax.storage.bucket import BucketError
from whale_jax.storage.home import Home
from whale_jax.storage.lease import RunLost
from whale_jax.storage.opening import refuse_bucket, run_home, run_to_look_at
from whale_jax.storage.url import in_bucket
from whale_jax.training.step import TrainingDiverged


def main(argv: Sequence[str]) -> int:
    """Runs one job; returns its exit status."""
    values = absl_flags.FlagValues()
    flags.define(values)
    module = {"flag_values": values, "module_name": "the command"}
    dry_run = absl_flags.DEFINE_bool("dry_run", False, "validate everything, print the settings, and stop", **module)
    show_help = absl_flags.DEFINE_bool("help", False, "print all flags and stop", short_name="h", **module)
    try:
        config = flags.parse(argv, values)
        if show_help.value:
            print(f"{__doc__}\n{values.get_help()}")
            return 0
        return in_company(config, lambda hosts: _run(config, hosts, dry_run=bool(dry_run.value)))
    except ConfigError as error:
        print_errors(error)
        return 2
    except HostsError as error:
        print_errors(error)
        return 3


def _run(config: RunConfig, hosts: Hosts, *, dry_run: bool) -> int:
    """This process's part of a job; returns its exit status."""
    try:
        with Preemption(config.run.grace_seconds).watch() as preemption:
            parts = read_parts(config)
            agree(hosts, config, parts.inputs)
            if isinstance(hosts, Follower):
                return _follow(hosts, config, parts, preemption)
            fork = _fork(config, parts)
            if dry_run:
                return _describe(config, parts)
            if config.run.run_dir and not in_bucket(config.run.run_dir):
                refuse_inside(Path(config.run.run_dir), parts.initial.directory)
            with run_home(config.run, say=lambda text: print(text, flush=True)) as home:
                changes = open_config(home.directory, config, parts.inputs, fork)
                complete_fork(home.directory)
                Journal(home.directory / "journal")  # a damaged one is refused before anything heavy starts
                return _job(config, parts, home, changes, preemption, hosts)
    except GOES_ON_WHEN_MENDED as error:
        print_errors(error)
        return end_of(error)
    except (BucketError, ConfigError, JournalError, RunLost) as error:
        print_errors(error)
        return End.REFUSED
    except Preempted:
        print("terminated before the run began, or after its end; the same command goes on", file=sys.stderr)
        return End.TERMINATED
    except KeyboardInterrupt:
        print("interrupted before the run began", file=sys.stderr)
        return End.INTERRUPTED


def _describe(config: RunConfig, parts: Parts) -> int:
    """What `--dry_run` prints."""
    if config.run.run_dir:
        with run_to_look_at(config.run.run_dir) as directory:
            refuse_inside(directory, parts.initial.directory)
            look(directory, config, parts.inputs)
    print(_description(parts))
    for warning in _doubts(config, parts):
        print(f"warning: {warning}", file=sys.stderr)
    print(flags.to_flagfile(config), end="")
    return 0


def _follow(hosts: Follower, config: RunConfig, parts: Parts, preemption: Preemption) -> int:
    """The part of a process that is not process 0: its end is that one's."""
    print(f"host {hosts.process} of {hosts.count} follows host 0, which has the run directory", flush=True)
    with preemption.tells(hosts.terminated):
        stop = follow(hosts, config, parts)
    if stop.fields["status"]:
        print(f"stopped: {stop.fields['text']}", file=sys.stderr)
    return stop.fields["status"]


def _fork(config: RunConfig, parts: Parts) -> Mapping[str, Any] | None:
    """What a branch that is to be made starts from; None for other runs, and for a branch that has begun already."""
    spec, directory = config.run.fork_from, config.run.run_dir
    if spec is None:
        return None
    for flag, place in (("fork_from", spec), ("run_dir", directory)):
        refuse_bucket(flag, place, "a branch has links to its parent (gcloud storage cp --recursive brings a run here)")
    if directory is not None and is_begun(Path(directory)):
        check_same_fork(Path(directory), spec)
        return None
    return fork_point(spec, config, parts.inputs).record()


def _job(config: RunConfig, parts: Parts, home: Home, changes: list[str], preemption: Preemption, hosts: Hosts) -> int:
    progress = Progress()
    progress.say(f"run directory {home.directory}")
    progress.say(_description(parts))
    warnings = [*changes, *_doubts(config, parts)]
    for warning in warnings:
        progress.say(f"warning: {warning}")
    try:
        with assemble(config, parts, home.directory, progress, hosts, home) as run:
            if run.journal.entries:
                progress.say(f"resuming after {len(run.journal.entries)} journal entries")
            everything = remember(home.directory, warnings)
            result = asyncio.run(_alternate(run, preemption))
            _finish(run, parts, result, everything)
        return 0
    except Stopped as stop:
        progress.say(f"stopped after a {str(stop).replace('_', ' ')}; the same command goes on from here")
        return 0
    except GOES_ON_WHEN_MENDED as error:
        print_errors(error)
        return end_of(error)
    except (ArchiveError, BucketError, HarnessError, JournalError, RunLost) as error:
        print_errors(error)
        return End.REFUSED
    except TrainingDiverged as error:
        print_errors(error)
        return End.DIVERGED
    except asyncio.CancelledError:
        if not preemption.came:
            raise
        print("terminated; the same command goes on from here", file=sys.stderr)
        return End.TERMINATED
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from the last commit", file=sys.stderr)
        return End.INTERRUPTED
    finally:
        progress.close()


def print_errors(error: Exception) -> None:
    """Every line of the message, each named an error."""
    print("\n".join(f"error: {line}" for line in str(error).splitlines()), file=sys.stderr)


async def _alternate(run: Run, preemption: Preemption) -> Returned:
    task = asyncio.current_task()
    assert task is not None
    try:
        with preemption.cancels(task):
            return await alternate(run)
    finally:
        await run.runner.close()


def _finish(run: Run, parts: Parts, result: Returned, warnings: list[str]) -> None:
    """Writes what the run is for: the exported pair, the summary, the table and the picture."""
    best = result.returned
    export = run.dir / "export"
    hand_over(export, best.pair, parts.initial.directory, lambda: run.policy.tensors_at(best.pair.step))
    diff = report.harness_diff(run, best)
    (run.dir / "harness.diff").write_text(diff, encoding="utf-8")
    report.draw_picture(run, run.dir / "accuracy.png")
    content = report.summary(run, result, warnings=warnings)
    report.write(run.dir / "summary.json", content)
    run.progress.close()
    if diff:
        run.progress.say(diff.rstrip())
    report.print_table(run, result, Console(highlight=False))
    difference = content["paired_difference"]
    low, high = difference["ci95"]
    run.progress.say(
        f"returned pair minus initial pair on test: {100 * difference['mean']:+.1f} points "
        f"(95 % interval {100 * low:+.1f} to {100 * high:+.1f})"
    )
    write_for_run(run.dir, run.progress.say)
    run.progress.say(f"returned pair in {export}, summary.json and accuracy.png in {run.dir}")


def _description(parts: Parts) -> str:
    counts = ", ".join(f"{len(parts.splits[split])} {split.value}" for split in Split)
    bad = f", {len(parts.domain.bad_rows)} bad rows left out" if parts.domain.bad_rows else ""
    shape = parts.initial.config
    return (
        f"{parts.domain.name}: {counts} tasks{bad}; policy {shape.num_layers} layers of width {shape.hidden_size}, "
        f"sandbox {parts.backend.name}"
    )


def _doubts(config: RunConfig, parts: Parts) -> list[str]:
    """What is allowed and may not be meant."""
    doubts = []
    if parts.backend.name is BackendName.NONE:
        doubts.append("--sandbox=none: harness code ran with this user's rights")
    room = {"assistant_tokens": config.rollout.assistant_tokens, "max_len": config.rollout.max_len}
    demo = RunConfig().rollout
    if room == {name: getattr(demo, name) for name in room} and parts.initial.config != _demo_model(config):
        named = " and ".join(f"--{name}={value}" for name, value in room.items())
        doubts.append(f"{named} are the demo's room, too little for most models and tasks")
    return doubts


def _demo_model(config: RunConfig) -> Qwen35Config:
    return Qwen35Config.from_dir(checkpoint_directory(None, domain=config.run.domain))


def use_all_cores() -> None:
    """Without an accelerator, makes each core (of up to four) a device: as many replicas serve, and threads train."""
    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        jax.config.update("jax_num_cpu_devices", min(len(os.sched_getaffinity(0)), 4))


if __name__ == "__main__":
    use_all_cores()
    logging.basicConfig(level=logging.WARNING)
    sys.exit(main(sys.argv))
