"""What is measured before a run on several devices, and what is predicted from it."""

from __future__ import annotations

import math
import re
import sys
import threading
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import oocpr
from oocpr.engine.cuda.backend import CudaBackend
from oocpr.engine.cuda.staging import CudaTileStream
from oocpr.engine.probe.measure import measure_rates
from oocpr.engine.run import rank_graph
from oocpr.engine.settings import Settings
from oocpr.errors import DamagedError, UsageError
from oocpr.plan.partition import stripe_tiles

from ..engine.digraphs import Digraph, random_digraph
from ..engine.running import Stored, stripes_held
from .paced import PacedBackend, PacedDevice
from .several import plan_for

if TYPE_CHECKING:
    from oocpr.engine.cuda.device import Device
    from oocpr.plan.plan import Plan

GRAPH = random_digraph(300, 2500, seed=8)


def uneven() -> Digraph:
    """A graph whose first nodes are linked to most, so that its last tiles have most rows."""
    rng = np.random.default_rng(3)
    return Digraph(500, rng.integers(0, 500, 5000), np.minimum(500 * rng.random(5000) ** 3, 499).astype(int))


UNEVEN = uneven()


@pytest.fixture
def named(devices: list[Device], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names by which the devices are opened, and no other one is."""
    by_name = {f"cuda:{index}": device for index, device in enumerate(devices)}

    def open_device(name: str) -> Device:
        if name not in by_name:
            raise UsageError(f"device {name} does not exist.", "Use another.")
        return by_name[name]

    for place in ("oocpr.engine.devices.open_device", "oocpr.engine.cuda.device.open_device"):
        monkeypatch.setattr(place, open_device)
    return list(by_name)


def backends_of(devices: list[Device]) -> tuple[CudaBackend, ...]:
    return tuple(CudaBackend(device, pairs=True) for device in devices)


def promised(plan: Plan) -> Plan:
    """The same plan, whose backends limit what may be taken of their devices."""
    return replace(plan, devices=tuple(replace(tiers, promised=True) for tiers in plan.devices))


def limits(devices: list[Device]) -> list[int]:
    return [device.limit(None) for device in devices]


@pytest.mark.long
@pytest.mark.parametrize("method", ["mixed", "residual"])
@pytest.mark.parametrize("staying", ["all", "one", "none", "different"])
@pytest.mark.parametrize("pinned", [True, False])
def test_tiles_that_stay_and_tiles_that_pass_are_measured_where_there_are_any(
    devices: list[Device], method: str, staying: str, pinned: bool
) -> None:
    chosen = Settings(method=method)
    # Groups of one tile and of two.
    each, tile_edges = (1, 300) if pinned else (2, 150)
    with Stored(GRAPH, tile_edges) as store:
        counts = [last - first for first, last in stripe_tiles(-(-store.tiles // each), len(devices))]
        on_each = {
            "all": counts,
            "one": [1] * len(counts),
            "none": [0] * len(counts),
            "different": [counts[0], *[0] * (len(counts) - 1)],
        }[staying]
        plan, tiles = plan_for(store, chosen, len(devices), on_each, pinned=pinned, each=each)
        rates = measure_rates(tiles, plan, chosen, backend=backends_of(devices))
    assert math.isinf(rates.uploaded) == (staying == "all")
    if staying == "different":
        # Only what the slowest device has.
        assert math.isinf(rates.resident) != math.isinf(rates.streamed)
    else:
        assert math.isinf(rates.resident) == (staying == "none")
        assert math.isinf(rates.streamed) == (staying == "all")
    timing = plan.timing(rates)
    for seconds in (timing.first, timing.each, timing.ends):
        # A minute for 2,500 edges would be none of a computer.
        assert 0 < seconds < 60
    assert timing.loading >= 0


@pytest.mark.long
@pytest.mark.parametrize("stay", [(True, True), (False, False), (True, False)])
def test_a_pass_is_predicted_to_take_as_long_as_its_slowest_stripe(
    shim_folder: Path, stay: tuple[bool, bool]
) -> None:
    # The first device takes longer for as many tiles, the second one for all that it has.
    each = (3e-4, 1e-4)
    chosen = Settings(method="residual", tol=1e-2)
    with Stored(GRAPH, 300) as store:
        stripes = (0, 2), (2, store.tiles)
        on_each = [(last - first) * stays for (first, last), stays in zip(stripes, stay, strict=True)]
        plan, tiles = plan_for(store, chosen, 2, on_each, pinned=False, stripes=stripes)
        measured, ranking = (
            tuple(PacedBackend(PacedDevice(shim_folder), edge=edge) for edge in each) for _ in range(2)
        )
        timing = plan.timing(measure_rates(tiles, plan, chosen, backend=measured))
        done = rank_graph(tiles, plan, chosen, backend=ranking)
        least = each[1] * (store.edges - 600)
    assert 0.99 * least < timing.each < 1.35 * least
    took = median(record.seconds for record in done.history[1:])
    assert timing.each == pytest.approx(took, rel=0.3)


@pytest.mark.long
@pytest.mark.parametrize(
    ("link", "rows_in_host", "expected"),
    [(0.45, False, 0.45), (0.1, False, 0.1 + 0.1 + 0.1), (0.2, True, 0.2 + 0.1 + 0.1)],
    ids=["link", "kernels", "rows and tiles in turns"],
)
@pytest.mark.parametrize("staying", [pytest.param(0, marks=pytest.mark.slow), 4])
def test_tiles_arrive_while_others_are_swept_and_between_passes(
    shim_folder: Path, link: float, rows_in_host: bool, expected: float, staying: int
) -> None:
    # By out-degree: the last tiles have most rows.
    chosen = Settings(method="residual", tol=1e-2)
    with Stored(UNEVEN, 300) as store:
        plan, tiles = plan_for(store, chosen, 1, staying, pinned=True)
        plan = replace(plan, devices=(replace(plan.devices[0], rows_in_host=rows_in_host),))
        # Groups are sent with what is between their tiles.
        device = PacedDevice(shim_folder, byte=link / int(tiles.layout.room.sum()))
        paces = {"edge": 0.1 / store.edges, "row": 0.1 / store.nodes, "pushed": 0.1 / store.nodes}
        paces["far"] = rows_in_host
        # Whatever else the machine does lengthens the first pass, of which a probe has one, and a run.
        probes = [measure_rates(tiles, plan, chosen, backend=PacedBackend(device, **paces)) for _ in range(2)]
        rates = max(probes, key=lambda rates: rates.first)
        timing = plan.timing(rates)
        runs = [rank_graph(tiles, plan, chosen, backend=PacedBackend(device, **paces)) for _ in range(2)]
    took = median(record.seconds for run in runs for record in run.history[1:])
    # Some of the tiles are measured; where kernels use the link too, rounds of them.
    assert rates.uploaded == pytest.approx(store.edges / link, rel=0.1 if rows_in_host else 0.05)
    if not staying:
        assert timing.each == pytest.approx(expected, rel=0.1)
    assert timing.each == pytest.approx(took, rel=0.1)
    assert timing.first == pytest.approx(min(run.history[0].seconds for run in runs), rel=0.35)


@pytest.mark.long
def test_a_plan_tells_the_time_and_a_run_takes_it_up(named: list[str]) -> None:
    together = ",".join(named)
    with Stored(GRAPH, 300) as store:
        graph = oocpr.open_graph(store.path)
        plan = oocpr.plan(graph, device=together)
        assert len(plan.devices) == len(named)
        assert re.search(r"^time +about .+ with \d+ passes", str(plan), re.MULTILINE)
        told = plan.to_json()
        assert told["predicted_seconds"] == plan.seconds
        assert plan.seconds is not None
        assert 0 < plan.seconds < 60
        measured = oocpr.pagerank(graph, device=together, predict=True)
        plain = oocpr.pagerank(graph, device=together)
    assert measured.run is not None
    assert {"seconds", "pass_seconds"} <= (measured.run.predicted or {}).keys()
    assert np.array_equal(measured.to_numpy(), plain.to_numpy())


@pytest.mark.long
def test_groups_are_told_as_their_tiles_are_read(
    named: list[str], tiles_alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    told: list[tuple[int, str, int, int | None, str]] = []

    def progress(stage: str, done: int, total: int | None, unit: str, note: str = "") -> None:
        assert unit == ("passes" if stage == "ranking" else "tiles")
        told.append((len(read), stage, done, total, note))

    with Stored(GRAPH, 300) as store:
        graph = oocpr.open_graph(store.path)
        read_into = type(store.encoded).read_into

        def reading(encoded: Any, tile: int, out: np.ndarray, **how: Any) -> int:
            size = read_into(encoded, tile, out, **how)
            read.append(tile)
            return size

        monkeypatch.setattr(type(store.encoded), "read_into", reading)
        plan = oocpr.plan(graph, device=",".join(named), progress=progress)
        measured, told[:], read[:] = list(told), [], []
        oocpr.pagerank(graph, device=",".join(named), predict=True, progress=progress)
    each = [last - first for first, last in plan.stripes]
    assert plan.stats.tiles < store.tiles
    stages = [stage for _, stage, *_ in told]
    ranking = len(stages) - len(measured)
    assert ranking > 0
    assert stages == ["measuring"] * len(measured) + ["ranking"] * ranking
    # Each has a tile at least.
    for so_far, _, done, _, _ in measured:
        assert done <= so_far
    total = measured[0][3]
    assert {(stage, among) for _, stage, _, among, _ in measured} == {("measuring", total)}
    assert measured[-1][2] == total
    # One to load with and all that stay, of each device, are told one by one.
    assert [done for *_, done, _, note in measured if note == "loading"] == list(range(len(each) + 1))
    assert [note for *_, note in measured].count("tiles that stay") == 1 + sum(each)


def test_fewer_tiles_than_devices_are_predicted(named: list[str]) -> None:
    with Stored(GRAPH, 2**20) as store:
        plan = oocpr.plan(oocpr.open_graph(store.path), device=",".join(named))
    assert len(plan.devices) == 1
    assert plan.seconds is not None
    assert [way.name for way in plan.ways if way.taken] == ["whole"]


def test_a_run_over_fewer_tiles_than_devices_that_was_kept_goes_on(named: list[str], tmp_path: Path) -> None:
    how: dict[str, Any] = {"device": ",".join(named), "method": "mixed"}
    with Stored(GRAPH, 2**20) as store:
        whole = oocpr.pagerank(store.path, **how)
        oocpr.pagerank(store.path, **how, checkpoint=tmp_path / "kept", max_passes=3)
        again = oocpr.pagerank(store.path, **how, checkpoint=tmp_path / "kept", resume=True)
    assert again.to_numpy().tobytes() == whole.to_numpy().tobytes()


@pytest.mark.parametrize("count", [1, 2])
def test_a_graph_without_edges_is_predicted_and_ranked(named: list[str], count: int) -> None:
    with Stored(Digraph.of(40, []), 50) as store:
        run = oocpr.pagerank(
            store.path, device=",".join(named[:count]), method="mixed", predict=True, personalization={7: 1.0}
        )
    assert 0 < (run.run.predicted or {})["seconds"] < 60
    assert run.to_numpy().tolist() == [node == 7 for node in range(40)]


@pytest.mark.long
@pytest.mark.parametrize("on_each", [0, 2])
def test_a_run_on_devices_that_were_measured_has_the_same_bits(devices: list[Device], on_each: int) -> None:
    chosen = Settings(tol=1e-6)
    with Stored(GRAPH, 300) as store:
        plan, tiles = plan_for(store, chosen, len(devices), on_each, pinned=True)
        before = rank_graph(tiles, plan, chosen, backend=backends_of(devices))
        rates = measure_rates(tiles, plan, chosen, backend=backends_of(devices))
        timed = replace(plan, forecast=plan.timing(rates))
        after = rank_graph(tiles, timed, chosen, backend=backends_of(devices))
    assert after.ranks.tobytes() == before.ranks.tobytes()


@pytest.mark.long
@pytest.mark.parametrize("measured", [False, True])
def test_a_damaged_tile_is_found_and_leaves_nothing_open(
    devices: list[Device],
    named: list[str],
    tiles_alone: None,
    monkeypatch: pytest.MonkeyPatch,
    measured: bool,
) -> None:
    chosen, interval, before = Settings(), sys.getswitchinterval(), limits(devices)
    opened: list[Any] = []
    closed: list[Any] = []
    open_stream, close_stream = CudaBackend.open_stream, CudaTileStream.close

    def opening(backend: CudaBackend, *how: Any, **more: Any) -> CudaTileStream:
        # Several threads open theirs.
        stream = open_stream(backend, *how, **more)
        opened.append(stream)
        return stream

    def closing(stream: CudaTileStream) -> None:
        closed.append(stream)
        close_stream(stream)

    monkeypatch.setattr(CudaBackend, "open_stream", opening)
    monkeypatch.setattr(CudaTileStream, "close", closing)
    with Stored(GRAPH, 300) as store:
        plan, tiles = plan_for(store, chosen, len(devices), 0, pinned=False)
        plan = promised(plan)
        first, last = plan.stripes[-1]
        # One that is loaded with, or one that is measured only.
        damaged = last - 1 if measured else first + (last - first) // 2
        read_into, held = store.encoded.read_into, []

        def read(tile: int, out: np.ndarray, *, direct: bool = False) -> int:
            size = read_into(tile, out, direct=direct)
            held.append(limits(devices))
            if tile == damaged:
                out[8] ^= 1
            return size

        store.encoded.read_into = read  # type: ignore[method-assign]
        with pytest.raises(DamagedError):
            measure_rates(tiles, plan, chosen, backend=",".join(named))
    assert held[0] == [tiers.memory for tiers in plan.devices]
    assert limits(devices) == before
    assert len(opened) == (2 if measured else 1) * len(devices)
    assert {id(stream) for stream in closed} == {id(stream) for stream in opened}
    assert sys.getswitchinterval() == interval
    assert not stripes_held()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("oocpr-device")]


def test_a_device_that_cannot_be_had_leaves_the_others_as_they_were(
    devices: list[Device], named: list[str]
) -> None:
    chosen, interval, before = Settings(), sys.getswitchinterval(), limits(devices)
    with Stored(GRAPH, 300) as store:
        plan, tiles = plan_for(store, chosen, 2, 0, pinned=False)
        plan = promised(plan)
        with pytest.raises(UsageError, match="cuda:9 does not exist"):
            measure_rates(tiles, plan, chosen, backend=f"{named[0]},cuda:9")
    assert limits(devices) == before
    assert sys.getswitchinterval() == interval
