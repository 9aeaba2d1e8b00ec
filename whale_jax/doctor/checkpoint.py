"""The checkpoint: config fields, tensors, tokenizer, chat template; and its logits against `transformers`."""

import hashlib
import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from whale_jax.assemble import checkpoint_directory
from whale_jax.doctor.page import Verdict, fail, ok, warn
from whale_jax.plan import model_cost
from whale_jax.plan.chips import GIB
from whale_jax.plan.sizes import SIZES
from whale_jax.qwen3_5 import model
from whale_jax.qwen3_5.chat import ChatCodec
from whale_jax.qwen3_5.config import ConfigError, Qwen35Config

TEMPLATES = {
    "273d8e0e683b885071fb17e08d71e5f2a5ddfb5309756181681de4f5a1822d80": "Qwen3.5-2B's: thinking off by default",
    "a4aee8afcf2e0711942cf848899be66016f8d14a889ff9ede07bca099c28f715": "that of Qwen3.5-4B and above: thinking on",
}
"""SHA-256 of published chat templates."""

QWEN_VOCABULARY = 248_320
QWEN_IDS = {
    "endoftext": 248_044, "im_start": 248_045, "im_end": 248_046, "tool_call_open": 248_058, "think_open": 248_068,
}  # fmt: skip
"""Control ids of the published models, by field of `SpecialIds`; they are trained on these."""

PROMPTS = (
    "What is the capital of Norway?",
    "Compute 17 * 23 and put the result in \\boxed{}.",
    "Ein Satz auf Deutsch, 東京, and a line of code:\n    for i in range(3): print(i)",
)
"""Fixed user turns whose logits are compared."""

_CLOSE, _NEAR = 1e-4, 1e-2
"""Largest difference of a logit over the largest logit: fp32 rounding; beyond it something is different."""


def fields(directory: Path) -> tuple[Verdict, Qwen35Config | None]:
    """config.json: every field is known and supported."""
    try:
        config = Qwen35Config.from_dir(directory)
    except ConfigError as error:
        return fail("config", str(error), "use a Qwen3.5 checkpoint whose fields this version knows"), None
    size = next((name for name, known in SIZES.items() if known == config), None)
    like = f", the shape of the {size.upper()}" if size else ""
    count = model_cost.parameter_count(config)
    return ok("config", f"{config.num_layers} layers of width {config.hidden_size}, {count:,} parameters{like}"), config


def tokens(codec: ChatCodec, config: Qwen35Config) -> Verdict:
    """Control ids lie in the embedding; a model of Qwen3.5's vocabulary has the ids that it was trained with."""
    ids = {field: getattr(codec.special, field) for field in QWEN_IDS}
    seen = ", ".join(f"{field} {number}" for field, number in ids.items())
    largest = max(codec.vocab_size - 1, *codec.control_ids)
    if largest >= config.vocab_size:
        return fail("tokens", f"id {largest} of tokenizer.json; the model embeds {config.vocab_size}", _OTHER_TOKENIZER)
    if config.vocab_size != QWEN_VOCABULARY:
        return ok("tokens", f"{seen} (a vocabulary of its own: {config.vocab_size})")
    wrong = [
        f"{field} is {number}, not {QWEN_IDS[field]}" for field, number in ids.items() if number != QWEN_IDS[field]
    ]
    if wrong:
        return fail("tokens", "; ".join(wrong), _OTHER_TOKENIZER)
    return ok("tokens", f"{seen}: Qwen3.5's")


_OTHER_TOKENIZER = "tokenizer.json is another model's; take the one that was published with these weights"


def template(codec: ChatCodec, directory: Path) -> Verdict:
    """The chat template's hash; one that is not known is shown."""
    digest = codec.template_sha256
    if digest in TEMPLATES:
        return ok("template", f"{digest[:12]}, {TEMPLATES[digest]}")
    demo = checkpoint_directory(None)
    if digest == hashlib.sha256((demo / "chat_template.jinja").read_bytes()).hexdigest():
        return ok("template", f"{digest[:12]}, the demo's")
    opening = codec.decode(codec.generation_prompt(thinking=True))
    return warn(
        "template",
        f"{digest}: not one that is known here; with thinking an assistant turn opens with {opening!r}",
        f"compare {directory}/chat_template.jinja with the publisher's",
    )


def weights(config: Qwen35Config, params: Any, seconds: float) -> Verdict:
    """The real weights are here."""
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    return ok("weights", f"{model_cost.parameter_count(config):,} parameters, {size / GIB:.2f} GiB in {seconds:.0f} s")


def prompt_ids(codec: ChatCodec) -> list[list[int]]:
    """The fixed prompts as a run would give them to the model."""
    head = [token for piece in codec.start(None, (), True) for token in piece.ids]
    return [[*head, *codec.user(text), *codec.generation_prompt(True)] for text in PROMPTS]


def logits(config: Qwen35Config, params: Any, prompts: list[list[int]]) -> list[np.ndarray]:
    """Logits [V] after each prompt, in fp32, where the parameters are."""
    longest = max(map(len, prompts))
    tokens = np.zeros((len(prompts), longest), np.int32)
    real = np.zeros_like(tokens)
    for row, ids in enumerate(prompts):
        tokens[row, : len(ids)] = ids
        real[row, : len(ids)] = 1
    last = jnp.asarray([len(ids) - 1 for ids in prompts])

    @jax.jit
    def run(params: Any, tokens: Any, real: Any) -> Any:
        hidden = model.forward(config, params, tokens, real, remat=False)
        return model.unembed(config, params, hidden[jnp.arange(len(prompts)), last])

    with jax.default_matmul_precision("highest"):
        return list(np.asarray(run(params, tokens, real)))


def against_transformers(directory: Path, prompts: list[list[int]], ours: list[np.ndarray]) -> Iterator[Verdict]:
    """The same prompts through the peer, in a process of its own: two frameworks in one take each other's threads."""
    if importlib.util.find_spec("transformers") is None or importlib.util.find_spec("torch") is None:
        yield warn(
            "logits", "transformers with torch is not installed: not compared", "pip install transformers torch, once"
        )
        return
    with tempfile.TemporaryDirectory() as folder:
        asked, answer = Path(folder) / "prompts.json", Path(folder) / "logits.npy"
        asked.write_text(json.dumps(prompts), encoding="utf-8")
        command = [sys.executable, "-m", "whale_jax.doctor.oracle", str(directory), str(asked), str(answer)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            yield warn(
                "logits", f"transformers could not load or run it: {last}", "see whether its version knows Qwen3.5"
            )
            return
        theirs = np.load(answer)
    yield compared(ours, list(theirs))


def compared(ours: list[np.ndarray], theirs: list[np.ndarray]) -> Verdict:
    """The verdict on the logits of two implementations."""
    worst = max(
        float(np.abs(mine - other).max() / np.abs(other).max()) for mine, other in zip(ours, theirs, strict=True)
    )
    same = sum(int(mine.argmax() == other.argmax()) for mine, other in zip(ours, theirs, strict=True))
    seen = f"{len(ours)} prompts, {same} with the same likeliest token; they differ by {worst:.1e} of the largest logit"
    if not worst <= _NEAR:
        return fail("logits", seen, "this checkpoint computes something else here: do not train it; report it")
    if worst > _CLOSE:
        return warn("logits", seen, f"more than fp32 rounding ({_CLOSE:.0e}); look at the versions")
    return ok("logits", f"{seen} (transformers, fp32)")
