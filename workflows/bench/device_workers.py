"""Rank a stored graph on all CUDA devices of a machine, in one process and by a Dask worker for each.

The workers are up before, as they are on a cluster, and each program has ranked the graph once. Budgets of
device memory that hold part of the tiles only have every worker stream the others in each pass, beside the
rate of all links together. With the same stripes, all have to find the same bits::

    python3 workflows/bench/device.py workers r26.zarr --budgets all 2GiB
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from hashlib import blake2b
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from device_budgets import EVERYTHING
from machine import describe, provenance

from oocpr.system import usable_cores

SWITCHES = {"": "", ", without NCCL": "off"}
"""Values of OOCPR_NCCL by what they are called."""


def once(path: str, how: dict[str, Any], client: Any) -> dict[str, Any]:
    """Rank a graph, and say what took how long."""
    import oocpr

    begun = perf_counter()
    ranks = oocpr.pagerank(path, method="mixed", client=client, **how)
    seconds = perf_counter() - begun
    passes = [record.seconds for record in ranks.history]
    return {
        "seconds": seconds,
        "first pass": passes[0],
        "ms of a later pass": 1e3 * float(np.median(passes[1:])),
        "passes": len(passes),
        "bound": ranks.error_bound,
        "ranks": blake2b(ranks.to_numpy().tobytes(), digest_size=8).hexdigest(),
    }


def repeated(path: str, how: dict[str, Any], runs: int, client: Any = None) -> dict[str, Any]:
    """Rank several times after once; the run of median time, and all times."""
    once(path, how, client)
    found = sorted((once(path, how, client) for _ in range(runs)), key=lambda run: float(run["seconds"]))
    return found[runs // 2] | {"all seconds": [run["seconds"] for run in found]}


def streamed_bytes(path: str, how: dict[str, Any]) -> int:
    """Encoded bytes of groups that do not stay on a device, as often as a pass takes them."""
    import oocpr
    from oocpr.engine.planning import RunRequest, asked_settings, plan_run
    from oocpr.engine.tiles.groups import GroupedStore

    store = oocpr.open_graph(path).store
    settings = asked_settings("mixed", None, damping=0.85, tol=1e-10, stop="certified")
    run = plan_run(store, settings, RunRequest(**how), 0)
    assert isinstance(run.store, GroupedStore), "devices take groups"
    sizes, bounds, total = store.tile_sizes(), run.store.layout.bounds, 0
    assert sizes is not None, "a local store has sizes"
    for (first, last), tiers in zip(run.plan.stripes, run.plan.devices, strict=True):
        staying, _ = tiers.places(range(first, last))
        passing = (
            int(sizes[bounds[k] : bounds[k + 1]].sum()) for k in range(first, last) if k not in staying
        )
        total += tiers.partitions * sum(passing)
    return total


def measured(path: str, budget: str, runs: int, devices: int, workers: bool) -> dict[str, Any]:
    """Everything of one way to carry out a run; in a process of its own."""
    how: dict[str, Any] = {} if budget == EVERYTHING else {"device_memory": budget}
    names = ",".join(f"cuda:{index}" for index in range(devices))
    if not workers:
        return repeated(path, {"device": names, **how}, runs) | {
            "streamed bytes a pass": streamed_bytes(path, {"device": names, **how})
        }
    from distributed import Client, LocalCluster

    with LocalCluster(
        n_workers=devices, threads_per_worker=max(1, usable_cores() // devices), dashboard_address=None,
        resources={"GPU": 1},
    ) as cluster, Client(cluster) as client:  # fmt: skip
        return repeated(path, {"device": "cuda", **how}, runs, client)


def apart(path: Path, budget: str, options: argparse.Namespace, *, workers: bool, switch: str) -> Any:
    """Measure in a process of its own, with its own environment."""
    words = [str(path), "--one", budget, "--runs", str(options.runs), "--devices", str(options.devices)]
    program = [sys.executable, __file__, *words, *["--workers"] * workers]
    environment = os.environ | ({"OOCPR_NCCL": switch} if switch else {})
    done = subprocess.run(program, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1:]}
    return json.loads(done.stdout.splitlines()[-1])


def main(arguments: list[str] | None = None) -> None:
    """Measure each store within each budget, print a line each, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("store", type=Path, help="a graph, imported")
    parser.add_argument("--runs", type=int, default=3, help="of each, after one that is not counted")
    parser.add_argument("--budgets", nargs="+", default=[EVERYTHING, "2GiB"], help="of each device's memory")
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--workers", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")) / "device_workers.json")
    options = parser.parse_args(arguments)
    if options.one:
        print(
            json.dumps(
                measured(str(options.store), options.one, options.runs, options.devices, options.workers)
            )
        )
        return
    from device_several import link_rates

    from oocpr.engine.cuda.device import Device

    found: dict[str, Any] = {"provenance": provenance("device.py"), "machine": describe()}

    def note(what: str, value: Any) -> None:
        found[what] = value
        print(what, json.dumps(value), flush=True)
        options.out.write_text(json.dumps(found, indent=1) + "\n")

    devices = [Device(index) for index in range(options.devices)]
    note("devices", [device.name for device in devices])
    note("links together, GB/s", [rate / 1e9 for rate in link_rates(devices)])
    del devices
    for budget in options.budgets:
        alone = apart(options.store, budget, options, workers=False, switch="")
        note(f"{budget}: one process", alone)
        for words, switch in SWITCHES.items():
            cell = apart(options.store, budget, options, workers=True, switch=switch)
            if "seconds" in cell and "seconds" in alone:
                cell["seconds over those of one process"] = cell["seconds"] / alone["seconds"]
                cell["same ranks"] = cell["ranks"] == alone["ranks"]
            note(f"{budget}: a worker for each device{words}", cell)


if __name__ == "__main__":
    main()
