"""Edges dealt to buckets while they are read, before anybody knows all of them.

Each block of edges is written grouped by bucket, so that a bucket is later gathered from a piece of each
block: every edge is written once and read once. A bucket is a range of rows. Half of the ranges follow from
the first block, half divide the rows evenly, for first blocks that are unlike the rest. Where a bucket is too
large all the same, it is partitioned when its turn comes.
"""

# numba compiles by the types of the arguments, not by annotations.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True, allow-untyped-calls=True

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numba import uint32, uint64

from oocpr.ingest.spill.intrinsics import store_word
from oocpr.ingest.spill.keys import KEY_BYTES, WEIGHT_BYTES, KeyExtents, KeyRun
from oocpr.ingest.spill.repartition import bin_shift
from oocpr.jit import entry
from oocpr.store.codec.buffers import Space

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from oocpr.ingest.spill.files import SpillFile

MOST_BUCKETS = 512
_KEYS_PER_PIECE = 1 << 10


@entry()
def _count(rows, shift, bucket_of, numbers, counts):
    """Find the bucket of each row, and how many each bucket gets."""
    last = uint64(bucket_of.size - 1)
    counts[:] = 0
    for i in range(uint64(rows.size)):
        bucket = bucket_of[min(uint64(rows[i]) >> shift, last)]
        numbers[i] = bucket
        counts[bucket] += uint32(1)


@entry()
def _deal(rows, columns, numbers, first_rows, column_bits, width, places, out):
    """Write each key at the place of its bucket, and up to 7 bytes more that the next one overwrites."""
    for i in range(uint64(rows.size)):
        bucket = uint64(numbers[i])
        at = places[bucket]
        row = uint64(rows[i]) - first_rows[bucket]
        store_word(out, at, row << column_bits | uint64(columns[i]))
        places[bucket] = at + width


@entry()
def _deal_weighted(rows, columns, weights, numbers, first_rows, column_bits, width, places, out):
    """Write each key with its weight at the place of its bucket."""
    for i in range(uint64(rows.size)):
        bucket = uint64(numbers[i])
        at = places[bucket]
        row = uint64(rows[i]) - first_rows[bucket]
        store_word(out, at, row << column_bits | uint64(columns[i]))
        store_word(out, at + width, weights[i])
        places[bucket] = at + width + uint64(WEIGHT_BYTES)


class Edges(NamedTuple):
    """Edges of the one type that compiled functions take: contiguous, and not to be written to.

    Attributes
    ----------
    src, dst
        Edge k runs from ``src[k]`` to ``dst[k]``; uint32, shape (k,).
    largest_src, largest_dst
        The largest of each, 0 where there are no edges.
    weight
        float64, shape (k,), or None.
    """

    src: NDArray[np.uint32]
    dst: NDArray[np.uint32]
    largest_src: int
    largest_dst: int
    weight: NDArray[np.float64] | None = None

    @classmethod
    def of(cls, src: NDArray[Any], dst: NDArray[Any], weight: NDArray[np.float64] | None = None) -> Edges:
        """Take ids below 2^32, integers of any type, and weights.

        Examples
        --------
        >>> edges = Edges.of(np.array([[1, 2], [3, 4]])[:, 0], np.array([5, 0]))
        >>> edges.src, edges.largest_src, edges.largest_dst
        (array([1, 3], dtype=uint32), 3, 5)
        """
        src, dst = _fixed(src), _fixed(dst)
        return cls(src, dst, int(src.max(initial=0)), int(dst.max(initial=0)), weight)


def _fixed(ids: NDArray[Any]) -> NDArray[np.uint32]:
    view = np.ascontiguousarray(ids, np.uint32)[:]
    view.flags.writeable = False
    return view


class _Block(NamedTuple):
    """What was written for a block: from which byte on, in how many bytes a key, keys of each bucket."""

    at: int
    width: int
    column_bits: int
    counts: NDArray[np.uint32]


class Partitioner:
    """Writes edges to a file, block by block, each grouped by bucket.

    Parameters
    ----------
    scratch
        The file; nobody else writes to it.
    block_edges
        Most edges of a block.
    rows
        Rows there are; None where that is not known.
    weighted
        Whether edges have weights.

    Attributes
    ----------
    count
        Edges so far.

    Examples
    --------
    >>> from pathlib import Path
    >>> from oocpr.ingest.spill.files import SpillFile
    >>> with SpillFile(Path(".")) as scratch:
    ...     dealer = Partitioner(scratch, 4096, None)
    ...     dealer.plan(np.array([9, 3], np.uint32))
    ...     dealer.add(Edges.of(np.array([1, 2]), np.array([9, 3])))
    ...     dealer.add(Edges.of(np.array([7]), np.array([12])))
    ...     for run in dealer.runs():
    ...         [keys] = run.blocks(np.empty(9, np.uint64))
    ...         print([(int(key) & 0xFFFFFFFF, int(key) >> 32) for key in keys])
    [(2, 3)]
    [(1, 9), (7, 12)]
    """

    def __init__(
        self, scratch: SpillFile, block_edges: int, rows: int | None, *, weighted: bool = False
    ) -> None:
        self.count = 0
        self._weighted = weighted
        self._beside = WEIGHT_BYTES * weighted
        self._scratch = scratch
        self._buckets = max(2, min(MOST_BUCKETS, block_edges // _KEYS_PER_PIECE))
        self._rows = rows
        self._largest = 0
        self._shift = np.uint64(0)
        self._bucket_of = np.empty(0, np.uint16)
        self._first_rows = self._last_rows = np.empty(0, np.uint64)
        self._blocks: list[_Block] = []
        self._lock = threading.Lock()
        self._spaces: deque[Space] = deque()

    @property
    def blocks(self) -> int:
        """Blocks that were added."""
        return len(self._blocks)

    @property
    def planned(self) -> bool:
        """Whether the buckets are known."""
        return self._bucket_of.size > 0

    def plan(self, sample: NDArray[np.uint32]) -> None:
        """Choose the buckets by rows of some edges, uint32, shape (k,); before the first are added."""
        span = int(sample.max(initial=0)) + 1 if self._rows is None else self._rows
        shift = np.uint64(bin_shift(span))
        bins = np.bincount((sample >> shift).astype(np.int64), minlength=-(-span >> int(shift)))
        share = (np.cumsum(bins) - bins) / max(1, sample.size) + np.arange(bins.size) / bins.size
        self._divide(shift, (share * (self._buckets / 2)).astype(np.uint16))

    def _divide(self, shift: np.uint64, bucket_of: NDArray[np.uint16]) -> None:
        """Settle the bucket of each bin of rows."""
        self._shift, self._bucket_of = shift, bucket_of
        first_bins = np.searchsorted(self._bucket_of, np.arange(self._buckets)).astype(np.uint64)
        self._first_rows = first_bins << shift
        self._last_rows = np.append(self._first_rows[1:], np.uint64(2**32)) - np.uint64(1)
        # The last bin takes all that is beyond it.
        self._last_rows[self._bucket_of[-1] :] = 2**32 - 1

    def add(self, edges: Edges) -> None:
        """Write some edges; several threads may do so at once."""
        src, dst, largest_src, largest_dst, weight = edges
        if not src.size:
            return
        space = self._space()
        counts = np.empty(self._buckets, np.uint32)
        numbers = space.array("buckets", src.size, np.uint16)
        _count(dst, self._shift, self._bucket_of, numbers, counts)

        column_bits = largest_src.bit_length()
        tops = np.minimum(self._last_rows, np.uint64(largest_dst))[counts > 0]
        row_bits = int((tops - self._first_rows[counts > 0]).max()).bit_length()
        width = max(1, -(-(row_bits + column_bits) // 8))
        places = _places(counts, width, self._beside)
        size = int(places[-1])

        at, out = self._scratch.reserve(size)
        dealt = space.array("dealt", size, np.uint8) if out is None else out
        how = (self._first_rows, np.uint64(column_bits), np.uint64(width), places[:-1], dealt)
        if self._weighted:
            assert weight is not None
            _deal_weighted(dst, src, weight.view(np.uint64), numbers, *how)
        else:
            _deal(dst, src, numbers, *how)
        if out is None:
            self._scratch.write(at, dealt)
        with self._lock:
            self._blocks.append(_Block(at, width, column_bits, counts))
            self.count += src.size
            self._largest = max(self._largest, largest_dst)
        self._spaces.append(space)

    def runs(self) -> Iterator[KeyRun]:
        """Yield the buckets that have edges, in ascending order."""
        if not self._blocks:
            return
        at, widths, column_bits = (np.array([block[k] for block in self._blocks]) for k in range(3))
        widths, column_bits = widths.astype(np.uint8), column_bits.astype(np.uint8)
        all_counts = np.array([block.counts for block in self._blocks])
        end = (self._largest + 1) << 32
        for bucket in range(self._buckets):
            counts = all_counts[:, bucket].astype(np.int64)
            if counts.any():
                here = np.flatnonzero(counts)
                first = int(self._first_rows[bucket])
                pieces = KeyExtents(
                    at[here], counts[here], widths[here], column_bits[here], first, self._weighted
                )
                high = min(end, (int(self._last_rows[bucket]) + 1) << 32)
                yield KeyRun(self._scratch, int(counts.sum()), first << 32, high, pieces)
            at = at + counts * (widths + np.int64(self._beside)) + (KEY_BYTES - widths)

    def state(self, first: int = 0) -> dict[str, Any]:
        """Describe the buckets, and the blocks from number `first` on, as JSON; nobody is adding any."""
        blocks = [[*block[:3], *block.counts.tolist()] for block in self._blocks[first:]]
        starts = (self._first_rows >> self._shift).tolist()
        return {
            "shift": int(self._shift),
            "bins": self._bucket_of.size,
            "starts": starts,
            "largest": self._largest,
            "blocks": blocks,
        }

    def restore(self, state: dict[str, Any], blocks: Iterable[list[int]]) -> None:
        """Take up what another dealer of the file left: its last state, and its blocks from the first on."""
        starts = np.array(state["starts"])
        self._buckets = starts.size
        bucket_of = np.searchsorted(starts, np.arange(state["bins"]), side="right") - 1
        self._divide(np.uint64(state["shift"]), bucket_of.astype(np.uint16))
        for at, width, column_bits, *counts in blocks:
            self._blocks.append(_Block(at, width, column_bits, np.array(counts, np.uint32)))
            self.count += sum(counts)
        self._largest = state["largest"]

    def _space(self) -> Space:
        try:
            return self._spaces.pop()
        except IndexError:
            return Space()


def _places(counts: NDArray[np.uint32], width: int, beside: int) -> NDArray[np.uint64]:
    """First byte of each bucket in its block, and the bytes of all: between buckets whole words may end."""
    sizes = counts.astype(np.uint64) * np.uint64(width + beside) + np.uint64(KEY_BYTES - width)
    return np.concatenate([np.zeros(1, np.uint64), np.cumsum(sizes)])
