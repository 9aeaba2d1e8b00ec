"""The delta rule: ways to solve its triangular system, chunk lengths, the recurrence, and torch's chunked function.

On a CPU all run on one core: with more, the gradient of XLA's own triangular solver, many systems at once, was seen to
wait for ever for threads of its pool (jaxlib 0.10.2, two cores).
A new implementation (a kernel for some hardware) is one more entry of `implementations`.
"""

import argparse
import os
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from whale_jax.bench.bench import Bench, Result, seconds
from whale_jax.qwen3_5.delta_rule import DeltaRule, chunked_delta_rule, recurrent_delta_rule

CHUNKS = (32, 64, 128)
ARGUMENTS = ("q", "k", "v", "g", "beta")


def triangular_solve(a: Array, r: Array) -> Array:
    """(I + A) X = R by the backend's own triangular solver."""
    return jax.lax.linalg.triangular_solve(
        a + jnp.eye(a.shape[-1], dtype=a.dtype), r, left_side=True, lower=True, unit_diagonal=True
    )


def recurrence(q: Array, k: Array, v: Array, g: Array, beta: Array, reset: Array, state: Array) -> tuple[Array, Array]:
    """The rule one position after another: what every other implementation is compared with."""

    def step(state: Array, inputs: tuple[Array, ...]) -> tuple[Array, Array]:
        *values, reset = inputs
        q, k, v, g, beta = values
        o, state = recurrent_delta_rule(q, k, v, g, beta, jnp.where(reset[:, None, None, None], 0.0, state))
        return state, o

    inputs = tuple(jnp.swapaxes(x, 0, 1) for x in (q, k, v, g, beta, reset))
    state, o = jax.lax.scan(step, state, inputs)
    return jnp.swapaxes(o, 0, 1), state


def implementations() -> dict[str, DeltaRule]:
    """By name: `doubling` is what the model uses."""
    rules: dict[str, DeltaRule] = {"recurrence": recurrence}
    for chunk in CHUNKS:
        rules[f"doubling, chunk {chunk}"] = partial(chunked_delta_rule, chunk=chunk)
        rules[f"triangular solve, chunk {chunk}"] = partial(chunked_delta_rule, chunk=chunk, solve=triangular_solve)
    return rules


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tokens", type=int, default=1024, help="positions of a row")
    parser.add_argument("--batch", type=int, default=1, help="rows")
    parser.add_argument("--key_heads", type=int, default=16, help="key heads (16 in every Qwen3.5 up to 9B)")
    parser.add_argument("--value_heads", type=int, default=16, help="value heads (32 from 4B on)")
    parser.add_argument("--head_dim", type=int, default=128, help="size of a key and of a value head")


def _run(args: argparse.Namespace) -> Result:
    if min(args.tokens, args.batch, args.key_heads, args.head_dim) < 1 or args.value_heads % args.key_heads:
        raise ValueError("sizes must be >= 1, and --value_heads a multiple of --key_heads")
    inputs = _inputs(args)
    no_reset = np.zeros((args.batch, args.tokens), bool)
    start = np.zeros((args.batch, args.value_heads, args.head_dim, args.head_dim), np.float32)
    rows: list[dict[str, str | float | None]] = []
    expected = np.zeros(0)
    for name, rule in implementations().items():
        forward, both = _jitted(rule, no_reset, start)
        out = np.asarray(forward(**inputs))
        expected = out if name == "recurrence" else expected
        rows.append(_row(name, partial(_wait, forward, inputs), partial(_wait, both, inputs), out, expected, args))
    note = _add_torch(rows, inputs, expected, args)
    settings = {name: getattr(args, name) for name in ("tokens", "batch", "key_heads", "value_heads", "head_dim")}
    return Result(settings | {"dtype": "float32"}, rows, (note,) if note else ())


def _jitted(
    rule: DeltaRule, reset: np.ndarray, start: np.ndarray
) -> tuple[Callable[..., Array], Callable[..., object]]:
    """The outputs, and outputs with the gradients of their sum of squares."""

    def forward(q: Array, k: Array, v: Array, g: Array, beta: Array) -> Array:
        return rule(q, k, v, g, beta, jnp.asarray(reset), jnp.asarray(start))[0]

    def loss(inputs: dict[str, Array]) -> Array:
        return jnp.sum(jnp.square(forward(**inputs)))

    gradient = jax.jit(jax.value_and_grad(loss))
    return jax.jit(forward), lambda **inputs: gradient(inputs)


def _wait(function: Callable[..., object], inputs: dict[str, np.ndarray]) -> None:
    jax.block_until_ready(function(**inputs))


def _row(
    name: str,
    forward: Callable[[], object],
    both: Callable[[], object],
    out: np.ndarray,
    expected: np.ndarray,
    args: argparse.Namespace,
) -> dict[str, str | float | None]:
    _, forward_seconds = seconds(forward, args.repeats)
    first, both_seconds = seconds(both, args.repeats)
    return {
        "implementation": name,
        "forward_ms": 1e3 * forward_seconds,
        "forward_backward_ms": 1e3 * both_seconds,
        "compile_s": max(first - both_seconds, 0.0),
        "relative_error": float(np.max(np.abs(out - expected)) / np.max(np.abs(expected))),
    }


def _add_torch(
    rows: list[dict[str, str | float | None]],
    inputs: dict[str, np.ndarray],
    expected: np.ndarray,
    args: argparse.Namespace,
) -> str | None:
    """Adds the chunked function that `transformers` runs where no kernel is installed; or says why it is left out."""
    try:
        import torch
        from transformers.models.qwen3_5.modeling_qwen3_5 import torch_chunk_gated_delta_rule
    except ImportError as error:
        return f"torch is left out: {error}"

    torch.set_num_threads(len(os.sched_getaffinity(0)))

    def call(gradients: bool) -> np.ndarray:
        tensors = {name: torch.tensor(inputs[name], requires_grad=gradients) for name in ARGUMENTS}
        query, key, value, *gates = tensors.values()
        # The function scales the queries itself.
        out, _ = torch_chunk_gated_delta_rule(query * args.head_dim**0.5, key, value, *gates, chunk_size=64)
        if gradients:
            out.square().sum().backward()
        return out.detach().numpy()

    out = call(False)
    row = _row("torch, chunk 64", lambda: call(False), lambda: call(True), out, expected, args)
    rows.append({**row, "compile_s": None})
    return f"torch ran on the CPU with {torch.get_num_threads()} threads"


def _inputs(args: argparse.Namespace) -> dict[str, np.ndarray]:
    """Unit keys and queries, gates as at initialisation (decay rates up to 16 a step)."""
    rng = np.random.default_rng(0)
    keys, values = (args.batch, args.tokens, args.key_heads), (args.batch, args.tokens, args.value_heads)
    q, k = (rng.normal(size=(*keys, args.head_dim)) for _ in range(2))
    q, k = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
    inputs = {
        "q": q * args.head_dim**-0.5,
        "k": k,
        "v": rng.normal(size=(*values, args.head_dim)),
        "g": -rng.uniform(0.0, 16.0, args.value_heads) * np.logaddexp(0, rng.normal(size=values) - 3),
        "beta": rng.uniform(size=values),
    }
    return {name: x.astype(np.float32) for name, x in inputs.items()}


BENCH = Bench("the delta rule of one layer: implementations, forward and backward", _add_arguments, _run, one_core=True)
