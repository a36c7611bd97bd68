"""Rank graphs whose tiles stream through a CUDA device, beside the link's own rate and raw columns on it.

For each graph: the rate of the link alone, as many bytes at a time as a group has; whole runs with no tile
kept on the device, to a certified error; and, beside them, power iteration that streams plain columns of four
bytes in the same way, to the same true error, and what it would take at the full rate of the link.

With ``--kernels``, instead, whole runs with each of these products: with all groups on the device, and within
`--device-memory` bytes of it.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

import cupy as cp
import device_graphs as graphs
import numpy as np
from device_graphs import CodedGraph
from device_rank import Bench, Peer, Stripe, stripe_spec
from numpy.typing import NDArray
from plain_tiles import plain_tile

from oocpr.engine import method
from oocpr.engine.cuda.backend import CudaBackend
from oocpr.engine.cuda.baselines import BASELINES, parse_kernel
from oocpr.engine.cuda.device import Device, free_memory
from oocpr.engine.planning import plan_for_devices, plan_request
from oocpr.engine.probe.measure import measure_rates
from oocpr.engine.run import rank_graph
from oocpr.engine.settings import Settings
from oocpr.engine.tiles.groups import GroupedStore
from oocpr.engine.trace import COPY, Trace
from oocpr.plan.device_plan import plan_on_devices
from oocpr.plan.forecast import DEVICE_MIXING, streamed_sweeps
from oocpr.plan.tile_groups import STREAMED_EDGES, grouped_stats
from oocpr.store.codec.tiles import encode_tile
from oocpr.units import parse_bytes

if TYPE_CHECKING:
    from device_graphs import Coded
    from plain_tiles import Encode

    from oocpr.engine.cuda.staging import CudaTileStream
    from oocpr.plan.plan import Plan
    from oocpr.plan.request import GraphStats
    from oocpr.plan.tile_groups import GroupLayout
    from oocpr.store.graph import GraphStore

PLENTY = 1 << 60


@dataclass
class InMemory:
    """A graph whose encoded tiles are in memory; a `RankedStore`."""

    tile_rows: NDArray[np.int64]
    encoded: Coded
    degree: NDArray[np.uint32]
    weights: None = None
    identity: str = ""  # no other process opens it
    path: str = "a graph in memory"

    @property
    def nodes(self) -> int:
        """See RankedStore."""
        return len(self.degree)

    @property
    def edges(self) -> int:
        """See RankedStore."""
        return int(self.degree.sum(dtype=np.int64))

    @property
    def dangling(self) -> int:
        """See RankedStore."""
        return int((self.degree == 0).sum())

    def out_degree(self, lo: int, hi: int) -> NDArray[np.uint32]:
        """See RankedStore."""
        return self.degree[lo:hi]

    def out_weight(self, lo: int, hi: int) -> NDArray[np.float64]:
        """See RankedStore."""
        return self.degree[lo:hi].astype(np.float64)

    def tile_sizes(self) -> NDArray[np.int64]:
        """See GraphStore."""
        return np.array([len(tile) for tile in self.encoded.tiles])

    def grouped(self, layout: GroupLayout) -> GroupedStore:
        """The graph in groups of its tiles."""
        # Nothing is asked of it that a store has beside.
        return GroupedStore(cast("GraphStore", self), layout)


class Streamed:
    """A graph whose groups of tiles are in pinned memory."""

    def __init__(
        self,
        graph: graphs.DeviceGraph,
        options: argparse.Namespace,
        *,
        pairs: bool,
        encode: Encode = encode_tile,
    ) -> None:
        self.backend = CudaBackend(Device(0), pairs=pairs, inside="groups", overlap=True)
        self.nodes, self.edges = graph.nodes, graph.edges
        self.coded = CodedGraph(graph, options.tile_edges, options.threads, encode)
        self.layout = self.coded.layout(options.group_edges)
        self.tiles, self.groups = self.coded.stats.tiles, len(self.layout.bounds) - 1
        self.bytes = self.coded.stats.column_bytes
        self.local_share = self.coded.stats.local_share
        self.degree = cp.asnumpy(cp.bincount(graph.columns, minlength=graph.nodes)).astype(np.uint32)
        self.stream = self.opened()

    def opened(self, trace: Trace | None = None) -> CudaTileStream:
        """Open a stream of all groups, none of which stays on the device."""
        return self.coded.open_stream(self.backend, self.layout, stays=False, trace=trace)

    def traced(self, settings: Settings) -> tuple[Trace, list[float]]:
        """Timeline of a run of its own, and seconds of each pass."""
        trace = Trace()
        kept, self.stream = self.stream, self.opened(trace)
        _, seconds, _ = self.rank(settings)
        self.stream.close()
        self.stream = kept
        return trace, seconds

    def rank(self, settings: Settings, passes: int | None = None) -> tuple[Any, list[float], float]:
        """One run, of so many passes where that is given: ranks, seconds of each pass, and the bound."""
        spec = stripe_spec(self.layout, self.nodes, settings, proposals=settings.mixed)
        rows = self.backend.allocate(spec, self.degree, None)
        reads = self.backend.allocate_reads(self.nodes, settings.reads, spec.proposals)
        stripe = Stripe(spec, self.layout.group_rows, self.backend, rows, self.stream)
        whole = stripe.passes(settings, reads, recorded=False)
        state = method.begin(settings, 1, 1 / self.nodes)
        seconds = []
        while state.number < (passes or settings.pass_limit):
            begun = perf_counter()
            state = stripe.run_pass(settings, state, whole)
            seconds.append(perf_counter() - begun)
            if passes is None and settings.satisfied(state.residuals[-1]):
                break
        cp.cuda.Device().synchronize()
        ranks = rows.ranks + rows.residual
        return ranks / ranks.sum(), seconds, settings.bound(state.residuals[-1])


def predicted(there: Streamed, settings: Settings, found: list[float]) -> dict[str, float]:
    """What a plan that measures tells of a pass and of the passes, over what was found."""
    coded, layout = there.coded, there.layout
    stats = grouped_stats(coded.stats, layout)

    def planned(given: int) -> Plan:
        request = plan_request(settings, memory=PLENTY, device_memory=(given,))
        return plan_on_devices(stats, layout, request, all_resident=False)

    tiers = planned(PLENTY).device
    assert tiers is not None, "a device computes"
    plan = planned(tiers.need.total)
    store = InMemory(coded.tile_rows, coded.source, there.degree).grouped(layout)
    timing = plan.timing(measure_rates(store, plan, settings, backend="cuda"))
    return {"a pass": timing.each / float(np.median(found[1:])), "passes": plan.passes / len(found)}


def link_rate(nbytes: int, repeats: int = 5) -> float:
    """Bytes a second from pinned memory, in pieces of that size, nothing else going on."""
    device = Device(0)
    pinned = [device.pinned(nbytes) for _ in range(4)]
    slots = [cp.empty(nbytes, np.uint8) for _ in range(4)]
    best = 0.0
    for _ in range(repeats):
        device.synchronize()
        begun = perf_counter()
        for _ in range(4):
            for slot, values in zip(slots, pinned, strict=True):
                mark = device.upload_async(slot, values)
        mark.synchronize()
        best = max(best, 16 * nbytes / (perf_counter() - begun))
    return best


def copying(trace: Trace, groups: int, seconds: list[float], link: float) -> dict[str, float]:
    """What a timeline says of copies after two passes, the first of which pins the tiles; a group has one."""
    copies = sorted((span for span in trace.spans if span.track == COPY), key=lambda span: span.begin)[
        2 * groups :
    ]
    begun, ended = copies[0].begin, max(span.end for span in copies)
    gaps = [max(0.0, after.begin - before.end) for before, after in pairwise(copies)]
    return {
        "ms a pass": 1e3 * float(np.median(seconds[1:])),
        "copies": len(copies),
        "share of the time in copies": 1 - sum(gaps) / (ended - begun),
        "longest gap, ms": 1e3 * max(gaps),
        "middle gap, ms": 1e3 * float(np.median(gaps)),
        "share of the link, copies and gaps": sum(s.nbytes for s in copies) / (ended - begun) / link,
    }


def measure(
    bench: Bench, name: str, make: Callable[[], tuple[int, Any]], options: argparse.Namespace
) -> None:
    """Everything that is measured on one graph."""
    graph = graphs.rows_of(name, *make())
    note = partial(bench.note, name)
    note("nodes", graph.nodes)
    note("edges", graph.edges)
    there = Streamed(graph, options, pairs=True)
    per_edge = there.bytes / graph.edges
    link = link_rate(there.bytes // there.groups)
    peer = Peer(graph, there.degree, 0.85)
    note("tiles", there.tiles)
    note("groups", there.groups)
    note("B/edge", per_edge)
    note("link alone, GB/s", link / 1e9)
    note("GTEPS at that rate", link / per_edge / 1e9)
    exact: Any = None
    usual = streamed_sweeps(per_edge, there.local_share)
    for sweeps in sorted({1, usual, *options.sweeps}):
        settings = Settings(sweeps=sweeps, mixing=DEVICE_MIXING)
        there.rank(settings)
        ranks, seconds, bound = there.rank(settings)
        exact = peer.settled(ranks) if exact is None else exact
        error = float(cp.abs(ranks - exact).sum())
        each = float(np.median(seconds[1:]))
        needed = peer.sweeps_to(exact, [error])
        raw = 4 * graph.edges / link * next(iter(needed.values()))
        cell = {
            "passes": len(seconds),
            "seconds": sum(seconds),
            "ms a pass": 1e3 * each,
            "GTEPS": graph.edges / each / 1e9,
            "share of the link": there.bytes / each / link,
            "bound": bound,
            "true error": error,
            "plain columns at the rate of the link, seconds": raw,
            "factor": raw / sum(seconds),
        }
        note(f"streamed, sweeps {sweeps}{' (planned)' * (sweeps == usual)}", cell)
        if sweeps == usual:
            planned, power = cell, next(iter(needed.values()))
            found = seconds
    planned_as = Settings(sweeps=usual, mixing=DEVICE_MIXING)
    note("predicted/found, as planned", predicted(there, planned_as, found))
    trace, seconds = there.traced(planned_as)
    note("traced, as planned", copying(trace, there.groups, seconds, link))
    trace.write(options.out.with_name(f"{options.out.stem}-{name.replace(' ', '-')}-trace.json"))
    del there
    measure_plain(graph, options, note, planned, power, exact)


def measure_plain(
    graph: graphs.DeviceGraph,
    options: argparse.Namespace,
    note: Callable[[str, Any], None],
    planned: dict[str, float],
    passes: int,
    exact: Any,
) -> None:
    """Power iteration that streams columns of four bytes, to the true error of the planned run."""
    there = Streamed(graph, options, pairs=False, encode=plain_tile)
    settings = Settings(method="power", reads="float64", mixing=0)
    there.rank(settings, 2)
    ranks, seconds, _ = there.rank(settings, passes)
    each = float(np.median(seconds[1:]))
    cell = {
        "B/edge": there.bytes / graph.edges,
        "passes": passes,
        "seconds": sum(seconds),
        "ms a pass": 1e3 * each,
        "GTEPS": graph.edges / each / 1e9,
        "true error": float(cp.abs(ranks - exact).sum()),
        "factor": sum(seconds) / planned["seconds"],
    }
    note("power iteration, plain columns", cell)


def measure_kernels(
    bench: Bench, name: str, make: Callable[[], tuple[int, Any]], options: argparse.Namespace
) -> None:
    """Whole runs with each product, resident and within some memory of the device."""
    graph = graphs.rows_of(name, *make())
    coded = CodedGraph(graph, options.tile_edges, options.threads)
    degree = cp.asnumpy(cp.bincount(graph.columns, minlength=graph.nodes)).astype(np.uint32)
    exact = cp.asnumpy(Peer(graph, degree, 0.85).settled(cp.full(graph.nodes, 1 / graph.nodes)))
    del graph
    store = InMemory(coded.tile_rows, coded.source, degree)
    link = link_rate(1 << 26)
    bench.note(name, "link alone, GB/s", link / 1e9)
    for memory in (None, options.device_memory):
        for kernel in options.kernels:
            what = f"{kernel}, {memory or 'resident'}"
            cell = partial(kernel_cell, store, coded.stats, kernel, memory, exact, link)
            bench.guard(name, what, partial(note_cell, bench, name, what, cell))


def note_cell(bench: Bench, name: str, what: str, cell: Callable[[], dict[str, Any]]) -> None:
    """Note what is measured."""
    bench.note(name, what, cell())


def kernel_cell(
    store: InMemory,
    stats: GraphStats,
    kernel: str,
    memory: str | None,
    exact: NDArray[np.float64],
    link: float,
) -> dict[str, Any]:
    """What a run with one product took: the second one, since the first compiles."""
    # What others took of the device is none of this run's memory.
    cp.get_default_memory_pool().free_all_blocks()
    name, _ = parse_kernel(kernel)
    divides = name in BASELINES and BASELINES[name].divides
    settings = Settings(method="power", reads="float64") if divides else Settings()
    request = plan_request(
        settings,
        memory=PLENTY,
        device_memory=(free_memory("cuda") if memory is None else parse_bytes(memory),),
        promised=memory is not None,
        kernel=name,
    )
    plan, groups = plan_for_devices(cast("GraphStore", store), stats, request, ("cuda:0",))
    tiers = plan.devices[0]
    for _ in range(2):
        run = rank_graph(groups, plan, settings, backend="cuda", kernel=kernel)
    each = float(np.median([record.seconds for record in run.history[1:]]))
    sent = stats.column_bytes * (1 - tiers.on_device / plan.stats.tiles) * plan.partitions
    error = float(np.abs(run.ranks - exact).sum())
    return {
        "groups on the device": f"{tiers.on_device} of {plan.stats.tiles}",
        "laid out once": tiers.layouts_stay,
        "passes": run.passes,
        "ms a pass": 1e3 * each,
        "of them preparing": 1e3 * (run.preparing_seconds or 0.0) / run.passes,
        "GTEPS": store.edges / each / 1e9,
        "share of the link": sent / each / link,
        "device memory, MiB": run.peak_device_memory / 2**20,
        "predicted, MiB": tiers.typical / 2**20,
        "bound": run.error_bound,
        "true error": error,
        # The ranks that it is compared with are rounded, too.
        "within the bound": error <= run.error_bound + 1e-13,
    }


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")) / "device_stream.json")
    graphs.add_options(parser, STREAMED_EDGES[0])
    parser.add_argument("--crawl", type=Path, metavar="FILE.npz", help="a crawl to be grown")
    parser.add_argument("--copies", type=int, default=90, help="how many times")
    parser.add_argument("--sweeps", type=int, nargs="*", default=[])
    parser.add_argument("--kernels", nargs="*", default=[], help="products, measured in whole runs instead")
    parser.add_argument("--device-memory", default="2GiB", help="of the runs that stream")
    parser.add_argument("--threads", type=int, default=16)
    options = parser.parse_args(arguments)
    bench = Bench(options.out, 1)
    made = graphs.makers(options.scales, options.web, options.matrix)
    if options.crawl:
        made[f"{options.crawl.stem} x{options.copies}"] = partial(
            graphs.grown_edges, options.crawl, options.copies
        )
    for name, make in made.items():
        if "permuted" not in name:
            work = measure_kernels if options.kernels else measure
            bench.guard(name, "streamed", partial(work, bench, name, make, options))
            cp.get_default_memory_pool().free_all_blocks()


if __name__ == "__main__":
    main()
