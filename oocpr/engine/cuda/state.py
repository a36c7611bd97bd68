"""The rows of a stripe: on the device or, where that has no room, in memory of the host that kernels reach.

A pass goes through the rows from the first to the last, each warp reading and writing neighbours, so that
the link carries whole lines of them; only what rows gather, a few bytes a node, is read in no order and has
to be on the device.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.engine.cpu.weights import divisors
from oocpr.engine.cuda.device import fetch, placed
from oocpr.engine.cuda.papers.products import PADDING
from oocpr.engine.number_formats import READS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oocpr.engine.backend import StripeSpec
    from oocpr.engine.cuda.device import Device


@dataclass
class RowState:
    """Rows of a stripe; arrays of the device.

    Attributes
    ----------
    degree
        uint32, shape (rows,); with weights float64, what leaves each row, -1 where nothing does.
    teleport
        float64, shape (rows,); None where uniform.
    start
        What the run begins from, float64, shape (rows,); None for the teleport vector.
    ranks, residual
        float64, shape (rows,).
    push
        float32, shape (rows,): last proposal; (1,) where nothing is proposed.
    changes, steps
        uint16, shape (slots, rows): what mixing remembers, the upper halves of float32.
    stored
        Last push and PADDING zeros, dtype of the reads, shape (rows + PADDING,); in memory of the host where
        rows gather slices of it.
    thetas
        float64, shape (slots,), one at least: weights of the steps that the next push subtracts.
    carries
        float64, shape (tiles + 1, 2): what each tile leaves to the row that the next one owns; zeros first.
    partials, totals
        float64: sums of blocks of rows, shape (vectors, places), and of all.
    kept
        float64, shape (rows + tiles,), in memory of the host: what slices before have brought to the segments
        of each tile; None where rows gather from all nodes.
    ranks_here
        The memory of `ranks` where that is the host's; else None.
    first_row
        Residual of the first row after a pass, and its change in each slot; of the host.
    """

    spec: StripeSpec
    degree: Any
    teleport: Any
    start: Any
    ranks: Any
    residual: Any
    push: Any
    changes: Any
    steps: Any
    stored: Any
    thetas: Any
    carries: Any
    partials: Any
    totals: Any
    kept: Any
    ranks_here: NDArray[np.float64] | None
    first_row: NDArray[np.float64] = field(default_factory=lambda: np.zeros(1))

    @property
    def weighted(self) -> bool:
        """Whether links have weights."""
        return bool(self.degree.dtype == np.float64)

    def close(self) -> None:
        """Free all of it."""
        vars(self).clear()


class DeviceReads:
    """What rows gather.

    Parameters
    ----------
    device
        Where it is.
    nodes
        Nodes of the graph.
    reads, paired
        Format, and whether each node has its proposal beside its push.
    """

    def __init__(self, device: Device, nodes: int, reads: str, *, paired: bool) -> None:
        self._device = device
        self.reads, self.paired = reads, paired
        self._shape = (nodes + PADDING, 2) if paired else (nodes + PADDING,)
        self._array: Any = None

    @property
    def array(self) -> Any:
        """Numbers of all nodes, and zeros behind them; dtype of the reads."""
        if self._array is None:
            with self._device:
                self._array = self._device.xp.zeros(self._shape, READS[self.reads].dtype)
        return self._array

    def take(self, pushed: Any) -> bool:
        """Gather a push where it is, if it is that of all nodes; tell whether it is."""
        whole = getattr(pushed, "base", None)
        if self.paired or not isinstance(whole, self._device.xp.ndarray) or whole.shape != self._shape:
            return False
        self._array = whole
        return True

    def select_partition(self, number: int, *, bring: bool) -> None:
        """Gather from the one slice that there is: all nodes; see Streams."""

    def close(self) -> None:
        """Free it."""
        self._array = None


def allocate_rows(
    device: Device,
    spec: StripeSpec,
    degree: NDArray[Any],
    teleport: NDArray[np.float64] | None,
    start: NDArray[np.float64] | None,
    *,
    slots: int,
    sums: int,
    places: int,
    in_host: bool,
    sliced: bool,
) -> RowState:
    """Rows of a stripe without ranks and residual.

    Parameters
    ----------
    device
        Which kernels run on.
    spec, degree, teleport, start
        As for :meth:`oocpr.engine.backend.Backend.allocate`.
    slots
        Weights of steps, one at least.
    sums, places
        Vectors of sums, and blocks that write theirs.
    in_host
        Whether what a row has is kept in memory of the host.
    sliced
        Whether what rows gather is kept there, too.
    """
    xp, rows, tiles = device.xp, spec.rows, spec.last_tile - spec.first_tile

    def zeros(
        shape: int | tuple[int, ...], dtype: Any = np.float64, mapped: bool = in_host
    ) -> tuple[Any, NDArray[Any] | None]:
        if not mapped:
            return xp.zeros(shape, dtype), None
        there, here = device.mapped(shape, dtype)
        here[...] = 0
        return there, here

    def copied(values: NDArray[Any] | None) -> Any:
        if values is None or not in_host:
            return None if values is None else placed(device, values)
        there, here = device.mapped(values.shape, values.dtype)
        here[...] = values
        return there

    ranks, ranks_here = zeros(rows)
    return RowState(
        spec,
        degree=copied(divisors(degree)),
        teleport=copied(teleport),
        start=copied(start),
        ranks=ranks,
        residual=zeros(rows)[0],
        push=zeros(rows if spec.proposals else 1, np.float32)[0],
        changes=zeros((spec.slots, rows), np.uint16)[0],
        steps=zeros((spec.slots, rows), np.uint16)[0],
        stored=zeros(rows + PADDING, READS[spec.reads].dtype, sliced)[0],
        thetas=xp.zeros(slots),
        carries=xp.zeros((tiles + 1, 2)),
        partials=xp.zeros((sums, places)),
        totals=xp.zeros(sums + 4 + slots),
        kept=zeros(rows + tiles, mapped=True)[0] if sliced else None,
        ranks_here=ranks_here,
    )


def fetch_ranks(device: Device, state: RowState) -> NDArray[np.float64]:
    """Ranks of a stripe, once what was launched has run; in their own memory where that is the host's."""
    if state.ranks_here is None:
        return fetch(state.ranks)
    device.synchronize()
    return state.ranks_here
