"""The check that lets decoders run without checks of their own."""

# numba compiles by the types of the arguments, not by annotations.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True, allow-untyped-calls=True

from __future__ import annotations

from numba import uint8, uint64

from oocpr.jit import entry, inner

FAULTS = {
    1: "a group is wider than 32 bits",
    2: "the directory contradicts the widths",
    3: "the number of words contradicts the widths",
    4: "the directory contradicts the exceptions",
    5: "an exception lies behind the last value",
    6: "an exception has more than 32 bits",
}
"""What the numbers that check_stream returns mean."""


@inner()
def _fault(entry, values, widths, first):
    at = entry & uint64(1023)
    if at >= values:
        return 5
    if (entry >> uint64(10)) << uint64(widths[first + (at >> uint64(5))]) >> uint64(32):
        return 6
    return 0


@entry()
def check_stream(size, words, directory, wide, narrow, widths):
    """Return 0, or a key of FAULTS.

    Parameters
    ----------
    size, words, directory, wide, narrow, widths
        The fields of a Stream; their shapes agree with each other.

    Returns
    -------
    int
    """
    position = uint64(0)
    blocks = uint64(directory.shape[0] - 1)
    if directory[0, 1] != 0 or directory[0, 2] != 0:
        return 4
    if directory[blocks, 1] != narrow.size or directory[blocks, 2] != wide.size:
        return 4
    for b in range(blocks):
        if directory[b, 0] != position:
            return 2
        first = uint64(32) * b
        widest = uint8(0)
        for g in range(first, min(uint64(widths.size), first + uint64(32))):
            position += uint64(widths[g])
            widest = max(widest, widths[g])
        if widest > 32:
            return 1
        n_lo, n_hi = uint64(directory[b, 1]), uint64(directory[b + uint64(1), 1])
        w_lo, w_hi = uint64(directory[b, 2]), uint64(directory[b + uint64(1), 2])
        if n_hi < n_lo or n_hi > uint64(narrow.size) or w_hi < w_lo or w_hi > uint64(wide.size):
            return 4
        values = min(uint64(1024), uint64(size) - uint64(1024) * b)
        # Of a full block, exceptions lie inside; and six or 22 bits above a small width always have room.
        if values < uint64(1024) or widest > 26:
            for q in range(n_lo, n_hi):
                fault = _fault(uint64(narrow[q]), values, widths, first)
                if fault:
                    return fault
        if values < uint64(1024) or widest > 10:
            for q in range(w_lo, w_hi):
                fault = _fault(uint64(wide[q]), values, widths, first)
                if fault:
                    return fault
    if directory[blocks, 0] != position:
        return 2
    if words.size != uint64(32) * ((position >> uint64(5)) + uint64(1)):
        return 3
    return 0
