"""Keys that do not fit in memory are dealt to buckets that do, by a first pass that counts them.

A bucket is a range of keys. The ranges follow from a histogram over equal bins of the key space, so they
are contiguous rows as a rule and parts of the columns of one row where a row alone is too large. A bin
that is too large by itself becomes a bucket that is partitioned again when its turn comes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numba
import numpy as np

from oocpr.ingest.spill.files import require_disk
from oocpr.ingest.spill.keys import KEY_BYTES, KeyRun, record_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from oocpr.ingest.spill.files import SpillFile

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
def _count_bins(keys, low, shift, counts):  # type: ignore[no-untyped-def]
    for key in keys:
        counts[(key - low) >> shift] += 1


@numba.njit("void(uint64[::1], uint64, uint64, uint32[::1], int64[::1], uint64[::1])", cache=True, nogil=True)
def _partition_keys(keys, low, shift, bucket_of, ends, out):  # type: ignore[no-untyped-def]
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
def _partition_weighted(keys, weights, low, shift, bucket_of, ends, out):  # type: ignore[no-untyped-def]
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
