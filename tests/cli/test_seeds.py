"""Many seeds on the command line."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from pyarrow.csv import read_csv

import oocpr
from oocpr.cli import main


@pytest.fixture
def files(tmp_path):
    path = tmp_path / "site.zarr"
    oocpr.import_graph((np.array([0, 0, 1, 2, 2, 4]), np.array([1, 2, 0, 0, 3, 1])), path)
    (tmp_path / "seeds.txt").write_text("home 0\nblog 1 2\nblog 2\n")
    return path, tmp_path / "seeds.txt"


def run(capsys, *words):
    code = main([str(word) for word in words])
    return code, *capsys.readouterr()


def test_lists_are_printed_for_each_seed(files, capsys):
    graph, seeds = files
    code, out, err = run(capsys, "rank", graph, "--seeds", seeds, "--top", 2)
    lines = out.splitlines()
    assert code == 0
    assert [line for line in lines if not line.startswith(" ")] == ["home", "blog"]
    assert len(lines) == 6
    assert "2 seeds, certified L1 error <=" in err
    top = oocpr.pagerank(graph, seeds=seeds, top=2).top()
    assert [int(line.split()[2]) for line in lines if line.startswith(" ")] == [
        node for each in top for node, _ in each
    ]


def test_tabs_separate_where_there_are_some(files, tmp_path):
    graph, _ = files
    (tmp_path / "seeds.tsv").write_text("my home\t0\nmy home\t 1\t2\n")
    ranks = oocpr.pagerank(graph, seeds=tmp_path / "seeds.tsv", top=5)
    assert ranks.seeds == ["my home"]
    assert ranks.top() == oocpr.pagerank(graph, personalization=[{0: 1, 1: 2}], top=5).top()


def test_files_are_written(files, tmp_path, capsys):
    graph, seeds = files
    expected = oocpr.pagerank(graph, seeds=seeds, top=3).to_pandas()
    for name in ("r.parquet", "r.csv"):
        words = ("--top", 3, "-o", tmp_path / name, "--json", tmp_path / "run.json")
        assert run(capsys, "rank", graph, "--seeds", seeds, *words)[:2] == (0, "")
    assert pd.read_parquet(tmp_path / "r.parquet").equals(expected)
    assert read_csv(tmp_path / "r.csv").to_pandas().equals(expected)
    assert [seed["seed"] for seed in json.loads((tmp_path / "run.json").read_text())["seeds"]] == [
        "home",
        "blog",
    ]


def test_seeds_that_do_not_converge_end_with_their_exit_code(files, capsys):
    graph, seeds = files
    code, out, err = run(capsys, "rank", graph, "--seeds", seeds, "--max-passes", 1, "--json", "-")
    assert code == 3
    assert "of 2 seeds have not converged after 1 pass" in err
    assert not json.loads(out)["converged"]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--sort", "rank"], "by seed and rank"),
        (["-o", "R.zarr"], "by seed and rank"),
        (["-o", "-", "--json", "-"], "both want standard output"),
        (
            ["--stripes", "2"],
            "2 stripes were asked for and the graph has 1 tiles.\nremedy: Leave --stripes out.\n",
        ),
        (["--start", "r.parquet"], "take no --start.\nremedy: Leave --start out, or rank one"),
        (["--checkpoint", "kept"], "take no --checkpoint.\nremedy: Leave --checkpoint out"),
        (["--time-limit", "3h"], "take no --time-limit.\nremedy: Leave --time-limit out"),
        pytest.param(
            ["--workers", "1"],
            "take no --workers and --scheduler.\nremedy: Leave --workers and --scheduler out",
            marks=pytest.mark.long,
        ),
    ],
)
def test_what_does_not_go_with_seeds_is_refused(files, tmp_path, monkeypatch, capsys, words, problem):
    monkeypatch.chdir(tmp_path)
    graph, seeds = files
    code, _, err = run(capsys, "rank", graph, "--seeds", seeds, *words)
    assert code == 2
    assert problem in err


def test_the_file_of_seeds_is_not_overwritten(files, tmp_path, capsys):
    graph, _ = files
    seeds = tmp_path / "seeds.csv"
    seeds.write_text("home 0\n")
    assert run(capsys, "rank", graph, "--seeds", seeds, "-o", seeds)[0] == 2
    assert seeds.read_text() == "home 0\n"
