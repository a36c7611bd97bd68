"""How long all tiles of a backend take, from what was measured of some of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

from oocpr.engine.passed import Coming, coming_of
from oocpr.engine.picked import edges_of

if TYPE_CHECKING:
    from oocpr.engine.passed import Pace
    from oocpr.engine.picked import Picked, Place
    from oocpr.engine.sample import Rounds

JOINED_ROW_EDGES = 4
"""Edges that take as long to be joined to larger tiles as a row does, whose length goes through the host: on
R-MAT by out-degree, half of whose rows are in one tile, first passes fit 2 to 8."""


class Kind(NamedTuple):
    """What was measured of tiles of one kind, of one backend; see Rounds."""

    first: float
    later: float
    came: list[float]

    @classmethod
    def of(cls, rounds: Rounds, backend: int) -> Kind:
        """What one of the backends took."""
        return cls(rounds.first[backend], rounds.later[backend], rounds.came[backend])


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
    def of(cls, place: Place, kept: Kind, passing: Kind, pace: Pace, row_edges: float) -> Times:
        """Put together what an edge takes in a first pass and in later ones, and the pace of what passes.

        A row takes as long as `row_edges` edges until its tile is where kernels take it.
        """
        moved = place.passing_edges
        stayed = place.edges - moved
        swept, later = stayed * kept.later, moved * passing.later
        if place.device is None:
            return cls(swept, later, 0.0, stayed * kept.first + moved * passing.first)

        def coming(picked: Picked, came: list[float]) -> Coming:
            edges, rows = map(edges_of, repeat(place.facts), picked.tiles), map(place.rows_of, picked.tiles)
            return coming_of(came, [e + row_edges * r for e, r in zip(edges, rows, strict=True)])

        # The sample has more rows an edge than all that passes.
        later = pace.kernels(moved, place.passing_rows) if moved else 0.0
        there = coming(place.of_passing(), passing.came).seconds(moved + row_edges * place.passing_rows)
        stays = coming(place.of_staying(), kept.came).seconds(stayed + row_edges * place.staying_rows)
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
