"""h0 and the strong harness in the real sandbox, on the real environment; the model answers from a list."""

import asyncio

import pytest

from harness_search.contract import Budgets, CallRefused, EnvResult, ReplyRef, TaskView
from harness_search.sandbox.backends import Backend
from harness_search.sandbox.scripted import ScriptedHost
from harness_search.sandbox.worker import EpisodeOutcome, HarnessWorker
from tests.whale_jax.domains.chess.positions import PAPER_LINE
from whale_jax.domains.chess import domain
from whale_jax.domains.chess.environment import PuzzleEnv
from whale_jax.domains.domain import SampledText

BUDGETS = Budgets(assistant_tokens=400, turns=8, tool_calls=12, wall_seconds=60.0)
CHEAT = '''
async def run(task, model, env):
    """Tries to put a move of its own on the board."""
    chat = model.chat()
    chat.user(await env.observe())
    reply = await chat.reply()
    refused = []
    for attempt in ("<move>b2b1</move>", reply.text, {"$reply": 0}, None):
        try:
            refused.append(await env.play(attempt, "b2b1"))
        except ValueError as error:
            refused.append(str(error))
    result = await env.play(reply, "b2b1")
    chat.user("\\n".join([*refused, result]))
    return await chat.reply()
'''


class Host(ScriptedHost):
    """A scripted model on a real puzzle. A reply crosses to the environment as the text that was sampled."""

    def __init__(self, *texts: str) -> None:
        super().__init__([f"Hm.\n</think>\n\n{text}" for text in texts], budgets=BUDGETS)
        self.puzzle = PuzzleEnv(PAPER_LINE)
        self.results: list[str] = []

    async def env(self, name, args, kwargs) -> EnvResult:
        def crossed(value):
            return SampledText(self.text(value.id)) if isinstance(value, ReplyRef) else value

        text = await self.puzzle.call(name, [crossed(value) for value in args], kwargs)
        self.results.append(text)
        return {"handle": len(self.results) - 1, "text": text}

    def text(self, reply: int) -> str:
        return self._raw[reply].rpartition("</think>")[2].lstrip("\n")


def run(source: str, backend: Backend, host: Host) -> EpisodeOutcome:
    async def main() -> EpisodeOutcome:
        async with await HarnessWorker.start(source, backend=backend) as worker:
            task = TaskView("t", {"position": "…", "placement": "8/…"})
            return await worker.run_episode(episode_id="0", task=task, budgets=BUDGETS, seed=0, host=host)

    return asyncio.run(main())


@pytest.mark.parametrize("name", ["h0", "strong"])
def test_a_whole_line(backend, name):
    host = Host("<move>b2b2</move>", "<move>b2b1</move>", "<move>b1d1</move>")
    outcome = run(domain._source(f"{name}.py"), backend, host)
    assert (outcome.end, outcome.error) == (None, None)
    assert outcome.reply is not None
    assert host.puzzle.verify(host.text(outcome.reply), protocol="paper").reward == 1
    unedited = [entry[3] for entry in host.log if entry[0] == "append" and entry[4] is not None]
    assert bool(unedited) == (name == "h0")  # h0 passes positions on as they come, with their provenance


def test_a_harness_cannot_make_a_move_of_its_own(backend):
    host = Host("I do not know.")
    outcome = run(CHEAT, backend, host)
    assert outcome.end is None, outcome.error
    said = host.log[-2][3]
    assert said.count("play takes a reply of this episode itself") == 4
    assert said.endswith("No move read: write one move, as <move>e2e4</move>.")
    assert host.puzzle.verify("I do not know.", protocol="honest").reward == 0
    with pytest.raises(CallRefused):
        asyncio.run(host.puzzle.call("play", ("<move>b2b1</move>",), {}))
