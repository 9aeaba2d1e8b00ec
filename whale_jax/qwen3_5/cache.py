"""What a model keeps about the sequences it is extending: one row (slot) per sequence, keys and values in pages."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from whale_jax.qwen3_5.config import LINEAR_PER_GROUP, Qwen35Config

PAGE = 128
"""Positions of a page of keys and values where nobody chooses another size."""


class Cache(NamedTuple):
    """State of B sequences. Rows are independent: nothing of one row ever enters another's numbers.

    All zero is the state of empty sequences. Position s of row b is in page `pages[b, s // Z]`, at s mod Z; what lies
    at or beyond `length` is stale and weighs nothing. Rows may share pages that none of them writes.
    """

    k: Array
    """[Kh, G P, Z, H] keys of the full-attention layers, normed and turned: P pages of Z positions per group, those of
    group g at g P. The order of dimensions is that of JAX's TPU kernel for paged attention."""
    v: Array
    """[Kh, G P, Z, H]"""
    conv: Any
    """[G, L, B, W, Q] the last W conv inputs of the linear layers, oldest first; or by layer, see `by_layer`."""
    state: Any
    """[G, L, B, Hv, Dk, Dv] recurrent state, fp32 whatever the dtype of the rest; or by layer."""
    length: Array
    """[B] int32 positions consumed."""
    pages: Array
    """[B, n] int32 the pages of each row in the order of its positions, each in 0..P - 1; P where it has none."""

    @property
    def page_size(self) -> int:
        """Z, positions of a page."""
        return self.k.shape[2]

    @property
    def page_count(self) -> int:
        """P, pages of one group."""
        groups = len(self.conv) // LINEAR_PER_GROUP if self.is_by_layer else self.conv.shape[0]
        return self.k.shape[1] // groups

    @property
    def room(self) -> int:
        """Positions that a row has places for in its list of pages."""
        return self.pages.shape[1] * self.page_size

    @property
    def is_by_layer(self) -> bool:
        """Whether conv windows and states are tuples of one array [B, ...] per linear layer."""
        return isinstance(self.conv, tuple)

    def by_layer(self) -> "Cache":
        """The same with conv windows and states by layer, which a program without loops over layers updates in place.

        It goes with parameters by layer (`params.by_layer`).
        """
        flat = (array.reshape(-1, *array.shape[2:]) for array in (self.conv, self.state))
        conv, state = (tuple(array[index] for index in range(len(array))) for array in flat)
        return self._replace(conv=conv, state=state)

    def stacked(self) -> "Cache":
        """The inverse of `by_layer`."""
        conv, state = (
            jnp.stack(arrays).reshape(-1, LINEAR_PER_GROUP, *arrays[0].shape) for arrays in (self.conv, self.state)
        )
        return self._replace(conv=conv, state=state)


def init_cache(
    config: Qwen35Config,
    batch: int,
    max_len: int,
    dtype: DTypeLike = jnp.float32,
    *,
    page_size: int = PAGE,
    page_count: int | None = None,
) -> Cache:
    """A cache of `batch` empty rows with room for `max_len` positions each; `dtype` is that of k, v and conv.

    Args:
        page_size: Z; at most `max_len` is used.
        page_count: P, pages that the rows share; the caller writes `pages`. None: every row has all of its own.
    """
    size = min(page_size, max_len)
    per_row = -(-max_len // size)
    if page_count is None:
        page_count = batch * per_row
        pages = jnp.arange(page_count, dtype=jnp.int32).reshape(batch, per_row)
    else:
        pages = jnp.full((batch, per_row), page_count, jnp.int32)
    kv = (config.num_kv_heads, config.num_groups * page_count, size, config.head_dim)
    linear = (config.num_groups, LINEAR_PER_GROUP, batch)
    return Cache(
        k=jnp.zeros(kv, dtype),
        v=jnp.zeros(kv, dtype),
        conv=jnp.zeros((*linear, config.conv_window, config.conv_channels), dtype),
        state=jnp.zeros(
            (*linear, config.linear_value_heads, config.linear_key_dim, config.linear_value_dim), jnp.float32
        ),
        length=jnp.zeros((batch,), jnp.int32),
        pages=pages,
    )
