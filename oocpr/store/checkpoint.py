"""Checkpoints of runs: what one pass leaves for the next, in a folder or at a URL.

A checkpoint is whole or is not there. Arrays of a pass are written first, those of each stripe by whoever has
them, under ``pass-NUMBER``; then ``checkpoint.json`` names that pass, with checksums of its stripes, and
earlier ones are removed. So a process that is killed at any time leaves the last checkpoint as it was.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
from crc32c import crc32c
from numpy.typing import NDArray
from zarr.codecs import BytesCodec
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import LocalStore

from oocpr.errors import DamagedError, UsageError
from oocpr.store.atomic import naming_failures, replacing
from oocpr.store.zarr_arrays import StoredArray, check_file, create_array, open_url, read_key, writing

if TYPE_CHECKING:
    from zarr.abc.store import Store

DOCUMENT, ROOT = "checkpoint.json", "zarr.json"
FORMAT = 2

_CHUNK, _AT_ONCE = 1 << 19, 2
"""Entries of a chunk of an array, and chunks that are written at a time."""

WRITING_BYTES = 2**25
"""What that takes at most: Zarr copies a chunk two or three times."""

_MAX_DOCUMENT = 1 << 26
_PASS = re.compile(r"pass-(\d+)")
_ANEW = "Remove it, and start the run anew."


class UnfitCheckpointError(UsageError):
    """The checkpoint is one of another version, or of another run."""


class CheckpointFolder:
    """A folder, or a place behind a URL, that has at most one checkpoint.

    What reads it raises DamagedError for bytes that are not what was written; what writes, DoesNotFitError if
    no room is left and UsageError if nothing can be written there.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._remote = "://" in self.path
        self._lock = -1

    def open(self) -> None:
        """Make it if need be, and let nobody else write there; UsageError if somebody else does."""
        if self._remote:
            return
        folder = Path(self.path)
        with naming_failures(folder):
            folder.mkdir(parents=True, exist_ok=True)
            strange = [found.name for found in folder.iterdir() if not _is_own(found.name)]
            if strange:
                raise UsageError(
                    f"{self.path} has {strange[0]}, which is no part of a checkpoint.", "Name another folder."
                )
            self._lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise UsageError(
                f"another run writes its checkpoints to {self.path}.", "Name another folder."
            ) from None
        except OSError:
            # Some file systems over a network have no locks.
            pass

    def close(self) -> None:
        """Let others write there."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def read(self) -> dict[str, Any] | None:
        """What the last checkpoint says of itself; None if there is none."""
        if not self._remote and not Path(self.path).is_dir():
            return None
        store = self._store(read_only=True)
        text = read_key(store, DOCUMENT) if check_file(store, DOCUMENT, _MAX_DOCUMENT, self.path) else None
        if text is None:
            return None
        try:
            outer = json.loads(text)
            facts: dict[str, Any] = json.loads(outer["facts"])
            sound = outer["crc32c"] == crc32c(outer["facts"].encode())
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            sound = False
        if not sound:
            raise DamagedError(f"{self.path}: {DOCUMENT} is not what was written.", _ANEW)
        if facts["format"] != FORMAT:
            raise UnfitCheckpointError(
                f"{self.path} has a checkpoint of format {facts['format']}, and this version has {FORMAT}.",
                _ANEW,
            )
        return facts

    def write_arrays(self, number: int, part: int, arrays: Iterable[tuple[str, NDArray[Any]]]) -> int:
        """Write the arrays of one stripe, one-dimensional and one after another, for the pass `number`.

        Returns a checksum of all of them. Those of chunks say nothing of the pass and the array they are of.
        """
        checksum = 0
        with writing(Path(self.path)):
            store = self._store(read_only=False)
            group = zarr.create_group(store, path=stripe_folder(number, part), zarr_format=3, overwrite=True)
            for name, values in arrays:
                checksum = _checksum(values, checksum)
                made = create_array(
                    group, name, values.dtype.str, values.size, max(1, min(_CHUNK, values.size)), BytesCodec()
                )
                for lo in range(0, values.size, _AT_ONCE * _CHUNK):
                    made[lo : lo + _AT_ONCE * _CHUNK] = values[lo : lo + _AT_ONCE * _CHUNK]
        return checksum

    def publish(self, number: int, facts: dict[str, Any]) -> None:
        """Make the arrays of the pass `number` the last checkpoint, and remove those of other passes."""
        text = json.dumps({**facts, "format": FORMAT, "pass": number}, allow_nan=False)
        document = json.dumps({"facts": text, "crc32c": crc32c(text.encode())}).encode()
        with naming_failures(Path(self.path)):
            if self._remote:
                buffer = default_buffer_prototype().buffer.from_bytes(document)
                sync(self._store(read_only=False).set(DOCUMENT, buffer))
            else:
                with replacing(Path(self.path) / DOCUMENT) as temporary:
                    temporary.write_bytes(document)
        self.remove_passes(but=number)

    def read_arrays(
        self, number: int, part: int, wanted: Iterable[tuple[str, Any, int]], checksum: int
    ) -> Iterator[NDArray[Any]]:
        """Read the arrays of a stripe, of such names, types and sizes, one after another.

        `checksum` is what `write_arrays` has returned; what differs is reported behind the last array.
        """
        folder, found = stripe_folder(number, part), 0
        for name, dtype, size in wanted:
            try:
                stored = StoredArray(self._store(read_only=True), f"{folder}/{name}", self.path)
                if stored.array.dtype != dtype or stored.size != size:
                    raise stored.damaged(
                        f"{stored.name} has {stored.size} entries of {stored.array.dtype}, "
                        f"not {size} of {dtype}"
                    )
                values = stored.read(0, stored.size)
            except DamagedError as error:
                raise DamagedError(error.cause, _ANEW) from error
            found = _checksum(values, found)
            yield values
        if found != checksum:
            raise DamagedError(f"{self.path}: {folder} has arrays that were not written there.", _ANEW)

    def clear(self) -> None:
        """Remove the checkpoint; in a folder, the folder as well."""
        store = self._store(read_only=False)
        # First, since without its arrays it would be a damaged one.
        sync(store.delete(DOCUMENT))
        self.remove_passes(but=None)
        sync(store.delete(ROOT))
        if not self._remote:
            with suppress(OSError):
                Path(self.path).rmdir()

    def _store(self, *, read_only: bool) -> Store:
        return open_url(self.path, read_only) if self._remote else LocalStore(self.path, read_only=read_only)

    def remove_passes(self, *, but: int | None) -> None:
        """Remove the arrays of all passes but one."""
        if self._remote:
            store = self._store(read_only=False)
            for name in sync(_listed(store)):
                if (match := _PASS.fullmatch(name)) and int(match[1]) != but:
                    sync(store.delete_dir(name))
            return
        for found in Path(self.path).glob("pass-*"):
            if (match := _PASS.fullmatch(found.name)) and int(match[1]) != but:
                shutil.rmtree(found, ignore_errors=True)


async def _listed(store: Store) -> list[str]:
    return [name.rstrip("/") async for name in store.list_dir("")]


def stripe_folder(number: int, part: int) -> str:
    """Where the arrays of a stripe are, in a checkpoint of a pass."""
    return f"pass-{number}/stripe-{part}"


def _checksum(values: NDArray[Any], before: int) -> int:
    """CRC-32C of an array behind what has the checksum `before`."""
    return crc32c(np.ascontiguousarray(values).view(np.uint8).data, before)


def _is_own(name: str) -> bool:
    return bool(_PASS.fullmatch(name)) or name.startswith(DOCUMENT) or name == ROOT


def digest(values: NDArray[np.float64] | None) -> str | None:
    """Tell a vector from others, by its bytes; None for none."""
    if values is None:
        return None
    return blake2b(np.ascontiguousarray(values).view(np.uint8).data, digest_size=16).hexdigest()
