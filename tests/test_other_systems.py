"""Systems other than Linux: the same commands, without what only Linux has.

A process has it taken away before it loads the package: files of /proc and /sys, calls, flags and the name of
the system. Libraries, which have ways of their own on each system, are loaded before, and psutil may look.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import oocpr

BARE = """
import ctypes, mmap, os, runpy, sys
import dask.distributed, numba, numpy, psutil, pyarrow.parquet, rich.progress, scipy.sparse, zarr

MISSING = "sched_getaffinity posix_fadvise posix_fallocate memfd_create fdatasync O_PATH O_DIRECT"
for name in MISSING.split():
    delattr(os, name)
del mmap.MADV_HUGEPAGE

def deny(event, args):
    if event == "open" and str(args[0]).startswith(("/proc/", "/sys/")):
        if not sys._getframe(1).f_globals["__name__"].startswith("psutil"):
            raise FileNotFoundError(2, "there is no /proc here", args[0])

sys.addaudithook(deny)
sys.platform = "darwin"
"""


COMMAND = "sys.argv[1:] = {!r}\nrunpy.run_module('oocpr', run_name='__main__')"


def run_bare(*words: object, cwd: Path, code: int = 0) -> str:
    return execute(COMMAND.format([*map(str, words)]), cwd, code)


def execute(program: str, cwd: Path, code: int = 0) -> str:
    command = [sys.executable, "-c", f"{BARE}\n{program}"]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout


@pytest.mark.long
def test_a_graph_is_imported_ranked_and_grows_to_the_same_bits(tmp_path: Path) -> None:
    source, ours, theirs = (tmp_path / name for name in ("edges.txt", "ours.zarr", "theirs.zarr"))
    np.savetxt(source, np.random.default_rng(1).zipf(1.4, (50_000, 2)) % 4_000, "%d")
    oocpr.import_graph(source, ours)
    run_bare("import", source, "-o", theirs, "--memory", "500MiB", "--resume", cwd=tmp_path)
    assert identity(theirs) == identity(ours)
    for method, memory in (("components", "1GiB"), ("mixed", "1GiB"), ("mixed", "500MiB")):
        done = run_bare("rank", theirs, "-o", "ranks.parquet", "--json", "-", "--method", method,
                        "--memory", memory, cwd=tmp_path)  # fmt: skip
        wanted = oocpr.pagerank(ours, method=method).to_numpy()
        np.testing.assert_array_equal(oocpr.read_ranks(tmp_path / "ranks.parquet").to_numpy(), wanted)
        # What macOS counts in bytes, the system of the tests counts in KiB.
        assert json.loads(done)["peak_memory"] << 10 > 50 << 20
    more = tmp_path / "more.txt"
    more.write_text("0 5\n7 3\n")
    run_bare("append", theirs, more, "-o", "theirs-2.zarr", cwd=tmp_path)
    assert (
        identity(tmp_path / "theirs-2.zarr")
        == oocpr.append(ours, more, tmp_path / "ours-2.zarr").store.identity
    )


@pytest.mark.long
def test_a_run_goes_on_and_jobs_and_the_doctor_know_their_machine(tmp_path: Path, data: Path) -> None:
    source = data / "debian-bookworm-deps.txt.gz"
    run_bare("import", source, "-o", "g.zarr", cwd=tmp_path)
    rank = ("rank", "g.zarr", "--method", "mixed", "--checkpoint", "kept", "--json", "-")
    run_bare(*rank, "--max-passes", 3, cwd=tmp_path, code=3)
    whole = json.loads(run_bare(*rank, "--resume", cwd=tmp_path))
    assert whole["converged"]
    (tmp_path / "night.toml").write_text(f'[import]\nsource = "{source}"\n[rank]\n')
    run_bare("run", "night.toml", cwd=tmp_path)
    found = json.loads(run_bare("doctor", "--json", "-", cwd=tmp_path))
    assert found


@pytest.mark.long
def test_a_graph_that_another_takes_the_place_of_is_not_mixed_with_it(tmp_path: Path) -> None:
    for name, edges in (("old", "0 1\n1 2\n"), ("new", "0 1\n1 0\n2 0\n")):
        (tmp_path / f"{name}.txt").write_text(edges)
        oocpr.import_graph(tmp_path / f"{name}.txt", tmp_path / f"{name}.zarr")
    program = """
import oocpr, shutil
graph = oocpr.open_graph("old.zarr")
os.mkdir("elsewhere")
os.chdir("elsewhere")
assert oocpr.pagerank(graph, method="mixed").to_numpy().size == 3
os.chdir("..")
shutil.rmtree("old.zarr")
shutil.move("new.zarr", "old.zarr")
try:
    oocpr.pagerank(graph, method="mixed")
except oocpr.OocprError as error:
    print(error.exit_code)
"""
    assert execute(program, tmp_path) == "6\n"


def identity(store: Path) -> str:
    return oocpr.open_graph(store).store.identity
