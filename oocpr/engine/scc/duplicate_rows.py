"""Rows with the same links: summed once for all of them.

Pages made from one template are linked to from the same pages; in a crawl more than a third of all links
repeat those of another row.
"""

# Compiled functions carry no types: numba infers them.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True
# mypy: allow-untyped-calls=True, check-untyped-defs=False

from __future__ import annotations

import numpy as np
from numba import uint32, uint64

from oocpr.jit import inner

_NOBODY = 2**32 - 1
_FACTOR = 0x9E3779B97F4A7C15


@inner()
def _hash(first, end, columns):
    """64 bits that differ, as a rule, where lists do."""
    word = end - first
    for i in range(first, end):
        word = (word ^ uint64(columns[i])) * uint64(_FACTOR)
        word ^= word >> uint64(29)
    return word


@inner()
def find_twins(rows, lengths, own, made, alike):
    """Find which rows repeat the links of an earlier one.

    Parameters
    ----------
    rows
        uint32: rows to compare with each other.
    lengths, own, made
        As for `slicing.slice_group`.
    alike
        uint32, by row: receives the first row with the same links in the same order, often the row itself;
        always where there is one link, for then there is no sum to share.
    """
    size = uint64(16)
    while size < uint64(2) * uint64(rows.size):
        size *= uint64(2)
    table = np.full(size, uint32(_NOBODY), np.uint32)
    hashes = np.empty(size, np.uint64)
    for row in rows:
        alike[row] = row
        length = uint64(lengths[row])
        if length < uint64(2):
            continue
        first = uint64(made.offsets[row]) + uint64(own * made.outer[row])
        word = _hash(first, first + length, made.columns)
        at = word & (size - uint64(1))
        while table[at] != uint32(_NOBODY):
            other = table[at]
            if hashes[at] == word and uint64(lengths[other]) == length:
                begin = uint64(made.offsets[other]) + uint64(own * made.outer[other])
                k = uint64(0)
                while k < length and made.columns[begin + k] == made.columns[first + k]:
                    k += uint64(1)
                if k == length:
                    alike[row] = other
                    break
            at = (at + uint64(1)) & (size - uint64(1))
        if alike[row] == row:
            table[at] = row
            hashes[at] = word
