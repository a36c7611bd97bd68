"""Device ``"auto"`` is a device, unless processors would have ranked the graph before it is ready."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import oocpr
from oocpr.errors import UsageError
from oocpr.sources.rmat import Rmat

if TYPE_CHECKING:
    from pathlib import Path

    from .pooled import PooledMachine


@pytest.fixture
def graph(tmp_path: Path) -> oocpr.Graph:
    return oocpr.import_graph(Rmat(8), tmp_path / "g.zarr")


def limited(monkeypatch: pytest.MonkeyPatch, *, new: int, ready: int, used: bool) -> None:
    """Edges up to which processors rank a graph, and whether the device has been used."""
    stripe = import_module("oocpr.engine.devices")
    monkeypatch.setattr(stripe, "MAX_SCC_EDGES", new)
    monkeypatch.setattr(stripe, "READY_SCC_EDGES", ready)
    monkeypatch.setattr(stripe, "is_open", lambda _: used)


def is_on_device(graph: oocpr.Graph, **how: Any) -> bool:
    ranks = oocpr.pagerank(graph, device="auto", **how)
    assert oocpr.plan(
        graph, device="auto", **{k: v for k, v in how.items() if k in ("reads", "io", "device_memory")}
    ).method == (ranks.run.method)
    return ranks.run.peak_device_memory > 0


@pytest.mark.parametrize("used", [False, True])
def test_it_depends_on_the_edges_and_on_whether_the_device_is_ready(
    graph: oocpr.Graph, machine: PooledMachine, monkeypatch: pytest.MonkeyPatch, used: bool
) -> None:
    edges = graph.edges
    for more in (0, 1):
        new, ready = (edges + 9, edges - more) if used else (edges - more, 0)
        limited(monkeypatch, new=new, ready=ready, used=used)
        # What it may take at most is not what it is taken for.
        for how in ({}, {"device_memory": "1GiB"}):
            assert is_on_device(graph, **how) == bool(more)


def test_what_processors_would_not_be_faster_with_is_left_to_the_device(
    graph: oocpr.Graph, machine: PooledMachine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    limited(monkeypatch, new=graph.edges, ready=graph.edges, used=False)
    assert not is_on_device(graph)
    assert is_on_device(graph, reads="bits16")
    assert is_on_device(graph, io="buffered")
    assert oocpr.pagerank(graph, device="auto", stripes=2).run.peak_device_memory > 0
    assert oocpr.pagerank(graph, device="auto", checkpoint=tmp_path / "kept").run.peak_device_memory > 0


def test_weights_are_for_the_device(
    machine: PooledMachine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = tmp_path / "weighted.txt"
    text.write_text("0 1 0.5\n1 2 0.25\n2 0 1.0\n0 2 2.0\n")
    graph = oocpr.import_graph(text, tmp_path / "w.zarr", weight=3)
    limited(monkeypatch, new=9, ready=9, used=False)
    assert is_on_device(graph)


@pytest.mark.parametrize("weighted", [False, True])
def test_many_seeds_are_for_the_device_if_it_or_a_method_for_it_is_named(
    machine: PooledMachine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, weighted: bool
) -> None:
    random = np.random.default_rng(1)
    text = tmp_path / "g.txt"
    np.savetxt(text, np.c_[random.integers(0, 200, (2000, 2)), random.random(2000) + 0.1], "%d %d %.3f")
    how: dict[str, Any] = {"weight": 3} if weighted else {"source_column": 1, "target_column": 2}
    graph = oocpr.import_graph(text, tmp_path / "g.zarr", **how)
    limited(monkeypatch, new=1, ready=1, used=True)
    seeds = [{5: 1}, {7: 2, 150: 1}, {0: 1}]
    named = oocpr.pagerank(graph, personalization=seeds, device="cuda")
    assert named.run.peak_device_memory > 0
    for number, seed in enumerate(seeds):
        one = oocpr.pagerank(graph, personalization=seed, device="cuda")
        assert np.array_equal(named[number].to_numpy(), one.to_numpy())
        assert named.passes[number] == one.passes
    auto = oocpr.pagerank(graph, personalization=seeds, device="auto")
    # Blocks on processors are faster than a device that has one seed at a time.
    assert auto.run.peak_device_memory == 0
    within = oocpr.pagerank(graph, personalization=seeds, device="auto", device_memory="1GiB")
    assert within.run.peak_device_memory == 0
    assert within.passes.tolist() == auto.passes.tolist()
    residual = oocpr.pagerank(graph, personalization=seeds, device="auto", method="residual")
    assert residual.run.peak_device_memory > 0
    for number in range(len(seeds)):
        apart = np.abs(auto[number].to_numpy() - named[number].to_numpy()).sum()
        assert apart <= auto.error_bound[number] + named.error_bound[number]


@pytest.mark.parametrize("method", ["auto", "mixed"])
def test_where_there_is_no_device_there_is_nothing_to_keep_within(
    graph: oocpr.Graph, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def missing(_: str) -> None:
        raise UsageError("There is none.", "Have one.")

    monkeypatch.setattr(import_module("oocpr.engine.devices"), "open_device", missing)
    how: dict[str, Any] = {"method": method, "device_memory": "1MiB"}
    assert oocpr.pagerank(graph, device="auto", **how).converged
    assert oocpr.plan(graph, device="auto", **how).fits
    with pytest.raises(UsageError, match="the device is cpu"):
        oocpr.pagerank(graph, device="cpu", **how)
