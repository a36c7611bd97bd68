"""Arrays of a Zarr store, read and appended to in slices, damage reported as such."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
from zarr.abc.store import RangeByteRequest, Store
from zarr.codecs import Crc32cCodec, ZstdCodec
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import FsspecStore, LocalStore

from oocpr.errors import DamagedError, OocprError, UsageError
from oocpr.store.codec.zarr_codecs import register_codecs
from oocpr.store.format import (
    CHECKSUM_KEY,
    DATA,
    INDICES,
    INDPTR,
    LABEL_BYTES,
    LABEL_OFFSETS,
    NODE_IDS,
    OUT_DEGREE,
    OUT_WEIGHT,
    TILE_ROWS,
    metadata_checksum,
)
from oocpr.system import remote_error, server_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from oocpr.store.format import Attributes

register_codecs()

_MOST_DOCUMENT = 1 << 24
"""Bytes of a document of metadata."""


class PinnedFolder(LocalStore):
    """The Zarr store in a folder, opened for reading.

    Its keys are those of this very folder, also when it is renamed and another one gets its name: what is
    read of it belongs together.
    """

    def __init__(self, root: str | Path, *, read_only: bool = True) -> None:
        descriptor = os.open(root, os.O_PATH | os.O_DIRECTORY)
        weakref.finalize(self, os.close, descriptor)
        super().__init__(f"/proc/self/fd/{descriptor}", read_only=read_only)

    def is_at(self, path: Path) -> bool:
        """Tell whether a path leads to this folder."""
        try:
            return path.samefile(self.root)
        except OSError:
            return False


def open_zarr_store(path: str | os.PathLike[str] | Store) -> Store:
    """Open the Zarr store in a folder or at a URL for reading; a store is passed through."""
    if isinstance(path, Store):
        return path
    name = os.fspath(path)
    if "://" in name:
        with _naming(name):
            return _UrlStore.from_url(name, server_options(name), read_only=True)
    return PinnedFolder(name)


def check_file(store: Store, key: str, most: int, origin: str) -> bool:
    """Tell whether a store has a key; in a folder, refuse what is no file of at most so many bytes.

    A pipe would be waited for without end, and a device may never end.

    Raises DamagedError with the key.
    """
    if not isinstance(store, LocalStore):
        return sync(store.exists(key))
    try:
        found = (store.root / key).stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise DamagedError(f"{origin}: {key} cannot be read: {error.strerror}.") from error
    if not stat.S_ISREG(found.st_mode):
        raise DamagedError(f"{origin}: {key} is no file.")
    if found.st_size > most:
        raise DamagedError(f"{origin}: {key} has {found.st_size} bytes, at most {most} belong there.")
    return True


@contextlib.contextmanager
def _naming(url: str) -> Iterator[None]:
    """Raise LostError and SetupError for what a server, or the way to it, does wrong."""
    try:
        yield
    except OocprError:
        raise
    except Exception as error:
        told = remote_error(url, error)
        if told is None:
            raise
        raise told from error


class _UrlStore(FsspecStore):
    """A Zarr store behind a URL, whose server may go away."""

    async def get(self, key: str, *args: Any, **options: Any) -> Any:
        with _naming(f"{self.fs.unstrip_protocol(self.path)}/{key}"):
            return await super().get(key, *args, **options)

    async def exists(self, key: str) -> bool:
        # To fsspec, what a server that is gone has is not there.
        return await self.get(key, default_buffer_prototype(), RangeByteRequest(0, 1)) is not None


def read_key(store: Store, key: str, size: int | None = None) -> bytes | None:
    """Bytes under a key of a store, or the first `size` of them; None if there are none."""
    wanted = None if size is None else RangeByteRequest(0, size)
    found = sync(store.get(key, default_buffer_prototype(), wanted))
    return None if found is None else found.to_bytes()


def read_documents(store: Store, nodes: Iterable[str], origin: str) -> dict[str, Any]:
    """Parse the metadata of those of some groups and arrays that a store has.

    `nodes`: paths of the groups and arrays, "" for the root. Raises DamagedError if a document is not a JSON
    object.
    """
    documents = {}
    for node in nodes:
        key = f"{node}/zarr.json".lstrip("/")
        text = read_key(store, key) if check_file(store, key, _MOST_DOCUMENT, origin) else None
        if text is None:
            continue
        try:
            documents[node] = json.loads(text)
            if not isinstance(documents[node], dict):
                raise ValueError("not an object")
        except ValueError as error:
            raise DamagedError(f"{origin}: {key} is not JSON: {error}.") from error
    return documents


def write_attributes(group: zarr.Group, key: str, attributes: dict[str, Any], nodes: Iterable[str]) -> None:
    """Set attribute `key` of a root group, with the checksum of its metadata and those of `nodes`.

    `nodes`: paths of all groups and arrays that the store may have, "" for the root.
    """
    documents = read_documents(group.store, nodes, str(group.store))
    documents[""]["attributes"] = {**documents[""]["attributes"], key: attributes}
    group.attrs[key] = {**attributes, CHECKSUM_KEY: metadata_checksum(documents, key)}


def total_bytes(store: Store) -> int:
    """Bytes of all values of a store."""
    return int(sync(store.getsize_prefix("")))


class StoredArray:
    """A one-dimensional array of a Zarr store, open for reading.

    `store`, `name`: the store and the path of the array in it. `check_replaced`: called before damage is
    reported: raises ReplacedError if the store was replaced since it was opened. `codecs`: names of its
    codecs, in the order in which they encode. Raises DamagedError if the array is missing or has another
    number of dimensions.
    """

    def __init__(
        self, store: Store, name: str, origin: str, check_replaced: Callable[[], None] = lambda: None
    ) -> None:
        self.store = store
        self.name = name
        self.origin = origin
        self._check_replaced = check_replaced
        with self._guarded(0, 0):
            self.array = zarr.open_array(store, path=name, mode="r", zarr_format=3)
            (self.size,) = self.array.shape
            (self.chunk,) = self.array.chunks
            listed: Any = self.array.metadata.to_dict()["codecs"]
            self.codecs: list[str] = [codec["name"] for codec in listed]
            # No codec makes more of what it cannot compress.
            self._most_bytes = (self.chunk * max(4, self.array.dtype.itemsize) >> 4) * 17 + (1 << 16)

    def damaged(self, what: str) -> DamagedError:
        """Make the error for bytes that are not what was written.

        Raises ReplacedError if that is because the store was replaced since it was opened.
        """
        self._check_replaced()
        return DamagedError(f"{self.origin}: {what}.")

    def key(self, chunk: int) -> str:
        """Key of a chunk in the store."""
        return f"{self.name}/{self.array.metadata.encode_chunk_key((chunk,))}"

    def read(self, lo: int, hi: int) -> NDArray[Any]:
        """Read entries lo to hi - 1.

        Raises DamagedError if the array is shorter, a chunk is missing, or its bytes are not what was
        written.
        """
        if not 0 <= lo <= hi <= self.size:
            raise self.damaged(f"{self.name} has {self.size} entries, {lo} to {hi} were asked for")
        if lo == hi:
            return np.empty(0, self.array.dtype)
        for k in range(lo // self.chunk, -(-hi // self.chunk)):
            # To Zarr a missing chunk is full of zeros; a graph store has every chunk.
            if not check_file(self.store, self.key(k), self._most_bytes, self.origin):
                raise self.damaged(f"{self.key(k)} is missing")
        with self._guarded(lo, hi):
            return np.asarray(self.array[lo:hi])

    def spans(self, entries: NDArray[np.integer[Any]]) -> Iterator[tuple[int, int, NDArray[np.intp]]]:
        """Group scattered entries by the chunk they are in.

        Yields lo, hi, where: entries ``entries[where]`` lie in one chunk, the first is `lo` and the last `hi`
        - 1.
        """
        order = np.argsort(entries, kind="stable")
        chunks = entries[order] // self.chunk
        for where in np.split(order, np.flatnonzero(np.diff(chunks)) + 1):
            if where.size:
                yield int(entries[where[0]]), int(entries[where[-1]]) + 1, where

    def take(self, entries: NDArray[np.integer[Any]]) -> NDArray[Any]:
        """Read scattered entries, in the order asked for; only the chunks that hold them are read."""
        out = np.empty(len(entries), self.array.dtype)
        for lo, hi, where in self.spans(entries):
            out[where] = self.read(lo, hi)[entries[where] - lo]
        return out

    @contextlib.contextmanager
    def _guarded(self, lo: int, hi: int) -> Iterator[None]:
        try:
            yield
        except (OocprError, MemoryError):
            raise
        except Exception as error:
            # Zarr and its codecs raise many kinds for metadata and bytes that are none of theirs.
            raise self.damaged(f"{self.name}, entries {lo} to {hi}: {error}") from error


class Appender:
    """A one-dimensional array written front to back, in whole chunks.

    `group`, `name`: the group that gets the array, and its path there. `serializer`: codec of the values, in
    place of plain bytes with Zstandard.
    """

    def __init__(self, group: zarr.Group, name: str, dtype: str, chunk: int, serializer: Any = None) -> None:
        codecs = [Crc32cCodec()] if serializer else [ZstdCodec(level=3), Crc32cCodec()]
        self._array = group.create_array(
            name,
            shape=(0,),
            dtype=dtype,
            chunks=(chunk,),
            serializer=serializer or "auto",
            compressors=codecs,
            fill_value=0,
            config={"write_empty_chunks": True},
        )
        self._held = np.empty(chunk, dtype)
        self._fill = 0
        self.size = 0

    def append(self, values: NDArray[Any]) -> None:
        """Add values at the end; complete chunks are written."""
        start = 0
        while start < len(values):
            taken = min(len(values) - start, self._held.size - self._fill)
            self._held[self._fill : self._fill + taken] = values[start : start + taken]
            self._fill += taken
            start += taken
            if self._fill == self._held.size:
                self._write()

    def close(self) -> None:
        """Write what is left."""
        if self._fill:
            self._write()

    def _write(self) -> None:
        lo = self.size
        self.size += self._fill
        self._array.resize((self.size,))
        self._array[lo:] = self._held[: self._fill]
        self._fill = 0


def append_pieces(
    group: zarr.Group, name: str, dtype: str, pieces: Iterable[NDArray[Any]], size: int, *, chunk: int
) -> int:
    """Write an array that is given in pieces.

    `pieces`: its entries, in order. Returns how many of them are 0. Raises UsageError if there are more or
    fewer than `size`.
    """
    array = Appender(group, name, dtype, chunk)
    zeros = 0
    for piece in pieces:
        array.append(piece)
        zeros += piece.size - int(np.count_nonzero(piece))
    array.close()
    if array.size != size:
        raise UsageError(f"{array.size} entries of {name} where {size} belong.", "Give one for each row.")
    return zeros


def enter_written(group: zarr.Group, name: str, dtype: str, size: int, chunk: int, serializer: Any) -> None:
    """Enter an array of `size` entries whose chunks are written already, or will be; see `Appender`."""
    group.create_array(
        name,
        shape=(size,),
        dtype=dtype,
        chunks=(chunk,),
        serializer=serializer,
        compressors=[Crc32cCodec()],
        fill_value=0,
    )


MOST_NODES, MOST_EDGES = 2**32, 2**63
"""A graph of the format has fewer."""

MOST_ENTRIES = 1 << 26
"""Entries of a chunk; this package writes at most a sixteenth of that."""

Entry = tuple[tuple[str, ...], int | None]
"""Types that an array may have, and its entries; None for any number."""


def check_arrays(origin: str, documents: Mapping[str, Any], attributes: Attributes) -> None:
    """Compare types, sizes and chunks of all arrays of a graph store with the format.

    `documents`: parsed ``zarr.json`` of the groups and arrays by path. Raises DamagedError if an array is
    missing, or is not what the format and the attributes make it.
    """
    _check_counts(origin, attributes)
    nodes, edges = attributes.nodes, attributes.edges
    needed: dict[str, Entry] = {
        INDPTR: (("int64",), nodes + 1),
        INDICES: (("uint32",), edges),
        TILE_ROWS: (("int64",), attributes.tiles + 1),
        OUT_DEGREE: (("uint32",), nodes),
    }
    if attributes.weighted:
        needed |= {DATA: (("float64",), edges), OUT_WEIGHT: (("float64",), nodes)}
    optional: dict[str, Entry] = {
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
    """Compare the metadata of one array with what belongs there.

    Raises DamagedError if they differ, or chunks are larger than MOST_ENTRIES.

    >>> grid = {"name": "regular", "configuration": {"chunk_shape": [8]}}
    >>> found = {"node_type": "array", "data_type": "int64", "shape": [5], "chunk_grid": grid}
    >>> check_array("g.zarr", "tile_rows", found, ("int64",), 5)
    """
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
    if not 1 <= (_only(chunk) or 0) <= MOST_ENTRIES:
        raise DamagedError(
            f"{origin}: {path} has chunks of the shape {chunk!r}, 1 to {MOST_ENTRIES} entries can be read."
        )


def check_degrees(
    origin: str, counted: NDArray[np.integer[Any]], degree: NDArray[np.uint32], first: int = 0
) -> None:
    """Raise DamagedError if stored out-degrees of rows from `first` on are not the edges that leave them.

    >>> check_degrees("g.zarr", np.array([2, 0]), np.array([2, 0], np.uint32))
    """
    if not np.array_equal(counted, degree):
        k = int(np.flatnonzero(counted != degree)[0])
        raise DamagedError(
            f"{origin}: row {first + k} has {int(counted[k])} out-links in the tiles and out-degree "
            f"{int(degree[k])}."
        )


def check_degree_sum(origin: str, found: int, edges: int) -> None:
    """Compare the sum of the out-degrees with the number of edges; raises DamagedError."""
    if found != edges:
        raise DamagedError(f"{origin}: the out-degrees sum to {found} and the graph has {edges} edges.")


def check_dangling(origin: str, found: int, stated: int) -> None:
    """Compare the number of nodes that nothing leaves with what a store says of it; raises DamagedError."""
    if found != stated:
        raise DamagedError(f"{origin}: nothing leaves {found} nodes, and attribute 'dangling' is {stated}.")


def _only(shape: Any) -> int | None:
    """Entries of an array of one dimension; None for any other shape."""
    if isinstance(shape, list) and len(shape) == 1 and type(shape[0]) is int and shape[0] >= 0:
        return shape[0]
    return None


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
                f"{origin}: attribute {name!r} is {count}, and no such graph has more than {most}."
            )
