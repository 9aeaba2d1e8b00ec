"""The same numbers as `transformers`, in fp32, on random checkpoints of six shapes.

Per shape: logits and the gradient of every parameter, and the same logits when the sequences are taken in piece by
piece. Lengths lie at the sizes of the convolution and of a chunk, and on both sides of them.
"""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from whale_jax.qwen3_5 import model
from whale_jax.qwen3_5.config import Qwen35Config
from whale_jax.qwen3_5.convert import load_checkpoint

torch = pytest.importorskip("torch")

LENGTHS = [1, 2, 3, 4, 63, 64, 65, 130]
WIDTH, MAX_LEN = 64, 136
TOLERANCE = 1e-4

SHAPES: dict[str, dict[str, Any]] = {
    "two groups, doubled value heads": {},
    "one group, as many key as value heads": {"num_hidden_layers": 4, "linear_num_key_heads": 4},
    "three groups, untied, odd vocabulary": {
        "num_hidden_layers": 12,
        "tie_word_embeddings": False,
        "vocab_size": 101,
    },
    "one key head of each kind, shortest kernel": {
        "num_hidden_layers": 4,
        "num_key_value_heads": 1,
        "linear_num_key_heads": 1,
        "linear_conv_kernel_dim": 2,
    },
    "long kernel, large eps, half of a head turned": {
        "linear_conv_kernel_dim": 5,
        "rms_norm_eps": 1e-3,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e3, "partial_rotary_factor": 0.5},
    },
    "a key/value head per query head, wide values, untied": {
        "num_hidden_layers": 4,
        "hidden_size": 40,
        "num_key_value_heads": 4,
        "head_dim": 24,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 24,
        "linear_conv_kernel_dim": 3,
        "tie_word_embeddings": False,
    },
}
"""Changes to `HF_FIELDS`, which sets nothing to its default where a default could hide a setting that is ignored."""


class Case(NamedTuple):
    """A model of one shape, in both libraries, and one prompt of every length."""

    reference: Any
    config: Qwen35Config
    params: model.Params
    prompts: list[np.ndarray]
    logits: list[Any]
    """Of the reference, with its graph."""


@pytest.fixture(scope="module", params=SHAPES.values(), ids=SHAPES)
def case(request, make_reference, tmp_path_factory) -> Case:
    reference = make_reference(**request.param)
    directory: Path = tmp_path_factory.mktemp("shape")
    reference.save_pretrained(directory)
    config, params = load_checkpoint(directory)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, config.vocab_size, length).astype(np.int32) for length in LENGTHS]
    return Case(reference, config, params, prompts, [reference_logits(reference, ids) for ids in prompts])


def reference_logits(reference_model, ids: np.ndarray):
    return reference_model(torch.tensor(ids[None], dtype=torch.long)).logits[0]


@pytest.mark.slow
def test_case_g171_logits_and_gradients(quick_jit, case):
    """Logits at every position of every length, and the gradient of every parameter of the summed log-likelihood."""
    tokens, segments = (np.zeros((len(LENGTHS), max(LENGTHS)), np.int32) for _ in range(2))
    for row, ids in enumerate(case.prompts):
        tokens[row, : len(ids)], segments[row, : len(ids)] = ids, 1

    def loss(params):
        logits = model.unembed(case.config, params, model.forward(case.config, params, tokens, segments, remat=False))
        logprobs = jnp.take_along_axis(jax.nn.log_softmax(logits[:, :-1]), tokens[:, 1:, None], axis=-1)[..., 0]
        return -jnp.sum(jnp.where(segments[:, 1:] > 0, logprobs, 0.0)), logits

    (_, logits), gradient = quick_jit(jax.value_and_grad(loss, has_aux=True))(case.params)
    total = torch.zeros(())
    for row, (ids, expected) in enumerate(zip(case.prompts, case.logits, strict=True)):
        np.testing.assert_allclose(logits[row, : len(ids)], expected.detach(), rtol=0, atol=TOLERANCE)
        targets = torch.tensor(ids[1:], dtype=torch.long)
        total = total + torch.nn.functional.cross_entropy(expected[:-1], targets, reduction="sum")
    total.backward()
    compared = 0
    for name, parameter in case.reference.named_parameters():
        ours = gradient_of(gradient, name)
        scale = float(parameter.grad.abs().max())
        np.testing.assert_allclose(ours, parameter.grad, rtol=0, atol=2e-4 * max(scale, 1.0), err_msg=name)
        compared += ours.size
    assert compared == sum(leaf.size for leaf in jax.tree.leaves(gradient))


def gradient_of(gradient, name: str) -> np.ndarray:
    """The gradient of one torch parameter, spelled out here so that the test does not lean on the conversion table."""
    parts = name.removeprefix("model.").split(".")
    if parts[0] != "layers":
        return np.asarray(gradient[{"embed_tokens": "embed", "norm": "final_norm", "lm_head": "lm_head"}[parts[0]]])
    group, inner = divmod(int(parts[1]), 4)
    names = {
        "input_layernorm": "input_norm", "post_attention_layernorm": "post_norm", "norm": "norm", "A_log": "a_log",
        "gate_proj": "gate", "up_proj": "up", "down_proj": "down", "dt_bias": "dt_bias", "conv1d": "conv",
        "in_proj_qkv": "qkv", "in_proj_z": "z", "in_proj_b": "b", "in_proj_a": "a", "out_proj": "out",
        "q_proj": "q", "k_proj": "k", "v_proj": "v", "q_norm": "q_norm", "k_norm": "k_norm", "o_proj": "o",
    }  # fmt: skip
    leaf = names[parts[-2] if parts[-1] == "weight" else parts[-1]]
    array = np.asarray(gradient["full"][leaf][group] if inner == 3 else gradient["linear"][leaf][group, inner])
    return array.T[:, None] if leaf == "conv" else array.T


@pytest.mark.slow
@pytest.mark.parametrize("alone", [False, True])
def test_prefill_extension_and_decoding(pieces, case, alone):
    """Half at once, one token, an eighth at once, the rest token by token; every row at its own pace, or one alone."""
    extend, decode = pieces
    prompts = [ids if not alone or len(ids) == max(LENGTHS) else ids[:0] for ids in case.prompts]
    cache = model.init_cache(case.config, len(prompts), MAX_LEN)
    seen: list[list[np.ndarray]] = [[] for _ in prompts]
    done = np.zeros(len(prompts), np.int32)
    total = np.array([len(ids) for ids in prompts])
    for size in (total // 2, np.ones_like(total), total // 8):
        count = np.minimum(np.minimum(size, WIDTH), total - done).astype(np.int32)
        tokens = np.zeros((len(prompts), WIDTH), np.int32)
        for row, ids in enumerate(prompts):
            tokens[row, : count[row]] = ids[done[row] : done[row] + count[row]]
        hidden, cache = extend(tokens, count, cache)
        for row in range(len(prompts)):
            seen[row].append(np.asarray(hidden)[row, : count[row]])
        done += count
    turn = 0
    while (done < total).any():
        active = (done < total) & ((np.arange(len(prompts)) + turn) % 3 != 0)
        tokens = np.array([ids[at] if go else 0 for ids, at, go in zip(prompts, done, active, strict=True)], np.int32)
        hidden, cache = decode(tokens, active, cache)
        for row in np.flatnonzero(active):
            seen[row].append(np.asarray(hidden)[row : row + 1])
        done += active
        turn += 1
    head = np.asarray(case.params["embed" if case.config.tie_embeddings else "lm_head"])
    for row, expected in enumerate(case.logits):
        if total[row]:
            ours = np.concatenate(seen[row]) @ head.T
            np.testing.assert_allclose(ours, expected.detach(), rtol=0, atol=TOLERANCE)
    assert cache.length.tolist() == total.tolist()


@pytest.fixture(scope="module")
def pieces(quick_jit, case):
    """`extend` and `decode` of the case's model, compiled once."""
    config, params = case.config, case.params
    return (
        quick_jit(lambda tokens, count, cache: model.extend(config, params, tokens, count, cache)),
        quick_jit(lambda tokens, active, cache: model.decode(config, params, tokens, active, cache)),
    )


@pytest.mark.slow
def test_greedy_text_is_equal(checkpoint, reference_model):
    """At the compiler's usual level, unlike the tests above."""
    config, params = load_checkpoint(checkpoint)
    steps, width = 16, 64
    prompt = np.random.default_rng(5).integers(0, config.vocab_size, width)
    with torch.no_grad():
        expected = reference_model.generate(
            torch.tensor(prompt[None], dtype=torch.long), max_new_tokens=steps, do_sample=False
        )[0, len(prompt) :].tolist()
    tokens = np.zeros((1, width), np.int32)
    tokens[0, : len(prompt)] = prompt
    hidden, cache = jax.jit(lambda t, n, c: model.extend(config, params, t, n, c))(
        tokens, np.array([len(prompt)], np.int32), model.init_cache(config, 1, 96)
    )
    step = jax.jit(lambda t, c: model.decode(config, params, t, jnp.array([True]), c))
    last, ours = hidden[:, len(prompt) - 1], []
    for _ in range(steps):
        ours.append(int(model.unembed(config, params, last).argmax()))
        last, cache = step(np.array(ours[-1:], np.int32), cache)
    assert ours == expected
