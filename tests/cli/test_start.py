"""A process imports what its command needs: imports are most of the time that a small graph takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import oocpr

LIBRARIES = ("cupy", "dask", "distributed", "networkx", "pandas", "pyarrow", "scipy.linalg", "scipy.sparse")
"""What a run on processors has no use for."""

COMPILING = ("numba.np.arraymath", "numba.np.arrayobj", "numba.cpython.unicode")
"""Modules that numba takes to compile, and not to load what is compiled."""

PARTS = ("oocpr.engine.cuda.baselines", "oocpr.engine.cuda.spmv", "oocpr.engine.executors.dask")

PROGRAM = """
import json, sys
from oocpr.cli import main
code = main(sys.argv[1:])
print(json.dumps(sorted(sys.modules)), file=sys.stderr)
sys.exit(code)
"""


def imported(of: tuple[str, ...], *words: object) -> set[str]:
    """Which modules of some libraries a process has imported by the end of a command."""
    command = [sys.executable, "-c", PROGRAM, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: list[str] = json.loads(done.stderr.splitlines()[-1])
    return {name for name in found if any(f"{name}.".startswith(f"{part}.") for part in of)}


def test_help() -> None:
    assert not imported((*LIBRARIES, "numba", "numpy", "scipy", "zarr"), "rank", "--help")


@pytest.mark.parametrize("method", ["components", "mixed"])
def test_a_run_on_a_store(method: str, tmp_path: Path) -> None:
    path = tmp_path / "g.zarr"
    oocpr.import_graph(([0, 1, 2], [1, 2, 1]), path)
    command = ("rank", path, "--method", method)
    imported((), *command)  # the first time it may have to compile
    assert not imported(
        (*LIBRARIES, *PARTS, *COMPILING, "oocpr.sources.formats", "oocpr.ingest.build"), *command
    )


def test_a_run_on_a_source(data: Path) -> None:
    command = ("rank", data / "debian-bookworm-deps.txt.gz")
    imported((), *command)
    assert not imported((*LIBRARIES, *PARTS, *COMPILING), *command)


def test_a_run_on_a_processor_leaves_cupy_to_who_asks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "libraries" / "cupy"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("ndarray = float\n")
    (package / "random.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(package.parent), prepend=os.pathsep)
    path = tmp_path / "g.zarr"
    oocpr.import_graph(([0, 1, 2], [1, 2, 1]), path)
    assert not imported(("cupy",), "rank", path)
    program = (
        "import sys, oocpr.store\n"
        "import zarr.core.buffer.gpu as gpu\n"
        "assert 'cupy' not in sys.modules\n"
        "assert gpu.cp.ndarray is float\n"
        "import cupy, cupy.random\n"
        "assert cupy.ndarray is float and cupy.random.__file__\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
