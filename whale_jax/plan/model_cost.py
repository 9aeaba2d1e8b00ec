"""What a step needs in any implementation: FLOPs of the mathematics, and the least bytes that decoding must move.

A product of a row vector and an [a, b] matrix is 2 a b FLOPs. Counted: every weight matrix, the output head, causal
attention (half of the positions on average), the delta rule at its chunk. A training step is the forward pass and twice
as much for the backward pass; nothing recomputed counts, and no elementwise work (norms, gates, convolution, softmax).

Letters: c positions of a chunk; the others are those of `qwen3_5.config`.
"""

import math

from whale_jax.qwen3_5.config import LINEAR_PER_GROUP, Qwen35Config
from whale_jax.qwen3_5.delta_rule import CHUNK
from whale_jax.qwen3_5.params import param_shapes


def parameter_count(config: Qwen35Config) -> int:
    """Parameters of the text model; a tied table counts once."""
    shapes = param_shapes(config)
    parts = [shapes["embed"], shapes["final_norm"], *shapes["linear"].values(), *shapes["full"].values()]
    return sum(math.prod(shape) for shape in (*parts, shapes.get("lm_head", (0,))))


def layer_weights(config: Qwen35Config) -> int:
    """Entries of all weight matrices that a token meets in the layers: no norms, gates, convolutions or tables."""
    shapes = param_shapes(config)
    return sum(
        math.prod(shape)
        for kind, unstacked in (("linear", 4), ("full", 3))
        for name, shape in shapes[kind].items()
        if len(shape) == unstacked and name != "conv"
    )


def head_weights(config: Qwen35Config) -> int:
    """Entries of the output head."""
    return config.vocab_size * config.hidden_size


def attention_flops(config: Qwen35Config, pairs: float) -> float:
    """Forward, all layers: scores and values of `pairs` (query, key) positions that see each other."""
    return config.num_groups * 4.0 * pairs * config.num_heads * config.head_dim


def delta_rule_flops(config: Qwen35Config, tokens: float, chunk: int = CHUNK) -> float:
    """Forward, all layers, chunked: k k^T and q k^T, (I + A)^-1 applied to v and k, and four products with the state.

    Triangular products count as the half that is not zero; making the inverse counts as c^2 / 3 per position.
    """
    dk, dv = config.linear_key_dim, config.linear_value_dim
    within_chunk = 2 * (chunk / 2) * (2 * dk) + 2 * (chunk / 2) * (dk + 2 * dv) + chunk**2 / 3
    with_state = 2 * 3 * dk * dv
    layers = config.num_groups * LINEAR_PER_GROUP
    return layers * tokens * config.linear_value_heads * (within_chunk + with_state)


def recurrent_flops(config: Qwen35Config, tokens: float) -> float:
    """Forward, all layers, one position at a time: read, write and query the state."""
    layers = config.num_groups * LINEAR_PER_GROUP
    return layers * tokens * config.linear_value_heads * 6.0 * config.linear_key_dim * config.linear_value_dim


def train_flops(config: Qwen35Config, rows: int, row_len: int) -> float:
    """One training step on full rows of one sequence each, every position a target."""
    tokens = rows * row_len
    weights = 2.0 * tokens * (layer_weights(config) + head_weights(config))
    attention = attention_flops(config, rows * row_len * (row_len + 1) / 2)
    return 3 * (weights + attention + delta_rule_flops(config, tokens))


def extend_flops(config: Qwen35Config, rows: int, chunk_len: int, context: float) -> float:
    """One extend step: `chunk_len` new tokens per row behind `context` earlier ones; one per row reaches the head."""
    tokens = rows * chunk_len
    pairs = rows * (chunk_len * context + chunk_len * (chunk_len + 1) / 2)
    weights = 2.0 * (tokens * layer_weights(config) + rows * head_weights(config))
    return weights + attention_flops(config, pairs) + delta_rule_flops(config, tokens)


def decode_flops(config: Qwen35Config, slots: int, live: float) -> float:
    """One token for every slot, `live` positions of context on average."""
    weights = 2.0 * slots * (layer_weights(config) + head_weights(config))
    return weights + attention_flops(config, slots * live) + recurrent_flops(config, slots)


def decode_floor_bytes(
    config: Qwen35Config, slots: int, live: float, *, weight_bytes: int, cache_bytes: int
) -> dict[str, float]:
    """The least bytes one decode step of one replica must move, by kind.

    Weights are read once (of the embedding, where untied, only the rows looked up). The live keys and values are read
    once; those of the new token are written. Conv windows and recurrent states are read and written once.

    Args:
        live: mean live length of a slot.
        weight_bytes, cache_bytes: per entry; the recurrent state is fp32.
    """
    weights = parameter_count(config) * weight_bytes
    if not config.tie_embeddings:
        weights += (slots * config.hidden_size - head_weights(config)) * weight_bytes
    per_position = 2 * config.num_groups * config.num_kv_heads * config.head_dim * cache_bytes
    layers = config.num_groups * LINEAR_PER_GROUP
    state = layers * config.linear_value_heads * config.linear_key_dim * config.linear_value_dim * 4
    window = layers * config.conv_window * config.conv_channels * cache_bytes
    return {
        "weights": float(weights),
        "keys_and_values": float(slots * (live + 1) * per_position),
        "recurrent_state": 2.0 * slots * (state + window),
    }
