"""What people would rather look at than read, drawn with Matplotlib."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oocpr.errors import SetupError, UsageError, install_remedy
from oocpr.system import spans
from oocpr.units import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from matplotlib.axes import Axes

    from oocpr.result.comparison import Comparison
    from oocpr.result.ranks import Ranks

_BINS_PER_DECADE = 20
_DECADES = 20  # below one: no rank of a graph that fits anywhere is smaller
_ROWS = 1 << 20
_WIDTH, _HEIGHT = 4.2, 3.4  # inches of a panel


def plot_ranks(ranks: Ranks, in_degrees: Callable[[int, int], NDArray[Any]] | None) -> list[Axes]:
    """Draw the panels that there is something for, side by side; see `Ranks.plot`."""
    panels: list[Callable[[Axes], None]] = []
    if ranks.history:
        panels += [
            lambda ax: _draw_bounds(ranks, ax, times=False),
            lambda ax: _draw_bounds(ranks, ax, times=True),
        ]
    panels.append(lambda ax: _draw_distribution(ranks, ax))
    if in_degrees is not None:
        panels.append(lambda ax: _draw_degrees(ranks, in_degrees, ax))
    columns = min(2, len(panels))
    lines = -(-len(panels) // columns)
    figure, axes = _pyplot().subplots(
        lines, columns, figsize=(columns * _WIDTH, lines * _HEIGHT), layout="constrained", squeeze=False
    )
    drawn: list[Axes] = list(axes.flat)
    for ax in drawn[len(panels) :]:
        figure.delaxes(ax)
    for draw, ax in zip(panels, drawn, strict=False):
        draw(ax)
    return drawn[: len(panels)]


def plot_movers(comparison: Comparison, ax: Axes | None) -> Axes:
    """Draw the differences of the ranks that differ most; see `Comparison.plot`."""
    if ax is None:
        ax = _pyplot().subplots(figsize=(1.5 * _WIDTH, _HEIGHT), layout="constrained")[1]
    movers = comparison.movers[::-1]
    changes = [mover.rank - mover.other_rank for mover in movers]
    # By place: several names may be drawn as the same text.
    ax.barh(range(len(movers)), changes, color=["C0" if change > 0 else "C3" for change in changes])
    # A dollar sign would begin a formula.
    ax.set_yticks(range(len(movers)), [printable(mover.node).replace("$", r"\$") for mover in movers])
    ax.axvline(0, color="0.5", linewidth=0.8)
    ax.set(title="Movers", xlabel="difference of ranks")
    return ax


def _draw_bounds(ranks: Ranks, ax: Axes, *, times: bool) -> None:
    seconds = accumulate(record.seconds for record in ranks.history)
    at: list[float] = list(seconds) if times else [record.number for record in ranks.history]
    bounds = [record.bound for record in ranks.history]
    ax.semilogy(at, bounds, marker=".")
    if ranks.run is not None:
        ax.axhline(ranks.run.tol, color="0.5", linestyle="--", linewidth=0.8, label="tolerance")
        ax.legend()
    ax.set(title="Convergence", xlabel="seconds" if times else "passes", ylabel="certified L1 error")


def distribution(ranks: Ranks) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Twenty ranks per decade, and how many nodes have each rank or more; not those that all or none have."""
    edges = np.logspace(-_DECADES, 0, _DECADES * _BINS_PER_DECADE + 1)
    counts = np.zeros(edges.size - 1, np.int64)
    for chunk in ranks.chunks():
        counts += np.histogram(np.clip(chunk, edges[0], edges[-1]), edges)[0]
    above = counts[::-1].cumsum()[::-1]
    shown = slice(np.flatnonzero(counts)[0] if counts.any() else 0, max(1, np.count_nonzero(above)))
    return edges[:-1][shown], above[shown]


def _draw_distribution(ranks: Ranks, ax: Axes) -> None:
    ax.loglog(*distribution(ranks), drawstyle="steps-post")
    ax.set(title="Distribution", xlabel="rank", ylabel="nodes of this rank or more")


def _draw_degrees(ranks: Ranks, in_degrees: Callable[[int, int], NDArray[Any]], ax: Axes) -> None:
    values = ranks.to_numpy()

    def pairs() -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        for low, high in spans(values.size, _ROWS):
            # One more, for nodes without edges have a place on no logarithmic axis.
            yield 1.0 + in_degrees(low, high), np.maximum(values[low:high], 10.0**-_DECADES)

    most = [(float(degree.max()), float(rank.min()), float(rank.max())) for degree, rank in pairs()]
    degrees, least, largest = (
        pick(column) for pick, column in zip((max, min, max), zip(*most, strict=True), strict=True)
    )
    # Between whole numbers, each of which is in one bin.
    across = np.unique(np.rint(np.geomspace(1, degrees + 1, 60))) - 0.5
    up = np.geomspace(0.99 * least, 1.01 * largest, 60)
    counts = np.zeros((across.size - 1, up.size - 1))
    for degree, rank in pairs():
        counts += np.histogram2d(degree, rank, (across, up))[0]
    mesh = ax.pcolormesh(across, up, np.ma.masked_equal(counts.T, 0), norm="log")
    ax.figure.colorbar(mesh, ax=ax, label="nodes")
    ax.set(title="Degree and rank", xlabel="in-degree + 1", ylabel="rank", xscale="log", yscale="log")


def check_same_graph(ranks: Ranks, identity: str, nodes: int) -> None:
    """Raise UsageError for ranks that are of another graph, as far as they say."""
    if ranks.nodes != nodes or ranks.identity not in (None, identity):
        raise UsageError("the ranks are not of this graph.", "Give the graph that was ranked, or none.")


def _pyplot() -> Any:
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise SetupError(f"Matplotlib cannot be imported: {error}.", install_remedy("notebook")) from error
    return plt
