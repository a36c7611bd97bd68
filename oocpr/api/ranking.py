"""Runs: planned, carried out, verified."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Unpack, overload

import numpy as np

from oocpr.api.arguments import (
    ImportOptions,
    as_progress,
    check_kernel,
    check_reproducible,
    check_segmented,
    check_unused,
    check_used,
    checked,
    render_argument,
)
from oocpr.api.graphs import import_graph, opened_graph, taken_graph
from oocpr.errors import OocprError, UsageError
from oocpr.progress import Progress, silent
from oocpr.result.ranks import Ranks, report_of

if TYPE_CHECKING:
    from oocpr.api.arguments import Many, RankOptions
    from oocpr.api.graphs import Graph
    from oocpr.engine.checkpoint import Checkpoints
    from oocpr.plan.plan import Plan
    from oocpr.progress import Listener
    from oocpr.result.personal_ranks import PersonalRanks
    from oocpr.result.verify import Verification

_LOG = logging.getLogger(__name__)


@checked
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
    reproducible: bool = False,
    fpga: bool = False,
    progress: Listener = None,
) -> Plan:
    """Say what a run would need and take, before it starts; the time of a pass comes from a probe.

    Parameters
    ----------
    graph
        A `Graph`, or the path of a store.
    personalized
        Whether a teleport vector would be given.
    fpga
        Whether to add what a product takes on the FPGA of Shan et al. 2010, by a model of it, which reads the
        sizes of all rows. The other parameters are those of `pagerank`.

    Returns
    -------
    Plan
        Prints as a table; ``fits`` says whether the run stays within the memory. Seconds are those of a
        new process, and the number of passes is the usual one; ``expected`` has the range.

    Raises
    ------
    NotAStoreError, DamagedError, UsageError
        See `open_graph` and `pagerank`.

    Examples
    --------
    >>> import numpy as np
    >>> from oocpr.api import as_graph
    >>> plan(as_graph((np.array([0, 1]), np.array([1, 0])))).fits
    True
    """
    from oocpr.engine.devices import chosen_device, device_for
    from oocpr.engine.planning import RunRequest, asked_settings, plan_loaded, timed
    from oocpr.result.names import names_of

    progress = as_progress(progress)
    check_kernel(kernel)
    if reproducible:
        check_reproducible(device, None)
    # What a run imports is part of the process that it begins with, so a plan counts it as well.
    for module in ("engine.run", "engine.trace", "jit", "result.node_vectors"):
        import_module(f"oocpr.{module}")
    settings = asked_settings(method, reads, damping=damping, tol=tol, stop=stop)
    opened = opened_graph(graph)
    by_edges = _is_chosen_by_edges(device, method, io, (reads, stripes, kernel))
    found = chosen_device(device_for(opened.store) if by_edges else device, kernel)
    device_memory, device = _kept_within(device_memory, device, found), found
    check_used(method, device, stripes=stripes, io=io, kernel=kernel)
    check_segmented(method, device, stripes=stripes, personalization=True if personalized else None)
    # A run has the names of its nodes at hand.
    names = names_of(opened.store)

    request = RunRequest(
        auto=method == "auto" and (reads, stripes, io, device) == (None, None, "auto", "cpu"),
        memory=memory,
        device_memory=device_memory,
        stripes=stripes,
        threads=threads,
        device=device,
        kernel=kernel,
        io=io,
        reproducible=reproducible,
        personalized=personalized,
        reusable=_decoded_bytes(opened),
        explain=True,
    )
    run, loading = plan_loaded(opened.store, settings, request, progress)
    # The probe's own memory is none of the run's.
    del names
    if fpga:
        from oocpr.plan.fpga import Fpga
        from oocpr.store.degrees import row_sizes

        seconds = Fpga().seconds(opened.store.edges, *row_sizes(opened.store))
        run = run._replace(plan=replace(run.plan, fpga_seconds=seconds))
    if not run.plan.fits:
        return run.plan
    return timed(run, request, progress).loaded(loading.seconds - loading.compiling)


def _kept_within(device_memory: str | int | None, named: str, found: str) -> str | int | None:
    """Most memory of what was found for a name; where ``"auto"`` takes no device there is none to limit."""
    return None if (named, found) == ("auto", "cpu") else device_memory


def _is_chosen_by_edges(device: str, method: str, io: str, given: Sequence[Any]) -> bool:
    """Whether the device depends on the edges of the graph, so that it is known once that is open.

    `given` is what else method ``"components"`` does not go with, None if it is not asked for.
    """
    return device == method == io == "auto" and all(value is None for value in given)


@overload
def pagerank(graph: Any, *, personalization: Many, **others: Unpack[RankOptions]) -> PersonalRanks: ...


@overload
def pagerank(
    graph: Any, *, seeds: str | os.PathLike[str], **others: Unpack[RankOptions]
) -> PersonalRanks: ...


@overload
def pagerank(
    graph: Any, *, personalization: Any = None, seeds: None = None, **others: Unpack[RankOptions]
) -> Ranks: ...


@checked
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
    personalization: Any = None,
    seeds: str | os.PathLike[str] | None = None,
    top: int | None = None,
    start: Any = None,
    threads: int | None = None,
    client: Any = None,
    device: str = "cpu",
    kernel: str | None = None,
    io: str = "auto",
    trace: str | os.PathLike[str] | None = None,
    predict: bool = False,
    reproducible: bool = False,
    checkpoint: str | os.PathLike[str] | Checkpoints | None = None,
    resume: bool = False,
    time_limit: str | float | None = None,
    progress: Listener = None,
    **options: Unpack[ImportOptions],
) -> Ranks | PersonalRanks:
    """Rank the nodes of a graph.

    Parameters
    ----------
    graph
        A `Graph`, the path of a store, or anything `import_graph` reads.
    damping
        Probability of following an edge, in (0, 1).
    tol
        Certified bound on the L1 distance from the exact ranks at which to stop.
    method
        ``"components"`` (a graph in memory, solved in the order of its strongly connected components),
        ``"mixed"`` (fewest passes over tiles), ``"residual"`` (one product per pass), ``"power"`` (textbook),
        ``"cpms2"`` and ``"cpms4"`` (power that reads parts of numbers at first, Gruetzmacher et al. 2018),
        or ``"auto"``: ``"components"`` for graphs of up to four million edges that fit, else ``"mixed"``.
    reads
        How ranks are gathered: ``"float64"``, ``"float32"``, ``"bits16"`` or ``"bits8"``; the answer is as
        exact with each. None for ``"bits16"``; ``"float32"`` with ``"components"`` or a damping above 0.992,
        ``"float64"`` with ``"power"`` and segmented methods.
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
        Parts of the graph that advance side by side; None for one or, of a reproducible run or a client's, to
        choose by size, one for each worker at least.
    dangling
        ``"strongly"``: the rank of nodes without out-edges follows the teleport vector; ``"weakly"``: it is
        spread evenly.
    personalization
        Teleport weights: by node name (a dict, a Series, a table with the columns ``node`` and ``weight``), a
        set or list of nodes that count alike, an array with one for each node in store order, or a file of
        lines ``node<TAB>weight``; None for all nodes alike. For many seeds a list of such weights by node,
        or a matrix of SciPy or an array, shape (seeds, nodes): each has ranks of its own.
    seeds
        A file of many seeds, lines ``seed<TAB>node<TAB>weight``, instead of a personalization.
    top
        Of each of many seeds, how many of the largest ranks to keep; None for all ranks.
    start
        What to begin from: ranks of an earlier run, also of another graph with nodes of the same names, a
        file of them, or numbers as for `personalization`; None for the teleport weights. The ranks are as
        exact with any; near ones save passes.
    threads
        Computing threads; None for as many as the edges feed, one per core or, if tiles are read in
        every pass, seven for eight cores; sixteen at most.
    client
        A ``distributed.Client``; None to work in this process. With device ``"cuda"``, each of its workers,
        or of those that declare the resource ``GPU`` if any does, takes a device that no other has.
    device
        ``"cpu"``, ``"cuda"`` or ``"cuda:1"`` (needs CuPy), ``"cuda:0,cuda:1"`` or ``"cuda:all"`` for several
        side by side, ``"auto"`` for CUDA if there is a device and the graph is not so small that processors
        are done before it is ready, else ``"cpu"``; or ``"reference"`` for plain NumPy.
    kernel
        How a CUDA device multiplies; None for ``"balanced"``, the fastest, whose bits are always the same.
        ``"binned:6:96"`` also says up to how many edges a row has one thread, and up to how many 16. Others
        than the default lay tiles out in memory of the device; ell, edges, chunked and bcsr take no weights.
    io
        How tiles are read that find no room in `memory`: ``"buffered"``, through the system's page cache;
        ``"direct"``, from the disk each time; or ``"auto"``, directly if they are more than that cache can
        hold and the file system allows it, and buffered with a client. No bit of the ranks depends on it.
    trace
        A .json file for a timeline of the run, which Perfetto and chrome://tracing draw: when each tile was
        read, sent to the device and computed. Not for a client or method ``"components"``.
    predict
        Whether to measure for a second first, as `plan` does, so that ``run.predicted`` also has the time.
        Not for a client.
    reproducible
        Whether the graph and the settings alone fix the plan: the same method, stripes, mixing and sweeps,
        and so the same bits of the ranks, for any memory, of devices too, that holds it and any threads
        and workers. Otherwise less memory may mean more passes, and ranks that differ within the bound.
    checkpoint
        A folder or a URL where the run is kept, after a pass, at least every minute, and nothing is left once
        it is done; or what `oocpr.engine.checkpoint.open_checkpoints` gives; None to keep nothing. After
        Ctrl-C, SIGTERM or SIGHUP the run ends with its pass and is kept; after a second one, at once. Not for
        method ``"components"``, which ``"auto"`` does not choose then.
    resume
        Whether to go on from the checkpoint, if there is one, to the bits of a run that was never stopped: of
        the same graph and settings, tolerance and passes apart, on any number of workers and threads.
    time_limit
        Seconds, or text such as ``"4h"``, after which the run ends, kept; None for none.
    progress
        True to see on standard error what is measured, and each pass; or an `oocpr.progress.Progress`; None
        for silence.
    **options
        How a source is read, see `oocpr.api.arguments.ImportOptions`; not for a graph that is stored already.

    Returns
    -------
    Ranks or PersonalRanks
        Its ``converged`` is False if the passes ran out; a checkpoint stays then. `PersonalRanks` for many
        seeds: blocks of them are ranked in memory, by method ``"components"``, on processors; or one after
        the other, as a single one would be, if the graph does not fit, or another method or device is named.

    Raises
    ------
    UsageError, InputError, NotAStoreError, DoesNotFitError, DamagedError, ReplacedError, SetupError
        See `oocpr.errors`. If the timeline cannot be written after all, the error has the ``ranks``.
    StoppedError
        If `time_limit` is over.

    Examples
    --------
    >>> import numpy as np
    >>> ranks = pagerank((np.array([0, 1, 2]), np.array([1, 0, 0])))
    >>> ranks.top(1)[0][0], ranks.converged, ranks.error_bound <= 1e-10
    (0, True, True)
    """
    from oocpr.engine.checkpoint import kept_run
    from oocpr.engine.cuda.names import begin_contexts, named_devices
    from oocpr.engine.devices import chosen_device, device_for
    from oocpr.engine.planning import RunRequest, asked_settings, given_memory, plan_loaded, timed
    from oocpr.engine.run import rank_graph
    from oocpr.engine.trace import Trace
    from oocpr.jit import watched
    from oocpr.result.names import names_of
    from oocpr.result.node_vectors import is_many, start_identity, start_vector, teleport_vector
    from oocpr.sources.files import check_apart
    from oocpr.store.atomic import check_writable

    progress = as_progress(progress)
    many = seeds is not None or is_many(personalization)
    if many:
        check_unused(
            "ranks of many seeds", "rank one seed at a time", start=start, client=client, trace=trace,
            checkpoint=checkpoint, time_limit=time_limit, predict=predict or None, resume=resume or None,
            personalization=personalization if seeds is not None else None,
        )  # fmt: skip
    elif top is not None:
        raise UsageError(
            f"top is {top}, for many seeds, and there is none or one.",
            "Leave top out, and ask the ranks for their top.",
        )
    check_kernel(kernel)
    # Settings come first: what cannot be is refused before a source is imported.
    settings = asked_settings(
        method, reads, damping=damping, tol=tol, stop=stop, dangling=dangling, max_passes=max_passes
    )
    if predict and client is not None:
        raise UsageError("workers are not measured beforehand.", "Leave the prediction or the client out.")
    if reproducible:
        check_reproducible(device, client)
    given = reads, stripes, kernel, client, checkpoint, time_limit, trace
    # What names nothing else is ranked in memory, if many seeds can be.
    in_blocks = device in (("cpu", "auto") if device_memory is None else ("auto",))
    in_blocks &= method in ("auto", "components") and io == "auto"
    in_blocks &= reads in (None, "float32") and not any(given[1:])
    by_edges = (many and in_blocks and device == "auto") or _is_chosen_by_edges(device, method, io, given)
    if client is None and not by_edges:
        found = chosen_device(device, kernel)
        device_memory, device = _kept_within(device_memory, device, found), found
    check_used(method, device, stripes=stripes, io=io, kernel=None if client else kernel)
    check_segmented(
        method, device, stripes=stripes, personalization=personalization, seeds=seeds, start=start,
        client=client, trace=trace, checkpoint=checkpoint,
    )  # fmt: skip
    if client is None:
        begin_contexts(named_devices(device))
    if trace is not None:
        if client is not None or method == "components":
            raise UsageError(
                "a run of workers, or of method components, has no timeline of tiles.",
                "Use another method in this process, such as mixed, or leave the trace out.",
            )
        check_apart([trace], [graph, personalization, start, options.get("labels")])
        check_writable(Path(trace))
    if checkpoint is not None and method == "components":
        raise UsageError(
            "a run of method components is not kept.", "Use method mixed, or leave checkpoint out."
        )
    with kept_run(checkpoint, resume=resume, time_limit=time_limit) as kept:
        opened = taken_graph(graph, memory=memory, progress=progress, **options)
        store = opened.store
        if by_edges and not many:
            found = device_for(store)
            device_memory, device = _kept_within(device_memory, device, found), found
            begin_contexts(named_devices(device))
        # Now, since the files may be gone when the run is over.
        identity, started_from = store.identity, start_identity(start)
        free, limits, present = list[int](), list[int](), 0
        if client is not None:
            from oocpr.engine.executors.dask import assign_workers, free_bytes, names_workers_devices
            from oocpr.engine.executors.dask_client import worker_count, worker_limits

            if names_workers_devices(device):
                free = free_bytes(client, assign_workers(client))
            limits, present = worker_limits(client), worker_count(client)
        names = names_of(store)
        request = RunRequest(
            auto=method == "auto"
            and {reads, stripes, kept, trace} == {None}
            and (io, device) == ("auto", "cpu"),
            memory=memory,
            device_memory=device_memory,
            stripes=stripes or (None if kept is None else kept.stripes),
            first_tiles=() if kept is None or stripes else kept.first_tiles,
            threads=threads,
            device=device,
            kernel=kernel,
            io=io,
            reproducible=reproducible,
            personalized=many or personalization is not None,
            started=start is not None,
            alone=client is None,
            workers=max(1, present),
            free=free,
            limits=limits,
            kept=kept is not None,
            reusable=_decoded_bytes(opened),
        )
        if many:
            from oocpr.api.personal import rank_seeds

            wanted = personalization if seeds is None else os.fspath(seeds)
            return rank_seeds(opened, wanted, settings, request, top, progress, in_blocks=in_blocks)
        teleport = begun = None  # once there, they are part of the process that the plan begins with
        if personalization is not None:
            teleport = teleport_vector(personalization, names, store.nodes, given_memory(memory))
        if start is not None:
            least = (1 - damping) * (1 / store.nodes if teleport is None else teleport)
            begun = start_vector(start, names, store.nodes, least, given_memory(memory))
        planned, loading = plan_loaded(store, settings, request, progress)
        if client is not None and request.stripes is None and not reproducible:
            from oocpr.engine.probe.workers import MIN_EDGES, worker_speeds

            alike = bool(planned.plan.devices) or store.edges < MIN_EDGES
            if len(planned.plan.stripes) > 1 and not alike:
                speeds = worker_speeds(
                    client, store.shared_path, identity, planned.plan, planned.settings, progress
                )
                planned = plan_loaded(store, settings, replace(request, speeds=speeds), progress)[0]
        made = planned.plan
        if predict and made.fits:
            made = timed(planned, request, progress)
        _LOG.info("plan of the run:\n%s", made)
        timeline = None if trace is None else Trace()
        with watched(silent) as compilation, store.unchanged():
            solution = rank_graph(
                planned.store,
                made,
                planned.settings,
                path=store.shared_path,
                client=client,
                backend=device,
                threads=threads,
                kernel=kernel,
                teleport=teleport,
                start=begun,
                decoded=opened.decoded,
                trace=timeline,
                checkpoints=kept,
                progress=progress,
            )
        run = report_of(
            replace(solution, seconds=solution.seconds + loading.seconds),
            store,
            identity=identity,
            start_identity=started_from,
            dangling=dangling,
            personalized=teleport is not None,
            compile_seconds=compilation.seconds + loading.compiling,
            direct=made.direct,
            busy=None if timeline is None else timeline.busy(),
            predicted=made.predictions() if client is None else None,
            workers=min(len(made.stripes), present),
        )
        ranks = Ranks(solution.ranks, names, run=run, history=solution.history)
        if trace is not None and timeline is not None:
            try:
                timeline.write(trace)
            except OocprError as error:
                error.ranks = ranks
                raise
        return ranks


@checked
def verify(
    graph: Any,
    ranks: Ranks | str | os.PathLike[str],
    *,
    damping: float | None = None,
    dangling: str | None = None,
    personalization: Any = None,
    memory: str | int | None = None,
    progress: Listener = None,
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
    memory
        Most bytes of the process; None for what the machine has free.
    progress
        As for `pagerank`.

    Returns
    -------
    Verification
        Its ``ranks_identity`` differs from its ``identity`` if the ranks say that they are of another graph;
        the bound is that of the ranks as PageRank of this one.

    Raises
    ------
    InputError, UsageError, DoesNotFitError
        If the nodes of the ranks are not those of this graph, if a personalization is missing or a parameter
        cannot be, and if `memory` is too small.
    DamagedError, ReplacedError
        If the store is not what was written, or was replaced since it was opened.
    """
    from oocpr.engine.planning import given_memory
    from oocpr.result import verify as check
    from oocpr.result.names import names_of
    from oocpr.result.node_vectors import teleport_vector
    from oocpr.result.rank_files import read_ranks

    progress = as_progress(progress)
    store = opened_graph(graph).store
    if not isinstance(ranks, Ranks | str | os.PathLike):
        raise UsageError(
            f"ranks is {render_argument(ranks)}.", "Give what oocpr.pagerank returns, or a file of ranks."
        )
    origin = "the result" if isinstance(ranks, Ranks) else os.fspath(ranks)
    found = ranks if isinstance(ranks, Ranks) else read_ranks(ranks)
    run = found.run
    if run is not None and run.personalized and personalization is None:
        raise UsageError(f"{origin} is of a personalized run.", "Give the same personalization again.")
    most = given_memory(memory)
    teleport = (
        None
        if personalization is None
        else teleport_vector(personalization, names_of(store), store.nodes, most)
    )
    if found.identity not in (None, store.identity):
        origin += f" (of the graph {found.identity}, and this is {store.identity})"
    with store.unchanged(), check.in_store_order(store, found, origin, most) as ordered:
        outcome = check.verify(
            store,
            ordered,
            damping=damping if damping is not None else run.damping if run else 0.85,
            dangling=dangling if dangling is not None else run.dangling if run else "strongly",
            personalization=teleport,
            progress=progress,
        )
        store.check_identity()
    return replace(outcome, identity=store.identity, ranks_identity=found.identity)


def warmup(progress: Progress = silent) -> tuple[str, float]:
    """Compile what an import, a run on processors and a list of the first nodes need.

    Returns the folder of the compiled functions, empty if no folder can be written, and the seconds that
    compiling took, 0 if everything was there.
    """
    from oocpr.jit import cache_folder, watched

    tiled = ("mixed", "residual", "power")
    ids = np.random.default_rng(1).integers(0, 300, (2, 3000))
    with TemporaryDirectory(prefix="oocpr-warmup-") as folder, watched(progress) as compilation:
        numbers, names = Path(folder, "numbers.txt"), Path(folder, "names.tsv")
        np.savetxt(numbers, ids.T, "%d")
        names.write_text("".join(f"n{source}\tn{target}\n" for source, target in ids.T))
        weighted = Path(folder, "weighted.txt")
        np.savetxt(weighted, np.vstack([ids, ids[0] + 1]).T, "%d")
        path = Path(folder, "g.zarr")
        import_graph(names, path)
        _rank(import_graph(numbers, path, order="degree", overwrite=True), ("auto", *tiled))
        _rank(import_graph(weighted, path, weight="3", duplicates="sum", overwrite=True), tiled)
    return cache_folder(), compilation.seconds


def _rank(graph: Graph, methods: Iterable[str]) -> None:
    from oocpr.engine.number_formats import READS

    for method in methods:
        for reads in (None,) if method in ("auto", "power") else READS:
            pagerank(graph, method=method, reads=reads, tol=1e-4).top(3)


def _decoded_bytes(graph: Graph) -> int:
    """Bytes of what earlier runs left in memory, which a run takes up."""
    return sum(decoded.nbytes for decoded in graph.decoded.values())
