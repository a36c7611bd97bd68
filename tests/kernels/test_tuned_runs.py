"""From a stored graph to a kept shape, and to runs that take it: on the host, which stands for a device."""

from __future__ import annotations

import json
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import oocpr
from oocpr.api.choices import asked_settings, plan_run
from oocpr.cli import main
from oocpr.engine.cuda import discovery, tuning
from oocpr.engine.cuda.backend import CudaBackend
from oocpr.engine.cuda.papers.products import Cut, Gather
from oocpr.engine.cuda.spmv import Shape
from oocpr.engine.cuda.tuning_cache import Kept, class_of
from oocpr.engine.cuda.tuning_candidates import Case
from oocpr.engine.job import make_backend
from oocpr.errors import UsageError
from oocpr.sources import open_source

from ..engine.digraphs import random_digraph
from ..engine.running import build
from .shim.host import HostDevice

if TYPE_CHECKING:
    from pathlib import Path

    from oocpr.api import Graph
    from oocpr.plan.device_memory import DeviceTiers

OTHER = {"balanced": Shape(teams=8, resident=3, each=1, edge_order=False), "binned": Cut(2, 32, 64)}


@pytest.fixture
def device(shim_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostDevice:
    """The host in place of every CUDA device, with a cache folder of its own, and few turns."""
    host = HostDevice(shim_folder)
    for place in ("oocpr.engine.job.open_device", "oocpr.engine.cuda.discovery.open_device"):
        monkeypatch.setattr(place, lambda _: host)
    monkeypatch.setenv("OOCPR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("OOCPR_TUNE")
    monkeypatch.setattr(tuning, "TURNS", 1)
    monkeypatch.setattr(tuning, "FINAL_TURNS", 1)
    return host


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    """A stored graph."""
    return oocpr.import_graph(random_digraph(300, 2000, seed=3).entries, tmp_path / "graph.zarr")


def facts_of(graph: Graph) -> Any:
    return oocpr.plan(graph, method="mixed").facts


def case_on(device: HostDevice) -> Case:
    # All nodes of a small graph are among the first.
    return Case(Gather("bits16"), True, device.shared_bytes)


def keep(device: HostDevice, graph: Graph, kernel: str) -> None:
    """Keep another shape than the default, as if tuning had found it."""
    assert Kept.of(device).keep(kernel, class_of(facts_of(graph), case_on(device)), OTHER[kernel], {})


@pytest.mark.parametrize("kernel", ["balanced", "binned"])
def test_what_tuning_finds_is_kept_for_runs(device: HostDevice, graph: Graph, kernel: str) -> None:
    tuned = oocpr.tune(graph, kernel=kernel, seconds=1e-9)
    assert tuned.path is not None
    assert tuned.device == device.name
    assert tuned.graph_class == class_of(facts_of(graph), case_on(device))
    backend = make_backend("cuda", None, kernel, facts_of(graph))
    assert isinstance(backend, CudaBackend)
    assert backend._shapes(Gather("bits16"), True) == tuned.found.best
    assert backend._shapes(Gather("bits16"), False) is None
    assert backend._shapes(Gather("float64"), True) is None
    plain = make_backend("cuda", None, kernel)
    assert isinstance(plain, CudaBackend)
    assert plain._shapes(Gather("bits16"), True) is None


@pytest.mark.parametrize("kernel", ["balanced", "binned"])
def test_runs_take_what_is_kept_and_give_the_same_bits(
    device: HostDevice, graph: Graph, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(device, graph, kernel)
    compiled: list[dict[str, int | str]] = []
    load = device.load

    def noting(file: str, **parameters: int | str) -> Any:
        if file == "product.cu" and parameters["READS"] == "Bits16":
            compiled.append(parameters)
        return load(file, **parameters)

    monkeypatch.setattr(device, "load", noting)
    ways: list[tuple[bool | None, str]] = [(None, ""), (True, "off"), (False, ""), (None, "off")]
    found = []
    for tune, said in ways:
        monkeypatch.setenv("OOCPR_TUNE", said)
        compiled.clear()
        ranks = oocpr.pagerank(graph, device="cuda", kernel=kernel, max_passes=3, tune=tune)
        found.append(ranks.to_numpy())
        if kernel == "balanced":
            takes = said != "off" if tune is None else tune
            assert {shape["TEAMS"] for shape in compiled} == ({8} if takes else {14})
    for other in found[1:]:
        assert np.array_equal(other, found[0])


def test_a_run_tunes_first_where_nothing_is_kept(
    device: HostDevice, graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oocpr.api.tuning.SECONDS", 1e-9)
    run = partial(oocpr.pagerank, graph, device="cuda", max_passes=1)
    path = Kept.of(device).path
    run()
    assert not path.exists()
    run(tune=True)
    before = path.stat().st_mtime_ns
    assert list(json.loads(path.read_text())["kept"]) == ["balanced"]
    run(tune=True)
    assert path.stat().st_mtime_ns == before


def test_bins_that_are_said_are_taken(device: HostDevice, graph: Graph) -> None:
    keep(device, graph, "binned")
    backend = make_backend("cuda", None, "binned:1:20:32", facts_of(graph))
    assert isinstance(backend, CudaBackend)
    assert backend._shapes(Gather("bits16"), True) == Cut(1, 20, 32)
    ranks = [
        oocpr.pagerank(graph, device="cuda", kernel=kernel, max_passes=2).to_numpy()
        for kernel in ("binned:1:20:32", "binned")
    ]
    assert np.array_equal(*ranks)


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        ("binned:6", "divides no rows"),
        ("binned:", "divides no rows"),
        ("binned:96:6", "divides no rows"),
        ("binned:6:96:100", "divides no rows"),
        ("binned:6:96:2048", "divides no rows"),
        ("binned:6:96:0", "divides no rows"),
        ("binned:-1:6", "divides no rows"),
        ("binned:٣:96", "divides no rows"),
        ("balanced:6:96", "is not known"),
        ("", "is not known"),
    ],
)
def test_kernels_that_cannot_be(kernel: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make_backend("cuda", 1, kernel)


def test_the_command_says_what_it_tried_and_kept(
    device: HostDevice, graph: Graph, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "tuned.json"
    assert main(["tune", graph.path, "--kernel", "binned", "--seconds", "1e-9", "--json", str(out)]) == 0
    printed, _ = capfd.readouterr()
    found = json.loads(out.read_text())
    head, *lines = printed.splitlines()
    assert head.split() == ["GTEPS", "binned"]
    table = lines[: lines.index("")]
    assert len(table) == len(found["tried"])
    speeds = [float(line.split()[0]) for line in table]
    assert speeds == sorted(speeds, reverse=True)
    assert sum("kept" in line for line in table) == sum("default" in line for line in table) == 1
    assert found["path"] in printed
    assert found["graph_class"] in printed
    assert found["gteps"] >= found["default_gteps"] > 0
    assert not found["complete"]
    assert "at the end of the time it had" in printed
    assert found["kept"] in [{k: v for k, v in trial.items() if k != "gteps"} for trial in found["tried"]]


NO_DEVICE = "Some Card is broken."


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (["tune", "G"], f"nothing can be tuned: {NO_DEVICE}"),
        (["tune", "G", "--device", "cpu"], "nothing can be tuned on device 'cpu'."),
        (["tune", "G", "--kernel", "ell"], "kernel 'ell' has nothing to tune."),
        (["tune", "G", "--kernel", "binned:6:96"], "kernel 'binned:6:96' says its shape itself."),
        (["tune", "G", "--kernel", "abacus"], "kernel 'abacus' is not known."),
        (["tune", "G", "--seconds", "0"], "0.0 seconds are no time to try shapes in."),
        (["rank", "G", "--tune"], "nothing can be tuned on device 'cpu'."),
        (["rank", "G", "--tune", "--device", "auto"], f"nothing can be tuned: {NO_DEVICE}"),
        (["rank", "G", "--tune", "--device", "cuda", "--kernel", "ell"], "kernel 'ell' has nothing to tune."),
    ],
)
def test_where_nothing_can_be_tuned_it_says_why(
    words: list[str],
    cause: str,
    graph: Graph,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def refused(_: str) -> None:
        raise UsageError(NO_DEVICE, "Mend it.")

    monkeypatch.setattr(discovery, "open_device", refused)
    capfd.readouterr()
    assert main([graph.path if word == "G" else word for word in words]) == 2
    printed, said = capfd.readouterr()
    assert printed == ""
    assert said.splitlines()[0] == f"error: {cause}"
    assert said.splitlines()[1].startswith("remedy: ")


def test_workers_of_a_client_are_not_tuned(graph: Graph) -> None:
    client = SimpleNamespace(submit=None, scheduler_info=None)
    with pytest.raises(UsageError, match="workers of a client cannot be tuned"):
        oocpr.pagerank(graph, device="cuda", tune=True, client=client)


def test_products_of_slices_are_not_tuned(
    device: HostDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oocpr.api.tuning.SECONDS", 1e-9)
    build(open_source(random_digraph(20_000, 60_000, seed=3).entries), tmp_path / "g.zarr", 8000)
    graph = oocpr.open_graph(tmp_path / "g.zarr")
    settings = asked_settings("mixed", None, damping=0.85, tol=1e-10, stop="certified")

    def tiers_of(given: int) -> DeviceTiers:
        how: dict[str, Any] = {"auto": False, "memory": None, "stripes": None, "personalized": False}
        (tiers,) = plan_run(graph, settings, device="cuda", device_memory=given, base=0, **how)[1].devices
        return tiers

    memory = tiers_of(1).need.total
    assert tiers_of(memory).slices > 1
    path = Kept.of(device).path
    for given, kept in ((memory, False), (2 * memory, True)):
        assert (tiers_of(given).slices == 1) == kept
        oocpr.pagerank(graph, device="cuda", device_memory=given, max_passes=1, tune=True)
        assert path.exists() == kept
