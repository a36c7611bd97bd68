"""Weighted graphs on the backend for CUDA devices, against direct solution, plain NumPy and exact sums."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oocpr.engine.cuda.backend import CudaBackend
from oocpr.engine.cuda.device import download
from oocpr.engine.cuda.spmv import EVERYTHING, Gather, SegmentSums, SpMV
from oocpr.engine.cuda.tile import upload_weights
from oocpr.engine.number_formats import READS
from oocpr.engine.planning import plan_request, stats_of
from oocpr.engine.run import rank_graph
from oocpr.engine.settings import Settings
from oocpr.engine.stripe import Job
from oocpr.engine.tiles.merged import MergedStore
from oocpr.engine.tiles.source import weight_scale_of
from oocpr.errors import DamagedError, UsageError
from oocpr.plan.device_plan import plan_on_devices
from oocpr.plan.tile_merge import merge_bounds, merged_stats
from oocpr.store.codec.mantissa_segments import encode_segments, parse_segments

from ..engine.digraphs import random_digraph
from ..engine.running import PLENTY, passes, plan_of
from ..engine.weighted import WeightedGraph, weights_of
from .conftest import RUNS
from .test_staging import streaming_plan
from .tiles import placed, random_tile

if TYPE_CHECKING:
    from oocpr.engine.cuda.device import Device
    from oocpr.plan.plan import Plan

NODES = 700
KINDS = [
    pytest.param(kind, marks=[] if kind == "reals" else pytest.mark.slow)
    for kind in ("counts", "reals", "wide")
]


def random_weighted(nodes: int, links: int, seed: int, kind: str = "reals") -> WeightedGraph:
    bare = WeightedGraph.of(random_digraph(nodes, links, seed))
    return replace(bare, weight=weights_of(np.random.default_rng(seed), len(bare.src), kind))


@pytest.mark.long
@RUNS
@pytest.mark.parametrize(
    ("method", "reads"),
    [("mixed", "bits16"), ("mixed", "float64"), ("residual", "bits8"), ("power", "float64")],
)
@pytest.mark.parametrize("kind", KINDS)
def test_ranks_lie_within_their_bound_wherever_tiles_are(
    device: Device, method: str, reads: str, kind: str, tmp_path: Path
) -> None:
    graph = random_weighted(300, 2500, 8, kind)
    store = graph.write(tmp_path / "g.zarr", 300)
    chosen = Settings(method=method, reads=reads)
    exact = graph.exact_ranks(0.85)
    runs = []
    for on_device, in_host in ((store.tiles, 0), (0, store.tiles), (0, 0), (3, 2)):
        plan = streaming_plan(store, chosen, on_device, in_host)
        runs.append(rank_graph(store, plan, chosen, backend=CudaBackend(device)))
    for run in runs:
        assert run.converged
        assert np.abs(run.ranks - exact).sum() <= run.error_bound + 1e-14
        assert np.array_equal(run.ranks, runs[0].ranks)


@pytest.mark.long
@RUNS
@pytest.mark.parametrize("reads", READS)
@pytest.mark.parametrize("sweeps", [1, 3])
def test_a_pass_delivers_what_the_plain_backend_delivers(
    device: Device, reads: str, sweeps: int, tmp_path: Path
) -> None:
    graph = random_weighted(60, 150, 16)
    store = graph.write(tmp_path / "g.zarr", 16)
    chosen = Settings(reads=reads)
    plan = plan_of(store, chosen, sweeps=sweeps, stripes=2, kept="decoded")
    done = []
    for backend in ("reference", CudaBackend(device)):
        job = Job("", chosen, plan, backend, threads=1, weight_scale=weight_scale_of(store, reads))
        done.append(next(iter(passes(job, store, 2))))
    plain, ours = done
    assert np.array_equal(ours.pushed, plain.pushed)
    assert np.abs(ours.after - plain.after).sum() <= 1e-14


@pytest.mark.long
@settings(max_examples=20)
@given(data=st.data())
def test_sums_are_those_of_the_weighted_links(device: Device, data: st.DataObject) -> None:
    edges, missing = data.draw(st.sampled_from([1, 7, 900, 1024, 2500])), data.draw(st.integers(0, 40))
    segments = data.draw(st.integers(1, 4))
    columns, lengths = random_tile(edges, data.draw(st.integers(0, 9)), NODES)
    rng = np.random.default_rng(edges)
    # As many bits of mantissa as the first segments have; the last weights are zero and not stored.
    bits = (
        rng.random(len(columns)).view(np.uint64)
        >> np.uint64(64 - 16 * segments)
        << np.uint64(64 - 16 * segments)
    )
    weights = bits.view(np.float64)
    weights[max(0, len(columns) - missing) :] = 0
    stored = weights[: max(0, len(columns) - missing)]
    faults = device.xp.zeros(1, np.uint32)
    tile = placed(device, columns, lengths)
    there = upload_weights(device, parse_segments(encode_segments(stored)), tile.edges, 0.25)
    tile = replace(tile, weights=there)
    # Few bits each: sums of products are exact in any order.
    numbers = rng.integers(0, 2**10, NODES).astype(np.float64)
    sums = SegmentSums.allocate(device, max(1, tile.nonempty), tile.blocks, paired=False)
    reads = device.xp.asarray(np.append(numbers, np.zeros(64)))
    SpMV(device, Gather("float64", weighted=True))(tile, reads, NODES, EVERYTHING, sums, faults)
    found = download(sums.pushes)[: tile.nonempty]
    ends = np.cumsum(lengths)
    wanted = [
        sum(numbers[columns[end - size : end]] * stored_or_zero(stored, end - size, end)) / 4
        for size, end in zip(lengths, ends, strict=True)
        if size
    ]
    assert found == pytest.approx(np.array(wanted), rel=1e-14, abs=1e-14)


def stored_or_zero(stored: np.ndarray, begin: int, end: int) -> np.ndarray:
    part = stored[begin:end]
    return np.append(part, np.zeros(end - begin - len(part)))


@RUNS
def test_what_a_weighted_tile_cannot_be_is_refused(device: Device, tmp_path: Path) -> None:
    with pytest.raises(DamagedError, match="5 weights where 4 belong"):
        upload_weights(device, parse_segments(encode_segments(np.ones(5))), 4, 1.0)
    store = random_weighted(60, 150, 16).write(tmp_path / "g.zarr", 50)
    chosen = Settings(method="residual")
    plan = streaming_plan(store, chosen, store.tiles, 0)
    with pytest.raises(UsageError, match="takes no weighted graphs"):
        rank_graph(store, plan, chosen, backend=CudaBackend(device, "csr-vector"))


@RUNS
@pytest.mark.parametrize("stays", [True, False])
def test_joined_tiles_bring_their_weights(device: Device, stays: bool, tmp_path: Path) -> None:
    graph = random_weighted(300, 2500, 9)
    store = graph.write(tmp_path / "g.zarr", 150)
    cuts = merge_bounds(store.tiles, 150, 600)
    stats = merged_stats(stats_of(store), store.tile_rows, cuts)
    chosen = Settings()

    def planned(device_memory: int) -> Plan:
        return plan_on_devices(
            stats,
            store.tile_rows[np.asarray(cuts)],
            plan_request(chosen, memory=PLENTY, device_memory=(device_memory,)),
            all_resident=stays,
        )

    plan = planned(PLENTY)
    assert plan.device is not None
    if not stays:
        plan = planned(plan.device.need.total)
        assert plan.device is not None
    assert (plan.device.on_device, plan.device.in_host) == (stats.tiles, 0)[:: 1 if stays else -1]
    assert plan.stats.tiles < store.tiles
    run = rank_graph(MergedStore(store, 150, cuts), plan, chosen, backend=CudaBackend(device))
    assert run.converged
    assert np.abs(run.ranks - graph.exact_ranks(0.85)).sum() <= run.error_bound + 1e-14
