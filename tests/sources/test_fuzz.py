"""Damaged files of every format end in an answer that another reader confirms, or in a documented error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from oocpr.sources import FORMATS as READ

from .fuzzing import FORMATS, MEMORY

ROOT = Path(__file__).parents[2]


def tried(tmp_path, name, first, count, **environment):
    """How mutations of a format ended, in a process of their own, which cannot take others along."""
    for folder in ("files", "tmp"):
        (tmp_path / folder).mkdir()
    words = [sys.executable, "-m", "tests.sources.fuzzing", name, first, count, tmp_path / "files"]
    environment |= {"TMPDIR": str(tmp_path / "tmp")}
    run = subprocess.run(
        list(map(str, words)),
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    number = (tmp_path / "files" / "number").read_text() if run.returncode else "none"
    assert run.returncode == 0, f"{name}, mutation {number}: {run.stderr[-3000:]}"
    answer = json.loads(run.stdout.splitlines()[-1])
    assert answer["wrong"] == 0, run.stderr[-3000:]
    assert answer["peak"] <= MEMORY
    assert sum(answer["outcomes"].values()) == count
    return answer["outcomes"]


def test_every_format_of_files_is_damaged():
    assert set(READ) <= set(FORMATS)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if "." in name else ()) for name in FORMATS]
)
def test_a_damaged_file_is_read_as_others_do_or_refused(tmp_path, name):
    assert tried(tmp_path, name, 0, 8).keys() >= {"2"}


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_a_thousand_damaged_files(tmp_path, name):
    assert tried(tmp_path, name, 20, 1000).keys() >= {"0", "2"}


@pytest.mark.long
@pytest.mark.parametrize("name", ["bvgraph", "csv", "matrixmarket", "names"])
def test_compiled_loops_keep_to_their_arrays(tmp_path, name):
    kept = os.environ.get("NUMBA_CACHE_DIR", str(tmp_path))
    tried(tmp_path, name, 0, 20, NUMBA_BOUNDSCHECK="1", NUMBA_CACHE_DIR=f"{kept}-checked")
