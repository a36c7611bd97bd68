"""Graphs that grow."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, cast

from oocpr.api.arguments import ImportOptions, checked, heard
from oocpr.api.graphs import IMPORT_MEMORY, Graph, opened_graph, told_of_weights
from oocpr.api.hands import import_hands
from oocpr.errors import UsageError
from oocpr.units import parse_bytes

if TYPE_CHECKING:
    import os
    from typing import Unpack

    from oocpr.progress import Listener
    from oocpr.sources.read_options import SourceOptions

_LOG = logging.getLogger(__name__)


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

    The old edges are not sorted again, and tiles before the first new edge are copied as they are. Only sums
    of weights may differ from those of such an import, by rounding.

    Parameters
    ----------
    graph
        A `Graph`, or the path of a store, with order ``"keep"``.
    source
        The new edges, as for `import_graph`. Their nodes have ids, or names where the graph has labels; a new
        node has its place among the ids, or behind all names.
    path
        The store to make, ``.zarr``; it may be that of the graph, which is replaced with `overwrite`.
    memory, tmp, overwrite, client, progress
        As for `import_graph`.
    **options
        How the source is read, see `oocpr.api.arguments.ImportOptions`, without labels; ``duplicates`` is
        what it was when the graph was imported, and only graphs of earlier versions need it.

    Returns
    -------
    Graph
        Its ``notices`` say how many tiles were copied.

    Raises
    ------
    InputError
        Where the source cannot be read, or calls its nodes otherwise than the graph does.
    NotAStoreError, DamagedError
        See `open_graph`.
    ReplacedError
        Where the graph's store was replaced since it was opened.
    DoesNotFitError, UsageError
        See `import_graph`; also where the graph has another order.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> from oocpr.api import import_graph
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     old = import_graph((np.array([0, 1]), np.array([1, 0])), f"{folder}/old.zarr")
    ...     append(old, (np.array([1, 2]), np.array([2, 0])), f"{folder}/new.zarr").edges
    4
    """
    from oocpr.ingest.append.build import append_store
    from oocpr.sources import open_source
    from oocpr.store.graph import open_store

    progress = heard(progress)
    old = opened_graph(graph)
    duplicates = options.pop("duplicates", None)
    if options.get("labels") is not None:
        raise UsageError("A labels file is given with edges that are added.", "Leave the labels file out.")
    opened = open_source(source, **cast("SourceOptions", options))
    budget = parse_bytes(memory)
    _LOG.info("adding %s to %s, as %s, with at most %d bytes of memory", opened.name, old.path, path, budget)
    with old.store.unchanged():
        _, copied = append_store(
            old.store,
            opened,
            path,
            memory=budget,
            tmp=tmp,
            overwrite=overwrite,
            duplicates=duplicates,
            progress=progress,
            service=import_hands(client),
        )
    tiles = old.store.tiles
    kept = f"{copied:,} of {tiles:,} tiles of {old.path} are as they were."
    notices = [*opened.notices, *told_of_weights(opened, duplicates), kept]
    return Graph(open_store(path), notices=notices)
