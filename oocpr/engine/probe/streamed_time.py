"""How long a pass takes tiles through a device, by the pace of some of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from oocpr.engine.probe.pipeline import Reading, completion_times, extrapolate
from oocpr.engine.probe.sampling import edges_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from oocpr.engine.probe.fit import TileTimings
    from oocpr.engine.probe.sampling import DeviceWork


class Told:
    """What some tiles of a device took, told of all of them; see `extrapolate`.

    Parameters
    ----------
    place
        All that the device computes.
    """

    def __init__(self, place: DeviceWork) -> None:
        self._first = place.tiles.start
        self.edges = np.array([edges_of(place.stats, tile) for tile in place.tiles], np.float64)
        self._rows = np.array([place.rows_of(tile) for tile in place.tiles], np.float64)
        self.stays = np.zeros(len(place.tiles), bool)
        self.stays[self.at(place.staying_tiles)] = True

    def at(self, tiles: Sequence[int]) -> NDArray[np.int64]:
        """Where tiles are among those of the device."""
        return np.asarray(tiles, np.int64) - self._first

    def of_all(self, some: Mapping[int, float]) -> NDArray[np.float64]:
        """Seconds of each tile; float64, shape (tiles,)."""
        return extrapolate(
            {tile - self._first: seconds for tile, seconds in some.items()}, self.edges, self._rows
        )


class StreamedTime(NamedTuple):
    """Seconds of a device in a pass over tiles that do not stay.

    Attributes
    ----------
    swept
        Of kernels, and of waits for tiles that are longer on their way than those before them.
    sent
        In which the tiles come over the link.
    turned
        Of kernels that wait for the link in turns with them.
    """

    swept: float = 0.0
    sent: float = 0.0
    turned: float = 0.0

    @property
    def busy(self) -> float:
        """Of the link, or of kernels, whichever are longer at it."""
        return max(self.sent + self.turned, self.swept)

    def times(self, share: float) -> StreamedTime:
        """The same, so many times."""
        return StreamedTime(*(share * seconds for seconds in self))


def streamed_time(
    place: DeviceWork, pace: TileTimings, told: Told, *, kept: float, later: float, between: float
) -> StreamedTime:
    """Seconds of all tiles of a device that do not stay.

    Parameters
    ----------
    place, pace, told
        All that it computes, and the pace of what passes.
    kept
        Seconds of a tile that stays, for each edge.
    later
        Seconds of measured rounds over tiles that pass, for each edge.
    between
        Seconds between two passes.
    """
    assert place.device is not None, "a processor has no link"
    tiles = place.passing_tiles
    if not tiles:
        return StreamedTime()
    sent, swept = told.of_all(pace.sent), told.of_all(pace.swept)
    if place.device.rows_in_host:
        some = place.of_passing().tiles
        measured = _in_turns(place, pace, told, some, sent, swept)
        # Copies and kernels have waits for each other in them. Rounds tell what both take.
        share = later * float(told.edges[told.at(some)].sum()) / measured.busy
        return _in_turns(place, pace, told, tiles, sent, swept).times(share)
    stayed = np.where(told.stays, kept * told.edges, 0.0)
    # Tiles go on coming between two passes, as far as there are slots.
    work = np.append(np.where(told.stays, stayed, swept), between)
    whole = _in_order(sent, work, told.stays, place.device.slots)
    return StreamedTime(whole - between - float(stayed.sum()), float(sent[~told.stays].sum()))


def _in_turns(
    place: DeviceWork,
    pace: TileTimings,
    told: Told,
    tiles: Sequence[int],
    sent: NDArray[np.float64],
    swept: NDArray[np.float64],
) -> StreamedTime:
    """Seconds of some tiles whose kernels reach rows over the link as well."""
    assert place.device is not None, "a processor has no link"
    at = told.at(tiles)
    kernels = float(swept[at].sum())
    # In one slot nothing arrives while kernels run.
    rows = pace.row * sum(map(place.rows_of, tiles))
    return StreamedTime(kernels, float(sent[at].sum()), rows if place.device.slots > 1 else kernels)


def _in_order(
    sent: NDArray[np.float64], swept: NDArray[np.float64], stays: NDArray[np.bool_], slots: int
) -> float:
    """Seconds of kernels in a pass after others: they wait where a tile comes later than its slot is free.

    Parameters
    ----------
    sent
        Seconds in which each tile comes; float64, shape (tiles,).
    swept
        Seconds of the kernels of each, and of what follows them; float64, shape (tiles + 1,).
    stays
        Which do not come; shape (tiles,).
    slots
        Of the ring.

    Examples
    --------
    >>> some = np.array([False, True, False])
    >>> _in_order(np.array([2.0, 0.0, 2.0]), np.array([1.0, 1.0, 1.0, 0.0]), some, 2)
    4.0
    >>> _in_order(np.array([2.0, 0.0, 2.0]), np.array([3.0, 2.0, 1.0, 0.5]), some, 2)
    6.5
    """
    comes = np.flatnonzero(~stays)
    # A tile that stays takes its time before the next one that comes, in the next pass after the last.
    group = np.searchsorted(comes, np.arange(len(swept)))
    taken = np.bincount(group % len(comes), weights=swept, minlength=len(comes))
    come, take = (np.tile(of, 2).tolist() for of in (sent[comes], taken))
    done = completion_times(come, take, Reading(1, slots))
    return done[-1] - done[len(comes) - 1]
