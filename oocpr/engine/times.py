"""How long all tiles of a backend take, from what was measured of some of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from oocpr.engine.coming import Reading, coming_of
from oocpr.engine.picked import edges_of
from oocpr.plan.tiers import ring_slots

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from oocpr.engine.passed import Pace
    from oocpr.engine.picked import Picked, Place
    from oocpr.engine.sample import Rounds


class Kind(NamedTuple):
    """What was measured of tiles of one kind, of one backend; see Rounds."""

    first: float
    later: float
    came: list[float]
    took: list[float]

    @classmethod
    def of(cls, rounds: Rounds, backend: int) -> Kind:
        """What one of the backends took."""
        return cls(rounds.first[backend], rounds.later[backend], rounds.came[backend], rounds.took[backend])


@dataclass(frozen=True)
class Times:
    """Seconds of what one backend does in a pass.

    Parameters
    ----------
    kept, passing
        Of sweeping the tiles that stay, and the others.
    sent
        In which these come over the link of a device.
    first
        Of all tiles in a first pass.
    came_bytes
        Bytes a second that come to a device in a first pass, of tiles that do not stay.
    """

    kept: float
    passing: float
    sent: float
    first: float
    came_bytes: float = 0.0

    @classmethod
    def of(cls, place: Place, kept: Kind, passing: Kind, pace: Pace, readers: int) -> Times:
        """Put together what an edge takes in a first pass and in later ones, and the pace of what passes.

        Parameters
        ----------
        place
            All that the backend computes.
        kept, passing, pace
            What was measured of tiles of both kinds, and of those that pass the pace.
        readers
            Threads that read tiles as they are stored.
        """
        moved = place.passing_edges
        stayed = place.edges - moved
        swept, later = stayed * kept.later, moved * passing.later
        if place.device is None:
            return cls(swept, later, 0.0, stayed * kept.first + moved * passing.first)
        at_once = place.device.joined_at_once
        reading = Reading(max(readers, at_once), ring_slots(at_once))

        def sizes(tiles: Iterable[int]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
            chosen = list(tiles)
            edges = np.array([edges_of(place.facts, tile) for tile in chosen], np.float64)
            return edges, np.array([place.rows_of(tile) for tile in chosen], np.float64)

        def until_there(kind: Kind, picked: Picked, all_tiles: list[int]) -> float:
            coming = coming_of(kind.came, kind.took, *sizes(picked.tiles), reading)
            return coming.seconds(*sizes(all_tiles), reading)

        later = pace.kernels(moved, place.passing_rows) if moved else 0.0
        there = until_there(passing, place.of_passing(), place.passing_tiles)
        stays = until_there(kept, place.of_staying(), place.staying_tiles)
        # Tiles have about as many bytes an edge.
        nbytes = place.facts.column_bytes * moved / max(1, place.facts.edges)
        sent = nbytes * pace.byte
        # Kernels run while tiles come; copies do, too, unless kernels use the link in turns with them.
        kernels = swept + later
        busy = sent + kernels if place.device.rows_in_host else max(sent, kernels)
        return cls(swept, later, sent, max(stays + there, busy), rate_of(nbytes, there))


def rate_of(edges: float, seconds: float) -> float:
    """So many a second; infinite where that takes no time."""
    return edges / seconds if seconds else math.inf
