"""Commands whose work is done by Dask workers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pytest
from distributed import LocalCluster

import oocpr

from ..store.damage import flip_bits
from .conftest import contents

if TYPE_CHECKING:
    Run = Callable[..., Any]


@pytest.fixture
def links(tmp_path: Path) -> Path:
    path = tmp_path / "links.txt"
    np.savetxt(path, np.random.default_rng(3).integers(0, 900, (9000, 2)), "%d")
    return path


@pytest.mark.long
def test_workers_import_and_add_to_the_same_store(oocpr_command: Run, links: Path, tmp_path: Path) -> None:
    with LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=":0") as cluster:
        for name, words in (
            ("own", ()),
            ("started", ("--workers", 1)),
            ("found", ("--scheduler", cluster.scheduler_address)),
        ):
            answer = oocpr_command(
                "import", links, "-o", tmp_path / f"{name}.zarr", "--order", "degree", *words
            )
            assert (answer.code, answer.err) == (0, "")
            assert answer.out.startswith(f"{tmp_path / name}.zarr: 900 nodes, ")
    own = contents(tmp_path / "own.zarr")
    assert contents(tmp_path / "started.zarr") == contents(tmp_path / "found.zarr") == own


@pytest.mark.long
def test_workers_rank_to_the_same_bits(oocpr_command: Run, links: Path, tmp_path: Path) -> None:
    store = tmp_path / "g.zarr"
    assert oocpr_command("import", links, "-o", store).code == 0
    own, theirs = (
        oocpr_command("rank", store, "--method", "mixed", "--stripes", 2, "-o", "-", *words)
        for words in ((), ("--workers", 2))
    )
    assert (theirs.code, theirs.out) == (own.code, own.out) == (0, own.out)
    assert theirs.out.count("\n") == 901


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "why"),
    [("components", "method components ranks on one"), ("mixed", r"--stripes takes up to \d+")],
)
def test_workers_without_work_are_told_of(oocpr_command: Run, links: Path, method: str, why: str) -> None:
    words = ("rank", links, "--workers", 2, "--top", 1, "--method", method, "--json", "-")
    fewer = () if method == "components" else ("--stripes", 1)
    answer = oocpr_command(*words, *fewer)
    assert answer.code == 0
    assert re.search(rf"^note: 1 of 2 workers had nothing to do; {why}\.$", answer.err, re.MULTILINE)
    assert json.loads(answer.out)["workers"] == 1
    if method == "mixed":
        # By itself, a run has a stripe for each.
        answer = oocpr_command(*words)
        assert "note: " not in answer.err
        assert json.loads(answer.out)["workers"] == 2


@pytest.mark.slow
def test_workers_generate_and_add_to_the_same_store(oocpr_command: Run, links: Path, tmp_path: Path) -> None:
    for name, words in (("own", ()), ("theirs", ("--workers", 2))):
        made, more = tmp_path / f"{name}-made.zarr", tmp_path / name
        more.mkdir()
        assert oocpr_command("generate", "rmat", "--scale", 12, "-o", made, *words).code == 0
        assert oocpr_command("import", links, "-o", more / "old.zarr").code == 0
        answer = oocpr_command("append", more / "old.zarr", links, "-o", more / "new.zarr", *words)
        assert (answer.code, "tiles of" in answer.err) == (0, name == "own")
    assert contents(tmp_path / "own-made.zarr") == contents(tmp_path / "theirs-made.zarr")
    assert contents(tmp_path / "own") == contents(tmp_path / "theirs")


@pytest.mark.long
def test_workers_refuse_to_add_to_a_damaged_graph(fails: Run, links: Path, tmp_path: Path) -> None:
    oocpr.import_graph(links, tmp_path / "old.zarr")
    flip_bits(tmp_path / "old.zarr" / "in_edges" / "indices" / "c" / "0", 50)
    before = sorted(tmp_path.iterdir())
    told = fails(5, "append", tmp_path / "old.zarr", links, "-o", tmp_path / "new.zarr", "--workers", 1)
    assert "indices/c/0" in told
    assert sorted(tmp_path.iterdir()) == before


def test_workers_that_cannot_be_are_refused(fails: Run, links: Path, tmp_path: Path) -> None:
    words = ("import", links, "-o", tmp_path / "g.zarr")
    both = fails(2, *words, "--workers", 2, "--scheduler", "tcp://127.0.0.1:1")
    assert "those of a scheduler" in both
    assert "answers at nowhere://a" in fails(2, *words, "--scheduler", "nowhere://a")


@pytest.mark.slow
def test_a_scheduler_that_is_not_there_is_waited_for_ten_seconds(
    fails: Run, links: Path, tmp_path: Path
) -> None:
    begun = time.monotonic()
    told = fails(2, "import", links, "-o", tmp_path / "g.zarr", "--scheduler", "tcp://127.0.0.1:1")
    assert "No Dask scheduler answers at tcp://127.0.0.1:1" in told
    assert time.monotonic() - begun < 30


@pytest.mark.parametrize("stage", ["starting", pytest.param("reading", marks=pytest.mark.slow)])
def test_an_interruption_of_all_processes_is_told_in_two_lines(
    process: Run, tmp_path: Path, stage: str
) -> None:
    words = ("import", "-", "-o", tmp_path / "g.zarr", "--workers", 2)
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    # A group of its own, as a terminal has one: all processes in it see Ctrl-C.
    done = process(*words, start_new_session=True, **pipes)
    if stage == "reading":
        done.stdin.write(b"1 2\n" * 100_000)  # more than a pipe holds
    else:
        found = psutil.Process(done.pid)
        begun = time.monotonic()
        while not any("spawn_main" in " ".join(child.cmdline()) for child in found.children()):
            assert time.monotonic() - begun < 60, "no worker was started"
            time.sleep(0.01)
    os.killpg(done.pid, signal.SIGINT)
    out, err = done.communicate(timeout=60)
    assert (done.returncode, out) == (130, b"")
    assert err.decode().splitlines() == [
        "error: interrupted.",
        "remedy: Nothing half-written is left; run it again.",
    ]
    assert list(tmp_path.iterdir()) == []
