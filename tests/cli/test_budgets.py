"""Memory budgets of whole commands, measured by the system."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

MIB = 2**20
LONG = 1100
"""Bytes of a long name."""


COMMAND = """
import sys
from pathlib import Path
from oocpr.cli import main

code = main(sys.argv[2:])
sys.stdout.flush()
Path(sys.argv[1]).write_text(Path("/proc/self/status").read_text())
sys.exit(code)
"""
"""A command, and what the system says of its process at the end."""


def measured(*words: object) -> tuple[int, str]:
    """Run a command in a process of its own; returns its peak of resident bytes and what it printed."""
    with TemporaryDirectory() as folder:
        # What a parent holds counts for its children in the usual accounting, so this one holds little.
        status, out = Path(folder, "status"), Path(folder, "out")
        command = [sys.executable, "-c", COMMAND, status, *words]
        with out.open("wb") as file:
            done = subprocess.run(list(map(str, command)), stdout=file, check=False)
        assert done.returncode == 0
        facts = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(facts["VmHWM"].split()[0]) << 10, out.read_text() if out.stat().st_size < MIB else ""


def ranked(store: Path, memory: int) -> dict[str, Any]:
    """Report of a run within so many mebibytes, which it kept to."""
    peak, out = measured("rank", store, "--memory", f"{memory}MiB", "--top", 1, "--json", "-")
    assert peak <= memory * MIB
    report = json.loads(out)
    assert report["converged"]
    assert report["error_bound"] <= 1e-10
    assert isinstance(report, dict)
    return report


@pytest.mark.slow
def test_sixty_seven_million_edges_are_imported_and_ranked_in_one_gibibyte_and_in_half(
    tmp_path: Path,
) -> None:
    store = tmp_path / "graph.zarr"
    peak, _ = measured("generate", "rmat", "--scale", 22, "--memory", "1GiB", "-o", store)
    assert peak <= 1024 * MIB
    plenty = ranked(store, 1024)
    encoded = plenty["bytes_per_edge"] * plenty["edges"]
    # Once, and then from memory.
    assert plenty["bytes_read"] <= 1.01 * encoded
    scarce = ranked(store, 560)
    # Most tiles find no room and are read in every pass.
    assert scarce["bytes_read"] >= 0.75 * encoded * scarce["passes"]


@pytest.mark.slow
def test_a_graph_is_ranked_in_each_order_within_the_memory_of_its_import(tmp_path: Path) -> None:
    words = "generate", "rmat", "--scale", 20, "--order", "auto", "--memory", "480MiB"
    peak, said = measured(*words, "-o", tmp_path / "graph.zarr")
    assert peak <= 480 * MIB
    assert "order: by out-degree" in said


@pytest.mark.slow
def test_the_first_run_on_a_machine_keeps_to_its_memory_while_it_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "graph.zarr"
    measured("generate", "rmat", "--scale", 21, "--memory", "1GiB", "-o", store)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "compiled"))
    first = ranked(store, 400)
    assert first["compile_seconds"] > 1
    assert ranked(store, 400)["compile_seconds"] == 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of long names."""
    folder = tmp_path_factory.mktemp("long")
    letters = "".join(np.random.default_rng(1).choice(list("abcdefgh0123-_/."), 1 << 20).tolist())

    def name(k: int) -> str:
        begin = 7919 * k % (1 << 19)
        return f"n{k:07}-{letters[begin : begin + LONG - 9]}"

    edges = np.random.default_rng(2).integers(0, 100_000, (300_000, 2))
    np.savetxt(folder / "edges.txt", edges, fmt="%d")
    named = edges[:60_000].tolist()
    with (folder / "labels.txt").open("w") as file:
        file.writelines(f"{name(k)}\n" for k in range(100_000))
    with (folder / "seeds.txt").open("w") as file:
        file.writelines(f"{name(k)}\t2\n" for k in range(0, 100_000, 2))
    with (folder / "edges.names").open("w") as file:
        file.writelines(f"{name(u)}\t{name(v)}\n" for u, v in named)
    schema = pa.schema([("src", pa.string()), ("dst", pa.string())])
    with pq.ParquetWriter(folder / "edges.parquet", schema) as writer:
        for first in range(0, len(named), 1000):
            src, dst = zip(*named[first : first + 1000], strict=True)
            writer.write_table(pa.table([list(map(name, src)), list(map(name, dst))], schema=schema))
    labels = folder / "labels.txt"
    measured("import", folder / "edges.txt", "--labels", labels, "-o", folder / "g.zarr")
    measured("rank", folder / "g.zarr", "-o", folder / "ranks.parquet", "--sort", "rank")
    return folder


class TestLongNames:
    """Whatever reads or writes names of a kilobyte, 110 MB in all, keeps to its memory."""

    def check(self, budgets: list[int], *words: object) -> None:
        for budget in budgets:
            peak, _ = measured(*words, "--memory", f"{budget}MiB")
            sys.stdout.write(f"{budget} MiB given, {peak / MIB:.0f} taken: {' '.join(map(str, words))}\n")
            assert peak <= budget * MIB

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "more",
        [
            ["-o", "r.parquet"],
            ["-o", "r.parquet", "--sort", "rank"],
            ["-o", "r.csv"],
            ["-o", "r.csv", "--sort", "rank"],
            ["-o", "r.zarr"],
            ["-o", "-"],
            ["-o", "-", "--sort", "rank"],
            ["--top", 100_000, "--json", "r.json"],
            ["--start", "ranks.parquet"],
            ["--personalization", "seeds.txt"],
        ],
        ids=lambda words: " ".join(map(str, words)),
    )
    def test_rank(self, folder: Path, more: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(folder)
        self.check([420 if more[0] == "--start" else 360, 430, 600], "rank", "g.zarr", *more)

    @pytest.mark.slow
    @pytest.mark.parametrize("source", ["edges.txt", "edges.names", "edges.parquet"])
    def test_import(self, folder: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(folder)
        more = ["--labels", "labels.txt"] if source == "edges.txt" else []
        if source == "edges.names":
            more = ["--format", "names"]
        self.check([300, 400, 600], "import", source, *more, "-o", "i.zarr", "--overwrite")

    @pytest.mark.slow
    def test_verify_and_top(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(folder)
        self.check([320, 400, 600], "verify", "g.zarr", "ranks.parquet")
        self.check([320, 400, 600], "top", "ranks.parquet", "-k", 10)
        self.check([320, 400, 600], "top", "ranks.parquet", "-k", 100_000)


@pytest.mark.long
def test_too_little_memory_to_write_is_refused_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "edges.txt").write_text("0 1\n1 0\n")
    measured("import", tmp_path / "edges.txt", "-o", tmp_path / "g.zarr")
    command = ["rank", "g.zarr", "-o", "r.parquet", "--memory", "150MiB"]
    done = subprocess.run(
        [sys.executable, "-m", "oocpr", *command], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 4
    assert "Writing 2 ranks needs" in done.stderr
    assert not (tmp_path / "r.parquet").exists()
