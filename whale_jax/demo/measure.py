"""What the demo model can do, on held-out made-up worlds: `python -m whale_jax.demo.measure DIR`.

It decides whether a checkpoint is fit to be frozen. No real place, hence no task of any split, is looked at.
"""

import argparse
import json
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np

from whale_jax.demo import prompts, replies
from whale_jax.demo.worlds import MadeUpWorld
from whale_jax.domains.searchqa import h0
from whale_jax.domains.searchqa.corpus import documents
from whale_jax.domains.searchqa.domain import count_words
from whale_jax.domains.searchqa.questions import QuestionSpec
from whale_jax.domains.searchqa.retrieval import Bm25Retriever
from whale_jax.domains.searchqa.tool import SearchEnv
from whale_jax.domains.searchqa.verifier import exact_match
from whale_jax.qwen3_5.chat import ChatCodec
from whale_jax.qwen3_5.config import Qwen35Config
from whale_jax.qwen3_5.convert import load_checkpoint
from whale_jax.qwen3_5.model import Cache, Params, decode, extend, init_cache, unembed
from whale_jax.rollout.tool_calls import ToolCall, parse

WORLD_SEED = 7_000_000
"""Worlds of these seeds upwards are for measuring; training draws 48-bit seeds at random."""
WORLDS = 16
BATCH, CHUNK, WINDOW = 32, 128, 1152
MAX_NEW, TOP_K = 80, 20


@dataclass
class Sampler:
    """Batched generation: greedy at temperature 0, otherwise from the `TOP_K` most likely ids."""

    config: Qwen35Config
    params: Params
    stop: int
    temperature: float
    seed: int = 0

    def __post_init__(self) -> None:
        self._key = jax.random.key(self.seed)
        self._extend = jax.jit(partial(extend, self.config))
        self._sample = jax.jit(self._decode_all)

    def __call__(self, contexts: Sequence[Sequence[int]]) -> list[list[int]]:
        """Up to `MAX_NEW` ids after each context, the stop id included where it came."""
        result: list[list[int]] = []
        for start in range(0, len(contexts), BATCH):
            result += self._batch(contexts[start : start + BATCH])
        return result

    def _batch(self, contexts: Sequence[Sequence[int]]) -> list[list[int]]:
        cache = init_cache(self.config, BATCH, WINDOW)
        lengths = np.array([len(context) for context in contexts] + [1] * (BATCH - len(contexts)))
        if lengths.max() + MAX_NEW > WINDOW:
            raise ValueError(f"a context of {lengths.max()} ids does not fit a window of {WINDOW}")
        tokens = np.zeros((BATCH, -(-lengths.max() // CHUNK) * CHUNK), np.int32)
        for row, context in enumerate(contexts):
            tokens[row, : len(context)] = context
        last = jnp.zeros((BATCH, self.config.hidden_size))
        for place in range(0, tokens.shape[1], CHUNK):
            count = np.clip(lengths - place, 0, CHUNK)
            hidden, cache = self._extend(self.params, tokens[:, place : place + CHUNK], jnp.asarray(count), cache)
            ends = jnp.take_along_axis(hidden, jnp.maximum(count - 1, 0)[:, None, None], axis=1)[:, 0]
            last = jnp.where((count > 0)[:, None], ends, last)
        self._key, key = jax.random.split(self._key)
        rows = np.asarray(self._sample(self.params, last, cache, key)).T.tolist()
        return [row[: row.index(self.stop) + 1] if self.stop in row else row for row in rows[: len(contexts)]]

    def _pick(self, params: Params, hidden: jax.Array, key: jax.Array) -> jax.Array:
        logits = unembed(self.config, params, hidden)
        if self.temperature == 0:
            return jnp.argmax(logits, axis=-1).astype(jnp.int32)
        best, ids = jax.lax.top_k(logits / self.temperature, TOP_K)
        choice = jax.random.categorical(key, best)
        return jnp.take_along_axis(ids, choice[:, None], axis=1)[:, 0].astype(jnp.int32)

    def _decode_all(self, params: Params, hidden: jax.Array, cache: Cache, key: jax.Array) -> jax.Array:
        def step(carry, key):
            hidden, cache = carry
            ids = self._pick(params, hidden, key)
            return decode(self.config, params, ids, jnp.ones(BATCH, bool), cache), ids

        return jax.lax.scan(step, (hidden, cache), jax.random.split(key, MAX_NEW))[1]


@dataclass
class Play:
    """One conversation in progress and what came of it."""

    spec: QuestionSpec
    ids: list[int]
    replies: list[str] = field(default_factory=list)
    shown: str = ""
    done: bool = False

    @property
    def right(self) -> bool:
        return bool(self.replies) and exact_match(_visible(self.replies[-1]), self.spec.answers).reward == 1


class Bench:
    """The held-out worlds, one corpus over all of them, and the ways to put the model to the test."""

    def __init__(self, codec: ChatCodec, sampler: Sampler, episodes: int) -> None:
        self.codec, self.sampler = codec, sampler
        self.worlds = [MadeUpWorld(WORLD_SEED + number) for number in range(WORLDS)]
        rows = [row for world in self.worlds for row in world.passages.values()]
        self.texts = {row.id: row for row in rows}
        self.env = SearchEnv(Bm25Retriever(documents(rows)), count_words)
        specs = [(world, spec) for world in self.worlds for spec in world.questions]
        self.sample = random.Random(5).sample(specs, episodes)

    def opened(self, spec: QuestionSpec, extra: str = "") -> Play:
        """A conversation as h0 opens it, with more instructions if asked for."""
        system = f"{h0.SYSTEM_PROMPT} {extra}".strip()
        ids = [token for piece in self.codec.start(system, h0.TOOLS, thinking=True) for token in piece.ids]
        ids += self.codec.user(h0.USER_PROMPT.format(question=spec.question))
        return Play(spec, ids + self.codec.generation_prompt(thinking=True))

    def reply(self, plays: Sequence[Play]) -> None:
        for play, ids in zip(plays, self.sampler([play.ids for play in plays]), strict=True):
            play.ids += ids
            play.replies.append(self.codec.decode(ids))

    def turn(self, play: Play, text: str, *, tool: bool) -> None:
        play.ids += self.codec.close_turn(play.ids)
        play.ids += self.codec.tool(text) if tool else self.codec.user(text)
        play.ids += self.codec.generation_prompt(thinking=True)

    def whole(self, *, topk: int, turns: int, nudge: bool, extra: str = "") -> list[Play]:
        """Whole episodes: h0 is topk 1, two turns, no nudge."""
        plays = [self.opened(spec, extra) for _, spec in self.sample]
        for turn in range(1, turns + 1):
            active = [play for play in plays if not play.done]
            self.reply(active)
            for play in active:
                calls = _calls(play.replies[-1])
                if turn == turns:
                    play.done = True
                elif calls:
                    found = self.env.search(_queries(calls[0])[:1], topk=topk)
                    play.shown += found
                    self.turn(
                        play, found if turns - turn > 1 or not nudge else f"{found}\n{prompts.LAST_TURN[0]}", tool=True
                    )
                elif nudge and exact_match(_visible(play.replies[-1]), ["\x00"]).answer is None:
                    self.turn(play, prompts.NUDGE_FORMAT[0], tool=False)
                else:
                    play.done = True
        return plays

    def given(self, documents_shown: int, *, nudge: bool = False) -> list[Play]:
        """One-hop questions after a right call whose result holds the gold passage among others."""
        rng = random.Random(9)
        plays = []
        for world, spec in self.sample:
            if spec.kind.hops > 1:
                continue
            play = self.opened(spec)
            said = world.statements[spec.gold[0]]
            query = f"{said.subject} {replies.RELATIONS[said.fact][0]}"
            asked = replies.think(f"I need the {replies.RELATIONS[said.fact][0]} of {said.subject}.", "")
            play.ids += [*self.codec.encode_text(asked.split("\n")[0] + "\n"), self.codec.special.think_close]
            play.ids += self._call(query)
            gold = world.passages[spec.gold[0]]
            others = [row for row in world.search(query, documents_shown + 1, rng) if row is not gold]
            rows = [gold, *others[: documents_shown - 1]]
            rng.shuffle(rows)
            body = "\n\n".join(f"Doc {place} (Title: {row.title})\n{row.text}" for place, row in enumerate(rows, 1))
            self.turn(play, json.dumps({"result": body}, ensure_ascii=False), tool=True)
            if nudge:
                play.ids += self.codec.encode_text(f"The passage about {said.subject} says it.\n")
                play.ids += [self.codec.special.think_close, *self.codec.encode_text(f"\n\nIt is {said.value}.")]
                self.turn(play, prompts.NUDGE_FORMAT[0], tool=False)
            plays.append(play)
        self.reply(plays)
        return plays

    def _call(self, query: str) -> list[int]:
        inner = replies.call([query]).removeprefix("<tool_call>").removesuffix("</tool_call>")
        special = self.codec.special
        body = self.codec.encode_text(inner)
        return [*self.codec.encode_text("\n\n"), special.tool_call_open, *body, special.tool_call_close, special.im_end]


def _visible(reply: str) -> str | None:
    """What follows the end of thinking, without the end of the turn; None when thinking never ended."""
    _, end, rest = reply.rpartition("</think>")
    return rest.removesuffix("<|im_end|>") if end else None


def _calls(reply: str) -> list[ToolCall]:
    return [call for call in parse(_visible(reply) or "", h0.TOOLS) if call.name == "search"]


def _queries(call: ToolCall) -> list[str]:
    queries = call.arguments.get("query_list") or []
    return queries if isinstance(queries, list) else [str(queries)]


def _share(flags: Sequence[bool]) -> float:
    return round(sum(flags) / max(len(flags), 1), 3)


def measure(directory: Path, *, episodes: int, temperature: float, show: int = 0) -> dict[str, float]:
    """All figures of one checkpoint at one temperature (0 is greedy)."""
    config, params = load_checkpoint(directory)
    codec = ChatCodec.from_dir(directory)
    bench = Bench(codec, Sampler(config, params, codec.special.im_end, temperature), episodes)
    plain = bench.whole(topk=1, turns=2, nudge=False)
    extra = " ".join((prompts.SENTENCES[prompts.Axis.SEARCH][1], prompts.SENTENCES[prompts.Axis.HOPS][0]))
    strong = bench.whole(topk=3, turns=5, nudge=True, extra=extra)
    for play in [*plain[:show], *strong[:show]]:
        print(codec.decode(play.ids).split("</tool_call><|im_end|>\n", 1)[-1], "\n-----", play.spec.answers, play.right)

    def calls_well(play: Play) -> bool:
        calls = _calls(play.replies[0])
        return bool(calls) and play.spec.subject in json.dumps(calls[0].arguments, ensure_ascii=False)

    return {
        "first_call_parsed": _share([bool(_calls(play.replies[0])) for play in plain]),
        "first_call_names_subject": _share([calls_well(play) for play in plain]),
        "given_gold_alone": _share([play.right for play in bench.given(1)]),
        "given_gold_among_3": _share([play.right for play in bench.given(3)]),
        "given_gold_among_3_after_nudge": _share([play.right for play in bench.given(3, nudge=True)]),
        "h0": _share([play.right for play in plain]),
        "h0_one_hop": _share([play.right for play in plain if play.spec.kind.hops == 1]),
        "strong": _share([play.right for play in strong]),
        "strong_one_hop": _share([play.right for play in strong if play.spec.kind.hops == 1]),
        "strong_two_hop": _share([play.right for play in strong if play.spec.kind.hops == 2]),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--episodes", type=int, default=256)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--show", type=int, default=0, help="print this many conversations of each harness")
    arguments = parser.parse_args()
    for temperature in arguments.temperatures:
        figures = measure(
            arguments.directory, episodes=arguments.episodes, temperature=temperature, show=arguments.show
        )
        print(json.dumps({"temperature": temperature} | figures))


if __name__ == "__main__":
    main()
