"""Rank a stored graph on all CUDA devices of a machine: in one process, and by Dask workers with one each.

All ranks of the devices together have to have the same bits, whoever computes, and to be within the bounds of
those of one device. First everything stays on the devices, then a part of the tiles streams, then all do,
beside the rate that all links had together. Needs oocpr with
its extra ``cluster``, and CuPy::

    python3 workflows/bench/device_workers.py --scale 24 --out device-workers.json
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import traceback
from functools import partial
from pathlib import Path
from tempfile import gettempdir
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from device_several import link_rates
from distributed import Client, LocalCluster

import oocpr
from oocpr.engine.cuda.device import CudaDevice
from oocpr.engine.executors.dask import SWITCH
from oocpr.engine.executors.dask_devices import RESOURCE, assign_workers
from oocpr.engine.job import chosen_device
from oocpr.ingest.build import build_store
from oocpr.sources.rmat import Rmat
from oocpr.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from oocpr.api import Graph
    from oocpr.plan.plan import Plan
    from oocpr.result.ranks import Ranks


class Notes:
    """What has been found so far, printed and kept in a file at once."""

    def __init__(self, out: Path) -> None:
        self.out, self.begun = out, perf_counter()
        self.found: dict[str, Any] = {}

    def note(self, what: str, value: Any) -> None:
        """Keep a finding."""
        self.found[what] = value
        print(f"{perf_counter() - self.begun:6.1f} s  {what:40s} {json.dumps(value)}", flush=True)
        self.out.write_text(json.dumps(self.found, indent=1) + "\n")

    def guard(self, what: str, work: Callable[[], object]) -> None:
        """Do a part; its failure is kept and does not end the others."""
        try:
            work()
        except Exception as error:  # noqa: BLE001
            traceback.print_exc()
            self.note(what, f"failed: {error}"[:500])


def figures(ranks: Ranks, streamed: float) -> dict[str, Any]:
    """What a run says of itself, and the rate at which so many bytes streamed in each pass."""
    run = ranks.run
    assert run is not None, "a run tells what it did"
    # Passes that read as the first does make tiles ready.
    seconds = [record.seconds for record in ranks.history[2:]]
    return {
        "passes": run.passes,
        "seconds": run.seconds,
        "ms a pass": 1e3 * float(np.median(seconds)),
        "best ms a pass": 1e3 * min(seconds),
        "GTEPS of a pass": run.edges / float(np.median(seconds)) / 1e9,
        "GB/s streamed": streamed / float(np.median(seconds)) / 1e9,
        "bound": run.error_bound,
        "GB of a device": run.peak_device_memory / 1e9,
        "predicted/found": compared(ranks),
    }


def compared(ranks: Ranks) -> dict[str, float]:
    """What was predicted before a run over what was found; empty where it was not measured for."""
    run = ranks.run
    assert run is not None, "a run tells what it did"
    predicted, pass_seconds = run.predicted or {}, run.pass_seconds
    if pass_seconds is None or "seconds" not in predicted:
        return {}
    found = {
        "pass_seconds": pass_seconds,
        "seconds": run.seconds - run.compile_seconds,
        "bytes_read": run.bytes_read,
        "peak_memory": run.peak_memory,
        "peak_device_memory": run.peak_device_memory,
        "passes": run.passes,
    }
    # The time, had the number of passes been known.
    known = predicted["seconds"] + (run.passes - predicted["passes"]) * predicted["pass_seconds"]
    ratios = {name: predicted[name] / value for name, value in found.items() if value}
    return ratios | {"seconds_of_these_passes": known / found["seconds"]}


def streaming_memory(graph: Graph, device: str, memory: str) -> int:
    """Bytes of a device in which a run on it alone can keep about half of the tiles."""
    tiers = oocpr.plan(graph, device=device, memory=memory).devices[0]
    # Rows that tiles stream past propose, and gather the proposals of others.
    return tiers.need.total + 12 * graph.nodes + graph.store.attributes.encoded_bytes // 2 + 2**20


def plans(graph: Graph, names: list[str], memory: str) -> dict[str, Plan]:
    """Plans of runs on all devices, by how much of the tiles stays there."""
    several = ",".join(names)
    half = streaming_memory(graph, names[0], memory)
    planned = partial(oocpr.plan, graph, device=several, memory=memory)
    none = max(tiers.need.total for tiers in planned(device_memory=half).devices)
    return {
        "resident": planned(),
        "half streamed": planned(device_memory=half),
        "streamed": planned(device_memory=none),
    }


def compare(notes: Notes, graph: Graph, names: list[str], memory: str, threads: int) -> None:
    """Runs of one kind after another, with everything on the devices and with little there."""
    links = link_rates([CudaDevice(int(name.partition(":")[2])) for name in names])
    notes.note("all links at once, GB/s", sum(links) / 1e9)
    for where, plan in plans(graph, names, memory).items():
        notes.note(f"{where}: plan", str(plan).splitlines())
        given = plan.devices[0].memory if plan.devices[0].promised else None
        rank = partial(oocpr.pagerank, graph, memory=memory, device_memory=given)
        staying = sum(tiers.on_device for tiers in plan.devices) / plan.stats.tiles
        tell = partial(figures, streamed=plan.stats.column_bytes * (1 - staying))
        ranks: dict[str, Ranks] = {}
        for way, device in (("one device", names[0]), ("one process", ",".join(names))):
            ranks[way] = rank(device=device, predict=True)
            notes.note(f"{where}, {way}", tell(ranks[way]))
        one, together = (found.to_numpy() for found in ranks.values())
        notes.note(f"{where}: L1 between one device and all", float(np.abs(one - together).sum()))
        for resources, nccl in (({RESOURCE: 1}, "on"), ({}, "off")):
            os.environ[SWITCH] = nccl
            way = f"{where}, workers, NCCL {nccl}"
            work = partial(_workers, notes, way, rank, tell, together, len(names), threads, resources)
            notes.guard(way, work)


def _workers(
    notes: Notes,
    way: str,
    rank: Callable[..., Ranks],
    tell: Callable[[Ranks], dict[str, Any]],
    together: NDArray[np.float64],
    count: int,
    threads: int,
    resources: dict[str, int],
) -> None:
    """Do a run with so many workers, and compare it with that of one process."""
    with (
        LocalCluster(
            n_workers=count, threads_per_worker=threads, resources=resources, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        notes.note(f"{way}: seats", [[seat.device, dict(seat.resources)] for seat in assign_workers(client)])
        ranks = rank(device="cuda", client=client)
    notes.note(way, tell(ranks))
    notes.note(f"{way}: same bits as one process", bool((ranks.to_numpy() == together).all()))


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")) / "device_workers.json")
    parser.add_argument("--scale", type=int, default=24, help="of R-MAT")
    parser.add_argument("--device", default="cuda:all", help="which, such as cuda:0,cuda:1")
    parser.add_argument("--memory", default="64GiB", help="of the process")
    parser.add_argument("--cache", type=Path, default=Path(gettempdir()), help="where the store is made")
    parser.add_argument("--threads", type=int, default=8, help="of each worker")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    logging.getLogger("oocpr.engine.executors.dask").setLevel(logging.INFO)
    notes = Notes(options.out)
    names = chosen_device(options.device, None).split(",")
    path = options.cache / f"rmat{options.scale}-degree.zarr"
    if not path.exists():
        build_store(Rmat(options.scale), path, memory=parse_bytes(options.memory), order="degree")
    graph = oocpr.open_graph(path)
    notes.note("nodes, edges, tiles", [graph.nodes, graph.edges, graph.store.tiles])
    notes.guard("runs", partial(compare, notes, graph, names, options.memory, options.threads))


if __name__ == "__main__":
    main()
