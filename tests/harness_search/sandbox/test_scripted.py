"""The scripted host stands in for a model and must keep the host's rules."""

import asyncio

import pytest

from harness_search.contract import Budgets, CallRefused, EndReason, EpisodeEnded
from harness_search.sandbox.scripted import ScriptedHost


def test_replies_come_in_order_and_the_last_one_stays() -> None:
    async def main() -> list[str]:
        host = ScriptedHost(["a", "b"])
        chats = [await host.open_chat(None, []) for _ in range(2)]
        return [(await host.reply(chats[index % 2], None))["text"] for index in range(3)]

    assert asyncio.run(main()) == ["a", "b", "b"]


def test_thinking_ends_at_its_last_end() -> None:
    async def main() -> None:
        host = ScriptedHost(["<think>\nwhy </think> and </think>answer", "<think>never closed"])
        chat = await host.open_chat(None, [])
        first, second = await host.reply(chat, None), await host.reply(chat, None)
        assert (first["thinking"], first["text"]) == ("why </think> and ", "answer")
        assert (second["thinking"], second["text"]) == ("never closed", "")

    asyncio.run(main())


def test_budgets_end_the_episode() -> None:
    async def main(budgets: Budgets) -> EndReason:
        host = ScriptedHost(["one two"], lambda name, args, kwargs: "", budgets=budgets)
        chat = await host.open_chat(None, [])
        try:
            for _ in range(10):
                await host.reply(chat, None)
                await host.env("search", [], {})
        except EpisodeEnded as ended:
            return ended.reason
        raise AssertionError("no budget ended it")

    assert asyncio.run(main(Budgets(3, 9, 9, 1.0))) is EndReason.TOKEN_BUDGET
    assert asyncio.run(main(Budgets(99, 2, 9, 1.0))) is EndReason.TURN_BUDGET
    assert asyncio.run(main(Budgets(99, 9, 1, 1.0))) is EndReason.TOOL_BUDGET


def test_only_an_unfinished_turn_can_be_extended() -> None:
    async def main() -> None:
        host = ScriptedHost(["a b c", "d"])
        chat = await host.open_chat(None, [])
        assert (await host.reply(chat, 2))["finish"] == "length"
        assert (await host.extend_reply(chat, " so", None))["raw"] == "a b sod"
        await host.append(chat, "user", "x", None)
        with pytest.raises(CallRefused):
            await host.extend_reply(chat, "x", None)

    asyncio.run(main())
