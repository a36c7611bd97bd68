"""CPMS on a device: numbers in segments against NumPy, and runs against the reference."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from oocpr.engine.cpms import run as cpms
from oocpr.engine.cpms.device import DeviceSweeps
from oocpr.engine.cpms.reference import ReferenceSweeps
from oocpr.engine.cpms.run import SEGMENTED_KERNELS
from oocpr.engine.cpms.segments import KINDS, segments_size, to_plain, write_numbers
from oocpr.engine.cuda.device import download, grid
from oocpr.engine.planning import asked_settings
from oocpr.engine.run import rank_graph
from oocpr.sources import open_source

from ..engine.digraphs import Digraph, digraphs, exact_ranks, fewer, random_digraph
from ..engine.running import Stored, build, planned_run
from ..engine.test_cpms import GOLDEN
from .shim.host import HostDevice

if TYPE_CHECKING:
    from oocpr.engine.cuda.device import Device

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


@pytest.mark.parametrize("segments", [2, 4])
@given(graph=digraphs(most_nodes=60, most_links=200), read=st.integers(1, 4), slices=st.booleans())
@fewer(4)
def test_steps_are_those_of_the_reference(
    device: Device, segments: int, graph: Digraph, read: int, slices: bool
) -> None:
    assume(len(graph.src) > 0)
    read = min(read, segments)
    written = min(read + 1, segments)
    with (
        Stored(graph, 7) as store,
        closing(DeviceSweeps(store, device, segments, slices=slices)) as there,
        closing(ReferenceSweeps(store, segments)) as here,
    ):
        for each in range(3):
            # Sums of a row are made edge by edge in both; a device may round once where the host does twice.
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


@pytest.mark.parametrize("kernel", SEGMENTED_KERNELS)
@pytest.mark.parametrize("method", ["cpms2", "cpms4"])
def test_a_run_is_that_of_the_reference(
    device: Device, monkeypatch: pytest.MonkeyPatch, method: str, kernel: str
) -> None:
    monkeypatch.setattr(cpms, "open_device", lambda _: device)
    settings = asked_settings(method, None)
    with Stored(GRAPH, 700) as store:
        plan = planned_run(store, settings).plan
        found = rank_graph(store, plan, settings, backend="cuda", kernel=kernel)
        expected = rank_graph(store, plan, settings, backend="reference")
    assert found.sweeps == expected.sweeps
    assert found.converged
    np.testing.assert_allclose(found.ranks, expected.ranks, rtol=1e-10)
    assert np.abs(found.ranks - exact_ranks(GRAPH, 0.85)).sum() <= found.error_bound
    assert found.history[0].bytes_read > 0
    assert not any(record.bytes_read for record in found.history[1:])


@pytest.mark.parametrize("segments", [2, 4])
@given(graph=digraphs(most_nodes=90, most_links=300))
@fewer(4)
def test_rows_side_by_side_have_the_bits_of_rows_one_after_the_other(
    device: Device, segments: int, graph: Digraph
) -> None:
    with (
        Stored(graph, 11) as store,
        closing(DeviceSweeps(store, device, segments)) as one,
        closing(DeviceSweeps(store, device, segments, slices=True)) as other,
    ):
        for read in range(1, segments + 1):
            found = []
            for sweeps in (one, other):
                sweeps.sweep(read, segments, 0.85, 0.01)
                sweeps.advance()
                found.append(sweeps.ranks(segments))
            assert np.array_equal(*found)


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
        plan = planned_run(store, settings).plan
        assert rank_graph(store, plan, settings, backend="cuda").sweeps == expected
