"""What runs take of a device at their peak, as predicted and as found."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest

import oocpr
from oocpr.engine.planning import asked_settings
from oocpr.ingest.build import build_store
from oocpr.sources import open_source
from oocpr.sources.rmat import Rmat

from ..engine.digraphs import Digraph
from ..engine.running import PLENTY, build, planned_run
from ..engine.weighted import WeightedGraph
from .pooled import PooledMachine

if TYPE_CHECKING:
    from oocpr.plan.plan import Plan

TILE_EDGES = 2**12


@pytest.fixture(autouse=True)
def machine(shim_folder: Path, monkeypatch: pytest.MonkeyPatch) -> PooledMachine:
    """Two devices whose pools count; sizes of tiles and small change are as small as the graphs."""
    made = PooledMachine(shim_folder)
    for place in ("oocpr.engine.devices", "oocpr.engine.cuda.device"):
        monkeypatch.setattr(f"{place}.open_device", made.open_device)
    monkeypatch.setattr(import_module("oocpr.plan.device_plan"), "SMALL_EDGES", 1000)
    monkeypatch.setattr(import_module("oocpr.plan.device_memory"), "UNCOUNTED_BYTES", 2**14)
    sizes, planning = (import_module(f"oocpr.{name}") for name in ("plan.tile_groups", "engine.planning"))
    monkeypatch.setattr(sizes, "GROUP_EDGES", (2**18, 2**16))
    monkeypatch.setattr(planning, "STREAMED_EDGES", (2**15, 2**14))
    monkeypatch.setattr(planning, "SHARED_EDGES", (2**16, 2**15, 2**14))
    monkeypatch.setattr(sizes, "LAUNCHED_BYTES", 2**15)
    return made


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """R-MAT by out-degree, whose last tile has most rows, neighbours that are linked, and random weights."""
    folder = tmp_path_factory.mktemp("stores")
    build_store(Rmat(16), folder / "rmat.zarr", memory=PLENTY, order="degree", tile_edges=TILE_EDGES)
    rng = np.random.default_rng(4)
    src = rng.integers(0, 60_000, 400_000)
    near = Digraph(60_000, src, np.clip(src + rng.integers(-60, 60, src.size), 0, 59_999))
    build(open_source(near.entries), folder / "near.zarr", TILE_EDGES)
    bare = WeightedGraph.of(near)
    replace(bare, weight=rng.random(bare.src.size)).write(folder / "weighted.zarr", TILE_EDGES)
    return {name: str(folder / f"{name}.zarr") for name in ("rmat", "near", "weighted")}


class Way(NamedTuple):
    """How a run uses its device."""

    staying: str
    rows_in_host: bool = False
    grouped: bool = True
    sliced: bool = False
    less_history: bool = False


def way_of(plan: Plan, stored: int) -> Way:
    """How a run uses the device of which it takes most."""
    tiers = max(plan.devices, key=lambda tiers: tiers.typical)
    staying = [tiers.on_device for tiers in plan.devices]
    of_all = "all" if sum(staying) == plan.stats.tiles else "some" if all(staying) else "none"
    less = of_all != "all" and not tiers.rows_in_host and not plan.proposals
    return Way(of_all, tiers.rows_in_host, plan.stats.tiles < stored, tiers.partitions > 1, less)


@pytest.mark.long
@pytest.mark.parametrize(
    ("graph", "device", "way"),
    [
        ("rmat", "cuda", Way("all")),
        ("rmat", "cuda", Way("none", less_history=True)),
        ("rmat", "cuda", Way("some", rows_in_host=True, grouped=False)),
        ("near", "cuda", Way("all")),
        # Groups of several tiles leave room for some that stay wherever those of one do.
        ("near", "cuda", Way("some")),
        ("near", "cuda", Way("some", rows_in_host=True)),
        ("rmat", "cuda", Way("some")),
        ("rmat", "cuda", Way("some", less_history=True)),
        ("rmat", "cuda", Way("none", rows_in_host=True, sliced=True)),
        ("rmat", "cuda:0,cuda:1", Way("none", less_history=True)),
        ("near", "cuda", Way("some", less_history=True)),
        ("weighted", "cuda", Way("all")),
        ("weighted", "cuda", Way("some")),
        ("weighted", "cuda", Way("some", rows_in_host=True, grouped=False)),
        ("rmat", "cuda:0,cuda:1", Way("all")),
        ("rmat", "cuda:0,cuda:1", Way("some", rows_in_host=True, grouped=False)),
        ("weighted", "cuda:0,cuda:1", Way("none")),
    ],
    ids=str,
)
def test_a_run_takes_what_was_predicted(stores: dict[str, str], graph: str, device: str, way: Way) -> None:
    opened = oocpr.open_graph(stores[graph])
    settings = asked_settings("auto", None, damping=0.85, tol=1e-10, stop="certified")

    def planned(given: int) -> Plan:
        how = {"memory": "4GiB", "device": device, "device_memory": given}
        return planned_run(opened.store, settings, base=2**28, **how).plan

    given = [int(2**18 * 1.05**step) for step in range(140)]
    plans = {memory: planned(memory) for memory in given}
    budgets = [
        memory for memory in given if plans[memory].fits and way_of(plans[memory], opened.store.tiles) == way
    ]
    budget = budgets[len(budgets) // 2]
    run = oocpr.pagerank(opened, device=device, device_memory=budget, memory="4GiB", max_passes=2).run
    assert run is not None
    assert run.predicted is not None
    assert run.predicted["peak_device_memory"] == max(tiers.typical for tiers in plans[budget].devices)
    assert run.predicted["peak_device_memory"] == pytest.approx(run.peak_device_memory, rel=0.15)
    assert run.peak_device_memory <= budget


@pytest.mark.long
@pytest.mark.parametrize("device", ["cuda", pytest.param("cuda:0,cuda:1", marks=pytest.mark.slow)])
def test_ranks_lie_within_their_bound_however_few_passes_mixing_remembers(
    stores: dict[str, str], device: str
) -> None:
    opened = oocpr.open_graph(stores["rmat"])
    exact = oocpr.pagerank(opened, device="reference", tol=1e-10).to_numpy()
    settings = asked_settings("auto", None, damping=0.85, tol=1e-6, stop="certified")
    budgets: dict[int, int] = {}
    for given in range(2**20, 3 * 2**20, 2**14):
        plan = planned_run(
            opened.store, settings, base=2**28, memory="4GiB", device=device, device_memory=given
        ).plan
        if plan.fits and not plan.rows_in_host and not plan.proposals:
            budgets.setdefault(plan.mixing, given)
    assert budgets.keys() >= {0, 1}
    for given in budgets.values():
        found = oocpr.pagerank(opened, device=device, device_memory=given, memory="4GiB", tol=1e-6)
        assert found.converged
        assert found.error_bound <= 1e-6
        assert np.abs(found.to_numpy() - exact).sum() <= found.error_bound + 1e-10
