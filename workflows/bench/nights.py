"""A job on seven nights, on which a real graph grows, and each night the same graph from nothing.

The edges of a graph are cut in the order of its file: four fifths are there on the first night, and seven
equal parts come one a night. `oocpr run` appends each part, begins with the last ranks, compares and
publishes; beside it, a job without a past imports and ranks all that is there. Seconds, and bytes that the
process has read and written, are those of the whole command. Ranks of both may differ by no more than the sum
of their bounds.

    python workflows/bench/nights.py GRAPH --out workflows/bench/results/nights.json
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from machine import describe, provenance
from numpy.typing import NDArray

import oocpr
from oocpr.sources import open_source
from oocpr.sources.block import EdgeBlock

NIGHTS = 7
FIRST_SHARE = 0.8

RUN = """
import sys
from oocpr.cli import main
code = main(["run", sys.argv[1], "--log", "json", "--log-level", "error"])
print(open("/proc/self/io").read(), file=sys.stderr)
sys.exit(code)
"""
JOB = """
memory = "2GiB"
[import]
source = {sources}
{append}
[rank]
method = "mixed"
[compare]
top = 100
max_distance = 0.5
"""


def edges_of(path: Path) -> NDArray[np.int64]:
    """All edges of a file in its order, shape (edges, 2)."""
    blocks = [block for block in open_source(path).blocks(1 << 20) if isinstance(block, EdgeBlock)]
    return np.concatenate([np.stack((block.src, block.dst), axis=1).astype(np.int64) for block in blocks])


def run(job: Path) -> dict[str, Any]:
    """Run a job in a process of its own; returns its summary, seconds, and bytes read and written."""
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", RUN, job], capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    if done.returncode:
        sys.exit(f"{job} ended with exit code {done.returncode}:\n{done.stderr}")
    counted = dict(line.split(": ") for line in done.stderr.splitlines() if ": " in line)
    summary = json.loads(done.stdout)
    return {
        "seconds": seconds,
        "step_seconds": summary["steps"],
        "bytes_read": int(counted["rchar"]),
        "bytes_written": int(counted["wchar"]),
        "passes": summary["run"]["passes"],
        "error_bound": summary["run"]["error_bound"],
        "nodes": summary["run"]["nodes"],
        "edges": summary["run"]["edges"],
        "comparison": summary.get("comparison"),
    }


def ranks_in(folder: Path) -> dict[int, float]:
    """Published ranks by node."""
    ranks = oocpr.read_ranks(folder / "latest" / "ranks.parquet")
    return {int(node): rank for node, rank in ranks.top(ranks.nodes)}


def measure(graph: Path, folder: Path) -> list[dict[str, Any]]:
    """Let the nights pass."""
    edges = edges_of(graph)
    first = int(FIRST_SHARE * len(edges))
    parts = np.array_split(edges[first:], NIGHTS)
    (folder / "days").mkdir()
    np.save(folder / "first.npy", edges[:first])
    append = '[append]\nsource = "days/*.npy"'
    (folder / "grow.toml").write_text(JOB.format(sources='"first.npy"', append=append))
    run(folder / "grow.toml")
    nights = []
    for number, part in enumerate(parts, 1):
        np.save(folder / "days" / f"day-{number}.npy", part)
        night: dict[str, Any] = {"night": number, "new_edges": len(part), "grown": run(folder / "grow.toml")}
        sources = [str(folder / "first.npy"), *map(str, sorted((folder / "days").iterdir()))]
        (folder / "scratch.toml").write_text(JOB.format(sources=json.dumps(sources), append=""))
        shutil.rmtree(folder / "scratch", ignore_errors=True)
        night["scratch"] = run(folder / "scratch.toml")
        one, other = ranks_in(folder / "grow"), ranks_in(folder / "scratch")
        if one.keys() != other.keys():
            sys.exit("The grown graph has other nodes than the one that was imported at once.")
        night["distance"] = sum(abs(one[node] - other[node]) for node in one)
        bounds = night["grown"]["error_bound"] + night["scratch"]["error_bound"]
        if night["distance"] > bounds:
            sys.exit(f"Ranks differ by {night['distance']:.3g}, and their bounds allow {bounds:.3g}.")
        nights.append(night)
        print(line_of(night))
    return nights


def line_of(night: dict[str, Any]) -> str:
    """Write a night as a person reads it."""
    grown, scratch, found = night["grown"], night["scratch"], night["grown"]["comparison"]
    mover = found["movers"][0]
    return (
        f"night {night['night']}: {night['new_edges']:,} edges came to {grown['edges']:,}; "
        f"{grown['seconds']:.2f} s, {grown['bytes_read'] / 1e6:.0f} MB read, "
        f"{grown['bytes_written'] / 1e6:.0f} MB written, {grown['passes']} passes; from nothing "
        f"{scratch['seconds']:.2f} s, {scratch['bytes_read'] / 1e6:.0f} MB, "
        f"{scratch['bytes_written'] / 1e6:.0f} MB, {scratch['passes']} passes; "
        f"moved by {found['distance']:.3g}, top 100 {found['overlap']:.0%}, "
        f"most: node {mover['node']} {mover['other_rank']:.3g} to {mover['rank']:.3g}"
    )


def main() -> None:
    """Measure, and write JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("graph", type=Path, help="a graph of numbered nodes, such as cnr-2000.mtx.xz")
    parser.add_argument("--out", type=Path, help="where to write JSON")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        nights = measure(asked.graph, Path(folder))
    if asked.out is not None:
        facts = {
            "provenance": provenance("nights.py"), "machine": describe(), "graph": asked.graph.name,
            "nights": nights,
        }  # fmt: skip
        asked.out.write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
