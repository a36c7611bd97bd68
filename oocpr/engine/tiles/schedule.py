"""Which tile is read into which buffer, and when each is computed: decisions only.

Tiles are computed in the order of the plan, since later ones use the proposals of earlier ones; reads may
finish in any order. Resident tiles need no buffer. A buffer is given to the next tile only after the tile
in it has been computed, so `slots` buffers bound the memory whatever the speeds are.

The schedule takes events and returns actions; an executor that performs the actions and reports their
ends runs a pass::

    begin()                     -> [Read(2, slot=0), Read(5, slot=1), Compute(0, slot=None)]
    on(Computed(tile=0))        -> [Compute(1, slot=None)]
    on(Arrived(tile=5))         -> []            # 2 comes first
    on(Arrived(tile=2))         -> []            # 1 is being computed
    on(Computed(tile=1))        -> [Compute(2, slot=0)]
    on(Computed(tile=2))        -> [Read(6, slot=0), ...]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


@dataclass(frozen=True)
class Read:
    """Fetch a tile into a buffer."""

    tile: int
    slot: int


@dataclass(frozen=True)
class Compute:
    """Use a tile; `slot` is its buffer, or None if it is resident."""

    tile: int
    slot: int | None


@dataclass(frozen=True)
class Arrived:
    """A read has ended."""

    tile: int


@dataclass(frozen=True)
class Computed:
    """A computation has ended."""

    tile: int


Action = Read | Compute
Event = Arrived | Computed


class Schedule:
    """One pass over a stripe's tiles.

    Parameters
    ----------
    order
        Tiles in the order in which they are computed.
    resident
        Those of them that need no reading.
    slots
        Buffers, at least one.

    Examples
    --------
    >>> schedule = Schedule([0, 1, 2], resident={0}, slots=1)
    >>> schedule.begin()
    [Read(tile=1, slot=0), Compute(tile=0, slot=None)]
    >>> schedule.on(Arrived(1)), schedule.on(Computed(0))
    ([], [Compute(tile=1, slot=0)])
    """

    def __init__(self, order: Sequence[int], resident: Collection[int], slots: int) -> None:
        self._order = list(order)
        self._to_read = [tile for tile in self._order if tile not in resident]
        self._free = list(range(slots))[::-1]
        self._slot_of: dict[int, int] = {}
        self._arrived = set(resident)
        self._next_read = 0
        self._next_compute = 0
        self._busy = False

    @property
    def done(self) -> bool:
        """Whether every tile has been computed."""
        return self._next_compute == len(self._order) and not self._busy

    def begin(self) -> list[Action]:
        """Return the first actions."""
        return self._act()

    def on(self, event: Event) -> list[Action]:
        """Take one event and return what is to be done now."""
        if isinstance(event, Arrived):
            self._arrived.add(event.tile)
        else:
            self._busy = False
            slot = self._slot_of.pop(event.tile, None)
            if slot is not None:
                self._free.append(slot)
        return self._act()

    def _act(self) -> list[Action]:
        actions: list[Action] = []
        while self._free and self._next_read < len(self._to_read):
            tile = self._to_read[self._next_read]
            self._next_read += 1
            self._slot_of[tile] = slot = self._free.pop()
            actions.append(Read(tile, slot))
        if not self._busy and self._next_compute < len(self._order):
            tile = self._order[self._next_compute]
            if tile in self._arrived:
                self._next_compute += 1
                self._busy = True
                actions.append(Compute(tile, self._slot_of.get(tile)))
        return actions
