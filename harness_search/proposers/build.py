"""Proposers by name, from flat settings: what a command line or a run's configuration holds."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from harness_search.proposers.base import Proposer, ProposerSettingsError
from harness_search.proposers.command import CommandProposer, CommandSettings
from harness_search.proposers.edits import Edit
from harness_search.proposers.gemini import GeminiProposer, GeminiSettings
from harness_search.proposers.limits import Prices, SessionLimits
from harness_search.proposers.offline import OfflineProposer
from harness_search.proposers.random_edit import RandomEditProposer
from harness_search.proposers.replay import ReplayProposer
from harness_search.proposers.toolbox import Check
from harness_search.sandbox.backends import Backend
from harness_search.validate import SearchSpace

NAMES = ("offline", "random_edit", "gemini", "command", "replay")


def option(default: Any, help: str) -> Any:
    """A field that becomes a flag; a number is at least 0.

    The metadata are those of a run's settings: `late` marks settings that came after runs were made without them.
    """
    number = isinstance(default, int | float) and not isinstance(default, bool)
    limits = {"at_least": 0 if number else None, "above": None}
    return field(default=default, metadata={"help": help, "operational": False, "late": True, **limits})


@dataclass(frozen=True)
class ProposerOptions:
    """Settings of the proposers that are not embedded. An empty text or 0 means none, or the proposer's default."""

    proposer_model: str = option("", "gemini: the model's name")
    proposer_vertex: bool = option(False, "gemini: use Vertex AI and its default credentials instead of an API key")
    proposer_project: str = option("", "gemini: project of Vertex AI")
    proposer_location: str = option("", "gemini: location of Vertex AI")
    proposer_base_url: str = option("", "gemini: another address of the API")
    proposer_thinking: str = option("default", "gemini: thinking level: default, minimal, low, medium or high")
    proposer_calls: int = option(100, "gemini: model calls per session")
    proposer_tool_calls: int = option(500, "gemini: tool calls per session")
    proposer_reply_tokens: int = option(65_536, "gemini: output tokens of one reply, thinking included")
    proposer_tokens: int = option(10_000_000, "gemini: tokens per session; 0: no limit")
    proposer_search_tokens: int = option(0, "gemini: tokens of all sessions of a search; 0: no limit")
    proposer_seconds: float = option(3600.0, "gemini, command: wall time of a session in seconds")
    proposer_dollars: float = option(0.0, "gemini: cost of a session; 0: no limit; needs prices")
    proposer_search_dollars: float = option(0.0, "gemini, command: cost of a search's sessions; 0: no limit")
    proposer_price_input: float = option(0.0, "gemini: dollars per million input tokens; 0: not known")
    proposer_price_output: float = option(0.0, "gemini: dollars per million output tokens; 0: not known")
    proposer_price_cached: float = option(0.0, "gemini: dollars per million cached tokens; 0: as other input")
    proposer_command: str = option("", "command: the agent's command line; {prompt} stands for the task")
    proposer_command_env: str = option("", "command: names of the variables the agent gets, separated by commas")
    proposer_command_readable: str = option("", "command: files and folders the agent may read, separated by commas")
    proposer_command_network: bool = option(True, "command: give the agent a proxy to public addresses")
    proposer_command_hosts: str = option("", "command: hosts it may reach though they are not public, by commas")
    proposer_cost_from: str = option("stdout", "command: where its cost stands: stdout, stderr, or a file in slots/")
    proposer_cost_pattern: str = option(
        "", "command: regular expression with a group named dollars, input_tokens or output_tokens"
    )
    replay_from: str = option("", "replay: folder of the recorded search, or of the run that holds it")


def manual() -> str:
    """The proposer's manual, WORKSPACE.md."""
    return resources.files("harness_search").joinpath("WORKSPACE.md").read_text("utf-8")


PROMPT_ONLY_NOTE = (
    "**This search is prompt-only.** A candidate may differ from candidate 000 in the texts of its "
    "`*_PROMPT` constants alone, with the same placeholders. Anything else makes it invalid.\n\n"
)


def make_proposer(
    name: str,
    options: ProposerOptions,
    *,
    catalogue: Sequence[Edit],
    skill: str,
    search_space: SearchSpace,
    backend: Backend,
    check: Check,
) -> Proposer:
    """The proposer of that name.

    Raises:
        ProposerSettingsError: the name is unknown, or something that it needs is missing; the message says what.
    """
    if search_space is SearchSpace.PROMPT_ONLY:
        skill = PROMPT_ONLY_NOTE + skill
    match name:
        case "offline":
            return OfflineProposer(catalogue)
        case "random_edit":
            return RandomEditProposer(catalogue)
        case "gemini":
            return _gemini(options, skill, backend, check)
        case "command":
            return _command(options, skill, backend)
        case "replay":
            if not options.replay_from:
                raise ProposerSettingsError("--proposer=replay needs --replay_from")
            return ReplayProposer(Path(options.replay_from))
    raise ProposerSettingsError(f"--proposer must be one of {', '.join(NAMES)}, got {name!r}")


def _gemini(options: ProposerOptions, skill: str, backend: Backend, check: Check) -> Proposer:
    if not options.proposer_model:
        raise ProposerSettingsError("--proposer=gemini needs --proposer_model")
    if bool(options.proposer_price_input) != bool(options.proposer_price_output):
        raise ProposerSettingsError("--proposer_price_input and --proposer_price_output belong together")
    prices = None
    if options.proposer_price_output:
        cached = options.proposer_price_cached or None
        prices = Prices(options.proposer_price_input, options.proposer_price_output, cached)
    settings = GeminiSettings(
        options.proposer_model,
        vertex=options.proposer_vertex,
        project=options.proposer_project or None,
        location=options.proposer_location or None,
        base_url=options.proposer_base_url or None,
        thinking_level=options.proposer_thinking,
    )
    limits = SessionLimits(
        model_calls=options.proposer_calls,
        tool_calls=options.proposer_tool_calls,
        reply_tokens=options.proposer_reply_tokens,
        tokens=options.proposer_tokens or None,
        seconds=options.proposer_seconds,
        dollars=options.proposer_dollars or None,
        search_tokens=options.proposer_search_tokens or None,
        search_dollars=options.proposer_search_dollars or None,
    )
    return GeminiProposer(
        settings, manual=manual(), skill=skill, backend=backend, check=check, limits=limits, prices=prices
    )


def _command(options: ProposerOptions, skill: str, backend: Backend) -> Proposer:
    try:
        argv = tuple(shlex.split(options.proposer_command))
    except ValueError as error:
        raise ProposerSettingsError(f"--proposer_command cannot be read: {error}") from None
    settings = CommandSettings(
        argv,
        seconds=options.proposer_seconds,
        environment=_listed(options.proposer_command_env),
        readable=_listed(options.proposer_command_readable),
        network=options.proposer_command_network,
        allow_hosts=_listed(options.proposer_command_hosts),
        cost_from=options.proposer_cost_from,
        cost_pattern=options.proposer_cost_pattern or None,
        search_dollars=options.proposer_search_dollars or None,
    )
    return CommandProposer(settings, manual=manual(), skill=skill, backend=backend)


def _listed(text: str) -> tuple[str, ...]:
    return tuple(one for part in text.split(",") if (one := part.strip()))
