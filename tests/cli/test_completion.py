"""Shells are told how words may go on: commands, options, values and files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from oocpr.cli import options
from oocpr.engine.cuda.baselines import KERNELS
from oocpr.engine.number_formats import READS
from oocpr.engine.settings import METHODS
from oocpr.sources.registry import FORMATS
from oocpr.sources.wu import SHAPES


def completed(words: str) -> list[str]:
    """What Bash is told of the last word."""
    asked = {
        "_OOCPR_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-m", "oocpr"], env=os.environ | asked, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("oocpr ra", ["plain,rank"]),
        ("oocpr rank --meth", ["plain,--method"]),
        ("oocpr rank web.zarr --method c", ["plain,components", "plain,cpms2", "plain,cpms4"]),
        ("oocpr import --order b", ["plain,bfs"]),
        ("oocpr rank web.zarr --stop ", ["plain,certified", "plain,residual"]),
        ("oocpr rank web.zarr --device cuda:", ["plain,cuda:0", "plain,cuda:all"]),
        ("oocpr import links --format csv", ["plain,csv", "plain,csv_names"]),
        ("oocpr append web.zarr links --format b", ["plain,bvgraph"]),
        ("oocpr generate wu --like s", ["plain,su", "plain,su+ucb"]),
        ("oocpr rank we", ["file,we"]),
        ("oocpr import links.txt -o li", ["file,li"]),
        ("oocpr top ranks.parquet -k ", []),
    ],
)
def test_words_that_are_begun(words: str, expected: list[str]) -> None:
    assert completed(words) == expected


def test_values_are_those_that_there_are() -> None:
    assert ("auto", *METHODS) == options.METHODS
    assert set(options.READS) == set(READS)
    assert set(options.KERNELS) == {"balanced", *KERNELS}
    assert options.FORMATS.split(", ") == [*FORMATS]
    assert (*SHAPES,) == options.SHAPES


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no Bash")
def test_bash_completes_by_it(tmp_path: Path) -> None:
    (tmp_path / "web.zarr").mkdir()
    program = tmp_path / "oocpr"
    program.write_text(f"#!/bin/sh\nexec '{sys.executable}' -m oocpr \"$@\"\n")
    program.chmod(0o755)
    script = """
    eval "$(_OOCPR_COMPLETE=bash_source oocpr)"
    COMP_WORDS=(oocpr rank --dang) COMP_CWORD=2
    _oocpr_completion oocpr
    echo "${COMPREPLY[@]}"
    """
    # Loaded by hand, since only shells that somebody sits at complete.
    path = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script],
        env=os.environ | path,
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.stdout == "--dangling\n", done.stderr
