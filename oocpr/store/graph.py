"""A graph store, opened for reading."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakMethod

import numpy as np
from numpy.typing import NDArray
from zarr.core.sync import sync

from oocpr.errors import DamagedError, NotAStoreError, OocprError, ReplacedError, SetupError
from oocpr.store.format import (
    CHECKSUM_KEY,
    CODEC_NAME,
    DATA,
    IDENTITY_DIGITS,
    IDENTITY_KEY,
    INDICES,
    INDPTR,
    LABEL_BYTES,
    LABEL_OFFSETS,
    NODE_IDS,
    NODES,
    OUT_DEGREE,
    OUT_WEIGHT,
    TILE_ROWS,
    UNFINISHED_KEY,
    Attributes,
    ignored_nodes,
    metadata_checksum,
    own_attributes,
)
from oocpr.store.integrity import check_arrays, content_identity
from oocpr.store.node_data import StoredLabels
from oocpr.store.tile_reader import EncodedTiles, EncodedWeights
from oocpr.store.zarr_arrays import (
    PinnedFolder,
    StoredArray,
    not_permitted,
    open_zarr_store,
    read_documents,
)

if TYPE_CHECKING:
    from zarr.abc.store import Store

    from oocpr.store.node_data import TextPiece

_MAKE_ONE = "Make one with `oocpr import SOURCE -o GRAPH.zarr`."

_REOPENED = 8
"""Times that a folder is opened anew because another took its name while it was opened."""


class _Arrays:
    """The arrays of a store, each opened once.

    Nothing of a store leads back to it: a temporary one goes with the last that holds it.
    """

    def __init__(self, store: Store, path: str, check_current: WeakMethod[Callable[[], None]]) -> None:
        self._store, self._path, self._check_current = store, path, check_current
        self._opened: dict[str, StoredArray] = {}

    def __call__(self, name: str) -> StoredArray:
        if name not in self._opened:
            self._opened[name] = StoredArray(self._store, name, self._path, self._check)
        return self._opened[name]

    def offsets(self, lo: int, hi: int) -> NDArray[np.int64]:
        """See `GraphStore.indptr`."""
        return self(INDPTR).read(lo, hi).astype(np.int64, copy=False)

    def _check(self) -> None:
        check = self._check_current()
        if check is not None:
            check()


class GraphStore:
    """A finished graph store; get one with :func:`open_store`.

    `tile_rows`: int64, shape (tiles + 1,): tile t owns rows ``tile_rows[t]`` to ``tile_rows[t + 1] - 1``;
    `max_tile_rows`: most rows of a tile.
    `weights`: None if the graph is not weighted. What reads arrays raises DamagedError if the bytes are not
    what was written.
    """

    def __init__(
        self, path: str, store: Store, attributes: Attributes, paths: Iterable[str], own: Mapping[str, Any]
    ) -> None:
        self.path = path
        self.attributes = attributes
        self.nodes = attributes.nodes
        self.edges = attributes.edges
        self.tiles = attributes.tiles
        self.dangling = attributes.dangling
        self._store = store
        self._place = Path(path).absolute()
        self._own = own
        self._paths = frozenset(paths)
        self._array = _Arrays(store, path, WeakMethod(self.check_current))
        self.tile_rows: NDArray[np.int64] = self._read(TILE_ROWS, 0, self.tiles + 1, np.int64)
        rows, owned = self.tile_rows, np.diff(self.tile_rows)
        self.max_tile_rows = int(owned.max(initial=0))
        if rows[0] != 0 or rows[-1] != self.nodes or (owned < 0).any():
            raise DamagedError(f"{path}: the rows of the tiles are out of order.")
        self.encoded = EncodedTiles(self._array(INDICES), attributes, rows, self._array.offsets)
        weighted = attributes.weighted
        self.weights = EncodedWeights(self._array(DATA), attributes) if weighted else None

    def __reduce__(self) -> tuple[Callable[..., GraphStore], tuple[str, str | None, str]]:
        # Where it is unpickled it is opened anew, under the same path.
        return open_same, (self.shared_path, self.identity, "the process that unpickles the graph")

    @cached_property
    def shared_path(self) -> str:
        """The path under which other processes find the store."""
        return self.path if "://" in self.path else str(Path(self.path).resolve())

    @cached_property
    def identity(self) -> str:
        """What tells the graph apart from any other, 32 hexadecimal digits; computed if it is not stored."""
        known = self._own.get(IDENTITY_KEY) if CHECKSUM_KEY in self._own else None
        return known or content_identity(self._array, self.attributes, self._paths)

    def check_identity(self) -> None:
        """Raise DamagedError unless the identity is that of the chunks."""
        found = content_identity(self._array, self.attributes, self._paths)
        if found != self.identity:
            raise DamagedError(
                f"{self.path}: the identity is {self.identity}, that of the chunks is {found}."
            )

    def check_current(self) -> None:
        """Raise ReplacedError if another graph, or none, has the store's path by now."""
        if isinstance(self._store, PinnedFolder) and not self._store.is_at(self._place):
            try:
                found = open_store(self._place).identity
            except OocprError:
                raise self._replaced("no graph") from None
            raise self._replaced("it anew" if found == self._known else f"the graph {found}")
        if self._root() != self._own:
            raise self._replaced("another one")

    def check_unchanged(self) -> None:
        """Raise ReplacedError if what was read of the store may not all be of the graph that was opened."""
        # An open folder stays what it was when another gets its name; in other stores, or if files were
        # overwritten, what was read belongs together if the root is the same.
        root = self._root()
        moved = root is None and isinstance(self._store, PinnedFolder)
        if not moved and root != self._own:
            raise self._replaced("another one")

    @contextlib.contextmanager
    def unchanged(self) -> Iterator[None]:
        """Raise ReplacedError if what is read in the block, or cannot be, is of a replaced store."""
        try:
            yield
        except DamagedError:
            self.check_current()
            raise
        self.check_unchanged()

    def _root(self) -> Mapping[str, Any] | None:
        """Attributes of the graph at the root as it is now."""
        try:
            return own_attributes(read_documents(self._store, [""], self.path))
        except DamagedError:
            return {}

    @property
    def _known(self) -> str | None:
        """The identity, if the store has one or somebody has asked for it: its chunks may be gone."""
        return self.__dict__.get("identity") or self._own.get(IDENTITY_KEY)

    def _replaced(self, now: str) -> ReplacedError:
        was = f" {self._known}" if self._known else ""
        return ReplacedError(
            f"{self.path} was replaced while it was in use: it held the graph{was}, now it holds {now}."
        )

    def _read(self, name: str, lo: int, hi: int, dtype: Any) -> NDArray[Any]:
        return self._array(name).read(lo, hi).astype(dtype, copy=False)

    def tile_sizes(self) -> NDArray[np.int64] | None:
        """Bytes of each tile as stored, with its weights, int64; None if only reading them would tell."""
        columns, weights = self.encoded.sizes(), self.weights
        if columns is None or weights is None:
            return columns
        of_weights = weights.sizes()
        return None if of_weights is None else columns + of_weights

    def indptr(self, lo: int, hi: int) -> NDArray[np.int64]:
        """Row offsets lo to hi - 1 of the nodes + 1 there are."""
        return self._array.offsets(lo, hi)

    def out_degree(self, lo: int, hi: int) -> NDArray[np.uint32]:
        """Out-degrees of rows lo to hi - 1."""
        return self._read(OUT_DEGREE, lo, hi, np.uint32)

    def out_weight(self, lo: int, hi: int) -> NDArray[np.float64]:
        """Sums of the weights that leave rows lo to hi - 1; of a graph without weights the out-degrees."""
        if not self.attributes.weighted:
            return self._read(OUT_DEGREE, lo, hi, np.float64)
        sums: NDArray[np.float64] = self._read(OUT_WEIGHT, lo, hi, np.float64)
        if not (np.isfinite(sums) & (sums >= 0)).all():
            raise DamagedError(f"{self.path}: {OUT_WEIGHT} has numbers that are no sums of weights.")
        return sums

    def node_ids(self) -> NDArray[np.integer[Any]] | None:
        """The source's ids of all rows, or None if row v is node v."""
        if NODE_IDS not in self._paths:
            return None
        return self._array(NODE_IDS).read(0, self.nodes)

    def ids(self, lo: int, hi: int) -> NDArray[np.int64]:
        """The source's ids of rows lo to hi - 1, which are the rows themselves if it gave none."""
        if NODE_IDS not in self._paths:
            return np.arange(lo, hi)
        return self._read(NODE_IDS, lo, hi, np.int64)

    @property
    def has_ids(self) -> bool:
        """Whether the source gave the rows ids of its own."""
        return NODE_IDS in self._paths

    def take_ids(self, rows: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        """The source's ids of some rows, in the order asked for."""
        if not self.has_ids:
            return rows.astype(np.int64)
        return self._array(NODE_IDS).take(rows).astype(np.int64, copy=False)

    @property
    def has_labels(self) -> bool:
        """Whether the rows have labels."""
        return LABEL_OFFSETS in self._paths

    def labels(self, ids: NDArray[np.integer[Any]] | Iterable[int]) -> list[str] | None:
        """Labels of the rows `ids`, in the order asked for, or None if the store has none."""
        if not self.has_labels:
            return None
        rows = np.asarray(ids if isinstance(ids, np.ndarray) else list(ids), np.int64)
        labels = self._labels.take(rows)
        self.check_unchanged()
        return labels

    def label_pieces(self, lo: int, hi: int) -> Iterator[TextPiece]:
        """Yield the labels of rows lo to hi - 1 in pieces; the store has some."""
        for piece in self._labels.pieces(lo, hi):
            self.check_unchanged()
            yield piece

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
        return int(sync(self._store.getsize_prefix("")))


def open_store(path: str | os.PathLike[str] | Store) -> GraphStore:
    """Open a graph store; a folder, a URL or a store of Zarr.

    Raises NotAStoreError if there is no finished graph store of a format that this version reads;
    DamagedError if the metadata are not what was written.
    """
    name = os.fspath(path) if isinstance(path, (str, os.PathLike)) else str(path)
    if isinstance(path, (str, os.PathLike)) and "://" not in name:
        # Those of Path have errors for names that are too long.
        if not os.path.exists(name):  # noqa: PTH110
            raise NotAStoreError(f"{name} does not exist.", _MAKE_ONE)
        if not os.path.isdir(name):  # noqa: PTH112
            raise NotAStoreError(f"{name} is a file, not a graph store.", _MAKE_ONE)
    for _ in range(_REOPENED):
        store = open_zarr_store(path)
        try:
            return _opened(name, store)
        except PermissionError as error:
            raise not_permitted(name, error) from error
        except (DamagedError, NotAStoreError, ReplacedError):
            # Of a folder that was replaced meanwhile a part may be gone.
            if not isinstance(store, PinnedFolder) or store.is_at(Path(name).absolute()):
                raise
    return _opened(name, open_zarr_store(path))


def _opened(name: str, store: Store) -> GraphStore:
    try:
        documents = read_documents(store, NODES, name)
        own = own_attributes(documents) or {}
        documents |= read_documents(store, ignored_nodes(own), name)
        attributes = _check_metadata(name, documents)
    except RecursionError:
        raise DamagedError(f"{name}: the metadata (zarr.json files) are nested too deeply.") from None
    check_arrays(name, documents, attributes)
    return GraphStore(name, store, attributes, documents, own)


def open_same(path: str, identity: str | None, reader: str) -> GraphStore:
    """Open the graph of a run in `reader`, another process than the one that knows its identity.

    Raises SetupError if that process cannot open a store there, and ReplacedError if that has another
    identity.
    """
    try:
        store = open_store(path)
        found = store.identity
    except (OocprError, OSError, ImportError, ValueError) as error:
        if isinstance(error, OocprError) and not isinstance(error, NotAStoreError):
            raise
        cause = error.cause if isinstance(error, OocprError) else str(error)
        raise SetupError(
            f"{reader} cannot open the graph at {path}: {cause}",
            "Put the store where every worker finds it under this path, such as a shared folder.",
        ) from error
    if found != identity:
        raise ReplacedError(
            f"{reader} has the graph {found} at {path}, and the run is of the graph {identity}.",
            "Put the same store under this path on all workers, such as in a shared folder.",
        )
    return store


def _check_metadata(name: str, documents: dict[str, Any]) -> Attributes:
    if "" not in documents:
        raise NotAStoreError(f"{name} holds no Zarr group of format 3.", _MAKE_ONE)
    own = own_attributes(documents)
    if own is None:
        # Only the name of our codec tells a store with damaged attributes from somebody else's.
        if CODEC_NAME in json.dumps(documents.get(INDPTR)):
            raise DamagedError(f"{name}: the attributes of the root are gone.")
        raise NotAStoreError(f"{name} is a Zarr store, but not of a graph.", _MAKE_ONE)
    if own.get(UNFINISHED_KEY):
        raise NotAStoreError(
            f"{name} is what an interrupted import left.", "Remove it and import the graph again."
        )
    result = Attributes.from_json(own)
    identity = own.get(IDENTITY_KEY, "0" * IDENTITY_DIGITS)
    if not (isinstance(identity, str) and re.fullmatch(f"[0-9a-f]{{{IDENTITY_DIGITS}}}", identity)):
        raise DamagedError(f"{name}: {identity!r} is no identity of a graph.")
    # Stores that other programs wrote may do without the checksum, but then everything has a known name.
    sound = (
        own[CHECKSUM_KEY] == metadata_checksum(documents)
        if CHECKSUM_KEY in own
        else own.keys() - {IDENTITY_KEY} == result.to_json().keys()
    )
    if not sound:
        raise DamagedError(f"{name}: the metadata (zarr.json files) are not what was written.")
    return result
