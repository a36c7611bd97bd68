"""Weights as mantissa segments: all heads of a tile first, then all second parts, and so on.

The idea is from Grützmacher, Anzt, Scheidegger and Quintana-Ortí, "High-performance GPU implementation of
PageRank with reduced precision based on mantissa segmentation", IA3 (2018).
"""

# numba compiles by the types of the arguments, not by annotations.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True, allow-untyped-calls=True

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import uint64
from numpy.typing import NDArray

from oocpr.errors import DamagedError
from oocpr.jit import entry

SEGMENTS = 4  # of 16 bits each, the head with the sign, the exponent and four bits of the mantissa
SEGMENTS_MAGIC = b"ocs1"
HEADER_BYTES = 16
_ALIGNMENT = 16


class Segments(NamedTuple):
    """Views into a chunk: the segments of its `size` values, heads first; one of shape (0,) is all zeros."""

    size: int
    parts: tuple[NDArray[np.uint16], NDArray[np.uint16], NDArray[np.uint16], NDArray[np.uint16]]


def segment_bytes(count: int) -> int:
    """Bytes of one segment of `count` values in a chunk."""
    return -(-2 * count // _ALIGNMENT) * _ALIGNMENT


def max_weight_bytes(count: int) -> int:
    """Max of bytes of a chunk of `count` values."""
    return HEADER_BYTES + SEGMENTS * segment_bytes(count)


@entry(shared=True)
def join_parts(head, second, third, fourth, out):
    """Put the bits of values together in `out`, uint64, of those segments that are there."""
    for i in range(out.size):
        out[i] = 0
    if head.size:
        for i in range(head.size):
            out[i] = uint64(head[i]) << uint64(48)
    if second.size:
        for i in range(second.size):
            out[i] |= uint64(second[i]) << uint64(32)
    if third.size:
        for i in range(third.size):
            out[i] |= uint64(third[i]) << uint64(16)
    if fourth.size:
        for i in range(fourth.size):
            out[i] |= uint64(fourth[i])


def are_weights(heads: NDArray[np.uint16]) -> bool:
    """Whether the numbers with these heads are weights: finite and not below 0.

    >>> heads = lambda *values: np.array(values, np.float64).view(np.uint16)[3::4]
    >>> are_weights(heads(0, 1, 1e308)), are_weights(heads(-1)), are_weights(heads(np.nan))
    (True, False, False)
    """
    return bool(heads.max(initial=0) < 0x7FF0)


def encode_segments(values: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Split values, float64, into segments, the bytes of a chunk; those that are all zero are left out.

    >>> coded = encode_segments(np.array([1.0, 2.0, 0.1]))
    >>> join_segments(coded).tolist(), join_segments(coded, segments=1).tolist()
    ([1.0, 2.0, 0.1], [1.0, 2.0, 0.09765625])
    >>> encode_segments(np.array([1.0, 2.0, 3.0])).size, coded.size
    (32, 80)
    """
    union = int(np.bitwise_or.reduce(values.view(np.uint64)))
    mask = sum(1 << k for k in range(SEGMENTS) if union >> (48 - 16 * k) & 0xFFFF)
    size = segment_bytes(values.size)
    out = np.empty(HEADER_BYTES + mask.bit_count() * size, np.uint8)
    header = out[:HEADER_BYTES].view("<u4")
    header[:] = int.from_bytes(SEGMENTS_MAGIC, "little"), mask, values.size, 0
    at = HEADER_BYTES
    for k in range(SEGMENTS):
        if mask >> k & 1:
            words = out[at : at + size].view("<u2")
            words[: values.size] = values.view("<u2")[3 - k :: SEGMENTS]
            words[values.size :] = 0
            at += size
    return out


def parse_segments(coded: NDArray[np.uint8], segments: int = SEGMENTS) -> Segments:
    """Find the first segments of a chunk, which may end behind them; DamagedError if it is not one."""
    if coded.size < HEADER_BYTES or coded[:4].tobytes() != SEGMENTS_MAGIC:
        raise DamagedError("A chunk of weights does not begin as one.")
    mask, count, zero = np.frombuffer(coded[4:HEADER_BYTES].tobytes(), "<u4").tolist()
    size = segment_bytes(count)
    if mask >> SEGMENTS or zero:
        raise DamagedError("A chunk of weights has unknown segments.")
    wanted = mask & (1 << segments) - 1
    needed = HEADER_BYTES + wanted.bit_count() * size
    if coded.size < needed or coded.size > HEADER_BYTES + mask.bit_count() * size:
        raise DamagedError(f"A chunk of {count} weights has {coded.size} bytes.")
    parts = []
    at = HEADER_BYTES
    for k in range(SEGMENTS):
        there = wanted >> k & 1
        parts.append(coded[at : at + 2 * count * there].view("<u2"))
        at += size * there
    return Segments(count, (parts[0], parts[1], parts[2], parts[3]))


def join_segments(
    coded: NDArray[np.uint8], out: NDArray[np.float64] | None = None, segments: int = SEGMENTS
) -> NDArray[np.float64]:
    """Put values together from their first segments, into `out` if given; those that the chunk lacks are 0.

    Raises DamagedError if the bytes are not those of a chunk, or it has more values than `out`.
    """
    found = parse_segments(coded, segments)
    values = np.empty(found.size) if out is None else out
    if found.size > values.size:
        raise DamagedError(f"A chunk has {found.size} weights where {values.size} belong.")
    join_parts(*found.parts, values.view(np.uint64))
    return values
