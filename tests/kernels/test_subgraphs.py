"""The series of Jiang 2014 on a device: its kernels and the default, beside processors."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import oocpr
from oocpr.sources.wu import Wu

if TYPE_CHECKING:
    import pytest

    from .pooled import PooledMachine


def test_kernels_of_the_paper_and_the_default_certify_the_same_error(
    machine: PooledMachine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parents[2] / "workflows" / "bench"), *sys.path])
    bench = import_module("subgraphs")
    assert machine.devices
    systems = bench.systems_on("cuda")
    kernels = [how["kernel"] for how in systems.values() if "kernel" in how]
    assert sorted(kernels) == ["csr-scalar", "edges", "exchange"]
    (_, links), *_ = bench.subgraphs(Wu("su", 1000), [100])
    graph = oocpr.import_graph(links, tmp_path / "graph.zarr")
    cells = bench.compare(graph, systems, 1, "", ("certified",))
    assert list(cells) == list(systems)
    for cell in cells.values():
        assert cell["certified"]["error"] <= cell["certified"]["certified"] <= 1e-10
    row = {"edges": graph.edges, "systems": cells, "published": {"cpu": 0.3, "gpu": 0.1}}
    # A name, edges, six systems, three figures of another machine.
    assert len(bench.render({"subgraphs": "small", "graphs": {"100 nodes": row}}).columns) == 11
