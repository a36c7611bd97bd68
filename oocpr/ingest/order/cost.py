"""What an order of the nodes is worth: stored bytes, and gathers that a small cache would not hold.

Both are those of a sample; the bytes are what the store's own coder makes of it. The cache is one of 1 MiB
in lines of 64 bytes, sets of eight, of which the line that was not used for longest is replaced: about what a
core has for itself. A node takes four bytes in it, its push and its proposal.
"""

# Numba carries no types.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True, allow-untyped-calls=True

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from oocpr.ingest.order.choose import Worth
from oocpr.jit import entry
from oocpr.store.codec.tile_encoder import encode_tile

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oocpr.ingest.order.sample import Sample

SETS, WAYS = 1 << 11, 8
LINE_NODES = 16
"""Nodes that share a line."""


def measure(sample: Sample) -> Worth:
    """Encode a sample and go over its links twice, the second time with a cache that has seen the first.

    Examples
    --------
    >>> from oocpr.ingest.order.sample import Sample
    >>> keys = np.arange(40, dtype=np.uint64) * np.uint64(20)
    >>> worth = measure(Sample(keys, np.array([[0, 1]])))
    >>> worth.edges, worth.missed
    (40, 0)
    """
    size = 0
    for first, end in sample.windows.tolist():
        low, high = np.searchsorted(sample.keys, np.array([first, end], np.uint64) << np.uint64(32))
        keys = sample.keys[low:high]
        lengths = np.bincount((keys >> np.uint64(32)).astype(np.int64) - first, minlength=end - first + 1)
        size += len(encode_tile(keys.astype(np.uint32), lengths))
    cache = np.full((SETS, WAYS), 0xFFFFFFFF, np.uint32)
    missed = [count_missed(sample.keys, cache) for _ in range(2)][1]
    return Worth(sample.keys.size, size, missed)


def count_missed(keys: NDArray[np.uint64], cache: NDArray[np.uint32]) -> int:
    """Count the columns of keys that a cache does not hold when their turn comes.

    Parameters
    ----------
    keys
        uint64, shape (k,).
    cache
        Lines that it holds, the one that was used last first in each set: uint32, shape (sets, ways), sets
        a power of two; 0xFFFFFFFF for none. It is left as the last column left it.

    Examples
    --------
    >>> cache = np.full((1, 2), 0xFFFFFFFF, np.uint32)
    >>> count_missed(np.array([0, 16, 15, 32, 16], np.uint64), cache), cache
    (4, array([[1, 2]], dtype=uint32))
    """
    return int(_count_missed(keys, cache))


@entry()
def _count_missed(keys, cache):
    missed = 0
    sets, ways = cache.shape
    for key in keys:
        line = np.uint32((key & np.uint64(0xFFFFFFFF)) // np.uint64(LINE_NODES))
        lines = cache[line & np.uint32(sets - 1)]
        way = 0
        while way < ways and lines[way] != line:
            way += 1
        if way == ways:
            missed += 1
            way -= 1
        for k in range(way, 0, -1):
            lines[k] = lines[k - 1]
        lines[0] = line
    return missed
