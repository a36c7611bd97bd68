"""Plans of runs on this machine: `oocpr.plan` with sizes of stores and what is free here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby, pairwise
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from oocpr.engine.tiles.groups import GroupedStore
from oocpr.errors import DoesNotFitError, SetupError, UsageError
from oocpr.plan.device_plan import ROW_EDGES, plan_on_devices, resident_weights
from oocpr.plan.forecast import DEVICE_EDGES, DEVICE_MIXING, LINK_BYTES, MAX_SCC_EDGES, Passes
from oocpr.plan.memory import SEGMENTED_KERNELS, SEGMENTED_METHODS, weighted_tile_bytes
from oocpr.plan.partition import speed_shares, stripe_owner, stripe_tiles, weighted_stripes
from oocpr.plan.processor_plan import choose_method, make_plan
from oocpr.plan.request import BALANCED, GraphStats, PlanRequest
from oocpr.plan.residency import IO, wants_direct
from oocpr.plan.tile_groups import (
    HOST_ROW_BYTES,
    SHARED_EDGES,
    STREAMED_EDGES,
    GroupLayout,
    GroupSize,
    group_bounds,
    group_sizes,
    grouped_stats,
    layout_of,
    pass_bytes,
)
from oocpr.plan.ways import explained
from oocpr.store.checkpoint import WRITING_BYTES
from oocpr.system import available_memory, resident, resident_after_trim, usable_cores, whole_memory
from oocpr.units import format_bytes, format_count, parse_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from oocpr.engine.settings import Settings
    from oocpr.engine.tiles.source import RankedStore
    from oocpr.plan.plan import Plan
    from oocpr.progress import Progress
    from oocpr.store.graph import GraphStore

    Planned = tuple[Plan, RankedStore]
    """A plan, and the graph in its tiles or groups."""

WORKER_SHARE = 3 / 4
"""Share of its memory limit that is planned for a Dask worker: at four fifths it takes no more tasks."""

DEFAULT_READS = {"components": "float32", **dict.fromkeys(("power", *SEGMENTED_METHODS), "float64")}
"""Reads of the methods that want others than bits16."""

MAX_READING_CORES = 16
"""Processors that a worker with a device is taken to have."""

KERNEL_BYTES = 80 << 20
"""What numba's compiled functions take once a run has loaded them; 68 to 76 MiB were measured."""

COMPILER_BYTES = 2**28
"""What compiling takes at most; 150 MiB were seen."""


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """What a run is asked for beside its settings, as for `oocpr.pagerank`."""

    auto: bool = False  # whether the method may be changed to "components"
    memory: str | int | None = None
    device_memory: str | int | None = None
    stripes: int | None = None
    threads: int | None = None
    device: str = "cpu"
    kernel: str | None = None
    io: str = "auto"
    reproducible: bool = False
    personalized: bool = False  # whether the teleport vector is not uniform
    started: bool = False  # whether the run begins from another vector
    alone: bool = True  # whether this process computes, without a cluster
    workers: int = 1  # processes of the cluster
    speeds: Sequence[float] = ()  # what was measured of them, in the order in which they get stripes
    first_tiles: Sequence[int] = ()  # of the stripes of a run that goes on, if they are not alike
    free: Sequence[int] = ()  # bytes of each CUDA device of the cluster's workers, if they are to be used
    limits: Sequence[
        int
    ] = ()  # bytes of memory of the workers, which share the stripes; empty without limits
    kept: bool = False  # whether checkpoints are written
    reusable: int = 0  # bytes of the process that earlier runs left for those in memory
    explain: bool = False  # whether a plan says what other ways to divide the graph take of a device


class PlannedRun(NamedTuple):
    """Settings and plan of a run, and the graph in the tiles that it takes."""

    settings: Settings
    plan: Plan
    store: RankedStore


class Loading(NamedTuple):
    """Seconds that loading compiled functions took, and those of them in which something was compiled."""

    seconds: float = 0.0
    compiling: float = 0.0


def asked_settings(method: str, reads: str | None, **others: Any) -> Settings:
    """Settings as far as they are known before a graph is open; ``"auto"`` counts as ``"mixed"``."""
    from oocpr.engine.number_formats import READS
    from oocpr.engine.settings import Settings, usual_reads

    chosen = "mixed" if method == "auto" else method
    damping = others.get("damping", Settings.damping)
    settings = Settings(
        method=chosen, reads=reads or DEFAULT_READS.get(chosen) or usual_reads(damping), **others
    )
    unit = READS[settings.reads].unit_rounding
    if chosen == "power" and (unit > settings.tol or settings.reads == "bits8"):
        stalls = f"stalls above tol {settings.tol:g}" if unit > settings.tol else "loses its small numbers"
        raise UsageError(
            f"power iteration rounds its iterate to reads {settings.reads}, by up to {unit:.1e}, and "
            f"{stalls}.",
            "Use reads float64, or a method that keeps an exact residual: mixed or residual.",
        )
    return settings


def given_memory(memory: str | int | None) -> int:
    """Most bytes that the process may hold: what somebody gave, or what the machine has free."""
    return available_memory() if memory is None else parse_bytes(memory)


def process_bytes(device: str = "cpu", *, trim: bool = True) -> int:
    """Bytes of the process before a run, its kernels loaded; `trim`: once freed memory is given back."""
    from oocpr.engine.cuda.device import free_memory
    from oocpr.engine.cuda.names import named_devices

    for name in named_devices(device):
        # Who asks has the driver there, which takes memory of the process. A device that is not there is
        # refused in its turn.
        with suppress(SetupError, UsageError):
            free_memory(name)
    return (resident_after_trim() if trim else resident()) + KERNEL_BYTES


def plan_loaded(
    store: GraphStore, settings: Settings, request: RunRequest, progress: Progress
) -> tuple[PlannedRun, Loading]:
    """Plan a run; on processors, if memory is tight, once what is compiled for it has taken its memory."""
    from oocpr.engine.probe.measure import load_functions

    begun, device = perf_counter(), request.device if request.alone else "cpu"
    run = plan_run(store, settings, request, process_bytes(device, trim=False))
    # Memory that is given back has to be taken again: for small runs a tenth of their time.
    if 2 * (run.plan.need.total + run.plan.cache_bytes) > run.plan.memory:
        run = plan_run(store, settings, request, process_bytes(device))
    plan = run.plan
    spare = plan.memory - plan.need.total - plan.cache_bytes
    tiled = plan.method not in ("components", *SEGMENTED_METHODS)
    processors = request.alone and request.device == "cpu" and tiled
    if not processors or not 0 <= spare < COMPILER_BYTES:
        return run, Loading()
    compiling, loaded = 0.0, set[tuple[bool, ...]]()
    # Once it is known what they take, there may be room for more, for which others are called.
    while (called := _called(run.plan)) not in loaded:
        loaded.add(called)
        compiling += load_functions(store, run.plan, run.settings, progress)
        run = plan_run(store, settings, request, resident_after_trim())
    return run, Loading(perf_counter() - begun, compiling)


def _called(plan: Plan) -> tuple[bool, ...]:
    """What decides which compiled functions a run calls."""
    return plan.decoded, plan.sweeps > 1, plan.proposals, plan.mixing > 0


def count_passes(path: Path, memory: int, progress: Progress) -> int:
    """Rank a graph on processors by method ``mixed`` to a residual of 1e-10; returns the passes that it took.

    They are those with any memory: DoesNotFitError if it is too short to remember as many passes as usual.
    """
    from oocpr.engine.run import rank_graph
    from oocpr.engine.settings import Settings
    from oocpr.store.graph import open_store

    store, settings = open_store(path), Settings(stop="residual")
    planned, _ = plan_loaded(store, settings, RunRequest(memory=memory), progress)
    plan = planned.plan
    needed = plan.need.total + 8 * store.nodes * (settings.mixing - plan.mixing)
    if needed > memory:
        raise DoesNotFitError(
            f"Ranking {format_count(store.nodes)} nodes needs {format_bytes(needed)} of memory, "
            f"not {format_bytes(memory)}.",
            "Give more memory, or name an order: degree takes less.",
        )
    return rank_graph(planned.store, plan, planned.settings, progress=progress).passes


def timed(run: PlannedRun, request: RunRequest, progress: Progress) -> Plan:
    """Measure, and say in the plan how long its run takes."""
    from oocpr.engine.probe.measure import measure_rates, measure_segmented, measure_whole

    settings, plan, store = run
    if plan.method == "components" and plan.stats.edges <= MAX_SCC_EDGES:
        timing, passes = measure_whole(store, settings, request.threads, progress)
        return replace(plan, expected=Passes(passes, passes, passes), forecast=timing)
    if plan.method in SEGMENTED_METHODS:
        found = measure_segmented(
            store, plan, settings, request.device, request.threads, progress, kernel=request.kernel
        )
        return replace(plan, forecast=found)
    # Of larger graphs in memory, one sweep is measured.
    settings = replace(settings, method="residual") if plan.method == "components" else settings
    # Stripes that share a device take their turns: they are measured as one.
    measured = plan.with_a_stripe_each() if plan.shares_devices else plan
    rates = measure_rates(
        store,
        measured,
        settings,
        backend=request.device,
        threads=request.threads,
        kernel=request.kernel,
        progress=progress,
    )
    return replace(plan, forecast=measured.timing(rates))


def _product_of(kernel: str | None) -> str:
    """Name of the product that a kernel stands for; the default if there is none."""
    if kernel is None:
        return BALANCED
    from oocpr.engine.cuda.baselines import parse_kernel

    return parse_kernel(kernel)[0]


def plan_run(store: GraphStore, settings: Settings, request: RunRequest, base: int) -> PlannedRun:
    """Plan a run on an open graph, in a process that has `base` bytes before it.

    Raises UsageError for what the graph, the method, the device, its kernel and the file system do not go
    with.
    """
    from oocpr.engine.cpms.run import check_segmented_kernel
    from oocpr.engine.cuda.names import named_devices
    from oocpr.engine.devices import check_weighted

    devices = named_devices(request.device)
    if request.device_memory is not None and not devices and not request.free:
        raise UsageError(
            f"device memory {request.device_memory} was given and the device is {request.device}.",
            "Use device cuda, or leave device memory out.",
        )
    asked = given_memory(request.memory)
    given = min([asked, *(int(limit * WORKER_SHARE) for limit in request.limits)])
    stats = stats_of(store)
    if stats.weighted:
        check_weighted(settings.method, request.kernel)

    stripes = request.stripes
    if stripes is None and request.alone and not devices and not request.reproducible:
        # Others would take memory, and passes; workers need them.
        stripes = 1
    wanted = plan_request(
        settings,
        memory=given,
        base=base + (WRITING_BYTES if request.kept else 0),
        stripes=stripes,
        workers=request.workers,
        promised=request.device_memory is not None,
        personalized=request.personalized,
        started=request.started,
        reproducible=request.reproducible,
        kernel=_product_of(request.kernel),
    )
    better = None
    # What earlier runs left is of use to those in memory; beside others it stays.
    less = wanted.base - request.reusable
    if request.auto and settings.solvable:
        method, better = choose_method(stats, replace(wanted, base=less))
        settings = replace(settings, method=method, reads=DEFAULT_READS.get(method, settings.reads))
        wanted = replace(wanted, method=settings.method, reads=settings.reads)
    if settings.method == "components":
        wanted = replace(wanted, base=less)
    tiled: RankedStore = store
    if settings.method in SEGMENTED_METHODS:
        check_segmented_kernel(settings.method, request.kernel)
    else:
        _check_kernel(settings, wanted.kernel)
    if devices and settings.method in SEGMENTED_METHODS:
        wanted = replace(wanted, device_memory=_device_memory(devices, request))
        plan, tiled = _plan_segmented(store, stats, wanted, devices, explain=request.explain)
    elif devices or request.free:
        if not request.free:
            _check_devices(devices, request, stats.tiles)
        wanted = replace(wanted, device_memory=_device_memory(devices, request))
        plan, tiled = plan_for_devices(
            store, stats, wanted, () if request.free else devices, explain=request.explain
        )
    else:
        plan = make_plan(stats, wanted)
        if request.first_tiles or request.speeds:
            wanted = replace(wanted, bounds=_cut(plan, request))
            plan = make_plan(stats, wanted)
        if given < asked and plan.fits and plan.method != "components":
            # Each worker has vectors, history and tiles of its own stripes only.
            need = plan.need
            alike = need.total - need.vectors - need.history
            more = min(asked, alike + (given - alike) * stats.tiles // _most_tiles(plan, len(request.limits)))
            plan = make_plan(stats, replace(wanted, memory=more))
        plan = replace(plan, better=better or plan.better)
    return PlannedRun(settings, _with_io(plan, request, store), tiled)


def _cut(plan: Plan, request: RunRequest) -> tuple[tuple[int, int], ...]:
    """Tiles of each stripe of a run that goes on, or whose workers differ in speed."""
    tiles = plan.stats.tiles
    if request.first_tiles:
        return tuple(pairwise([*request.first_tiles, tiles]))
    return weighted_stripes(np.ones(tiles, np.int64), speed_shares(request.speeds, len(plan.stripes)))


def _most_tiles(plan: Plan, workers: int) -> int:
    """Tiles of the worker that has most."""
    of = [0] * workers
    for stripe, (first, last) in enumerate(plan.stripes):
        of[stripe_owner(stripe, len(plan.stripes), workers)] += last - first
    return max(of)


def _plan_segmented(
    store: GraphStore, stats: GraphStats, request: PlanRequest, devices: Sequence[str], *, explain: bool
) -> Planned:
    """Plan a run of a segmented method on a device.

    It takes at most what power iteration does of a graph with weights, which are as large as matrix values,
    by a product of a thread a row: of a row two vectors and a matrix value, where that has four numbers.
    """
    kernel = SEGMENTED_KERNELS[0] if request.kernel == BALANCED else request.kernel
    like = replace(request, method="power", kernel=kernel)
    plan, tiled = plan_for_devices(
        store, replace(stats, weighted=True), like, devices, rows_in_host=False, explain=explain
    )
    (tiers,) = plan.devices
    return replace(
        plan,
        method=request.method,
        stats=replace(plan.stats, weighted=False),
        devices=(replace(tiers, typical=tiers.typical - 8 * stats.nodes),),
    ), tiled


def _check_kernel(settings: Settings, kernel: str) -> None:
    """Raise UsageError if a kernel does not go with a method."""
    if kernel == BALANCED:
        return
    from oocpr.engine.cuda.baselines import BASELINES

    if BASELINES[kernel].divides and (settings.method, settings.reads) != ("power", "float64"):
        raise UsageError(
            f"kernel {kernel!r} gathers ranks in float64, and method {settings.method} does not push them.",
            "Use method power with reads float64, or kernel exchange.",
        )


def plan_request(settings: Settings, **more: Any) -> PlanRequest:
    """What a plan is asked for with such settings, and more."""
    return PlanRequest(
        method=settings.method,
        reads=settings.reads,
        damping=settings.damping,
        tol=settings.tol,
        mixing=settings.mixing,
        **more,
    )


def _check_devices(devices: tuple[str, ...], request: RunRequest, tiles: int) -> None:
    """Refuse what devices of this process do not go with; the graph has so many tiles."""
    if not request.alone:
        raise UsageError(
            f"devices {', '.join(devices)} are of one process and a Dask client was given.",
            "Use device cuda, which each worker has its own of, or leave the client out.",
        )
    # A run over fewer tiles than devices has as many stripes as tiles, and goes on with these.
    usual = len(devices), min(len(devices), tiles)
    if len(devices) > 1 and request.stripes not in (None, *usual):
        raise UsageError(
            f"{request.stripes} stripes were asked for on {len(devices)} devices.",
            "Leave the stripes out: each device has one.",
        )


def _device_memory(devices: tuple[str, ...], request: RunRequest) -> tuple[int, ...]:
    """Bytes that a run may use of each device: those given, or what is free, which workers have reported."""
    from oocpr.engine.cuda.device import free_memory

    if request.device_memory is not None:
        return (parse_bytes(request.device_memory),) * len(request.free or devices)
    return tuple(request.free) or tuple(free_memory(device) for device in devices)


def _with_io(plan: Plan, request: RunRequest, store: GraphStore) -> Plan:
    """Decide how a run reads its tiles."""
    from oocpr.store.direct_io import refusal

    io = request.io
    if io not in IO:
        raise UsageError(f"io {io!r} is not known.", f"Use one of {', '.join(IO)}.")
    # What workers have of memory beside what Dask gives them is not known here.
    streamed = plan.uncached_bytes if request.alone else 0
    direct = wants_direct(io, streamed, whole_memory() - plan.memory if streamed else 0)
    if direct and not store.takes_direct_reads():
        if io == "direct":
            raise refusal(store.path)
        direct = False
    return replace(plan, direct=direct)


def stats_of(store: GraphStore) -> GraphStats:
    """What a plan has to know of a stored graph."""
    known = store.attributes
    # Of columns or weights that are encoded as they are read, the attributes do not say how many bytes.
    most, weights = store.encoded.max_bytes, 0 if store.weights is None else store.weights.max_bytes
    return GraphStats(
        nodes=known.nodes,
        edges=known.edges,
        tiles=known.tiles,
        tile_edges=known.tile_edges,
        column_bytes=known.encoded_bytes,
        max_tile_bytes=weighted_tile_bytes(most, weights) if known.weighted else most,
        max_tile_rows=store.max_tile_rows,
        local_share=known.local_edges / max(known.edges, 1),
        weighted=known.weighted,
        weight_bytes=known.data_bytes,
    )


def plan_for_devices(
    store: GraphStore,
    stats: GraphStats,
    request: PlanRequest,
    devices: Sequence[str],
    *,
    rows_in_host: bool = True,
    explain: bool = False,
) -> Planned:
    """Plan a run on one device or several; returns the graph in the groups that it takes, too.

    `devices` has their names in this process, and is empty if they are those of workers. `rows_in_host` says
    whether rows may be kept in memory of the host, `explain` whether the plan is to have its `ways`.

    One device takes the whole graph, and of several each has a stripe. A graph of fewer tiles than devices
    takes as many of them, the first, as it has tiles. Tiles are taken in groups of one stripe. Resident tiles
    take their time by their edges and rows, those that stream by their bytes, and stripes have as much of it
    as each other. If more stripes than devices are asked for, neighbours share a device, and stripes are
    those that processors have. Of a reproducible run, the graph, the settings and the number of devices alone
    decide on sweeps and on what is proposed.
    """
    stripes = request.stripes
    shared = stripes is not None and stripes > len(request.device_memory)
    alone = len(devices) == 1 and not shared
    given = request.device_memory[: stats.tiles if stripes is None else min(stripes, stats.tiles)]
    # How many processors workers have is not known here.
    cores = usable_cores() // len(devices) if devices else MAX_READING_CORES
    request = replace(request, device_memory=given, cores=cores)
    sizes = store.tile_sizes()
    if alone:
        resident = streamed = stripe_tiles(stats.tiles, 1)
    elif shared:
        assert stripes is not None, "more are asked for than there are devices"
        resident = streamed = stripe_tiles(stats.tiles, stripes)
    else:
        resident = weighted_stripes(resident_weights(store.tile_rows, stats.tile_edges), [1] * len(given))
        streamed = resident
        if sizes is not None and not request.reproducible:
            streamed = weighted_stripes(sizes, [1] * len(given))

    # Several ways take groups of the same size, of which all tiles are looked at.
    @cache
    def grouped(
        all_resident: bool, edges: int
    ) -> tuple[GraphStats, GroupLayout, tuple[tuple[int, int], ...]]:
        bounds, parts = group_bounds(resident if all_resident else streamed, stats.tile_edges, edges)
        layout = layout_of(stats, store.tile_rows, sizes, bounds)
        return grouped_stats(stats, layout), layout, parts

    def planned(size: GroupSize, request: PlanRequest = request) -> Planned:
        of_groups, layout, parts = grouped(size.all_resident, size.edges)
        plan = plan_on_devices(
            of_groups,
            layout,
            request,
            None if alone else parts,
            all_resident=size.all_resident,
            rows_in_host=size.rows_in_host,
            partitioned=size.partitioned,
            most_remembered=size.remembered,
        )
        return plan, GroupedStore(store, layout)

    edges = STREAMED_EDGES if len(devices) == 1 else SHARED_EDGES
    # A shorter history takes more passes.
    shorter = () if request.reproducible or request.method != "mixed" else range(DEVICE_MIXING, -1, -1)
    wanted = list(group_sizes(stats, edges, alone=alone, remembered=shorter))
    if not rows_in_host:
        wanted = [size for size in wanted if not size.rows_in_host]
    if request.reproducible:
        # Partitions of what is gathered bring a row its sums in parts.
        wanted = [size for size in wanted if not size.partitioned]
    taken, (plan, tiled) = _fastest(wanted, planned, request.kernel)
    if explain:
        nothing = replace(request, device_memory=(0,) * len(given))
        chosen = taken if plan.fits else None
        ways = explained(wanted, chosen, given, lambda size: planned(size, nothing)[0].devices)
        plan = replace(plan, ways=ways)
    return plan, tiled


def _fastest(
    sizes: Sequence[GroupSize], planned: Callable[[GroupSize], Planned], kernel: str
) -> tuple[GroupSize, Planned]:
    """Choose among plans with groups of these sizes, the fastest first; the last one if none fits.

    If tiles stream, a longer history takes fewer passes, and rows on the device, larger groups or more of
    them that stay make each shorter; which is better is counted.
    """
    found: tuple[GroupSize, Planned] | None = None
    for _, alike in groupby(sizes, lambda size: size.all_resident):
        fitting: list[tuple[GroupSize, Planned]] = []
        for size in alike:
            found = size, planned(size)
            if found[1][0].fits:
                fitting.append(found)
                if size.all_resident:
                    break
        if fitting:
            return min(fitting, key=lambda found: _cost(found[1][0], kernel))
    assert found is not None, "there is a size"
    return found


def _cost(plan: Plan, kernel: str) -> tuple[bool, float]:
    """What all passes over tiles that stream take, to compare: reads of the store, then what is sent."""
    stats, devices = plan.stats, plan.devices
    resident = sum(tiers.on_device for tiers in devices)
    sent = pass_bytes(
        stats.column_bytes, stats.tiles, resident=resident, devices=len(devices), sweeps=plan.sweeps,
        decoded_first=kernel != BALANCED,
    )  # fmt: skip
    # Each sweep after the first is two products, as rows of a tile are swept side by side.
    products = stats.edges * (2 * plan.sweeps - 1) + ROW_EDGES * stats.nodes
    computed = products / DEVICE_EDGES * LINK_BYTES / len(devices)
    each = max(sent, computed)
    if plan.rows_in_host:
        # Tiles and what kernels reach take turns.
        each = sent + computed + HOST_ROW_BYTES * stats.nodes
    return plan.cached_tiles < stats.tiles, plan.passes * plan.partitions * each
