"""What every process but 0 does in a run: the steps that process 0 orders, and the groups of episodes it is handed."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from harness_search.contract import Budgets
from whale_jax.assemble import Parts, make_policy, make_rollouts
from whale_jax.config import RunConfig
from whale_jax.domains.task import Split, Task
from whale_jax.hosts.channel import HostsError, Message
from whale_jax.hosts.follower import Follower
from whale_jax.hosts.traces import Requests, packed, unpacked
from whale_jax.policy import Policy
from whale_jax.report.busy import BusyClock
from whale_jax.rollout.runner import RolloutRunner
from whale_jax.rollout.trace import Trace
from whale_jax.serving.driver import Driver
from whale_jax.stages import StageClock
from whale_jax.swap import Swap
from whale_jax.training.checkpoint import CheckpointError
from whale_jax.training.step import TrainingDiverged


def follow(hosts: Follower, config: RunConfig, parts: Parts) -> Message:
    """Follows process 0 to the end of the run.

    Returns:
        The order to stop, with the exit status and a reason.
    """
    clock = BusyClock()
    driver, runner = make_rollouts(config, parts, clock)

    def make(settings: RunConfig) -> tuple[Policy, Swap]:
        policy = make_policy(settings, parts, Path(), clock, hosts)
        return policy, Swap(policy, driver, jnp.dtype(settings.model.compute_dtype), StageClock())

    with driver:
        return asyncio.run(obey(hosts, Steps(hosts, make), Groups(hosts, parts.splits, driver, runner, clock)))


async def obey(hosts: Follower, steps: "Steps", groups: "Groups") -> Message:
    """Takes orders until the one to stop, which is returned."""
    orders = hosts.orders()
    try:
        while True:
            message = await orders.get()
            if message.kind == "stop":
                return message
            if message.kind == "group":
                groups.start(message)
            elif message.kind == "drop":
                await groups.drop(**message.fields)
            else:
                steps.make(message)
    except HostsError:
        if hosts.stopped is None:
            raise
        return hosts.stopped
    finally:
        await groups.close()
        steps.close()


class Steps:
    """The steps that all processes make together."""

    def __init__(self, hosts: Follower, make: Callable[[RunConfig], tuple[Policy, Swap]]) -> None:
        """Args:
        make: a policy of some settings, and what gives its weights to the engines here.
        """
        self._hosts, self._make = hosts, make
        self._policies: list[tuple[Policy, Swap]] = []
        self._verbs: dict[str, Callable[..., Any]] = {
            "move_to": lambda policy, swap, step: policy.move_to(step),
            "compile_ahead": lambda policy, swap: policy.compile_ahead(),
            "warm_up": lambda policy, swap: policy.warm_up(),
            "train": _train,
            "snapshot": lambda policy, swap: policy.snapshot(),
            "restore_unfinished": lambda policy, swap, step: policy.restore_unfinished(step),
            "serve": lambda policy, swap, step: swap.serve(step),
            "forget": lambda policy, swap: swap.forget(),
            "hold": lambda policy, swap, step: policy.hold(step),
            "bring": lambda policy, swap, name, index: policy.bring(name, index),
            "close": lambda policy, swap: policy.close(),
        }

    def make(self, message: Message) -> None:
        """Makes one step, once all are ready for it.

        What process 0 does not find in a checkpoint, or finds diverged, it finds for all, and decides. Of any other
        failure it is told, and then stops everybody.
        """
        fields = dict(message.fields)
        self._hosts.channel.send("ready")
        self._hosts.within("go")
        try:
            if message.kind == "policy":
                self._policies.append(self._make(RunConfig.from_values(fields["settings"])))
                return
            if message.kind == "train":
                fields["traces"] = unpacked(message.blobs[0]) if message.blobs else []
            policy, swap = self._policies[fields.pop("policy")]
            self._verbs[message.kind](policy, swap, **fields)
        except HostsError:
            raise
        except (CheckpointError, TrainingDiverged):
            return
        except Exception as error:
            self._hosts.channel.send("broken", text=f"{message.kind}: {type(error).__name__}: {error}")

    def close(self) -> None:
        """Gives the training states up."""
        for policy, _ in self._policies:
            policy.close()


def _train(policy: Policy, swap: Swap, traces: Sequence[Trace]) -> None:
    swap.suspend()
    policy.train(traces)


class Groups:
    """The groups that this process was handed."""

    def __init__(
        self,
        hosts: Follower,
        splits: Mapping[Split, Sequence[Task]],
        driver: Driver,
        runner: RolloutRunner,
        clock: BusyClock,
    ) -> None:
        self._hosts, self._driver, self._runner, self._clock = hosts, driver, runner, clock
        self._requests = Requests(splits)
        self._running: dict[int, dict[int, asyncio.Task[None]]] = {}

    def start(self, message: Message) -> None:
        """Begins a group; its traces are sent as they finish."""
        job, group = message.fields["job"], message.fields["group"]
        task = asyncio.create_task(self._run(message))
        self._running.setdefault(job, {})[group] = task
        task.add_done_callback(lambda task: self._ended(job, group))

    async def drop(self, job: int, group: int | None = None) -> None:
        """Cancels one group of a job; or all that is in flight of it, and says when nothing is."""
        if group is None:
            await self._cancel(job)
            self._hosts.channel.send("dropped", job=job)
        elif task := self._running.get(job, {}).get(group):
            task.cancel()

    async def close(self) -> None:
        """Cancels everything in flight, and ends what is kept warm."""
        for job in list(self._running):
            await self._cancel(job)
        await self._runner.close()

    def _ended(self, job: int, group: int) -> None:
        del self._running[job][group]
        if not self._running[job]:
            del self._running[job]

    async def _cancel(self, job: int) -> None:
        tasks = list(self._running.get(job, {}).values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, message: Message) -> None:
        fields, send = message.fields, self._hosts.channel.send
        place = {"job": fields["job"], "group": fields["group"]}
        requests = [self._requests.read(request) for request in fields["requests"]]
        source, budgets = bytes(message.blobs[0]).decode(), Budgets(**fields["budgets"])
        try:
            async with aclosing(self._runner.run(source, requests, budgets=budgets)) as traces:
                async for trace in traces:
                    send("trace", packed([trace]), **place)
            send("done", counters=self._driver.stats(), busy_seconds=self._clock.seconds, **place)
        except HostsError:
            return  # process 0 is gone, and the channel says so
        except Exception as error:
            send("failed", error=type(error).__name__, text=str(error), **place)
