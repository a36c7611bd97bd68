"""Graphs: imported, opened, extended, and taken as they come."""

from __future__ import annotations

import logging
import os
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast

from oocpr.api.arguments import ImportOptions, as_progress, checked, render_argument
from oocpr.errors import UsageError, masked
from oocpr.html import html_table
from oocpr.sources.base import given
from oocpr.sources.block import unused_columns
from oocpr.units import parse_bytes

if TYPE_CHECKING:
    from oocpr.engine.scc.run import SccGraph
    from oocpr.ingest.cluster import Workers
    from oocpr.progress import Listener, Progress
    from oocpr.sources.base import SourceOptions
    from oocpr.sources.block import Source
    from oocpr.store.atomic import Partial
    from oocpr.store.degrees import DegreeClass
    from oocpr.store.graph import GraphStore


IMPORT_MEMORY = "4GiB"

_LOG = logging.getLogger(__name__)


class Graph:
    """A graph store that is open, as `open_graph` and `import_graph` give it.

    A run with method ``components`` leaves the graph `decoded` in memory, so that later runs begin at once.

    Parameters
    ----------
    store
        What `oocpr.store.open_store` gives.
    temporary
        A folder to remove once nobody holds the graph, or ranks that take their names from it.
    notices
        Sentences a person should read after an import, such as what was left out.
    reason
        Why an import has chosen the order of the nodes, one line; None if it has not.
    """

    __networkx_backend__ = "oocpr"
    """So ``networkx.pagerank`` takes the graph."""

    def __init__(
        self,
        store: GraphStore,
        temporary: Partial | None = None,
        notices: Sequence[str] = (),
        reason: str | None = None,
    ) -> None:
        self.store = store
        self.notices = list(notices)
        self.reason = reason
        self.temporary = temporary is not None
        self.decoded: dict[str, SccGraph] = {}
        if temporary is not None:
            # The store is what the names of ranks hold on to, so it decides how long the folder lives.
            weakref.finalize(store, temporary.remove)

    def __reduce__(self) -> tuple[Any, ...]:
        # A temporary folder stays that of the graph here.
        return Graph, (self.store, None, self.notices, self.reason)

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return self.store.nodes

    @property
    def edges(self) -> int:
        """Number of edges, duplicates merged."""
        return self.store.edges

    def is_directed(self) -> bool:
        """Say so to NetworkX."""
        return True

    def is_multigraph(self) -> bool:
        """Tell NetworkX that there are no parallel edges."""
        return False

    @property
    def path(self) -> str:
        """Where the store is."""
        return str(self.store.path)

    def __repr__(self) -> str:
        place = "temporary" if self.temporary else masked(self.path)
        return f"Graph({self.nodes:,} nodes, {self.edges:,} edges, {place})"

    def _repr_html_(self) -> str:
        facts = self.info()
        shown = (
            "nodes",
            "edges",
            "dangling",
            "self_loops",
            "duplicates",
            "weighted",
            "order",
            "names",
            "source",
        )
        rows = [(name.replace("_", "-"), facts[name]) for name in shown]
        rows.append(("bytes per edge", f"{facts['bytes_per_edge']:.2f}"))
        return html_table(rows, caption=repr(self))

    def info(self) -> dict[str, Any]:
        """Say what the store holds.

        Returns
        -------
        dict
            ``identity`` (32 hexadecimal digits that no other graph has), ``nodes``, ``edges``, ``dangling``,
            ``self_loops``, ``duplicates`` (edges that repeated another), ``duplicate_weights`` (what their
            weights became, see `ImportOptions`; None without weights), ``weighted``,
            ``weight_bytes_per_edge``, ``order``, ``names``, ``source``, ``tiles``, ``tile_edges``,
            ``local_share`` (of edges inside their tile), ``bytes_per_edge`` (columns and weights),
            ``store_bytes``, ``arrays`` (bytes of each).

        Raises
        ------
        ReplacedError
            If the store was replaced since it was opened.
        """
        self.store.check_current()
        known = self.store.attributes
        unnamed = "ids of the source" if self.store.has_ids else "row numbers"
        return {
            "identity": self.store.identity,
            "nodes": known.nodes,
            "edges": known.edges,
            "dangling": known.dangling,
            "self_loops": known.self_loops,
            "duplicates": known.duplicates,
            "duplicate_weights": known.duplicate_weights,
            "weighted": known.weighted,
            "weight_bytes_per_edge": known.data_bytes / max(known.edges, 1),
            "order": known.order,
            "names": "labels" if self.store.has_labels else unnamed,
            "source": known.source,
            "tiles": known.tiles,
            "tile_edges": known.tile_edges,
            "local_share": known.local_edges / max(known.edges, 1),
            "bytes_per_edge": known.encoded_bytes / max(known.edges, 1),
            "store_bytes": self.store.store_bytes(),
            "arrays": _array_sizes(Path(self.path)),
        }

    def degrees(self) -> list[DegreeClass]:
        """Count nodes and edges by degrees, in classes of none, one, two to three, four to seven, and so on.

        Returns
        -------
        list of DegreeClass
            ``lowest`` and ``highest`` degree, ``in_nodes`` with so many edges into them, these ``in_edges``,
            and the same of edges out of them. Duplicate edges count as one.

        Raises
        ------
        DamagedError, ReplacedError
            If the store is not what was written, or was replaced since it was opened.

        Examples
        --------
        >>> import numpy as np
        >>> [tuple(each) for each in as_graph((np.array([0, 1, 2]), np.array([1, 0, 0]))).degrees()]
        [(0, 0, 1, 0, 0, 0), (1, 1, 1, 1, 3, 3), (2, 3, 1, 2, 0, 0)]
        """
        from oocpr.store.degrees import degree_distribution

        with self.store.unchanged():
            return degree_distribution(self.store)


@checked
def import_graph(
    source: Any,
    path: str | os.PathLike[str],
    *,
    memory: str | int = IMPORT_MEMORY,
    order: str = "keep",
    tmp: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    resume: bool = False,
    client: Any = None,
    progress: Listener = None,
    on_message: Callable[[str], None] | None = None,
    **options: Unpack[ImportOptions],
) -> Graph:
    """Turn a graph in any format into a store.

    Parameters
    ----------
    source
        A file, a pattern, a URL, ``"-"`` for standard input, or a list of these; a SciPy sparse matrix (an
        entry (i, j) is the edge i -> j), a pair of arrays ``(from, to)`` or one array, a list of edges, a
        table of Arrow, pandas, Polars, DuckDB, cuDF or Dask, a graph of NetworkX, or any
        `oocpr.sources.block.Source`.
    path
        The store to make, ``.zarr``; it appears when it is whole.
    memory
        Most bytes of the whole process, such as ``"4GiB"``.
    order
        ``"keep"`` for the order of the source, ``"degree"`` for the largest out-degree first and, of equal
        ones, nodes with in-edges first, ``"host"`` for names with the host reversed, ``"bfs"`` for a
        breadth-first search, ``"dfs"`` for a depth-first one, ``"auto"`` for the one with the fewest bytes to
        an answer, which ranks small graphs in each order:
        `Graph.reason` says why.
    tmp
        Folder to sort in; beside `path` by default.
    overwrite
        Replace a store that is there.
    resume
        Keep on the disk all that is finished, in ``NAME.zarr.unfinished`` in `tmp`, until the store is whole;
        and go on with what the same import, however it ended, has kept there. Takes files only.
    client
        A ``distributed.Client`` whose workers read, sort and store the edges, to the same bytes; None to
        work in this process. Workers have to find the files of `source` and the folder of `path` under the
        same paths, and go by their own memory limits. What they cannot do, this process does alone, and says
        so: orders but ``"keep"`` and ``"degree"``, `resume`, formats but text and Parquet, and whatever is in
        the memory of this process.
    progress
        True to see on standard error how far it is, or an `oocpr.progress.Progress`; None for silence.
    on_message
        A function that gets at once what interrupted imports have left; None for the graph's ``notices``.
    **options
        How the source is read, see `ImportOptions`.

    Raises
    ------
    InputError, DoesNotFitError, UsageError
        If the source cannot be read (with file and line), if memory or disk are too small, and for parameters
        that cannot be.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     import_graph((np.array([0, 1, 2, 2]), np.array([1, 2, 0, 0])), f"{folder}/g.zarr").edges
    3
    """
    from oocpr.ingest.build import build_store
    from oocpr.sources.files import check_apart
    from oocpr.store.graph import open_store

    progress = as_progress(progress)
    budget = parse_bytes(memory)
    duplicates = options.pop("duplicates", None)
    sources = source if isinstance(source, list | tuple) else [source]
    check_apart([path], [*sources, options.get("labels")])
    opened = _opened_source(source, options)
    _LOG.info("importing %s to %s with at most %d bytes of memory", opened.name, path, budget)
    reasons: list[str] = []
    left: list[str] = []

    with _import_workers(client, tmp) as workers:
        stored = build_store(
            opened,
            path,
            memory=budget,
            order=order,
            tmp=tmp,
            overwrite=overwrite,
            resume=resume,
            duplicates=duplicates,
            progress=progress,
            on_message=left.append if on_message is None else on_message,
            on_reason=reasons.append,
            workers=workers,
            count_passes=lambda tried, told: _count_passes(tried, budget, told),
        )
    for reason in reasons:
        _LOG.info("%s", reason)
    notices = [*left, *opened.notices, *weight_notices(opened, duplicates)]
    if duplicates is None and stored.duplicates:
        notices += _duplicate_notices(source, stored.duplicates, weighted=stored.weighted)
    return Graph(open_store(path), notices=notices, reason=next(iter(reasons), None))


def _opened_source(source: Any, options: ImportOptions) -> Source:
    from oocpr.sources import open_source

    if isinstance(source, Graph):
        raise UsageError(
            f"source is {source!r}, which is stored already.",
            "Give what it was imported from, copy its folder, or rank it.",
        )
    return open_source(source, **cast("SourceOptions", options))


def _count_passes(path: Path, memory: int, progress: Progress) -> int:
    # Most imports need nothing that ranks.
    from oocpr.engine.planning import count_passes

    return count_passes(path, memory, progress)


@checked
def open_graph(path: str | os.PathLike[str]) -> Graph:
    """Open a store that `import_graph` made.

    Parameters
    ----------
    path
        Folder, or a URL that Zarr understands.

    Raises
    ------
    NotAStoreError, DamagedError
        If it is missing, foreign, unfinished or newer than this version; if its metadata are damaged.
    """
    from oocpr.store.graph import open_store

    return Graph(open_store(path))


def opened_graph(graph: Any) -> Graph:
    """Open the path of a store, or make sure that an open `Graph` is still what its path holds.

    Raises ReplacedError if its store was replaced; UsageError for a source, with the way to store it; and
    what `open_graph` raises.
    """
    if not isinstance(graph, Graph | str | os.PathLike):
        raise UsageError(
            f"graph is {render_argument(graph)}, no Graph and no path of a store.",
            "Make a store of it with oocpr.import_graph, or rank it with oocpr.pagerank, which takes both.",
        )
    if not isinstance(graph, Graph):
        return open_graph(graph)
    graph.store.check_current()
    return graph


@checked
def as_graph(
    graph: Any,
    *,
    memory: str | int | None = None,
    tmp: str | os.PathLike[str] | None = None,
    progress: Listener = None,
    **options: Unpack[ImportOptions],
) -> Graph:
    """Take a graph as it comes: open, stored, or in any format that `import_graph` reads.

    `graph`: a `Graph`, the path of a store (a folder, a name ending in ``.zarr`` or a URL), or a source, that
    is imported to a temporary store in `tmp`, which lives as long as the graph and its ranks. `memory`,
    `progress` and `options` are for sources. Raises what `opened_graph` and `import_graph` raise.
    """
    if isinstance(graph, Graph):
        _refuse_options(graph.path, options, tmp)
        return opened_graph(graph)
    if isinstance(graph, str | os.PathLike) and _looks_like_a_store(os.fspath(graph)):
        _refuse_options(graph, options, tmp)
        return open_graph(graph)
    folder, removed = _temporary_folder(tmp)
    try:
        made = import_graph(
            graph, folder.path / "graph.zarr", memory=memory or IMPORT_MEMORY, progress=progress, **options
        )
    except BaseException:
        folder.remove()
        raise
    return Graph(made.store, folder, [*removed, *made.notices])


def taken_graph(graph: Any, **how: Any) -> Graph:
    """Take a graph as `as_graph` does; what it notices is logged, as nobody else has the graph."""
    taken = as_graph(graph, **how)
    for notice in taken.notices if taken is not graph else ():
        _LOG.warning("%s", notice)
    return taken


def weight_notices(source: Source, duplicates: str | None) -> list[str]:
    """Say which columns of a source that was read may be weights, if nobody has said what weights are."""
    if source.weighted or duplicates == "count":
        return []
    return unused_columns(getattr(source, "unused_columns", ()))


@contextmanager
def _import_workers(client: Any, tmp: str | os.PathLike[str] | None) -> Iterator[Workers | None]:
    """Give the workers of a client for an import, None for this process."""
    if client is None:
        yield None
        return
    from oocpr.engine.executors.dask_import import DaskImportWorkers

    with closing(DaskImportWorkers(client, None if tmp is None else os.path.abspath(tmp))) as workers:  # noqa: PTH100
        yield workers


def _duplicate_notices(source: Any, count: int, *, weighted: bool) -> list[str]:
    """Say what became of duplicate edges, if nobody has asked and it changes ranks."""
    if weighted:
        return [
            f"{count:,} duplicate edges were added up: an edge has the sum of its weights. "
            'duplicates="merge" takes the greatest.'
        ]
    if hasattr(source, "is_multigraph") and source.is_multigraph():
        return [
            'Parallel edges count once. duplicates="count" makes their number the weight, as NetworkX does.'
        ]
    return []


def _refuse_options(store: Any, options: ImportOptions, tmp: str | os.PathLike[str] | None) -> None:
    """Refuse options of a source, and of its import, for a graph that is stored already."""
    if tmp is not None:
        raise UsageError(
            f"{store} is a store, and {tmp} is where a source would be imported.", "Leave tmp out."
        )
    asked = given(options)
    if asked:
        raise UsageError(
            f"{store} is a store: {', '.join(asked)} was decided when it was imported.",
            "Leave them out, or name the source.",
        )


def _looks_like_a_store(path: str) -> bool:
    last = path.rstrip("/").rpartition("/")[2]
    if "://" in path:
        return last.endswith(".zarr") or not ("." in last or path.endswith("/"))
    # A folder that is no store may be a source: one of Parquet files.
    tables = (file for file in Path(path).rglob("*") if file.suffix in (".parquet", ".pq"))
    # Path.is_dir has errors for names that are too long.
    return last.endswith(".zarr") or (os.path.isdir(path) and not any(tables))  # noqa: PTH112


def _temporary_folder(tmp: str | os.PathLike[str] | None) -> tuple[Partial, list[str]]:
    """Make a folder for a temporary store; returns it, and which ones of killed processes were removed."""
    from oocpr.store.atomic import Partial, clear_abandoned, naming_failures

    path = Path(tempfile.gettempdir() if tmp is None else tmp, "oocpr")
    with naming_failures(path.parent, 'Name another folder with tmp="FOLDER", or with TMPDIR.'):
        if not path.parent.is_dir():
            raise UsageError(f"{path.parent} is no folder.", 'Name one with tmp="FOLDER".')
        return Partial(path, folder=True, private=True), clear_abandoned(path)


def _array_sizes(path: Path) -> dict[str, int]:
    """Bytes of each array of a store in a folder, metadata included; empty for stores elsewhere."""
    sizes: dict[str, int] = {}
    for document in sorted(path.rglob("zarr.json")):
        chunks = document.parent / "c"
        if chunks.is_dir():
            files = [document, *(file for file in chunks.rglob("*") if file.is_file())]
            sizes[str(document.parent.relative_to(path))] = sum(file.stat().st_size for file in files)
    return sizes


@checked
def append(
    graph: Graph | str | os.PathLike[str],
    source: Any,
    path: str | os.PathLike[str],
    *,
    memory: str | int = IMPORT_MEMORY,
    tmp: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    client: Any = None,
    progress: Listener = None,
    **options: Unpack[ImportOptions],
) -> Graph:
    """Add edges to a graph: a new store, the same that an import of all sources together makes.

    The old edges are not sorted again, and tiles before the first new edge are copied. Only sums of weights
    may differ from those of such an import, by rounding.

    Parameters
    ----------
    graph
        A `Graph`, or the path of a store, with order ``"keep"``.
    source
        The new edges, as for `import_graph`. Their nodes have ids, or names if the graph has labels; a new
        node has its place among the ids, or behind all names.
    path
        The store to make, ``.zarr``; it may be that of the graph, which is replaced with `overwrite`.
    memory, tmp, overwrite, progress
        As for `import_graph`.
    client
        As for `import_graph`: workers read the stored edges and the new ones, and import both. They have to
        find `graph` as well. To a graph whose nodes have names this process adds edges alone.
    **options
        How the source is read, see `oocpr.api.arguments.ImportOptions`, without labels; ``duplicates`` is
        what it was when the graph was imported, and only graphs of earlier versions need it.

    Returns
    -------
    Graph
        Its ``notices`` say how many tiles were copied, unless workers have made all anew.

    Raises
    ------
    InputError, DoesNotFitError, UsageError
        As for `import_graph`; also if the graph has another order, or names for ids.
    NotAStoreError, DamagedError, ReplacedError
        As for `open_graph`, and if the graph's store was replaced since it was opened.
    SetupError
        If a worker does not find the graph's store.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     old = import_graph((np.array([0, 1]), np.array([1, 0])), f"{folder}/old.zarr")
    ...     append(old, (np.array([1, 2]), np.array([2, 0])), f"{folder}/new.zarr").edges
    4
    """
    from oocpr.ingest.append import append_store
    from oocpr.store.graph import open_store

    progress = as_progress(progress)
    old = opened_graph(graph)
    duplicates = options.pop("duplicates", None)
    if options.get("labels") is not None:
        raise UsageError("A labels file is given with edges that are added.", "Leave the labels file out.")
    opened = _opened_source(source, options)
    budget = parse_bytes(memory)
    _LOG.info("adding %s to %s, as %s, with at most %d bytes of memory", opened.name, old.path, path, budget)
    left: list[str] = []
    with old.store.unchanged(), _import_workers(client, tmp) as workers:
        _, copied = append_store(
            old.store,
            opened,
            path,
            memory=budget,
            tmp=tmp,
            overwrite=overwrite,
            duplicates=duplicates,
            progress=progress,
            on_message=left.append,
            workers=workers,
        )
    notices = [*left, *opened.notices, *weight_notices(opened, duplicates)]
    if copied is not None:
        notices.append(f"{copied:,} of {old.store.tiles:,} tiles of {old.path} are as they were.")
    return Graph(open_store(path), notices=notices)
