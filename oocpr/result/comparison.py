"""How far two rankings are from each other, whose nodes need not be the same or in the same order."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from oocpr.engine.top_k import largest
from oocpr.errors import InputError
from oocpr.html import html_table
from oocpr.result.names import UNKNOWN, find_rows, zip_blocks
from oocpr.result.rank_files import beside
from oocpr.units import format_count, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from oocpr.result.names import Name
    from oocpr.result.ranks import Ranks

MOVERS = 10
"""Nodes that are listed: those whose ranks differ most."""
_MISSING = -math.inf
_COLUMNS = ("node", "rank", "before", "place", "before")


class Mover(NamedTuple):
    """A node, its rank and place in one ranking, and in the other; 0 and None where it is missing.

    The place is one more than the number of nodes with larger ranks.
    """

    node: Name
    rank: float
    other_rank: float
    place: int | None
    other_place: int | None


@dataclass(frozen=True)
class Comparison:
    """How one ranking differs from another; made by `Ranks.compare`.

    Parameters
    ----------
    nodes, other_nodes, common
        Nodes of the one ranking, of the other, and of both.
    distance
        L1 distance: the sum of the differences of all ranks, those of missing nodes being 0.
    top, overlap
        How many nodes of largest rank were compared, and the share of them that is the same, in [0, 1]. Of
        nodes that tie at the end of either top those count that stand first in the one ranking.
    kendall_tau
        Kendall's tau-b of the ranks of all nodes that are among these of one ranking at least, in [-1, 1];
        1 if both rankings give them all the same rank, and NaN if one of them does.
    movers
        The nodes whose ranks differ most, the largest difference first.
    """

    nodes: int
    other_nodes: int
    common: int
    distance: float
    top: int
    overlap: float
    kendall_tau: float
    movers: tuple[Mover, ...]

    def _facts(self) -> list[tuple[str, str]]:
        return [
            ("nodes", f"{format_count(self.nodes)}, before {format_count(self.other_nodes)}"),
            ("nodes in both", format_count(self.common)),
            ("L1 distance", f"{self.distance:.3g}"),
            (f"top {self.top} in both", f"{self.overlap:.1%}"),
            ("Kendall's tau", f"{self.kendall_tau:.3f}"),
        ]

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (
                printable(mover.node), f"{mover.rank:.4g}", f"{mover.other_rank:.4g}",
                *("-" if place is None else f"{place:,}" for place in (mover.place, mover.other_place)),
            )
            for mover in self.movers
        ]  # fmt: skip

    def __str__(self) -> str:
        """Return the comparison as a person reads it."""
        rows = [_COLUMNS, *self._rows()]
        first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
        table = ["  ".join((row[0].ljust(first), *map(str.rjust, row[1:], others))) for row in rows]
        return "\n".join((*(f"{name:<18} {value}" for name, value in self._facts()), *table))

    def _repr_html_(self) -> str:
        return html_table(self._facts()) + html_table(self._rows(), header=_COLUMNS, caption="Movers")

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw by how much the ranks of the movers differ, with Matplotlib, and return the axes.

        Raises SetupError if Matplotlib is not installed.
        """
        from oocpr.result.plots import plot_movers

        return plot_movers(self, ax)


def compare_ranks(ranks: Ranks, other: Ranks, top: int) -> Comparison:
    """Compare rankings by the names of their nodes; see `Ranks.compare`."""
    ranks, other = beside(ranks, other.names), beside(other, ranks.names)
    # Nodes of the one ranking, then those that only the other has; -inf where a node is missing.
    here, there, only_there = _aligned(ranks, other)
    common = int(np.count_nonzero((here > _MISSING) & (there > _MISSING)))
    first, second = (_largest(values, top) for values in (here, there))
    listed = max(first.size, second.size)
    overlap = np.intersect1d(first, second).size / listed if listed else 1.0
    here_known, there_known = (np.where(known > _MISSING, known, 0.0) for known in (here, there))
    union = np.union1d(first, second)
    tau = _kendall_tau(here_known[union], there_known[union])
    change = np.abs(here_known - there_known)
    moved = _largest(change, MOVERS)
    moved = moved[change[moved] > 0]
    return Comparison(
        nodes=ranks.nodes,
        other_nodes=other.nodes,
        common=common,
        distance=float(change.sum()),
        top=top,
        overlap=overlap,
        kendall_tau=tau,
        movers=tuple(
            Mover(
                _name(ranks, other, only_there, row), float(here_known[row]), float(there_known[row]),
                _place(here, row), _place(there, row),
            )
            for row in moved.tolist()
        ),
    )  # fmt: skip


def _aligned(
    ranks: Ranks, other: Ranks
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Ranks of the nodes of both rankings, in one order, and the rows of the other that are its end."""
    here, theirs = ranks.to_numpy(), other.to_numpy()
    rows, at = np.empty(other.nodes, np.int64), 0
    entries = zip_blocks(other.names.blocks(other.nodes), iter([theirs]))
    for _, found, _ in find_rows(ranks.names, ranks.nodes, entries):
        rows[at : at + found.size] = found
        at += found.size
    only_there = np.flatnonzero(rows == UNKNOWN)
    there = np.full(here.size + only_there.size, _MISSING)
    known = rows != UNKNOWN
    there[rows[known]] = theirs[known]
    if np.count_nonzero(there > _MISSING) < np.count_nonzero(known):
        raise InputError(
            "The other ranking has several ranks for one node name.",
            "Names must tell nodes apart: give the graph other labels.",
        )
    there[here.size :] = theirs[only_there]
    return np.concatenate((here, np.full(only_there.size, _MISSING))), there, only_there


def _largest(values: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Rows of the largest values that are not missing."""
    rows, found = largest([values], count)
    return rows[found > _MISSING]


def _name(ranks: Ranks, other: Ranks, only_there: NDArray[np.int64], row: int) -> Name:
    if row < ranks.nodes:
        return ranks.names.take(np.array([row]))[0]
    return other.names.take(only_there[[row - ranks.nodes]])[0]


def _place(values: NDArray[np.float64], row: int) -> int | None:
    return 1 + int(np.count_nonzero(values > values[row])) if values[row] > _MISSING else None


def _kendall_tau(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    from scipy.stats import kendalltau

    tied = [bool((ranks == ranks[:1]).all()) for ranks in (one, other)]
    if any(tied):
        # No pair is ordered by one of them. If none is by the other either, the orders are the same.
        return 1.0 if all(tied) else math.nan
    return float(kendalltau(one, other).statistic)
