"""Formats of the pushed numbers that rows read, and what they cost in precision.

A row gathers x = narrow(push / out-degree). Exactly what was stored is subtracted from the residual, so a
format decides how fast the residual falls and never what it falls to. A format whose rounding error is at
most u times the number shrinks the residual by at least damping + (1 + damping) u a pass, hence converges
when u < (1 - damping) / (1 + damping).

``bits16``
    The upper half of a float32: sign, 8 bits of exponent, 7 of mantissa, rounded to nearest even.
``bits8``
    Sign and a 7-bit logarithm: level 0 is zero, level k stands for scale * 2**((k - 127) / 5), so a byte
    spans 25 octaves below the scale of the pass. A number is given the level nearest to it; one above the
    scale is cut to it. Five levels an octave keep u = (2**0.2 - 1) / (2**0.2 + 1) = 0.0692 below the 0.081
    that damping 0.85 allows, which four would not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEVELS_PER_OCTAVE = 5
_STEP = 2.0 ** (1 / LEVELS_PER_OCTAVE)

_MEAN = 0.25 / math.log(2)
"""Of the largest relative error in binary: half of it, over mantissas from 1 to 2."""


@dataclass(frozen=True)
class NumberFormat:
    """A format of the numbers that rows gather.

    The relative errors of rounding to it are the largest, and the mean over numbers of all sizes alike.
    """

    name: str
    dtype: str
    unit_rounding: float
    mean_rounding: float

    @property
    def bytes(self) -> int:
        """Bytes of one number."""
        return np.dtype(self.dtype).itemsize


READS = {
    reads.name: reads
    for reads in (
        NumberFormat("float64", "float64", 2.0**-53, _MEAN * 2.0**-53),
        NumberFormat("float32", "float32", 2.0**-24, _MEAN * 2.0**-24),
        NumberFormat("bits16", "uint16", 2.0**-8, _MEAN * 2.0**-8),
        NumberFormat("bits8", "uint8", (_STEP - 1) / (_STEP + 1), 0.5 * (_STEP - 1) / (_STEP + 1)),
    )
}


def level_table() -> NDArray[np.float64]:
    """Magnitude of each of the 256 bytes for a scale of one; float64, shape (256,).

    Examples
    --------
    >>> table = level_table()
    >>> float(table[127]), float(table[255]), float(table[122]), float(table[0])
    (1.0, -1.0, 0.5, 0.0)
    """
    table = np.zeros(256)
    for level in range(1, 128):
        octaves, steps = divmod(level - 127, LEVELS_PER_OCTAVE)
        table[level] = np.ldexp(_FRACTIONS[steps], octaves)
        table[level + 128] = -table[level]
    return table


# 2**(k/5) in 20 bits after the point, so that a level times an out-degree below 2**32 is exact in float64.
_FRACTIONS = tuple(round(2.0 ** (k / LEVELS_PER_OCTAVE) * 2**20) / 2**20 for k in range(LEVELS_PER_OCTAVE))


def level_edges() -> NDArray[np.float64]:
    """Smallest magnitude, for a scale of one, that is given each level; float64, shape (128,).

    The edge between two levels is their mean, where both are equally wrong; half of the lowest level and
    less becomes zero, and what a flush loses stays in the residual.
    """
    levels = level_table()[:128]
    edges = np.zeros(128)
    edges[1] = levels[1] / 2
    edges[2:] = (levels[1:-1] + levels[2:]) / 2
    return edges


def narrow(values: NDArray[np.float64], reads: str, scale: float = 1.0) -> NDArray[np.generic]:
    """Round numbers to a format; the plain reference of what the backends do.

    `scale` is the largest magnitude that ``bits8`` can hold.

    Examples
    --------
    >>> narrow(np.array([1.0, -2.0]), "bits16").tolist()
    [16256, 49152]
    """
    if reads == "bits16":
        bits = values.astype(np.float32).view(np.uint32)
        return ((bits + (np.uint32(0x7FFF) + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
    if reads == "bits8":
        level = np.searchsorted(level_edges()[1:], np.abs(values) / scale, side="right")
        return (level + 128 * ((values < 0) & (level > 0))).astype(np.uint8)
    return values.astype(READS[reads].dtype)


def widen(stored: NDArray[np.generic], reads: str, scale: float = 1.0) -> NDArray[np.float64]:
    """Read stored numbers back as float64; exact for every format but ``bits8``'s scaling.

    Examples
    --------
    >>> widen(narrow(np.array([1.0, -0.3]), "bits16"), "bits16").tolist()
    [1.0, -0.30078125]
    """
    if reads == "bits16":
        return (stored.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if reads == "bits8":
        levels: NDArray[np.float64] = level_table()[stored]
        return levels * scale
    return stored.astype(np.float64)
