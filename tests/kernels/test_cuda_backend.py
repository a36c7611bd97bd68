"""Whole runs of the CUDA backend beside the other backends."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr

from oocpr.engine import method
from oocpr.engine.backend import StripeSpec, SweepStep
from oocpr.engine.cuda.backend import CudaBackend
from oocpr.engine.cuda.baselines import KERNELS
from oocpr.engine.number_formats import READS
from oocpr.engine.settings import Settings
from oocpr.engine.stripe import Job
from oocpr.errors import DamagedError
from oocpr.plan.tile_groups import GroupLayout
from oocpr.sources import open_source
from oocpr.store.graph import open_store

from ..engine.digraphs import Digraph, exact_ranks, random_digraph
from ..engine.running import (
    TILED,
    Passed,
    Stored,
    build,
    check_same_bits,
    passes,
    plan_grouped,
    plan_of,
    rank,
)
from ..engine.weighted import WeightedGraph
from .conftest import HOSTS, RUNS
from .shim.host import HostDevice
from .tiles import encoded, placed

if TYPE_CHECKING:
    from oocpr.engine.backend import Backend
    from oocpr.engine.cuda.device import Device
    from oocpr.engine.cuda.staging import CudaTileStream
    from oocpr.engine.tiles.source import RankedStore
    from oocpr.store.graph import GraphStore


def first_passes(
    store: GraphStore, settings: Settings, backend: str | Backend, **how: Any
) -> tuple[Passed, Passed]:
    """Two passes from a state of no pattern: the first pushes a random teleport vector."""
    weights = np.random.default_rng(5).random(store.nodes) ** 4
    job, taken = job_of(store, settings, backend, personalized=True, **how)
    # However few edges stay inside a tile: of larger tiles it may be enough of them.
    job = replace(job, plan=replace(job.plan, proposals=settings.mixed))
    one, two = passes(replace(job, teleport=weights / weights.sum()), taken, 2)
    return one, two


def job_of(
    store: GraphStore, settings: Settings, backend: str | Backend, **how: Any
) -> tuple[Job, RankedStore]:
    """A run, and the graph in the tiles or groups that it takes."""
    if isinstance(backend, str):
        return Job("", settings, plan_of(store, settings, **how), backend, threads=1), store
    plan, tiles = plan_grouped(store, settings, **how)
    return Job("", settings, plan, backend, threads=1, layout=tiles.layout), tiles


# Tiles of one link each are slow, and no other with other formats.
TILES = [("bits16", 1), *((reads, edges) for reads in READS for edges in (7, 64, 2000))]


@pytest.mark.long
@RUNS
@pytest.mark.parametrize(("reads", "tile_edges"), TILES)
def test_a_pass_delivers_what_the_plain_backend_delivers(device: Device, reads: str, tile_edges: int) -> None:
    graph = random_digraph(30, 50, seed=tile_edges)
    with Stored(graph, tile_edges) as store:
        for each in sorted({1, min(3, store.tiles), store.tiles}):
            # Rows read what groups before propose, as they read what larger tiles before do.
            with Stored(graph, each * tile_edges) as larger:
                for stripes in {1, min(4, larger.tiles)}:
                    check_passes(device, store, larger, each, stripes, reads)


def check_passes(
    device: Device, store: GraphStore, larger: GraphStore, each: int, stripes: int, reads: str
) -> None:
    settings = Settings(reads=reads, sweeps=1)
    plain, later = first_passes(larger, settings, "reference", stripes=stripes)
    for stays in (True, False):
        how = {"stripes": stripes, "stays": stays, "each": each}
        ours, then = first_passes(store, settings, CudaBackend(device), **how)
        assert np.array_equal(ours.pushed, plain.pushed)
        assert np.abs(ours.after - plain.after).sum() <= 1e-14
        assert abs(ours.residual - plain.residual) <= 1e-14
        # Proposals are float32 in one and float64 in the other, before they are rounded.
        close = 1e-6 if READS[reads].bytes >= 4 else 2 * READS[reads].unit_rounding
        assert np.abs(then.pushed - later.pushed).sum() <= close * np.abs(later.pushed).sum()


@RUNS
def test_p_that_has_become_small_is_pushed_afresh(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    pushed = method.push_afresh
    afresh = []

    def noted(settings: Settings, state: method.State) -> method.State:
        found = pushed(settings, state)
        afresh.append(found.afresh)
        return found

    monkeypatch.setattr(method, "push_afresh", noted)
    graph = Digraph(64, np.arange(1, 64), np.zeros(63, np.int64))
    with Stored(graph, 1000) as store:
        run = rank(store, backend=CudaBackend(device), damping=0.999, reads="float32", tol=7e-11)
    exact = exact_ranks(graph, 0.999)
    assert run.converged
    assert np.abs(run.ranks - exact).sum() <= run.error_bound
    assert any(afresh)


CONVERGENT = [
    (name, reads, stripes)
    for name in TILED
    for reads in READS
    for stripes in ((1, 3) if name == "mixed" else (3,))
    if name != "power" or READS[reads].bytes >= 4
]


@pytest.mark.long
@RUNS
@pytest.mark.parametrize(("name", "reads", "stripes"), CONVERGENT)
def test_a_run_takes_no_more_passes_than_on_a_processor(
    device: Device, name: str, reads: str, stripes: int
) -> None:
    tol = 1e-6 if (name, reads) == ("power", "float32") else 1e-10
    graph = random_digraph(200, 700, seed=1)
    with Stored(graph, 100) as store:
        how = {"reads": reads, "method": name, "tol": tol, "stripes": stripes, "sweeps": 4}
        for each in (1, 2):
            with Stored(graph, 100 * each) as larger:
                cpu = rank(larger, **how)
            ours = rank(store, backend=CudaBackend(device, inside="groups"), each=each, **how)
            again = rank(store, backend=CudaBackend(device, inside="groups"), each=each, **how)
            assert ours.converged
            assert abs(ours.passes - cpu.passes) <= 1
            assert np.abs(ours.ranks - cpu.ranks).sum() <= ours.error_bound + cpu.error_bound
            check_same_bits(ours, again)


@pytest.mark.long
@RUNS
@pytest.mark.parametrize("reads", READS)
def test_a_given_start_is_pushed_as_on_a_processor(device: Device, reads: str) -> None:
    with Stored(random_digraph(300, 1200, seed=3), 500) as store:
        answer = rank(store, tol=1e-12).ranks
        settings = Settings(reads=reads, sweeps=1)
        jobs = [job_of(store, settings, backend, stripes=2) for backend in ("reference", CudaBackend(device))]
        # Rounding to float64 leaves nothing of the start.
        count = 1 if reads == "float64" else 2
        for plain, ours in zip(
            *(passes(replace(job, start=answer), taken, count) for job, taken in jobs), strict=True
        ):
            assert np.array_equal(ours.pushed, plain.pushed)
            assert abs(ours.residual - plain.residual) <= 1e-14
        cold = rank(store, backend=CudaBackend(device), reads=reads, stripes=2)
        assert (
            rank(store, backend=CudaBackend(device), reads=reads, stripes=2, start=answer).passes
            < cold.passes
        )


@RUNS
@pytest.mark.parametrize("stripes", [1, 3])
@pytest.mark.parametrize("name", ["mixed", "residual", "power"])
def test_swapped_degrees_are_refused(device: Device, tmp_path: Path, name: str, stripes: int) -> None:
    path = tmp_path / "graph.zarr"
    degree = build(open_source(random_digraph(200, 900, seed=4).entries), path, 100).out_degree(0, 200)
    first, *others = np.flatnonzero(degree)
    other = next(row for row in others if degree[row] != degree[first])
    degree[[first, other]] = degree[[other, first]]
    zarr.open_array(str(path / "out_degree"), mode="r+")[:] = degree
    with pytest.raises(DamagedError, match=r"a pass along all edges makes .* not those of the edges"):
        rank(open_store(path), backend=CudaBackend(device), method=name, stripes=stripes)


@RUNS
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ["mixed", "residual"])
@pytest.mark.parametrize("nodes", [1, 3000])
def test_a_graph_without_edges_has_its_one_tile_on_the_device(
    device: Device, tmp_path: Path, nodes: int, name: str, weighted: bool
) -> None:
    graph, path = Digraph.of(nodes, []), tmp_path / "graph.zarr"
    store = (
        WeightedGraph.of(graph).write(path, 50) if weighted else build(open_source(graph.entries), path, 50)
    )
    sizes = store.tile_sizes()
    assert sizes is not None
    assert len(sizes) == store.tiles == 1
    run = rank(store, backend=CudaBackend(device), method=name)
    assert run.converged
    assert np.abs(run.ranks - 1 / nodes).sum() <= run.error_bound + 1e-14


class Quiet(CudaBackend):
    """Rows that mix but propose nothing to each other."""

    def allocate(self, spec: StripeSpec, *given: Any) -> Any:
        return super().allocate(replace(spec, proposals=False), *given)

    def allocate_reads(self, nodes: int, reads: str, proposals: bool) -> Any:  # noqa: ARG002
        return super().allocate_reads(nodes, reads, False)


WAYS = {
    "no proposals": lambda device: Quiet(device),
    "proposals inside tiles only": lambda device: CudaBackend(device, pairs=False),
    "diagonal blocks": lambda device: CudaBackend(device, inside="blocks"),
    "diagonal blocks, proposals inside tiles only": lambda device: CudaBackend(
        device, pairs=False, inside="blocks"
    ),
    "groups that pass, with their neighbours": lambda device: CudaBackend(
        device, inside="groups", overlap=True
    ),
}


@pytest.mark.long
@RUNS
@pytest.mark.parametrize("reads", ["bits16", "bits8"])
@pytest.mark.parametrize("way", WAYS)
def test_other_ways_to_propose_keep_their_bound(device: Device, way: str, reads: str) -> None:
    graph = random_digraph(300, 1200, seed=3)
    exact = exact_ranks(graph, 0.85)
    with Stored(graph, 500) as store:
        plain = rank(store, backend=CudaBackend(device), reads=reads, method="residual")
        for stripes, each in ((1, 1), (2, 1), (1, 2), (2, 2)):
            how = {
                "reads": reads,
                "stripes": stripes,
                "sweeps": 3,
                "mixing": 3,
                "pairs": way in ("diagonal blocks", "groups that pass, with their neighbours"),
                "kept": "none" if "pass" in way else "decoded",
            }
            run = rank(store, backend=WAYS[way](device), each=each, **how)
            assert run.converged
            assert np.abs(run.ranks - exact).sum() <= run.error_bound + 1e-14
            # Mixing alone saves passes; what is read wrongly would cost some.
            assert run.passes < plain.passes


def long_rows() -> Digraph:
    """9000 links, of which node 7 has half; rows before and behind it have theirs."""
    rng = np.random.default_rng(4)
    nodes = 4500
    src = [np.arange(nodes), rng.integers(0, nodes, 4500)]
    dst = [np.full(nodes, 7), rng.integers(0, 400, 4500)]
    return Digraph(nodes, np.concatenate(src), np.concatenate(dst))


@RUNS
@pytest.mark.parametrize("each", [1, 3])
@pytest.mark.parametrize(("tile_edges", "stripes"), [(2**17, 1), (3000, 1), (700, 4), (700, 1)])
def test_a_row_that_spans_blocks_tiles_and_stripes(
    device: Device, tile_edges: int, stripes: int, each: int
) -> None:
    with Stored(long_rows(), tile_edges) as store, Stored(long_rows(), each * tile_edges) as larger:
        settings = Settings(reads="float64", sweeps=1)
        plain, later = first_passes(larger, settings, "reference", stripes=stripes)
        ours, then = first_passes(store, settings, CudaBackend(device), stripes=stripes, each=each)
        assert np.abs(ours.after - plain.after).sum() <= 1e-14
        assert np.abs(then.after - later.after).sum() <= 1e-4 * np.abs(later.after - plain.after).sum()


@pytest.mark.long
def test_orders_of_threads_and_widths_of_warps_change_no_bit(shim_folder: Path) -> None:
    with Stored(random_digraph(1500, 9000, seed=2), 4000) as store:
        for reads in ("bits16", "bits8"):
            how = {"reads": reads, "stripes": 2, "sweeps": 2, "max_passes": 4, "each": 2}
            runs = [
                rank(store, backend=CudaBackend(HostDevice(shim_folder, **host)), **how)
                for host in HOSTS.values()
            ]
            for run in runs[1:]:
                check_same_bits(run, runs[0])


@pytest.mark.long
@pytest.mark.parametrize("stays", [True, False])
def test_a_column_that_is_no_node_is_found(shim_folder: Path, stays: bool) -> None:
    backend = CudaBackend(HostDevice(shim_folder))
    columns, lengths = np.array([5, 10, 3], np.uint32), np.array([2, 1, *[0] * 8, 0], np.uint32)
    spec = StripeSpec(0, 1, 0, 10, 10, 0, True, "bits16")
    state = backend.allocate(spec, np.ones(10, np.uint32), None)
    reads = backend.allocate_reads(10, "bits16", True)
    step = SweepStep(0.85, 0.15, 0.0, 3, -1, (), 1.0)

    def one_pass(coded: np.ndarray) -> None:
        def sweep(_: int, tile: Any) -> None:
            swept.append(backend.sweep_tile(state, reads, tile, (0, 10), step, None))

        swept: list[Any] = []
        stream = stream_of(backend, coded, rows=10, edges=3, nodes=10, stays=stays)
        try:
            stream.run(sweep)
            backend.sums(state, swept, step)
        finally:
            stream.close()

    with pytest.raises(DamagedError, match="column that is no node"):
        one_pass(encoded(columns, lengths))
    columns[1] = 9
    one_pass(encoded(columns, lengths))


@pytest.mark.parametrize("stays", [True, False])
@pytest.mark.parametrize(("rows", "edges"), [(10, 1), (1, 2)])
def test_a_tile_of_other_sizes_is_refused(shim_folder: Path, stays: bool, rows: int, edges: int) -> None:
    backend = CudaBackend(HostDevice(shim_folder))
    coded = encoded(np.array([1], np.uint32), np.array([1, 0]))
    stream = stream_of(backend, coded, rows=rows, edges=edges, nodes=10, stays=stays)
    wanted = f"tile 0 has 1 edges in 2 segments where {edges} in {rows + 1} belong"
    with pytest.raises(DamagedError, match=wanted):
        stream.run(lambda *_: None)


def test_a_group_of_other_rows_is_refused(shim_folder: Path) -> None:
    backend = CudaBackend(HostDevice(shim_folder))
    spec = StripeSpec(0, 1, 0, 10, 10, 0, False, "float32")
    state = backend.allocate(spec, np.ones(10, np.uint32), None)
    step = SweepStep(0.85, 0.15, 0.0, 1, -1, (), 1.0)
    there = placed(HostDevice(shim_folder), (np.array([1], np.uint32), np.array([1, 0], np.uint32)))
    with pytest.raises(DamagedError, match="tiles have 1 rows where 10 belong"):
        backend.sweep_tile(state, backend.allocate_reads(10, "float32", False), there, (0, 10), step, None)


class Given:
    """A tile that is read from memory."""

    def __init__(self, coded: np.ndarray) -> None:
        self._coded = coded
        self.max_bytes = coded.size

    def read_into(self, tile: int, out: np.ndarray, *, direct: bool = False) -> int:  # noqa: ARG002
        """See TileBytes."""
        out[: self._coded.size] = self._coded
        return self._coded.size


def stream_of(
    backend: CudaBackend, coded: np.ndarray, *, rows: int, edges: int, nodes: int, stays: bool
) -> CudaTileStream:
    """A stream of one tile of so many rows and edges, or so it is said."""
    one = np.arange(2)
    layout = GroupLayout(one, np.array([edges]), rows * one, np.array([coded.size]), coded.size)
    return backend.open_stream(
        Given(coded), [0], nodes, layout=layout, on_device=frozenset([0] * stays), in_host=frozenset(),
        slots=1, readers=1, buffers=1, trace=None, direct=False, factor=None,
    )  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(("stripes", "each"), [(1, 1), (3, 1), (1, 3)])
@pytest.mark.parametrize("kernel", [name for name in KERNELS if name != "edges"])
def test_every_kernel_delivers_the_same(shim_folder: Path, kernel: str, stripes: int, each: int) -> None:
    with Stored(random_digraph(200, 700, seed=1), 100) as store:
        settings = Settings(sweeps=2)
        how = {"stripes": stripes, "each": each}
        plain, later = first_passes(store, settings, CudaBackend(HostDevice(shim_folder)), **how)
        backend = CudaBackend(HostDevice(shim_folder), kernel)
        ours, then = first_passes(store, settings, backend, **how)
    assert np.abs(ours.after - plain.after).sum() <= 1e-14
    assert np.abs(then.pushed - later.pushed).sum() <= 0.01 * np.abs(later.pushed).sum()
