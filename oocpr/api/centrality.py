"""Relatives of PageRank: Katz centrality, eigenvector centrality, hubs and authorities."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from oocpr.api.arguments import ImportOptions, as_progress, checked
from oocpr.api.graphs import taken_graph
from oocpr.errors import InputError, UsageError
from oocpr.progress import silent
from oocpr.result.centrality import Centrality, CentralityReport, Hits

if TYPE_CHECKING:
    from oocpr.api.graphs import Graph
    from oocpr.engine.centrality import Outcome
    from oocpr.progress import Listener, Progress


@checked
def katz_centrality(
    graph: Any,
    *,
    alpha: float,
    beta: float = 1.0,
    tol: float = 1e-6,
    max_passes: int = 1000,
    memory: str | int | None = None,
    threads: int | None = None,
    device: str = "cpu",
    progress: Listener = None,
    **options: Unpack[ImportOptions],
) -> Centrality:
    """Find Katz centrality: x(v) = alpha * (sum over edges u -> v of weight(u, v) * x(u)) + beta.

    Parameters
    ----------
    graph
        A `Graph`, the path of a store, or anything `import_graph` reads. Edges count by their weights if they
        have some.
    alpha
        What an edge passes on, above zero and below 1 over the largest eigenvalue of the graph, which
        `eigenvector_centrality` estimates.
    beta
        What each node has of itself, above zero.
    tol
        Certified relative error of each node at which to stop.
    max_passes
        Passes after which to give up.
    memory
        Most bytes of the process; None for what the machine has free. Tiles that do not fit stream.
    threads
        Computing threads; None for as many as the edges feed, one per core or, if tiles are read in
        every pass, seven for eight cores; sixteen at most.
    device
        ``"cpu"``: there is no version for CUDA devices.
    progress, **options
        See `pagerank`.

    Returns
    -------
    Centrality
        Not normalized, in store order, with the calls of `Ranks`. Its ``converged`` is False if the passes
        ran out or rounding leaves more than `tol`.

    Raises
    ------
    UsageError
        Also if `alpha` is shown to be too large for the graph; the error has an estimate of the limit. And if
        numbers grow past what float64 can certify, or it does not hold them times `beta`.
    InputError, NotAStoreError, DoesNotFitError, DamagedError, ReplacedError
        See `oocpr.errors`.

    Examples
    --------
    >>> import numpy as np
    >>> found = katz_centrality((np.array([0, 1, 2]), np.array([1, 0, 0])), alpha=0.5)
    >>> [f"{x:.4f}" for x in found.to_numpy()], found.error_bound <= 1e-6
    (['2.6667', '2.3333', '1.0000'], True)
    """
    from oocpr.engine.centrality import solve_katz

    alpha, beta = float(alpha), float(beta)
    for name, value in (("alpha", alpha), ("beta", beta)):
        if not 0 < value < math.inf:
            raise UsageError(f"{name} is {value}.", f"Give a finite {name} above 0.")
    find = partial(solve_katz, alpha=alpha, beta=beta, tol=tol, max_passes=max_passes)
    opened, outcome, facts = _search(
        "Katz centrality", graph, find, tol, memory, threads, device, as_progress(progress), options
    )
    return _answer(opened, outcome.vectors[0], measure="katz", alpha=alpha, beta=beta, **facts)


@checked
def eigenvector_centrality(
    graph: Any,
    *,
    tol: float = 1e-8,
    max_passes: int = 1000,
    memory: str | int | None = None,
    threads: int | None = None,
    device: str = "cpu",
    progress: Listener = None,
    **options: Unpack[ImportOptions],
) -> Centrality:
    """Find eigenvector centrality: x(v) in proportion to the sum over edges u -> v of weight(u, v) * x(u).

    Parameters
    ----------
    tol
        Residual at which to stop: the L2 norm of what both sides differ by, over the eigenvalue. Nothing is
        certified; ``facts`` has the residual and an estimate of the eigenvalue's gap to the next one.
    graph, max_passes, memory, threads, device, progress, **options
        See `katz_centrality`.

    Returns
    -------
    Centrality
        With an L2 norm of 1. If several vectors solve the equation, as of a graph in several parts, it is the
        one that power iteration from equal numbers comes to.

    Raises
    ------
    UsageError
        Also for a graph that is found to have no cycle, so that its largest eigenvalue is 0. To find that
        takes as many passes as its longest path has nodes; if those run out, ``converged`` is False.
    InputError, NotAStoreError, DoesNotFitError, DamagedError, ReplacedError
        See `oocpr.errors`; also for a graph without edges.

    Examples
    --------
    >>> import numpy as np
    >>> found = eigenvector_centrality((np.array([0, 1, 2]), np.array([1, 2, 0])))
    >>> found.to_numpy().round(4).tolist(), round(found.facts.eigenvalue, 4)
    ([0.5774, 0.5774, 0.5774], 1.0)
    """
    from oocpr.engine.centrality import find_eigenvector

    find = partial(find_eigenvector, reflected=False, tol=tol, max_passes=max_passes)
    opened, outcome, facts = _search(
        "eigenvector centrality", graph, find, tol, memory, threads, device, as_progress(progress), options
    )
    return _answer(opened, outcome.vectors[0], measure="eigenvector", **facts)


@checked
def hits(
    graph: Any,
    *,
    tol: float = 1e-8,
    max_passes: int = 1000,
    memory: str | int | None = None,
    threads: int | None = None,
    device: str = "cpu",
    progress: Listener = None,
    **options: Unpack[ImportOptions],
) -> Hits:
    """Find hubs and authorities (Kleinberg 1999): good hubs point to good authorities.

    The number of a hub is in proportion to the sum of those of the authorities that it points to, and the
    number of an authority to that of the hubs which point to it; each edge counts by its weight. A pass over
    the graph gives both sums.

    Parameters
    ----------
    tol
        Residual of the hubs at which to stop; see `eigenvector_centrality`, here for the matrix A A^T.
    graph, max_passes, memory, threads, device, progress, **options
        See `katz_centrality`.

    Returns
    -------
    Hits
        ``hubs`` and ``authorities``, each a `Centrality` whose numbers sum to 1.

    Raises
    ------
    UsageError, InputError, NotAStoreError, DoesNotFitError, DamagedError, ReplacedError
        See `oocpr.errors`; also for a graph without edges.

    Examples
    --------
    >>> import numpy as np
    >>> hubs, authorities = hits((np.array([0, 0, 1]), np.array([1, 2, 2])))
    >>> hubs.top(1)[0][0], authorities.top(1)[0][0]
    (0, 2)
    """
    from oocpr.engine.centrality import find_eigenvector

    find = partial(find_eigenvector, reflected=True, tol=tol, max_passes=max_passes)
    opened, outcome, facts = _search(
        "hits", graph, find, tol, memory, threads, device, as_progress(progress), options, scatters=True
    )
    for vector in outcome.vectors:
        vector /= vector.sum()
    hubs, authorities = outcome.vectors
    return Hits(
        _answer(opened, hubs, measure="hubs", **facts),
        _answer(opened, authorities, measure="authorities", **facts),
    )


def _answer(opened: Graph, values: Any, **facts: Any) -> Centrality:
    from oocpr.result.names import names_of

    return Centrality(values, names_of(opened.store), CentralityReport(**facts))


def _search(
    what: str,
    graph: Any,
    find: Callable[..., Outcome],
    tol: float,
    memory: str | int | None,
    threads: int | None,
    device: str,
    progress: Progress,
    options: ImportOptions,
    *,
    scatters: bool = False,
) -> tuple[Graph, Outcome, dict[str, Any]]:
    """Open the graph, plan within the memory, and search; gives the facts that all measures have, too."""
    from oocpr.engine.centrality import MAX_DIRECTIONS, MIN_DIRECTIONS, StreamedMatrix
    from oocpr.engine.planning import given_memory, process_bytes, stats_of
    from oocpr.ingest.budget import require
    from oocpr.jit import watched
    from oocpr.plan.memory import centrality_need
    from oocpr.plan.residency import RING_SLOTS, fitting_tiles
    from oocpr.store.degrees import row_sizes
    from oocpr.system import peak_resident

    if device not in ("cpu", "auto"):
        raise UsageError(
            f"device is {device!r}, and {what} is found on processors only.",
            "Use device cpu, or leave it out.",
        )
    if not 0 < tol < 1:
        raise UsageError(f"tol is {tol}, outside (0, 1).", "Use a value such as 1e-8.")
    opened = taken_graph(graph, memory=memory, progress=progress, **options)
    begun, store, most = time.perf_counter(), opened.store, given_memory(memory)
    if not store.edges and what != "Katz centrality":
        raise InputError(
            f"{opened} has no edges, so that {what} says nothing.", "Use Katz centrality instead."
        )
    stats, largest = stats_of(store), row_sizes(store).largest
    base = process_bytes()

    def need(directions: int) -> int:
        return centrality_need(
            stats,
            base=base,
            directions=directions,
            largest_row=largest,
            scatters=scatters,
            ring_slots=RING_SLOTS,
        ).total

    fitting = (count for count in range(MAX_DIRECTIONS, MIN_DIRECTIONS, -1) if need(count) <= most)
    directions = next(fitting, MIN_DIRECTIONS)
    require(need(directions), most, f"The search for {what}")
    resident = fitting_tiles(stats.tiles, stats.max_tile_bytes, most - need(directions))
    with watched(silent) as compilation, store.unchanged():
        matrix = StreamedMatrix(store, resident, threads, progress)
        try:
            outcome = find(matrix, directions=directions)
        finally:
            matrix.close()
        store.check_identity()
    seconds = time.perf_counter() - begun
    facts = {
        "nodes": store.nodes, "edges": store.edges, "identity": store.identity, "tol": float(tol),
        "converged": outcome.converged, "residual": outcome.residual, "error_bound": outcome.error_bound,
        "eigenvalue": outcome.eigenvalue, "gap": outcome.gap, "passes": matrix.passes,
        "bytes_read": matrix.bytes_read, "seconds": seconds,
        "compile_seconds": compilation.seconds if compilation.seconds < seconds else 0.0,
        "peak_memory": peak_resident(),
    }  # fmt: skip
    return opened, outcome, facts
