"""The plan of a run on an open store: its method, what computes, and how tiles are read."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from oocpr.engine.planning.devices import plan_for_devices
from oocpr.errors import UsageError
from oocpr.plan.graph_stats import GraphStats
from oocpr.plan.memory import weighted_tile_bytes
from oocpr.plan.plan import choose_method, make_plan
from oocpr.plan.residency import IO, wants_direct
from oocpr.system import available_memory, whole_memory
from oocpr.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oocpr.engine.settings import Settings
    from oocpr.engine.tiles.source import RankedStore
    from oocpr.plan.plan import Plan
    from oocpr.store.graph import GraphStore

WORKER_SHARE = 3 / 4
"""Share of its memory limit that is planned for a Dask worker: at four fifths it takes no more tasks."""

USUAL_READS = {"components": "float32", "power": "float64"}
"""Reads of the methods that want others than bits16."""


class PlannedRun(NamedTuple):
    """Settings and plan of a run, and the graph in the tiles that it takes."""

    settings: Settings
    plan: Plan
    store: RankedStore


def asked_settings(method: str, reads: str | None, **others: Any) -> Settings:
    """Settings as far as they are known before a graph is open; ``"auto"`` counts as ``"mixed"``."""
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


def given_memory(memory: str | int | None) -> int:
    """Most bytes that the process may hold: what somebody gave, or what the machine has free."""
    return available_memory() if memory is None else parse_bytes(memory)


def plan_run(
    store: GraphStore,
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
) -> PlannedRun:
    """Plan a run on an open graph.

    Parameters
    ----------
    auto
        Whether the method may be changed to ``"components"``.
    personalized, started
        Whether the teleport vector is not uniform, and whether the run begins from another.
    device, device_memory, kernel, io, reproducible
        As for `oocpr.pagerank`.
    alone
        Whether this process computes, without a cluster.
    free
        Bytes that may be taken of each CUDA device of the cluster's workers, if they are to be used.
    limits
        Memory limits of the cluster's workers in bytes, which share the stripes; empty if they have none.
    base
        Bytes of the process before the run; see `oocpr.engine.planning.timing.process_bytes`.

    Raises
    ------
    UsageError
        For what the graph, the method, the device, its kernel and the file system do not go with.
    """
    from oocpr.engine.cuda.discovery import named_devices
    from oocpr.engine.job import check_weighted

    devices = named_devices(device)
    if device_memory is not None and not devices and not free:
        raise UsageError(
            f"device memory {device_memory} was given and the device is {device}.",
            "Use device cuda, or leave device memory out.",
        )
    asked = given_memory(memory)
    given = min([asked, *(int(limit * WORKER_SHARE) for limit in limits)])
    stats = stats_of(store)
    if stats.weighted:
        check_weighted(settings.method, kernel)
    better = None
    if auto:
        method, better = choose_method(
            stats, memory=given, base=base, personalized=personalized, reproducible=reproducible
        )
        settings = replace(settings, method=method, reads=USUAL_READS.get(method, settings.reads))
    if devices or free:
        if not free:
            _check_devices(devices, stripes, alone=alone)
        plan, tiled = plan_for_devices(
            store,
            stats,
            settings,
            memory=given,
            base=base,
            device_memory=_device_memory(devices, device_memory, free),
            devices=() if free else devices,
            promised=device_memory is not None,
            stripes=stripes,
            personalized=personalized,
            started=started,
            reproducible=reproducible,
        )
        return PlannedRun(settings, _with_io(plan, io, store, alone), tiled)
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
    return PlannedRun(settings, _with_io(plan, io, store, alone), store)


def _check_devices(devices: tuple[str, ...], stripes: int | None, *, alone: bool) -> None:
    """Refuse what devices of this process do not go with."""
    if not alone:
        raise UsageError(
            f"devices {', '.join(devices)} are of one process and a Dask client was given.",
            "Use device cuda, which each worker has its own of, or leave the client out.",
        )
    if len(devices) > 1 and stripes not in (None, len(devices)):
        raise UsageError(
            f"{stripes} stripes were asked for on {len(devices)} devices.",
            "Leave the stripes out: each device has one.",
        )


def _device_memory(
    devices: tuple[str, ...], device_memory: str | int | None, free: Sequence[int]
) -> list[int]:
    """Bytes that a run may use of each device: those given, or what is free, which workers have told."""
    from oocpr.engine.cuda.discovery import free_memory

    if device_memory is not None:
        return [parse_bytes(device_memory)] * len(free or devices)
    return list(free) or [free_memory(device) for device in devices]


def _with_io(plan: Plan, io: str, store: GraphStore, alone: bool) -> Plan:
    """Decide how a run reads its tiles."""
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


def stats_of(store: GraphStore) -> GraphStats:
    """What a plan has to know of a stored graph."""
    known = store.attributes
    most = known.max_tile_bytes
    return GraphStats(
        nodes=known.nodes,
        edges=known.edges,
        tiles=known.tiles,
        tile_edges=known.tile_edges,
        column_bytes=known.encoded_bytes,
        max_tile_bytes=weighted_tile_bytes(most, known.max_data_bytes) if known.weighted else most,
        max_tile_rows=int((store.tile_rows[1:] - store.tile_rows[:-1]).max()),
        local_share=known.local_edges / max(known.edges, 1),
        weighted=known.weighted,
        weight_bytes=known.data_bytes,
        max_weight_bytes=known.max_data_bytes,
    )
