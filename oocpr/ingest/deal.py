"""Keys dealt to buckets while they are read, before anybody knows all of them.

Each block of keys is written grouped by bucket, so that a bucket is later gathered from a piece of each
block: every key is written once and read once. The ranges of the buckets follow from the first block. Where
later keys are spread otherwise, some buckets become large, and are partitioned when their turn comes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numba
import numpy as np

from oocpr.ingest.budget import KEY_BYTES
from oocpr.ingest.partition import BIN_BITS, Run, bin_shift

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from oocpr.ingest.scratch import Scratch

MOST_BUCKETS = 256
_KEYS_PER_PIECE = 1 << 10


@numba.njit("void(uint64[::1], uint64, uint16[::1], uint32[::1], uint64[::1])", cache=True, nogil=True)
def _deal(keys, shift, bucket_of, counts, out):  # type: ignore[no-untyped-def]
    """Counting sort of keys by bucket."""
    last = np.uint64(bucket_of.size - 1)
    counts[:] = 0
    for key in keys:
        counts[bucket_of[min(key >> shift, last)]] += np.uint32(1)
    places = np.empty(counts.size, np.int64)
    place = 0
    for bucket in range(counts.size):
        places[bucket] = place
        place += counts[bucket]
    for key in keys:
        bucket = bucket_of[min(key >> shift, last)]
        out[places[bucket]] = key
        places[bucket] += 1


class Dealer:
    """Writes keys to a file, block by block, each grouped by bucket.

    Parameters
    ----------
    scratch
        The file; keys are appended from its byte 0 on.
    block_keys
        Most keys of a block.
    nodes
        All keys are below ``nodes << 32``; None where that is not known.

    Attributes
    ----------
    count
        Keys so far.

    Examples
    --------
    >>> from pathlib import Path
    >>> from oocpr.ingest.scratch import Scratch
    >>> with Scratch(Path(".")) as scratch:
    ...     dealer = Dealer(scratch, 4096, None)
    ...     dealer.add(np.array([9, 3], np.uint64))
    ...     dealer.add(np.array([12], np.uint64))
    ...     runs = list(dealer.runs())
    ...     [keys.tolist() for run in runs for keys in run.blocks(np.empty(9, np.uint64))]
    [[3], [9, 12]]
    """

    def __init__(self, scratch: Scratch, block_keys: int, nodes: int | None) -> None:
        self.count = 0
        self._scratch = scratch
        self._buckets = max(2, min(MOST_BUCKETS, block_keys // _KEYS_PER_PIECE))
        self._highest = None if nodes is None else (nodes << 32) - 1
        self._shift = np.uint64(0)
        self._bucket_of = np.empty(0, np.uint16)
        self._counts: list[NDArray[np.uint32]] = []

    def add(self, keys: NDArray[np.uint64]) -> None:
        """Write some keys, uint64, shape (k,)."""
        if not keys.size:
            return
        if not self._counts:
            self._plan(keys)
        counts, out = np.empty(self._buckets, np.uint32), np.empty_like(keys)
        _deal(keys, self._shift, self._bucket_of, counts, out)
        self._scratch.write(self.count * KEY_BYTES, out)
        self._counts.append(counts)
        self.count += keys.size

    def _plan(self, keys: NDArray[np.uint64]) -> None:
        """Choose ranges of keys for buckets such that the first block is spread evenly."""
        span = 1 + (int(keys.max()) if self._highest is None else self._highest)
        self._shift = np.uint64(bin_shift(span))
        bins = np.bincount((keys >> self._shift).astype(np.int64), minlength=min(span, 1 << BIN_BITS))
        before = np.cumsum(bins) - bins
        buckets = np.minimum(before * self._buckets // keys.size, self._buckets - 1)
        self._bucket_of = buckets.astype(np.uint16)

    def runs(self) -> Iterator[Run]:
        """Yield the buckets that have keys, in ascending order."""
        if not self._counts:
            return
        counts = np.array(self._counts, np.int64)
        ends = np.cumsum(counts.sum(axis=1))
        places = ends - counts.sum(axis=1)
        used, first_bins = np.unique(self._bucket_of, return_index=True)
        lows = [int(first) << int(self._shift) for first in first_bins]
        for bucket, low, high in zip(used.tolist(), lows, [*lows[1:], 1 << 64], strict=True):
            sizes = counts[:, bucket]
            here = sizes > 0
            if here.any():
                extents = np.stack([places[here], sizes[here]], axis=1)
                yield Run(self._scratch, 0, int(sizes.sum()), low, high, extents=extents)
            places += sizes
