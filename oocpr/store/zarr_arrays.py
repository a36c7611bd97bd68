"""Zarr stores and their one-dimensional arrays, read and appended to in slices, damage reported as such."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import os
import stat
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numcodecs.zstd import decompress
from numpy.typing import NDArray
from zarr.abc.store import RangeByteRequest, Store
from zarr.codecs import Crc32cCodec, ZstdCodec
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import loop as zarr_loop
from zarr.core.sync import sync
from zarr.storage import FsspecStore, LocalStore

from oocpr.errors import DamagedError, InputError, OocprError
from oocpr.store.atomic import naming_failures
from oocpr.store.checked_files import SUPPORTED, read_files
from oocpr.store.codec.zarr_codecs import register_codecs
from oocpr.store.format import CHECKSUM_KEY, CRC_BYTES, metadata_checksum
from oocpr.system import LINUX, server_errors, server_options, usable_cores

register_codecs()

_MAX_DOCUMENT = 1 << 24  # bytes of a document of metadata
_OTHERS_SECONDS = 10
"""How long a failure waits for what else Zarr does, which may be somebody's slow server."""

_END_SECONDS = 2
"""How long the end of the process waits for calls that were broken off."""

_READERS = 8
"""Most threads that read chunks side by side; each has memory for as many as it reads at once."""

_CHUNKS_AT_ONCE = 4  # that a thread reads, each with a megabyte or so of memory


class PinnedFolder(LocalStore):
    """The Zarr store in a folder, which stays that folder when it is renamed and another gets its name.

    On systems other than Linux it is whatever has the name; `is_at` says whether that is the folder still.
    """

    def __init__(self, root: str | Path, *, read_only: bool = True) -> None:
        descriptor = os.open(root, getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY)
        weakref.finalize(self, os.close, descriptor)
        self._found = os.fstat(descriptor)
        pinned = f"/proc/self/fd/{descriptor}" if LINUX else Path(root).absolute()
        super().__init__(pinned, read_only=read_only)

    def is_at(self, path: Path) -> bool:
        """Whether a path leads to this folder."""
        try:
            return os.path.samestat(path.stat(), self._found)
        except OSError:
            return False


def open_zarr_store(path: str | os.PathLike[str] | Store) -> Store:
    """Open the Zarr store in a folder or at a URL for reading; a store is passed through."""
    if isinstance(path, Store):
        return path
    name = os.fspath(path)
    return open_url(name, read_only=True) if "://" in name else PinnedFolder(name)


def open_url(url: str, read_only: bool) -> Store:
    """Open the Zarr store behind a URL."""
    with server_errors(url):
        return _UrlStore.from_url(url, server_options(url), read_only=read_only)


def check_file(store: Store, key: str, max_bytes: int, origin: str) -> bool:
    """Whether a store has a key; in a folder, DamagedError unless it is a file of at most `max_bytes`.

    A pipe would be waited for without end, and a device may never end.
    """
    if not isinstance(store, LocalStore):
        return sync(store.exists(key))
    try:
        found = (store.root / key).stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except PermissionError as error:
        raise not_permitted(origin, error) from error
    except OSError as error:
        raise DamagedError(f"{origin}: {key} cannot be read: {error.strerror}.") from error
    if not stat.S_ISREG(found.st_mode):
        raise DamagedError(f"{origin}: {key} is no file.")
    if found.st_size > max_bytes:
        raise DamagedError(f"{origin}: {key} has {found.st_size} bytes, at most {max_bytes} belong there.")
    return True


def not_permitted(origin: str, error: PermissionError) -> InputError:
    """Make the error for a file of a store that the user may not read."""
    file = "" if error.filename is None else f" ({Path(os.fsdecode(error.filename)).name})"
    return InputError(
        f"{origin} cannot be read: {error.strerror}{file}.", "Have its owner let this user read all of it."
    )


class _UrlStore(FsspecStore):
    """A Zarr store behind a URL, whose server may go away."""

    async def get(self, key: str, *args: Any, **options: Any) -> Any:
        with server_errors(f"{self.fs.unstrip_protocol(self.path)}/{key}"):
            return await super().get(key, *args, **options)

    async def exists(self, key: str) -> bool:
        # To fsspec, what a server that is gone has is not there.
        return await self.get(key, default_buffer_prototype(), RangeByteRequest(0, 1)) is not None


def read_key(store: Store, key: str, size: int | None = None) -> bytes | None:
    """Bytes under a key of a store, or the first `size` of them; None if there are none."""
    if isinstance(store, LocalStore):
        # Zarr would have its own thread read it, half a millisecond later.
        try:
            with (store.root / key).open("rb") as file:
                return file.read(size)
        except (FileNotFoundError, NotADirectoryError):
            return None
    wanted = None if size is None else RangeByteRequest(0, size)
    found = sync(store.get(key, default_buffer_prototype(), wanted))
    return None if found is None else found.to_bytes()


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Name failures of what Zarr writes, as `naming_failures` does, and let none outlast the block.

    A call that is interrupted, or of which one chunk fails, leaves others to Zarr's thread. Whoever removes
    the folder would find it filled again.
    """
    with naming_failures(path):
        try:
            yield
        except BaseException:
            sync(_others_end())
            raise


async def _others_end() -> None:
    if tasks := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(tasks, timeout=_OTHERS_SECONDS)


async def _cancel_others() -> None:
    if tasks := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=_END_SECONDS)


@atexit.register
def _end_calls() -> None:
    """Cancel what Ctrl-C has broken off and Zarr's thread goes on with, which Python would warn of."""
    if zarr_loop[0] is not None:
        with contextlib.suppress(Exception):
            sync(_cancel_others(), timeout=_END_SECONDS)


def read_documents(store: Store, nodes: Iterable[str], origin: str) -> dict[str, Any]:
    """Parse the metadata of those of `nodes`, paths of groups and arrays ("" for the root), that there are.

    Raises DamagedError if a document is not a JSON object.
    """
    documents = {}
    for node in nodes:
        key = f"{node}/zarr.json".lstrip("/")
        text = read_key(store, key) if check_file(store, key, _MAX_DOCUMENT, origin) else None
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
    """Set attribute `key` of a root group, with the checksum of the metadata of `nodes`."""
    documents = read_documents(group.store, nodes, str(group.store))
    documents[""]["attributes"] = {**documents[""]["attributes"], key: attributes}
    group.attrs[key] = {**attributes, CHECKSUM_KEY: metadata_checksum(documents, key)}


class StoredArray:
    """The one-dimensional array `name` of a Zarr store, open for reading.

    `check_replaced`: called before damage is reported, raises ReplacedError if the store was replaced since
    it was opened. `codecs`: their names, in the order in which they encode. Raises DamagedError if the array
    is missing or has another number of dimensions.
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
            self._max_bytes = (self.chunk * max(4, self.array.dtype.itemsize) >> 4) * 17 + (1 << 16)

    def damaged(self, what: str) -> DamagedError:
        """Make the error for bytes that are not what was written; raises ReplacedError if that is why."""
        self._check_replaced()
        return DamagedError(f"{self.origin}: {what}.")

    def key(self, chunk: int) -> str:
        """Key of a chunk in the store."""
        return f"{self.name}/{self.array.metadata.encode_chunk_key((chunk,))}"

    def read(self, lo: int, hi: int) -> NDArray[Any]:
        """Read entries lo to hi - 1; DamagedError if they are not there or not what was written."""
        if not 0 <= lo <= hi <= self.size:
            raise self.damaged(f"{self.name} has {self.size} entries, {lo} to {hi} were asked for")
        if lo == hi:
            return np.empty(0, self.array.dtype)
        with self._guarded(lo, hi):
            if self._plain:
                return self._read_side_by_side(lo, hi)
            for k in range(lo // self.chunk, -(-hi // self.chunk)):
                self._check_chunk(k)
            return np.asarray(self.array[lo:hi])

    def _check_chunk(self, chunk: int) -> None:
        # To Zarr a missing chunk is full of zeros; a graph store has every chunk.
        if not check_file(self.store, self.key(chunk), self._max_bytes, self.origin):
            raise self.damaged(f"{self.key(chunk)} is missing")

    @property
    def _plain(self) -> bool:
        """Whether the array is made as by `create_array` without a serializer, in a folder."""
        codecs = ["bytes", "zstd", "crc32c"]
        return SUPPORTED and isinstance(self.store, LocalStore) and self.codecs == codecs

    def _read_side_by_side(self, lo: int, hi: int) -> NDArray[np.generic]:
        """Read chunks in as many threads as there are processors: Zarr takes one, and 4 ms for a chunk.

        A thread reads a few at once and decompresses them to where they belong. Whenever it calls the system
        by itself, or takes memory, it waits for the others, and for those that read tiles meanwhile.
        """
        out = np.empty(hi - lo, self.array.dtype)
        root, most = str(self.store.root), self._max_bytes + CRC_BYTES + 8 & ~7  # type: ignore[attr-defined]
        chunks = range(lo // self.chunk, -(-hi // self.chunk))
        together = min(_CHUNKS_AT_ONCE, len(chunks))
        begins = np.arange(together) * most
        limits, own = np.full(together, self._max_bytes), threading.local()

        def read(first: int, last: int) -> None:
            if not hasattr(own, "room"):
                own.room = np.empty(together * most, np.uint8)
            chunks = range(first, last)
            paths = [f"{root}/{self.key(chunk)}" for chunk in chunks]
            sizes, _ = read_files(paths, own.room, begins[: len(chunks)], limits[: len(chunks)])
            for chunk, at, size in zip(chunks, begins.tolist(), sizes.tolist(), strict=False):
                decode(chunk, memoryview(own.room)[at : at + size])
            for chunk in chunks[sizes.size :]:
                # What is wrong with a file is found as it is read alone.
                self._check_chunk(chunk)
                begin, end = max(lo, chunk * self.chunk), min(hi, (chunk + 1) * self.chunk)
                out[begin - lo : end - lo] = self.array[begin:end]

        def decode(chunk: int, coded: memoryview) -> None:
            size = decompressed_size(coded)
            if size != self.chunk * out.itemsize:
                raise ValueError(f"{self.key(chunk)} has {size} bytes")
            begin = chunk * self.chunk
            first, last = max(lo, begin), min(hi, begin + self.chunk)
            if last - first == self.chunk:
                decompress(coded, out[first - lo : last - lo])
            else:
                values = np.frombuffer(decompress(coded), out.dtype)
                out[first - lo : last - lo] = values[first - begin : last - begin]

        firsts = chunks[::together]
        if len(firsts) == 1:
            read(chunks.start, chunks.stop)
            return out
        with ThreadPoolExecutor(min(_READERS, usable_cores())) as pool:
            lasts = (min(first + together, chunks.stop) for first in firsts)
            deque(pool.map(read, firsts, lasts), maxlen=0)
        return out

    def spans(self, entries: NDArray[np.integer[Any]]) -> Iterator[tuple[int, int, NDArray[np.intp]]]:
        """Yield lo, hi, where: ``entries[where]`` lie in one chunk, the first is lo and the last hi - 1."""
        order = np.argsort(entries, kind="stable")
        chunks = entries[order] // self.chunk
        for where in np.split(order, np.flatnonzero(np.diff(chunks)) + 1):
            if where.size:
                yield int(entries[where[0]]), int(entries[where[-1]]) + 1, where

    def take(self, entries: NDArray[np.integer[Any]]) -> NDArray[Any]:
        """Read scattered entries, in the order asked for, and only the chunks that hold them."""
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
        except PermissionError as error:
            raise not_permitted(self.origin, error) from error
        except Exception as error:
            # Zarr and its codecs raise many kinds for metadata and bytes that are none of theirs.
            raise self.damaged(f"{self.name}, entries {lo} to {hi}: {error}") from error


def decompressed_size(frame: memoryview) -> int | None:
    """Bytes of what a Zstandard frame holds (RFC 8878, 3.1.1.1), None if it does not say.

    Examples
    --------
    >>> from numcodecs.zstd import compress
    >>> [decompressed_size(memoryview(compress(bytes(size)))) for size in (1, 300, 2**17)]
    [1, 300, 131072]
    """
    about = frame[4] if len(frame) > 4 else 0
    whole = about >> 5 & 1  # whether there is no window descriptor
    begin = 6 - whole + (0, 1, 2, 4)[about & 3]
    count = (whole, 2, 4, 8)[about >> 6]
    if not count or len(frame) < begin + count:
        return None
    return int.from_bytes(frame[begin : begin + count], "little") + (256 if count == 2 else 0)


def create_array(
    group: zarr.Group, name: str, dtype: str, size: int, chunk: int, serializer: Any = None
) -> zarr.Array[Any]:
    """Create an array of one dimension; `serializer`: codec of values in place of bytes with Zstandard."""
    return group.create_array(
        name,
        shape=(size,),
        dtype=dtype,
        chunks=(chunk,),
        serializer=serializer or "auto",
        compressors=[Crc32cCodec()] if serializer else [ZstdCodec(level=3), Crc32cCodec()],
        fill_value=0,
        config={"write_empty_chunks": True},
    )


class Appender:
    """An array as `create_array` makes it, written front to back in whole chunks.

    If there is only one, it is as large as what it holds: Zarr pads the last chunk, and who reads a small
    graph would wait for megabytes of padding.
    """

    def __init__(self, group: zarr.Group, name: str, dtype: str, chunk: int, serializer: Any = None) -> None:
        self._create = partial(create_array, group, name, dtype, 0, serializer=serializer)
        self._array: zarr.Array[Any] | None = None
        self._held = np.empty(chunk, dtype)
        self._fill = 0
        self.size = 0

    def append(self, values: NDArray[Any]) -> None:
        """Add values at the end; complete chunks are written."""
        start = 0
        while start < len(values):
            count = min(len(values) - start, self._held.size - self._fill)
            self._held[self._fill : self._fill + count] = values[start : start + count]
            self._fill += count
            start += count
            if self._fill == self._held.size:
                self._write()

    def close(self) -> None:
        """Write what is left."""
        if self._fill or self._array is None:
            self._write()

    def _write(self) -> None:
        if self._array is None:
            self._array = self._create(max(1, self._fill))
        self._array.append(self._held[: self._fill])
        self.size += self._fill
        self._fill = 0


def write_array(
    group: zarr.Group, name: str, dtype: str, pieces: Iterable[NDArray[Any]], chunk: int
) -> tuple[int, int]:
    """Write an array that is given in pieces; returns how many entries there were, and how many are 0."""
    array = Appender(group, name, dtype, chunk)
    zeros = 0
    for piece in pieces:
        array.append(piece)
        zeros += piece.size - int(np.count_nonzero(piece))
    array.close()
    return array.size, zeros
