"""Tiles that stream through a device, against the same tiles staying there."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from oocpr.engine.backend import StripeSpec
from oocpr.engine.cuda.backend import CudaBackend
from oocpr.engine.cuda.device import Device, address_of
from oocpr.engine.run import rank_graph
from oocpr.engine.settings import Settings
from oocpr.engine.trace import COMPUTE, COPY, READ, DeviceTrace, Trace
from oocpr.errors import DamagedError, DoesNotFitError
from oocpr.plan.device_memory import DEVICE_SLOTS, MIN_SLOTS, OVERLAP_SLOTS
from oocpr.sources import open_source
from oocpr.store.direct_io import aligned

from ..engine.digraphs import exact_ranks, random_digraph
from ..engine.running import Stored, build, check_forecast, check_same_bits, in_groups, plan_streamed
from .conftest import RUNS
from .several import least_memory
from .shim.host import HostDevice

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oocpr.engine.method import Solution
    from oocpr.engine.tiles.groups import GroupedStore
    from oocpr.plan.plan import Plan
    from oocpr.store.graph import GraphStore

PLENTY = 2**33


def streaming_plan(
    store: GraphStore,
    chosen: Settings,
    on_device: int,
    in_host: int,
    *,
    rows_in_host: bool = False,
    each: int = 1,
) -> Plan:
    """A plan in which so many groups stay on the device, and so many of the others in pinned memory."""

    def planned(device_memory: int, memory: int) -> Plan:
        return plan_streamed(
            store, chosen, device_memory=device_memory, memory=memory, rows_in_host=rows_in_host, each=each
        )

    most = planned(PLENTY, PLENTY).device
    assert most is not None

    def staying(device_memory: int) -> int:
        device = planned(device_memory, 0).device
        return 0 if device is None else device.on_device

    device_memory = least_memory(staying, on_device, most.need.total)
    least = planned(device_memory, 0).need.total

    def pinned(memory: int) -> int:
        device = planned(device_memory, memory).device
        return 0 if device is None else device.in_host

    plan = planned(device_memory, least_memory(pinned, in_host, least))
    assert plan.device is not None
    assert (plan.device.on_device, plan.device.in_host) == (on_device, in_host)
    return plan


def damage_tile(store: GraphStore, number: int, rng: np.random.Generator) -> None:
    """Have a bit of a stored tile, past its first word, arrive changed; needs the fixture `tiles_alone`."""
    read_into = store.encoded.read_into

    def damaged(tile: int, out: NDArray[np.uint8], *, direct: bool = False) -> int:
        size: int = read_into(tile, out, direct=direct)
        if tile == number:
            out[rng.integers(8, size)] ^= 1 << rng.integers(0, 8)
        return size

    store.encoded.read_into = damaged  # type: ignore[method-assign]


def grouped(store: GraphStore, each: int = 1) -> GroupedStore:
    """A graph in groups of so many tiles."""
    return in_groups(store, each)[0]


def stream(
    device: Device,
    store: GraphStore,
    on_device: int,
    in_host: int,
    trace: Trace | None = None,
    each: int = 1,
    **how: Any,
) -> Solution:
    chosen = Settings(**how)
    plan = streaming_plan(store, chosen, on_device, in_host, each=each)
    return rank_graph(grouped(store, each), plan, chosen, backend=CudaBackend(device), trace=trace)


@pytest.mark.long
@RUNS
@pytest.mark.parametrize("method", ["mixed", "residual"])
@pytest.mark.parametrize(("tile_edges", "each"), [(300, 1), (100, 3)])
def test_where_groups_stay_changes_no_bit(device: Device, method: str, tile_edges: int, each: int) -> None:
    graph = random_digraph(300, 2500, seed=8)
    exact = exact_ranks(graph, 0.85)
    with Stored(graph, tile_edges) as store:
        groups = -(-store.tiles // each)
        assert groups >= 8
        runs = [
            stream(device, store, on_device, in_host, method=method, each=each)
            for on_device, in_host in ((groups, 0), (0, groups), (0, 0), (3, 2))
        ]
        for run in runs:
            assert run.converged
            assert np.abs(run.ranks - exact).sum() <= run.error_bound + 1e-14
            check_same_bits(run, runs[0])
        encoded = store.attributes.column_bytes
        for run, share in zip(runs, (0, 0, 1, (groups - 5) / groups), strict=True):
            assert run.history[1].bytes_read == pytest.approx(share * encoded, rel=0.3)


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
                grouped(store),
                plan,
                chosen,
                backend=CudaBackend(device, pairs=False, rows_in_host=in_host),
                **vectors,
            )
            for in_host in (False, True)
        ]
        for run in runs:
            assert run.converged
            assert np.abs(run.ranks - exact).sum() <= run.error_bound + 1e-14
            check_same_bits(run, runs[0])


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


@pytest.mark.parametrize("run_bytes", [1, 1536])
def test_how_many_tiles_are_read_at_once_changes_no_bit(
    shim_folder: Path, monkeypatch: pytest.MonkeyPatch, run_bytes: int
) -> None:
    with Stored(random_digraph(300, 2300, seed=8), 100) as store:
        expected = stream(HostDevice(shim_folder), store, 0, 0, each=3, max_passes=2)
        monkeypatch.setattr(import_module("oocpr.plan.tile_groups"), "RUN_BYTES", run_bytes)
        runs = grouped(store, 3).layout.runs(0)
        assert len(runs) == (3 if run_bytes == 1 else 2)
        for places in ((0, 0), (3, 2)):
            found = stream(LateDevice(shim_folder), store, *places, each=3, max_passes=2)
            assert found.ranks.tobytes() == expected.ranks.tobytes()
            assert found.history[0].bytes_read == expected.history[0].bytes_read


def test_reading_past_the_page_cache_changes_no_bit_and_takes_no_more_memory(
    shim_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    device, taken = HostDevice(shim_folder), list[int]()
    monkeypatch.setattr(device, "pinned", lambda nbytes: taken.append(nbytes) or aligned(nbytes))
    chosen = Settings(max_passes=3)
    store = build(open_source(random_digraph(3000, 40_000, seed=8).entries), tmp_path / "g.zarr", 2000)
    if not store.takes_direct_reads():
        pytest.skip("direct reads are not taken here")
    found = []
    for direct in (False, True):
        taken.clear()
        plan = replace(streaming_plan(store, chosen, 0, 0, each=3), direct=direct)
        found.append(rank_graph(grouped(store, 3), plan, chosen, backend=CudaBackend(device)))
        sizes = Counter(taken)
        ring = max(sizes, key=lambda nbytes: nbytes * sizes[nbytes])
        assert ring * sizes[ring] <= plan.need.ring
    assert found[0].ranks.tobytes() == found[1].ranks.tobytes()
    assert found[0].history[0].bytes_read == found[1].history[0].bytes_read


def test_buffers_are_those_that_are_planned_and_are_made_once(
    shim_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, taken = HostDevice(shim_folder), list[int]()
    monkeypatch.setattr(device, "pinned", lambda nbytes: taken.append(nbytes) or np.empty(nbytes, np.uint8))
    monkeypatch.setattr(import_module("oocpr.plan.tile_groups"), "RUN_BYTES", 1536)
    chosen = Settings(max_passes=3)
    with Stored(random_digraph(300, 2300, seed=8), 100) as store:
        plan, tiled = streaming_plan(store, chosen, 0, 0, each=3), grouped(store, 3)
        rank_graph(tiled, plan, chosen, backend=CudaBackend(device))
    ring = [nbytes for nbytes in taken if nbytes == tiled.layout.run_bytes]
    assert len(ring) > 1
    assert sum(ring) == plan.need.ring
    # The others are of tables, one per slot, and of what a pass is made with and reports.
    (tiers,) = plan.devices
    assert len(taken) - len(ring) == tiers.slots + 2


@RUNS
def test_a_damaged_tile_is_found_on_its_way(device: Device, tiles_alone: None) -> None:
    with Stored(random_digraph(300, 2500, seed=8), 300) as store:
        chosen = Settings()
        plan = streaming_plan(store, chosen, 0, 0)
        read_into = store.encoded.read_into

        def damaged(tile: int, out: np.ndarray, *, direct: bool = False) -> int:
            size = read_into(tile, out, direct=direct)
            if tile == 5:
                out[8] ^= 1
            return size

        store.encoded.read_into = damaged  # type: ignore[method-assign]
        with pytest.raises(DamagedError):
            rank_graph(grouped(store), plan, chosen, backend=CudaBackend(device))


@RUNS
def test_a_limit_ends_with_the_run(device: Device) -> None:
    before = device.limit(None)
    with Stored(random_digraph(300, 2500, seed=8), 300) as store:
        chosen = Settings(method="residual")
        plan = streaming_plan(store, chosen, 2, 0)
        backend = CudaBackend(device, limit=2**30)
        assert device.limit(None) == 2**30
        rank_graph(grouped(store), plan, chosen, backend=backend)
    assert device.limit(None) == before


def test_too_little_memory_of_a_device_is_refused_before_anything_is_read() -> None:
    with Stored(random_digraph(300, 2500, seed=8), 300) as store:
        chosen = Settings()
        least = streaming_plan(store, chosen, 0, 0)
        assert least.device is not None
        assert least.fits
        assert least.device.slots == DEVICE_SLOTS + OVERLAP_SLOTS
        given, short = least.device.need.total, least
        # Slots are given up, and then that groups are swept with their neighbours.
        while short.fits:
            given -= least.device.need.ring // least.device.slots // 4
            short = plan_streamed(store, chosen, device_memory=given)
        assert short.device is not None
        assert short.device.slots == MIN_SLOTS
        assert not short.device.overlap
        given = short.device.need.total
        assert plan_streamed(store, chosen, device_memory=given).fits
        assert not plan_streamed(store, chosen, device_memory=given - 1).fits
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
            check_forecast(grouped(store), plan, chosen, CudaBackend(device))


class LateMark:
    """A place in the order of what is sent, and how many groups were computed before."""

    def __init__(self, device: LateDevice, sent: int, computed: int) -> None:
        self._device, self.sent, self.computed = device, sent, computed

    def synchronize(self) -> None:
        """See Event."""
        self._device.send_queued(self.sent)


class LateDevice(HostDevice):
    """Sends what it is given as late as it may, and remembers which groups were to be computed before."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._queue: list[tuple[Any, np.ndarray]] = []
        self._lock = RLock()
        self._sent = self._after = 0
        self.computed = 0
        self.sends: list[tuple[int, int]] = []  # where to, and groups computed before

    def upload_async(self, array: Any, values: np.ndarray) -> LateMark:  # type: ignore[override]
        """See Device."""
        with self._lock:
            self._queue.append((array, values))
            self.sends.append((array.ctypes.data, self._after))
            return LateMark(self, len(self._queue), self.computed)

    def send_queued(self, count: int) -> None:
        """Send the first so many, from memory as it is now."""
        with self._lock:
            for array, values in self._queue[self._sent : count]:
                array[...] = values
            self._sent = max(self._sent, count)

    def record_event(self, *, copy_stream: bool = False) -> LateMark:  # type: ignore[override]
        """See Device."""
        with self._lock:
            return LateMark(self, len(self._queue) if copy_stream else 0, self.computed)

    def wait_for(self, mark: LateMark) -> None:  # type: ignore[override]
        """See Device."""
        self.send_queued(mark.sent)

    def copy_stream_wait(self, mark: LateMark) -> None:  # type: ignore[override]
        """See Device."""
        with self._lock:
            self._after = max(self._after, mark.computed)


class LateBackend(CudaBackend):
    """Counts the groups that were computed, on a device that wants to know."""

    def __init__(self, device: LateDevice) -> None:
        super().__init__(device)
        self._late = device
        self.tables: list[int] = []  # where the table of each group was

    def sweep_tile(self, state: Any, reads: Any, tile: Any, *how: Any, **later: Any) -> Any:
        """See Backend."""
        swept = super().sweep_tile(state, reads, tile, *how, **later)
        self._late.computed += 1
        self.tables.append(address_of(tile.arrays.table))
        return swept


@pytest.mark.long
@pytest.mark.parametrize("slots", [1, 2, 5])
@pytest.mark.parametrize(("on_device", "in_host"), [(0, 0), (0, 11), (3, 2), (2, 5), (11, 0)])
@pytest.mark.parametrize("each", [1, 3])
def test_what_is_sent_late_is_waited_for_and_overwrites_nothing_that_is_to_be_computed(
    shim_folder: Path, slots: int, on_device: int, in_host: int, each: int
) -> None:
    chosen = Settings(max_passes=5)
    with Stored(random_digraph(300, 2990, seed=8), 300 // each) as store:
        groups = -(-store.tiles // each)
        assert groups == 11
        plan = streaming_plan(store, chosen, 0, 0, each=each)
        (tiers,) = plan.devices
        tiers = replace(tiers, on_device=on_device, in_host=in_host, slots=slots)
        plan = replace(plan, devices=(tiers,), cached_tiles=on_device + in_host)
        usual = rank_graph(grouped(store, each), plan, chosen, backend=CudaBackend(HostDevice(shim_folder)))
        device = LateDevice(shim_folder)
        backend = LateBackend(device)
        late = rank_graph(grouped(store, each), plan, chosen, backend=backend)
    assert late.ranks.tobytes() == usual.ranks.tobytes()
    assert [x.residual for x in late.history] == [x.residual for x in usual.history]
    # Groups that pass take the slots in turns, and have their tables there; sent once the group before that
    # was in the slot is computed.
    sent: dict[int, list[int]] = {}
    for address, after in device.sends:
        sent.setdefault(address, []).append(after)
    ring = set(backend.tables).intersection(sent)
    assert len(ring) == min(slots, groups - on_device)
    for table in ring:
        computed = [number for number, other in enumerate(backend.tables) if other == table]
        assert len(computed) >= late.passes
        # The last ones are sent for a pass that does not come.
        assert 0 <= len(sent[table]) - len(computed) <= 1
        for number, after in zip(computed, sent[table][1:], strict=False):
            assert after > number


@RUNS
@pytest.mark.parametrize("place", ["device", "host", "store"])
@pytest.mark.parametrize("at", [8, 70, -5])
def test_a_tile_that_is_damaged_behind_its_checksum_is_found(
    device: Device, tiles_alone: None, place: str, at: int
) -> None:
    graph = random_digraph(300, 2500, seed=8)
    with Stored(graph, 100) as store:
        chosen = Settings(max_passes=3)
        groups = -(-store.tiles // 3)
        on_device, in_host = {"device": (groups, 0), "host": (0, groups), "store": (0, 0)}[place]
        plan = streaming_plan(store, chosen, on_device, in_host, each=3)
        read_into = store.encoded.read_into

        def damaged(tile: int, out: np.ndarray, *, direct: bool = False) -> int:
            size = read_into(tile, out, direct=direct)
            if tile == 7:
                # Sizes, words, or widths.
                out[at if at > 0 else size + at] ^= 1
            return size

        store.encoded.read_into = damaged  # type: ignore[method-assign]
        with pytest.raises(DamagedError):
            rank_graph(grouped(store, 3), plan, chosen, backend=CudaBackend(device))
