"""The same numbers as `transformers`, in fp32, on a random checkpoint with two groups and doubled value heads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from whale_jax.qwen3_5 import model
from whale_jax.qwen3_5.convert import load_checkpoint

torch = pytest.importorskip("torch")

LENGTHS = [1, 2, 3, 4, 63, 64, 65, 130]
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def loaded(checkpoint):
    return load_checkpoint(checkpoint)


@pytest.fixture(scope="module")
def prompts(loaded) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, loaded[0].vocab_size, length).astype(np.int32) for length in LENGTHS]


def rows(prompts: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    tokens, segments = (np.zeros((len(prompts), max(LENGTHS)), np.int32) for _ in range(2))
    for row, ids in enumerate(prompts):
        tokens[row, : len(ids)], segments[row, : len(ids)] = ids, 1
    return tokens, segments


def reference_logits(reference_model, ids: np.ndarray):
    return reference_model(torch.tensor(ids[None], dtype=torch.long)).logits[0]


@pytest.mark.slow
def test_logits_and_gradients(quick_jit, loaded, reference_model, prompts):
    """Logits at every position of every length, and the gradient of every parameter of the summed log-likelihood."""
    config, params = loaded
    tokens, segments = rows(prompts)

    def loss(params):
        logits = model.unembed(config, params, model.forward(config, params, tokens, segments))
        logprobs = jnp.take_along_axis(jax.nn.log_softmax(logits[:, :-1]), tokens[:, 1:, None], axis=-1)[..., 0]
        return -jnp.sum(jnp.where(segments[:, 1:] > 0, logprobs, 0.0)), logits

    (_, logits), gradient = quick_jit(jax.value_and_grad(loss, has_aux=True))(params)
    reference_model.zero_grad()
    total = torch.zeros(())
    for row, ids in enumerate(prompts):
        expected = reference_logits(reference_model, ids)
        np.testing.assert_allclose(logits[row, : len(ids)], expected.detach(), rtol=0, atol=TOLERANCE)
        targets = torch.tensor(ids[1:], dtype=torch.long)
        total = (
            total + torch.nn.functional.cross_entropy(expected[:-1], targets, reduction="sum")
            if len(ids) > 1
            else total
        )
    total.backward()
    compared = 0
    for name, parameter in reference_model.named_parameters():
        ours = gradient_of(gradient, name)
        scale = float(parameter.grad.abs().max())
        np.testing.assert_allclose(ours, parameter.grad, rtol=0, atol=2e-4 * max(scale, 1.0), err_msg=name)
        compared += ours.size
    assert compared == sum(leaf.size for leaf in jax.tree.leaves(gradient))


def gradient_of(gradient, name: str) -> np.ndarray:
    """The gradient of one torch parameter, spelled out here so that the test does not lean on the conversion table."""
    parts = name.removeprefix("model.").split(".")
    if parts[0] != "layers":
        return np.asarray(gradient[{"embed_tokens": "embed", "norm": "final_norm"}[parts[0]]])
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


def test_prefill_then_decoding_step_by_step(quick_jit, loaded, reference_model, prompts):
    """Prefill of 60 in two pieces, then one token at a time across a chunk boundary, beside a row of another length."""
    config, params = loaded
    ids = prompts[-1]
    extend = quick_jit(lambda tokens, count, cache: model.extend(config, params, tokens, count, cache))
    decode = quick_jit(lambda tokens, active, cache: model.decode(config, params, tokens, active, cache))
    head = quick_jit(lambda hidden: model.unembed(config, params, hidden))
    with torch.no_grad():
        expected = reference_logits(reference_model, ids).numpy()
    cache = model.init_cache(config, 2, 136)
    seen = []
    for start, count in ((0, 32), (32, 28)):
        tokens = np.zeros((2, 32), np.int32)
        tokens[:, :count] = ids[start : start + count]
        hidden, cache = extend(tokens, np.array([count, count // 2], np.int32), cache)
        seen.append(np.asarray(head(hidden))[0, :count])
    for at in range(60, 130):
        hidden, cache = decode(ids[[at, at - 30]], np.array([True, at % 2 == 0]), cache)
        seen.append(np.asarray(head(hidden))[:1])
    np.testing.assert_allclose(np.concatenate(seen), expected, rtol=0, atol=TOLERANCE)


@pytest.mark.slow
def test_greedy_text_is_equal(loaded, reference_model, prompts):
    """At the compiler's usual level, unlike the tests above."""
    config, params = loaded
    prompt, steps, width = prompts[5], 16, 64
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
