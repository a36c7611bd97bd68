"""What a run is going to do, where nobody has said it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from oocpr.errors import UsageError
from oocpr.system import available_memory, resident_after_trim, whole_memory
from oocpr.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oocpr.api.graphs import Graph
    from oocpr.engine.settings import Settings
    from oocpr.engine.tiles.source import RankedStore
    from oocpr.plan.graph_stats import GraphStats
    from oocpr.plan.plan import Plan
    from oocpr.store.graph import GraphStore

KERNEL_BYTES = 80 << 20
"""What numba's compiled functions take once a run has loaded them; 68 to 76 MiB were measured."""

WORKER_SHARE = 3 / 4
"""Share of its memory limit that is planned for a Dask worker: at four fifths it takes no more tasks."""

USUAL_READS = {"components": "float32", "power": "float64"}
"""Reads of the methods that want others than bits16."""


def asked_settings(method: str, reads: str | None, **others: Any) -> Settings:
    """Settings as far as they are known before a graph is open; ``"auto"`` counts as ``"mixed"``.

    Raises
    ------
    UsageError
        For what cannot be, whatever the graph.
    """
    from oocpr.engine.number_formats import READS
    from oocpr.engine.settings import Settings

    chosen = "mixed" if method == "auto" else method
    settings = Settings(method=chosen, reads=reads or USUAL_READS.get(chosen, "bits16"), **others)
    unit = READS[settings.reads].unit_rounding
    if chosen == "power" and unit > settings.tol:
        raise UsageError(
            f"power iteration rounds its iterate to reads {settings.reads}, by up to {unit:.1e}, and stalls "
            f"above tol {settings.tol:g}.",
            "Use reads float64, or a method that keeps an exact residual: mixed or residual.",
        )
    return settings


def check_used(method: str, device: str, *, stripes: int | None, io: str, kernel: str | None) -> None:
    """Refuse parameters that the method and the device that are asked for would take no notice of.

    Parameters
    ----------
    method, device, stripes, io, kernel
        As for `pagerank`; a device ``"auto"`` is one that is known by now.

    Raises
    ------
    UsageError
        With the way out.

    Examples
    --------
    >>> check_used("mixed", "cpu", stripes=2, io="direct", kernel=None)
    """
    from oocpr.engine.cuda.discovery import named_devices

    if method == "components" and stripes is not None:
        raise UsageError(
            f"{stripes} stripes were asked for and method components has none.",
            "Leave stripes out, or use method mixed.",
        )
    if method == "components" and io != "auto":
        raise UsageError(
            f"io {io} was asked for and method components reads the store once, through the page cache.",
            "Leave io out, or use method mixed.",
        )
    if kernel is not None and not named_devices(device):
        raise UsageError(
            f"kernel {kernel!r} is for CUDA devices and the device is {device}.",
            "Use device cuda, or leave the kernel out.",
        )


def check_reproducible(device: str, client: Any) -> None:
    """Refuse devices that depend on the machine for a run that is to be the same on any.

    Raises
    ------
    UsageError
        With the way out.

    Examples
    --------
    >>> check_reproducible("cpu", None)
    """
    from oocpr.engine.executors.dask_devices import names_workers_devices

    if client is not None and names_workers_devices(device):
        raise UsageError(
            "a run on CUDA devices of workers is planned by how many there are, so it is not reproducible.",
            "Leave reproducible out, or use device cpu.",
        )
    if device in ("auto", "cuda:all"):
        raise UsageError(
            f"device {device} means another on another machine, so the run is not reproducible.",
            "Name the devices, such as cpu, cuda or cuda:0,cuda:1.",
        )


def plan_run(
    graph: Graph,
    settings: Settings,
    *,
    auto: bool,
    memory: str | int | None,
    stripes: int | None,
    personalized: bool,
    started: bool = False,
    device: str,
    alone: bool = True,
    free: Sequence[int] = (),
    limits: Sequence[int] = (),
    base: int,
    device_memory: str | int | None = None,
    kernel: str | None = None,
    io: str = "auto",
    reproducible: bool = False,
) -> tuple[Settings, Plan, RankedStore]:
    """Plan a run on an open graph; returns the graph as the run is to read it, too.

    Parameters
    ----------
    auto
        Whether the method may be changed to ``"components"``.
    personalized, started
        Whether the teleport vector is not uniform, and whether the run begins from another.
    device
        What computes.
    alone
        Whether this process does, without a cluster.
    free
        Bytes that may be taken of each CUDA device of the cluster's workers, where they are to be used.
    limits
        Memory limits of the cluster's workers in bytes, which share the stripes; empty where they have none.
    base
        Bytes of the process before the run; see `process_bytes`.
    device_memory
        Most bytes of a CUDA device; None for what it has free.
    kernel
        Product of a CUDA device; None for the default.
    io
        One of `oocpr.plan.residency.IO`.
    reproducible
        Whether the graph and the settings alone decide what the bits of the ranks depend on.

    Raises
    ------
    UsageError
        For what the graph, the method, the device, its kernel and the file system do not go with.
    """
    from oocpr.engine.cuda.discovery import named_devices
    from oocpr.engine.tiles.weights import check_weighted
    from oocpr.plan.plan import choose_method, make_plan

    devices = named_devices(device)
    on_device = bool(devices or free)
    if device_memory is not None and not on_device:
        raise UsageError(
            f"device memory {device_memory} was given and the device is {device}.",
            "Use device cuda, or leave device memory out.",
        )
    asked = given_memory(memory)
    given = min([asked, *(int(limit * WORKER_SHARE) for limit in limits)])
    stats = stats_of(graph.store)
    if stats.weighted:
        check_weighted(settings.method, kernel)
    better = None
    if auto:
        method, better = choose_method(
            stats, memory=given, base=base, personalized=personalized, reproducible=reproducible
        )
        settings = replace(settings, method=method, reads=USUAL_READS.get(method, settings.reads))

    if len(devices) > 1 or (free and stripes in (None, len(free))):
        from oocpr.api.on_devices import check_devices, memory_of, plan_on_several_devices

        if not free:
            check_devices(devices, stripes, alone=alone)
        plan, store = plan_on_several_devices(
            graph.store,
            stats,
            settings,
            memory=given,
            base=base,
            given=memory_of(devices, device_memory, free),
            devices=() if free else devices,
            promised=device_memory is not None,
            personalized=personalized,
            started=started,
            reproducible=reproducible,
        )
        return settings, _with_io(plan, io, graph.store, alone), store
    if on_device and alone and (stripes or 1) == 1:
        from oocpr.api.on_device import plan_on_one_device

        plan, store = plan_on_one_device(
            graph.store,
            stats,
            settings,
            memory=given,
            base=base,
            device_memory=device_memory,
            device=device,
            personalized=personalized,
            started=started,
            reproducible=reproducible,
        )
        return settings, _with_io(plan, io, graph.store, alone), store
    make = partial(
        make_plan,
        stats,
        method=settings.method,
        reads=settings.reads,
        damping=settings.damping,
        tol=settings.tol,
        mixing=settings.mixing,
        sweeps=None,
        base=base,
        stripes=stripes,
        personalized=personalized,
        on_device=on_device,
        reproducible=reproducible,
    )
    plan = make(memory=given)
    if given < asked and plan.fits and plan.method != "components":
        # Each worker has vectors, history and tiles of its own stripes only.
        count, need = len(plan.stripes), plan.need
        alike = need.total - need.vectors - need.history
        most = -(-count // len(limits))
        plan = make(memory=min(asked, alike + (given - alike) * count // most))
    plan = replace(plan, better=better or plan.better)
    return settings, _with_io(plan, io, graph.store, alone), graph.store


def _with_io(plan: Plan, io: str, store: GraphStore, alone: bool) -> Plan:
    """Decide how a run reads its tiles."""
    from oocpr.plan.residency import IO, wants_direct
    from oocpr.store.direct_io import refusal

    if io not in IO:
        raise UsageError(f"io {io!r} is not known.", f"Use one of {', '.join(IO)}.")
    # What workers have of memory beside what Dask gives them is not known here.
    streamed = plan.uncached_bytes if alone else 0
    direct = wants_direct(io, streamed, whole_memory() - plan.memory)
    if direct and not store.takes_direct_reads():
        if io == "direct":
            raise refusal(store.path)
        direct = False
    return replace(plan, direct=direct)


def given_memory(memory: str | int | None) -> int:
    """Most bytes that the process may hold: what somebody gave, or what the machine has free."""
    return available_memory() if memory is None else parse_bytes(memory)


def process_bytes(graph: Graph, device: str = "cpu") -> int:
    """Bytes of the process before a run, its kernels loaded; what earlier runs kept is there for it."""
    from oocpr.engine.cuda.discovery import free_memory, named_devices

    for name in named_devices(device):
        # Who asks has the driver there, which takes memory of the process. A device that is not there is
        # refused in its turn.
        with suppress(UsageError):
            free_memory(name)
    return resident_after_trim() + KERNEL_BYTES - _kept_bytes(graph)


def loaded_bytes(graph: Graph) -> int:
    """Bytes of the process once a run's kernels are loaded; what earlier runs kept is there for it."""
    return resident_after_trim() - _kept_bytes(graph)


def _kept_bytes(graph: Graph) -> int:
    return sum(whole.nbytes for whole in graph.kept.values())


def stats_of(store: GraphStore) -> GraphStats:
    """What a plan has to know of a stored graph."""
    from oocpr.plan.graph_stats import GraphStats
    from oocpr.plan.memory import weighted_tile_bytes

    stats = store.attributes
    most = stats.max_tile_bytes
    return GraphStats(
        nodes=stats.nodes,
        edges=stats.edges,
        tiles=stats.tiles,
        tile_edges=stats.tile_edges,
        column_bytes=stats.encoded_bytes,
        max_tile_bytes=weighted_tile_bytes(most, stats.max_data_bytes) if stats.weighted else most,
        max_tile_rows=int((store.tile_rows[1:] - store.tile_rows[:-1]).max()),
        local_share=stats.local_edges / max(stats.edges, 1),
        weighted=stats.weighted,
        weight_bytes=stats.data_bytes,
        max_weight_bytes=stats.max_data_bytes,
    )
