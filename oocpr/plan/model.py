"""How long a pass takes, from measured rates."""

from __future__ import annotations

import math
from dataclasses import dataclass

MIXED_SHARE = 0.25
"""Passes of ``mixed`` over those of power iteration at worst; crawls, citation, social and call graphs
needed 0.15 to 0.25 of what power iteration needed on them, with four sweeps a tile."""


COMPONENT_PASSES = 2
"""Passes of ``components``: each takes five to six digits."""

COMPONENT_SWEEPS = 30
"""Visits of each link in such a pass, on crawls and social graphs; call and citation graphs need fewer."""

DEVICE_MIXING = 3
"""Passes that mixing remembers on a CUDA device, where two more took longer than the passes they saved."""

SMALL_EDGES = 2**23
"""Edges up to which a CUDA device sweeps a graph faster than a host can tell it to."""

MOST_WHOLE_EDGES = 2**22
"""Edges up to which solving components in memory took less time than passes over tiles on crawls, social,
citation, call and package graphs; random graphs mix so fast that passes are as good from 2**20 on."""


MOST_ORDERED_EDGES = 2**31
"""Edges that 32 bits can number twice over."""


@dataclass(frozen=True)
class Rates:
    """What a device was seen to do.

    Parameters
    ----------
    store_bytes
        Encoded bytes a second from the store to memory.
    edges
        Edges a second decoded, gathered and summed.
    rows
        Rows a second updated between two passes.
    """

    store_bytes: float
    edges: float
    rows: float


def predicted_passes(damping: float, tol: float, method: str) -> int:
    """Passes of a graph that mixes as slowly as the damping allows.

    Examples
    --------
    >>> predicted_passes(0.85, 1e-10, "power"), predicted_passes(0.85, 1e-10, "mixed")
    (158, 40)
    """
    if method == "components":
        return COMPONENT_PASSES
    power = max(1, math.ceil(math.log(tol * (1 - damping) / 2) / math.log(damping)))
    return math.ceil(power * MIXED_SHARE) if method == "mixed" else power


def pass_seconds(rates: Rates, *, edges: int, gathers: float, rows: int, streamed_bytes: int) -> float:
    """Seconds of one pass: the link or the arithmetic, whichever is slower, and the rows' own work.

    Examples
    --------
    >>> pass_seconds(Rates(1e9, 1e9, 1e8), edges=10**9, gathers=1.5, rows=10**7, streamed_bytes=2 * 10**9)
    2.1
    """
    return max(streamed_bytes / rates.store_bytes, edges * gathers / rates.edges) + rows / rates.rows
