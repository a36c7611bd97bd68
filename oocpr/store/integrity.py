"""What a store says of itself, compared: its identity, its arrays, its degrees."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray
from zarr.abc.store import SuffixByteRequest
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

from oocpr.errors import DamagedError
from oocpr.store.format import (
    CRC_BYTES,
    DATA,
    IDENTIFIED,
    IDENTITY_DIGITS,
    INDICES,
    INDPTR,
    LABEL_BYTES,
    LABEL_OFFSETS,
    NODE_IDS,
    OUT_DEGREE,
    OUT_WEIGHT,
    TILE_ROWS,
)

if TYPE_CHECKING:
    from zarr.abc.store import Store

    from oocpr.store.format import Attributes
    from oocpr.store.zarr_arrays import StoredArray

_READ_AT_ONCE = 64
_MAX_CHUNK = 1 << 26  # entries; this package writes at most a sixteenth of that

# Types that an array may have, and its entries; None for any number.
_Entry = tuple[tuple[str, ...], int | None]


def content_identity(
    open_array: Callable[[str], StoredArray], attributes: Attributes, paths: Container[str]
) -> str:
    """Identity of a graph, from the checksums behind its chunks; raises DamagedError if one is missing."""
    facts = [attributes.nodes, attributes.edges, attributes.weighted, attributes.tile_edges]
    digest = hashlib.sha256(f"{json.dumps(facts)}\n".encode())
    for name in IDENTIFIED:
        if name in paths:
            checksums = _checksums(open_array(name))
            digest.update(f"{name} {len(checksums) // CRC_BYTES}\n".encode())
            digest.update(checksums)
    return digest.hexdigest()[:IDENTITY_DIGITS]


def _checksums(array: StoredArray) -> bytes:
    """CRC-32C of all chunks of an array, 4 bytes each; chunks that do not end with it are read whole."""
    keys = [array.key(chunk) for chunk in range(-(-array.size // array.chunk))]
    has_checksums = array.codecs[-1] == "crc32c"
    found: list[bytes | None] = []
    for first in range(0, len(keys), _READ_AT_ONCE):
        found += sync(_read(array.store, keys[first : first + _READ_AT_ONCE], tails=has_checksums))
    if None in found:
        raise array.damaged(f"{keys[found.index(None)]} is missing")
    parts = [part for part in found if part is not None]
    if not has_checksums:
        parts = [crc32c(part).to_bytes(CRC_BYTES, "little") for part in parts]
    return b"".join(parts)


async def _read(store: Store, keys: Sequence[str], *, tails: bool) -> list[bytes | None]:
    """Bytes under some keys, or the last 4 of each; None for a key that is missing."""
    wanted = SuffixByteRequest(CRC_BYTES) if tails else None
    gets = (store.get(key, default_buffer_prototype(), wanted) for key in keys)
    return [None if value is None else value.to_bytes() for value in await asyncio.gather(*gets)]


def check_arrays(origin: str, documents: Mapping[str, Any], attributes: Attributes) -> None:
    """Raise DamagedError unless the arrays of a graph store are those of its attributes.

    `documents`: parsed ``zarr.json`` of the groups and arrays by path.
    """
    _check_counts(origin, attributes)
    nodes, edges = attributes.nodes, attributes.edges
    needed: dict[str, _Entry] = {
        INDPTR: (("int64",), nodes + 1),
        INDICES: (("uint32",), edges),
        TILE_ROWS: (("int64",), attributes.tiles + 1),
        OUT_DEGREE: (("uint32",), nodes),
    }
    if attributes.weighted:
        needed |= {DATA: (("float64",), edges), OUT_WEIGHT: (("float64",), nodes)}
    optional: dict[str, _Entry] = {
        NODE_IDS: (("uint32", "int64"), nodes),
        LABEL_OFFSETS: (("int64",), nodes + 1),
        LABEL_BYTES: (("uint8",), None),
    }
    if (LABEL_OFFSETS in documents) != (LABEL_BYTES in documents):
        raise DamagedError(f"{origin}: half of the labels is missing.")
    for path, (types, size) in (needed | optional).items():
        if path in documents:
            check_array(origin, path, documents[path], types, size)
        elif path in needed:
            raise DamagedError(f"{origin}: {path} is missing.")


def check_array(
    origin: str, path: str, document: Mapping[str, Any], types: tuple[str, ...], size: int | None
) -> None:
    """Raise DamagedError unless the metadata of an array are as they should be, its chunks not too large."""
    kind, shape = document.get("data_type"), document.get("shape")
    if document.get("node_type") != "array" or kind not in types:
        raise DamagedError(f"{origin}: {path} holds {kind!r}, {' or '.join(types)} belongs there.")
    entries = _only(shape)
    if entries is None or size not in (None, entries):
        wanted = "one dimension belongs" if size is None else f"[{size}] belongs"
        raise DamagedError(f"{origin}: {path} has the shape {shape!r}, {wanted} there.")
    grid = document.get("chunk_grid")
    configuration = grid.get("configuration") if isinstance(grid, dict) else None
    chunk = configuration.get("chunk_shape") if isinstance(configuration, dict) else None
    if not 1 <= (_only(chunk) or 0) <= _MAX_CHUNK:
        raise DamagedError(
            f"{origin}: {path} has chunks of the shape {chunk!r}, 1 to {_MAX_CHUNK} entries can be read."
        )


def check_degrees(
    origin: str, counted: NDArray[np.integer[Any]], degree: NDArray[np.uint32], first: int = 0
) -> None:
    """Raise DamagedError if stored out-degrees of rows from `first` on are not the edges that leave them."""
    if not np.array_equal(counted, degree):
        k = int(np.flatnonzero(counted != degree)[0])
        raise DamagedError(
            f"{origin}: row {first + k} has {int(counted[k])} out-edges in the tiles and out-degree "
            f"{int(degree[k])}."
        )


def check_degree_sum(origin: str, found: int, edges: int) -> None:
    """Raise DamagedError unless the out-degrees sum to the number of edges."""
    if found != edges:
        raise DamagedError(f"{origin}: the out-degrees sum to {found} and the graph has {edges} edges.")


def check_dangling(origin: str, found: int, stated: int) -> None:
    """Raise DamagedError unless the number of nodes that nothing leaves is the one stated."""
    if found != stated:
        raise DamagedError(f"{origin}: nothing leaves {found} nodes, and attribute 'dangling' is {stated}.")


def _only(shape: Any) -> int | None:
    """Entries of an array of one dimension; None for any other shape."""
    if isinstance(shape, list) and len(shape) == 1 and type(shape[0]) is int and shape[0] >= 0:
        return shape[0]
    return None


def _check_counts(origin: str, a: Attributes) -> None:
    """Raise DamagedError if the counts of a graph contradict each other."""
    limits = {
        "nodes": (a.nodes, 2**32 - 1),
        "edges": (a.edges, min(2**63 - 1, a.nodes**2)),
        "dangling": (a.dangling, a.nodes),
        "self_loops": (a.self_loops, min(a.nodes, a.edges)),
        "local_edges": (a.local_edges, a.edges),
        "column_bytes": (a.column_bytes, a.tiles * a.max_tile_bytes),
        "data_bytes": (a.data_bytes, a.tiles * a.max_data_bytes),
    }
    for name, (count, limit) in limits.items():
        if count > limit:
            raise DamagedError(
                f"{origin}: attribute {name!r} is {count}, and no such graph has more than {limit}."
            )
