"""Who has which page of keys and values: host bookkeeping of an engine's pool."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class PagePool:
    """Pages 0..count - 1, each with the number of its holders. A page with several holders is written by none."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._holders = [0] * count
        self._free = list(range(count - 1, -1, -1))
        self._tainted: set[int] = set()

    @property
    def free(self) -> int:
        """Pages without a holder."""
        return len(self._free)

    @property
    def tainted(self) -> list[int]:
        """Pages with a holder that may hold NaN."""
        return sorted(self._tainted)

    def held_once(self, pages: Iterable[int]) -> int:
        """How many of these would be free without one of their holders."""
        return sum(self._holders[page] == 1 for page in pages)

    def take(self, count: int) -> list[int] | None:
        """That many free pages, each with one holder; None, and nothing changes, if there are not as many."""
        if count > len(self._free):
            return None
        taken = [self._free.pop() for _ in range(count)]
        for page in taken:
            self._holders[page] = 1
        return taken

    def share(self, pages: Iterable[int]) -> None:
        """One more holder for each."""
        for page in pages:
            assert self._holders[page] > 0, f"page {page} has no holder"
            self._holders[page] += 1

    def taint(self, pages: Iterable[int]) -> None:
        """Marks pages that may hold NaN: masks do not stop it, so they must be zeroed before anybody takes them."""
        self._tainted.update(pages)

    def drop(self, pages: Sequence[int]) -> list[int]:
        """One holder less for each. Returns those tainted pages that are free now, to be zeroed by the caller."""
        to_zero = []
        for page in pages:
            assert self._holders[page] > 0, f"page {page} has no holder"
            self._holders[page] -= 1
            if not self._holders[page]:
                self._free.append(page)
                if page in self._tainted:
                    self._tainted.discard(page)
                    to_zero.append(page)
        return to_zero
