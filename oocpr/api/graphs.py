"""Graphs: imported, opened, and taken as they come."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oocpr.errors import UsageError
from oocpr.progress import silent
from oocpr.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oocpr.engine.whole.graph import WholeGraph
    from oocpr.progress import Progress
    from oocpr.store.graph import GraphStore

IMPORT_MEMORY = "4GiB"

_LOG = logging.getLogger(__name__)


class Graph:
    """A graph store that is open.

    A run with method ``components`` leaves the graph decoded in memory, so that later runs begin at once.

    Parameters
    ----------
    store
        What `oocpr.store.open_store` gives.
    temporary
        A folder to remove when nobody holds the graph, or the ranks that take their names from it, any more.
    notices
        Sentences a person should read after an import, such as what was left out.
    reason
        Why an import has chosen the order of the nodes, one line; None where it has not.

    Examples
    --------
    >>> import numpy as np
    >>> as_graph((np.array([0, 1]), np.array([1, 0])))
    Graph(2 nodes, 2 edges, temporary)
    """

    def __init__(
        self,
        store: GraphStore,
        temporary: Path | None = None,
        notices: Sequence[str] = (),
        reason: str | None = None,
    ) -> None:
        self.store = store
        self.notices = list(notices)
        self.reason = reason
        self.temporary = temporary is not None
        self.kept: dict[str, WholeGraph] = {}
        if temporary is not None:
            # The store is what the names of ranks hold on to, so it decides how long the folder lives.
            weakref.finalize(store, shutil.rmtree, temporary, ignore_errors=True)

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return self.store.nodes

    @property
    def edges(self) -> int:
        """Number of edges, repeated ones counted once."""
        return self.store.edges

    @property
    def path(self) -> str:
        """Where the store is."""
        return str(self.store.path)

    def __repr__(self) -> str:
        place = "temporary" if self.temporary else self.path
        return f"Graph({self.nodes:,} nodes, {self.edges:,} edges, {place})"

    def info(self) -> dict[str, Any]:
        """Say what the store holds.

        Returns
        -------
        dict
            ``nodes``, ``edges``, ``dangling``, ``self_loops``, ``duplicates`` (merged at import),
            ``weighted``, ``weight_bytes_per_edge``, ``order``, ``names``, ``attributes`` (of the nodes: what
            each holds, by name), ``source``, ``tiles``, ``tile_edges``, ``local_share`` (of edges inside
            their tile), ``bytes_per_edge`` (columns and weights), ``store_bytes``, ``arrays`` (bytes of
            each).
        """
        facts = self.store.attributes
        unnamed = "row numbers" if self.store.node_ids() is None else "ids of the source"
        return {
            "nodes": facts.nodes,
            "edges": facts.edges,
            "dangling": facts.dangling,
            "self_loops": facts.self_loops,
            "duplicates": facts.duplicates,
            "weighted": facts.weighted,
            "weight_bytes_per_edge": facts.data_bytes / max(facts.edges, 1),
            "order": facts.order,
            "names": "labels" if self.store.has_labels else unnamed,
            "attributes": self.store.node_attributes.kinds,
            "source": facts.source,
            "tiles": facts.tiles,
            "tile_edges": facts.tile_edges,
            "local_share": facts.local_edges / max(facts.edges, 1),
            "bytes_per_edge": facts.encoded_bytes / max(facts.edges, 1),
            "store_bytes": self.store.store_bytes(),
            "arrays": _array_sizes(Path(self.path)),
        }


def import_graph(
    source: Any,
    path: str | os.PathLike[str],
    *,
    memory: str | int = IMPORT_MEMORY,
    order: str = "keep",
    labels: str | os.PathLike[str] | None = None,
    format: str | None = None,  # noqa: A002
    undirected: bool = False,
    source_column: str | None = None,
    target_column: str | None = None,
    weight: str | int | None = None,
    duplicates: str = "merge",
    nodes: str | os.PathLike[str] | None = None,
    node_column: str | None = None,
    tmp: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    resume: bool = False,
    client: Any = None,
    device: str = "cpu",
    progress: Progress = silent,
    tell: Callable[[str], None] | None = None,
) -> Graph:
    """Turn a graph in any format into a store.

    Parameters
    ----------
    source
        A file, a pattern, a URL, ``"-"`` for standard input, or a list of these; a SciPy sparse matrix (an
        entry (i, j) is the edge i -> j), a pair of integer arrays ``(from, to)`` or one array, a table of
        Arrow, pandas, Polars, cuDF or Dask, a graph of NetworkX, or any `oocpr.sources.block.Source`.
    path
        The store to make, ``.zarr``; it appears when it is whole.
    memory
        Most bytes of the whole process, such as ``"4GiB"``.
    order
        ``"keep"`` for the order of the source, ``"degree"`` for the largest out-degree first, ``"host"`` for
        names with the host reversed, ``"bfs"`` for a breadth-first search, ``"auto"`` for the best of these,
        as a sample of the links tells: `Graph.reason` says why.
    labels
        A file with the name of node i in line i.
    format
        Name of the format; found by the file's name and first bytes otherwise.
    undirected
        Take each edge in both directions.
    source_column, target_column
        Columns that edges run from and to, of tables and Parquet files; the usual names by default.
    weight
        Where the weights of edges are: the name of a column (Parquet, tables) or of an attribute of edges
        (NetworkX), the number of a column counted from 1 (text: 3 as a rule), or ``"values"`` (Matrix Market,
        .npz, SciPy). A node's rank is then divided among its edges by their weights, which are finite and not
        negative. None for edges that all count the same.
    duplicates
        What an edge that the source repeats becomes: ``"merge"``: it counts once, with its greatest weight;
        ``"sum"``: its weights are added; ``"count"``: its weight is how often it comes.
    nodes
        A Parquet or CSV file with a row for each node, whose columns are kept as attributes of the nodes:
        text (dates, too), integers, floats and booleans. Nodes without a row lack them.
    node_column
        Column of `nodes` with the node's id or, where the graph has names and the column text, its name;
        ``node`` or ``id`` by default.
    tmp
        Folder to sort in; beside `path` by default.
    overwrite
        Replace a store that is there.
    resume
        Keep on the disk all that is finished, in ``NAME.zarr.unfinished`` in `tmp`, until the store is whole;
        and go on with what the same import, however it ended, has kept there. Takes files only.
    client
        A ``distributed.Client`` whose workers sort the edges and encode the tiles, to the same bytes; None to
        work in this process. `memory` is that of this process.
    device
        ``"cuda"``, or ``"cuda:1"`` for the second one, to sort the edges and encode the tiles on a CUDA
        device, to the same bytes.
    progress
        Told how far it is.
    tell
        Told at once what imports that were interrupted have left; None to find it in the graph's ``notices``.

    Returns
    -------
    Graph

    Raises
    ------
    InputError
        Where the source cannot be read; names file and line.
    DoesNotFitError
        Where memory or disk are too small.
    UsageError
        For parameters that cannot be.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     import_graph((np.array([0, 1, 2, 2]), np.array([1, 2, 0, 0])), f"{folder}/g.zarr").edges
    3
    """
    from oocpr.api.hands import import_hands
    from oocpr.ingest.build import build_store
    from oocpr.sources import open_source
    from oocpr.sources.node_table import NodeTable
    from oocpr.store.graph import open_store

    hands = import_hands(client, device)
    budget = parse_bytes(memory)
    if nodes is None and node_column is not None:
        raise UsageError(
            f"{node_column!r} is given as a column of no table.", "Give the table of nodes, too."
        )
    table = None if nodes is None else NodeTable(nodes, node_column)
    opened = open_source(
        source,
        format=format,
        labels=labels,
        undirected=undirected,
        source_column=source_column,
        target_column=target_column,
        weight=weight,
    )
    _LOG.info("importing %s to %s with at most %d bytes of memory", opened.name, path, budget)
    reasons: list[str] = []
    left: list[str] = []
    build_store(
        opened,
        path,
        memory=budget,
        order=order,
        tmp=tmp,
        overwrite=overwrite,
        resume=resume,
        duplicates=duplicates,
        progress=progress,
        tell=left.append if tell is None else tell,
        explain=reasons.append,
        hands=hands,
        table=table,
    )
    for reason in reasons:
        _LOG.info("%s", reason)
    notices = [*left, *opened.notices]
    return Graph(open_store(path), notices=notices, reason=next(iter(reasons), None))


def open_graph(path: str | os.PathLike[str]) -> Graph:
    """Open a store that `import_graph` made.

    Parameters
    ----------
    path
        Folder, or a URL that Zarr understands.

    Raises
    ------
    NotAStoreError
        Where it is missing, foreign, unfinished or newer than this version.
    DamagedError
        Where its metadata contradict each other.
    """
    from oocpr.store.graph import open_store

    return Graph(open_store(path))


def as_graph(
    graph: Any,
    *,
    memory: str | int | None = None,
    labels: str | os.PathLike[str] | None = None,
    format: str | None = None,  # noqa: A002
    undirected: bool = False,
    source_column: str | None = None,
    target_column: str | None = None,
    weight: str | int | None = None,
    duplicates: str = "merge",
    tmp: str | os.PathLike[str] | None = None,
    progress: Progress = silent,
) -> Graph:
    """Take a graph as it comes: open, stored, or in any format that `import_graph` reads.

    Parameters
    ----------
    graph
        A `Graph`, the path of a store (a folder, a name ending in ``.zarr`` or a URL), or a source, which is
        imported to a temporary store that lives as long as the graph and its ranks.
    memory, labels, format, undirected, source_column, target_column, weight, duplicates, progress
        See `import_graph`; for sources only.
    tmp
        Folder of the temporary store; the system's by default.

    Raises
    ------
    NotAStoreError, InputError, DoesNotFitError, UsageError
        See `open_graph` and `import_graph`.
    """
    if isinstance(graph, Graph):
        return graph
    if isinstance(graph, str | os.PathLike) and _looks_like_a_store(os.fspath(graph)):
        asked = (labels, format, source_column, target_column, weight, undirected, duplicates)
        if asked != (None, None, None, None, None, False, "merge"):
            raise UsageError(
                f"{graph} is a store: labels, format, columns, weights and direction were settled with it.",
                "Leave them out, or name the source.",
            )
        return open_graph(graph)
    folder = _temporary_folder(tmp)
    try:
        made = import_graph(
            graph,
            folder / "graph.zarr",
            memory=memory or IMPORT_MEMORY,
            labels=labels,
            format=format,
            undirected=undirected,
            source_column=source_column,
            target_column=target_column,
            weight=weight,
            duplicates=duplicates,
            progress=progress,
        )
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return Graph(made.store, folder, made.notices)


def _looks_like_a_store(path: str) -> bool:
    last = path.rstrip("/").rpartition("/")[2]
    if "://" in path:
        return last.endswith(".zarr") or not ("." in last or path.endswith("/"))
    # A folder that is no store may be a source: one of Parquet files.
    tables = (file for file in Path(path).rglob("*") if file.suffix in (".parquet", ".pq"))
    return last.endswith(".zarr") or (Path(path).is_dir() and not any(tables))


def _temporary_folder(tmp: str | os.PathLike[str] | None) -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix="oocpr-", dir=tmp))
    except OSError as error:
        raise UsageError(
            f"No folder can be made in {tmp}: {error.strerror}.", "Name another with tmp."
        ) from error


def _array_sizes(path: Path) -> dict[str, int]:
    """Bytes of each array of a store in a folder, metadata included; empty for stores elsewhere."""
    sizes: dict[str, int] = {}
    for document in sorted(path.rglob("zarr.json")):
        chunks = document.parent / "c"
        if chunks.is_dir():
            files = [document, *(file for file in chunks.rglob("*") if file.is_file())]
            sizes[str(document.parent.relative_to(path))] = sum(file.stat().st_size for file in files)
    return sizes
