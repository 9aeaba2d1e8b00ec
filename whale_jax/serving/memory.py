"""The memory of an engine: its cache, the pages of its slots, and states kept beside the slots or in host memory.

Nothing here depends on what a state is the state of. Every program has one shape, whatever is moved: pages go M at a
time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from whale_jax.qwen3_5 import model
from whale_jax.qwen3_5.config import Qwen35Config
from whale_jax.serving import rows
from whale_jax.serving.pages import PagePool
from whale_jax.serving.rows import Kept, RowState

_TOGETHER = 8
"""M: pages moved by one program."""


class SlotMemory:
    """Slots, each with its row of the cache and its pages. The base of `Engine`."""

    counters: dict[str, int]

    def __init__(
        self,
        config: Qwen35Config,
        *,
        slots: int,
        max_len: int,
        dtype: Any,
        page_size: int,
        pages: int | None,
        extra_bytes: int,
        device: Any,
    ) -> None:
        """Allocates the cache.

        Raises:
          ValueError: the pool cannot hold one full slot.
        """
        self.config = config
        self.slots = slots
        self.max_len = max_len
        self.page_size = min(page_size, max_len)
        self.places = -(-max_len // self.page_size)
        self._device = device
        self._dtype = jnp.dtype(dtype)
        per_position = 2 * config.num_groups * config.num_kv_heads * config.head_dim * self._dtype.itemsize
        self.page_bytes = per_position * self.page_size
        if pages is None:
            pages = slots * self.places + min(extra_bytes // self.page_bytes, slots * self.places)
        if pages < self.places:
            raise ValueError(f"Engine: a slot of {max_len} ids takes {self.places} pages, and the pool has {pages}")
        self._together = min(_TOGETHER, self.places)
        self._free_cache()
        self._new_pool(pages)
        self.resume()
        self._row_bytes = (self._cache.conv.nbytes + self._cache.state.nbytes) // slots

    @property
    def device(self) -> Any:
        """Where the engine lives."""
        return self._device

    @property
    def row_bytes(self) -> int:
        """Device memory of one slot's row, its pages apart."""
        return self._row_bytes

    @property
    def slot_bytes(self) -> int:
        """Device memory of one slot's state where it is full."""
        return self.row_bytes + self.places * self.page_bytes

    @property
    def free_pages(self) -> int:
        """Pages that a slot can still take."""
        return self._pool.free

    @property
    def page_count(self) -> int:
        """Pages of the pool."""
        return self._pool.count

    def held_pages(self, slot: int) -> int:
        """Pages of a slot."""
        return len(self._pages[slot])

    @property
    def suspended(self) -> bool:
        """Whether the cache is given up: see `suspend`."""
        return self._cache is None

    @property
    def paged_cache(self) -> model.Cache:
        """The cache with the present lists of pages."""
        return self._cache._replace(pages=self._pages_Bxn.copy())

    def suspend(self) -> None:
        """Frees the cache, so that training can have its memory; all states on the device are lost."""
        if self.suspended:
            return
        for leaf in jax.tree.leaves(self._cache):
            leaf.delete()
        self._free_cache()
        self._new_pool(self._pool.count)

    def resume(self) -> None:
        """Takes the memory again, with empty slots."""
        if self.suspended:
            cache = model.init_cache(
                self.config,
                self.slots,
                self.max_len,
                self._dtype,
                page_size=self.page_size,
                page_count=self._pool.count,
            )
            self._cache: Any = jax.device_put(cache, self._device)

    def reset(self) -> None:
        """Empties all slots and forgets all that was kept: whoever uses the engine next finds it as at first."""
        if not self.suspended:
            self._zero(self._pool.tainted)
        self._new_pool(self._pool.count)

    def pages_for(self, length: int) -> int:
        """Pages that hold so many positions."""
        return -(-length // self.page_size)

    def missing_pages(self, slot: int, length: int) -> int:
        """How many pages more than are free a slot would need to hold `length` positions; 0 if it can have them."""
        return max(0, self.pages_for(length) - len(self._pages[slot]) - self._pool.free)

    def grow(self, slot: int, length: int) -> bool:
        """Gives a slot the pages for `length` positions; False, and nothing changes, if too few are free."""
        taken = self._pool.take(max(0, self.pages_for(length) - len(self._pages[slot])))
        if taken is None:
            return False
        self._hold(slot, [*self._pages[slot], *taken])
        return True

    def has_pages_for(self, slot: int, state: Kept | RowState) -> bool:
        """Whether `start`, or `from_host`, would put a state into a slot once its own pages are taken away."""
        whole = self.pages_for(state.length)
        needed = whole - state.length // self.page_size if isinstance(state, Kept) else whole
        return needed <= self._pool.free + self._pool.held_once(self._pages[slot])

    def clear(self, slot: int, *, tainted: bool = False) -> None:
        """Takes a slot's pages away. `tainted`: they may hold NaN, and are zeroed before anybody gets them."""
        pages = self._pages[slot]
        self._hold(slot, [])
        self._drop(pages, tainted)

    def keep(self, slot: int, length: int, hidden: jax.Array | None = None) -> Kept | None:
        """A slot's state at this moment, beside the slots; None if no page is free for its last, unfinished one.

        Full pages are shared with the slot, which never writes them again.
        """
        full, pages = length // self.page_size, self._pages[slot]
        last = self._pool.take(int(length % self.page_size > 0))
        if last is None:
            return None
        self._pool.share(pages[:full])
        if last:
            self._cache = rows.copy_page(self.paged_cache, np.int32(pages[full]), np.int32(last[0]))
        conv, state = rows.read_row(self.paged_cache, np.int32(slot))
        return Kept((*pages[:full], *last), conv, state, length, hidden)

    def start(self, slot: int, kept: Kept) -> bool:
        """Puts a kept state into a slot that has no pages, bit for bit; False if no page is free for its last one."""
        assert not self._pages[slot], f"slot {slot} has pages"
        full = kept.length // self.page_size
        last = self._pool.take(len(kept.pages) - full)
        if last is None:
            return False
        self._pool.share(kept.pages[:full])
        self._hold(slot, [*kept.pages[:full], *last])
        if last:
            self._cache = rows.copy_page(self.paged_cache, np.int32(kept.pages[full]), np.int32(last[0]))
        self._cache = rows.write_row(self.paged_cache, np.int32(slot), kept.conv, kept.state, np.int32(kept.length))
        return True

    def drop(self, kept: Kept, *, tainted: bool = False) -> None:
        """Gives up a kept state; `tainted` as for `clear`."""
        self._drop(kept.pages, tainted)

    def kept_to_host(self, kept: Kept) -> RowState:
        """A copy of a kept state in host memory."""
        conv, state, hidden = jax.device_get((kept.conv, kept.state, kept.hidden))
        return RowState(*self._pages_to_host(kept.pages), conv, state, kept.length, hidden)

    def to_host(self, slot: int, length: int) -> RowState:
        """A copy of a slot's state, of `length` positions, in host memory."""
        conv, state = jax.device_get(rows.read_row(self.paged_cache, np.int32(slot)))
        pages = self._pages[slot][: self.pages_for(length)]
        return RowState(*self._pages_to_host(pages), conv, state, length)

    def from_host(self, slot: int, state: RowState) -> bool:
        """Puts a state from host memory into a slot that has no pages, bit for bit; False if too few are free."""
        assert not self._pages[slot], f"slot {slot} has pages"
        if not self.grow(slot, state.length):
            return False
        for at in range(0, len(self._pages[slot]), self._together):
            page_M = self._padded(self._pages[slot][at : at + self._together])
            parts = (_padded_pages(array[:, :, at : at + self._together], self._together) for array in state[:2])
            self._cache = rows.write_pages(self.paged_cache, page_M, *parts)
        self._cache = rows.write_row(self.paged_cache, np.int32(slot), state.conv, state.state, np.int32(state.length))
        return True

    def exercise(self) -> None:
        """Runs every program once, on an empty pool."""
        self.clear(0)
        self.grow(0, 1)
        kept = self.keep(0, 1)
        assert kept is not None, "the pool is not empty"
        self.clear(0)
        self.from_host(0, self.kept_to_host(kept))
        self.clear(0)
        self.start(0, kept)
        self.clear(0)
        self.drop(kept, tainted=True)

    def _hold(self, slot: int, pages: Sequence[int]) -> None:
        self._pages[slot] = list(pages)
        self._pages_Bxn[slot] = self._pool.count
        self._pages_Bxn[slot, : len(pages)] = pages

    def _drop(self, pages: Sequence[int], tainted: bool) -> None:
        if tainted:
            self._pool.taint(pages)
        self._zero(self._pool.drop(pages))

    def _zero(self, pages: Sequence[int]) -> None:
        shape = (self.config.num_kv_heads, self.config.num_groups, self._together, self.page_size, self.config.head_dim)
        for at in range(0, len(pages), self._together):
            zero = np.zeros(shape, self._dtype)
            page_M = self._padded(pages[at : at + self._together])
            self._cache = rows.write_pages(self.paged_cache, page_M, zero, zero)

    def _pages_to_host(self, pages: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        parts = []
        for at in range(0, len(pages), self._together):
            some = pages[at : at + self._together]
            k, v = jax.device_get(rows.read_pages(self.paged_cache, self._padded(some)))
            parts.append((k[:, :, : len(some)], v[:, :, : len(some)]))
        k, v = (np.concatenate(arrays, axis=2) for arrays in zip(*parts, strict=True))
        return k, v

    def _padded(self, pages: Sequence[int]) -> np.ndarray:
        return np.array([*pages, *[self._pool.count] * (self._together - len(pages))], np.int32)

    def _free_cache(self) -> None:
        self._cache = None

    def _new_pool(self, pages: int) -> None:
        self._pool = PagePool(pages)
        self._pages: list[list[int]] = [[] for _ in range(self.slots)]
        self._pages_Bxn = np.full((self.slots, self.places), pages, np.int32)


def _padded_pages(array: np.ndarray, count: int) -> np.ndarray:
    """[Kh, G, m, Z, H] with zeros up to `count` pages."""
    missing = count - array.shape[2]
    return np.pad(array, ((0, 0), (0, 0), (0, missing), (0, 0), (0, 0))) if missing else array
