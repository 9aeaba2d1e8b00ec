"""One position of the gated delta rule on a TPU, reading and writing each state once.

As plain operations XLA reads a state three times, since what is read of it decides what is written to it. The kernel
takes one row at a time, all its heads, works on them in on-core memory, and updates the stack of all layers in place.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


def recurrent_step(
    q_BxHvxDk: Array,
    k_BxHvxDk: Array,
    v_BxHvxDv: Array,
    decay_BxHv: Array,
    beta_BxHv: Array,
    active_B: Array,
    states: Array,
    layer: Array,
    *,
    interpret: bool = False,
) -> tuple[Array, Array]:
    """One position of one layer; see `delta_rule` for the rule.

    Args:
        q_BxHvxDk, k_BxHvxDk, v_BxHvxDv, decay_BxHv, beta_BxHv: fp32; a query and key per value head.
        active_B: where false, the state stays as it is, bit for bit.
        states: [Y, B, Hv, Dk, Dv] fp32, those of Y layers.
        layer: int32, which of them.
        interpret: run without a TPU, for tests.

    Returns:
        o [B, Hv, Dv] and the states.
    """
    _, batch, heads, key_size, value_size = states.shape
    row = lambda size: pl.BlockSpec((1, heads, size), lambda b, *_: (b, 0, 0))  # noqa: E731
    of_states = pl.BlockSpec((1, 1, heads, key_size, value_size), lambda b, layer, *_: (layer[0], b, 0, 0, 0))
    scalars = (layer.reshape(1).astype(jnp.int32), active_B.astype(jnp.int32), decay_BxHv, beta_BxHv)
    arrays = (q_BxHvxDk, k_BxHvxDk, v_BxHvxDv)
    moved = 2 * states[0].size * 4 + sum(array.size * 4 for array in (*arrays, v_BxHvxDv))
    o, states = pl.pallas_call(
        _kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
            grid=(batch,),
            in_specs=[row(key_size), row(key_size), row(value_size), of_states],
            out_specs=[row(value_size), of_states],
        ),
        out_shape=[jax.ShapeDtypeStruct(v_BxHvxDv.shape, jnp.float32), jax.ShapeDtypeStruct(states.shape, jnp.float32)],
        input_output_aliases={len(scalars) + len(arrays): 1},
        cost_estimate=pl.CostEstimate(flops=6 * states[0].size, transcendentals=0, bytes_accessed=moved),
        name="recurrent_step",
        interpret=interpret,
    )(*scalars, *arrays, states)
    return o, states


def _kernel(layer_ref, active_ref, decay_ref, beta_ref, q_ref, k_ref, v_ref, state_ref, o_ref, new_state_ref) -> None:
    del layer_ref
    row = pl.program_id(0)
    active = active_ref[row] != 0
    q_DkxHv, k_DkxHv = q_ref[0].T, k_ref[0].T
    for head in range(q_ref.shape[1]):
        before = state_ref[0, 0, head]
        q_Dkx1, k_Dkx1 = q_DkxHv[:, head : head + 1], k_DkxHv[:, head : head + 1]
        state = before * decay_ref[row, head]
        read_1xDv = jnp.sum(state * k_Dkx1, axis=0, keepdims=True)
        state = state + k_Dkx1 * (beta_ref[row, head] * (v_ref[0, head : head + 1] - read_1xDv))
        o_ref[0, head : head + 1] = jnp.sum(state * q_Dkx1, axis=0, keepdims=True)
        new_state_ref[0, 0, head] = jnp.where(active, state, before)
