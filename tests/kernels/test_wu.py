"""What is timed beside Wu et al. 2010 on a device: vector kernels against NumPy, and the accounting."""

from __future__ import annotations

import sys
from argparse import Namespace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import oocpr
from oocpr.engine.cuda.device import download
from oocpr.sources.wu import Wu

if TYPE_CHECKING:
    from oocpr.engine.cuda.device import Device

    from .pooled import PooledMachine


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The program, which finds the modules beside it."""
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parents[2] / "workflows" / "bench"), *sys.path])
    return import_module("wu")


@pytest.mark.parametrize("count", [1, 255, 3000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_vector_kernels_of_their_own_are_those_of_numpy(device: Device, dtype: type, count: int) -> None:
    xp, rng = device.xp, np.random.default_rng(count)
    # Whole numbers, which every order of adding adds to the same.
    a, b = (rng.integers(-99, 99, count).astype(dtype) for _ in range(2))
    load = device.load("papers/vectors.cu", NUMBER="float" if dtype == np.float32 else "double").get_function
    there, size, blocks = (xp.asarray(a), xp.asarray(b)), np.uint64(count), 3
    out, partials, total = xp.full(count, np.nan, dtype), xp.full(blocks, np.nan, dtype), xp.zeros(1, dtype)
    load("add_vectors")((blocks,), (256,), (*there, size, out))
    assert np.array_equal(download(out), a + b)
    for name, given, expected in (
        ("norm_partials", there[:1], np.abs(a).sum()),
        ("distance_partials", there, np.abs(a - b).sum()),
    ):
        load(name)((blocks,), (256,), (*given, size, partials))
        load("add_partials")((1,), (256,), (partials, np.uint64(blocks), total))
        assert download(total)[0] == expected


def test_vectors_are_timed_apart_and_fused(device: Device, bench: Any) -> None:
    found = bench.Vectors(device, 5000, repeats=1).all()
    assert found["elements"] == 5000
    assert list(found["kernels"]) == [
        *(f"{name}, float{bits}" for bits in (32, 64) for name in ("add", "norm", "distance")),
        "push, fused",
        "update, fused",
    ]
    operations = [1, 1, 2, 1, 1, 2, 2, 4]
    for rates, count in zip(found["kernels"].values(), operations, strict=True):
        assert rates["GFlop/s"] * rates["ms"] == pytest.approx(count * 5000e-6)


def test_rounds_on_a_device_are_counted_with_what_is_prepared(
    machine: PooledMachine, bench: Any, tmp_path: Path
) -> None:
    assert machine.devices
    graph = oocpr.import_graph(Wu("su", 1000), tmp_path / "graph.zarr")
    found = bench.account(graph, Namespace(passes=3, runs=1, device="cuda"))
    assert list(found) == ["processors", *bench.KERNELS, "oocpr, default, cpu", "oocpr, default, cuda"]
    processors = found["processors"]
    assert processors["preparing, ms"] == 0
    for title in bench.KERNELS:
        cell = found[title]
        assert cell["preparing, ms"] > 0
        taken = cell["preparing, ms"] + 500 * cell["round, ms"]
        assert cell["speed-up"] == pytest.approx(500 * processors["round, ms"] / taken)
        assert cell["GFlop/s"] * cell["round, ms"] == pytest.approx((2 * graph.edges - graph.nodes) * 1e-6)
    assert all(found[f"oocpr, default, {device}"]["bound"] <= 1e-10 for device in ("cpu", "cuda"))
