"""Rank a graph on all CUDA devices of a machine at once, its tiles streaming, beside their links' own rate.

Measured are the rate from pinned memory to each device alone and to all at the same time, the rate from
device to device, and runs of R-MAT by out-degree to a certified error: on all devices, and on the first one
with the same stripes, whose ranks have to have the same bits. No tile stays on a device; further runs have
all tiles there.
"""

from __future__ import annotations

import argparse
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from threading import Barrier
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import cupy as cp
import device_graphs as graphs
import numpy as np
from device_graphs import CodedGraph
from device_rank import Bench
from device_stream import InMemory
from numpy.typing import NDArray

from oocpr.engine.cuda.device import Device
from oocpr.engine.devices import chosen_device
from oocpr.engine.planning import plan_request
from oocpr.engine.probe.measure import measure_rates
from oocpr.engine.run import rank_graph
from oocpr.engine.settings import Settings
from oocpr.engine.trace import COMPUTE, COPY, Trace
from oocpr.plan.device_plan import plan_on_devices, resident_weights
from oocpr.plan.partition import weighted_stripes
from oocpr.plan.tile_groups import (
    GROUP_EDGES,
    SHARED_EDGES,
    group_bounds,
    grouped_stats,
    layout_of,
)

if TYPE_CHECKING:
    from oocpr.engine.cuda.device import Event
    from oocpr.engine.method import Solution
    from oocpr.engine.tiles.groups import GroupedStore
    from oocpr.plan.plan import Plan
    from oocpr.plan.request import GraphStats

PLENTY = 1 << 60
RUNS = 3
AHEAD = 3
"""Rounds of pieces that are sent ahead of the one that is waited for."""
PIECE = 64 << 20
"""Bytes that the rate of a link is measured with at once: about those of a tile."""


def link_rates(devices: list[Device], seconds: float = 0.5, tries: int = 3) -> list[float]:
    """Bytes a second from pinned memory to each device, all of them at the same time."""
    begin, best = Barrier(len(devices), timeout=60), [0.0] * len(devices)

    def send(device: Device) -> float:
        with device:
            pinned = [device.pinned(PIECE) for _ in range(4)]
            for values in pinned:
                values[:] = 1
            slots = [cp.empty(PIECE, np.uint8) for _ in range(4)]
            device.synchronize()
            under_way: deque[Event] = deque()
            begin.wait()
            begun, sent = perf_counter(), 0
            while perf_counter() - begun < seconds:
                for slot, values in zip(slots, pinned, strict=True):
                    mark = device.upload_async(slot, values)
                    sent += PIECE
                under_way.append(mark)
                # Threads wait for Python in turns, while the link has more to do.
                if len(under_way) > AHEAD:
                    under_way.popleft().synchronize()
            mark.synchronize()
            return sent / (perf_counter() - begun)

    with ThreadPoolExecutor(len(devices)) as pool:
        for _ in range(tries):
            rates = list(pool.map(send, devices))
            best = rates if sum(rates) > sum(best) else best
    return best


def peer_rate(source: Device, target: Device, nbytes: int = 256 << 20, turns: int = 8) -> float:
    """Bytes a second from one device to another; checks what has arrived."""
    with source:
        there = cp.arange(nbytes // 4, dtype=np.uint32)
        source.synchronize()
    with target:
        here = cp.zeros(nbytes // 4, np.uint32)
        target.copy_from(here, there)
        target.synchronize()
        begun = perf_counter()
        for _ in range(turns):
            target.copy_from(here, there)
        target.synchronize()
        rate = turns * nbytes / (perf_counter() - begun)
        assert bool((here == cp.arange(nbytes // 4, dtype=np.uint32)).all()), "the bytes arrive changed"
    return rate


@dataclass
class Made:
    """A graph in tiles as a store has them."""

    coded: CodedGraph
    degree: NDArray[np.uint32]

    def taken(self, devices: int, group_edges: int, *, stays: bool) -> Taken:
        """Give it in the groups that so many devices take, each those of a stripe."""
        stats, rows, sizes = self.coded.stats, self.coded.tile_rows, self.coded.sizes
        weights = resident_weights(rows, stats.tile_edges) if stays else sizes
        bounds, stripes = group_bounds(
            weighted_stripes(weights, [1] * devices), stats.tile_edges, group_edges
        )
        layout = layout_of(stats, rows, sizes, bounds)
        return Taken(
            InMemory(rows, self.coded.source, self.degree).grouped(layout),
            grouped_stats(stats, layout),
            stripes,
            [int(sizes[bounds[first] : bounds[last]].sum()) for first, last in stripes],
        )


class Taken(NamedTuple):
    """A graph in the groups that devices take, and the stripe of each device with its encoded bytes."""

    store: GroupedStore
    stats: GraphStats
    stripes: tuple[tuple[int, int], ...]
    stripe_bytes: list[int]


def made(scale: int, tile_edges: int, threads: int) -> Made:
    """Make R-MAT by out-degree; nothing of it stays on the device."""
    graph = graphs.rows_of("rmat", *graphs.makers([scale], 0, [])[f"rmat{scale} by degree"]())
    degree = cp.asnumpy(cp.bincount(graph.columns, minlength=graph.nodes)).astype(np.uint32)
    return Made(CodedGraph(graph, tile_edges, threads), degree)


def planned(taken: Taken, settings: Settings, *, stays: bool) -> Plan:
    """Plan with all tiles on the devices, or with none there and all in pinned memory."""

    def plan(given: list[int]) -> Plan:
        request = plan_request(settings, memory=PLENTY, device_memory=tuple(given))
        return plan_on_devices(taken.stats, taken.store.layout, request, taken.stripes, all_resident=stays)

    most = plan([PLENTY] * len(taken.stripes))
    return most if stays else plan([tiers.need.total for tiers in most.devices])


def figures(solution: Solution, stats: GraphStats, streamed: int, link: float) -> dict[str, Any]:
    """What a run says of itself; passes are those after the first, which pins the tiles."""
    seconds = [record.seconds for record in solution.history[1:]]
    each = float(np.median(seconds))
    cell = {
        "passes": solution.passes,
        "ms a pass": 1e3 * each,
        "best ms a pass": 1e3 * min(seconds),
        "seconds after the first pass": sum(seconds),
        "GTEPS": stats.edges / each / 1e9,
        "bound": solution.error_bound,
        "GB of a device": solution.peak_device_memory / 1e9,
    }
    return cell | ({"share of the links": streamed / each / link} if streamed else {})


def predicted(
    store: GroupedStore, plan: Plan, settings: Settings, device: str, found: Solution
) -> dict[str, float]:
    """What a plan that measures tells of a run, over what was found."""
    timing = plan.timing(measure_rates(store, plan, settings, backend=device))
    told = max(tiers.typical for tiers in plan.devices)
    return {
        "a pass": timing.each / float(np.median([record.seconds for record in found.history[1:]])),
        "as many passes, in all": replace(timing, loading=0.0).seconds(found.passes) / found.seconds,
        "passes": plan.passes / found.passes,
        "memory of a device": told / found.peak_device_memory,
    }


def busy(trace: Trace, seconds: float, devices: int) -> dict[str, float]:
    """Share of the last so many seconds in which each device was sent to and computed."""
    end = max(span.end for span in trace.spans)
    shares = {}
    for device in range(devices):
        for kind in (COPY, COMPUTE):
            track = f"{kind}, device {device}"
            part = Trace()
            for span in trace.spans:
                if span.track == track and span.end > end - seconds:
                    part.add(kind, span.name, max(span.begin, end - seconds), span.end)
            shares[track] = part.busy().get(kind, 0.0) / seconds
    return shares


def measure_links(bench: Bench, devices: list[Device], links: dict[str, float]) -> None:
    """Rates of the links alone, together, and from device to device."""
    for number, device in enumerate(devices):
        rate = link_rates([device])[0]
        links.setdefault("first", rate)
        bench.note("links", f"device {number} alone, GB/s", rate / 1e9)
    together = link_rates(devices)
    links["all"] = sum(together)
    bench.note("links", "each of all at once, GB/s", [rate / 1e9 for rate in together])
    bench.note("links", "all at once, GB/s", links["all"] / 1e9)


def measure_peers(bench: Bench, devices: list[Device]) -> None:
    """Rates between neighbours, both ways."""
    for source, target in pairwise(devices):
        for one, other in ((source, target), (target, source)):
            bench.note("links", f"cuda:{one.index} to cuda:{other.index}, GB/s", peer_rate(one, other) / 1e9)


def measure_runs(
    bench: Bench,
    name: str,
    taken: Taken,
    names: list[str],
    links: dict[str, float],
    trace_file: Path,
    *,
    stays: bool,
) -> None:
    """Runs on all devices and on the first, with the same stripes."""
    settings, store, stats = Settings(), taken.store, taken.stats
    plan = planned(taken, settings, stays=stays)
    where = "tiles on the devices" if stays else "streamed"
    streamed = 0 if stays else stats.column_bytes
    tiles = len(store.layout.edges)
    bench.note(name, f"{where}: tiles, B/edge", [tiles, stats.column_bytes / stats.edges])
    bench.note(name, f"{where}: groups", stats.tiles)
    largest = max(taken.stripe_bytes) * len(names) / stats.column_bytes
    bench.note(name, f"{where}: bytes of the largest stripe over their mean", largest)
    bench.note(name, f"{where}: sweeps", plan.sweeps)
    rank = partial(rank_graph, store, plan, settings)
    every = ",".join(names)
    several = [rank(backend=every) for _ in range(RUNS)]
    for turn, solution in enumerate(several):
        cell = figures(solution, stats, streamed, links.get("all", float("nan")))
        bench.note(name, f"{where}, {len(names)} devices, run {turn}", cell)
    middle = sorted(several, key=lambda run: run.seconds)[RUNS // 2]
    bench.note(name, f"{where}: predicted/found", predicted(store, plan, settings, every, middle))
    one = rank(backend=names[0])
    bench.note(name, f"{where}, one device", figures(one, stats, streamed, links.get("first", float("nan"))))
    same = [bool((one.ranks == other.ranks).all()) for other in several]
    bench.note(name, f"{where}: same bits as one device", same)
    passes = [float(np.median([record.seconds for record in run.history[1:]])) for run in (one, middle)]
    bench.note(name, f"{where}: times as fast as one device", passes[0] / passes[1])
    trace = Trace()
    traced = rank(backend=every, trace=trace)
    later = sum(record.seconds for record in traced.history[1:])
    bench.note(name, f"{where}: traced, ms a pass", 1e3 * later / (traced.passes - 1))
    bench.note(name, f"{where}: busy after the first pass", busy(trace, later, len(names)))
    trace.write(trace_file)


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")) / "device_several.json")
    parser.add_argument("--device", default="cuda:all", help="which, such as cuda:0,cuda:1")
    parser.add_argument("--scale", type=int, default=26, help="of R-MAT")
    parser.add_argument("--quick", action="store_true", help="R-MAT 20, in small groups")
    graphs.add_sizes(parser, SHARED_EDGES[0])
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    options = parser.parse_args(arguments)
    # If all stay, groups are those of a run.
    group_edges = {True: GROUP_EDGES[0], False: options.group_edges}
    if options.quick:
        options.scale, group_edges = min(options.scale, 20), dict.fromkeys(group_edges, SHARED_EDGES[-1])
    names = chosen_device(options.device, None).split(",")
    bench = Bench(options.out, RUNS)
    bench.note("machine", "devices", names)
    links: dict[str, float] = {}
    devices = [Device(int(name.partition(":")[2])) for name in names]
    bench.guard("links", "host to devices", partial(measure_links, bench, devices, links))
    bench.guard("links", "device to device", partial(measure_peers, bench, devices))
    name = f"rmat{options.scale} by degree"

    def runs() -> None:
        begun = perf_counter()
        graph = made(options.scale, options.tile_edges, options.threads)
        stats = graph.coded.stats
        bench.note(name, "seconds to make", perf_counter() - begun)
        bench.note(name, "nodes, edges, stored tiles", [stats.nodes, stats.edges, stats.tiles])
        takens = {stays: graph.taken(len(names), group_edges[stays], stays=stays) for stays in (False, True)}
        # What making it took of a device is no part of what runs take.
        cp.get_default_memory_pool().free_all_blocks()
        for stays, taken in takens.items():
            what = "tiles on the devices" if stays else "streamed"
            file = options.out.with_name(f"{options.out.stem}-{'stays' if stays else 'streamed'}-trace.json")
            work: Callable[[], object] = partial(
                measure_runs, bench, name, taken, names, links, file, stays=stays
            )
            bench.guard(name, what, work)
            for device in devices:
                with device:
                    cp.get_default_memory_pool().free_all_blocks()

    bench.guard(name, "runs", runs)


if __name__ == "__main__":
    main()
