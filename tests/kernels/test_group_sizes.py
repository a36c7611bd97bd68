"""Runs that take tiles in groups of any size have the bits of those that take them one by one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oocpr.engine.cuda.backend import CudaBackend
from oocpr.engine.number_formats import READS
from oocpr.engine.run import rank_graph
from oocpr.engine.settings import Settings
from oocpr.sources import open_source

from ..engine.digraphs import Digraph
from ..engine.running import build, plan_grouped
from ..engine.weighted import WeightedGraph
from .conftest import RUNS

if TYPE_CHECKING:
    from oocpr.engine.cuda.device import Device
    from oocpr.engine.method import Solution
    from oocpr.plan.device_memory import Inside
    from oocpr.store.graph import GraphStore

ALL = 10**6
"""More tiles than there are."""


@st.composite
def hub_graphs(draw: st.DrawFn) -> Digraph:
    """Rows of all sizes, some so long that no tile of 1000 edges has them, and many that are empty."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    nodes = draw(st.sampled_from([40, 1500, 4000]))
    src, dst = [rng.integers(0, nodes, 3 * nodes)], [(nodes * rng.random(3 * nodes) ** 4).astype(int)]
    for hub in rng.integers(0, nodes, draw(st.integers(0, 3))):
        linked = np.flatnonzero(rng.random(nodes) < draw(st.sampled_from([0.1, 0.6, 1.0])))
        src.append(linked)
        dst.append(np.full(len(linked), hub))
    return Digraph(nodes, np.concatenate(src), np.concatenate(dst))


@contextmanager
def stored(graph: Digraph, tile_edges: int, *, weighted: bool) -> Iterator[GraphStore]:
    """The store of a graph, of random weights if it is weighted."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "graph.zarr"
        if not weighted:
            yield build(open_source(graph.entries), path, tile_edges)
            return
        bare = WeightedGraph.of(graph)
        weight = np.random.default_rng(len(bare.src)).random(len(bare.src))
        yield replace(bare, weight=weight).write(path, tile_edges)


class Way(NamedTuple):
    """How a run takes a graph."""

    each: int  # tiles of a group
    place: str = "device"  # where groups stay; nowhere for "store"
    slots: int = 5


WAYS = st.builds(
    Way,
    st.sampled_from([1, 2, 7, ALL]),
    st.sampled_from(["device", "host", "store", "both"]),
    st.integers(1, 5),
)


def run(device: Device, store: GraphStore, way: Way, sweeps: int, inside: Inside, **how: Any) -> Solution:
    """Rank a graph one way; rows read nothing of what groups before propose."""
    chosen = Settings(max_passes=4, **how)
    plan, tiles = plan_grouped(store, chosen, each=way.each, sweeps=sweeps, stripes=1)
    (tiers,) = plan.devices
    groups = plan.stats.tiles
    on_device, in_host = {
        "device": (groups, 0), "host": (0, groups), "store": (0, 0), "both": (groups // 3, groups // 3)
    }[way.place]  # fmt: skip
    tiers = replace(tiers, on_device=on_device, in_host=in_host, slots=way.slots)
    plan = replace(plan, devices=(tiers,), cached_tiles=on_device + in_host)
    assert (plan.sweeps, plan.proposals) == (sweeps, sweeps > 1)
    backend = CudaBackend(device, pairs=False, inside=inside)
    return rank_graph(tiles, plan, chosen, backend=backend)


def same_bits(ours: Solution, theirs: Solution) -> bool:
    """Whether ranks are the same and all that is told of passes, but times and bytes that were read."""
    records = [[(x.residual, x.bound) for x in solution.history] for solution in (ours, theirs)]
    return ours.ranks.tobytes() == theirs.ranks.tobytes() and records[0] == records[1]


@pytest.mark.long
@RUNS
@pytest.mark.parametrize(
    ("method", "sweeps", "inside", "weighted"),
    [
        ("residual", 1, "tiles", False),
        ("residual", 1, "tiles", True),
        ("mixed", 1, "tiles", False),
        ("mixed", 1, "tiles", True),
        ("mixed", 3, "tiles", False),
        ("mixed", 3, "tiles", True),
        # They know nothing of weights.
        ("mixed", 3, "blocks", False),
    ],
)
def test_groups_of_any_size_change_no_bit(
    device: Device, method: str, sweeps: int, inside: Inside, weighted: bool
) -> None:
    @settings(max_examples=6)
    @given(
        graph=hub_graphs(),
        tile_edges=st.sampled_from([1000, 1024, 4096]),
        reads=st.sampled_from(list(READS)),
        ways=st.lists(WAYS, min_size=3, max_size=4, unique=True),
    )
    def check(graph: Digraph, tile_edges: int, reads: str, ways: list[Way]) -> None:
        if inside == "blocks":
            # What does not stay is swept group by group.
            ways = [way._replace(place="device") for way in ways]
        how = {"method": method, "reads": reads}
        with stored(graph, tile_edges, weighted=weighted) as store:
            plain = run(device, store, Way(1), sweeps, inside, **how)
            for way in ways:
                found = run(device, store, way, sweeps, inside, **how)
                assert same_bits(found, plain), way

    check()


@pytest.mark.long
@RUNS
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("method", ["residual", "mixed"])
@pytest.mark.parametrize("tile_edges", [1000, 4096])
def test_all_sizes_of_groups_of_a_graph_of_hubs(
    device: Device, method: str, tile_edges: int, weighted: bool
) -> None:
    rng = np.random.default_rng(6)
    nodes = 4000
    linked = [np.flatnonzero(rng.random(nodes) < share) for share in (1.0, 0.7, 0.9)]
    src = np.concatenate([rng.integers(0, nodes, 9000), *linked])
    hubs = np.repeat([0, 3, 2500], [len(of) for of in linked])
    graph = Digraph(nodes, src, np.concatenate([rng.integers(0, nodes, 9000), hubs]))
    with stored(graph, tile_edges, weighted=weighted) as store:
        # Some tiles own no row, and the last one is of odd size.
        assert tile_edges == 4096 or (np.diff(store.tile_rows) == 0).any()
        assert store.edges % tile_edges % 1024
        plain = run(device, store, Way(1), 1, "tiles", method=method)
        for each in (1, 2, 7, ALL):
            for place in ("device", "store"):
                found = run(device, store, Way(each, place), 1, "tiles", method=method)
                assert same_bits(found, plain), (each, place)
