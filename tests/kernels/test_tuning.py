"""Tuning on the host: real kernels, and a clock that says which shape is the fastest."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from oocpr.engine.cuda import tuning
from oocpr.engine.cuda.papers.products import Cut, Gather
from oocpr.engine.cuda.spmv import Shape, shape_for
from oocpr.engine.cuda.tuning import BalancedTiles, BinnedTiles, tune
from oocpr.engine.cuda.tuning_candidates import Case
from oocpr.engine.number_formats import narrow

from .matrices import exact_numbers, matrix_on, rows_of
from .shim.host import HostDevice
from .tiles import placed, random_tile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from oocpr.engine.cuda.device import Device
    from oocpr.engine.cuda.tuning import Calls, Tiles
    from oocpr.engine.cuda.tuning_candidates import Tunable

NODES = 3000


class Told(HostDevice):
    """The host, whose clock tells invented times: by the shape that was launched last."""

    def __init__(self, folder: Path, cost: Callable[[Any], float]) -> None:
        super().__init__(folder)
        self.cost = cost
        self.launched: Any = None

    def seconds(self, work: Callable[[], object]) -> float:
        """See Device."""
        work()
        return self.cost(self.launched)


def noting(tiles: Tiles, spoil: Any = None, refuse: Any = None) -> Tiles:
    """Tiles that tell the device what is launched; one shape gives other bits, one cannot be compiled."""
    make = tiles.make

    def wrapped(shape: Tunable) -> Calls:
        if shape == refuse:
            raise RuntimeError("too many resources")
        calls = make(shape)

        def call(k: int) -> None:
            calls[k]()
            tiles.device.launched = shape  # type: ignore[attr-defined]
            if shape == spoil:
                tiles._sums.pushes[0] = np.nextafter(tiles._sums.pushes[0], np.inf)

        return [lambda k=k: call(k) for k in range(len(calls))]  # type: ignore[misc]

    tiles.make = wrapped  # type: ignore[method-assign]
    return tiles


def balanced(
    device: Device, reads: str = "bits16", *, paired: bool = False, hubs: bool = False
) -> BalancedTiles:
    tiles = [placed(device, *random_tile(60, 9, NODES, seed=seed)) for seed in (1, 2)]
    rng = np.random.default_rng(4)
    numbers = narrow(rng.random((NODES + 4, 1 + paired)), reads)
    numbers[NODES:] = 0
    case = Case(Gather(reads, paired), hubs, device.shared_bytes)
    return BalancedTiles(device, case, tiles, device.xp.asarray(numbers), NODES)


def binned(device: Device) -> BinnedTiles:
    rows = rows_of("sizes")
    stored, _ = exact_numbers("float64", (rows.shape[1],))
    case = Case(Gather("float64"))
    return BinnedTiles(device, case, [matrix_on(device, rows)] * 2, device.xp.asarray(stored))


@pytest.fixture(autouse=True)
def _few_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock does not err, so there is no need to ask it often."""
    monkeypatch.setattr(tuning, "TURNS", 1)
    monkeypatch.setattr(tuning, "FINAL_TURNS", 1)


def test_the_fastest_shape_is_found(shim_folder: Path) -> None:
    best = Shape(teams=4, resident=5, each=16)

    def cost(shape: Shape) -> float:
        return 10 + (shape.teams != best.teams or shape.resident != best.resident) + (shape.each != best.each)

    device = Told(shim_folder, cost)
    found = tune(noting(balanced(device)), seconds=600)
    assert (found.usual, found.best) == (Shape(), best)
    assert found.complete
    edges = sum(tile.edges for tile in balanced(device)._tiles)
    assert found.usual_gteps == pytest.approx(edges / 12 / 1e9)
    assert found.gteps == pytest.approx(edges / 10 / 1e9)
    assert {trial.shape for trial in found.trials} >= {Shape(), Shape(resident=8), Shape(teams=8, resident=4)}
    assert found.trials[0].shape == Shape()
    assert all(trial.gteps is not None for trial in found.trials)


def test_hubs_are_kept_near_where_that_is_faster(shim_folder: Path) -> None:
    device = Told(shim_folder, lambda shape: 10 + abs(shape.hubs - (40 << 10) // 2) / 1e4)
    found = tune(noting(balanced(device, hubs=True)), seconds=600)
    assert found.usual == shape_for("bits16", paired=False, shared_bytes=device.shared_bytes)
    assert isinstance(found.best, Shape)
    assert found.best.hubs == (40 << 10) // 2
    assert all(trial.gteps is not None for trial in found.trials)
    device.cost = lambda shape: 10 + (shape.hubs > 0)
    found = tune(noting(balanced(device, hubs=True)), seconds=600)
    assert isinstance(found.best, Shape)
    assert found.best.hubs == 0


def test_the_fastest_bins_are_found(shim_folder: Path) -> None:
    device = Told(shim_folder, lambda cut: 10 + abs(cut.tiny - 8) + abs(cut.block - 64) / 64)
    found = tune(noting(binned(device)), seconds=600)
    assert found.best == Cut(tiny=8, block=64)


def test_a_shape_of_other_bits_is_never_kept(shim_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    wrong = Shape(resident=8)
    device = Told(shim_folder, lambda shape: 1 if shape == wrong else 10)
    found = tune(noting(balanced(device), spoil=wrong), seconds=600)
    assert found.best == Shape()
    assert [trial.shape for trial in found.trials if trial.gteps is None] == [wrong]
    assert "gives other bits" in caplog.text


def test_a_shape_that_cannot_be_compiled_is_left_out(shim_folder: Path) -> None:
    device = Told(shim_folder, lambda shape: 10 - (shape.resident == 12))
    found = tune(noting(balanced(device), refuse=Shape(resident=8)), seconds=600)
    assert found.best == Shape(resident=12)
    assert [trial.shape for trial in found.trials if trial.gteps is None] == [Shape(resident=8)]


def test_time_that_is_up_ends_the_search_after_a_race(shim_folder: Path) -> None:
    device = Told(shim_folder, lambda shape: 10 - (shape.resident == 12))
    found = tune(noting(balanced(device)), seconds=1e-9)
    assert found.best == Shape(resident=12)
    assert {replace(trial.shape, teams=2, resident=16) for trial in found.trials} == {Shape()}
    assert not found.complete


def test_a_real_clock_keeps_one_of_those_tried(device: Device) -> None:
    with device:
        for tiles in (balanced(device, "float32", paired=True), binned(device)):
            found = tune(tiles, seconds=1e-9)
            speeds = {trial.shape: trial.gteps for trial in found.trials}
            assert found.best in speeds
            assert None not in speeds.values()
            assert found.gteps >= found.usual_gteps > 0
            assert found.seconds > 0


def test_a_device_says_who_it_is(device: Device) -> None:
    assert {"name", "capability"} <= set(device.identity)
    assert all(isinstance(word, str) and word for word in device.identity.values())
    assert json.loads(json.dumps(dict(device.identity))) == device.identity
