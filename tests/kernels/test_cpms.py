"""CPMS on a device: numbers in segments against NumPy, and runs against the reference."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import oocpr
from oocpr.engine.cpms import run as cpms
from oocpr.engine.cpms.device import DeviceSweeps
from oocpr.engine.cpms.reference import ReferenceSweeps
from oocpr.engine.cpms.segments import KINDS, segments_size, to_plain, write_numbers
from oocpr.engine.cuda.device import download, grid
from oocpr.engine.planning import asked_settings
from oocpr.engine.run import rank_graph
from oocpr.engine.settings import Settings
from oocpr.errors import DamagedError, DoesNotFitError
from oocpr.plan.memory import SEGMENTED_KERNELS
from oocpr.sources import open_source

from ..engine.digraphs import Digraph, digraphs, exact_ranks, fewer, random_digraph
from ..engine.running import Stored, build, planned_run
from ..engine.test_cpms import GOLDEN
from .conftest import RUNS
from .shim.host import HostDevice
from .test_staging import damage_tile, grouped, streaming_plan

if TYPE_CHECKING:
    from oocpr.engine.cuda.device import Device
    from oocpr.plan.plan import Plan
    from oocpr.store.graph import GraphStore

    from .pooled import PooledMachine

GRAPH = random_digraph(1500, 9000, seed=4)
SMALL = ("python311-doc", "wiki-Vote", "p2p-Gnutella31", "openjdk17-javadoc", "hollins", "cit-HepTh")


def launch(device: Device, segments: int, name: str, threads: int, *arguments: Any) -> None:
    kernels = device.load("papers/cpms.cu", SEGMENTS=segments)
    kernels.get_function(name)(grid(threads), (256,), arguments)


@pytest.mark.parametrize("segments", [1, 2, 4])
@pytest.mark.parametrize("count", [1, 31, 64, 1000])
def test_segments_are_those_of_processors(device: Device, segments: int, count: int) -> None:
    xp, values = device.xp, np.random.default_rng(count).standard_normal(count)
    here = np.zeros(segments_size(segments, count), KINDS[segments])
    write_numbers(values, 0, segments, here)
    there, read = xp.zeros(here.size, here.dtype), xp.empty(count)
    launch(
        device,
        segments,
        "write_numbers",
        count,
        xp.asarray(values),
        np.uint64(count),
        np.int32(segments),
        there,
    )
    assert np.array_equal(download(there), here)
    for kept in range(1, segments + 1):
        launch(device, segments, "read_numbers", count, there, np.uint64(count), np.int32(kept), read)
        dropped = np.uint64(64 - 64 // segments * kept)
        expected = (values.view(np.uint64) >> dropped << dropped).view(np.float64)
        assert np.array_equal(download(read), expected)
    numbers = there.view(np.float64)
    launch(device, segments, "to_numbers", numbers.size, numbers, np.uint64(numbers.size))
    assert np.array_equal(download(there).view(np.uint64), to_plain(here))


def sweeps_on(
    device: Device, store: GraphStore, segments: int, way: tuple[int, int, int], *, slices: bool = False
) -> DeviceSweeps:
    """Sweeps of groups of so many tiles; of these so many stay on the device, -1 for all of them, decoded."""
    each, on_device, in_host = way
    groups = -(-store.tiles // each)
    decoded = on_device < 0
    plan = streaming_plan(store, LIKE, groups if decoded else min(on_device, groups), in_host, each=each)
    (tiers,) = plan.devices
    tiers = replace(tiers, layouts_stay=decoded)
    return DeviceSweeps(grouped(store, each), device, segments, tiers, slices=slices)


LIKE = Settings(method="power", reads="float64")
DECODED = (1, -1, 0)
WAYS = (DECODED, (3, -1, 0), (1, 0, 0), (2, 0, 0), (1, 2, 1))


@pytest.mark.parametrize("segments", [2, 4])
@given(
    graph=digraphs(most_nodes=60, most_links=200),
    read=st.integers(1, 4),
    way=st.sampled_from([*WAYS[:-1], "side by side"]),
)
@fewer(6)
def test_steps_are_those_of_the_reference(
    device: Device, segments: int, graph: Digraph, read: int, way: Any
) -> None:
    assume(len(graph.src) > 0)
    read = min(read, segments)
    written = min(read + 1, segments)
    slices = way == "side by side"
    with (
        Stored(graph, 7) as store,
        closing(sweeps_on(device, store, segments, DECODED if slices else way, slices=slices)) as there,
        closing(ReferenceSweeps(store, segments)) as here,
    ):
        for each in range(3):
            # Sums of a row are made tile by tile there; a device may round once where the host does twice.
            near = {"rtol": 1e-14 if read == segments else 2.0 ** -(3, 19, 35)[read - 1], "atol": 0}
            masses = [sweeps.dangling_mass(read) for sweeps in (there, here)]
            np.testing.assert_allclose(*masses, rtol=1e-12)
            for sweeps in (there, here):
                sweeps.sweep(read, written, 0.85, 0.01)
            np.testing.assert_allclose(there.norm(written), here.norm(written), rtol=1e-4)
            if each == 1:
                for sweeps in (there, here):
                    sweeps.scale(written, 2.0)
            np.testing.assert_allclose(there.change(read), here.change(read), rtol=1e-2, atol=1e-12)
            for sweeps in (there, here):
                sweeps.advance()
            np.testing.assert_allclose(there.ranks(read), here.ranks(read), **near)
            # What `ranks` has written over is written anew by the next sweep.
            for sweeps in (there, here):
                sweeps.sweep(read, segments, 0.85, 0.01)
                sweeps.advance()


@pytest.mark.parametrize("segments", [2, 4])
@given(graph=digraphs(most_nodes=90, most_links=300), tile=st.integers(1, 40))
@fewer(6)
def test_bits_do_not_depend_on_where_tiles_are(
    device: Device, segments: int, graph: Digraph, tile: int
) -> None:
    assume(len(graph.src) > 0)
    found = []
    with Stored(graph, tile) as store:
        ways = [(way, False) for way in WAYS if store.tiles > 3 or way != WAYS[-1]] + [(DECODED, True)]
        for way, slices in ways:
            with closing(sweeps_on(device, store, segments, way, slices=slices)) as sweeps:
                for read in range(1, segments + 1):
                    sweeps.sweep(read, segments, 0.85, 0.01)
                    sweeps.advance()
                sweeps.to_plain()
                sweeps.sweep(1, 1, 0.85, 0.01)
                sweeps.advance()
                found.append(sweeps.ranks(1))
    for ranks in found[1:]:
        assert np.array_equal(ranks, found[0])


def test_rows_stand_side_by_side_only_if_all_stay(device: Device) -> None:
    with (
        Stored(GRAPH, 700) as store,
        pytest.raises(DoesNotFitError, match="needs all rows decoded"),
    ):
        sweeps_on(device, store, 2, (1, 0, 0), slices=True)


@RUNS
@pytest.mark.parametrize("segments", [2, 4])
def test_damaged_tiles_end_a_sweep(device: Device, tiles_alone: None, segments: int) -> None:
    rng, faults = np.random.default_rng(3), 0
    for turn in range(16):
        with Stored(GRAPH, 700) as store:
            damage_tile(store, 3, rng)
            with closing(sweeps_on(device, store, segments, WAYS[turn % 4])) as sweeps:
                try:
                    sweeps.sweep(1, 2, 0.85, 0.01)
                except DamagedError:
                    faults += 1
    # The others changed columns into other nodes, which the checksum of a chunk tells.
    assert faults > 2


@pytest.mark.parametrize("kernel", SEGMENTED_KERNELS)
@pytest.mark.parametrize("method", ["cpms2", "cpms4"])
def test_a_run_is_that_of_the_reference(
    machine: PooledMachine, tmp_path: Path, method: str, kernel: str
) -> None:
    path = str(tmp_path / "g.zarr")
    graph = build(open_source(GRAPH.entries), path, 700)
    expected = oocpr.pagerank(path, method=method, device="reference")
    found = oocpr.pagerank(path, method=method, device="cuda", kernel=kernel)
    assert found.run is not None
    assert expected.run is not None
    assert found.run.sweeps == expected.run.sweeps
    assert found.converged
    np.testing.assert_allclose(found.to_numpy(), expected.to_numpy(), rtol=1e-10)
    assert np.abs(found.to_numpy() - exact_ranks(GRAPH, 0.85)).sum() <= found.error_bound
    assert found.run.bytes_read == graph.attributes.encoded_bytes
    assert machine.used == 0


def budget_of(path: str, method: str, fits: Callable[[Plan], bool]) -> int:
    """The least budget of a device, in steps of three percent, with such a plan."""
    settings, store = asked_settings(method, None), oocpr.open_graph(path).store
    for step in range(200):
        given = int(2**16 * 1.03**step)
        plan = planned_run(store, settings, device="cuda", memory="1GiB", device_memory=given).plan
        if plan.fits and fits(plan):
            return given
    raise AssertionError("no budget is enough")


@pytest.mark.long
@pytest.mark.parametrize("method", [pytest.param("cpms2", marks=pytest.mark.slow), "cpms4"])
def test_a_run_keeps_its_promise(machine: PooledMachine, tmp_path: Path, method: str) -> None:
    path = str(tmp_path / "g.zarr")
    build(open_source(random_digraph(4000, 60_000, seed=4).entries), path, 3000)
    ways: tuple[Callable[[Plan], bool], ...] = (
        lambda plan: plan.devices[0].on_device == 0,
        lambda plan: 0 < plan.devices[0].on_device < plan.stats.tiles,
        lambda plan: plan.devices[0].layouts_stay,
    )
    found = []
    for fits in ways:
        budget = budget_of(path, method, fits)
        given: dict[str, Any] = {"device": "cuda", "device_memory": budget, "memory": "1GiB"}
        ranks = oocpr.pagerank(path, method=method, predict=True, **given)
        assert ranks.run is not None
        assert ranks.run.predicted is not None
        assert ranks.run.peak_device_memory <= budget
        assert ranks.run.predicted["peak_device_memory"] == pytest.approx(
            ranks.run.peak_device_memory, rel=0.15
        )
        assert machine.used == 0
        found.append((budget, ranks))
    assert found[0][0] < found[1][0] < found[2][0]
    for _, ranks in found[1:]:
        assert np.array_equal(ranks.to_numpy(), found[0][1].to_numpy())
    with pytest.raises(DoesNotFitError) as refused:
        oocpr.pagerank(path, method=method, device="cuda", device_memory=found[0][0] // 2)
    assert "use method mixed, or use device cpu" in refused.value.remedy


@pytest.mark.long
@pytest.mark.parametrize("name", GOLDEN)
def test_passes_are_those_of_the_authors_program(
    device: Device, graphs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    if isinstance(device, HostDevice) and name not in SMALL:
        pytest.skip("takes minutes without a device")
    monkeypatch.setattr(cpms, "open_device", lambda _: device)
    skipped = ("labels", "undirected", "properties", "published")
    file = min(f for f in graphs.glob(f"{name}*") if not any(word in f.name for word in skipped))
    store = build(open_source(file), tmp_path / "g.zarr")
    for method, expected in zip(("cpms2", "cpms4"), GOLDEN[name], strict=True):
        settings = asked_settings(method, None, stop="residual")
        plan = streaming_plan(store, LIKE, store.tiles, 0)
        decoded = replace(plan.devices[0], layouts_stay=True)
        plan = replace(plan, method=method, devices=(decoded,))
        assert rank_graph(grouped(store), plan, settings, backend="cuda").sweeps == expected
