"""Marks of nodes: numbers that depend on a key, different for any two nodes, and their sums.

A mark has 32 bits: the node's number, turned about by two multiplications with odd numbers and two shifts,
each of which can be undone. Processors make eight at a time from columns that they have just decoded.
"""

from __future__ import annotations

from numba import uint32, uint64

from oocpr.jit import entry, inner

MODULUS = 2**64
"""Sums are taken modulo this."""


@inner(inline="always")
def _mark(node, first, second):
    mark = uint32(uint32(node) * first)
    mark = uint32(uint32(mark ^ (mark >> uint32(16))) * second)
    return uint32(mark ^ (mark >> uint32(15)))


@inner()
def add_marks(columns, first, end, key):
    """Sum of the marks of ``columns[first:end]``, modulo 2^64."""
    one = uint32(uint64(key) | uint64(1))
    other = uint32((uint64(key) >> uint64(31)) | uint64(1))
    total = uint64(0)
    for i in range(uint64(first), uint64(end)):
        total += uint64(_mark(columns[i], one, other))
    return total


@entry()
def column_marks(columns, key):
    """Sum of the marks of columns, uint32, modulo 2^64; the key is positive.

    >>> import numpy as np
    >>> columns = np.array([1, 0, 1], np.uint32)
    >>> column_marks(columns, 7) == degree_marks(np.array([1, 2], np.uint32), 0, 7)
    True
    """
    return add_marks(columns, 0, columns.size, key)


@entry()
def degree_marks(degree, first, key):
    """Sum of out-degree times mark, modulo 2^64, over the nodes from `first` on; uint32 degrees.

    >>> import numpy as np
    >>> degree = np.array([3, 1], np.uint32)
    >>> bool(degree_marks(degree, 0, 7) == degree_marks(degree[::-1].copy(), 0, 7))
    False
    """
    one = uint32(uint64(key) | uint64(1))
    other = uint32((uint64(key) >> uint64(31)) | uint64(1))
    total = uint64(0)
    for i in range(uint64(degree.size)):
        total += uint64(degree[i]) * uint64(_mark(uint64(first) + i, one, other))
    return total
