"""Rollouts of any pair outside a run: the engine, runner and policy of a run, without its journal, budget or search."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax.numpy as jnp

from whale_jax.assemble import Parts, episode_budgets, make_policy, make_rollouts
from whale_jax.config import RunConfig
from whale_jax.domains.task import Task
from whale_jax.evaluation.evaluate import Evaluation, evaluation_from_traces, evaluation_requests
from whale_jax.pair import Pair
from whale_jax.policy import Policy
from whale_jax.qwen3_5.params import cast_params
from whale_jax.report.busy import BusyClock
from whale_jax.rollout.runner import EpisodeRequest, RolloutRunner
from whale_jax.rollout.trace import Trace
from whale_jax.run import require_coverage
from whale_jax.serving.driver import Driver


class PairServer:
    """Serves the pairs of one run (or one checkpoint and a harness) and scores them as the run would."""

    def __init__(self, config: RunConfig, parts: Parts, policy: Policy, driver: Driver, runner: RolloutRunner):
        self._parts = parts
        self._policy = policy
        self._driver = driver
        self._runner = runner
        self._budgets = episode_budgets(config)
        self._dtype = jnp.dtype(config.model.compute_dtype)
        self._step = 0

    def serve(self, pair: Pair) -> None:
        """Gives the engine the pair's weights.

        Raises:
            CheckpointError: their checkpoint is not kept, is damaged, or is not the one that the journal names.
        """
        if pair.step == self._step:
            return
        self._policy.committed(pair.step, pair.weights)
        params, version = self._policy.weights_at(pair.step)
        self._driver.set_weights(cast_params(params, self._dtype), version)
        self._step = pair.step

    async def rollout(self, pair: Pair, requests: Sequence[EpisodeRequest]) -> list[Trace]:
        """The episodes of `requests`, in their order. Raises as `serve` and `RolloutRunner.run` do."""
        self.serve(pair)
        return await self._runner.run_all(pair.harness, requests, budgets=self._budgets)

    async def evaluate(self, pair: Pair, tasks: Sequence[Task], *, samples: int) -> Evaluation:
        """mean@k on tasks of one split, with the keys of the run's own evaluations: its figures come out again.

        Raises:
            InfrastructureError: too few episodes could be scored.
        """
        requests = evaluation_requests(tasks, samples=samples, purpose=tasks[0].split.value)
        return self.evaluated(await self.rollout(pair, requests), tasks, samples=samples)

    def evaluated(self, traces: Sequence[Trace], tasks: Sequence[Task], *, samples: int) -> Evaluation:
        """What finished episodes on `tasks` come to, the domain's figures included. Raises InfrastructureError."""
        figures = self._parts.domain.behaviour(tasks, traces, self._parts.codec)
        evaluation = evaluation_from_traces(traces, k=samples, domain_figures=figures)
        require_coverage(evaluation.ledger, "", "see the log for what broke, and repeat the command")
        return evaluation

    async def close(self) -> None:
        """Ends the warm workers."""
        await self._runner.close()


@contextlib.contextmanager
def pair_server(config: RunConfig, parts: Parts, directory: Path) -> Iterator[PairServer]:
    """A server with its engine started; everything is stopped when the context ends.

    Args:
        directory: the run directory whose checkpoints are served; it need not exist where only the initial weights are.

    Raises:
        ConfigError: the rollout driver is not installed, or there are fewer devices than replicas.
    """
    clock = BusyClock()
    driver, runner = make_rollouts(config, parts, clock)
    with driver:
        yield PairServer(config, parts, make_policy(config, parts, directory, clock), driver, runner)
