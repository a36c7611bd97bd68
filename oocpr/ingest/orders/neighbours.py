"""Neighbours of each node in order, in memory or, where there is no room, in a file that is read by pages.

They are found for as many rows at a time as there is room for, with a scan of all edges for each time. What
is found follows from the graph alone, whatever the room is.
"""

# numba compiles by the types of the arguments, not by annotations.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True, allow-untyped-calls=True
# mypy: check-untyped-defs=False

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oocpr.jit import entry

if TYPE_CHECKING:
    from oocpr.ingest.spill.files import SpillDir, SpillFile

PAGE = 1 << 12
"""Neighbours that are read together."""

_NO_ROWS = np.empty(0, np.uint32)


class Neighbours:
    """Other ends of the edges of each row, ascending, each once; those of row v from ``starts[v]`` on.

    `slots` has the place of each page in `pages`, uint32, shape (places, PAGE), -1 if it is not there; `used`
    receives 1 for a place that is read. All pages are there unless there is a `file`, of which as many are
    kept as `room` bytes have.
    """

    def __init__(
        self, starts: NDArray[np.unsignedinteger[Any]], found: NDArray[np.uint32] | SpillFile, room: int = 0
    ) -> None:
        self.starts, self._file = starts, None
        self._count = int(starts[-1])
        pages = -(-self._count // PAGE)
        if isinstance(found, np.ndarray):
            self.pages = found[: pages * PAGE].reshape(pages, PAGE)
            self.slots = np.arange(pages, dtype=np.int32)
        else:
            self._file = found
            # A search reads one page and then another: with one of them it would do so for ever.
            self.pages = np.empty((max(2, min(pages, room // (4 * PAGE))), PAGE), np.uint32)
            self.slots = np.full(pages, -1, np.int32)
        self.used = np.zeros(len(self.pages), np.uint8)
        self._held = np.full(len(self.pages), -1, np.int64)
        self._hand = np.zeros(1, np.int64)

    def degree(self) -> NDArray[np.uint32]:
        """Edges of each row, duplicates merged."""
        return np.diff(self.starts).astype(np.uint32)

    def bring(self, page: int) -> None:
        """Read a page to the place of one that was not used for long."""
        assert self._file is not None, "all pages are in memory"
        slot = int(_longest_unused(self.used, self._hand))
        if self._held[slot] >= 0:
            self.slots[self._held[slot]] = -1
        self._file.read(4 * PAGE * page, self.pages[slot, : min(PAGE, self._count - PAGE * page)])
        self.slots[page], self._held[slot] = slot, page

    def close(self) -> None:
        """Give memory and the file back."""
        self.pages = np.empty((0, PAGE), np.uint32)
        if self._file is not None:
            self._file.close()

    def between(self, begin: int, end: int) -> NDArray[np.uint32]:
        """The neighbours from one place to another."""
        if self._file is None:
            return self.pages.reshape(-1)[begin:end]
        return self._file.read_array(np.uint32, begin, end - begin)


def ranges_of(degree: NDArray[np.uint32], room: int) -> list[tuple[int, int, int]]:
    """Divide rows into ranges whose neighbours have room, or one row: first row, end, edges.

    Examples
    --------
    >>> ranges_of(np.array([2, 3, 9, 1], np.uint32), 20)
    [(0, 2, 5), (2, 3, 9), (3, 4, 1)]
    """
    ends = degree.cumsum(dtype=np.int64)
    ranges, first, before = list[tuple[int, int, int]](), 0, 0
    while first < degree.size:
        end = max(first + 1, int(np.searchsorted(ends, before + room // 4, side="right")))
        ranges.append((first, end, int(ends[end - 1]) - before))
        first, before = end, int(ends[end - 1])
    return ranges


def find_neighbours(
    scan: Iterable[NDArray[np.uint64]],
    degree: NDArray[np.uint32],
    *,
    outgoing: bool,
    rows: NDArray[np.uint32] = _NO_ROWS,
    room: int,
    spill_dir: SpillDir,
) -> Neighbours:
    """List the nodes that edges of each row run to if `outgoing`, else those that they come from.

    `degree` counts the edges of each row on that side, and duplicates with them. `rows` has the row of each
    node; none if it is its number. `room` is how many bytes of neighbours are in memory.
    """
    ranges = ranges_of(degree, room)
    edges = sum(count for *_, count in ranges)
    starts: NDArray[Any] = np.empty(degree.size + 1, np.uint32 if edges < 1 << 32 else np.uint64)
    degree.cumsum(out=starts[:-1])
    own, other = (np.uint64(0), np.uint64(32)) if outgoing else (np.uint64(32), np.uint64(0))
    whole = len(ranges) < 2
    found = np.empty(-(-max(count for *_, count in ranges) // PAGE) * PAGE if ranges else 0, np.uint32)
    file = None if whole else spill_dir.file()
    kept = before = 0
    for first, end, count in ranges:
        bounds = np.uint64(first), np.uint64(end), np.uint64(before)
        for keys in scan:
            _fill(keys, own, other, rows, *bounds, starts, found)
        left = int(_merge(starts, found, first, end, before, count, kept))
        if file is not None:
            file.write(4 * kept, found[:left])
        kept, before = kept + left, before + count
    starts[-1] = kept
    if file is None:
        return Neighbours(starts, found)
    del found
    return Neighbours(starts, file, room)


@entry()
def _fill(keys, own, other, rows, first, end, before, starts, found):
    """Put neighbours of a range of rows from the end of each one's places on; starts are the ends before."""
    low = np.uint64(0xFFFFFFFF)
    for key in keys:
        row = key >> own & low
        if rows.size:
            row = np.uint64(rows[row])
        if first <= row < end:
            starts[row] -= starts.dtype.type(1)
            found[np.uint64(starts[row]) - before] = key >> other & low


@entry()
def _merge(starts, found, first, end, before, count, kept):
    """Sort the neighbours of each row of a range and keep each of them once; returns how many are left.

    They begin behind the `kept` ones of the rows before.
    """
    left = 0
    begin = np.int64(starts[first]) - before
    for row in range(first, end):
        stop = np.int64(starts[row + 1]) - before if row + 1 < end else count
        found[begin:stop].sort()
        starts[row] = kept + left
        for k in range(begin, stop):
            if k == begin or found[k] != found[k - 1]:
                found[left] = found[k]
                left += 1
        begin = stop
    return left


@entry()
def _longest_unused(used, hand):
    """Go round the places to one that was not used since the last time; Corbato's clock."""
    while used[hand[0]]:
        used[hand[0]] = 0
        hand[0] = (hand[0] + 1) % used.size
    place = hand[0]
    hand[0] = (place + 1) % used.size
    return place
