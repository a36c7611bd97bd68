"""A graph store, opened for reading."""

from __future__ import annotations

import json
import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.errors import DamagedError, NotAStoreError
from oocpr.store.arrays import StoredArray, open_zarr_store, read_documents, total_bytes
from oocpr.store.attributes import StoredAttributes, stored_kinds
from oocpr.store.encoded import EncodedTiles, EncodedWeights
from oocpr.store.format import (
    ATTRIBUTES_KEY,
    CHECKSUM_KEY,
    CODEC_NAME,
    DATA,
    INDICES,
    INDPTR,
    LABEL_BYTES,
    LABEL_OFFSETS,
    NODE_IDS,
    NODES,
    OUT_DEGREE,
    OUT_WEIGHT,
    REMEDY,
    TILE_ROWS,
    UNFINISHED_KEY,
    Attributes,
    column_nodes,
    metadata_checksum,
)
from oocpr.store.labels import StoredLabels
from oocpr.store.writer import GraphWriter

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray
    from zarr.abc.store import Store

__all__ = ["GraphStore", "GraphWriter", "open_store"]

_MAKE_ONE = "Make one with `oocpr import SOURCE -o GRAPH.zarr`."


class GraphStore:
    """A finished graph store; get one with :func:`open_store`.

    Attributes
    ----------
    path
        Where it is.
    attributes
        What it says about its graph.
    nodes, edges, tiles
        Numbers of nodes, of edges and of tiles, the last at least 1.
    tile_rows
        int64, shape (tiles + 1,): tile t owns rows ``tile_rows[t]`` to ``tile_rows[t + 1] - 1``.
    encoded
        The encoded bytes of the tiles.
    weights
        The weights of their edges; None where the graph is not weighted.
    node_attributes
        What is known of the nodes beside their names.
    """

    def __init__(
        self,
        path: str,
        store: Store,
        attributes: Attributes,
        paths: Iterable[str],
        kinds: Mapping[str, str],
    ) -> None:
        self.path = path
        self.attributes = attributes
        self.nodes = attributes.nodes
        self.edges = attributes.edges
        self.tiles = attributes.tiles
        self._store = store
        self._paths = frozenset(paths)
        self._arrays: dict[str, StoredArray] = {}
        self.node_attributes = StoredAttributes(store, path, kinds, self._paths)
        self.tile_rows: NDArray[np.int64] = self._read(TILE_ROWS, 0, self.tiles + 1, np.int64)
        rows = self.tile_rows
        if rows[0] != 0 or rows[-1] != self.nodes or (np.diff(rows) < 0).any():
            raise DamagedError(f"{path}: the rows of the tiles are out of order.", REMEDY)
        self.encoded = EncodedTiles(self._array(INDICES), attributes, rows, self.indptr)
        weighted = attributes.weighted
        self.weights = EncodedWeights(self._array(DATA), attributes) if weighted else None

    def _array(self, name: str) -> StoredArray:
        if name not in self._arrays:
            self._arrays[name] = StoredArray(self._store, name, self.path)
        return self._arrays[name]

    def _read(self, name: str, lo: int, hi: int, dtype: Any) -> NDArray[Any]:
        return self._array(name).read(lo, hi).astype(dtype, copy=False)

    def tile_sizes(self) -> NDArray[np.int64] | None:
        """Bytes of each tile as stored, with its weights; None where only reading them would tell.

        Returns
        -------
        ndarray
            int64, shape (tiles,).
        """
        columns, weights = self.encoded.sizes(), self.weights
        if columns is None or weights is None:
            return columns
        of_weights = weights.sizes()
        return None if of_weights is None else columns + of_weights

    def indptr(self, lo: int, hi: int) -> NDArray[np.int64]:
        """Row offsets lo to hi - 1 of the nodes + 1 there are.

        Raises
        ------
        DamagedError
            If the bytes are not what was written.
        """
        return self._read(INDPTR, lo, hi, np.int64)

    def out_degree(self, lo: int, hi: int) -> NDArray[np.uint32]:
        """Out-degrees of rows lo to hi - 1; raises DamagedError."""
        return self._read(OUT_DEGREE, lo, hi, np.uint32)

    def out_weight(self, lo: int, hi: int) -> NDArray[np.float64]:
        """Sums of the weights that leave rows lo to hi - 1, of a graph without weights the out-degrees.

        Raises
        ------
        DamagedError
            If the bytes are not what was written, or not such sums.
        """
        if not self.attributes.weighted:
            return self._read(OUT_DEGREE, lo, hi, np.float64)
        sums: NDArray[np.float64] = self._read(OUT_WEIGHT, lo, hi, np.float64)
        if not (np.isfinite(sums) & (sums >= 0)).all():
            raise DamagedError(f"{self.path}: {OUT_WEIGHT} has numbers that are no sums of weights.", REMEDY)
        return sums

    def node_ids(self) -> NDArray[np.integer[Any]] | None:
        """Ids that the source gave to the rows, shape (nodes,), or None where row v is node v."""
        if NODE_IDS not in self._paths:
            return None
        return self._array(NODE_IDS).read(0, self.nodes)

    def ids(self, lo: int, hi: int) -> NDArray[np.int64]:
        """Ids that the source gave to rows lo to hi - 1, the rows themselves where it gave none.

        Raises
        ------
        DamagedError
            If the bytes are not what was written.
        """
        if NODE_IDS not in self._paths:
            return np.arange(lo, hi)
        return self._read(NODE_IDS, lo, hi, np.int64)

    @property
    def has_labels(self) -> bool:
        """Whether the rows have labels."""
        return LABEL_OFFSETS in self._paths

    def labels(self, ids: NDArray[np.integer[Any]] | Iterable[int]) -> list[str] | None:
        """Labels of some rows, in the order asked for, or None where the store has none.

        Only the chunks that hold them are read.

        Parameters
        ----------
        ids
            Rows, shape (k,).

        Raises
        ------
        DamagedError
            If the bytes are not what was written.
        """
        if not self.has_labels:
            return None
        rows = np.asarray(ids if isinstance(ids, np.ndarray) else list(ids), np.int64)
        return self._labels.take(rows)

    def label_text(self, lo: int, hi: int) -> tuple[NDArray[np.uint8], NDArray[np.uint32]]:
        """Labels of rows lo to hi - 1 of a store that has some: their UTF-8 end to end, and their lengths.

        Raises
        ------
        DamagedError
            If the bytes are not what was written.
        """
        return self._labels.text(lo, hi)

    @cached_property
    def _labels(self) -> StoredLabels:
        return StoredLabels(self._array(LABEL_OFFSETS), self._array(LABEL_BYTES))

    def takes_direct_reads(self) -> bool:
        """Whether tiles and their weights can be read past the system's page cache."""
        return self.encoded.takes_direct_reads() and (
            self.weights is None or self.weights.takes_direct_reads()
        )

    def store_bytes(self) -> int:
        """Bytes of everything the store holds, metadata included."""
        return total_bytes(self._store)


def open_store(path: str | os.PathLike[str] | Store) -> GraphStore:
    """Open a graph store.

    Parameters
    ----------
    path
        A folder, a URL that Zarr can open, or a Zarr store.

    Returns
    -------
    GraphStore

    Raises
    ------
    NotAStoreError
        If there is no finished graph store of a format that this version reads.
    DamagedError
        If the metadata are not what was written.
    """
    name = os.fspath(path) if isinstance(path, (str, os.PathLike)) else str(path)
    if isinstance(path, (str, os.PathLike)) and "://" not in name:
        if not Path(name).exists():
            raise NotAStoreError(f"{name} does not exist.", _MAKE_ONE)
        if not Path(name).is_dir():
            raise NotAStoreError(f"{name} is a file, not a graph store.", _MAKE_ONE)
    store = open_zarr_store(path)
    documents = read_documents(store, NODES, name)
    kinds = stored_kinds(_own(documents) or {}, name)
    documents |= read_documents(store, column_nodes(kinds), name)
    return GraphStore(name, store, _check_metadata(name, documents), documents, kinds)


def _own(documents: dict[str, Any]) -> dict[str, Any] | None:
    """What the root says of the graph; None where it says nothing."""
    attributes = documents.get("", {}).get("attributes")
    own = attributes.get(ATTRIBUTES_KEY) if isinstance(attributes, dict) else None
    return own if isinstance(own, dict) else None


def _check_metadata(name: str, documents: dict[str, Any]) -> Attributes:
    if "" not in documents:
        raise NotAStoreError(f"{name} holds no Zarr group of format 3.", _MAKE_ONE)
    own = _own(documents)
    if own is None:
        # Only the name of our codec tells a store with damaged attributes from somebody else's.
        if CODEC_NAME in json.dumps(documents.get(INDPTR)):
            raise DamagedError(f"{name}: the attributes of the root are gone.", REMEDY)
        raise NotAStoreError(f"{name} is a Zarr store, but not of a graph.", _MAKE_ONE)
    if own.get(UNFINISHED_KEY):
        raise NotAStoreError(
            f"{name} is what an interrupted import left.", "Remove it and import the graph again."
        )
    result = Attributes.from_json(own)
    # Stores that other programs wrote may do without the checksum, but then everything has a known name.
    sound = (
        own[CHECKSUM_KEY] == metadata_checksum(documents)
        if CHECKSUM_KEY in own
        else own.keys() == result.to_json().keys()
    )
    if not sound:
        raise DamagedError(f"{name}: the metadata (zarr.json files) are not what was written.", REMEDY)
    return result
