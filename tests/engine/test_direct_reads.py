"""Runs whose tiles are read past the page cache have the bits of those that are read through it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from oocpr.engine.run import rank_graph
from oocpr.engine.settings import Settings
from oocpr.engine.tiles.source import split_tile, tiles_of
from oocpr.errors import DamagedError
from oocpr.sources import open_source
from oocpr.store.direct_io import aligned
from oocpr.store.graph import open_store

from ..store.damage import flip_bits
from .digraphs import random_digraph
from .running import build, plan_of
from .weighted import weigh

if TYPE_CHECKING:
    from oocpr.store.graph import GraphStore


@pytest.fixture(params=["plain", "weighted"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> GraphStore:
    """A graph whose tiles have several pages, on a disk."""
    graph = random_digraph(3000, 40_000, seed=4)
    if request.param == "plain":
        built = build(open_source(graph.entries), tmp_path / "graph.zarr", 8192)
    else:
        built = weigh(graph, 1, "reals").write(tmp_path / "graph.zarr", 8192)
    if not built.takes_direct_reads():
        pytest.skip("the file system of temporary files takes no direct reads")
    return built


@pytest.mark.long
@pytest.mark.parametrize("kept", ["none", "some", "packed", "decoded"])
@pytest.mark.parametrize("stripes", [1, 2])
def test_ranks_have_the_same_bits(store, kept, stripes):
    settings = Settings(tol=1e-6)
    plan = plan_of(store, settings, stripes=stripes, kept=kept)
    buffered, direct = (rank_graph(store, replace(plan, direct=direct), settings) for direct in (False, True))
    assert (buffered.ranks == direct.ranks).all()
    assert buffered.passes == direct.passes
    # What fills up pages counts, too.
    pages = 2 * 4096 * store.tiles * direct.passes if store.weights else 0
    assert buffered.bytes_read <= direct.bytes_read <= buffered.bytes_read + pages


def test_tiles_have_the_same_bytes(store):
    tiles = tiles_of(store)
    for tile in range(store.tiles):
        outs = [aligned(tiles.max_bytes) for _ in range(2)]
        sizes = [
            tiles.read_into(tile, out, direct=direct) for out, direct in zip(outs, (False, True), strict=True)
        ]
        buffered, direct = (out[:size] for out, size in zip(outs, sizes, strict=True))
        if store.weights is None:
            assert buffered.tobytes() == direct.tobytes()
            continue
        # Weights begin with pages of their own.
        for one, other in zip(split_tile(buffered), split_tile(direct), strict=True):
            assert one.tobytes() == other.tobytes()


@pytest.mark.long
def test_a_damaged_tile_ends_the_run(store):
    flip_bits(next(Path(store.path).rglob("indices/c/2")), bits=4)
    settings = Settings()
    plan = replace(plan_of(store, settings, kept="none"), direct=True)
    with pytest.raises(DamagedError, match="tile 2 "):
        rank_graph(open_store(store.path), plan, settings)
