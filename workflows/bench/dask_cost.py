"""Measure what Dask adds to a pass, beside the same passes without it.

Three questions, each answered by the same plan run in several ways, in turns:

`fixed`
    A graph of 2048 nodes, whose computation takes less than a millisecond: what is a pass with two workers
    more than one in this process?
`share`
    An R-MAT graph: what is a pass with two workers of a thread each more than one of two bare processes,
    which exchange their pushes through a pipe; and with one worker more than in this process?
`alone`
    The graph of 2048 nodes: what does a run without a client take more than the calls of the backend in a
    bare loop?
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from machine import describe, provenance

from oocpr.engine import method
from oocpr.engine.planning import plan_request, stats_of
from oocpr.engine.reduction import PassReport, reduce_pass
from oocpr.engine.run import rank_graph
from oocpr.engine.settings import Settings
from oocpr.engine.stripe import Job, Numbers, StripeGroup
from oocpr.engine.tiles.stream import returned
from oocpr.ingest.build import build_store
from oocpr.plan.processor_plan import make_plan
from oocpr.sources import open_source
from oocpr.sources.rmat import Rmat
from oocpr.store.graph import open_store

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from oocpr.plan.plan import Plan
    from oocpr.store.graph import GraphStore

UNCOUNTED = 2
"""Passes at the beginning of a run that read tiles and come to know each other."""

AT_ONCE = 0.02
"""Seconds in which all passes of an epoch are told."""

ROUNDS = 3
STRIPES = (2, 4)
TOL = 5e-13


def small_graph(cache: Path) -> GraphStore:
    """A cycle with a few chords, which takes many passes, in tiles of 512 edges."""
    path = cache / "cycle.zarr"
    if not path.exists():
        node = np.arange(2048)
        source = np.concatenate([node, node[::64]])
        target = np.concatenate([(node + 1) % 2048, node[::64] * 7 % 1024])
        build_store(open_source((source, target)), path, memory=2**30, tile_edges=512)
    return open_store(path)


def rmat_graph(cache: Path, scale: int) -> GraphStore:
    """An R-MAT graph as it is imported."""
    path = cache / f"rmat{scale}.zarr"
    if not path.exists():
        build_store(Rmat(scale), path, memory=2**32)
    return open_store(path)


def plan_of(store: GraphStore, settings: Settings, stripes: int) -> Plan:
    """Plan with all tiles in memory."""
    request = plan_request(settings, sweeps=settings.sweeps, memory=2**40, stripes=stripes)
    return make_plan(stats_of(store), request)


def run(store: GraphStore, settings: Settings, stripes: int, client: Any = None) -> list[float]:
    """Seconds of the passes of a run with one thread a process, with a share of the time between them."""
    plan = plan_of(store, settings, stripes)
    told: list[float] = []

    def note(*_: Any, **__: Any) -> None:
        told.append(perf_counter())

    path = str(Path(store.path).resolve())
    done = rank_graph(store, plan, settings, path=path, threads=1, client=client, progress=note)
    # Passes of an epoch are told together; the first epoch begins with the run.
    first = UNCOUNTED if client is None else sum(at < told[0] + AT_ONCE for at in told)
    seconds = [record.seconds for record in done.history[first:]]
    between = (told[-1] - told[first - 1] - sum(seconds)) / len(seconds)
    return [each + between for each in seconds]


def bare(store: GraphStore, settings: Settings, stripes: int) -> list[float]:
    """Seconds of the same passes in a bare loop over the backend's calls."""
    job = Job(str(store.path), settings, plan_of(store, settings, stripes), threads=1)
    group = _opened(job, store, range(stripes))
    state = method.begin(settings, stripes, 1 / store.nodes)
    seconds = []
    while not (state.residuals and settings.satisfied(state.residuals[-1])):
        began = perf_counter()
        pushes = group.begin_push(state)()
        pushed = [push.sums for push in pushes]
        group.load((push.row_begin, push.stored) for push in pushes)
        sweep = group.sweep(state, pushed)
        for _ in range(job.plan.exchanges):
            group.put_proposals(next(sweep))
        report = returned(sweep)()
        state = method.end_pass(state, pushed, report.sums)
        seconds.append(perf_counter() - began)
    return seconds[UNCOUNTED:]


def two_processes(store: GraphStore, settings: Settings) -> list[float]:
    """Seconds of the same passes of two processes, a stripe each, that share nothing but a pipe."""
    job = Job(str(store.path), settings, plan_of(store, settings, 2), threads=1)
    spawn = multiprocessing.get_context("spawn")
    ends = [spawn.Pipe() for _ in range(2)]
    between = spawn.Pipe()
    members = [
        spawn.Process(target=_member, args=(job, index, ends[index][1], between[index])) for index in range(2)
    ]
    for member in members:
        member.start()
    asked = [end for end, _ in ends]
    for end in asked:
        end.recv()
    state = method.begin(settings, 2, 1 / store.nodes)
    seconds = []
    while not (state.residuals and settings.satisfied(state.residuals[-1])):
        began = perf_counter()
        for end in asked:
            end.send(state)
        pushed, reports = zip(*(end.recv() for end in asked), strict=True)
        state = reduce_pass(job, state, PassReport.of(list(pushed), reports), store.nodes)
        seconds.append(perf_counter() - began)
    for end, member in zip(asked, members, strict=True):
        end.send(None)
        member.join()
    return seconds[UNCOUNTED:]


def _opened(job: Job, store: GraphStore, stripes: Sequence[int]) -> StripeGroup:
    group = StripeGroup(job, store, job.make_backend(0), stripes)
    group.allocate()
    return group


def _member(job: Job, index: int, asked: Connection, other: Connection) -> None:
    group = _opened(job, open_store(job.path), [index])
    asked.send("ready")
    while (state := asked.recv()) is not None:
        (own,) = group.begin_push(state)()
        push = [(own.row_begin, own.stored)]
        theirs, sums = _exchanged(push, own.sums, index, other)
        group.load(push + theirs)
        sweep = group.sweep(state, [own.sums, sums] if index == 0 else [sums, own.sums])
        for _ in range(job.plan.exchanges):
            proposals = next(sweep)
            group.put_proposals(proposals + _exchanged(proposals, None, index, other)[0])
        asked.send((own.sums, returned(sweep)()))


def _exchanged(own: list[Numbers], sums: Any, index: int, other: Connection) -> tuple[list[Numbers], Any]:
    """Numbers and sums of the other process; in turns, as a pipe holds less than the numbers."""
    if index == 0:
        _send(own, sums, other)
    rows, dtypes, theirs = other.recv()
    numbers = [np.frombuffer(other.recv_bytes(), dtype) for dtype in dtypes]
    if index == 1:
        _send(own, sums, other)
    return list(zip(rows, numbers, strict=True)), theirs


def _send(own: list[Numbers], sums: Any, other: Connection) -> None:
    other.send(([row for row, _ in own], [stored.dtype.str for _, stored in own], sums))
    for _, stored in own:
        other.send_bytes(stored)


def in_turns(ways: Mapping[str, Callable[[], list[float]]]) -> dict[str, dict[str, Any]]:
    """Passes of each way, the ways in turns, so that a busy minute falls on all of them."""
    passes: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(1 + ROUNDS):
        for name, way in ways.items():
            seconds = way()
            # The first turn compiles.
            passes[name] += seconds if turn else []
    found = {name: _summary(seconds) for name, seconds in passes.items()}
    for name, summary in found.items():
        print(f"{name:<28}", json.dumps(summary), flush=True)
    return found


def _summary(seconds: list[float]) -> dict[str, Any]:
    low, _, high = quantiles(seconds, n=4)
    return {
        "passes": len(seconds),
        "ms_median": 1e3 * median(seconds),
        "ms_min": 1e3 * min(seconds),
        "ms_quartiles": [1e3 * low, 1e3 * high],
        "ms_max": 1e3 * max(seconds),
    }


def measure(cache: Path, scale: int, sweeps: int) -> dict[str, Any]:
    """All three answers."""
    from distributed import Client, LocalCluster

    small = small_graph(cache)
    # One product a pass: nothing is done for long. As many passes as take some epochs.
    settings = Settings(tol=1e-9, sweeps=1, damping=0.98, mixing=0)
    large, heavy = rmat_graph(cache, scale), Settings(tol=TOL, sweeps=sweeps)
    start = partial(LocalCluster, threads_per_worker=1, dashboard_address=":0")
    found: dict[str, Any] = {}
    with start(n_workers=2) as cluster, Client(cluster) as client:
        for stripes in STRIPES:
            ways = {
                f"small, {stripes} stripes, alone": partial(run, small, settings, stripes),
                f"small, {stripes} stripes, 2 workers": partial(run, small, settings, stripes, client),
            }
            found[f"fixed, {stripes} stripes"] = _more(in_turns(ways))
        ways = {
            "R-MAT, two bare processes": partial(two_processes, large, heavy),
            "R-MAT, 2 workers": partial(run, large, heavy, 2, client),
        }
        found["share, 2 workers"] = _more(in_turns(ways))
    with start(n_workers=1) as cluster, Client(cluster) as client:
        ways = {
            "R-MAT, alone": partial(run, large, heavy, 2),
            "R-MAT, 1 worker": partial(run, large, heavy, 2, client),
        }
        found["share, 1 worker"] = _more(in_turns(ways))
    ways = {
        "small, bare loop": partial(bare, small, settings, 2),
        "small, run without a client": partial(run, small, settings, 2),
    }
    found["alone"] = _more(in_turns(ways))
    return found


def _more(found: dict[str, Any]) -> dict[str, Any]:
    """What the second way takes more than the first, by their medians and by their fastest passes."""
    first, second = found.values()
    more = {f"ms_more_by_{by}": second[f"ms_{by}"] - first[f"ms_{by}"] for by in ("median", "min")}
    shares = {f"share_by_{by}": more[f"ms_more_by_{by}"] / first[f"ms_{by}"] for by in ("median", "min")}
    print(json.dumps(more | shares), flush=True)
    return {**found, **more, **shares}


def main() -> None:
    """Measure, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--scale", type=int, default=22, help="of the R-MAT graph")
    parser.add_argument("--sweeps", type=int, default=2, help="products inside a tile of the R-MAT graph")
    parser.add_argument("--cache", type=Path, required=True, help="folder for the stores")
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    chosen.cache.mkdir(parents=True, exist_ok=True)
    settings = {"scale": chosen.scale, "sweeps": chosen.sweeps, "rounds": ROUNDS}
    found = {
        "provenance": provenance("dask_cost.py"),
        "machine": describe(),
        "settings": settings,
        **measure(chosen.cache, chosen.scale, chosen.sweeps),
    }
    chosen.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
