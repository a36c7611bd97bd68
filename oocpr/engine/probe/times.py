"""How long all tiles of a backend take, from what was measured of some of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from oocpr.engine.probe.pipeline import Reading, completion_times
from oocpr.engine.probe.streamed_time import Told, streamed_time
from oocpr.plan.residency import ring_slots

if TYPE_CHECKING:
    from oocpr.engine.probe.fit import TileTimings
    from oocpr.engine.probe.sampling import DeviceWork
    from oocpr.engine.probe.trial import Rounds


class Kind(NamedTuple):
    """What was measured of tiles of one kind, of one backend; see Rounds."""

    first: float = 0.0
    later: float = 0.0
    brought: dict[int, float] = {}  # noqa: RUF012
    taken: dict[int, float] = {}  # noqa: RUF012
    launched: float = 0.0
    closing: float = 0.0
    computed: dict[int, float] = {}  # noqa: RUF012

    @classmethod
    def of(cls, rounds: Rounds | None, backend: int) -> Kind:
        """What one of the backends took; nothing where no tile is of the kind."""
        if rounds is None:
            return cls()
        return cls(
            rounds.first[backend],
            rounds.later[backend],
            rounds.brought[backend],
            rounds.taken[backend],
            rounds.launched[backend],
            rounds.closing[backend],
            rounds.computed[backend],
        )

    def later_of_all(self, told: Told) -> float:
        """Seconds an edge in later passes over all tiles, where some of those measured have more rows."""
        if not self.computed or not told.edges.sum():
            return self.later
        measured = told.at(list(self.computed))
        some = sum(self.computed.values()) / told.edges[measured].sum()
        return float(self.later * told.of_all(self.computed).sum() / told.edges.sum() / some)


@dataclass(frozen=True)
class PassTimeModel:
    """Seconds of what one backend does in a pass.

    Parameters
    ----------
    kept, passing
        Of sweeping the tiles that stay, and the others.
    first
        Of all tiles in a first pass.
    sent
        In which these others come over the link of a device.
    turned
        The part of `passing` that waits for this link in turns with them.
    launched
        In which the host launches all of that.
    closing
        In which memory of the host is given back, after the last pass.
    """

    kept: float
    passing: float
    first: float
    sent: float = 0.0
    turned: float = 0.0
    launched: float = 0.0
    closing: float = 0.0

    @classmethod
    def of(
        cls,
        place: DeviceWork,
        kept: Kind,
        passing: Kind,
        pace: TileTimings,
        readers: int,
        between: float = 0.0,
    ) -> PassTimeModel:
        """Put together what an edge takes in a first pass and in later ones, and the pace of what passes.

        Parameters
        ----------
        place
            All that the backend computes.
        kept, passing, pace
            What was measured of tiles of both kinds, and of those that pass the pace.
        readers
            Threads that read tiles as they are stored.
        between
            Seconds between two passes.
        """
        moved = place.passing_edges
        stayed = place.edges - moved
        told = Told(place)
        if place.device is None:
            first = stayed * kept.first + moved * passing.first
            return cls(stayed * kept.later_of_all(told), moved * passing.later_of_all(told), first)
        swept = stayed * kept.later
        passes = streamed_time(place, pace, told, kept=kept.later, later=passing.later, between=between)
        busy = passes.busy + swept if place.device.rows_in_host else max(passes.sent, passes.swept + swept)
        launched = place.staying * kept.launched + (len(place.tiles) - place.staying) * passing.launched
        # Of tiles of a kind, as many take as long to give back.
        closing = passing.closing * place.device.in_host / max(1, len(passing.brought))
        # What was measured are rounds with a run for each slice, all but the first as in later passes.
        once = busy / place.device.partitions
        first = max(_first_pass(place, told, kept, passing, readers), once) + (busy - once)
        return cls(swept, passes.swept, first, passes.sent, passes.turned, launched, closing)


def _first_pass(place: DeviceWork, told: Told, kept: Kind, passing: Kind, readers: int) -> float:
    """Seconds in which threads bring all tiles of a device, and its own takes them."""
    assert place.device is not None, "processors are timed as they are"
    at_once = place.device.joined_at_once
    # Whatever is done with them then, tiles are brought alike; and those that are measured of both kinds are
    # brought twice, the second time as it is when memory has been taken.
    brought = told.of_all(kept.brought | passing.brought)
    taken = np.where(told.stays, told.of_all(kept.taken), told.of_all(passing.taken))
    reading = Reading(max(readers, at_once), ring_slots(at_once))
    return completion_times(brought.tolist(), taken.tolist(), reading)[-1]


def rate_of(edges: float, seconds: float) -> float:
    """So many a second; infinite where that takes no time."""
    return edges / seconds if seconds else math.inf
