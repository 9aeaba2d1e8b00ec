"""A whole run in a second: engine, gradient and sandbox are stand-ins; loop, journal, checkpoints, archive and proposer
sessions are the real ones. What is sampled depends on the weights, the harness and the keys, as it does in a real run,
so a run that goes on from anything but what it left shows it.
"""

import hashlib
import io
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from harness_search.contract import Budgets
from harness_search.proposers.base import EmptySlot, Proposal, ProposerUsage
from harness_search.workspace import Workspace
from tests.whale_jax.rollout.conftest import BYTE, CONTROL, FakeCodec, FakeDomain, FakeDriver, FakeWorker
from whale_jax.alternate import alternate
from whale_jax.config import RunConfig
from whale_jax.domains.task import Split, Task
from whale_jax.domains.verdict import Verdict
from whale_jax.evaluation.evaluate import Evaluation
from whale_jax.hand_over import hand_over
from whale_jax.hosts.checkpoints import make_checkpoints
from whale_jax.hosts.hosts import Alone, Hosts, MeanBusy
from whale_jax.hosts.rollouts import over_all_hosts
from whale_jax.main import _alternate
from whale_jax.pair import Pair
from whale_jax.policy import Initial, Policy
from whale_jax.preemption import Preemption
from whale_jax.qwen3_5.config import Qwen35Config
from whale_jax.qwen3_5.sharding import FSDP, make_mesh, put
from whale_jax.report.account import Meter
from whale_jax.report.busy import BusyClock
from whale_jax.report.progress import Progress
from whale_jax.rollout.runner import RolloutLimits, RolloutRunner
from whale_jax.run import Run
from whale_jax.rundir import Inputs
from whale_jax.schedule import make_schedule
from whale_jax.serving.driver import Sampling
from whale_jax.serving.weights import WeightSwap
from whale_jax.stages import StageClock
from whale_jax.storage.home import Home
from whale_jax.training.fingerprint import fingerprint
from whale_jax.training.sampler import TaskSampler
from whale_jax.training.step import TrainState
from whale_jax.training.step_metrics import StepMetrics

THINK_END = next(token for token, text in CONTROL.items() if text == "</think>")
H0 = "A = 0\n"
INPUTS = Inputs(data="d", harness="h", weights="w", tokenizer="t", template="c")
SETTINGS = {
    "weight_tasks": 6, "prompts_per_step": 2, "samples_per_prompt": 2, "weight_budget_epochs": 5 / 3,
    "weight_phase_epochs": 1.0, "checkpoint_every": 2, "search_phase_iterations": 1, "candidates": 2, "minibatch": 2,
    "row_len": 2000, "rows": 1, "max_len": 2000, "validation_samples": 2, "test_samples": 2, "keep_every": 1,
}  # fmt: skip
"""Two cycles: three steps in two commits, an iteration; two steps in two commits, an iteration."""
MODEL = Qwen35Config(
    vocab_size=40, hidden_size=16, intermediate_size=24, num_layers=4, num_heads=2, num_kv_heads=1, head_dim=8,
    linear_key_heads=2, linear_value_heads=2, linear_key_dim=8, linear_value_dim=8, rope_theta=1e4, rotary_fraction=0.5,
)  # fmt: skip
PARAMS = {"embed": np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4), "final_norm": np.ones(4, np.float32)}


def settings(**changes: Any) -> RunConfig:
    """The configuration of a small run."""
    return RunConfig.from_values({**SETTINGS, **changes})


class Driver(FakeDriver):
    """Its samples depend on the weights that it was given."""

    weights = ""
    suspensions = 0

    def suspend(self) -> None:
        self.suspensions += 1

    def set_weights(self, params: Any, version: int) -> None:
        self.weights, self.version = fingerprint(params), version

    def stats(self) -> dict[str, int]:
        return {"computed_tokens": 2 * len(self.sessions), "sampled_tokens": len(self.sessions)}

    def _keyed(self, session: Any, key: tuple[int, int], max_tokens: int) -> list[int]:
        seen = repr((key, self.weights, session.ids)).encode()
        digest = hashlib.blake2b(seen, digest_size=8).digest()
        return [THINK_END, *(BYTE + 32 + byte % 64 for byte in digest[: 2 + digest[0] % 6]), FakeCodec.special.im_end]


class OnThisHost(Driver):
    """Takes the weights from wherever they are, as an engine does."""

    def set_weights(self, params: Any, version: int) -> None:
        (served,) = WeightSwap(jax.local_devices()[:1], form=lambda same: same)(params)
        super().set_weights(served.params, version)


class Domain(FakeDomain):
    """Right are answers of some bytes, so that rewards vary with everything that a sample depends on."""

    name, data_hash, figures = "small", "d", {"length": "mean length"}

    def verify(self, task: Task, answer_text: str | None, *, protocol: str = "honest") -> Verdict:
        text = (answer_text or "").encode()
        return Verdict(sum(text) % 2, text.decode("latin-1"), "")  # type: ignore[arg-type]

    def behaviour(self, tasks: Any, traces: Any, codec: Any) -> dict[str, float]:
        return {"length": float(np.mean([trace.sampled_tokens for trace in traces]))}


class Gradient:
    """Stands in for `TrainStep`: pulls the weights towards a number that the batch decides."""

    row_multiple = 1

    def init(self, params: Any) -> TrainState:
        params = jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), params)
        return TrainState(params, {"m": jax.tree.map(jnp.zeros_like, params)}, jnp.zeros((), jnp.int32))

    def place(self, params: Any) -> Any:
        return jax.tree.map(jnp.asarray, params)

    def shapes(self, params: Any) -> TrainState:
        return jax.eval_shape(self.init, params)

    def compile_warm_up(self, shapes: Any) -> None:
        pass

    def compile_update(self, shapes: Any) -> None:
        pass

    def warm_up(self, state: TrainState, shapes: Any) -> None:
        pass

    def update(self, state: TrainState, batches: Any) -> tuple[TrainState, StepMetrics]:
        pull = np.float32(sum(int(batch.tokens.sum()) for batch in batches) % 1009) / 1009
        moments = jax.tree.map(lambda m, leaf: 0.9 * m + 0.1 * (pull - leaf), state.opt_state["m"], state.params)
        params = jax.tree.map(lambda leaf, m: leaf + 0.1 * m, state.params, moments)
        tokens = sum(int(batch.weights.sum()) for batch in batches)
        return TrainState(params, {"m": moments}, state.step + 1), StepMetrics(1.0, 0.5, 1.0, tokens, None)


class OnAMesh(Gradient):
    """Its state is on all devices of all processes, divided where it can be."""

    def __init__(self, sizes: tuple[int, int, int]) -> None:
        self._mesh = make_mesh(*sizes, devices=jax.devices())

    def _sharding(self, leaf: Any) -> NamedSharding:
        return NamedSharding(self._mesh, PartitionSpec(*(None,) * (leaf.ndim - 1), *(FSDP,) * (leaf.ndim > 0)))

    def init(self, params: Any) -> TrainState:
        state = super().init(params)
        return jax.tree.map(lambda leaf: put(np.asarray(leaf), self._sharding(leaf)), state)

    def place(self, params: Any) -> Any:
        return self.init(params).params

    def shapes(self, params: Any) -> TrainState:
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=self._sharding(leaf)),
            jax.eval_shape(super().init, params),
        )


class Proposer:
    """Candidates of its seed alone; every third slot stays empty."""

    name = "seeded"

    async def propose(
        self, workspace: Workspace, *, iteration: int, slots: int, seed: int
    ) -> AsyncGenerator[Proposal | EmptySlot, None]:
        for slot in range(slots):
            if (seed + slot) % 3 == 2:
                yield EmptySlot(slot, "nothing came to mind")
            else:
                yield Proposal(slot, f"A = {(seed + slot) % 1000}\n", "000", "it helps")

    def usage(self, iteration: int) -> ProposerUsage:
        return ProposerUsage()


async def start_worker(source: str) -> FakeWorker:
    """A harness that says its own source to the model."""

    async def harness(host: Any, task: Any, seed: int) -> int | None:
        chat = await host.open_chat(source, [])
        await host.append(chat, "user", task.inputs["question"], None)
        return (await host.reply(chat, None))["id"]

    return FakeWorker(harness)


def tasks(split: Split) -> list[Task]:
    count = {Split.WEIGHT: 6}.get(split, 3)
    return [
        Task(f"{split.value}-{n}", "small", {"question": f"{split.value} {n}?"}, {"answers": ["x"]}, split)
        for n in range(count)
    ]


def small_rollouts(config: RunConfig) -> tuple[Driver, RolloutRunner]:
    """Driver and runner, as `assemble.make_rollouts` would make them."""
    driver = Driver(FakeCodec())
    domain: Any = Domain()
    runner = RolloutRunner(
        driver,  # type: ignore[arg-type]
        driver.codec,
        domain,
        None,  # type: ignore[arg-type]
        run_seed=config.run.seed,
        sampling=Sampling(),
        thinking=True,
        concurrency=2,
        limits=RolloutLimits(window=2000),
        start_worker=start_worker,
    )
    return driver, runner


def small_policy(
    directory: Path, config: RunConfig, hosts: Hosts, gradient: Any = None, home: Home | None = None
) -> Policy:
    """A policy, as `assemble.make_policy` would make it."""
    training = config.training
    return Policy(
        Initial(directory, MODEL, PARAMS, fingerprint(PARAMS)),
        gradient or Gradient(),
        TaskSampler([task.id for task in tasks(Split.WEIGHT)], seed=config.run.seed),
        make_checkpoints(hosts, directory / "checkpoints", training.keep_last, training.keep_every, home),
        make_checkpoints(hosts, directory / "unfinished", keep_last=1, home=home),
        training,
        hosts,
        hosts.policy(config),
    )


@contextmanager
def small_run(
    directory: Path,
    config: RunConfig,
    hosts: Hosts | None = None,
    gradient: Any = None,
    home: Home | None = None,
    proposer: Any = None,
) -> Iterator[Run]:
    """A run on `directory`, as `assemble` would make it."""
    directory.mkdir(exist_ok=True)
    hosts = hosts or Alone()
    driver, local = small_rollouts(config)
    budgets = Budgets(assistant_tokens=200, turns=4, tool_calls=3, wall_seconds=30.0)
    domain: Any = Domain()
    splits = {split: tasks(split) for split in Split}
    policy = small_policy(directory, config, hosts, gradient, home)

    async def valid(source: str, known: Any) -> list[str]:
        return []

    validator: Any = valid
    clock = BusyClock()
    progress = Progress(stream=io.StringIO())
    run = Run(
        config=config,
        directory=directory,
        domain=domain,
        splits=splits,
        schedule=make_schedule(config.schedule, num_tasks=6, prompts_per_step=config.rollout.prompts_per_step),
        policy=policy,
        initial_pair=Pair(0, fingerprint(PARAMS), H0),
        driver=driver,  # type: ignore[arg-type]
        codec=driver.codec,  # type: ignore[arg-type]
        runner=over_all_hosts(local, hosts, budgets=budgets, episodes=2),
        budgets=budgets,
        proposer=proposer or Proposer(),
        validator=validator,
        progress=progress,
        stages=StageClock(),
        meter=Meter(MODEL, lambda: hosts.totals(driver.stats()), MeanBusy(clock, hosts), 0.0),
        scratch=SimpleNamespace(),  # type: ignore[arg-type]
        home=home,
    )
    try:
        yield run
    finally:
        run.close()


def export(source: Path, weights: Any, out: Path) -> None:
    """In place of the conversion into a Hugging Face checkpoint."""
    out.mkdir()
    (out / "model").write_text(fingerprint(weights))


async def whole(run: Run, preemption: Preemption | None = None) -> Evaluation:
    """The run to its end, the returned pair handed over; `export` is to stand in for `hand_over.export_checkpoint`."""
    returned = await (alternate(run) if preemption is None else _alternate(run, preemption))
    best = returned.returned.pair
    hand_over(run.dir / "export", best, run.dir, lambda: run.policy.tensors_at(best.step))
    return returned.returned_test


def outcome(directory: Path) -> dict[str, bytes]:
    """Every byte that must not depend on how a run got there; the newest checkpoint by what its record says of it."""
    kept = [
        *directory.glob("journal/*.json"),
        *directory.glob("cycle_*/search/candidates/*/*"),
        *directory.glob("cycle_*/search/iterations/*"),
        *directory.glob("evals/*"),
        *(directory / "export").rglob("*"),
        *directory.glob("checkpoints/*/meta.json"),
    ]
    return {str(path.relative_to(directory)): path.read_bytes() for path in sorted(kept) if path.is_file()}
