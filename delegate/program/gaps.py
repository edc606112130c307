"""The free parts of an arena while blocks come and go: the smallest that fits is found without looking at all."""

from __future__ import annotations

from bisect import bisect_left, insort


class Gaps:
    """An arena that grows where no gap holds a block.

    Attributes:
        total: its size in bytes so far.
    """

    def __init__(self) -> None:
        self.total = 0
        self._by_size: list[tuple[int, int]] = []  # size and begin of each gap, in order
        self._ends: dict[int, int] = {}  # begin -> end
        self._begins: dict[int, int] = {}  # end -> begin

    def take(self, size: int) -> int:
        """The offset of so many bytes, which are taken now."""
        place = bisect_left(self._by_size, (size, -1))
        if place == len(self._by_size):  # at the end, of which the last gap may be a part
            begin = self._remove(self._begins[self.total])[0] if self.total in self._begins else self.total
            self.total = begin + size
            return begin
        begin, end = self._remove(self._by_size[place][1])
        if end - begin > size:
            self._add(begin + size, end)
        return begin

    def free(self, begin: int, size: int) -> None:
        """Give bytes back; gaps beside them become one with them."""
        end = begin + size
        if end in self._ends:
            end = self._remove(end)[1]
        if begin in self._begins:
            begin = self._remove(self._begins[begin])[0]
        self._add(begin, end)

    def _add(self, begin: int, end: int) -> None:
        insort(self._by_size, (end - begin, begin))
        self._ends[begin], self._begins[end] = end, begin

    def _remove(self, begin: int) -> tuple[int, int]:
        end = self._ends.pop(begin)
        del self._begins[end]
        del self._by_size[bisect_left(self._by_size, (end - begin, begin))]
        return begin, end
