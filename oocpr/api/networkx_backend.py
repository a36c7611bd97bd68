"""The backend `oocpr` of NetworkX: this module is what NetworkX calls, by the entry point of that name."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from numbers import Real
from operator import neg
from typing import TYPE_CHECKING, Any, ClassVar, cast

import networkx as nx
import numpy as np
import scipy as sp
from numpy.typing import NDArray

from oocpr.api import centrality, ranking
from oocpr.api.graphs import Graph
from oocpr.errors import InputError, UsageError
from oocpr.result.names import names_of
from oocpr.result.node_vectors import named_vector
from oocpr.sources.block import Strings

if TYPE_CHECKING:
    from oocpr.api.arguments import ImportOptions
    from oocpr.result.centrality import Centrality
    from oocpr.result.ranks import Ranks

    Vector = NDArray[np.float64]

LEAST_EDGES = 100_000
"""Edges below which NetworkX's own algorithm is faster: it makes no temporary store."""

LOOSEST_TOL = 1e-6
"""Residual that is always reached: NetworkX's own limit, nodes times `tol`, says nothing for large graphs."""

_CALLS = ("pagerank", "katz_centrality", "eigenvector_centrality", "hits")

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class NetworkXGraph:
    """A graph of NetworkX as the backend takes it.

    Parameters
    ----------
    nodes
        The nodes in NetworkX's order.
    matrix
        Weights of edges, from the node of a row; parallel edges are entries of their own.
    parallel
        Whether there may be such.
    textual
        Whether some weights are text: numbers for the functions that make a matrix, an error for the others.
    """

    __networkx_backend__: ClassVar[str] = "oocpr"

    nodes: list[Any]
    matrix: sp.sparse.csr_array[np.float64]
    parallel: bool
    textual: bool

    def __len__(self) -> int:
        return len(self.nodes)

    def weighted_by(self, weight: Any) -> sp.sparse.csr_array[np.float64]:
        """Give the matrix, for None with weights of 1: NetworkX may have converted with weights before."""
        if weight is not None:
            return self.matrix
        parts = np.ones(self.matrix.nnz), self.matrix.indices, self.matrix.indptr
        return sp.sparse.csr_array(parts, self.matrix.shape)

    def source(self, weight: Any) -> tuple[Any, ImportOptions]:
        """Give what `oocpr.pagerank` ranks, and how it is read."""
        matrix = self.weighted_by(weight)
        weighted = self.parallel or bool((matrix.data != 1).any())
        # NetworkX adds up parallel edges, which is no news to those who call it.
        return matrix, {"weight": "values", "duplicates": "sum"} if weighted else {}

    def vector(self, numbers: Mapping[Any, float]) -> Vector:
        """Give the numbers of nodes in their order, 0 for those without one."""
        return np.array([numbers.get(node, 0) for node in self.nodes], float)

    def by_node(self, ranks: Ranks) -> dict[Any, float]:
        """Give the ranks by node."""
        return dict(zip(self.nodes, ranks.to_numpy().tolist(), strict=True))


class StoredGraph:
    """A graph store with the calls of `NetworkXGraph`, of which nothing but vectors comes into memory."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def __len__(self) -> int:
        return self._graph.nodes

    def source(self, weight: Any) -> tuple[Any, ImportOptions]:
        """Give the graph; UsageError if it has weights and shall be ranked without."""
        if weight is None and self._graph.store.attributes.weighted:
            raise UsageError(
                f"{self._graph} has weights, and weight is None.",
                "Leave the weight to its default, or import the graph again without weights.",
            )
        return self._graph, {}

    def vector(self, numbers: Mapping[Any, float]) -> Vector:
        """Give the numbers of nodes in the order of the store, 0 for those without one."""
        return named_vector(numbers, names_of(self._graph.store), len(self))

    def by_node(self, ranks: Ranks) -> dict[Any, float]:
        """Give the ranks by node; InputError if nodes share a name."""
        blocks = ranks.names.blocks(len(self))
        names = (block if isinstance(block, Strings) else block.tolist() for block in blocks)
        values = (chunk.tolist() for chunk in ranks.chunks())
        found = dict(zip(chain.from_iterable(names), chain.from_iterable(values), strict=True))
        if len(found) < len(self):
            raise InputError(
                f"{len(self) - len(found):,} nodes of {self._graph} have the name of another one.",
                "Import the graph with other labels, or rank it with oocpr.pagerank.",
            )
        return found


def convert_from_nx(
    graph: Any,
    *,
    edge_attrs: Mapping[Any, Any] | None = None,
    preserve_edge_attrs: Any = False,
    **_: Any,
) -> NetworkXGraph:
    """Take a graph of NetworkX, with the one attribute of edges that is their weight, or none.

    Raises NotImplementedError if all attributes are asked for, and for weights that are no numbers what NumPy
    raises or, for those of loops of undirected graphs, Python.

    Examples
    --------
    >>> convert_from_nx(nx.MultiDiGraph(["ab", "ab", "ba"])).matrix.toarray().tolist()
    [[0.0, 2.0], [1.0, 0.0]]
    """
    if preserve_edge_attrs:
        raise NotImplementedError("oocpr takes one attribute of edges, by its name.")
    nodes = list(graph)
    places = {node: place for place, node in enumerate(nodes)}
    adjacency = dict(graph.adjacency())  # of views, the order may be another than that of the nodes
    targets: list[Any] = [adjacency[node] for node in nodes]
    parallel = graph.is_multigraph()
    if parallel:
        targets = [[node for node, keys in each.items() for _ in keys] for each in targets]
    starts = np.cumsum([0, *map(len, targets)])
    columns = np.fromiter(map(places.__getitem__, chain.from_iterable(targets)), np.int64, starts[-1])
    weights = np.ones(columns.size)
    textual = False
    if edge_attrs:
        ((name, default),) = edge_attrs.items()
        found = chain.from_iterable(adjacency[node].values() for node in nodes)
        each = chain.from_iterable(keys.values() for keys in found) if parallel else found
        given = [attributes.get(name, default) for attributes in each]
        weights = np.array(given, float)
        textual = str in set(map(type, given))
        if not graph.is_directed():
            # NetworkX takes off loops what it has counted twice, and text that NumPy reads as a number has no
            # negative.
            rows = np.repeat(np.arange(len(nodes)), np.diff(starts))
            for place in np.flatnonzero(rows == columns):
                neg(given[place])
    shape = len(nodes), len(nodes)
    return NetworkXGraph(nodes, sp.sparse.csr_array((weights, columns, starts), shape), parallel, textual)


def convert_to_nx(result: Any, **_: Any) -> Any:
    """Give results as they are; UsageError for a stored graph, which may not fit in memory."""
    if isinstance(result, Graph):
        raise UsageError(
            f"{result} is not turned into a graph of NetworkX.",
            f"Of NetworkX's functions call {', '.join(_CALLS)}.",
        )
    return result


def can_run(name: str, args: Any, kwargs: Any) -> bool:  # noqa: ARG001
    """Say whether this is one of the functions, and no name that the module has by chance.

    `pagerank` takes any arguments, the others what `_is_simple` says.
    """
    numbers = {key: kwargs[key] for key in ("nstart", "alpha", "beta", "tol") if key in kwargs}
    return name in _CALLS and (name == "pagerank" or _is_simple(**numbers))


def should_run(name: str, args: Any, kwargs: Any) -> bool | str:  # noqa: ARG001
    """Leave small graphs to NetworkX if it is free to choose; returns a reason then, else True."""
    graph = args[0] if args else kwargs["G"]
    if graph.number_of_edges() >= LEAST_EDGES:
        return True
    return f"the graph has fewer than {LEAST_EDGES:,} edges"


def pagerank(
    G: NetworkXGraph | Graph,  # noqa: N803
    alpha: float = 0.85,
    personalization: Mapping[Any, float] | None = None,
    max_iter: int = 100,
    tol: float = 1e-6,
    nstart: Mapping[Any, float] | None = None,
    weight: Any = "weight",
    dangling: Mapping[Any, float] | None = None,
) -> dict[Any, float]:
    """Rank the nodes as ``networkx.pagerank`` does, whose parameters these are.

    Parameters
    ----------
    G
        A graph of NetworkX, converted: what oocpr refuses is computed by power iteration in SciPy, as
        NetworkX does it. Or one that is stored, for which there is no such way out.

    Raises
    ------
    networkx.PowerIterationFailedConvergence
        If `max_iter` passes do not suffice.
    ZeroDivisionError
        If the numbers of `personalization` for nodes of the graph sum to 0.
    UsageError, InputError, DoesNotFitError, DamagedError, ReplacedError
        For stored graphs, see `oocpr.pagerank`; also for weights that cannot be left out, a `dangling` that
        is neither the personalization nor even, and names that several nodes share.

    Examples
    --------
    >>> ranks = nx.pagerank(nx.DiGraph(["ab", "ca", "ba"]), backend="oocpr")
    >>> max(ranks, key=ranks.get)
    'a'
    """
    graph = _taken(G)
    if not len(graph):
        return {}
    start = None if nstart is None else _normalized(graph.vector(nstart))
    teleport = None if personalization is None else graph.vector(personalization)
    if teleport is not None:
        if teleport.sum() == 0:
            raise ZeroDivisionError("the personalization of all nodes sums to 0")
        teleport = _normalized(teleport)
    spread = None if dangling is None else _normalized(graph.vector(dangling))
    if max_iter < 1:
        raise nx.PowerIterationFailedConvergence(max_iter)
    limit = len(graph) * tol
    try:
        source, options = graph.source(weight)
        ranks = ranking.pagerank(
            source,
            damping=alpha,
            tol=min(limit, LOOSEST_TOL),
            stop="residual",
            max_passes=max_iter,
            dangling=_rule(spread, teleport),
            personalization=teleport,
            start=start,
            **options,
        )
        assert ranks.error_bound is not None
        if ranks.converged or ranks.error_bound <= alpha / (1 - alpha) * limit:
            return graph.by_node(ranks)
    except (InputError, UsageError) as error:
        if isinstance(graph, StoredGraph):
            raise
        _LOG.info("computed in SciPy: %s", error)
    if isinstance(graph, StoredGraph):
        raise nx.PowerIterationFailedConvergence(max_iter)
    values = _iterated(graph.weighted_by(weight), alpha, teleport, max_iter, limit, start, spread)
    return dict(zip(graph.nodes, values.tolist(), strict=True))


def katz_centrality(
    G: NetworkXGraph | Graph,  # noqa: N803
    alpha: float = 0.1,
    beta: float = 1.0,
    max_iter: int = 1000,
    tol: float = 1e-6,
    nstart: Mapping[Any, float] | None = None,
    normalized: bool = True,
    weight: Any = None,
) -> dict[Any, float]:
    """Find Katz centrality as ``networkx.katz_centrality`` does, each number with a relative error of `tol`.

    Raises what `pagerank` raises; PowerIterationFailedConvergence also if `alpha` is too large.

    Examples
    --------
    >>> found = nx.katz_centrality(nx.DiGraph(["ab", "cb", "ba"]), backend="oocpr")
    >>> max(found, key=found.get)
    'b'
    """
    graph = _taken(G, nstart=nstart, alpha=alpha, beta=beta, tol=tol)
    if not len(graph):
        return {}
    _check_numbers(graph, weight)
    source, options = graph.source(weight)
    if normalized:
        # It cancels, and squares of small and large numbers are none.
        beta = 1.0
    try:
        found = centrality.katz_centrality(
            source, alpha=alpha, beta=beta, tol=tol, max_passes=max_iter, **options
        )
    except UsageError as error:
        raise nx.PowerIterationFailedConvergence(max_iter) from error
    if normalized:
        values = found.to_numpy()
        values /= np.linalg.norm(values)
    return _converged(graph, found, max_iter)


def eigenvector_centrality(
    G: NetworkXGraph | Graph,  # noqa: N803
    max_iter: int = 100,
    tol: float = 1e-6,
    nstart: Mapping[Any, float] | None = None,
    weight: Any = None,
) -> dict[Any, float]:
    """Find eigenvector centrality as ``networkx.eigenvector_centrality`` does, to a residual of `tol`.

    Raises what `pagerank` raises.

    Examples
    --------
    >>> found = nx.eigenvector_centrality(nx.Graph(["ab", "cb", "db"]), backend="oocpr")
    >>> max(found, key=found.get)
    'b'
    """
    graph = _taken(G, nstart=nstart, tol=tol)
    if not len(graph):
        raise nx.NetworkXPointlessConcept("cannot compute centrality for the null graph")
    _check_numbers(graph, weight)
    source, options = graph.source(weight)
    try:
        found = centrality.eigenvector_centrality(source, tol=tol, max_passes=max_iter, **options)
    except UsageError as error:
        raise nx.PowerIterationFailedConvergence(max_iter) from error
    return _converged(graph, found, max_iter)


def hits(
    G: NetworkXGraph | Graph,  # noqa: N803
    max_iter: int = 100,
    tol: float = 1e-8,
    nstart: Mapping[Any, float] | None = None,
    normalized: bool = True,
    *,
    method: str = "svd",
) -> tuple[dict[Any, float], dict[Any, float]]:
    """Find hubs and authorities as ``networkx.hits`` does, to a residual of `tol`.

    `method` says how they are scaled unless they are `normalized`. NetworkX gives it from 3.7 on, and did
    what it calls ``"svd"`` before. Raises what `pagerank` raises, and ValueError for another `method`.

    Examples
    --------
    >>> hubs, authorities = nx.hits(nx.DiGraph(["ab", "ac", "bc"]), backend="oocpr")
    >>> max(hubs, key=hubs.get), max(authorities, key=authorities.get)
    ('a', 'c')
    """
    if method not in ("power_iteration", "svd"):
        raise ValueError(f"method not supported: {method}")
    graph = _taken(G, nstart=nstart, tol=tol)
    if not len(graph):
        return {}, {}
    if max_iter < 1:
        raise nx.PowerIterationFailedConvergence(max_iter)
    source, options = graph.source("weight")
    found = centrality.hits(source, tol=tol, max_passes=max_iter, **options)
    hubs, authorities = found.hubs.to_numpy(), found.authorities.to_numpy()
    if not normalized and method == "power_iteration":
        hubs /= hubs.max()
        authorities /= authorities.max()
    elif not normalized:
        # NetworkX leaves the authorities at a norm of 1, and multiplies them to hubs.
        authorities /= np.linalg.norm(authorities)
        hubs *= np.sqrt(found.hubs.facts.eigenvalue or 0.0) / np.linalg.norm(hubs)
    return _converged(graph, found.hubs, max_iter), _converged(graph, found.authorities, max_iter)


def _is_simple(nstart: Any = None, alpha: Any = 0.1, beta: Any = 1.0, tol: Any = 1e-6) -> bool:
    """Tell whether there is no start, and alpha and beta are numbers above 0, and tol one below 1 as well."""
    if nstart is not None or not all(isinstance(number, Real) for number in (alpha, beta, tol)):
        return False
    return bool(0 < alpha < np.inf and 0 < beta < np.inf and 0 < tol < 1)


def _check_numbers(graph: NetworkXGraph | StoredGraph, weight: Any) -> None:
    """Refuse text as weights, of which NetworkX makes numbers only where it makes a matrix."""
    if weight is not None and isinstance(graph, NetworkXGraph) and graph.textual:
        raise TypeError(f"the attribute {weight!r} of some edges is text")


def _taken(graph: NetworkXGraph | Graph, **numbers: Any) -> NetworkXGraph | StoredGraph:
    """Take a graph, and refuse what `can_run` does, which NetworkX does not ask of a graph on disk."""
    if not _is_simple(**numbers):
        raise NotImplementedError(
            "oocpr takes no nstart, one number above 0 for alpha and for beta, and a tol between 0 and 1."
        )
    return StoredGraph(graph) if isinstance(graph, Graph) else graph


def _converged(graph: NetworkXGraph | StoredGraph, found: Centrality, max_iter: int) -> dict[Any, float]:
    if not found.converged:
        raise nx.PowerIterationFailedConvergence(max_iter)
    return graph.by_node(found)


def _normalized(numbers: Vector) -> Vector:
    return cast("Vector", numbers / numbers.sum())


def _rule(spread: Vector | None, teleport: Vector | None) -> str:
    """Name the rule by which dangling mass is spread so; UsageError if there is none."""
    if spread is None or (teleport is not None and np.allclose(spread, teleport, rtol=1e-14, atol=0)):
        return "strongly"
    if np.allclose(spread, spread[0], rtol=1e-14, atol=0):
        return "weakly"
    raise UsageError(
        "dangling is neither the personalization nor the same for all nodes.",
        "Leave it out, or give the same number to all nodes.",
    )


def _iterated(
    matrix: sp.sparse.csr_array[np.float64],
    alpha: float,
    teleport: Vector | None,
    max_iter: int,
    limit: float,
    start: Vector | None,
    spread: Vector | None,
) -> Vector:
    """Carry out NetworkX's own power iteration, with its rule to stop, whatever the numbers are."""
    even = np.full(matrix.shape[0], 1 / matrix.shape[0])
    x = even if start is None else start
    teleport = even if teleport is None else teleport
    spread = teleport if spread is None else spread
    scale: Vector = matrix.sum(axis=1)
    scale[scale != 0] = 1 / scale[scale != 0]
    moves = sp.sparse.diags_array(scale).tocsr() @ matrix
    for _ in range(max_iter):
        last = x
        x = alpha * (x @ moves + x[scale == 0].sum() * spread) + (1 - alpha) * teleport
        if np.abs(x - last).sum() < limit:
            return cast("Vector", x)
    raise nx.PowerIterationFailedConvergence(max_iter)
