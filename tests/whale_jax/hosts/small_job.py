"""One process of a small run over several: `python -m tests.whale_jax.hosts.small_job RUN_DIR [flags]`.

Engine, gradient and sandbox are those of `small_world`; processes, channel, mesh, checkpoints and journal are real. The
environment may hold `DIE`: process.what.count, the process that is ended by what (KILL, TERM) when it samples for the
count-th time; and `FAIL`: what.count, the trouble that process 0 has with its count-th try (`disk`: journal entries and
evidence; `proposer`: sessions).
"""

import asyncio
import errno
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags as absl_flags

import whale_jax.hand_over
import whale_jax.main
from harness_search.proposers.base import ProposerUnreachable
from tests.whale_jax import small_world
from tests.whale_jax.small_world import (
    INPUTS,
    SETTINGS,
    Driver,
    OnAMesh,
    export,
    small_policy,
    small_rollouts,
    small_run,
    tasks,
    whole,
)  # fmt: skip
from whale_jax import flags
from whale_jax.alternate import Stopped
from whale_jax.config import RunConfig
from whale_jax.domains.task import Split
from whale_jax.ends import GOES_ON_WHEN_MENDED, end_of
from whale_jax.hosts.agree import agree
from whale_jax.hosts.channel import HostsError
from whale_jax.hosts.company import in_company
from whale_jax.hosts.follow import Groups, Steps, obey
from whale_jax.hosts.follower import Follower
from whale_jax.hosts.hosts import Hosts
from whale_jax.preemption import EXIT_STATUS, Preempted, Preemption
from whale_jax.report.busy import BusyClock
from whale_jax.rundir import open_config
from whale_jax.stages import StageClock
from whale_jax.storage.opening import run_home
from whale_jax.swap import Swap


def dying(process: int) -> None:
    """Arms `DIE`, if it names this process."""
    who, what, count = os.environ.get("DIE", "-1.KILL.0").split(".")
    if int(who) != process:
        return
    original, left = Driver.generate, [int(count)]

    async def generate(self: Driver, *args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), getattr(signal, f"SIG{what}"))
        return await original(self, *args, **kwargs)

    Driver.generate = generate  # type: ignore[method-assign]


def failing() -> None:
    """Arms `FAIL`."""
    what, count = os.environ.get("FAIL", "nothing.0").split(".")
    left, link, propose = [int(count)], os.link, small_world.Proposer.propose

    def strikes() -> bool:
        left[0] -= 1
        return left[0] == 0

    def full(*args: Any) -> None:
        if strikes():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), args[1])
        link(*args)

    async def silent(*args: Any, **kwargs: Any) -> Any:
        if strikes():
            raise ProposerUnreachable("the proposer's model cannot be reached, tried 5 times: no answer")
        async for item in propose(*args, **kwargs):
            yield item

    if what == "disk":
        os.link = full
    if what == "proposer":
        small_world.Proposer.propose = silent  # type: ignore[method-assign]


def part(config: RunConfig, hosts: Hosts) -> int:
    """This process's part of the run; its exit status."""
    dying(hosts.process)
    small_world.Driver = small_world.OnThisHost
    try:
        with Preemption(60).watch() as preemption:
            agree(hosts, config, INPUTS)
            assert config.mesh.sizes is not None
            gradient = OnAMesh(config.mesh.sizes)
            if isinstance(hosts, Follower):
                with preemption.tells(hosts.terminated):
                    return follow(Path(), config, hosts, gradient)
            failing()
            whale_jax.hand_over.export_checkpoint = export
            with run_home(config.run, say=print) as home:
                open_config(home.directory, config, INPUTS)
                with small_run(home.directory, config, hosts, gradient, home) as run:
                    asyncio.run(whole(run, preemption))
            return 0
    except Stopped:
        return 0
    except GOES_ON_WHEN_MENDED as error:
        whale_jax.main.print_errors(error)
        return end_of(error)
    except (asyncio.CancelledError, Preempted):
        return EXIT_STATUS
    except whale_jax.main.ConfigError as error:
        whale_jax.main.print_errors(error)
        return 2


def follow(directory: Path, config: RunConfig, hosts: Follower, gradient: Any) -> int:
    """As `hosts.follow.follow`, on the stand-ins."""
    driver, runner = small_rollouts(config)

    def make(settings: RunConfig) -> tuple[Any, Swap]:
        policy = small_policy(directory, settings, hosts, gradient)
        return policy, Swap(policy, driver, np.float32, StageClock())  # type: ignore[arg-type]

    splits = {split: tasks(split) for split in Split}
    groups = Groups(hosts, splits, driver, runner, BusyClock())  # type: ignore[arg-type]
    stop = asyncio.run(obey(hosts, Steps(hosts, make), groups))
    if stop.fields["status"]:
        print(f"stopped: {stop.fields['text']}", file=sys.stderr)
    return stop.fields["status"]


def main() -> int:
    values = absl_flags.FlagValues()
    flags.define(values)
    given = flags.given(["small_job", *sys.argv[2:]], values)
    config = RunConfig.from_values({**SETTINGS, **given, "run_dir": sys.argv[1]})
    try:
        return in_company(config, lambda hosts: part(config, hosts))
    except (whale_jax.main.ConfigError, HostsError) as error:
        whale_jax.main.print_errors(error)
        return 3


if __name__ == "__main__":
    sys.exit(main())
