"""Groups that pass are swept with their neighbours: against solved systems, and in the passes it saves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from numpy.typing import NDArray

from oocpr.engine.cuda.backend import CudaBackend
from oocpr.engine.settings import Settings
from oocpr.store.codec.tiles import decode_tile

from ..engine.digraphs import Digraph, exact_ranks, random_digraph
from ..engine.running import Stored, check_same_bits, in_groups, rank
from .conftest import RUNS
from .test_cuda_backend import first_passes

if TYPE_CHECKING:
    from oocpr.engine.cuda.device import Device
    from oocpr.store.graph import GraphStore

Vector = NDArray[np.float64]
DAMPING = 0.5
EACH = 3


class Pairs:
    """The systems of two neighbouring groups that sweeps inside them go to, each group's rows and the next's.

    `begins` has the first row of each group, `edges` the first edge; `left` is the residual.
    """

    def __init__(self, store: GraphStore, left: Vector) -> None:
        layout = in_groups(store, EACH)[0].layout
        self.begins, self.left = layout.group_rows, left
        buffer = np.empty(store.encoded.max_bytes, np.uint8)
        sizes = (store.encoded.read_into(tile, buffer) for tile in range(store.tiles))
        self.column = np.concatenate([decode_tile(buffer[:size])[0] for size in sizes]).astype(np.int64)
        self.row = np.repeat(np.arange(store.nodes), np.diff(store.indptr(0, store.nodes + 1)))
        edges = np.arange(len(self.row)) // store.attributes.tile_edges
        self.group = np.searchsorted(layout.bounds, edges, side="right") - 1
        degree = np.maximum(store.out_degree(0, store.nodes), 1)
        self.sent = DAMPING / degree[self.column]
        self.count = len(layout.bounds) - 1

    def proposals(self) -> Vector:
        """What rows propose once each group has been solved with the one before, and again with the next."""
        found, tails = np.zeros(len(self.left)), [0.0]
        for group in range(1, self.count):
            low, high = self.begins[group - 1], self.begins[group + 1]
            found[low:high], tail = self._solved(found, tails, [group - 1, group])
            tails.append(tail)
        last = self.begins[self.count - 1]
        found[last:] = self._solved(found, tails, [self.count - 1])[0]
        return found

    def _solved(self, found: Vector, tails: list[float], groups: list[int]) -> tuple[Vector, float]:
        """Values of the rows of `groups`, and what the one before the last leaves to the first row of that.

        `tails`: what was left to the first row of each group before the last.
        """
        low, high = self.begins[groups[0]], self.begins[groups[-1] + 1]
        matrix, right = np.eye(high - low), self.left[low:high].copy()
        carried, tail = np.zeros(high - low), 0.0
        newest = groups[-1] if len(groups) > 1 else -1
        for edge in np.flatnonzero((self.row >= low) & (self.row < high)):
            row, column, at = self.row[edge] - low, self.column[edge], int(self.group[edge])
            seen = self.begins[max(0, at - 1)]
            owner = int(np.searchsorted(self.begins, self.row[edge], side="right") - 1)
            if column < seen:
                # Final when the tile of the edge came.
                right[row] += self.sent[edge] * found[column]
            elif column >= high or (at < owner and owner != newest):
                # Swept later; or in `tails`, which does not change any more.
                continue
            elif column < low:
                right[row] += self.sent[edge] * found[column]
                if at < owner:
                    tail += self.sent[edge] * found[column]
            else:
                matrix[row, column - low] -= self.sent[edge]
                if at < owner:
                    carried[column - low] += self.sent[edge]
        if self.begins[groups[0]] < self.begins[groups[0] + 1]:
            right[0] += tails[groups[0]]
        values = np.linalg.solve(matrix, right)
        return values, tail + float(carried @ values)


@RUNS
@pytest.mark.parametrize("seed", range(3))
def test_proposals_are_those_of_solved_pairs_of_groups(device: Device, seed: int) -> None:
    graph = random_digraph(90, 700, seed=seed)
    settings = Settings(reads="float32", damping=DAMPING, sweeps=20)
    with Stored(graph, 60) as store:
        different = []
        for overlap in (True, False):
            backend = CudaBackend(device, inside="groups", overlap=overlap)
            how = {"each": EACH, "stays": False, "sweeps": settings.sweeps}
            ours, then = first_passes(store, settings, backend, **how)
            expected = Pairs(store, ours.after - ours.pushed).proposals()
            different.append(np.abs(then.pushed - expected).sum() / np.abs(expected).sum())
    # What is sent inside groups has eight bits.
    assert different[0] <= 2.0**-10
    assert different[1] >= 2.0**-5


def neighbours(nodes: int) -> Digraph:
    """Nodes that link to near ones before and behind them, and a few to any."""
    rng = np.random.default_rng(2)
    src = rng.integers(0, nodes, 8 * nodes)
    near = np.clip(src + rng.integers(-nodes // 40, nodes // 40 + 1, src.size), 0, nodes - 1)
    return Digraph(nodes, src, np.where(rng.random(src.size) < 0.95, near, rng.permutation(src)))


@pytest.mark.long
@RUNS
@pytest.mark.parametrize("stripes", [1, 2])
def test_it_saves_passes_where_neighbours_link_to_each_other(device: Device, stripes: int) -> None:
    graph = neighbours(1200)
    exact = exact_ranks(graph, 0.85)
    with Stored(graph, 100) as store:
        how = {"each": 4, "kept": "none", "sweeps": 4, "mixing": 3, "stripes": stripes}
        alone, ours, again = (
            rank(store, backend=CudaBackend(device, inside="groups", overlap=overlap), **how)
            for overlap in (False, True, True)
        )
    for run in (alone, ours):
        assert run.converged
        assert np.abs(run.ranks - exact).sum() <= run.error_bound + 1e-14
    assert ours.passes < alone.passes
    check_same_bits(ours, again)
