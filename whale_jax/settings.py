"""The settings of a run by group: frozen dataclasses from which the command-line flags are generated.

A setting stands once: its name is the flag's name, its type and default are the field's, its help is in the field's
metadata. `config.RunConfig` holds them all and checks them. Sources: PAPER sections 2-5 for defaults at full size; the
defaults below are the SearchQA demo's, and `configs/demo_searchqa.flags` writes them out.
"""

import dataclasses
from typing import Any, Literal

DOMAINS = ("searchqa", "math", "chess")
"""The domains of this package; `domains.registry` loads them."""


def setting(
    default: Any,
    help: str,
    *,
    operational: bool = False,
    late: bool = False,
    at_least: float | None = None,
    above: float | None = None,
):
    """A field that becomes a flag.

    Args:
      default: the flag's default; its meaning in the help's terms.
      help: one line with units.
      operational: the setting changes how a run is carried out, not what it computes; it is outside the configuration
        hash, so a run
        may be resumed with another value.
      late: the setting came after runs were made without it: at its default it is not part of the configuration hash.
      at_least: smallest allowed value.
      above: largest forbidden value.
    """
    return dataclasses.field(
        default=default,
        metadata={"help": help, "operational": operational, "late": late, "at_least": at_least, "above": above},
    )


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """Where a run lives and what it is called."""

    domain: str = setting(
        "searchqa",
        f"the task domain: {', '.join(DOMAINS)}, or package.module:function, the loader of one of your own "
        "(docs/domains.md)",
    )
    seed: int = setting(0, "seed of the whole run: sampling, task order, proposer", at_least=0)
    run_dir: str | None = setting(
        None,
        "run directory, local or gs://bucket/prefix; default: a fresh numbered folder under runs/",
        operational=True,
    )
    work_dir: str | None = setting(
        None,
        "folder of the local copies of gs:// places; default: whale_jax in $XDG_CACHE_HOME or ~/.cache",
        operational=True,
    )
    bucket_seconds: float = setting(
        120.0,
        "gs://: seconds for which a request that fails is tried again before the job ends",
        operational=True,
        above=0,
    )
    stop_after: Literal["never", "weight_phase", "search_phase"] = setting(
        "never", "end the job at the first end of such a phase; the same command goes on from there", operational=True
    )
    fork_from: str | None = setting(
        None,
        "run_dir@entry: start from that journal entry of another run, with its checkpoint and random numbers",
        operational=True,
    )
    grace_seconds: float = setting(
        30.0, "on SIGTERM: seconds to save what was done since the last commit", operational=True, above=0
    )
    profile_step: int = setting(
        0,
        "training step that the JAX profiler traces, rollouts included, into profile/; 0: none",
        operational=True,
        at_least=0,
    )
    max_rollouts: int = setting(
        0,
        "budget of training and search rollouts together; no step or iteration that would pass it starts; 0: none",
        at_least=0,
    )


@dataclasses.dataclass(frozen=True)
class ModelSettings:
    """The policy and the initial harness. What a run depends on is their content, which is hashed, not their paths."""

    checkpoint: str | None = setting(
        None, "Hugging Face folder of the initial policy; default: the domain's embedded demo model", operational=True
    )
    harness: str | None = setting(None, "file of the initial harness; default: the domain's h0", operational=True)
    compute_dtype: Literal["float32", "bfloat16"] = setting("float32", "dtype of activations and of serving weights")
    remat: Literal["none", "dots", "layer", "group"] = setting(
        "layer",
        "what the backward pass computes anew: nothing; all but products with weight matrices; each layer, from its "
        "input; each group of four, from its input",
    )


@dataclasses.dataclass(frozen=True)
class DataSettings:
    """Task files. Without them, the domain's embedded demo tasks are used."""

    task_dir: str | None = setting(
        None,
        "folder with weight.jsonl, harness.jsonl, validation.jsonl and test.jsonl (SearchQA: corpus.jsonl too); "
        "default: demo tasks",
        operational=True,
    )
    max_bad_rows: float = setting(
        0.0, "share of unreadable rows of a task file above which a run does not start", at_least=0
    )
    allow_overlap: bool = setting(False, "let D_weight and D_harness share tasks (the paper's Math setting)")
    weight_tasks: int = setting(384, "tasks of D_weight that are used (the first by hash order); 0: all", at_least=0)
    harness_tasks: int = setting(128, "tasks of D_harness that are used; 0: all", at_least=0)
    validation_tasks: int = setting(96, "validation tasks that are used; 0: all", at_least=0)
    test_tasks: int = setting(200, "test tasks that are used; 0: all", at_least=0)
    retriever_url: str | None = setting(
        None,
        "searchqa: retrieval service (http://host:port/retrieve) in place of the folder's corpus",
        operational=True,
    )


@dataclasses.dataclass(frozen=True)
class JudgeSettings:
    """The LLM judge of SearchQA. Without a model, answers are compared by normalised exact match."""

    judge_model: str | None = setting(None, "searchqa: Gemini model that judges answers; its key is in GEMINI_API_KEY")
    judge_prompt: str | None = setting(None, "searchqa: file of the judge's prompt; default: this project's own")
    judge_cache: str | None = setting(None, "searchqa: file that keeps the judge's verdicts", operational=True)


@dataclasses.dataclass(frozen=True)
class ScheduleSettings:
    """When to switch between weights and harness (PAPER section 2)."""

    schedule: Literal["fixed", "adaptive", "stagewise", "weight_only", "harness_only", "probe"] = setting(
        "fixed", "rule that ends a phase; probe: fixed phases, each of the kind that a probe finds to gain more"
    )
    weight_budget_epochs: float = setting(1.125, "epochs over D_weight in the whole run", above=0)
    weight_phase_epochs: float = setting(0.5625, "fixed: epochs of a weight phase (E)", above=0)
    search_budget_iterations: int = setting(
        6, "stagewise, harness_only, probe: search iterations in the whole run", at_least=1
    )
    search_phase_iterations: int = setting(3, "fixed: iterations of a search phase (I)", at_least=1)
    patience_epochs: float = setting(0.2, "adaptive: smoothing window, burn-in and patience of a weight phase", above=0)
    patience_iterations: int = setting(2, "adaptive: iterations without a new best that end a search phase", at_least=1)
    min_iterations: int = setting(6, "adaptive: smallest number of iterations of a search phase", at_least=1)
    max_iterations: int = setting(15, "adaptive: largest number of iterations of a search phase", at_least=1)
    count_incoming_as_iteration: bool = setting(
        False, "count the evaluation of the incoming harness as iteration 1, as the authors' release does"
    )
    final_search: bool = setting(True, "a last weight phase cut short by the budget still gets its search phase")
    probe_steps: int = setting(
        2, "probe: training steps on the weights alone, beside one search iteration", late=True, at_least=1
    )


@dataclasses.dataclass(frozen=True)
class RolloutSettings:
    """How trajectories are sampled."""

    prompts_per_step: int = setting(24, "tasks per training step", at_least=1)
    samples_per_prompt: int = setting(8, "trajectories per task (G)", at_least=1)
    temperature: float = setting(1.0, "sampling temperature; 0: greedy", at_least=0)
    top_p: float = setting(1.0, "nucleus share of probability", above=0)
    top_k: int = setting(20, "most likely tokens kept", at_least=1)
    thinking: bool = setting(True, "open the think block in the generation prompt")
    unclosed_thinking: Literal["no_answer", "raw"] = setting(
        "no_answer",
        "a reply whose thinking never closes: it holds no answer, or its raw text is searched (the paper's protocol)",
    )
    assistant_tokens: int = setting(192, "sampled tokens per episode", at_least=1)
    max_turns: int = setting(6, "assistant turns per episode, the cap that no harness passes", at_least=1)
    max_tool_calls: int = setting(12, "tool calls per episode", at_least=0)
    episode_seconds: float = setting(120.0, "wall-clock limit of an episode in seconds", above=0)
    max_len: int = setting(768, "window of one chat in tokens", at_least=16)
    replicas: int = setting(
        0, "engines, one per device (on a CPU all on the first); 0: for all devices", operational=True, at_least=0
    )
    slots: int = setting(32, "sequences that one engine decodes together", operational=True, at_least=1)
    concurrency: int = setting(64, "episodes in flight on this host", operational=True, at_least=1)
    extend_chunk: int = setting(32, "tokens per row of one extend step", at_least=1)
    decode_steps: int = setting(8, "decode steps between two looks of the host", operational=True, at_least=1)
    rollout_driver: Literal["scheduler", "jetstream"] = setting(
        "scheduler", "what drives the engine: the rollout scheduler or JetStream's orchestrator", operational=True
    )
    sandbox: Literal["auto", "bubblewrap", "landlock", "none"] = setting(
        "auto", "cage of harness code; none is unsafe and is written into every report", operational=True
    )


@dataclasses.dataclass(frozen=True)
class TrainingSettings:
    """RSFT (PAPER section 3)."""

    accept: Literal["honest", "paper"] = setting(
        "honest", "honest: reward 1 and the returned reply ended by itself; paper: reward > 0.5"
    )
    optimizer: Literal["adamw", "lion", "adafactor"] = setting(
        "adamw",
        "update rule: adamw, the paper's (8 bytes of state per parameter); lion (2); adafactor (about none)",
        late=True,
    )
    learning_rate: float = setting(1e-3, "step size, constant", above=0)
    adam_b1: float = setting(0.9, "adamw, lion: first-moment decay (open in the paper)", at_least=0)
    adam_b2: float = setting(0.95, "adamw, lion: second-moment decay (open in the paper)", at_least=0)
    weight_decay: float = setting(0.0, "decoupled weight decay (open in the paper)", at_least=0)
    clip_norm: float = setting(1.0, "global gradient norm above which it is scaled down; 0: never", at_least=0)
    max_grad_norm: float = setting(
        0.0,
        "global gradient norm above which training is taken to diverge: the phase stops; 0: only when it is not finite",
        operational=True,
        at_least=0,
    )
    minibatch: int = setting(32, "trajectories per optimizer step", at_least=1)
    row_len: int = setting(768, "tokens of a packed row", at_least=16)
    rows: int = setting(4, "packed rows of a micro-batch", at_least=1)
    pack_shapes: int = setting(
        1,
        "shapes that a micro-batch may have: 1: --rows rows of --row_len; more: as many positions in fewer, longer "
        "rows, and halves of that",
        late=True,
        at_least=1,
    )
    checkpoint_every: int = setting(4, "training steps between two commits of a weight phase", at_least=1)
    keep_last: int = setting(2, "newest checkpoints kept, beside the best pair's", operational=True, at_least=1)
    keep_every: int = setting(
        0,
        "checkpoints of steps that are a multiple of this are kept for ever, so that --fork_from can start there; "
        "0: none",
        operational=True,
        at_least=0,
    )


@dataclasses.dataclass(frozen=True)
class MeshSettings:
    """The chips that training is divided over, and the processes that have them (docs/operations.md, Many hosts)."""

    mesh_data: int = setting(
        0,
        "mesh of all devices that training is divided over: copies of the weights; 0 in all three: no mesh, one device "
        "trains, on CPUs with a thread for each device",
        operational=True,
        at_least=0,
    )
    mesh_fsdp: int = setting(
        0, "mesh: parts of the weights and of the rows; 0 counts as 1 beside the others", operational=True, at_least=0
    )
    mesh_tensor: int = setting(
        0,
        "mesh: parts of heads, features and vocabulary; 0 counts as 1 beside the others",
        operational=True,
        at_least=0,
    )

    num_processes: int = setting(
        1,
        "processes of this run, each with the same command and flags; more than 1 need a mesh, and find each other as "
        "on a TPU pod, or by --coordinator_address and --process_id",
        operational=True,
        at_least=1,
    )
    coordinator_address: str | None = setting(
        None, "host:port where process 0 is to be found; default: JAX finds the processes itself", operational=True
    )
    process_id: int = setting(
        0, "with --coordinator_address: which process this is, from 0", operational=True, at_least=0
    )
    host_timeout_seconds: float = setting(
        60.0, "a process that gave no sign of life for so long is lost: all stop", operational=True, at_least=1
    )

    @property
    def sizes(self) -> tuple[int, int, int] | None:
        """Of data, fsdp and tensor; None without a mesh."""
        given = (self.mesh_data, self.mesh_fsdp, self.mesh_tensor)
        return (max(1, given[0]), max(1, given[1]), max(1, given[2])) if any(given) else None


@dataclasses.dataclass(frozen=True)
class SearchSettings:
    """Meta-Harness (PAPER section 4)."""

    search_space: Literal["full", "prompt_only"] = setting(
        "full", "what a candidate may change: any code, or prompt texts alone"
    )
    proposer: Literal["offline", "random_edit", "gemini", "command", "replay"] = setting(
        "offline",
        "who rewrites the harness: catalogue edits chosen by failed traces, an edit at random (its control), a hosted "
        "model, an agent's command line, or a recorded search",
    )
    candidates: int = setting(3, "candidates per iteration (M)", at_least=1)
    acceptance: Literal["archive_max", "paired"] = setting(
        "archive_max",
        "rule that picks the archive's best: the best search score, or a challenger proved on fresh rollouts",
    )
    confirm_rollouts: int = setting(
        4, "paired: fresh rollouts per task and harness before a challenger is accepted", late=True, at_least=1
    )


@dataclasses.dataclass(frozen=True)
class EvaluationSettings:
    """Periodic validation and the sealed test."""

    validation_samples: int = setting(2, "samples per validation task", at_least=1)
    test_samples: int = setting(8, "samples per test task (mean@8)", at_least=1)
    eval_every: int = setting(
        0, "training steps between two evaluations inside a weight phase; 0: at phase ends only", at_least=0
    )
    select_on: Literal["validation", "test"] = setting("validation", "split that picks the returned pair")
    test_schedule: Literal["end", "always"] = setting(
        "end",
        "when test is scored: initial and returned pair once at the end, or at every evaluation (the paper's protocol)",
    )
