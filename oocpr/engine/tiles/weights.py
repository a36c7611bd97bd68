"""Weighted graphs: weights that travel with their tile, in units that suit the reads.

A run computes with weights times a power of two, so that the largest sum of weights that leaves a node lies
in (1/2, 1]. That is exact and cancels, and no number of a run then depends on the unit that the weights were
given in.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from oocpr.errors import UsageError

if TYPE_CHECKING:
    from oocpr.engine.tiles.source import RankedStore

_CHUNK = 1 << 20

MAX_OCTAVES = {"float64": 900, "float32": 100, "bits16": 100, "bits8": 20}
"""Powers of two between the smallest and the largest sum of weights that numbers per unit of weight may span:
a half is left to the ranks themselves, of ``bits8`` a fifth."""


class WeightScale(NamedTuple):
    """A power of two that a run multiplies weights by, and the least out-weight above zero, so scaled."""

    factor: float
    least: float


def weight_scale_of(store: RankedStore, reads: str) -> WeightScale | None:
    """Choose the scale of a graph's weights; None for a graph without weights.

    Raises UsageError if a number per unit of weight spans more than the reads can hold.
    """
    if store.weights is None:
        return None
    most, least = 0.0, math.inf
    for lo in range(0, store.nodes, _CHUNK):
        sums = store.out_weight(lo, min(store.nodes, lo + _CHUNK))
        sums = sums[sums > 0]
        if sums.size:
            most, least = max(most, float(sums.max())), min(least, float(sums.min()))
    if most == 0.0:
        return WeightScale(1.0, 1.0)
    octaves = math.frexp(most)[1] - math.frexp(least)[1]
    if octaves > MAX_OCTAVES[reads]:
        wider = [name for name, room in MAX_OCTAVES.items() if octaves <= room]
        raise UsageError(
            f"the weights that leave a node sum to {least:.3g} and to {most:.3g}: too far apart for reads "
            f"{reads}.",
            f"Use reads {' or '.join(wider)}." if wider else "Leave out links of next to no weight.",
        )
    fraction, exponent = math.frexp(most)
    # 2**1074 is no number: weights that small are brought nearer to one, not to it.
    factor = math.ldexp(1.0, min(1023, (fraction == 0.5) - exponent))
    return WeightScale(factor, least * factor)
