"""How long all tiles of a backend take, from what was measured of some of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from oocpr.engine.coming import Reading, taken_at, told_of_all
from oocpr.engine.picked import edges_of
from oocpr.plan.tiers import ring_slots

if TYPE_CHECKING:
    from oocpr.engine.passed import Pace
    from oocpr.engine.picked import Place
    from oocpr.engine.sample import Rounds


class Kind(NamedTuple):
    """What was measured of tiles of one kind, of one backend; see Rounds."""

    first: float = 0.0
    later: float = 0.0
    brought: dict[int, float] = {}  # noqa: RUF012
    taken: dict[int, float] = {}  # noqa: RUF012
    launched: float = 0.0

    @classmethod
    def of(cls, rounds: Rounds | None, backend: int) -> Kind:
        """What one of the backends took; nothing where no tile is of the kind."""
        if rounds is None:
            return cls()
        measured = rounds.first, rounds.later, rounds.brought, rounds.taken, rounds.launched
        return cls(*(of_each[backend] for of_each in measured))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Times:
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
    """

    kept: float
    passing: float
    first: float
    sent: float = 0.0
    turned: float = 0.0
    launched: float = 0.0

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
        if place.device is None:
            first = stayed * kept.first + moved * passing.first
            return cls(stayed * kept.later, moved * passing.later, first)
        swept = stayed * kept.later
        kernels = pace.kernels(moved, place.passing_rows) if moved else 0.0
        # Tiles have about as many bytes an edge.
        sent = pace.byte * place.facts.column_bytes * moved / max(1, place.facts.edges)
        turned = 0.0
        if place.device.rows_in_host:
            # Rows are reached over the link; in one slot nothing arrives while kernels run.
            turned = pace.row * place.passing_rows if place.device.slots > 1 else kernels
        busy = max(sent + turned, kernels) + swept if turned else max(sent, kernels + swept)
        launched = place.staying * kept.launched + (len(place.tiles) - place.staying) * passing.launched
        there = _first_pass(place, kept, passing, readers)
        return cls(swept, kernels, max(there, busy), sent, turned, launched)


def _first_pass(place: Place, kept: Kind, passing: Kind, readers: int) -> float:
    """Seconds in which threads bring all tiles of a device, and its own takes them."""
    assert place.device is not None, "processors are timed as they are"
    at_once = place.device.joined_at_once
    first = place.tiles.start
    edges = np.array([edges_of(place.facts, tile) for tile in place.tiles], np.float64)
    rows = np.array([place.rows_of(tile) for tile in place.tiles], np.float64)

    def told(some: dict[int, float]) -> np.ndarray:
        return told_of_all({tile - first: seconds for tile, seconds in some.items()}, edges, rows)

    # Whatever is done with them then, tiles are brought alike; and those that are measured of both kinds are
    # brought twice, the second time as it is when memory has been taken.
    brought = told(kept.brought | passing.brought)
    stays = np.zeros(len(edges), bool)
    stays[[tile - first for tile in place.staying_tiles]] = True
    taken = np.where(stays, told(kept.taken), told(passing.taken))
    reading = Reading(max(readers, at_once), ring_slots(at_once))
    return taken_at(brought.tolist(), taken.tolist(), reading)[-1]


def rate_of(edges: float, seconds: float) -> float:
    """So many a second; infinite where that takes no time."""
    return edges / seconds if seconds else math.inf
