"""Runs: planned, carried out, verified."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oocpr.api.choices import asked_settings, plan_run, process_bytes, takes_tuned
from oocpr.api.graphs import Graph, as_graph, open_graph
from oocpr.api.loading import Loading, plan_loaded
from oocpr.api.timing import timed
from oocpr.api.tuning import check_columns_only, check_tuning, tune_once
from oocpr.errors import UsageError
from oocpr.progress import silent
from oocpr.result.ranks import Ranks

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from oocpr.plan.plan import Plan
    from oocpr.progress import Progress
    from oocpr.result.verify import Verification

_LOG = logging.getLogger(__name__)


def plan(
    graph: Any,
    *,
    damping: float = 0.85,
    tol: float = 1e-10,
    method: str = "auto",
    reads: str | None = None,
    stop: str = "certified",
    memory: str | int | None = None,
    device_memory: str | int | None = None,
    stripes: int | None = None,
    personalized: bool = False,
    threads: int | None = None,
    device: str = "cpu",
    kernel: str | None = None,
    io: str = "auto",
    progress: Progress = silent,
) -> Plan:
    """Say what a run would need and take, before it starts; the time of a pass comes from a probe.

    Parameters
    ----------
    graph
        A `Graph`, or the path of a store.
    damping, tol, method, reads, stop, memory, device_memory, stripes, threads, device, kernel, io, progress
        As for `pagerank`.
    personalized
        Whether the teleport vector would be given.

    Returns
    -------
    Plan
        Prints as a table; ``fits`` says whether the run stays within the memory. Seconds are those of a
        new process. Its number of passes is the usual one; ``expected`` has the range.

    Raises
    ------
    NotAStoreError, DamagedError, UsageError
        See `open_graph` and `pagerank`.

    Examples
    --------
    >>> import numpy as np
    >>> plan(as_graph((np.array([0, 1]), np.array([1, 0])))).fits
    True
    """
    from oocpr.engine.job import chosen_device
    from oocpr.result.names import names_of

    _import_what_runs_need()
    settings = asked_settings(method, reads, damping=damping, tol=tol, stop=stop)
    opened = graph if isinstance(graph, Graph) else open_graph(graph)
    device = chosen_device(device, kernel)
    # A run has the names of its nodes at hand.
    names = names_of(opened.store)
    auto = method == "auto" and reads is None and stripes is None and device == "cpu"
    # The probe's own memory is none of the run's.
    plan_for = partial(
        plan_run,
        opened,
        settings,
        auto=auto,
        memory=memory,
        stripes=stripes,
        personalized=personalized,
        device=device,
        device_memory=device_memory,
        kernel=kernel,
        io=io,
    )
    loading = Loading(0.0, 0.0)
    if device == "cpu":
        (settings, made, planned), loading = plan_loaded(opened, plan_for, progress)
    else:
        settings, made, planned = plan_for(base=process_bytes(opened, device))
    del names
    if not made.fits:
        return made
    made = timed(planned, made, settings, progress, device=device, threads=threads, kernel=kernel, tune=None)
    return made.loaded(loading.seconds - loading.compiling)


def pagerank(
    graph: Any,
    *,
    damping: float = 0.85,
    tol: float = 1e-10,
    method: str = "auto",
    reads: str | None = None,
    stop: str = "certified",
    max_passes: int | None = None,
    memory: str | int | None = None,
    device_memory: str | int | None = None,
    stripes: int | None = None,
    dangling: str = "strongly",
    personalization: Mapping[Any, float] | NDArray[np.float64] | str | os.PathLike[str] | None = None,
    start: Ranks | Mapping[Any, float] | NDArray[np.float64] | str | os.PathLike[str] | None = None,
    threads: int | None = None,
    client: Any = None,
    device: str = "cpu",
    kernel: str | None = None,
    tune: bool | None = None,
    io: str = "auto",
    trace: str | os.PathLike[str] | None = None,
    predict: bool = False,
    progress: Progress = silent,
) -> Ranks:
    """Rank the nodes of a graph.

    Parameters
    ----------
    graph
        A `Graph`, the path of a store, or anything `import_graph` reads.
    damping
        Probability of following a link, in (0, 1).
    tol
        Certified bound on the L1 distance from the exact ranks at which to stop.
    method
        ``"components"`` (a graph in memory, solved in the order of its strongly connected components),
        ``"mixed"`` (fewest passes over tiles), ``"residual"`` (one product a pass), ``"power"`` (textbook),
        or ``"auto"``: ``"components"`` for graphs of up to four million edges that fit, else ``"mixed"``.
    reads
        How ranks are gathered: ``"float64"``, ``"float32"``, ``"bits16"`` or ``"bits8"``; the answer is as
        exact with each. None for ``"bits16"``, with ``"components"`` ``"float32"``,
        with ``"power"`` ``"float64"``.
    stop
        ``"certified"``, or ``"residual"`` to compare `tol` with the L1 norm of the residual, as papers count.
    max_passes
        Passes after which to give up; None for ample.
    memory
        Most bytes of the process; None for what the machine has free.
    device_memory
        Most bytes that the memory pool of each CUDA device may take, its driver's own apart; None for what it
        has free. Tiles that do not fit pass through it while it computes.
    stripes
        Parts of the graph that advance side by side; None to choose by size.
    dangling
        ``"strongly"``: the rank of nodes without out-links follows the teleport vector; ``"weakly"``: it is
        spread evenly.
    personalization
        Teleport weights: by node name, or for each node in store order, or a file of lines
        ``node<TAB>weight``; None for all nodes alike.
    start
        What to begin from: ranks of an earlier run, also of another graph with nodes of the same names, a
        file of them, numbers by node name, or for each node in store order; None for the teleport weights.
        The ranks are as exact whatever it is; the nearer it is, the fewer passes they take.
    threads
        Computing threads; None for all cores, sixteen at most: more have not paid off anywhere yet.
    client
        A ``distributed.Client``; None to work in this process. With device ``"cuda"``, each of its workers
        takes a device that no other has; only those that declare the resource ``GPU``, where any does.
    device
        ``"cpu"``, ``"cuda"`` or ``"cuda:1"`` (needs CuPy), ``"cuda:0,cuda:1"`` or ``"cuda:all"`` for several
        side by side, ``"auto"`` for CUDA where it can be had and the processor elsewhere, or
        ``"reference"`` for plain NumPy.
    kernel
        How a CUDA device multiplies; None for ``"balanced"``, the fastest, whose bits are always the same.
        ``"binned:6:96"`` also says up to how many links a row has one thread, and up to how many 16. Links
        with weights want ``"balanced"``.
    tune
        Whether a CUDA device takes the shape of the kernel that `oocpr.tune` found fastest for such graphs,
        which changes no bit of the ranks. True finds it first where none is kept; None takes one that is
        kept, unless the environment says OOCPR_TUNE=off; False takes the default.
    io
        How tiles are read that find no room in `memory`: ``"buffered"``, through the system's page cache,
        from which they come the next time if it holds them still; ``"direct"``, past it, from the disk each
        time; or ``"auto"``, directly where they are more than that cache can hold and the file system allows
        it. With a client that is ``"buffered"``. No bit of the ranks depends on it.
    trace
        A .json file for a timeline of the run, which Perfetto and chrome://tracing draw: when each tile was
        read, sent to the device and computed. Not for a client or method ``"components"``.
    predict
        Whether to measure for a second first, as `plan` does, so that ``run.predicted`` also has the time.
        Not for a client.
    progress
        Told of what is measured, and after every pass.

    Returns
    -------
    Ranks
        Its ``converged`` is False where the passes ran out.

    Raises
    ------
    UsageError, InputError, NotAStoreError, DoesNotFitError, DamagedError
        What they are for is in `oocpr.errors`.

    Examples
    --------
    >>> import numpy as np
    >>> ranks = pagerank((np.array([0, 1, 2]), np.array([1, 0, 0])))
    >>> ranks.top(1)[0][0], ranks.converged, ranks.error_bound <= 1e-10
    (0, True, True)
    """
    from oocpr.engine.device_workers import device_seats, names_workers_devices
    from oocpr.engine.job import chosen_device
    from oocpr.engine.run import solve
    from oocpr.engine.trace import Trace
    from oocpr.jit import watched
    from oocpr.result.names import names_of
    from oocpr.result.report import report_of
    from oocpr.result.start import start_vector
    from oocpr.result.teleport import teleport_vector

    # Settings come first: what cannot be is refused before a source is imported.
    settings = asked_settings(
        method, reads, damping=damping, tol=tol, stop=stop, dangling=dangling, max_passes=max_passes
    )
    if tune:
        check_tuning(device.split(",")[0], kernel, client)
    if predict and client is not None:
        raise UsageError("workers are not measured beforehand.", "Leave the prediction or the client out.")
    _import_what_runs_need()
    opened = as_graph(graph, memory=memory, progress=progress)
    store = opened.store
    if tune:
        check_columns_only(opened)
    if client is None:
        device = chosen_device(device, kernel)
    free: list[int] = []
    if client is not None and names_workers_devices(device):
        free = [seat.free for seat in device_seats(client)]
    names = names_of(store)
    teleport = None if personalization is None else teleport_vector(personalization, names, store.nodes)
    begun = None  # once there, it is part of the process that the plan begins with
    if start is not None:
        least = (1 - damping) * (1 / store.nodes if teleport is None else teleport)
        begun = start_vector(start, names, store.nodes, least)
    auto = method == "auto" and reads is None and stripes is None and device == "cpu"
    plan_for = partial(
        plan_run,
        opened,
        settings,
        auto=auto,
        memory=memory,
        stripes=stripes,
        personalized=teleport is not None,
        started=begun is not None,
        device=device,
        device_memory=device_memory,
        kernel=kernel,
        alone=client is None,
        free=free,
        io=io,
    )
    loading = Loading(0.0, 0.0)
    if client is None and device == "cpu":
        (settings, made, planned), loading = plan_loaded(opened, plan_for, progress)
    else:
        settings, made, planned = plan_for(base=process_bytes(opened, device if client is None else "cpu"))
    _LOG.info("plan of the run:\n%s", made)
    if tune:
        tune_once(planned, made, device=device.split(",")[0], kernel=kernel, progress=progress)
    if predict:
        made.validate()
        made = timed(
            planned, made, settings, progress, device=device, threads=threads, kernel=kernel, tune=tune
        )
    timeline = None if trace is None else Trace()
    with watched(silent) as compilation:
        solution = solve(
            planned,
            made,
            settings,
            path=_absolute(store.path),
            client=client,
            backend=device,
            threads=threads,
            kernel=kernel,
            tuned=takes_tuned(tune),
            teleport=teleport,
            start=begun,
            kept=opened.kept,
            trace=timeline,
            progress=progress,
        )
    if trace is not None and timeline is not None:
        timeline.write(trace)
    run = report_of(
        replace(solution, seconds=solution.seconds + loading.seconds),
        store,
        dangling=dangling,
        personalized=teleport is not None,
        compile_seconds=compilation.seconds + loading.compiling,
        direct=made.direct,
        busy=None if timeline is None else timeline.busy(),
        predicted=made.predictions() if client is None else None,
    )
    return Ranks(solution.ranks, names, run=run, history=solution.history, attributes=store.node_attributes)


def verify(
    graph: Any,
    ranks: Ranks | str | os.PathLike[str],
    *,
    damping: float | None = None,
    dangling: str | None = None,
    personalization: Mapping[Any, float] | NDArray[np.float64] | str | os.PathLike[str] | None = None,
    progress: Progress = silent,
) -> Verification:
    """Bound the error of ranks, whoever made them, by one independent float64 pass.

    Parameters
    ----------
    graph
        A `Graph`, or the path of a store.
    ranks
        Ranks, or a file of them; matched with the nodes by name.
    damping, dangling
        As for `pagerank`; None for what the ranks say of themselves, else 0.85 and ``"strongly"``.
    personalization
        As for `pagerank`; has to be given again where it was given then.
    progress
        Told of each tile.

    Returns
    -------
    Verification

    Raises
    ------
    InputError
        Where the ranks are not of this graph.
    UsageError
        Where a personalization is missing, or a parameter cannot be.
    DamagedError
        Where the store is not what was written.
    """
    from oocpr.result import verify as check
    from oocpr.result.files import read_ranks
    from oocpr.result.names import names_of
    from oocpr.result.teleport import teleport_vector

    store = (graph if isinstance(graph, Graph) else open_graph(graph)).store
    origin = "the result" if isinstance(ranks, Ranks) else os.fspath(ranks)
    found = ranks if isinstance(ranks, Ranks) else read_ranks(ranks)
    run = found.run
    if run is not None and run.personalized and personalization is None:
        raise UsageError(f"{origin} is of a personalized run.", "Give the same personalization again.")
    teleport = (
        None if personalization is None else teleport_vector(personalization, names_of(store), store.nodes)
    )
    return check.verify(
        store,
        check.in_store_order(store, found, origin),
        damping=damping or (run.damping if run else 0.85),
        dangling=dangling or (run.dangling if run else "strongly"),
        personalization=teleport,
        progress=progress,
    )


def _import_what_runs_need() -> None:
    """Import what is part of the process that a run begins with, so that a plan counts it as well."""
    import oocpr.engine.run
    import oocpr.engine.trace
    import oocpr.jit
    import oocpr.result.names
    import oocpr.result.report
    import oocpr.result.start
    import oocpr.result.teleport  # noqa: F401


def _absolute(path: str) -> str:
    return path if "://" in path else str(Path(path).resolve())
