"""Runs whose groups all stay: the first pass of those that come as one group, and the first of others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr

from oocpr.engine.cuda.backend import CudaBackend
from oocpr.engine.run import rank_graph
from oocpr.engine.settings import Settings
from oocpr.errors import DamagedError
from oocpr.sources import open_source
from oocpr.store.graph import open_store

from ..engine.digraphs import exact_ranks, random_digraph
from ..engine.running import build, plan_grouped
from .conftest import RUNS

if TYPE_CHECKING:
    from oocpr.engine.cuda.device import Device
    from oocpr.engine.method import Solution

GRAPH = random_digraph(300, 2000, seed=4)
TILES = pytest.mark.parametrize("each", [10**6, 4], ids=["one group", "several groups"])
"""How many tiles a group has at most."""


def ranked(path: Path, device: Device, each: int, **chosen: Any) -> Solution:
    settings = Settings(**chosen)
    plan, tiles = plan_grouped(open_store(path), settings, each=each)
    assert (plan.stats.tiles == 1) == (each > 4)
    return rank_graph(tiles, plan, settings, path=str(path), backend=CudaBackend(device))


@RUNS
@TILES
@pytest.mark.parametrize("chosen", [{}, {"reads": "bits8"}, {"method": "residual"}], ids=str)
def test_all_tiles_are_read_in_the_first_pass(
    device: Device, tmp_path: Path, each: int, chosen: dict[str, Any]
) -> None:
    store = build(open_source((GRAPH.src, GRAPH.dst)), tmp_path / "g.zarr", 150)
    run = ranked(tmp_path / "g.zarr", device, each, **chosen)
    read = [record.bytes_read for record in run.history]
    sizes = store.tile_sizes()
    assert sizes is not None
    # Behind each is a checksum.
    assert read == [int(sizes.sum()) - 4 * store.tiles, *[0] * (len(read) - 1)]
    assert np.abs(run.ranks - exact_ranks(GRAPH, 0.85)).sum() <= run.error_bound + 1e-14


@RUNS
@TILES
def test_out_degrees_of_other_rows_are_refused(device: Device, tmp_path: Path, each: int) -> None:
    path = tmp_path / "g.zarr"
    degree = build(open_source((GRAPH.src, GRAPH.dst)), path, 150).out_degree(0, GRAPH.nodes)
    other = int(np.flatnonzero((degree != degree[0]) & (degree > 0))[0])
    degree[[0, other]] = degree[[other, 0]]
    zarr.open_array(str(path / "out_degree"), mode="r+")[:] = degree
    with pytest.raises(DamagedError, match="out-degrees or out-weights are not those of the edges"):
        ranked(path, device, each)
