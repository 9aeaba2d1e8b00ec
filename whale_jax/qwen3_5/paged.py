"""Attention over a cache whose keys and values lie in pages, and writing to it.

Elsewhere than on a TPU, the pages of all rows with the same number are gathered and attended to together, one number
after the other, up to the longest row's last position. On a TPU, decoding in bf16 uses JAX's own kernel, which reads of
every row only the pages in use.

Letters: P pages of a group, Z positions of a page, n pages that a row has places for.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec

from whale_jax.qwen3_5.blockwise import MASKED
from whale_jax.qwen3_5.cache import Cache
from whale_jax.qwen3_5.sharding import TENSOR, over_heads

_KERNEL_LANES = 128
"""The kernel copies whole rows of a page: head sizes must be a multiple of this."""

_TILE = 16
"""Positions that are written together when a row gets one: on a TPU, the smallest part of memory in bf16."""

_KERNEL_PAGES = 4
"""At most so many pages are read and multiplied together in the kernel; part of the last lot is read in vain."""


def write_pages(
    cache: Cache,
    group: Array,
    k: Array,
    v: Array,
    k_BxTxKhxH: Array,
    v_BxTxKhxH: Array,
    count_B: Array,
    *,
    unroll: bool = False,
) -> tuple[Array, Array]:
    """All keys and values with the first `count_B[b]` new ones of each row behind its `length`.

    Row by row, a whole tile of positions at a time, each an update in place. (For a scatter, or for single positions,
    XLA chooses a layout that the kernel does not read, and copies everything from one to the other at each layer.)
    What a row has no page for is dropped.

    Args:
        k, v: as in `cache`, with what this step has written so far.
        unroll: no loop over the rows, whose turns cost more on a CPU than the writing.
    """
    batch, width = k_BxTxKhxH.shape[:2]
    tile = _TILE if width == 1 and cache.page_size % _TILE == 0 else cache.page_size
    touched = -(-(width - 1) // tile) + 1  # tiles of a row that its new positions may lie in
    count, places = cache.page_count, cache.pages.shape[1]
    # Room on both sides, so that the part for any tile is one slice.
    new_k, new_v = (jnp.pad(new, ((0, 0), (tile, tile), (0, 0), (0, 0))) for new in (k_BxTxKhxH, v_BxTxKhxH))

    def write(turn: Array, pages: tuple[Array, Array]) -> tuple[Array, Array]:
        row = turn // touched
        start = cache.length[row]
        position = (start // tile + turn % touched) * tile  # of the tile's first place
        number = position // cache.page_size
        page = cache.pages[row, jnp.minimum(number, places - 1)]
        there = (number < places) & (page < count)
        corner = (0, jnp.where(there, group * count + page, 0), position % cache.page_size, 0)
        offset = position - start + jnp.arange(tile)  # of the tile's places among the new positions
        goes = there & (offset >= 0) & (offset < count_B[row])
        first = jnp.minimum(position - start + tile, width + tile)

        def put(array: Array, new: Array) -> Array:
            old = jax.lax.dynamic_slice(array, corner, (array.shape[0], 1, tile, array.shape[3]))
            part = jax.lax.dynamic_slice(new, (row, first, 0, 0), (1, tile, *new.shape[2:]))[0]
            part = jnp.moveaxis(part, 1, 0)[:, None].astype(array.dtype)
            return jax.lax.dynamic_update_slice(array, jnp.where(goes[:, None], part, old), corner)

        return put(pages[0], new_k), put(pages[1], new_v)

    return jax.lax.fori_loop(0, batch * touched, write, (k, v), unroll=unroll)


def pages_of(cache: Cache, group: Array) -> Array:
    """[B, n] the rows' pages of a group among those of all groups; some page of the group where a row has none."""
    return group * cache.page_count + jnp.minimum(cache.pages, cache.page_count - 1)


def attend_pages(q_BxTxNxH: Array, k: Array, v: Array, index_Bxn: Array, last_BxT: Array) -> Array:
    """softmax(q k^T / sqrt(H)) v over each row's positions 0..`last_BxT`.

    Args:
        k, v: [Kh, pages, Z, H].
        index_Bxn: the row's pages in the order of its positions, all in bounds.
        last_BxT: int32 >= 0.

    Returns:
        [B, T, N, H] fp32.
    """
    if q_BxTxNxH.shape[1] == 1 and k.dtype == jnp.bfloat16 and q_BxTxNxH.shape[-1] % _KERNEL_LANES == 0:
        return jax.lax.platform_dependent(
            q_BxTxNxH, k, v, index_Bxn, last_BxT, tpu=_attend_on_tpu, default=_attend_by_pages
        )
    return _attend_by_pages(q_BxTxNxH, k, v, index_Bxn, last_BxT)


def _attend_by_pages(q_BxTxNxH: Array, k: Array, v: Array, index_Bxn: Array, last_BxT: Array) -> Array:
    """Pages up to the longest row's last position are read, the dead part of the cache is not.

    A page in which a row sees nothing leaves that row's sums as they are, bit for bit, so a row never depends on its
    neighbours.
    """
    batch, length, heads, size = q_BxTxNxH.shape
    kv_heads, _, block, _ = k.shape
    repeats = heads // kv_heads
    # Queries of one key head as the rows of one matrix, [Kh, B, R T, H].
    q = jnp.transpose(q_BxTxNxH.reshape(batch, length, kv_heads, repeats, size) * size**-0.5, (2, 0, 3, 1, 4))
    q = q.reshape(kv_heads, batch, repeats * length, size)
    last = jnp.tile(last_BxT, (1, repeats))[..., None]
    scores_of = _scores_of_one if length == 1 else _scores

    def add(number: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        largest, total, attended = carry
        index_B = jax.lax.dynamic_index_in_dim(index_Bxn, number, axis=1, keepdims=False)
        k_block, v_block = (pages.at[:, index_B].get(mode="promise_in_bounds") for pages in (k, v))
        visible = number * block + jnp.arange(block) <= last
        scores = jnp.where(visible, scores_of(q, k_block), MASKED)
        new_largest = jnp.maximum(largest, scores.max(axis=-1))
        weights = jnp.exp(scores - new_largest[..., None])
        kept = jnp.exp(largest - new_largest)
        added = _product(weights.astype(v.dtype), v_block, 2)
        return new_largest, total * kept + weights.sum(axis=-1), attended * kept[..., None] + added

    grid = q.shape[:-1]
    empty = (jnp.full(grid, MASKED), jnp.zeros(grid), jnp.zeros((*grid, size)))
    _, total, attended = jax.lax.fori_loop(0, last_BxT.max() // block + 1, add, empty)
    attended = (attended / total[..., None]).reshape(kv_heads, batch, repeats, length, size)
    return jnp.transpose(attended, (1, 3, 0, 2, 4)).reshape(batch, length, heads, size)


def _product(left: Array, right: Array, axis: int) -> Array:
    """left [Kh, B, M, K] times right, whose `axis` of 4 is K: [Kh, B, M, N] in fp32."""
    numbers = (((3,), (axis,)), ((0, 1), (0, 1)))
    return jax.lax.dot_general(left, right, numbers, preferred_element_type=jnp.float32)


def _scores(q: Array, k_block: Array) -> Array:
    """[Kh, B, M, H] queries and [Kh, B, Z, H] keys to [Kh, B, M, Z]: in this order, since softmax runs along keys."""
    return _product(q, k_block, 3)


def _scores_of_one(q: Array, k_block: Array) -> Array:
    """`_scores` for few queries: the keys are then the rows of the product."""
    return jnp.swapaxes(_product(k_block, q, 3), 2, 3)


def _attend_on_tpu(q_Bx1xNxH: Array, k: Array, v: Array, index_Bxn: Array, last_Bx1: Array) -> Array:
    from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention  # needs a second to import

    q_BxNxH = q_Bx1xNxH[:, 0].astype(jnp.float32) * q_Bx1xNxH.shape[-1] ** -0.5  # the kernel does not scale
    kernel = partial(paged_attention, pages_per_compute_block=_pages_together(index_Bxn.shape[1]), megacore_mode=None)
    heads, pages, whole = PartitionSpec(None, TENSOR), PartitionSpec(TENSOR), PartitionSpec()
    attend = over_heads(kernel, (heads, pages, pages, whole, whole), heads)
    return attend(q_BxNxH, k, v, last_Bx1[:, 0] + 1, index_Bxn)[:, None].astype(jnp.float32)


def kernel_reads(length: int, places: int, page_size: int) -> int:
    """Positions that the kernel reads of a row of `length` positions with places for so many pages."""
    lot = _pages_together(places) * page_size
    return -(-length // lot) * lot


def _pages_together(places: int) -> int:
    """The kernel takes whole lots of pages: their number must divide that of the places."""
    return next(count for count in range(_KERNEL_PAGES, 0, -1) if places % count == 0)
