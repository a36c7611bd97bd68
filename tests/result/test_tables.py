"""Ranks as tables of other libraries, and the rank of a node."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from oocpr.errors import SetupError
from oocpr.result import rank_files
from oocpr.result.rank_files import read_ranks
from oocpr.result.ranks import Ranks

from .test_rank_files import LABELS, NAMES, VALUES

if TYPE_CHECKING:
    from oocpr.result.names import Name
    from oocpr.result.ranks import Report


@pytest.fixture(params=["memory", "parquet", "csv", "zarr"])
def held(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Ranks where they are after a run, or in a file."""

    def make(ranks: Ranks) -> Ranks:
        if request.param == "memory":
            return ranks
        path = tmp_path / f"ranks.{request.param}"
        getattr(ranks, f"to_{request.param}")(path)
        return read_ranks(path)

    return make


def taken_by_duckdb(ranks: Ranks) -> list[tuple[Name, float]]:
    return duckdb.sql("select node, rank from ranks").fetchall()


TAKEN = {
    "to_arrow": lambda ranks: ranks.to_arrow(),
    "to_pandas": lambda ranks: pa.table(ranks.to_pandas()),
    "to_polars": lambda ranks: ranks.to_polars().to_arrow(),
    "pyarrow": pa.table,
    "polars": lambda ranks: pl.DataFrame(ranks).to_arrow(),
    "pandas": lambda ranks: pa.table(pd.DataFrame.from_arrow(ranks)),
}


@pytest.mark.parametrize("kind", NAMES)
def test_tables_have_every_node_and_every_bit(kind: str, held: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_files, "_ROWS", 2)
    ranks = held(Ranks(VALUES, NAMES[kind]))
    nodes = NAMES[kind].take(np.arange(5))
    for take in TAKEN.values():
        table = take(ranks)
        assert table.column_names == ["node", "rank"]
        assert table["node"].to_pylist() == nodes
        assert table["rank"].to_numpy().tobytes() == VALUES.tobytes()
    assert taken_by_duckdb(ranks) == list(zip(nodes, VALUES, strict=True))


def test_ranks_in_memory_are_not_copied() -> None:
    ranks = Ranks(VALUES, NAMES["ids"])
    assert pa.table(ranks)["rank"].chunk(0).buffers()[1].address == VALUES.ctypes.data
    assert pl.DataFrame(ranks)["rank"].to_numpy().ctypes.data == VALUES.ctypes.data


@pytest.mark.parametrize("kind", NAMES)
def test_the_rank_of_a_node(kind: str, held: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = held(Ranks(VALUES, NAMES[kind]))
    expected = dict(zip(NAMES[kind].take(np.arange(5)), VALUES.tolist(), strict=True))
    assert {node: ranks[node] for node in expected} == expected
    assert dict(ranks.top(10)) == expected
    assert len(ranks) == 5
    for unknown in ("nobody", 17, 2**70, -1, None, 1.5, ("a",)):
        with pytest.raises(KeyError):
            ranks[unknown]


def test_ranks_are_no_sequence() -> None:
    with pytest.raises(TypeError, match="not iterable"):
        list(Ranks(VALUES, NAMES["rows"]))


def test_passes(run: Report) -> None:
    assert Ranks(VALUES, NAMES["rows"], run=run).passes == run.passes
    assert Ranks(VALUES, NAMES["rows"]).passes is None


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_library_that_is_missing_is_named(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(SetupError, match=library) as caught:
        getattr(Ranks(VALUES, LABELS), f"to_{library}")()
    assert caught.value.remedy == f"Install it: pip install {library}."
