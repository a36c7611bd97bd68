"""A run of CPMS: sweeps of power iteration, each with as many segments as the changes before ask for.

A sweep computes damping * (A x + dangling mass / nodes) + (1 - damping) / nodes of the vector x and the
matrix A, whose value for an edge is one over the out-degree of its source, both read with the same number of
segments. The vector begins with 1 / nodes.
"""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING

from oocpr.engine.cpms.precision import UNKNOWN_CHANGE, PrecisionSchedule
from oocpr.engine.cuda.device import open_device
from oocpr.engine.cuda.names import is_cuda
from oocpr.engine.method import PassRecord, Solution, as_distribution
from oocpr.engine.tiles.groups import GroupedStore
from oocpr.errors import UsageError
from oocpr.plan.memory import SEGMENTED_KERNELS, SEGMENTED_METHODS
from oocpr.system import peak_resident

if TYPE_CHECKING:
    from oocpr.engine.cpms.sweeps import Sweeps
    from oocpr.engine.settings import Settings
    from oocpr.engine.tiles.source import RankedStore
    from oocpr.engine.tiles.stream import PassTraffic
    from oocpr.plan.plan import Plan
    from oocpr.progress import Progress


def rank_segmented(
    store: RankedStore,
    plan: Plan,
    settings: Settings,
    device: str,
    threads: int | None,
    progress: Progress,
    *,
    kernel: str | None,
) -> Solution:
    """Rank a graph by method ``cpms2`` or ``cpms4``, with `threads`, None for one per core.

    `kernel`: how a device has the matrix, ``"csr-scalar"`` or ``"ell"``; None for the first.

    With stop ``"residual"`` it stops when the change of a sweep is below the tolerance, as the paper has it;
    else when the certified bound is.
    """
    begun = time.perf_counter()
    segments = SEGMENTED_METHODS[settings.method]
    schedule, history = PrecisionSchedule(segments), list[PassRecord]()
    with closing(_sweeps(store, plan, segments, device, threads, kernel)) as sweeps:
        passed, over = begun, False
        while len(history) < settings.pass_limit and not over:
            change, bound, held, traffic = _sweep(sweeps, schedule, settings.damping, store.nodes)
            over = change < settings.tol if settings.stop == "residual" else bound <= settings.tol
            if over or len(history) == settings.pass_limit - 1:
                # Ranks are scaled to a sum of one in the end.
                bound += abs(1 - sweeps.total(held))
                over = over and (settings.stop == "residual" or bound <= settings.tol)
            now = time.perf_counter()
            taken, passed = now - passed, now
            read = (traffic.bytes_read, traffic.wait_seconds)
            history.append(PassRecord(len(history) + 1, change, bound, 1.0, taken, *read))
            progress("ranking", len(history), plan.passes, "passes", f"bound {bound:.1e}")
        ranks = sweeps.ranks(held)
        taken_of_device = sweeps.allocated_bytes
    return Solution(
        ranks=as_distribution(ranks, bound),
        error_bound=bound,
        converged=over,
        history=tuple(history),
        method=settings.method,
        reads=settings.reads,
        damping=settings.damping,
        tol=settings.tol,
        seconds=time.perf_counter() - begun,
        peak_memory=peak_resident(),
        peak_device_memory=taken_of_device,
        sweeps=schedule.sweeps,
    )


def _sweep(
    sweeps: Sweeps, schedule: PrecisionSchedule, damping: float, nodes: int
) -> tuple[float, float, int, PassTraffic]:
    """Do a sweep.

    Returns its change, the certified bound of what it leaves, how many segments that has, and what was read.
    """
    read, written, seen = schedule.read, schedule.written, schedule.seen
    if schedule.plain:
        read = written = seen = 1
    dangling = sweeps.dangling_mass(read)
    constant = damping * dangling / nodes + (1 - damping) / nodes
    traffic = sweeps.sweep(read, written, damping, constant)
    if schedule.raising:
        sweeps.scale(written, sweeps.norm(written))
    change = UNKNOWN_CHANGE if schedule.first else sweeps.change(seen)
    sweeps.advance()
    bound, was_plain = schedule.bound(change, damping), schedule.plain
    schedule.note(change)
    if schedule.plain and not was_plain:
        # All segments were read and written.
        sweeps.to_plain()
        written = 1
    return change, bound, written, traffic


def check_segmented_kernel(method: str, kernel: str | None) -> None:
    """Raise UsageError for a kernel that segmented methods do not have."""
    if kernel not in (None, *SEGMENTED_KERNELS):
        raise UsageError(
            f"method {method} does not run with kernel {kernel!r}.",
            f"Use kernel {' or '.join(SEGMENTED_KERNELS)}, or leave it out.",
        )


def _sweeps(
    store: RankedStore, plan: Plan, segments: int, device: str, threads: int | None, kernel: str | None
) -> Sweeps:
    if device == "cpu":
        from oocpr.engine.cpms.host import HostSweeps

        return HostSweeps(store, plan, segments, threads)
    if device == "reference":
        from oocpr.engine.cpms.reference import ReferenceSweeps

        return ReferenceSweeps(store, segments)
    if not is_cuda(device):
        raise UsageError(f"methods cpms2 and cpms4 do not run on {device}.", "Use device cpu or cuda.")
    from oocpr.engine.cpms.device import DeviceSweeps

    assert isinstance(store, GroupedStore), "a plan for devices has groups"
    opened, (tiers,) = open_device(device), plan.devices
    return DeviceSweeps(store, opened, segments, tiers, direct=plan.direct, slices=kernel == "ell")
