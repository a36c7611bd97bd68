"""What tuning decides: which shapes of a product are tried, which one is kept, and for which graphs.

From a start, one axis after the other is gone along: the best shape so far races against those that differ
from it along the axis. Tuning ends when it has gone along every axis without finding a better one.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from oocpr.engine.cuda.papers.products import Cut
from oocpr.engine.cuda.spmv import MOST_IN_EDGE_ORDER, SCRATCH_BYTES, Shape, shape_for
from oocpr.engine.number_formats import READS
from oocpr.store.codec.layout import GROUP

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from oocpr.engine.cuda.papers.products import Gather

MARGIN = 0.01
"""Share of the time that a shape has to save, so that noise keeps no shape."""

MOST_TEAMS = 64
"""Teams of 32 lanes that a multiprocessor has room for; a block of threads has half as many at most."""

Tunable = Shape | Cut

Axis = tuple["Mapping[str, Any]", ...]
"""What may be changed of a shape; one change sets one field, or several at once."""


@dataclass(frozen=True)
class Case:
    """What a shape is chosen for.

    Parameters
    ----------
    gather
        What is gathered.
    hubs
        Whether enough links are of the first nodes for their numbers to be kept near.
    shared_bytes
        Most shared memory of a block of threads.
    """

    gather: Gather
    hubs: bool = False
    shared_bytes: int = 0

    @property
    def word(self) -> int:
        """Bytes gathered of a node."""
        return READS[self.gather.reads].bytes * (1 + self.gather.paired)


def along(field: str, *values: int) -> Axis:
    """Values of one field.

    Examples
    --------
    >>> along("each", 1, 4)
    ({'each': 1}, {'each': 4})
    """
    return tuple({field: value} for value in values)


BLOCKS = ((2, 8), (2, 12), (2, 16), (2, 20), (4, 4), (4, 5), (4, 6), (4, 8), (8, 2), (8, 3), (8, 4))
"""Teams of a block of threads and blocks on a multiprocessor, where all numbers are far."""

HUB_BLOCKS = ((14, 1, 40), (14, 1, 80), (14, 1, 120), (10, 1, 80), (20, 1, 80), (28, 1, 80), (7, 2, 40))
"""The same, and KiB of a block for numbers that are near."""


def _shape_axes(case: Case) -> tuple[Axis, ...]:
    far = tuple({"teams": teams, "resident": resident, "hubs": 0} for teams, resident in BLOCKS)
    near = tuple(
        {"teams": teams, "resident": resident, "each": 1, "hubs": (kib << 10) // case.word // GROUP * GROUP}
        for teams, resident, kib in HUB_BLOCKS
    )
    return (
        far,
        along("edge_order", False, True),
        along("each", 1, 4, 16),
        *((near,) if case.hubs else ()),
    )


def _shape_fits(shape: Shape, case: Case) -> bool:
    return (
        shape.teams * shape.resident <= MOST_TEAMS
        and shape.teams * SCRATCH_BYTES + shape.hubs * case.word <= case.shared_bytes
        and (case.word <= MOST_IN_EDGE_ORDER or not shape.edge_order)
        # Blocks of threads that keep hubs take all edges in turns.
        and (shape.each == 1 or not shape.hubs)
    )


def _default_shape(case: Case) -> Shape:
    gather, near = case.gather, case.shared_bytes if case.hubs else 0
    return shape_for(gather.reads, paired=gather.paired, shared_bytes=near)


def _cut_axes(_: Case) -> tuple[Axis, ...]:
    return (
        along("tiny", 2, 4, 6, 8, 16),
        along("small", 32, 64, 96, 192, 384),
        along("block", 64, 128, 256, 512),
    )


@dataclass(frozen=True)
class Space:
    """The shapes of one kernel.

    Parameters
    ----------
    start
        The default.
    axes
        What is tried instead.
    fits
        Whether a shape can be compiled, and is no other one under another name.
    """

    start: Callable[[Case], Tunable]
    axes: Callable[[Case], tuple[Axis, ...]]
    fits: Callable[[Any, Case], bool]

    def read(self, values: Any, case: Case) -> Tunable | None:
        """Make a shape of what was found in a file; None unless tuning could have put it there.

        Examples
        --------
        >>> from oocpr.engine.cuda.papers.products import Gather
        >>> case = Case(Gather("bits16"))
        >>> SPACES["binned"].read({"tiny": 4, "small": 96, "block": 128}, case)
        Cut(tiny=4, small=96, block=128)
        >>> SPACES["binned"].read({"tiny": 4, "small": 96, "block": 10**6}, case)
        """
        start = self.start(case)
        names = {field.name for field in fields(start)}
        if not isinstance(values, dict) or set(values) != names:
            return None
        for name, value in values.items():
            usual = getattr(start, name)
            known = [usual, *(change[name] for axis in self.axes(case) for change in axis if name in change)]
            if type(value) is not type(usual) or value not in known:
                return None
        shape = replace(start, **values)
        return shape if self.fits(shape, case) else None


SPACES = {
    "balanced": Space(_default_shape, _shape_axes, _shape_fits),
    "binned": Space(lambda _: Cut(), _cut_axes, lambda cut, _: cut.tiny <= cut.small),
}
"""Kernels that can be tuned, by name."""


class Descent:
    """Goes along the axes of a space; knows no clock and no device.

    Parameters
    ----------
    space, case
        What is searched, and for what.

    Attributes
    ----------
    best
        The fastest shape so far.

    Examples
    --------
    >>> from oocpr.engine.cuda.papers.products import Gather
    >>> descent = Descent(SPACES["binned"], Case(Gather("bits16")))
    >>> while shapes := descent.next():
    ...     descent.take({cut: abs(cut.tiny - 4) + abs(cut.block - 64) for cut in shapes})
    >>> descent.best
    Cut(tiny=4, small=96, block=64)
    """

    def __init__(self, space: Space, case: Case) -> None:
        self.best = space.start(case)
        self._axes = space.axes(case)
        self._fits = space.fits
        self._case = case
        self._tried = {self.best}
        self._axis = 0
        self._in_vain = 0

    def next(self) -> list[Tunable]:
        """Shapes of the next race, the best so far first; none at the end."""
        while self._in_vain < len(self._axes):
            axis = self._axes[self._axis % len(self._axes)]
            self._axis += 1
            others = dict.fromkeys(replace(self.best, **change) for change in axis)
            new = [shape for shape in others if shape not in self._tried and self._fits(shape, self._case)]
            if new:
                self._tried.update(new)
                return [self.best, *new]
            self._in_vain += 1
        return []

    def take(self, seconds: Mapping[Tunable, float]) -> None:
        """Learn how a race ended; shapes that could not run are missing, the best so far never."""
        winner = faster(self.best, seconds)
        self._in_vain = self._in_vain + 1 if winner == self.best else 0
        self.best = winner


def faster(usual: Tunable, seconds: Mapping[Tunable, float]) -> Tunable:
    """Shape of the least time; the usual one unless that saves more than MARGIN.

    Examples
    --------
    >>> faster(Cut(), {Cut(): 100, Cut(tiny=4): 99.5})
    Cut(tiny=6, small=96, block=256)
    >>> faster(Cut(), {Cut(): 100, Cut(tiny=4): 98, Cut(tiny=2): 97})
    Cut(tiny=2, small=96, block=256)
    """
    winner = min(seconds, key=seconds.__getitem__)
    return winner if seconds[winner] < seconds[usual] * (1 - MARGIN) else usual


def graph_class(nodes: int, edges: int, local_share: float, case: Case) -> str:
    """Name the graphs that take one shape: of like size, with rows of like length in a like order.

    Parameters
    ----------
    nodes, edges
        Of the graph.
    local_share
        Share of edges inside the rows of their tile, in [0, 1].
    case
        What the shape is for.

    Examples
    --------
    >>> from oocpr.engine.cuda.papers.products import Gather
    >>> graph_class(2**24, 263_433_617, 0.3, Case(Gather("bits16"), hubs=True))
    'bits16, 2^24 to 2^28 nodes, rows of 4 to 15, hubs first'
    """
    size = max(nodes, 1).bit_length() - 1 & ~3
    length = 4 ** ((max(edges // max(nodes, 1), 1).bit_length() - 1) // 2)
    order = "hubs first" if case.hubs else "near" if local_share >= 0.5 else "far"
    gather = case.gather
    words = gather.reads + " pairs" * gather.paired + " of a stripe" * gather.striped
    return f"{words}, 2^{size} to 2^{size + 4} nodes, rows of {length} to {4 * length - 1}, {order}"


def sample(tiles: int, most: int = 3) -> Sequence[int]:
    """Tiles to measure with: the first, the last and some between, evenly spread.

    Examples
    --------
    >>> sample(1), sample(2), sample(9)
    ([0], [0, 1], [0, 4, 8])
    """
    count = min(tiles, most)
    return [k * (tiles - 1) // max(count - 1, 1) for k in range(count)]
