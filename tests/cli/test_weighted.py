"""Stores of weighted graphs at the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import oocpr

from ..engine.digraphs import random_digraph
from ..engine.weighted import WeightedGraph, weigh
from ..store.damage import flip_bits

if TYPE_CHECKING:
    Run = Callable[..., Any]


@pytest.fixture
def graph() -> WeightedGraph:
    return weigh(random_digraph(200, 900, 3), 1, "reals")


@pytest.fixture
def store(graph: WeightedGraph, tmp_path: Path) -> Path:
    graph.write(tmp_path / "g.zarr", 200)
    return tmp_path / "g.zarr"


def test_info_tells_weights_and_counts_their_bytes(oocpr_command: Run, store: Path) -> None:
    facts = json.loads(oocpr_command("info", store, "--json", "-").out)
    assert facts["weighted"] is True
    tiles = [*store.glob("in_edges/indices/c/*"), *store.glob("in_edges/data/c/*")]
    encoded = sum(chunk.stat().st_size - 4 for chunk in tiles)
    assert facts["bytes_per_edge"] * facts["edges"] == pytest.approx(encoded)
    assert facts["arrays"].keys() >= {"in_edges/data", "out_weight"}
    told = oocpr_command("info", store).out
    assert "weighted" in told
    assert "without out-edges of any weight" in told


@pytest.mark.long
def test_a_run_uses_the_weights_and_verifies(
    oocpr_command: Run, store: Path, graph: WeightedGraph, tmp_path: Path
) -> None:
    outcome = oocpr_command("rank", store, "-o", tmp_path / "r.parquet", "--json", "-")
    told = json.loads(outcome.out)
    assert outcome.code == 0
    assert told["method"] == "mixed"
    ranks = oocpr.read_ranks(tmp_path / "r.parquet").to_numpy()
    assert np.abs(ranks - graph.exact_ranks(0.85)).sum() <= told["error_bound"]
    assert (
        json.loads(oocpr_command("info", store, "--json", "-").out)["bytes_per_edge"]
        == told["bytes_per_edge"]
    )
    verified = oocpr_command("verify", store, tmp_path / "r.parquet", "--json", "-")
    assert verified.code == 0
    assert json.loads(verified.out)["bound"] <= 1e-9


def test_plan_says_that_it_is_of_a_weighted_graph(oocpr_command: Run, store: Path) -> None:
    made = json.loads(oocpr_command("plan", store, "--json", "-").out)
    assert (made["weighted"], made["method"]) == (True, "mixed")
    assert "edges, weighted" in oocpr_command("plan", store).out


def test_what_takes_no_weights_is_refused_before_it_starts(fails: Run, store: Path) -> None:
    for words in (("rank", store), ("plan", store)):
        assert "weighted, which method components" in fails(2, *words, "--method", "components")
    told = fails(2, "rank", store, "--device", "cuda", "--kernel", "ell")
    assert told == "the graph is weighted, which kernel ell does not take."


@pytest.mark.parametrize("device", ["cuda:99", "cuda:0,cuda:99"])
@pytest.mark.parametrize("command", ["rank", "plan"])
def test_a_device_is_asked_for_as_it_is_without_weights(
    fails: Run, store: Path, graph: WeightedGraph, tmp_path: Path, command: str, device: str
) -> None:
    oocpr.import_graph((graph.src, graph.dst), tmp_path / "bare.zarr")
    code = 2 if find_spec("cupy") else 8
    told = [fails(code, command, found, "--device", device) for found in (store, tmp_path / "bare.zarr")]
    assert told[0] == told[1]
    assert "device cuda:" in told[0]


def test_device_auto_takes_what_there_is(oocpr_command: Run, store: Path) -> None:
    assert oocpr_command("rank", store, "--device", "auto", "--top", 1).code == 0


def test_damaged_weights_are_a_damaged_store(fails: Run, store: Path) -> None:
    flip_bits(store / "in_edges/data/c/1", 40, 4)
    assert "in_edges/data/c/1" in fails(5, "rank", store)


def test_a_missing_sum_of_weights_is_a_damaged_store(fails: Run, store: Path) -> None:
    (store / "out_weight/c/0").unlink()
    assert "out_weight" in fails(5, "rank", store)
