"""Runs give back what they took of a device, however they end, and take no more than they were given."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import oocpr
from oocpr.engine.cuda import backend
from oocpr.engine.cuda.backend import CudaBackend
from oocpr.engine.cuda.names import named_devices
from oocpr.engine.planning import asked_settings
from oocpr.engine.probe import sample_run
from oocpr.errors import DamagedError, DoesNotFitError, OocprError
from oocpr.sources import open_source

from ..engine.digraphs import Digraph, random_digraph
from ..engine.running import build, planned_run
from ..engine.weighted import WeightedGraph
from ..store.damage import flip_bits
from .pooled import CudaMachine, PooledMachine
from .shim.host import HostKernel
from .shim.pool import Pool, PoolError

if TYPE_CHECKING:
    from oocpr.engine.settings import Settings
    from oocpr.plan.plan import Plan

    Machine = PooledMachine | CudaMachine

NODES = 20_000
ON_DEVICE = pytest.param("cuda", marks=pytest.mark.device)
NEVER = 10**9


@pytest.fixture(params=["host", ON_DEVICE])
def machine(
    request: pytest.FixtureRequest, shim_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Machine]:
    """Devices whose memory can be asked about; nobody looks for garbage while they are used."""
    gc.collect()
    made = CudaMachine() if request.param == "cuda" else PooledMachine(shim_folder)
    asked = request.node.callspec.params.get("device", "cuda")
    if len(named_devices(asked)) > made.devices:
        pytest.skip(f"this machine does not have {asked}")
    for place in ("oocpr.engine.devices", "oocpr.engine.cuda.device"):
        monkeypatch.setattr(f"{place}.open_device", made.open_device)
    # Small change would hide all that a run on a small graph takes, and measuring longer shows no more.
    monkeypatch.setattr(import_module("oocpr.plan.device_memory"), "UNCOUNTED_BYTES", 2**14)
    # Part of it: what is sent to try the link between two devices.
    monkeypatch.setattr("oocpr.engine.cuda.communication.PEER_TEST_NUMBERS", 2**8)
    monkeypatch.setattr(sample_run, "SECONDS", 0)
    monkeypatch.setattr("oocpr.engine.probe.measure.SECONDS", 0)
    # As few rounds as there are figures of: later ones take no other memory.
    for module in (sample_run, import_module("oocpr.engine.probe.measure")):
        monkeypatch.setattr(module, "MIN_ROUNDS", 3)
    gc.disable()
    yield made
    gc.enable()


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A graph with weights, and one without."""
    folder = tmp_path_factory.mktemp("stores")
    graph = random_digraph(NODES, 60_000, seed=3)
    bare = WeightedGraph.of(graph)
    weight = np.random.default_rng(3).random(len(bare.src))
    replace(bare, weight=weight).write(folder / "w.zarr", 8000)
    build(open_source(graph.entries), folder / "u.zarr", 8000)
    return {"weighted": str(folder / "w.zarr"), "bare": str(folder / "u.zarr")}


WEIGHTED = pytest.mark.parametrize("graph", ["weighted", "bare"])
MOSTLY_WEIGHTED = pytest.mark.parametrize("graph", ["weighted", pytest.param("bare", marks=pytest.mark.slow)])
MOSTLY_BARE = pytest.mark.parametrize("graph", [pytest.param("weighted", marks=pytest.mark.slow), "bare"])


@cache
def opened(path: str) -> oocpr.Graph:
    """A stored graph, for planning: opening one takes longer than that."""
    return oocpr.open_graph(path)


def planned(path: str, settings: Settings, device: str, given: int, **how: Any) -> Plan:
    """The plan of a run within so much memory of the device."""
    return planned_run(
        opened(path).store,
        settings,
        memory="1GiB",
        personalized="personalization" in how,
        started="start" in how,
        reproducible="reproducible" in how,
        device=device,
        device_memory=given,
    ).plan


def least_budgets(path: str, device: str = "cuda", **how: Any) -> list[int]:
    """The least memory of a device for each way to use it: slices, rows, tiles in the host."""
    named = tuple((name, given) for name, given in how.items() if isinstance(given, str))
    return _least_budgets(path, device, named, frozenset(how.keys() - dict(named).keys()))


@cache
def _least_budgets(
    path: str, device: str, named: tuple[tuple[str, str], ...], arrays: frozenset[str]
) -> list[int]:
    how: dict[str, Any] = {**dict(named), **dict.fromkeys(arrays)}
    settings = asked_settings(
        how.get("method", "auto"), how.get("reads"), damping=0.85, tol=1e-10, stop="certified"
    )
    found: dict[Any, int] = {}
    given = 2**14
    while given < 2**25:
        plan = planned(path, settings, device, given, **how)
        if plan.fits:
            tiers = plan.devices[0]
            staying = "all" if tiers.on_device == plan.stats.tiles else min(tiers.on_device, 2)
            sliced, rows = min(tiers.partitions, 2), tiers.rows_in_host
            way = (plan.stats.tiles, sliced, rows, tiers.slots, staying)
            found.setdefault(way, max(each.max_bytes for each in plan.devices))
        given += given // 50
    return list(found.values())


@pytest.mark.long
@MOSTLY_BARE
@pytest.mark.parametrize(
    ("device", "predict"),
    [
        ("cuda", True),
        pytest.param("cuda", False, marks=pytest.mark.slow),
        pytest.param("cuda:0,cuda:1", True, marks=pytest.mark.slow),
    ],
)
def test_runs_in_one_process_each_keep_their_promise(
    machine: Machine, stores: dict[str, str], graph: str, device: str, predict: bool
) -> None:
    settings = asked_settings("auto", None, damping=0.85, tol=1e-10, stop="certified")
    least, *others, most = least_budgets(stores[graph], device)
    held = []
    for budget in (None, least, None, others[len(others) // 2], most, least):
        held.append(
            oocpr.pagerank(stores[graph], device=device, device_memory=budget, predict=predict, max_passes=3)
        )
        assert machine.used == 0
        run = held[-1].run
        assert run is not None
        taken = run.peak_device_memory
        assert 0 < taken <= (budget or NEVER)
        plan = planned(stores[graph], settings, device, budget or 2**33)
        assert taken <= max(tiers.max_bytes for tiers in plan.devices)


@pytest.mark.long
@MOSTLY_WEIGHTED
def test_a_run_in_slices_keeps_its_promise(machine: Machine, stores: dict[str, str], graph: str) -> None:
    expected = oocpr.pagerank(stores[graph], device="cpu", tol=1e-5)
    settings = asked_settings("auto", None, damping=0.85, tol=1e-10, stop="certified")
    plans = [planned(stores[graph], settings, "cuda", given) for given in least_budgets(stores[graph])]
    first = next(number for number, plan in enumerate(plans) if plan.partitions == 1)
    # Where nothing else fits, and then as few as there is room for; or if their groups are fewer in all.
    assert all(
        plan.partitions * plan.stats.tiles < plans[first].stats.tiles or plan.partitions == 1
        for plan in plans[first:]
    )
    fewest = planned(stores[graph], settings, "cuda", plans[first].devices[0].need.total - 1)
    assert plans[0].partitions > fewest.partitions == 2
    for plan in (plans[0], fewest):
        (tiers,) = plan.devices
        ranks = oocpr.pagerank(
            stores[graph], device="cuda", device_memory=tiers.memory, predict=True, tol=1e-5
        )
        assert machine.used == 0
        apart = np.abs(ranks.to_numpy() - expected.to_numpy()).sum()
        assert apart <= ranks.error_bound + expected.error_bound
        run = ranks.run
        assert run is not None
        assert run.peak_device_memory <= tiers.max_bytes <= tiers.memory
        assert run.predicted is not None
        assert run.bytes_read == pytest.approx(run.predicted["bytes_read"], rel=1e-3)


GIVEN = np.random.default_rng(5).random(NODES)


@pytest.mark.long
@MOSTLY_WEIGHTED
@pytest.mark.parametrize("device", ["cuda", pytest.param("cuda:0,cuda:1", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "how",
    [
        {"start": GIVEN},
        *(
            pytest.param(how, marks=pytest.mark.slow)
            for how in (
                {},
                {"personalization": GIVEN},
                {"method": "residual"},
                {"reads": "float64"},
                {"reads": "bits8"},
            )
        ),
    ],
    ids=lambda how: " ".join(how) or "plain",
)
def test_a_run_fits_into_what_its_plan_says(
    machine: Machine, stores: dict[str, str], graph: str, device: str, how: dict[str, Any]
) -> None:
    budgets = least_budgets(stores[graph], device, **how)
    assert len(budgets) > 5
    for budget in budgets:
        ranks = oocpr.pagerank(
            stores[graph], device=device, device_memory=budget, predict=True, max_passes=2, **how
        )
        assert ranks.run is not None
        assert ranks.run.peak_device_memory <= budget


@pytest.mark.long
@MOSTLY_WEIGHTED
def test_a_reproducible_run_has_the_same_bits_within_any_budget(
    machine: Machine, stores: dict[str, str], graph: str
) -> None:
    path = stores[graph]
    budgets = least_budgets(path, reproducible=True)
    assert len(budgets) > 4
    found = [
        oocpr.pagerank(path, device="cuda", device_memory=budget, reproducible=True, max_passes=4)
        for budget in (*budgets, None)
    ]
    assert {ranks.run.passes for ranks in found if ranks.run is not None} == {4}
    assert len({ranks.to_numpy().tobytes() for ranks in found}) == 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("device", "place"),
    [pytest.param("cuda", 0, marks=pytest.mark.slow), ("cuda", 2), ("cuda", 5), ("cuda:0,cuda:1", 2)],
)
@MOSTLY_BARE
def test_a_run_that_was_kept_goes_on_to_the_same_bits(
    machine: Machine, stores: dict[str, str], tmp_path: Path, graph: str, device: str, place: int
) -> None:
    path = stores[graph]
    budgets = least_budgets(path, device)
    budget = budgets[min(place, len(budgets) - 1)]
    how: dict[str, Any] = {"device": device, "device_memory": budget, "tol": 1e-6}
    whole = oocpr.pagerank(path, **how)
    oocpr.pagerank(path, **how, checkpoint=tmp_path / "kept", max_passes=4)
    again = oocpr.pagerank(path, **how, checkpoint=tmp_path / "kept", resume=True)
    assert again.to_numpy().tobytes() == whole.to_numpy().tobytes()
    assert [record.residual for record in again.history] == [record.residual for record in whole.history]
    assert again.run is not None
    assert again.run.peak_device_memory <= budget
    assert machine.used == 0


@pytest.mark.long
@pytest.mark.parametrize("several", [pytest.param(False, marks=pytest.mark.slow), True])
def test_diagonal_blocks_fit_into_what_their_plan_says(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, several: bool
) -> None:
    # Only large tiles have diagonal blocks, and neighbours are what is linked inside them.
    monkeypatch.setattr(import_module("oocpr.plan.device_plan"), "SMALL_EDGES", 1000)
    sizes = import_module("oocpr.plan.tile_groups")
    monkeypatch.setattr(sizes, "GROUP_EDGES", (36_000, 18_000) if several else (1,))
    for module in (sizes, import_module("oocpr.engine.planning")):
        monkeypatch.setattr(module, "STREAMED_EDGES", (12_000,) if several else ())
    rng = np.random.default_rng(4)
    src = rng.integers(0, 12_000, 60_000)
    dst = np.clip(src + rng.integers(-60, 60, 60_000), 0, 11_999)
    build(open_source(Digraph(12_000, src, dst).entries), tmp_path / "g.zarr", 6000)
    path = str(tmp_path / "g.zarr")
    found: list[Any] = []
    find = backend.find_diagonal_blocks
    monkeypatch.setattr(backend, "find_diagonal_blocks", lambda *of: found.append(of[2]) or find(*of))
    for budget in least_budgets(path)[::2]:
        ranks = oocpr.pagerank(path, device="cuda", device_memory=budget, predict=True, max_passes=2)
        assert ranks.run is not None
        assert ranks.run.peak_device_memory <= budget
    assert found


@pytest.fixture(scope="module")
def little(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Graphs that are ranked at once, in several tiles."""
    folder = tmp_path_factory.mktemp("little")
    graph = random_digraph(300, 2500, seed=8)
    WeightedGraph.of(graph, 0.5).write(folder / "w.zarr", 300)
    build(open_source(graph.entries), folder / "u.zarr", 300)
    return {"weighted": str(folder / "w.zarr"), "bare": str(folder / "u.zarr")}


class Failing:
    """Counts calls of a method, and has one of them fail."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, of: type, name: str, error: Callable[[str], BaseException]
    ) -> None:
        usual = getattr(of, name)
        self.at, self.calls = NEVER, 0

        def counted(*given: Any, **named: Any) -> Any:
            self.calls += 1
            if self.calls == self.at:
                raise error("as the test wants it")
            return usual(*given, **named)

        monkeypatch.setattr(of, name, counted)

    def fail(self, at: int) -> None:
        """Count from zero, to where it fails."""
        self.at, self.calls = at, 0


@pytest.mark.long
@MOSTLY_BARE
@pytest.mark.parametrize("device", ["cuda", "cuda:0,cuda:1"])
@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    ("of", "name", "error"),
    [(Pool, "take", PoolError), (HostKernel, "__call__", KeyboardInterrupt)],
    ids=["memory", "interrupt"],
)
def test_wherever_a_run_fails_its_error_holds_nothing(
    shim_folder: Path,
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    stores: dict[str, str],
    little: dict[str, str],
    graph: str,
    device: str,
    streams: bool,
    of: type,
    name: str,
    error: Callable[[str], BaseException],
) -> None:
    if isinstance(machine, CudaMachine):
        pytest.skip("a real device does not fail when it is asked to")
    failing = Failing(monkeypatch, of, name, error)
    path = stores[graph] if streams else little[graph]
    budget = least_budgets(path, device)[5] if streams else None
    how: dict[str, Any] = {"device": device, "device_memory": budget, "predict": True, "max_passes": 3}
    failing.fail(NEVER)
    oocpr.pagerank(path, **how)
    points = range(1, failing.calls + 1, failing.calls // (5 if streams else 15))
    errors: list[BaseException] = []
    for at in points:
        failing.fail(at)
        with pytest.raises((KeyboardInterrupt, OocprError)) as raised:
            oocpr.pagerank(path, **how)
        errors.append(raised.value)
        assert (machine.used, machine.limits) == (0, [0, 0])
    assert len(errors) >= 5


@pytest.mark.long
@WEIGHTED
def test_a_run_goes_where_one_had_no_room(machine: Machine, stores: dict[str, str], graph: str) -> None:
    budget = least_budgets(stores[graph])[1]
    alone = oocpr.pagerank(stores[graph], device="cuda", device_memory=budget, max_passes=3).run
    assert alone is not None
    needed = alone.peak_device_memory
    device = machine.open_device("cuda")
    errors: list[OocprError] = []
    for share in (0.1, 0.5, 0.9):
        with device:
            # Somebody else's, such as leaves less than it needs.
            array = device.xp.zeros(budget - needed + int(share * needed), np.uint8)
        held = machine.used
        with pytest.raises(DoesNotFitError, match="the run needs more") as raised:
            oocpr.pagerank(stores[graph], device="cuda", device_memory=budget, max_passes=3)
        errors.append(raised.value)
        assert machine.used == held
        del array
        oocpr.pagerank(stores[graph], device="cuda", device_memory=budget, max_passes=3)
        assert machine.used == 0


def test_a_backend_that_cannot_be_made_leaves_no_limit(machine: Machine) -> None:
    before = machine.limits
    with pytest.raises(DoesNotFitError):
        CudaBackend(machine.open_device("cuda"), limit=1)
    assert machine.limits == before


def test_a_damaged_tile_holds_nothing(machine: Machine, little: dict[str, str], tmp_path: Path) -> None:
    copied = tmp_path / "damaged.zarr"
    shutil.copytree(little["bare"], copied)
    largest = max(copied.rglob("c/*"), key=lambda file: file.stat().st_size if file.is_file() else 0)
    flip_bits(largest)
    for predict in (False, True):
        with pytest.raises(DamagedError) as raised:
            oocpr.pagerank(str(copied), device="cuda", predict=predict)
        assert raised.value.__traceback__ is not None
        assert machine.used == 0
