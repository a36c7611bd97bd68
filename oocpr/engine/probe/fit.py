"""How fast tiles pass through a device, by what the device's own clock says of some of them.

A round over a few tiles ends before its copies would hold a pass up: those of the next round go on while
nothing is computed. So copies and kernels are timed each for themselves, and a plan puts them together.
"""

from __future__ import annotations

from statistics import median
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from oocpr.engine.trace import COMPUTE, COPY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from oocpr.engine.trace import Span


ALONE = 0.25
"""Share of the copies that have the link for themselves, at least."""


class TileTimings(NamedTuple):
    """What tiles take that pass through a device; nothing where none does.

    Attributes
    ----------
    sent, swept
        Seconds in which each tile that was measured comes over the link, and of its kernels once it is there.
    row
        Seconds of kernels for each row.
    """

    sent: Mapping[int, float] = MappingProxyType({})
    swept: Mapping[int, float] = MappingProxyType({})
    row: float = 0.0


def tile_timings(
    spans: Sequence[Span], tiles: Mapping[int, tuple[float, float]], slices: int = 1
) -> TileTimings:
    """Read the pace off a timeline, which has two spans of kernels for each tile, slice and round.

    The first round is left out, in which what notes them takes memory.

    Parameters
    ----------
    spans
        Of rounds over the tiles, those of a track in their order.
    tiles
        Edges and rows of each.
    slices
        How often a round takes each tile; told is what it takes once, as a rule.
    """
    if not tiles:
        return TileTimings()
    computed: dict[str, list[float]] = {f"tile {tile}": [] for tile in tiles}
    copied: dict[str, list[float]] = {f"tile {tile}": [] for tile in tiles}
    for span in spans:
        kind, took = span.track.split(",")[0], span.end - span.begin
        if kind == COPY:
            copied[span.name].append(took)
        elif kind == COMPUTE:
            computed[span.name].append(took)
    # The runs of a round differ: rows are dealt with in the last.
    each = 2 * slices
    swept = [median(np.reshape(took[each:], (-1, each)).sum(axis=1)) / slices for took in computed.values()]
    # Copies that kernels delay, which reach rows over the link as well, do not show how fast it is alone.
    sent = [float(np.quantile(took[1:], ALONE)) for took in copied.values()]
    edges, rows = np.array(list(tiles.values()), np.float64).T
    row = fitted(edges, rows, np.array(swept))[1]
    return TileTimings(dict(zip(tiles, sent, strict=True)), dict(zip(tiles, swept, strict=True)), row)


def fitted(
    edges: NDArray[np.float64], rows: NDArray[np.float64], seconds: NDArray[np.float64]
) -> tuple[float, float]:
    """Seconds an edge and a row, neither below zero, by least squares; all of edges where they cannot tell.

    Examples
    --------
    >>> edge, row = fitted(np.array([100.0, 100.0, 50.0]), np.array([10.0, 500.0, 20.0]),
    ...                    np.array([1.1, 6.0, 0.7]))
    >>> f"{edge:.3f} {row:.3f}"
    '0.010 0.010'
    """
    # Numbers of edges and of rows may be orders of magnitude apart.
    scale = edges.max(), max(1.0, rows.max())
    columns = np.stack([edges / scale[0], rows / scale[1]], axis=1)
    (edge, row), _, rank, _ = np.linalg.lstsq(columns, seconds)
    # The least squares of two numbers, one of which must not be negative and is, have it at zero.
    if rank < 2 or row < 0:
        edge, row = _alone(columns[:, 0], seconds), 0.0
    elif edge < 0:
        edge, row = 0.0, _alone(columns[:, 1], seconds)
    return float(edge / scale[0]), float(row / scale[1])


def _alone(column: NDArray[np.float64], seconds: NDArray[np.float64]) -> float:
    return float(column @ seconds / (column @ column))
