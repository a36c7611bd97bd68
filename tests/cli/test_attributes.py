"""Attributes of nodes on the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import oocpr

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Run = Callable[..., Any]

MIB = 2**20


@pytest.fixture
def sources(tmp_path: Path) -> tuple[Path, Path]:
    """A graph of pages, and what is known of them."""
    (tmp_path / "links.tsv").write_text("home\tabout\nabout\thome\nblog\thome\n")
    (tmp_path / "pages.csv").write_text("page,words,kind\nhome,120,start\nblog,,\ngone,7,lost\n")
    return tmp_path / "links.tsv", tmp_path / "pages.csv"


def test_from_a_table_to_the_answers(oocpr_command: Run, sources: tuple[Path, Path], tmp_path: Path) -> None:
    links, pages = sources
    store, ranks = tmp_path / "g.zarr", tmp_path / "ranks.parquet"
    how = ("import", links, "--format", "names", "-o", store, "--nodes", pages, "--node-column", "page")
    answer = oocpr_command(*how)
    assert answer.code == 0
    assert answer.err == f"note: {pages}: 1 row left out, of nodes that the graph does not have.\n"
    described = oocpr_command("info", store).out.splitlines()
    assert ["attributes", "words (int64), kind (text)"] in [line.split(maxsplit=1) for line in described]
    facts = json.loads(oocpr_command("info", store, "--json", "-").out)
    assert facts["attributes"] == {"words": "int64", "kind": "text"}

    answer = oocpr_command("rank", store, "--attributes", "kind,words", "--top", "2", "-o", ranks)
    assert answer.code == 0
    first, second, _ = answer.out.splitlines()
    assert first.split() == ["1", first.split()[1], "home", "kind:", "start", "words:", "120"]
    assert second.endswith("  about")
    assert oocpr_command("top", ranks, "-k", 2, "--attributes", "all").out == f"{first}\n{second}\n"
    told = json.loads(oocpr_command("top", ranks, "--attributes", "words", "--json", "-").out)
    assert [entry["attributes"] for entry in told["top"]] == [
        {"words": 120},
        {"words": None},
        {"words": None},
    ]

    lines = oocpr_command("rank", store, "--attributes", "all", "-o", "-").out.splitlines()
    assert [line.split(",")[2:] for line in lines] == [
        ["words", "kind"],
        ["120", '"start"'],
        ["", '""'],
        ["", '""'],
    ]


def test_mistakes_are_told_before_the_work(fails: Run, sources: tuple[Path, Path], tmp_path: Path) -> None:
    links, pages = sources
    store = tmp_path / "g.zarr"
    how = ("import", links, "--format", "names", "-o", store)
    assert "has no column of nodes; its columns are 'page', 'words', 'kind'" in fails(
        2, *how, "--nodes", pages
    )
    assert "no table" in fails(2, *how, "--node-column", "page")
    assert "is no .parquet or .csv file" in fails(2, *how, "--nodes", links)
    assert "cannot be read" in fails(2, *how, "--nodes", tmp_path / "none.csv")
    oocpr.import_graph(links, store, format="names", nodes=pages, node_column="page")
    assert "no attribute 'size'; there is words, kind" in fails(2, "rank", store, "--attributes", "size")
    both = ("--attributes", "all", "-o", tmp_path / "ranks.zarr")
    assert "cannot hold attributes" in fails(2, "rank", store, *both)


def test_a_graph_that_grows_says_that_it_loses_them(
    oocpr_command: Run, sources: tuple[Path, Path], tmp_path: Path
) -> None:
    links, pages = sources
    graph = oocpr.import_graph(links, tmp_path / "g.zarr", format="names", nodes=pages, node_column="page")
    made = oocpr_command("append", graph.path, links, "--format", "names", "-o", tmp_path / "h.zarr")
    assert made.code == 0
    assert f"note: The attributes of {graph.path} are not taken over: words, kind.\n" in made.err
    assert not oocpr.open_graph(tmp_path / "h.zarr").store.node_attributes.kinds


@pytest.mark.parametrize("attribute", ["words", "kind"])
def test_damaged_attributes_are_found(
    oocpr_command: Run, sources: tuple[Path, Path], tmp_path: Path, attribute: str
) -> None:
    links, pages = sources
    store = tmp_path / "g.zarr"
    oocpr.import_graph(links, store, format="names", nodes=pages, node_column="page")
    for path in sorted(store.joinpath("attributes", attribute).rglob("*")):
        if not path.is_file():
            continue
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        assert oocpr_command("rank", store, "--attributes", "all").code == 5, path
        path.write_bytes(whole)
    assert oocpr_command("rank", store, "--attributes", "all").code == 0


@pytest.mark.slow
def test_attributes_of_a_million_nodes_keep_to_the_memory(tmp_path: Path) -> None:
    nodes, memory = 1 << 20, 420
    rng = np.random.default_rng(1)
    order = rng.permutation(nodes)
    schema = pa.schema([("node", pa.int64()), ("score", pa.float64()), ("url", pa.string())])
    # In pieces: a child's peak of memory begins with what its parent holds.
    with pq.ParquetWriter(tmp_path / "nodes.parquet", schema) as writer:
        for piece in np.split(order, 64):
            urls = [f"https://example.org/{'p' * 200}{k}" for k in piece]
            writer.write_table(pa.table([piece, piece * 0.5, urls], schema=schema))
    np.save(tmp_path / "links.npy", np.stack([np.arange(nodes), rng.permutation(nodes)]))
    command = [sys.executable, "-m", "oocpr", "import", tmp_path / "links.npy", "--order", "degree"]
    command += ["--nodes", tmp_path / "nodes.parquet", "--memory", f"{memory}MiB", "-o", tmp_path / "g.zarr"]
    with subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    assert usage.ru_maxrss * 1024 <= memory * MIB
    store = oocpr.open_graph(tmp_path / "g.zarr").store
    rows = rng.integers(0, nodes, 1000)
    ids = store.ids(0, nodes)[rows]
    assert store.node_attributes.take("score", rows) == (ids * 0.5).tolist()
    assert store.node_attributes.take("url", rows) == [f"https://example.org/{'p' * 200}{k}" for k in ids]
