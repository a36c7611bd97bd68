"""Sweeps inside groups, or inside their tiles, after a push was delivered and before rows propose.

Groups that pass through a ring of slots are swept twice: once when they have come, and again when the next
one has, both together. Else pages that link to each other across the border of two groups would read each
other once a pass only: a crawl of 292 M edges in nine to twelve groups took 22 to 32 passes, depending on
where these began, and takes 21 to 24.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from oocpr.engine.backend import StripeSpec
    from oocpr.engine.cuda.device import Device
    from oocpr.engine.cuda.group import DeviceGroup
    from oocpr.engine.cuda.spmv import SegmentSums, SpMV
    from oocpr.engine.cuda.vectors import DeviceGatherVector, GroupRows, RowState


class LocalWorkspace(NamedTuple):
    """Where the rows of a group are swept.

    `start`: float32, shape (rows,): what they have from outside.
    `sends`: upper halves of float32, shape (rows + 1,): what they send along each edge, and a zero behind the
        last.
    """

    start: Any
    sends: Any

    @classmethod
    def allocate(cls, device: Device, rows: int) -> LocalWorkspace:
        """Room for groups of up to so many rows."""
        return cls(device.xp.zeros(max(1, rows), np.float32), device.xp.zeros(rows + 1, np.uint16))


class SweptGroup(NamedTuple):
    """A group that is swept inside: also along edges from rows before its own, from `first` on.

    `numbers`: what rows send along each edge, from that row on.
    `left`, `leaves`: float64, shape (1,): what the group before leaves to the first row, which may have edges
        in both, and this one to the row behind it; None for nothing.
    """

    there: DeviceGroup
    rows: GroupRows
    local: LocalWorkspace
    first: int
    numbers: Any
    left: Any = None
    leaves: Any = None

    @property
    def past(self) -> int:
        """The row behind its last."""
        return self.rows.first + self.rows.owned


class LocalSweep:
    """What sweeps a group once, along edges from all rows before `past`, as often as it is launched.

    `whole`: whether inside the group, or with its neighbours, rather than inside each tile.
    `sending`: whether a neighbour is still swept after the group has proposed.
    """

    def __init__(
        self,
        product: SpMV,
        swept: SweptGroup,
        past: int,
        state: RowState,
        reads: DeviceGatherVector,
        sums: SegmentSums,
        faults: Any,
        *,
        whole: bool = True,
        sending: bool = False,
    ) -> None:
        window = (swept.first, past)
        # The first two segments of weights, with 20 bits of the mantissa: as much as proposals need.
        self._deliver = product.bound(
            swept.there, swept.numbers, state.spec.nodes, window, sums, faults, weight_parts=2
        )
        self._resend = state.local_end(sums, swept, None, whole=whole)
        self._propose = state.local_end(sums, swept, reads, whole=whole, sending=sending)

    def launch(self, *, last: bool) -> None:
        """Sweep, and propose if it is the `last` time."""
        self._deliver()
        (self._propose if last else self._resend)()


class Overlap:
    """Where the groups of a stripe are swept two at a time; room for groups of up to so many rows."""

    def __init__(self, device: Device, spec: StripeSpec, rows: int) -> None:
        self._row_begin = spec.row_begin
        self._starts = device.xp.zeros((2, max(1, rows)), np.float32)
        self._sends = device.xp.zeros(spec.rows + 1, np.uint16)
        # What groups leave, of three in turns: of the last two, and of the one before, which they have read.
        self._left = device.xp.zeros(3)
        self._number = 0
        self.before: SweptGroup | None = None  # the one that was swept when it had come, and not again yet

    def room(self, there: DeviceGroup, rows: GroupRows) -> SweptGroup:
        """Room for the group that comes next, the neighbour of the one before, if there is one."""
        before, number = self.before, self._number
        self._number += 1
        first = rows.first if before is None else before.rows.first
        own, window = (self._sends[row - self._row_begin :] for row in (rows.first, first))
        local = LocalWorkspace(self._starts[number % 2], own)
        leaves = self._left[number % 3 :]
        return SweptGroup(
            there, rows, local, first, window, None if before is None else before.leaves, leaves
        )

    def sweep(
        self, now: SweptGroup | None, turns: int, sweep_of: Callable[[SweptGroup, int, bool], LocalSweep]
    ) -> None:
        """Sweep the group before so often again, until it proposes, and as often the one that is there `now`.

        `sweep_of`: makes a LocalSweep of a group, the row behind the last one swept, and whether the group
            sends what it proposes.
        """
        groups = [group for group in (self.before, now) if group is not None]
        sweeps = [
            (sweep_of(group, groups[-1].past, now is not None), group is self.before) for group in groups
        ]
        for turn in range(1, turns + 1):
            for sweep, ends in sweeps:
                sweep.launch(last=ends and turn == turns)
        self.before = now
