"""Tuning for a graph: some of its tiles are brought to a device, and what is fastest there is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.engine.cuda.backend import CudaBackend
from oocpr.engine.cuda.device import send
from oocpr.engine.cuda.papers.kernel_names import parse_kernel
from oocpr.engine.cuda.papers.products import Gather
from oocpr.engine.cuda.tuning import BalancedTiles, BinnedTiles, Tiles, Tuning, tune
from oocpr.engine.cuda.tuning_cache import Kept, class_of
from oocpr.engine.cuda.tuning_candidates import SPACES, Case, sample
from oocpr.engine.number_formats import narrow
from oocpr.errors import UsageError
from oocpr.progress import silent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oocpr.engine.cuda.device import Device
    from oocpr.engine.cuda.resident_tile import CudaTile
    from oocpr.engine.tiles.source import RankedStore
    from oocpr.plan.graph_stats import GraphFacts
    from oocpr.progress import Progress

_PIECE = 1 << 20
"""Random numbers that all gathered numbers are copies of: what they are changes no time."""


@dataclass(frozen=True)
class Tuned:
    """What tuning found, and for what.

    Parameters
    ----------
    device
        Its name.
    graph_class
        Graphs that take the shape.
    found
        What was tried, and what is best.
    path
        File that keeps it; None where it could not be written.
    """

    device: str
    graph_class: str
    found: Tuning
    path: str | None

    def to_json(self) -> dict[str, Any]:
        """Return all of it as a JSON object."""
        head = {"device": self.device, "graph_class": self.graph_class, "path": self.path}
        return {**head, **self.found.to_json()}


def tunable(kernel: str | None) -> str:
    """Name of a kernel that can be tuned.

    Raises
    ------
    UsageError
        Where there is no such kernel, nothing about it to tune, or its shape is given.

    Examples
    --------
    >>> tunable(None), tunable("binned")
    ('balanced', 'binned')
    """
    name, cut = parse_kernel(kernel)
    if name not in SPACES:
        raise UsageError(f"kernel {name!r} has nothing to tune.", f"Tune one of {', '.join(SPACES)}.")
    if cut is not None:
        raise UsageError(f"kernel {kernel!r} says its shape itself.", f"Leave the numbers out: {name}.")
    return name


def tune_graph(
    store: RankedStore,
    facts: GraphFacts,
    reads: str,
    *,
    device: Device,
    kernel: str,
    seconds: float,
    again: bool = True,
    progress: Progress = silent,
) -> Tuned | None:
    """Find the fastest shape of a kernel on a graph, and keep it for all graphs of its class.

    Parameters
    ----------
    store, facts
        The graph, in the tiles that a run would have, and what is known of it.
    reads
        Format of the gathered numbers.
    device
        Where runs will be.
    kernel
        A name that `tunable` returned.
    seconds
        For trying; reading the tiles comes on top.
    again
        Whether to do it where a shape is kept, too; else None is returned then.
    progress
        Told of tiles and shapes.

    Raises
    ------
    DamagedError
        When a tile's bytes are not what was written.
    """
    with device:
        backend = CudaBackend(device, kernel)
        tiles = _bring(store, backend, progress)
        hubs = _mostly_hubs(tiles)
        case = Case(Gather(reads), hubs, device.shared_bytes)
        name, kept = class_of(facts, case), Kept.of(device)
        if not again and kept.find(kernel, name, case) is not None:
            return None
        like = [tile for tile in tiles if tile.hubs == hubs]
        found = tune(
            _measured(backend, device, kernel, case, like, store.nodes), seconds=seconds, progress=progress
        )
    written = kept.keep(kernel, name, found.best, found.figures())
    return Tuned(device.name, name, found, str(kept.path) if written else None)


def _bring(store: RankedStore, backend: CudaBackend, progress: Progress) -> list[CudaTile]:
    """Some tiles of a graph on the device, as those of a run that stay there."""
    buffer = np.empty(store.encoded.max_bytes, np.uint8)
    numbers = sample(len(store.tile_rows) - 1)
    tiles = []
    for done, tile in enumerate(numbers):
        encoded = buffer[: store.encoded.read_into(tile, buffer)]
        tiles.append(backend.prepare(encoded, store.nodes, True))
        progress("reading tiles", done + 1, len(numbers), "tiles")
    return tiles


def _mostly_hubs(tiles: Sequence[CudaTile]) -> bool:
    """Whether hubs are kept near in tiles of most of the edges."""
    return 2 * sum(tile.there.edges for tile in tiles if tile.hubs) >= sum(tile.there.edges for tile in tiles)


def _measured(
    backend: CudaBackend, device: Device, kernel: str, case: Case, tiles: Sequence[CudaTile], nodes: int
) -> Tiles:
    reads = backend.allocate_reads(nodes, case.gather.reads, False).array
    _fill(reads, nodes, case.gather.reads)
    if kernel == "balanced":
        return BalancedTiles(device, case, [tile.there for tile in tiles], reads, nodes)
    return BinnedTiles(device, case, [tile.matrix for tile in tiles if tile.matrix is not None], reads)


def _fill(reads: Any, nodes: int, form: str) -> None:
    """Numbers as ranks are: positive, of many magnitudes."""
    draws = np.random.default_rng(1).random(min(nodes, _PIECE))
    piece = narrow(2.0 ** (-20 * draws), form)
    for first in range(0, nodes, _PIECE):
        last = min(nodes, first + _PIECE)
        send(reads[first:last], piece[: last - first])
