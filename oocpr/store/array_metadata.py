"""Metadata of a store's arrays, compared with the format before any of their bytes are read.

An array of another type would be cast without a word, and one of another size would be read past its end or
make room for what is not there. All of that can be told from the ``zarr.json`` files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.errors import DamagedError
from oocpr.store.format import (
    DATA,
    INDICES,
    INDPTR,
    LABEL_BYTES,
    LABEL_OFFSETS,
    NODE_IDS,
    OUT_DEGREE,
    OUT_WEIGHT,
    REMEDY,
    TILE_ROWS,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from oocpr.store.format import Attributes

MOST_NODES, MOST_EDGES = 2**32, 2**63
"""A graph of the format has fewer."""

MOST_ENTRIES = 1 << 26
"""Entries of a chunk; this package writes at most a sixteenth of that."""

Entry = tuple[tuple[str, ...], int | None]
"""Types that an array may have, and its entries; None for any number."""


def check_arrays(origin: str, documents: Mapping[str, Any], attributes: Attributes) -> None:
    """Compare types, sizes and chunks of all arrays of a graph store with the format.

    Parameters
    ----------
    origin
        Path of the store, for messages.
    documents
        Parsed ``zarr.json`` of the groups and arrays by path.
    attributes
        What the store says about its graph.

    Raises
    ------
    DamagedError
        Where an array is missing, or is not what the format and the attributes make it.
    """
    _check_counts(origin, attributes)
    needed = _needed(attributes)
    if (LABEL_OFFSETS in documents) != (LABEL_BYTES in documents):
        raise DamagedError(f"{origin}: half of the labels is missing.", REMEDY)
    for path, (types, size) in (needed | _optional(attributes)).items():
        if path in documents:
            check_array(origin, path, documents[path], types, size)
        elif path in needed:
            raise DamagedError(f"{origin}: {path} is missing.", REMEDY)


def check_array(
    origin: str, path: str, document: Mapping[str, Any], types: tuple[str, ...], size: int | None
) -> None:
    """Compare the metadata of one array with what belongs there.

    Parameters
    ----------
    origin, path
        Paths of the store, and of the array in it, for messages.
    document
        Its ``zarr.json``, parsed.
    types, size
        See Entry.

    Raises
    ------
    DamagedError
        Where they differ, or chunks are larger than MOST_ENTRIES.

    Examples
    --------
    >>> grid = {"name": "regular", "configuration": {"chunk_shape": [8]}}
    >>> found = {"node_type": "array", "data_type": "int64", "shape": [5], "chunk_grid": grid}
    >>> check_array("g.zarr", "tile_rows", found, ("int64",), 5)
    """
    kind, shape = document.get("data_type"), document.get("shape")
    if document.get("node_type") != "array" or kind not in types:
        raise DamagedError(f"{origin}: {path} holds {kind!r}, {' or '.join(types)} belongs there.", REMEDY)
    entries = _only(shape)
    if entries is None or size not in (None, entries):
        wanted = "one dimension belongs" if size is None else f"[{size}] belongs"
        raise DamagedError(f"{origin}: {path} has the shape {shape!r}, {wanted} there.", REMEDY)
    grid = document.get("chunk_grid")
    configuration = grid.get("configuration") if isinstance(grid, dict) else None
    chunk = configuration.get("chunk_shape") if isinstance(configuration, dict) else None
    if not 1 <= (_only(chunk) or 0) <= MOST_ENTRIES:
        raise DamagedError(
            f"{origin}: {path} has chunks of the shape {chunk!r}, 1 to {MOST_ENTRIES} entries can be read.",
            REMEDY,
        )


def check_degrees(origin: str, counted: NDArray[np.integer[Any]], degree: NDArray[np.uint32]) -> None:
    """Compare the out-degrees of a store with the edges that leave each node.

    Parameters
    ----------
    origin
        Path of the store, for the message.
    counted
        Edges in the tiles with each node as their column, shape (nodes,).
    degree
        Stored out-degrees, uint32, shape (nodes,).

    Raises
    ------
    DamagedError
        With the first node of which they differ.

    Examples
    --------
    >>> check_degrees("g.zarr", np.array([2, 0]), np.array([2, 0], np.uint32))
    """
    if not np.array_equal(counted, degree):
        node = int(np.flatnonzero(counted != degree)[0])
        raise DamagedError(
            f"{origin}: row {node} has {int(counted[node])} out-links in the tiles and out-degree "
            f"{int(degree[node])}.",
            REMEDY,
        )


def check_degree_sum(origin: str, found: int, edges: int) -> None:
    """Compare the sum of the out-degrees with the number of edges; raises DamagedError."""
    if found != edges:
        raise DamagedError(
            f"{origin}: the out-degrees sum to {found} and the graph has {edges} edges.", REMEDY
        )


def check_dangling(origin: str, found: int, stated: int) -> None:
    """Compare the number of nodes that nothing leaves with what a store says of it; raises DamagedError."""
    if found != stated:
        raise DamagedError(
            f"{origin}: nothing leaves {found} nodes, and attribute 'dangling' is {stated}.", REMEDY
        )


def _only(shape: Any) -> int | None:
    """Entries of an array of one dimension; None for any other shape."""
    if isinstance(shape, list) and len(shape) == 1 and type(shape[0]) is int and shape[0] >= 0:
        return shape[0]
    return None


def _needed(attributes: Attributes) -> dict[str, Entry]:
    """Arrays that every such graph has."""
    nodes, edges = attributes.nodes, attributes.edges
    found: dict[str, Entry] = {
        INDPTR: (("int64",), nodes + 1),
        INDICES: (("uint32",), edges),
        TILE_ROWS: (("int64",), attributes.tiles + 1),
        OUT_DEGREE: (("uint32",), nodes),
    }
    if attributes.weighted:
        found |= {DATA: (("float64",), edges), OUT_WEIGHT: (("float64",), nodes)}
    return found


def _optional(attributes: Attributes) -> dict[str, Entry]:
    """Arrays that it may have."""
    return {
        NODE_IDS: (("uint32", "int64"), attributes.nodes),
        LABEL_OFFSETS: (("int64",), attributes.nodes + 1),
        LABEL_BYTES: (("uint8",), None),
    }


def _check_counts(origin: str, a: Attributes) -> None:
    """Compare the counts of a graph with each other."""
    limits = {
        "nodes": (a.nodes, MOST_NODES - 1),
        "edges": (a.edges, min(MOST_EDGES - 1, a.nodes**2)),
        "dangling": (a.dangling, a.nodes),
        "self_loops": (a.self_loops, min(a.nodes, a.edges)),
        "local_edges": (a.local_edges, a.edges),
        "column_bytes": (a.column_bytes, a.tiles * a.max_tile_bytes),
        "data_bytes": (a.data_bytes, a.tiles * a.max_data_bytes),
    }
    for name, (count, most) in limits.items():
        if count > most:
            raise DamagedError(
                f"{origin}: attribute {name!r} is {count}, and no such graph has more than {most}.", REMEDY
            )
