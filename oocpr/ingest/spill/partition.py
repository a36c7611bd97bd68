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

import numba
import numpy as np
from numba import uint32, uint64

from oocpr.ingest.spill.files import require_disk
from oocpr.ingest.spill.intrinsics import store_word
from oocpr.ingest.spill.keys import KEY_BYTES, WEIGHT_BYTES, KeyExtents, KeyRun, record_bytes
from oocpr.jit import entry
from oocpr.store.codec.bitpacking import BufferPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from oocpr.ingest.concurrency import BoundedExecutor
    from oocpr.ingest.spill.files import SpillFile

    Relabel = Callable[[NDArray[np.uint64]], None]

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
        self._spaces: deque[BufferPool] = deque()

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

    def state(self) -> dict[str, Any]:
        """Describe the buckets and blocks as JSON; nobody is adding any."""
        blocks = [[*block[:3], *block.counts.tolist()] for block in self._blocks]
        starts = (self._first_rows >> self._shift).tolist()
        return {
            "shift": int(self._shift),
            "bins": self._bucket_of.size,
            "starts": starts,
            "largest": self._largest,
            "blocks": blocks,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take up what another partitioner of the file left."""
        starts = np.array(state["starts"])
        self._buckets = starts.size
        bucket_of = np.searchsorted(starts, np.arange(state["bins"]), side="right") - 1
        self._divide(np.uint64(state["shift"]), bucket_of.astype(np.uint16))
        for at, width, column_bits, *counts in state["blocks"]:
            self._blocks.append(_Block(at, width, column_bits, np.array(counts, np.uint32)))
            self.count += sum(counts)
        self._largest = state["largest"]

    def _space(self) -> BufferPool:
        try:
            return self._spaces.pop()
        except IndexError:
            return BufferPool()


def _places(counts: NDArray[np.uint32], width: int, beside: int) -> NDArray[np.uint64]:
    """First byte of each bucket in its block, and the bytes of all: between buckets whole words may end."""
    sizes = counts.astype(np.uint64) * np.uint64(width + beside) + np.uint64(KEY_BYTES - width)
    return np.concatenate([np.zeros(1, np.uint64), np.cumsum(sizes)])


BIN_BITS = 16


def bin_shift(span: int) -> int:
    """Bits to drop of a key's distance from the lowest, so that at most 2^16 bins cover `span` keys.

    Examples
    --------
    >>> bin_shift(2**32 * 1000), bin_shift(2**16), bin_shift(1)
    (26, 0, 0)
    """
    return max(0, (span - 1).bit_length() - BIN_BITS)


def plan_buckets(counts: Sequence[int], capacity: int) -> list[int]:
    """Join neighbouring bins to buckets of at most `capacity` keys.

    Parameters
    ----------
    counts
        Keys of each bin.
    capacity
        Most keys of a bucket; a bin with more stays a bucket of its own.

    Returns
    -------
    list of int
        The first bin of each bucket, ascending from 0.

    Examples
    --------
    >>> plan_buckets([3, 1, 0, 4, 9, 1], capacity=4)
    [0, 3, 4, 5]
    """
    starts, held = [0], 0
    for bin_, count in enumerate(counts):
        if bin_ and held + count > capacity:
            starts.append(bin_)
            held = 0
        held += count
    return starts


@numba.njit("void(uint64[::1], uint64, uint64, int64[::1])", cache=True, nogil=True)
def _count_bins(keys, low, shift, counts):
    for key in keys:
        counts[(key - low) >> shift] += 1


@numba.njit("void(uint64[::1], uint64, uint64, uint32[::1], int64[::1], uint64[::1])", cache=True, nogil=True)
def _partition_keys(keys, low, shift, bucket_of, ends, out):
    """Counting sort of `keys` by bucket into `out`; bucket b is out[ends[b - 1]:ends[b]] afterwards."""
    ends[:] = 0
    for key in keys:
        bucket = bucket_of[(key - low) >> shift]
        if bucket + 1 < ends.size:
            ends[bucket + 1] += 1
    for bucket in range(1, ends.size):
        ends[bucket] += ends[bucket - 1]
    for key in keys:
        bucket = bucket_of[(key - low) >> shift]
        out[ends[bucket]] = key
        ends[bucket] += 1


@numba.njit(
    "void(uint64[::1], uint64[::1], uint64, uint64, uint32[::1], int64[::1], uint64[::1])",
    cache=True,
    nogil=True,
)
def _partition_weighted(keys, weights, low, shift, bucket_of, ends, out):
    """Deal keys as `_partition_keys` does, each with its weight behind it."""
    ends[:] = 0
    for key in keys:
        bucket = bucket_of[(key - low) >> shift]
        if bucket + 1 < ends.size:
            ends[bucket + 1] += 1
    for bucket in range(1, ends.size):
        ends[bucket] += ends[bucket - 1]
    for i in range(keys.size):
        bucket = bucket_of[(keys[i] - low) >> shift]
        out[2 * ends[bucket]] = keys[i]
        out[2 * ends[bucket] + 1] = weights[i]
        ends[bucket] += 1


def partition_run(
    run: KeyRun, out: SpillFile, space: NDArray[np.uint64], beside: NDArray[np.float64] | None = None
) -> list[KeyRun]:
    """Deal the keys of `run` to buckets, which lie in `out` one after the other in ascending order.

    Parameters
    ----------
    run
        What to deal; it has more keys than `space` holds, and they are not all the same.
    out
        Receives 8 bytes a key, and 8 for its weight, from byte 0 on.
    space
        Memory to work in, two keys or more, three where they have weights. A bucket of more keys than this is
        one bin.
    beside
        As much memory for weights; None where there are none.

    Returns
    -------
    list of Run
        The buckets that have keys, in ascending order.

    Raises
    ------
    DoesNotFitError
        Where the disk has no room.
    """
    weighted = beside is not None
    size = record_bytes(weighted=weighted)
    require_disk(out.folder, run.count * size)
    shift = bin_shift(run.high - run.low)
    counts = np.zeros(((run.high - run.low - 1) >> shift) + 1, np.int64)
    for keys in run.blocks(space[: space.size // 2]):
        _count_bins(keys, run.low, shift, counts)

    starts = plan_buckets(counts.tolist(), space.size)
    sizes = np.add.reduceat(counts, starts)
    filled = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    bucket_of = np.repeat(np.arange(len(starts), dtype=np.uint32), np.diff(np.append(starts, counts.size)))
    buckets = [
        KeyRun.of_words(
            out,
            int(first),
            int(count),
            run.low + (start << shift),
            min(run.high, run.low + (end << shift)),
            weighted=weighted,
        )
        for start, end, first, count in zip(starts, [*starts[1:], counts.size], filled, sizes, strict=True)
    ]

    ends = np.empty(len(starts), np.int64)
    words = size // KEY_BYTES
    block = space.size // (1 + words)
    dealt = space[block:]
    low, drop = np.uint64(run.low), np.uint64(shift)
    for keys, weights in run.records(space[:block], beside):
        if weights is None:
            _partition_keys(keys, low, drop, bucket_of, ends, dealt)
        else:
            _partition_weighted(keys, weights.view(np.uint64), low, drop, bucket_of, ends, dealt)
        here = np.diff(ends, prepend=0)
        for bucket in np.flatnonzero(here):
            end = ends[bucket]
            out.write(int(filled[bucket]) * size, dealt[words * (end - here[bucket]) : words * end])
        filled += here
    return [bucket for bucket in buckets if bucket.count]


def repartition(
    runs: Sequence[KeyRun],
    relabel: Relabel | None,
    rows: int,
    out: SpillFile,
    block_edges: int,
    crew: BoundedExecutor,
    told: Callable[[int], None],
) -> Partitioner:
    """Deal edges to buckets by their new keys.

    Parameters
    ----------
    runs
        The edges.
    relabel
        Turns their keys into new ones, in place; None where they are new already.
    rows
        New rows are below this number.
    out
        Receives the edges.
    block_edges
        Edges that are dealt at once.
    crew
        Deals.
    told
        Called with the edges read so far.

    Returns
    -------
    Partitioner
        Has dealt all of them.

    Raises
    ------
    DoesNotFitError
        Where the disk has no room.
    """
    count = sum(run.count for run in runs)
    written = sum(int(run.pieces.sizes.sum()) for run in runs)
    require_disk(out.folder, max(0, written - out.room))
    weighted = any(run.pieces.weighted for run in runs)
    buffer = np.empty(max(1, min(block_edges, count)), np.uint64)
    beside = np.empty(buffer.size) if weighted else None

    def renamed(keys: NDArray[np.uint64], weights: NDArray[np.float64] | None = None) -> Edges:
        if relabel is not None:
            relabel(keys)
        tails, heads = keys.astype(np.uint32), (keys >> np.uint64(32)).astype(np.uint32)
        return Edges.of(tails, heads, None if weights is None else weights.copy())

    dealer = Partitioner(out, block_edges, rows, weighted=weighted)
    samples = [renamed(next(run.blocks(buffer[: -(-buffer.size // len(runs))]))).dst for run in runs]
    dealer.plan(np.concatenate(samples or [np.empty(0, np.uint32)]))
    done = 0
    for run in runs:
        for keys, weights in run.records(buffer, beside):
            crew.do(dealer.add, renamed(keys, weights))
            done += keys.size
            told(done)
    crew.finish()
    return dealer
