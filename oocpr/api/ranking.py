"""Runs: planned, carried out, verified."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oocpr.api.graphs import Graph, as_graph, open_graph
from oocpr.api.machine import KERNEL_BYTES, available_memory
from oocpr.errors import UsageError
from oocpr.ingest.budget import resident
from oocpr.progress import silent
from oocpr.result.ranks import Ranks
from oocpr.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from oocpr.engine.settings import Settings
    from oocpr.plan.model import Rates
    from oocpr.plan.plan import GraphFacts, Plan
    from oocpr.progress import Progress
    from oocpr.result.verify import Verification
    from oocpr.store.graph import GraphStore

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
    stripes: int | None = None,
    personalized: bool = False,
    threads: int | None = None,
    device: str = "cpu",
    kernel: str | None = None,
) -> Plan:
    """Say what a run would need and take, before it starts; the time comes from a probe of a second.

    Parameters
    ----------
    graph
        A `Graph`, or the path of a store.
    damping, tol, method, reads, stop, memory, stripes, threads, device, kernel
        As for `pagerank`.
    personalized
        Whether the teleport vector would be given.

    Returns
    -------
    Plan
        Prints as a table; ``fits`` says whether the run stays within the memory.

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
    from oocpr.engine.probe import measure_rates

    settings = _settings(method, reads, damping=damping, tol=tol, stop=stop)
    opened = graph if isinstance(graph, Graph) else open_graph(graph)
    store = opened.store
    base = _base(opened)
    if method == "auto":
        settings = _chosen(settings, store, reads, stripes, device, memory, base, personalized)
    made = _plan(store, settings, memory, stripes, base, personalized=personalized)
    if not made.fits:
        return made
    rates = measure_rates(store, made, settings, backend=device, threads=threads, kernel=kernel)
    # The probe's own memory is none of the run's.
    return _plan(
        store,
        settings,
        made.memory,
        stripes,
        made.need.base,
        personalized=personalized,
        rates=rates,
    )


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
    stripes: int | None = None,
    dangling: str = "strongly",
    personalization: Mapping[Any, float] | NDArray[np.float64] | str | os.PathLike[str] | None = None,
    threads: int | None = None,
    client: Any = None,
    device: str = "cpu",
    kernel: str | None = None,
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
    stripes
        Parts of the graph that advance side by side; None to choose by size.
    dangling
        ``"strongly"``: the rank of nodes without out-links follows the teleport vector; ``"weakly"``: it is
        spread evenly.
    personalization
        Teleport weights: by node name, or for each node in store order, or a file of lines
        ``node<TAB>weight``; None for all nodes alike.
    threads
        Computing threads; None for all cores.
    client
        A ``distributed.Client``; None to work in this process.
    device
        ``"cpu"``, ``"cuda"`` or ``"cuda:1"`` (needs CuPy), ``"auto"`` for CUDA where it can be had and the
        processor elsewhere, or ``"reference"`` for plain NumPy.
    kernel
        How a CUDA device multiplies; None for ``"balanced"``, the fastest, whose bits are always the same.
    progress
        Told after every pass.

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
    from oocpr.engine.run import solve
    from oocpr.result.names import names_of
    from oocpr.result.report import report_of
    from oocpr.result.teleport import teleport_vector

    # Settings come first: what cannot be is refused before a source is imported.
    settings = _settings(
        method, reads, damping=damping, tol=tol, stop=stop, dangling=dangling, max_passes=max_passes
    )
    opened = as_graph(graph, memory=memory, progress=progress)
    store = opened.store
    names = names_of(store)
    teleport = None if personalization is None else teleport_vector(personalization, names, store.nodes)
    base = _base(opened)
    if method == "auto":
        settings = _chosen(settings, store, reads, stripes, device, memory, base, teleport is not None)
    made = _plan(store, settings, memory, stripes, base, personalized=teleport is not None)
    _LOG.info("plan of the run:\n%s", made)
    solution = solve(
        store,
        made,
        settings,
        path=_absolute(store.path),
        client=client,
        backend=device,
        threads=threads,
        kernel=kernel,
        teleport=teleport,
        kept=opened.kept,
        progress=progress,
    )
    run = report_of(solution, store, dangling=dangling, personalized=teleport is not None)
    return Ranks(solution.ranks, names, run=run, history=solution.history)


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


def _settings(method: str, reads: str | None, **others: Any) -> Settings:
    from oocpr.engine.reads import READS
    from oocpr.engine.settings import Settings

    # Until the graph is open nobody knows whether it fits; what is refused is the same.
    chosen = "mixed" if method == "auto" else method
    usual = {"components": "float32", "power": "float64"}.get(chosen, "bits16")
    settings = Settings(method=chosen, reads=reads or usual, **others)
    unit = READS[settings.reads].unit_rounding
    if chosen == "power" and unit > settings.tol:
        raise UsageError(
            f"power iteration rounds its iterate to reads {settings.reads}, by up to {unit:.1e}, and stalls "
            f"above tol {settings.tol:g}.",
            "Use reads float64, or a method that keeps an exact residual: mixed or residual.",
        )
    return settings


def _chosen(
    settings: Settings,
    store: GraphStore,
    reads: str | None,
    stripes: int | None,
    device: str,
    memory: str | int | None,
    base: int,
    personalized: bool,
) -> Settings:
    """Settings of a run for which nobody named a method."""
    from dataclasses import replace

    from oocpr.plan.plan import choose_method

    if reads is not None or stripes is not None or device != "cpu":
        return settings
    given = available_memory() if memory is None else parse_bytes(memory)
    method = choose_method(_facts(store), memory=given, base=base, personalized=personalized)
    return replace(settings, method=method, reads="float32") if method == "components" else settings


def _base(graph: Graph) -> int:
    """Bytes of the process before a run, without what earlier runs on the graph have left for it."""
    return resident() + KERNEL_BYTES - sum(whole.nbytes for whole in graph.kept.values())


def _facts(store: GraphStore) -> GraphFacts:
    from oocpr.plan.plan import GraphFacts

    facts = store.attributes
    return GraphFacts(
        nodes=facts.nodes,
        edges=facts.edges,
        tiles=facts.tiles,
        tile_edges=facts.tile_edges,
        column_bytes=facts.column_bytes,
        most_tile_bytes=facts.max_tile_bytes,
        most_tile_rows=int((store.tile_rows[1:] - store.tile_rows[:-1]).max()),
        local_share=facts.local_edges / max(facts.edges, 1),
    )


def _plan(
    store: GraphStore,
    settings: Settings,
    memory: str | int | None,
    stripes: int | None,
    base: int,
    *,
    personalized: bool,
    rates: Rates | None = None,
) -> Plan:
    from oocpr.plan.plan import make_plan

    return make_plan(
        _facts(store),
        method=settings.method,
        reads=settings.reads,
        damping=settings.damping,
        tol=settings.tol,
        mixing=settings.mixing,
        sweeps=None,
        memory=available_memory() if memory is None else parse_bytes(memory),
        base=base,
        stripes=stripes,
        personalized=personalized,
        rates=rates,
    )


def _absolute(path: str) -> str:
    return path if "://" in path else str(Path(path).resolve())
