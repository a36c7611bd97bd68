"""Degree distributions against NumPy's counts of every node."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

import oocpr
from oocpr.cli import main
from oocpr.store import degrees

from ..engine.digraphs import Digraph, digraphs
from ..engine.running import Stored


@given(graph=digraphs())
def test_classes_have_the_nodes_and_edges_of_their_degrees(graph: Digraph) -> None:
    counted = graph.into.copy()
    counted.data[:] = 1
    ins, outs = (np.asarray(counted.sum(axis=axis)).ravel() for axis in (1, 0))
    with Stored(graph, 7) as store, pytest.MonkeyPatch.context() as patch:
        patch.setattr(degrees, "_ROWS", 4)
        classes = oocpr.open_graph(store.path).degrees()
    assert [each.lowest for each in classes[1:]] == [each.highest + 1 for each in classes[:-1]]
    assert classes[-1].in_nodes + classes[-1].out_nodes > 0
    for each in classes:
        for found, of in ((each[2:4], ins), (each[4:], outs)):
            here = of[(of >= each.lowest) & (of <= each.highest)]
            assert found == (here.size, here.sum())
    assert sum(each.in_nodes for each in classes) == sum(each.out_nodes for each in classes) == graph.nodes
    assert sum(each.in_edges for each in classes) == sum(each.out_edges for each in classes) == counted.nnz


def test_the_table_and_the_json_have_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # A star of 300 and its centre, which has edges back to nine.
    src = np.append(np.arange(1, 301), np.zeros(9, np.int64))
    dst = np.append(np.zeros(300, np.int64), np.arange(1, 10))
    oocpr.import_graph((src, dst), tmp_path / "g.zarr")
    assert main(["info", str(tmp_path / "g.zarr"), "--degrees", "--json", str(tmp_path / "g.json")]) == 0
    found = json.loads((tmp_path / "g.json").read_text())["degrees"]
    nodes = [(each["lowest"], each["in_nodes"], each["out_nodes"]) for each in found if each["in_nodes"]]
    assert nodes == [(0, 291, 0), (1, 9, 300), (256, 1, 0)]
    shown = [line.split() for line in capsys.readouterr().out.splitlines() if "256 to 511" in line]
    assert shown == [["256", "to", "511", "1", "#", "300", "0", "0"]]
