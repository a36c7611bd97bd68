"""Edges added by the workers of a real cluster of processes: the store of one process, byte for byte."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

import oocpr
from oocpr.engine.executors import dask_import
from oocpr.errors import DamagedError, InputError, ReplacedError, SetupError, UsageError
from oocpr.ingest import budget, cluster
from oocpr.sources.rmat import Rmat
from oocpr.store.graph import GraphStore

from ..store.damage import flip_bits
from .importing import IDS, contents, killing, scaled, write_lines, write_names

if TYPE_CHECKING:
    from distributed import Client

pytestmark = pytest.mark.usefixtures("small_parts")


def same_growth(
    client: Client, folder: Path, first: Any, more: Any, *, together: bool = True, **how: Any
) -> oocpr.Graph:
    """Add edges by one process and by workers, and compare; and with an import of all together."""
    old = oocpr.import_graph(first, folder / "old", **how)
    own, theirs = (
        oocpr.append(old, more, folder / path, client=helper, **how)
        for path, helper in (("own", None), ("theirs", client))
    )
    assert own.notices == [*theirs.notices, own.notices[-1]]
    if together:
        oocpr.import_graph([first, more], folder / "all", **how)
        assert contents(folder / "all") == contents(folder / "own")
    assert contents(folder / "theirs") == contents(folder / "own")
    return theirs


whole = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 60), st.integers(0, 9)), min_size=1, max_size=200
)


@given(
    first=whole,
    more=whole,
    name=st.sampled_from([lambda k: k, lambda k: 1000 * k, lambda k: k * 2**40, lambda k: 7 - k]),
    new_nodes=st.booleans(),
    how=st.sampled_from([{}, {"duplicates": "count"}, {"weight": 3}, {"weight": 3, "duplicates": "merge"}]),
    parts=st.integers(1, 9),
    undirected=st.booleans(),
)
@settings(max_examples=10)
def test_workers_add_edges_as_one_process_does(
    client, tmp_path_factory, first, more, name, new_nodes, how, parts, undirected
):
    folder, files = tmp_path_factory.mktemp("growth"), []
    known = sorted({node for link in first for node in link[:2]})
    if not new_nodes:
        more = [(known[u % len(known)], known[v % len(known)], weight) for u, v, weight in more]
    for number, links in enumerate((first, more)):
        src, dst, weights = zip(*links, strict=True)
        columns = [[name(k) for k in src], [name(k) for k in dst], weights]
        files.append(write_lines(folder / f"{number}.txt", *columns[: 3 if "weight" in how else 2]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster, "PARTS_PER_THREAD", parts)
        patch.setattr(budget, "tile_edges_for", lambda edges: edges // 6 + 3)
        same_growth(client, folder, *files, undirected=undirected, **how)


@pytest.mark.long
@pytest.mark.parametrize("far", [0, 2**40])
def test_nodes_without_edges_stay(client, tmp_path, far):
    lines = write_lines(tmp_path / "lines.txt", [5 + far, 3000], [7, 3])
    sources = [(Rmat(11, 1), lines, 2048), (lines, Rmat(11, 1), 2048), (csr_array((9, 9)), lines, 9)]
    for k, (first, more, nodes) in enumerate(sources):
        (tmp_path / str(k)).mkdir()
        same_growth(client, tmp_path / str(k), first, more, together=False)
        assert oocpr.open_graph(tmp_path / str(k) / "theirs").nodes == nodes + 1 + bool(far)


def test_what_parts_have_to_say_is_said(client, tmp_path):
    first, more = tmp_path / "old.txt", tmp_path / "new.parquet.txt"
    more.mkdir()
    write_lines(first, *IDS[:, :900])
    for k, (src, dst) in enumerate(np.array_split(IDS, 3, axis=1)):
        pq.write_table(pa.table({"src": src, "dst": dst, "kg": src % 9}), more / f"{k}.parquet")
    made = same_growth(client, tmp_path, first, more, together=False)
    assert any(notice.startswith('"kg" was not used') for notice in made.notices)


def test_what_workers_cannot_add_one_process_does_and_says_so(client, tmp_path):
    names = [write_names(tmp_path / f"{k}.tsv.txt") for k in range(2)]
    oocpr.import_graph(names[0], tmp_path / "named", format="names")
    oocpr.import_graph(tuple(IDS[:, :50_000]), tmp_path / "old")
    for path, more, reason, how in (
        ("named", names[1], "1.tsv is added to nodes with names", {"format": "names"}),
        ("old", tuple(IDS[:, 50_000:]), "arrays cannot be divided among workers", {}),
    ):
        own, theirs = (
            oocpr.append(tmp_path / path, more, tmp_path / f"{path} {name}", client=helper, **how)
            for name, helper in (("own", None), ("theirs", client))
        )
        said = f"This process adds the edges alone, without workers: {reason}."
        assert theirs.notices == [said, *own.notices]
        assert contents(tmp_path / f"{path} theirs") == contents(tmp_path / f"{path} own")


def test_what_cannot_be_added_is_refused_as_by_one_process(client, tmp_path):
    lines, names = write_lines(tmp_path / "ids.txt", *IDS[:, :900]), write_names(tmp_path / "names.txt")
    weighted = write_lines(tmp_path / "weighted.txt", *IDS[:, :900], range(900))
    graphs = {
        "numbers": oocpr.import_graph(lines, tmp_path / "numbers"),
        "names": oocpr.import_graph(names, tmp_path / "names", format="names"),
        "weighted": oocpr.import_graph(weighted, tmp_path / "weighted", weight=3),
        "degree": oocpr.import_graph(lines, tmp_path / "degree", order="degree"),
        "damaged": oocpr.import_graph(lines, tmp_path / "damaged"),
    }
    flip_bits(tmp_path / "damaged" / "in_edges" / "indices" / "c" / "0", 50)
    before = sorted(tmp_path.iterdir())
    for graph, more, how, error in (
        ("numbers", names, {"format": "names"}, InputError),
        ("names", lines, {}, InputError),
        ("weighted", lines, {}, UsageError),
        ("weighted", weighted, {"weight": 3, "duplicates": "merge"}, UsageError),
        ("numbers", weighted, {"weight": 3}, UsageError),
        ("degree", lines, {}, UsageError),
        ("damaged", lines, {}, DamagedError),
    ):
        told = []
        for helper in (None, client):
            with pytest.raises(error) as caught:
                oocpr.append(graphs[graph], more, tmp_path / "new", client=helper, **how)
            told.append(str(caught.value))
        assert told[1] == told[0]
    assert sorted(tmp_path.iterdir()) == before


def test_a_graph_grows_in_its_place_unless_it_is_replaced(client, tmp_path):
    files = [write_lines(tmp_path / f"{k}.txt", *ids) for k, ids in enumerate(np.array_split(IDS, 2, axis=1))]
    old = oocpr.import_graph(files[0], tmp_path / "g")
    with pytest.raises(UsageError, match="exists"):
        oocpr.append(old, files[1], tmp_path / "g", client=client)
    oocpr.append(old, files[1], tmp_path / "g", client=client, overwrite=True)
    oocpr.import_graph(files, tmp_path / "all")
    assert contents(tmp_path / "g") == contents(tmp_path / "all")


@pytest.mark.parametrize(
    ("stage", "path", "match"),
    [("reading", "new", r"worker tcp://\S+ has the graph"), ("sorting", "g", "was replaced")],
)
def test_a_graph_that_is_replaced_meanwhile_is_not_lost(client, tmp_path, stage, path, match):
    source, others = tuple(IDS[:, :9000]), [write_lines(tmp_path / "other.txt", *IDS[:, :50])]
    old, more = oocpr.import_graph(source, tmp_path / "g"), others[0]

    def replace(now: str, *_: Any) -> None:
        if now == stage and others:
            oocpr.import_graph(others.pop(), tmp_path / "g", overwrite=True)

    with pytest.raises(ReplacedError, match=match):
        oocpr.append(old, more, tmp_path / path, client=client, overwrite=True, progress=replace)
    assert oocpr.open_graph(tmp_path / "g").info()["source"] == "other"
    assert sorted(found.name for found in tmp_path.iterdir()) == ["g", "other.txt"]


def test_a_worker_that_cannot_see_the_graph_is_named(client, tmp_path, monkeypatch):
    lines = write_lines(tmp_path / "ids.txt", *IDS[:, :900])
    old = oocpr.import_graph(lines, tmp_path / "g")
    monkeypatch.setattr(GraphStore, "shared_path", "/proc/self/fd/none.zarr")
    with pytest.raises(
        SetupError, match=r"worker tcp://\S+ cannot open the graph at /proc/self/fd/none\.zarr"
    ):
        oocpr.append(old, lines, tmp_path / "new", client=client)


@pytest.mark.long
# Last, since the cluster needs a while to replace the workers.
@pytest.mark.parametrize("stage", ["reading", "sorting", "writing"])
def test_workers_that_are_killed_while_edges_are_added_change_no_byte(client, tmp_path, monkeypatch, stage):
    monkeypatch.setattr(dask_import, "CHECK_INTERVAL", 0.5)
    first, more = Rmat(14, 4), write_lines(tmp_path / "edges.txt", *IDS)
    old = oocpr.import_graph(first, tmp_path / "old")
    oocpr.append(old, more, tmp_path / "own")
    scaled(client, 2)
    before = set(client.run(os.getpid).values())
    oocpr.append(old, more, tmp_path / "theirs", client=client, progress=killing(client, stage))
    assert contents(tmp_path / "theirs") == contents(tmp_path / "own")
    assert set(client.run(os.getpid).values()) != before
