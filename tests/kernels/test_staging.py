"""Tiles that stream through a device, against the same tiles staying there."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import pairwise
from threading import Barrier
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings

from oocpr.engine.backend import StripeSpec
from oocpr.engine.cuda import staging
from oocpr.engine.cuda.backend import CudaBackend
from oocpr.engine.cuda.device import Device, download
from oocpr.engine.cuda.staging import DecodeWorkspace
from oocpr.engine.cuda.tile import map_tile
from oocpr.engine.planning import plan_request, stats_of
from oocpr.engine.run import rank_graph
from oocpr.engine.settings import Settings
from oocpr.engine.tiles.merged import HostJoins, MergedStore
from oocpr.engine.trace import COMPUTE, COPY, READ, DeviceTrace, Trace
from oocpr.errors import DamagedError, DoesNotFitError, UsageError
from oocpr.plan.device_memory import DEVICE_SLOTS, MIN_SLOTS
from oocpr.plan.device_plan import plan_on_devices
from oocpr.plan.tile_merge import merge_memory, merged_stats
from oocpr.store.codec.tiles import encode_tile

from ..engine.digraphs import exact_ranks, random_digraph
from ..engine.running import Stored, check_forecast, plan_streamed
from .conftest import RUNS
from .several import least_memory
from .tiles import placed, random_tile, tiles

if TYPE_CHECKING:
    from oocpr.engine.method import Solution
    from oocpr.plan.plan import Plan
    from oocpr.store.graph import GraphStore

NODES = 40_000
PLENTY = 2**33


def sent(device: Device, columns: np.ndarray, lengths: np.ndarray) -> tuple[Any, Any]:
    """A tile's encoded bytes on the device, behind them what an earlier one left; and what is in them."""
    coded = np.frombuffer(encode_tile(columns, lengths), np.uint8)
    buffer = device.pinned(coded.size)
    buffer[:] = coded
    slot = device.xp.full(coded.size + 5000, 0xA5, np.uint8)
    device.copy_stream_wait(device.record_event())
    device.wait_for(device.upload_async(slot[: coded.size], buffer))
    return slot[: coded.size], map_tile(buffer)


def check(device: Device, room: DecodeWorkspace, columns: np.ndarray, lengths: np.ndarray) -> None:
    """A tile made ready where it lies has the arrays of one that was placed."""
    faults = device.xp.zeros(1, np.uint32)
    there = room.expand(room.stage(*sent(device, columns, lengths)), faults)
    expected = placed(device, columns, lengths)
    assert download(faults)[0] == 0
    assert (there.edges, there.segments, there.nonempty) == (
        expected.edges,
        expected.segments,
        expected.nonempty,
    )
    for mine, theirs in zip(there.columns, expected.columns, strict=True):
        assert np.array_equal(download(mine)[: theirs.size], download(theirs).ravel())
    for name in ("begins", "ranks", "starts", "filled", "filled_before"):
        mine, theirs = getattr(there, name), getattr(expected, name)
        assert (mine is None) == (theirs is None)
        if theirs is not None:
            assert np.array_equal(download(mine)[: theirs.size], download(theirs)), name


@settings(max_examples=25)
@given(tile=tiles(NODES))
def test_a_tile_is_made_ready_where_it_lies(device: Device, tile: tuple[np.ndarray, np.ndarray]) -> None:
    columns, lengths = tile
    before = random_tile(900, 4, NODES)
    room = DecodeWorkspace(device, max(before[0].size, len(columns)), max(before[1].size, len(lengths)))
    for either in (before, tile):
        check(device, room, *either)


def streaming_plan(
    store: GraphStore, chosen: Settings, on_device: int, in_host: int, *, rows_in_host: bool = False
) -> Plan:
    """A plan in which so many tiles stay on the device, and so many of the others in pinned memory."""

    def planned(device_memory: int, memory: int) -> Plan:
        return plan_streamed(
            store, chosen, device_memory=device_memory, memory=memory, rows_in_host=rows_in_host
        )

    most = planned(PLENTY, PLENTY).device
    assert most is not None

    def staying(device_memory: int) -> int:
        device = planned(device_memory, 0).device
        return 0 if device is None else device.on_device

    device_memory = least_memory(staying, on_device, most.need.total)
    least = planned(device_memory, 0)
    pinned = planned(device_memory, PLENTY).device
    assert pinned is not None
    one = pinned.pinned_bytes // max(1, pinned.in_host)
    plan = planned(device_memory, least.need.total + in_host * one)
    assert plan.device is not None
    assert (plan.device.on_device, plan.device.in_host) == (on_device, in_host)
    return plan


def stream(
    device: Device,
    store: GraphStore,
    on_device: int,
    in_host: int,
    trace: Trace | None = None,
    **how: Any,
) -> Solution:
    chosen = Settings(**how)
    plan = streaming_plan(store, chosen, on_device, in_host)
    return rank_graph(store, plan, chosen, backend=CudaBackend(device), trace=trace)


@pytest.mark.long
@RUNS
@pytest.mark.parametrize("method", ["mixed", "residual"])
def test_where_tiles_stay_changes_no_bit(device: Device, method: str) -> None:
    graph = random_digraph(300, 2500, seed=8)
    exact = exact_ranks(graph, 0.85)
    with Stored(graph, 300) as store:
        assert store.tiles >= 8
        runs = [
            stream(device, store, on_device, in_host, method=method)
            for on_device, in_host in ((store.tiles, 0), (0, store.tiles), (0, 0), (3, 2))
        ]
        for run in runs:
            assert run.converged
            assert np.abs(run.ranks - exact).sum() <= run.error_bound + 1e-14
            assert np.array_equal(run.ranks, runs[0].ranks)
            assert [x.residual for x in run.history] == [x.residual for x in runs[0].history]
        encoded = store.attributes.column_bytes
        for run, share in zip(runs, (0, 0, 1, (store.tiles - 5) / store.tiles), strict=True):
            assert run.history[1].bytes_read == pytest.approx(share * encoded, rel=0.3)


@pytest.mark.long
@RUNS
@pytest.mark.parametrize("known", [0, 5])
def test_what_is_remembered_of_tiles_in_slots_changes_no_bit(
    device: Device, known: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Stored(random_digraph(300, 2500, seed=8), 300) as store:
        usual = stream(device, store, 0, store.tiles)
        # More tiles in slots than are remembered.
        assert store.tiles * DEVICE_SLOTS > known
        monkeypatch.setattr(staging, "MAX_KNOWN", known)
        assert np.array_equal(stream(device, store, 0, store.tiles).ranks, usual.ranks)


@pytest.mark.device
def test_rows_are_not_put_into_pieces_of_what_was_there_before() -> None:
    device = Device()
    # Rows take 23 MiB, the ranks 8 of them; in the 10 that were there before they would leave 1 unused.
    backend = CudaBackend(device, limit=67 * 2**19)
    spec = StripeSpec(0, 1, 0, 2**20, 2**20, 0, False, "bits16")
    try:
        with device:
            before = device.xp.zeros(10 * 2**20, np.uint8)
            del before
            rows = backend.allocate(spec, np.ones(2**20, np.uint32), None)
            after = device.xp.zeros(10 * 2**20, np.uint8)
            assert (rows.ranks.size, after.size) == (2**20, 10 * 2**20)
    finally:
        backend.close()


@pytest.mark.long
@RUNS
@pytest.mark.parametrize(
    ("method", "reads", "begun"), [("mixed", "bits16", False), ("residual", "bits8", True)]
)
def test_where_rows_stay_changes_no_bit(device: Device, method: str, reads: str, begun: bool) -> None:
    graph = random_digraph(300, 2500, seed=9)
    given = np.random.default_rng(1).random(graph.nodes)
    vectors = {"teleport": given / given.sum(), "start": given[::-1] / given.sum()} if begun else {}
    exact = exact_ranks(graph, 0.85, vectors.get("teleport"))
    chosen = Settings(method=method, reads=reads)
    with Stored(graph, 300) as store:
        plan = streaming_plan(store, chosen, 0, 0, rows_in_host=True)
        runs = [
            rank_graph(
                store, plan, chosen, backend=CudaBackend(device, pairs=False, rows_in_host=in_host), **vectors
            )
            for in_host in (False, True)
        ]
        for run in runs:
            assert run.converged
            assert np.abs(run.ranks - exact).sum() <= run.error_bound + 1e-14
            assert np.array_equal(run.ranks, runs[0].ranks)
            assert [x.residual for x in run.history] == [x.residual for x in runs[0].history]


@pytest.mark.long
@RUNS
@pytest.mark.parametrize("in_host", [0, 3, 6])
def test_a_timeline_has_what_was_sent_and_computed(device: Device, in_host: int) -> None:
    trace = Trace()
    with Stored(random_digraph(300, 2500, seed=8), 300) as store:
        run = stream(device, store, 2, in_host, trace)
        tiles, passing = store.tiles, store.tiles - 2
    sent = sorted(span for span in trace.spans if span.track == COPY)
    computed = [span for span in trace.spans if span.track == COMPUTE]
    # Tiles that stay in memory are on their way for a pass that does not come.
    ahead = len(sent) - run.passes * passing
    assert 0 <= ahead <= passing
    assert len(computed) == run.passes * (2 + 2 * passing)
    assert len([span for span in trace.spans if span.track.startswith("read")]) == (
        tiles + (run.passes - 1) * (passing - in_host)
    )
    for tile in {span.name for span in sent}:
        arrivals = sorted(span.end for span in sent if span.name == tile)[: run.passes]
        begins = sorted(span.begin for span in computed if span.name == tile)[::2]
        assert all(arrival <= begin + 1e-5 for arrival, begin in zip(arrivals, begins, strict=True))
    copies = sorted((span.begin, span.end) for span in sent)
    assert all(before[1] <= after[0] + 1e-6 for before, after in pairwise(copies))


def test_a_paused_timeline_has_what_began_before(device: Device) -> None:
    trace = Trace()
    part = trace.part("device 1")
    on_device = DeviceTrace(device, part)
    with part.span(READ, "tile 1"), on_device.span(COMPUTE, "tile 1"):
        trace.pause(COMPUTE, READ)
        with trace.span(READ, "tile 2"), part.span(READ, "tile 3"), on_device.span(COMPUTE, "tile 4"):
            pass
    part.resume(READ)
    with part.span(READ, "tile 5"), on_device.span(COPY, "tile 6"), on_device.span(COMPUTE, "tile 7"):
        pass
    device.synchronize()
    on_device.finish()
    assert [trace.paused(track) for track in (COMPUTE, COPY, READ)] == [True, False, False]
    assert sorted((span.track, span.name) for span in trace.spans) == [
        ("compute, device 1", "tile 1"),
        ("copy to the device, device 1", "tile 6"),
        ("read, device 1", "tile 1"),
        ("read, device 1", "tile 5"),
    ]


@RUNS
def test_a_damaged_tile_is_found_on_its_way(device: Device) -> None:
    with Stored(random_digraph(300, 2500, seed=8), 300) as store:
        chosen = Settings()
        plan = streaming_plan(store, chosen, 0, 0)
        read_into = store.encoded.read_into

        def damaged(tile: int, out: np.ndarray, *, direct: bool) -> int:
            size = read_into(tile, out, direct=direct)
            if tile == 5:
                out[8] ^= 1
            return size

        store.encoded.read_into = damaged  # type: ignore[method-assign]
        with pytest.raises(DamagedError):
            rank_graph(store, plan, chosen, backend=CudaBackend(device))


@RUNS
@pytest.mark.parametrize("kernel", ["balanced", "csr-vector"])
def test_a_limit_ends_with_the_run(device: Device, kernel: str) -> None:
    before = device.limit(None)
    with Stored(random_digraph(300, 2500, seed=8), 300) as store:
        chosen = Settings(method="residual")
        plan = streaming_plan(store, chosen, 2, 0)
        backend = CudaBackend(device, kernel, limit=2**30)
        assert device.limit(None) == 2**30
        # The second one is refused once everything is set up.
        with nullcontext() if kernel == "balanced" else pytest.raises(UsageError):
            rank_graph(store, plan, chosen, backend=backend)
    assert device.limit(None) == before


@RUNS
def test_kernels_that_take_tiles_decoded_need_them_on_the_device(device: Device) -> None:
    with Stored(random_digraph(300, 2500, seed=8), 300) as store:
        chosen = Settings(method="residual")
        plan = streaming_plan(store, chosen, 2, 0)
        with pytest.raises(UsageError, match="needs the graph in the memory of the device"):
            rank_graph(store, plan, chosen, backend=CudaBackend(device, "csr-vector"))


def test_too_little_memory_of_a_device_is_refused_before_anything_is_read() -> None:
    with Stored(random_digraph(300, 2500, seed=8), 300) as store:
        chosen = Settings()
        least = streaming_plan(store, chosen, 0, 0)
        assert least.device is not None
        assert least.fits
        assert least.device.slots == DEVICE_SLOTS == MIN_SLOTS + 2
        given = least.device.need.total - 2 * store.encoded.max_bytes - 1
        short = plan_streamed(store, chosen, device_memory=given)
        assert not short.fits
        with pytest.raises(DoesNotFitError, match="of the device"):
            short.validate()


@pytest.mark.long
@RUNS
@pytest.mark.parametrize("method", ["mixed", "residual"])
def test_a_probe_measures_the_tiles_that_a_plan_has_on_a_device(device: Device, method: str) -> None:
    chosen = Settings(method=method)
    with Stored(random_digraph(300, 2500, seed=8), 300) as store:
        for on_device, in_host in ((store.tiles, 0), (0, store.tiles), (0, 0), (3, 2)):
            plan = streaming_plan(store, chosen, on_device, in_host)
            check_forecast(store, plan, chosen, CudaBackend(device))


class Meeting(HostJoins):
    """Joins tiles once so many threads have come to join one; fewer wait in vain."""

    def __init__(self, store: GraphStore, threads: int) -> None:
        super().__init__(store.encoded, store.edges, store.attributes.tile_edges)
        self._met = Barrier(threads, timeout=20)

    def join(self, stored: range, *how: Any, **more: Any) -> int:
        """See Joins."""
        self._met.wait()
        return super().join(stored, *how, **more)


@pytest.mark.long
@pytest.mark.parametrize("at_once", [2, 7])
def test_as_many_tiles_are_joined_at_a_time_as_planned(device: Device, at_once: int) -> None:
    chosen = Settings(method="residual")
    with Stored(random_digraph(1500, 9000, seed=4), 300) as store:
        stats = stats_of(store)
        # As many rounds of threads as there are.
        cuts = tuple(np.linspace(0, store.tiles, 2 * at_once + 1).astype(int).tolist())
        larger = merged_stats(stats, store.tile_rows, cuts)
        joined = MergedStore(store, stats.tile_edges, cuts)
        joined.encoded._joins = Meeting(store, at_once)
        joining = merge_memory(stats, larger, np.diff(joined.tile_rows), at_once, 1)
        plan = plan_on_devices(
            larger,
            joined.tile_rows,
            plan_request(chosen, memory=PLENTY, device_memory=(PLENTY,)),
            all_resident=False,
            merging=joining,
        )
        run = rank_graph(joined, plan, chosen, backend=CudaBackend(device))
        exact = exact_ranks(random_digraph(1500, 9000, seed=4), chosen.damping)
    assert np.abs(run.ranks - exact).sum() <= run.error_bound
