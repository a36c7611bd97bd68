"""A few passes over one graph, for a profiler of kernels or a checker of memory to look at.

Beside Nsight Compute, which then sees three passes of each way to run::

    ncu --clock-control none --profile-from-start off --csv --page raw --log-file ncu.csv \
        --section SpeedOfLight --section MemoryWorkloadAnalysis --section MemoryWorkloadAnalysis_Tables \
        --section WarpStateStats --section SchedulerStats --section Occupancy --section LaunchStats \
        python3 workflows/bench/device_profile.py

and under compute-sanitizer, where a small graph in several tiles does::

    compute-sanitizer --tool racecheck --error-exitcode 9 \
        python3 workflows/bench/device_profile.py --scale 12 --tiles 5 --all-reads
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import cupy as cp
import device_graphs as graphs
from device_compare import Variant
from device_rank import Peer

from oocpr.engine.cuda.backend import CudaBackend
from oocpr.engine.cuda.device import CudaDevice
from oocpr.engine.settings import Settings


def profile(there: Variant, settings: Settings) -> None:
    """Three passes, the second time seen."""
    settings = replace(settings, max_passes=3)
    stripes = there.stripes(settings)
    there.rank(settings, *next(stripes))
    stripe, reads = next(stripes)
    cp.cuda.profiler.start()
    there.rank(settings, stripe, reads)
    cp.cuda.Device().synchronize()
    cp.cuda.profiler.stop()


def check(there: Variant, graph: graphs.DeviceGraph, chosen: list[dict[str, Any]]) -> None:
    """Whole runs, each within its certified bound of cuSPARSE's ranks."""
    exact = Peer(graph, there.degree, 0.85).settled(cp.full(graph.nodes, 1 / graph.nodes))
    for parameters in chosen:
        settings = Settings(**parameters)
        run = there.rank(settings, *next(there.stripes(settings)))
        error = float(cp.abs(run.ranks - exact).sum())
        print(parameters, len(run.residuals), "passes, bound", run.bound, "true error", error, flush=True)
        assert error <= run.bound + 1e-13, f"{parameters} miss their bound"


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graph", choices=("rmat", "web"), default="rmat")
    parser.add_argument("--scale", type=int, default=24)
    parser.add_argument("--tiles", type=int, default=1)
    parser.add_argument("--all-reads", action="store_true", help="whole runs in all formats, checked")
    parser.add_argument("--threads", type=int, default=16)
    options = parser.parse_args()
    if options.graph == "rmat":
        nodes, edges = graphs.rmat_edges(options.scale)
        edges = graphs.by_out_degree(nodes, edges)
    else:
        nodes, edges = graphs.web_edges(options.scale, 18 << options.scale)
    graph = graphs.rows_of(options.graph, nodes, edges)
    there = Variant(CudaBackend(CudaDevice(0), diagonal_blocks_from=0), graph, options.tiles, options.threads)
    for proposals in (False, True):
        there.proposals = proposals
        sweeps = 3 if proposals and options.graph == "web" else 1
        if options.all_reads:
            chosen = [{"reads": reads, "sweeps": 2} for reads in ("bits16", "bits8", "float32", "float64")]
            check(there, graph, [*chosen, {"method": "residual"}])
        else:
            profile(there, Settings(sweeps=sweeps, mixing=2))


if __name__ == "__main__":
    main()
