"""The coder of row offsets: non-decreasing 64-bit integers as a base and packed steps."""

# numba compiles by the types of the arguments, not by annotations.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True, allow-untyped-calls=True

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import uint64

from oocpr.jit import entry
from oocpr.store.codec.layout import GROUP, parse_offsets
from oocpr.store.codec.layout_writer import write_offsets
from oocpr.store.codec.tile_decoder import unpack_block
from oocpr.store.codec.tile_encoder import pack_stream

if TYPE_CHECKING:
    from numpy.typing import NDArray


def encode_offsets(offsets: NDArray[np.int64]) -> bytes | None:
    """Encode non-decreasing offsets.

    Parameters
    ----------
    offsets
        int64, shape (k,), k >= 1.

    Returns
    -------
    bytes or None
        None where a step is negative or 2^32 or more.

    Examples
    --------
    >>> coded = encode_offsets(np.array([5, 5, 9]))
    >>> decode_offsets(np.frombuffer(coded, np.uint8)).tolist()
    [5, 5, 9]
    """
    steps = np.diff(offsets, prepend=offsets[:1])
    if steps.min() < 0 or steps.max() >= 1 << 32:
        return None
    padded = np.zeros(-(-steps.size // GROUP) * GROUP, np.uint32)
    padded[: steps.size] = steps
    return write_offsets(int(offsets[0]), pack_stream(padded, steps.size))


def decode_offsets(buf: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Decode what encode_offsets returned.

    Parameters
    ----------
    buf
        uint8, shape (bytes,).

    Returns
    -------
    int64, shape (k,)

    Raises
    ------
    DamagedError
        If the bytes are not those of a chunk of offsets.
    """
    base, steps = parse_offsets(buf)
    out = np.empty(steps.size, np.int64)
    _add_up(steps, base, out)
    return out


@entry()
def _add_up(steps, base, out):
    buf = np.empty(1024, np.uint32)
    total = np.int64(base)
    for b in range(uint64(steps.directory.shape[0] - 1)):
        unpack_block(steps, b, 0, buf, uint64(0))
        first = uint64(1024) * b
        for i in range(min(uint64(1024), uint64(steps.size) - first)):
            total += np.int64(buf[i])
            out[first + i] = total
