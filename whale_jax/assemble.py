"""From settings to a run: every input is read and checked first, then the heavy parts are built."""

import asyncio
import contextlib
import dataclasses
import io
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from harness_search.contract import (
    Budgets,
    CallRefused,
    HarnessError,
    TaskView,
    ToolCallData,
    check_source,
    read_info,
)
from harness_search.proposers import build
from harness_search.proposers.base import Proposer, ProposerSettingsError
from harness_search.sandbox.backends import Backend, SandboxUnavailable, detect
from harness_search.sandbox.scripted import ScriptedHost
from harness_search.sandbox.worker import HarnessWorker
from harness_search.validate import ScriptedEpisode, SearchSpace, Validator, prompt_only_errors
from whale_jax.config import ConfigError, RunConfig
from whale_jax.domains.domain import CountTokens, Domain
from whale_jax.domains.registry import load_domain
from whale_jax.domains.task import Split, Task, TaskError
from whale_jax.hosts.checkpoints import make_checkpoints
from whale_jax.hosts.hosts import Alone, Hosts, MeanBusy
from whale_jax.hosts.rollouts import over_all_hosts
from whale_jax.mesh import make_placement, require_devices
from whale_jax.pair import Pair
from whale_jax.policy import Initial, Policy
from whale_jax.qwen3_5.chat import ChatCodec
from whale_jax.qwen3_5.config import ConfigError as CheckpointConfigError
from whale_jax.qwen3_5.convert import CheckpointError, load_checkpoint
from whale_jax.qwen3_5.params import cast_params
from whale_jax.qwen3_5.remat import Remat
from whale_jax.report.account import Meter
from whale_jax.report.busy import BusyClock, ClockedEngine, ClockedTrainStep
from whale_jax.report.progress import Progress
from whale_jax.rollout.runner import RolloutLimits, RolloutRunner
from whale_jax.rollout.tool_calls import parse
from whale_jax.run import Run
from whale_jax.rundir import Inputs
from whale_jax.schedule import Schedule, make_schedule
from whale_jax.serving.driver import Driver, Sampling, ServingError, make_driver
from whale_jax.serving.replicas import replica_devices
from whale_jax.settings import TrainingSettings
from whale_jax.stages import ClockedDomain, ClockedProposer, StageClock
from whale_jax.storage.home import Home
from whale_jax.storage.inputs import local_file, local_folder
from whale_jax.training.fingerprint import fingerprint
from whale_jax.training.optimizer import OptimizerName, OptimizerSettings, make_optimizer
from whale_jax.training.sampler import TaskSampler


@dataclasses.dataclass(frozen=True)
class Parts:
    """What a run is made of, read and checked."""

    domain: Domain
    splits: Mapping[Split, Sequence[Task]]
    schedule: Schedule
    initial: Initial
    codec: ChatCodec
    harness: str
    backend: Backend
    inputs: Inputs


def read_parts(config: RunConfig) -> Parts:
    """Reads every input, cheapest first.

    Raises:
      ConfigError: an input is missing or wrong; the message names it and says what to do.
    """
    directory = checkpoint_directory(config.model.checkpoint, config.run.work_dir, config.run.domain)
    shardings = require_devices(config, directory)
    try:
        codec = ChatCodec.from_dir(directory)
        domain = read_domain(config, codec.count_tokens)
    except (CheckpointConfigError, CheckpointError, OSError) as error:
        raise ConfigError(f"--checkpoint={directory}: {error}") from error
    except TaskError as error:
        raise ConfigError(str(error)) from error
    harness = read_harness(config.model.harness, config.run.work_dir) if config.model.harness else domain.h0
    splits = {split: _limited(domain, split, config) for split in Split}
    trains = config.schedule.schedule != "harness_only"
    if trains and config.rollout.prompts_per_step > len(splits[Split.WEIGHT]):
        raise ConfigError(
            f"--prompts_per_step={config.rollout.prompts_per_step}: the weight split holds {len(splits[Split.WEIGHT])} "
            "tasks, and those of a step are all different; lower it, or give more tasks"
        )
    try:
        backend = detect(config.rollout.sandbox)
        if config.model.harness:
            asyncio.run(_load_once(harness, backend))
    except SandboxUnavailable as error:
        raise ConfigError(f"--sandbox={config.rollout.sandbox}: {error}") from error
    except HarnessError as error:
        raise ConfigError(f"--harness={config.model.harness} does not load in the sandbox: {error}") from error
    try:
        model_config, params = load_checkpoint(directory, shardings=shardings)
    except (CheckpointConfigError, CheckpointError, OSError) as error:
        raise ConfigError(f"--checkpoint={directory}: {error}") from error
    ids = max(codec.vocab_size, 1 + max(codec.control_ids))
    if ids > model_config.vocab_size:
        raise ConfigError(
            f"--checkpoint={directory}: tokenizer.json has {ids} ids, the model embeds {model_config.vocab_size}; "
            "the tokenizer is another model's"
        )
    _replica_devices(config.rollout.replicas)
    weights = fingerprint(params)
    return Parts(
        domain=domain,
        splits=splits,
        schedule=make_schedule(
            config.schedule,
            num_tasks=len(splits[Split.WEIGHT]),
            prompts_per_step=config.rollout.prompts_per_step,
        ),
        initial=Initial(directory, model_config, params, weights),
        codec=codec,
        harness=harness,
        backend=backend,
        inputs=Inputs.of(
            data=domain.data_hash,
            harness=harness,
            weights=weights,
            checkpoint=directory,
            template=codec.template_sha256,
        ),
    )


def read_domain(config: RunConfig, count_tokens: CountTokens) -> Domain:
    """The domain of a run with its tasks. Raises TaskError and, where it runs code itself, SandboxUnavailable."""
    task_dir = config.data.task_dir
    return load_domain(
        config.run.domain,
        sandbox=config.rollout.sandbox,
        task_dir=str(local_folder("task_dir", task_dir, config.run.work_dir)) if task_dir else None,
        max_bad_rows=config.data.max_bad_rows,
        allow_overlap=config.data.allow_overlap,
        count_tokens=count_tokens,
        **config.searchqa_options(),
    )


def make_rollouts(config: RunConfig, parts: Parts, clock: BusyClock) -> tuple[Driver, RolloutRunner]:
    """The driver, not started yet, with the initial weights in its engines, and the runner of episodes on it.

    Args:
      clock: is told when an engine runs.

    Raises:
      ConfigError: the rollout driver is not installed, or there are fewer devices than replicas.
    """
    rollout = config.rollout
    dtype = jnp.dtype(config.model.compute_dtype)
    serving_params = cast_params(parts.initial.params, dtype)
    engines = [
        ClockedEngine(
            parts.initial.config,
            serving_params,
            slots=rollout.slots,
            max_len=rollout.max_len,
            stop_ids=parts.codec.stop_ids,
            extend_chunk=rollout.extend_chunk,
            decode_steps=rollout.decode_steps,
            max_top_k=rollout.top_k,
            compute_dtype=dtype,
            device=device,
            clock=clock,
        )
        for device in _replica_devices(rollout.replicas)
    ]
    try:
        driver: Driver = make_driver(rollout.rollout_driver, *engines)
    except ServingError as error:
        raise ConfigError(str(error)) from error
    runner = RolloutRunner(
        driver,
        parts.codec,
        parts.domain,
        parts.backend,
        run_seed=config.run.seed,
        sampling=_sampling(config),
        thinking=rollout.thinking,
        concurrency=rollout.concurrency,
        limits=RolloutLimits(window=rollout.max_len),
        protocol="paper" if rollout.unclosed_thinking == "raw" else "honest",
    )
    return driver, runner


def make_policy(
    config: RunConfig,
    parts: Parts,
    directory: Path,
    clock: BusyClock,
    hosts: Hosts | None = None,
    home: Home | None = None,
) -> Policy:
    """The policy of the run in `directory`, at its initial weights; nothing is compiled or written yet.

    Args:
      clock: is told when it is trained.
      hosts: the processes of the run, default: this one alone. All of them make one.
      home: of `directory`; default: what is there counts.
    """
    training = config.training
    placement = make_placement(config, parts.initial.config)
    lanes = placement is None and jax.default_backend() == "cpu"
    train_step = ClockedTrainStep(
        parts.initial.config,
        make_optimizer(optimizer_settings(training)),
        sampling=_sampling(config),
        remat=Remat.of(config.model.remat),
        compute_dtype=jnp.dtype(config.model.compute_dtype),
        workers=jax.local_device_count() if lanes else 0,
        placement=placement,
        max_grad_norm=training.max_grad_norm,
        clock=clock,
    )
    sampler = TaskSampler([task.id for task in parts.splits[Split.WEIGHT]], seed=config.run.seed)
    hosts = hosts or Alone()
    kept = make_checkpoints(hosts, directory / "checkpoints", training.keep_last, training.keep_every, home)
    unfinished = make_checkpoints(hosts, directory / "unfinished", keep_last=1, home=home)
    return Policy(parts.initial, train_step, sampler, kept, unfinished, training, hosts, hosts.policy(config))


def optimizer_settings(training: TrainingSettings) -> OptimizerSettings:
    """The optimizer's part of the training settings."""
    return OptimizerSettings(
        name=OptimizerName(training.optimizer),
        learning_rate=training.learning_rate,
        b1=training.adam_b1,
        b2=training.adam_b2,
        weight_decay=training.weight_decay,
        clip_norm=training.clip_norm,
    )


def _sampling(config: RunConfig) -> Sampling:
    return Sampling(config.rollout.temperature, config.rollout.top_p, config.rollout.top_k)


@contextlib.contextmanager
def assemble(
    config: RunConfig,
    parts: Parts,
    directory: Path,
    progress: Progress,
    hosts: Hosts | None = None,
    home: Home | None = None,
) -> Iterator[Run]:
    """The run, with its engine started; everything is stopped when the context ends.

    Args:
      hosts: the processes of the run, of which this one is process 0; default: there are no others.
      home: of `directory`; default: what is there counts.

    Raises:
      ConfigError: the rollout driver is not installed, or the proposer lacks something that it needs.
    """
    validator = _validator(config, parts)
    stages = StageClock()
    proposer = ClockedProposer(make_proposer(config, parts.domain, parts.backend, validator), stages)
    clock = BusyClock()
    domain = ClockedDomain(parts.domain, stages).as_domain()
    driver, local = make_rollouts(config, dataclasses.replace(parts, domain=domain), clock)
    hosts = hosts or Alone()
    runner = over_all_hosts(local, hosts, budgets=episode_budgets(config), episodes=config.rollout.concurrency)
    initial_pair = Pair(0, parts.initial.weights, parts.harness)

    @contextlib.contextmanager
    def make(
        directory: Path, config: RunConfig, schedule: Schedule, progress: Progress, home: Home | None = None
    ) -> Iterator[Run]:
        run = Run(
            config=config,
            directory=directory,
            domain=parts.domain,
            splits=parts.splits,
            schedule=schedule,
            policy=make_policy(config, parts, directory, clock, hosts, home),
            initial_pair=initial_pair,
            driver=driver,
            codec=parts.codec,
            runner=runner,
            budgets=episode_budgets(config),
            proposer=proposer,
            validator=validator,
            progress=progress,
            stages=stages,
            meter=Meter(
                parts.initial.config,
                lambda: hosts.totals(driver.stats()),
                MeanBusy(clock, hosts),
                progress.seconds,
            ),
            scratch=lambda where, settings, rule: make(where, settings, rule, Progress(stream=io.StringIO())),
            home=home,
        )
        try:
            yield run
        finally:
            run.close()

    with driver, make(directory, config, parts.schedule, progress, home) as run:
        yield run


def _replica_devices(replicas: int) -> list[Any]:
    try:
        return replica_devices(replicas)
    except ValueError as error:
        raise ConfigError(f"--replicas={replicas}: {error}") from error


DEMO_FOLDERS = {"math": "math/checkpoint", "chess": "chess/checkpoint"}
"""Domains that have a demo model of their own, in whale_jax/demo; any other has SearchQA's."""


def checkpoint_directory(path: str | None, work_dir: str | None = None, domain: str = "searchqa") -> Path:
    """The folder named (of one in a bucket, a copy below `work_dir`), or the domain's embedded demo checkpoint.

    Raises:
      ConfigError: it is not there.
      BucketUnreachable: its bucket cannot be reached.
    """
    demo = Path(str(resources.files("whale_jax.demo"))) / DEMO_FOLDERS.get(domain, "checkpoint")
    directory = local_folder("checkpoint", path, work_dir) if path else demo
    if not (directory / "config.json").is_file():
        raise ConfigError(f"--checkpoint={directory}: no config.json there; name a Hugging Face checkpoint folder")
    return directory


def read_harness(path: str, work_dir: str | None = None) -> str:
    """The source of a harness file that obeys the contract; of one in a bucket, a copy is kept below `work_dir`.

    Raises:
      ConfigError: it cannot be read or breaks the contract; every breach is named.
    """
    try:
        source = local_file("harness", path, work_dir).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--harness={path}: cannot be read: {error}") from error
    problems = check_source(source)
    if problems:
        raise ConfigError(f"--harness={path} does not obey the harness contract (WORKSPACE.md): {'; '.join(problems)}")
    return source


async def _load_once(source: str, backend: Backend) -> None:
    """Runs a harness file's top level in the sandbox; raises HarnessError or SandboxUnavailable."""
    async with await HarnessWorker.start(source, backend=backend):
        pass


def episode_budgets(config: RunConfig) -> Budgets:
    """What one episode may use."""
    rollout = config.rollout
    return Budgets(rollout.assistant_tokens, rollout.max_turns, rollout.max_tool_calls, rollout.episode_seconds)


def make_proposer(config: RunConfig, domain: Domain, backend: Backend, check: Validator) -> Proposer:
    """The proposer that the settings name; catalogues are cut to the edits that the search space allows.

    Raises:
      ConfigError: a package, program or key that it needs is missing, or its settings contradict each other.
    """
    edits = domain.catalogue
    if config.search.search_space == SearchSpace.PROMPT_ONLY:
        changed = {edit.name: edit.apply(domain.h0) for edit in edits}
        edits = [edit for edit in edits if (source := changed[edit.name]) and not prompt_only_errors(source, domain.h0)]
    name = config.search.proposer
    try:
        return build.make_proposer(
            name,
            config.proposer,
            catalogue=edits,
            skill=domain.skill,
            search_space=SearchSpace(config.search.search_space),
            backend=backend,
            check=check,
        )
    except ProposerSettingsError as error:
        raise ConfigError(f"--proposer={name}: {error}") from error


def scripted_host(domain: Domain) -> ScriptedHost:
    """A host for one episode without a model: replies and tool results are those of the domain's script."""

    def env(name: str, args: list[Any], kwargs: dict[str, Any]) -> str:
        if name not in domain.tool_names:
            raise CallRefused(f"env has no {name!r}; it has {', '.join(sorted(domain.tool_names))}")
        return domain.scripted_result

    tools = read_info(domain.h0).tools

    def calls(text: str) -> list[ToolCallData]:
        return [{"name": call.name, "arguments": dict(call.arguments)} for call in parse(text, tools)]

    return ScriptedHost(domain.scripted_replies, env, parse_calls=calls)


def _limited(domain: Domain, split: Split, config: RunConfig) -> Sequence[Task]:
    limit = getattr(config.data, f"{split.value}_tasks")
    tasks = domain.tasks(split)
    if limit > len(tasks):
        raise ConfigError(
            f"--{split.value}_tasks={limit}: the {split.value} split holds {len(tasks)} tasks; 0 takes all of them"
        )
    return tasks[:limit] if limit else tasks


def _validator(config: RunConfig, parts: Parts) -> Validator:
    """Candidates must pass one episode with a scripted model, on a made-up task."""
    texts = [text for task in parts.splits[Split.HARNESS] for text in task.inputs.values() if isinstance(text, str)]
    return Validator(
        h0=parts.harness,
        search_space=SearchSpace(config.search.search_space),
        backend=parts.backend,
        scripted=ScriptedEpisode(
            task=TaskView("validation", dict.fromkeys(parts.splits[Split.HARNESS][0].inputs, "What is asked here?")),
            host=lambda: scripted_host(parts.domain),
            budgets=episode_budgets(config),
        ),
        harness_task_texts=texts,
    )
