"""What callers may give, and what is refused with the name of the parameter."""

from __future__ import annotations

import inspect
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy.sparse import csr_array

import oocpr
from oocpr.api import as_graph
from oocpr.api.arguments import ImportOptions, RankOptions
from oocpr.errors import InputError, UsageError
from oocpr.result.node_vectors import node_weights

FRAME = pd.DataFrame({"from": [0, 1, 2, 2], "to": [1, 2, 0, 1]})
LONG = "x" * 300


@pytest.fixture(scope="module")
def graph() -> oocpr.Graph:
    return as_graph(FRAME)


def test_method_auto_is_one_that_takes_what_is_asked_for(graph: oocpr.Graph, tmp_path: Path) -> None:
    traced = {"trace": tmp_path / "trace.json"}
    asked: list[dict[str, Any]] = [{}, {"io": "buffered"}, traced]
    runs = [oocpr.pagerank(graph, **how).run for how in asked]
    assert [run.method for run in runs if run is not None] == ["components", "mixed", "mixed"]
    assert oocpr.plan(graph, io="buffered").method == "mixed"


WRONG = [
    *(("damping", value) for value in ("0.85", None, math.nan, 0, 1.0, -1, True, [0.85], 1j)),
    *(("tol", value) for value in ("1e-9", None, math.nan, math.inf, 0, -1)),
    *(("max_passes", value) for value in (0, -1, 1.5, "3", True)),
    *(("threads", value) for value in (0, -3, True, 2.5, "2", 10**6)),
    *(("stripes", value) for value in (0, -1, True, 1.5, "2")),
    *(("memory", value) for value in ("4", 4, -1, 0, 2.5, "4 parsecs", "9" * 5000, True, "", [1], b"1GiB")),
    *(("device_memory", value) for value in ("4", -1, "x")),
    *((name, value) for name in ("method", "stop", "dangling", "device", "io") for value in (None, 5, "x")),
    *((name, value) for name in ("reads", "kernel") for value in (5, ["float64"])),
    *(("client", value) for value in ("tcp://host:8786", 5, object())),
    *(("progress", value) for value in (5, "yes", [])),
    *(("predict", value) for value in ("yes", 1)),
    *(("trace", value) for value in (5, "", "\0", LONG)),
    *((name, "yes") for name in ("undirected", "reverse", "header")),
    *((name, 5) for name in ("format", "labels", "source_column", "target_column", "duplicates")),
    *(("weight", value) for value in (2.5, True, ["kg"])),
    *((name, 5) for name in ("dampng", "weigth")),
]

UNWEIGHTED = [
    *(
        5,
        True,
        b"x",
        object(),
        [],
        {},
        set(),
        (0, 1),
        [0],
        [[0, 1]],
        np.ones(2),
        np.ones((3, 1)),
        np.zeros(3),
    ),
    *({0: "x"}, {0: None}, {0: -1}, {0: math.nan}, {0: math.inf}, {0: 0}, {0: 10**400}, {"nobody": 1}),
    *([0.5, -0.5, 1.0], [0.5, "x", 1.0], np.array(["nobody"]), pd.Series([1.0, 1.0], index=["no", "body"])),
    *(pd.Series([-1.0]), FRAME, pd.DataFrame({"weight": [1.0]}), "no such file", "", "\0", LONG),
]


def refused(call: Any, name: str, *arguments: Any, **named: Any) -> None:
    """Call with an argument that cannot be, and look for the parameter's name in what it says."""
    with pytest.raises((UsageError, InputError)) as caught:
        call(*arguments, **named)
    error = caught.value
    assert name in f"{error.cause} {error.remedy}"
    assert error.remedy.endswith((".", "?"))
    assert len(error.cause) < 300


@pytest.mark.long
@pytest.mark.parametrize(("name", "value"), WRONG, ids=lambda value: repr(value)[:20])
def test_what_a_run_cannot_take_is_refused_by_name(graph: oocpr.Graph, name: str, value: Any) -> None:
    refused(oocpr.pagerank, name, graph, **{name: value})


@pytest.mark.parametrize("value", UNWEIGHTED, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("name", ["personalization", "start"])
def test_what_gives_no_weights_is_refused_by_name(graph: oocpr.Graph, name: str, value: Any) -> None:
    known = value if isinstance(value, str) and 0 < len(value) < 99 and value != "\0" else name
    refused(oocpr.pagerank, known, graph, **{name: value})


KEPT = [
    *(("checkpoint", value) for value in (5, True, b"x", [], {}, object(), np.ones(2), csr_array(np.eye(2)))),
    *(("checkpoint", value) for value in ("", "\0", LONG, Path(LONG))),
    *(("time_limit", value) for value in (True, b"4h", [], np.ones(2), csr_array(np.eye(2)), 1j, object())),
    *(("time_limit", value) for value in ("", "4 fortnights", 0, -1.0, math.nan, math.inf, 10**400)),
]


@pytest.mark.parametrize("name", ["checkpoint", "time_limit"])
def test_what_keeps_no_run_is_refused_by_name(graph: oocpr.Graph, tmp_path: Path, name: str) -> None:
    for parameter, value in KEPT:
        if parameter == name:
            refused(oocpr.pagerank, f"{name} is ", graph, **{"checkpoint": tmp_path / "kept", name: value})
    assert not list(tmp_path.iterdir())


def test_a_plan_has_an_fpga_or_none(graph: oocpr.Graph) -> None:
    for value in ("no", 0, None, np.ones(2), csr_array(np.eye(2))):
        refused(oocpr.plan, "fpga is ", graph, fpga=value)


def test_a_stored_graph_is_no_source_of_edges(graph: oocpr.Graph, tmp_path: Path) -> None:
    for call, first in ((oocpr.import_graph, []), (oocpr.append, [graph])):
        with pytest.raises(
            UsageError, match=r"^source is Graph\(3 nodes, .*\), which is stored already\. Give "
        ):
            call(*first, graph, tmp_path / "g.zarr")
    assert not list(tmp_path.iterdir())


NO_STORE = (FRAME, None, 5, b"x", [], {}, (np.array([0]), np.array([1])), object())


@pytest.mark.long
@pytest.mark.parametrize("value", [*NO_STORE, "", "\0", LONG], ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("call", ["plan", "verify", "append", "open_graph", "read_ranks"])
def test_what_is_no_store_is_refused_by_name(graph: oocpr.Graph, call: str, value: Any) -> None:
    more = {"verify": [oocpr.pagerank(graph)], "append": [FRAME, "new.zarr"]}.get(call, [])
    name = "path" if call in ("open_graph", "read_ranks") else "graph"
    refused(getattr(oocpr, call), name, value, *more)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("path", value) for value in (None, 5, "", b"x", "\0", LONG)),
        *(("memory", value) for value in (None, "4", -1)),
        *(("order", value) for value in (None, 5)),
        *((name, 5) for name in ("tmp", "on_message", "progress", "client", "device")),
        *((name, "yes") for name in ("overwrite", "resume")),
        *(("weight", 3.5), ("duplicates", "mean"), ("overwrit", True)),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_what_an_import_cannot_take_is_refused_by_name(tmp_path: Path, name: str, value: Any) -> None:
    refused(oocpr.import_graph, name, FRAME, **{"path": tmp_path / "g.zarr", name: value})
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_other_calls_refuse_by_name(graph: oocpr.Graph) -> None:
    ranks = oocpr.pagerank(graph)
    for k in (-1, 2.5, True, None, "3"):
        refused(ranks.top, "k is", k)
    for write in (ranks.to_parquet, ranks.to_csv, ranks.to_zarr):
        for path in (5, None, ""):
            refused(write, "path", path)
    for value in (None, 5, [0.5], FRAME):
        refused(oocpr.verify, "ranks", graph, value)
    for damping in (0, 1, "x", math.nan):
        refused(oocpr.verify, "damping", graph, ranks, damping=damping)
    refused(oocpr.verify, "dangling", graph, ranks, dangling="x")
    refused(oocpr.verify, "personalization", graph, ranks, personalization=[5])
    refused(oocpr.append, "duplicates", graph, FRAME, "new.zarr", duplicates=5)


def test_a_near_name_is_offered(graph: oocpr.Graph) -> None:
    with pytest.raises(UsageError, match=r"pagerank has no parameter 'dampng'\. Did you mean damping\?"):
        oocpr.pagerank(graph, **{"dampng": 0.9})
    with pytest.raises(UsageError, match=r"has no parameter 'weigth'\. Did you mean weight\?"):
        oocpr.import_graph(FRAME, "new.zarr", **{"weigth": "kg"})


NAMED = pa.table({"from": ["a", "b", "c", "c"], "to": ["b", "c", "a", "b"]})
WAYS = [
    {"a": 3, "b": 1.0},
    pd.Series({"a": 3.0, "b": 1.0}),
    pd.DataFrame({"weight": [3, 1], "node": ["a", "b"]}),
    pa.table({"page": ["a", "b", "a"], "clicks": [1, 1, 2]}),
    ["a", "b", "a", "a"],
    np.array(["a", "a", "b", "a"]),
    pd.Series(["a", "b", "a", "a"]),
    np.array([3.0, 1.0, 0.0]),
    [3.0, 1.0, 0.0],
]


@pytest.mark.parametrize("given", WAYS, ids=lambda value: type(value).__name__)
def test_weights_of_nodes_are_taken_in_every_form(given: Any) -> None:
    graph = as_graph(NAMED)
    expected = oocpr.pagerank(graph, personalization={"a": 0.75, "b": 0.25}).to_numpy()
    found = oocpr.pagerank(graph, personalization=given, start=given)
    assert np.abs(found.to_numpy() - expected).sum() <= 2e-10
    assert oocpr.verify(graph, found, personalization=given).bound <= 1.01e-10


def test_sets_and_columns_of_polars_hold_nodes_that_count_alike() -> None:
    polars = pytest.importorskip("polars")
    expected = (["a", "b"], [1.0, 1.0])
    for given in ({"a", "b"}, polars.Series(["a", "b"]), polars.DataFrame({"node": ["a", "b"]})):
        names, weights = node_weights(given, "start")
        assert (sorted(map(str, names or [])), weights.tolist()) == expected


@pytest.mark.parametrize("held", [pa.array, lambda values: pa.chunked_array([values[:1], values[1:]])])
def test_columns_of_arrow_hold_weights_or_nodes(held: Any) -> None:
    names, weights = node_weights(held([0.25, 0.5]), "start")
    assert (names, weights.tolist()) == (None, [0.25, 0.5])
    names, weights = node_weights(held(["a", "b"]), "start")
    assert (names, weights.tolist()) == (["a", "b"], [1.0, 1.0])


def test_sums_of_duckdb_which_are_decimals_are_weights() -> None:
    duckdb = pytest.importorskip("duckdb")
    rows = duckdb.sql("from (values ('a', 1), ('b', 1), ('a', 2)) t(page, clicks)")
    names, weights = node_weights(rows.sum("clicks", groups="page", projected_columns="page"), "start")
    assert dict(zip(names or [], weights.tolist(), strict=True)) == {"a": 3.0, "b": 1.0}


def test_a_table_whose_nodes_are_lists_is_refused() -> None:
    with pytest.raises(UsageError, match=r"start is a table whose column 'node' holds list<.*int64>\. Give"):
        node_weights(pa.table({"node": [[0], [1]], "weight": [1.0, 2.0]}), "start")


@pytest.mark.parametrize("nodes", [[1, "a"], [1, 2**70], [1, object()]])
def test_a_frame_that_arrow_cannot_take_is_refused_with_the_reason(nodes: list[object]) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"node": nodes, "weight": [1.0, 2.0]})
    with pytest.raises(UsageError, match=r"^start cannot be taken as a table of Arrow: [^(].*\. Give"):
        node_weights(frame, "start")
    repeated = pandas.DataFrame([["a", 1.0, 2.0]], columns=["node", "weight", "weight"])
    with pytest.raises(UsageError, match="Duplicate column names"):
        node_weights(repeated, "start")


def test_sums_beyond_float64_are_weights_still() -> None:
    graph = as_graph(NAMED)
    huge = oocpr.pagerank(graph, personalization={"a": 1.7e308, "b": 1.7e308}).to_numpy()
    assert np.array_equal(huge, oocpr.pagerank(graph, personalization=["a", "b"]).to_numpy())


def test_progress_is_shown_told_or_silent(capfd: pytest.CaptureFixture[str]) -> None:
    told: list[str] = []
    for progress in (None, False, lambda stage, *_: told.append(stage)):
        oocpr.pagerank(FRAME, progress=progress)
    assert "reading" in told
    assert capfd.readouterr().err == ""


def test_true_shows_progress_on_standard_error(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oocpr.progress._PLAIN_SECONDS", -1.0)
    with tempfile.TemporaryDirectory() as folder:
        oocpr.import_graph(FRAME, f"{folder}/g.zarr", progress=True)
    answer = capfd.readouterr()
    assert answer.out == ""
    assert "writing 100 %" in answer.err


def test_type_checkers_know_the_parameters_of_pagerank() -> None:
    # Overloads tell what is returned by two of them, and take the others from a TypedDict.
    known = inspect.signature(inspect.unwrap(oocpr.pagerank)).parameters
    named = {name for name, one in known.items() if one.kind is one.KEYWORD_ONLY}
    of_import = ImportOptions.__required_keys__ | ImportOptions.__optional_keys__
    assert RankOptions.__optional_keys__ - of_import == named - {"personalization", "seeds"}
