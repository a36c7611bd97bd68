"""What skipping tiles could save: passes' worth of bytes to an answer, with skipping and without.

Tiles are solved one after another, each exactly or by twelve sweeps inside it, and states are mixed after
each pass, as `mixed` does. Who skips tiles is told for nothing how much residual each holds, what other tiles
have just pushed into it included. A store keeps rows with their in-edges, so that a run would have to read a
tile to know that: what is found here is the most that it could save.

A pass skips the tiles that hold less than a share of the residual of a mean tile; the best of several shares
counts. Then edges are added, with ends drawn among those of the graph's own, and the ranks of before are the
start.

    OOCPR_GRAPHS=FOLDER python workflows/bench/skipping.py --out workflows/bench/results/skipping.json
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from machine import provenance
from numpy.typing import NDArray
from papers import GRAPHS
from passes import measure_graphs
from scipy.sparse.linalg import splu

from oocpr.store.codec.tiles import decode_tile

if TYPE_CHECKING:
    import oocpr

DAMPING, TOLERANCE = 0.85, 1.76e-11
TILES = 64
SHARES = (0.1, 0.3, 1.0)
NEW = (0.0, 1e-3, 1e-6)
"""Edges that are added, of those that there are."""
DEPTH = 4
MAX_PASSES = 100
CRAWL, COPIES = "cnr-2000 (web crawl)", 10
SOLVED_EDGES = 300_000
"""Edges inside a tile up to which it is solved exactly."""

Vector = NDArray[np.float64]


class Outcome(NamedTuple):
    """Passes, and the tiles that they read over those of the graph."""

    passes: int
    read: float


def edges_of(graph: oocpr.Graph) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Sources and targets of a store's edges, in the order of its rows."""
    store = graph.store
    buffer = np.empty(store.encoded.max_bytes, np.uint8)
    sizes = (store.encoded.read_into(tile, buffer) for tile in range(store.tiles))
    sources = np.concatenate([decode_tile(buffer[:size])[0] for size in sizes])
    lengths = np.diff(store.indptr(0, store.nodes + 1))
    return sources, np.repeat(np.arange(store.nodes, dtype=np.uint32), lengths)


def beside(
    ends_of: tuple[NDArray[np.uint32], NDArray[np.uint32]],
    nodes: int,
    copies: int,
    drawn: np.random.Generator,
) -> Iterator[NDArray[np.uint32]]:
    """Yield sources and targets of a graph so many times beside itself, with one link more in a hundred."""
    for ends in ends_of:
        each = [ends + np.uint32(copy * nodes) for copy in range(copies)]
        yield np.concatenate([*each, drawn.integers(0, nodes * copies, ends.size * copies // 100, np.uint32)])


class TiledGraph:
    """A graph whose tiles are solved one after another, every residual known."""

    def __init__(self, sources: NDArray[np.uint32], targets: NDArray[np.uint32], nodes: int) -> None:
        degree = np.bincount(sources, minlength=nodes)
        entries = DAMPING / np.maximum(degree, 1)[sources]
        rows = sp.csr_array((entries, (targets, sources)), (nodes, nodes))
        goals = np.linspace(0, rows.nnz, TILES + 1)[1:-1]
        self.cuts = np.unique([0, *np.searchsorted(rows.indptr, goals).tolist(), nodes])
        self.tiles, self.nodes = len(self.cuts) - 1, nodes
        columns = rows.tocsc()
        ranges = list(zip(self.cuts[:-1].tolist(), self.cuts[1:].tolist(), strict=True))
        self._pushed: list[sp.csc_array[np.float64]] = [columns[:, low:high] for low, high in ranges]
        self._own: list[sp.csr_array[np.float64]] = [rows[low:high, low:high] for low, high in ranges]
        self._solvers = [
            splu((sp.eye_array(own.shape[0]) - own).tocsc()) if own.nnz <= SOLVED_EDGES else None
            for own in self._own
        ]

    def residual(self, ranks: Vector) -> Vector:
        """What a system with the right side 1 / nodes leaves of `ranks`."""
        left = 1 / self.nodes - ranks
        for tile, pushed in enumerate(self._pushed):
            left += np.asarray(pushed @ ranks[self.cuts[tile] : self.cuts[tile + 1]])
        return left

    def solve(self, start: Vector, share: float) -> tuple[Vector, Outcome]:
        """Solve pass by pass from `start`, leaving tiles with less than `share` of a mean tile's residual."""
        ranks, left = start.copy(), self.residual(start)
        kept: list[tuple[Vector, Vector]] = []
        read = passes = 0
        while np.abs(left).sum() > TOLERANCE * ranks.sum() and passes < MAX_PASSES:
            limit = share * np.abs(left).sum() / self.tiles
            for tile in range(self.tiles):
                if np.abs(left[self.cuts[tile] : self.cuts[tile + 1]]).sum() >= limit:
                    self._solve_tile(tile, ranks, left)
                    read += 1
            passes += 1
            state = ranks.copy(), left.copy()
            if kept:
                ranks, left = _mixed(ranks, left, kept)
            kept = [*kept, state][-DEPTH:]
        return ranks, Outcome(passes, read / self.tiles)

    def _solve_tile(self, tile: int, ranks: Vector, left: Vector) -> None:
        low, high = self.cuts[tile], self.cuts[tile + 1]
        if (solver := self._solvers[tile]) is not None:
            change = solver.solve(left[low:high])
        else:
            change = step = left[low:high].copy()
            for _ in range(12):
                step = np.asarray(self._own[tile] @ step)
                change = change + step
        ranks[low:high] += change
        left[low:high] -= change
        left += np.asarray(self._pushed[tile] @ change)


def _mixed(ranks: Vector, left: Vector, kept: list[tuple[Vector, Vector]]) -> tuple[Vector, Vector]:
    """The combination with the states that are kept whose residual, by the root of the ranks, is least."""
    weights = 1 / np.sqrt(np.maximum(ranks, 1e-300))
    differences = np.stack([(other - left) * weights for _, other in kept], 1)
    shares = np.linalg.lstsq(differences, -left * weights, rcond=1e-10)[0]
    mixed, rest = ranks.copy(), left.copy()
    for part, (of_ranks, of_left) in zip(shares, kept, strict=True):
        mixed += part * (of_ranks - ranks)
        rest += part * (of_left - left)
    return (mixed, rest) if np.abs(rest).sum() < np.abs(left).sum() else (ranks, left)


def measure(name: str, graph: oocpr.Graph) -> Iterator[tuple[str, dict[str, Any]]]:
    """Passes' worth of bytes to an answer, of a graph and of the crawl so many times beside itself."""
    (sources, targets), nodes = edges_of(graph), graph.nodes
    yield name, read_of(sources, targets, nodes)
    if name == CRAWL:
        links, pages = beside((sources, targets), nodes, COPIES, np.random.default_rng(1))
        yield f"crawl x{COPIES}", read_of(links, pages, COPIES * nodes)


def read_of(sources: NDArray[np.uint32], targets: NDArray[np.uint32], nodes: int) -> dict[str, Any]:
    """Passes' worth of bytes to an answer for each of NEW, without and with skipping."""
    found, start, drawn = {}, np.zeros(nodes), np.random.default_rng(1)
    for new in NEW:
        more = max(1, round(new * len(sources))) if new else 0
        tiled = TiledGraph(
            np.concatenate([sources, drawn.choice(sources, more)]),
            np.concatenate([targets, drawn.choice(targets, more)]),
            nodes,
        )
        ranks, without = tiled.solve(start, 0.0)
        skipping = min(tiled.solve(start, share)[1].read for share in SHARES)
        found[f"{new:g}"] = {"without": without.read, "skipping": round(skipping, 2)}
        if not new:
            start = ranks
    return {"edges": len(sources), "read": found}


if __name__ == "__main__":
    measure_graphs(__doc__, {"provenance": provenance("skipping.py")}, measure, "auto", GRAPHS)
