"""Weighted graphs on the backend for CUDA devices, against direct solution, plain NumPy and exact sums."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oocpr.engine.cuda.backend import CudaBackend
from oocpr.engine.cuda.baselines import BASELINES, DecodedSpMV
from oocpr.engine.cuda.device import download
from oocpr.engine.cuda.spmv import EVERYTHING, Gather, SegmentSums, SpMV
from oocpr.engine.number_formats import READS
from oocpr.engine.run import rank_graph
from oocpr.engine.settings import Settings
from oocpr.engine.stripe import Job
from oocpr.engine.tiles.source import weight_scale_of
from oocpr.errors import UsageError

from ..engine.running import passes, plan_grouped, plan_of, rank
from ..engine.weighted import random_weighted
from .conftest import RUNS
from .test_staging import grouped, streaming_plan
from .tiles import encoded, open_group, random_tile

if TYPE_CHECKING:
    from oocpr.engine.cuda.device import Device

NODES = 700
KINDS = [
    pytest.param(kind, marks=[] if kind == "reals" else pytest.mark.slow)
    for kind in ("counts", "reals", "wide")
]


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
        runs.append(rank_graph(grouped(store), plan, chosen, backend=CudaBackend(device)))
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
    how = {"sweeps": sweeps, "stripes": 2}
    scale = weight_scale_of(store, reads)
    job = Job("", chosen, plan_of(store, chosen, **how), "reference", threads=1, weight_scale=scale)
    plain = next(iter(passes(job, store, 2)))
    for each, stays in ((1, True), (3, True), (2, False)):
        plan, tiles = plan_grouped(store, chosen, each=each, stays=stays, **how)
        job = replace(job, plan=plan, backend=CudaBackend(device), layout=tiles.layout)
        ours = next(iter(passes(job, tiles, 2)))
        assert np.array_equal(ours.pushed, plain.pushed)
        assert np.abs(ours.after - plain.after).sum() <= 1e-14


@pytest.mark.long
@settings(max_examples=20)
@given(data=st.data())
def test_sums_are_those_of_the_weighted_links(device: Device, data: st.DataObject) -> None:
    of, weights_of_tiles = [], []
    for _ in range(data.draw(st.integers(1, 3))):
        rows, missing = data.draw(st.sampled_from([1, 7, 900, 1024, 2500])), data.draw(st.integers(0, 40))
        segments = data.draw(st.integers(1, 4))
        columns, lengths = random_tile(rows, data.draw(st.integers(0, 9)), NODES)
        rng = np.random.default_rng(rows)
        # As many bits of mantissa as the first segments have; the last weights are zero and not stored.
        dropped = np.uint64(64 - 16 * segments)
        weights = (rng.random(len(columns)).view(np.uint64) >> dropped << dropped).view(np.float64)
        weights[max(0, len(columns) - missing) :] = 0
        of.append((columns, lengths))
        weights_of_tiles.append(weights[: max(0, len(columns) - missing)])
    coded = [encoded(*tile, weights) for tile, weights in zip(of, weights_of_tiles, strict=True)]
    group, faults = open_group(device, coded, weighted=True, factor=0.25)
    assert not faults
    # Few bits each: sums of products are exact in any order.
    numbers = np.random.default_rng(1).integers(0, 2**10, NODES).astype(np.float64)
    nonempty = group.sizes.nonempty
    sums = SegmentSums.allocate(device, max(1, nonempty), group.sizes.blocks, paired=False)
    reads = device.xp.asarray(np.append(numbers, np.zeros(64)))
    gather = Gather("float64", weighted=True)
    SpMV(device, gather)(group, reads, NODES, EVERYTHING, sums, device.xp.zeros(1, np.uint32))
    found = download(sums.pushes)[:nonempty]
    wanted = [
        sum(numbers[columns[end - size : end]] * stored_or_zero(stored, end - size, end)) / 4
        for (columns, lengths), stored in zip(of, weights_of_tiles, strict=True)
        for size, end in zip(lengths, np.cumsum(lengths), strict=True)
        if size
    ]
    assert found == pytest.approx(np.array(wanted), rel=1e-14, abs=1e-14)
    lengths = np.concatenate([lengths for _, lengths in of])
    kernel = data.draw(st.sampled_from([name for name, product in BASELINES.items() if product.weights]))
    product = DecodedSpMV(device, kernel, None, layouts_stay=False)
    product.expect(lengths.size, group.sizes.edges)
    sums = SegmentSums.allocate(device, lengths.size, 1, paired=False)
    product(group, gather, reads, NODES, EVERYTHING, sums, device.xp.zeros(1, np.uint32))
    assert download(sums.pushes)[lengths > 0] == pytest.approx(np.array(wanted), rel=1e-14, abs=1e-14)
    assert not download(sums.pushes)[lengths == 0].any()


def stored_or_zero(stored: np.ndarray, begin: int, end: int) -> np.ndarray:
    part = stored[begin:end]
    return np.append(part, np.zeros(end - begin - len(part)))


@RUNS
@pytest.mark.parametrize("stays", [True, False])
def test_kernels_without_weights_are_refused(device: Device, tmp_path: Path, stays: bool) -> None:
    store = random_weighted(60, 150, 16).write(tmp_path / "g.zarr", 50)
    chosen, before = Settings(method="residual"), device.limit(None)
    plan = streaming_plan(store, chosen, store.tiles if stays else 0, 0)
    backend = CudaBackend(device, "ell", limit=2**30)
    with pytest.raises(UsageError, match="kernel 'ell' takes no weighted graphs"):
        rank_graph(grouped(store), plan, chosen, backend=backend)
    # It is refused once everything is set up.
    assert device.limit(None) == before


@RUNS
@pytest.mark.parametrize("stays", [True, False])
def test_tiles_in_groups_bring_their_weights(device: Device, stays: bool, tmp_path: Path) -> None:
    graph = random_weighted(300, 2500, 9)
    store = graph.write(tmp_path / "g.zarr", 150)
    chosen = Settings()
    groups = -(-store.tiles // 4)
    plan = streaming_plan(store, chosen, groups if stays else 0, 0, each=4)
    assert plan.stats.tiles == groups < store.tiles
    run = rank_graph(grouped(store, 4), plan, chosen, backend=CudaBackend(device))
    assert run.converged
    assert np.abs(run.ranks - graph.exact_ranks(0.85)).sum() <= run.error_bound + 1e-14


@RUNS
@pytest.mark.parametrize("kind", KINDS)
def test_groups_are_swept_inside_with_their_weights(device: Device, kind: str, tmp_path: Path) -> None:
    graph = random_weighted(300, 2500, 9, kind)
    how: dict[str, Any] = {"sweeps": 4, "stripes": 1, "mixing": 0}
    cpu = rank(graph.write(tmp_path / "larger.zarr", 1200), **how)
    store = graph.write(tmp_path / "g.zarr", 150)
    run = rank(store, backend=CudaBackend(device, inside="groups", overlap=True), each=8, kept="none", **how)
    # Swept inside its tiles alone it takes 19 to 30.
    assert np.abs(run.ranks - graph.exact_ranks(0.85)).sum() <= run.error_bound + 1e-14
    assert abs(run.passes - cpu.passes) <= 1
