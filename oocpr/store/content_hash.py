"""The identity of a stored graph: a hash of everything that its ranks depend on; see `oocpr.store.format`."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import TYPE_CHECKING

from crc32c import crc32c
from zarr.abc.store import SuffixByteRequest
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

from oocpr.store.format import IDENTIFIED, IDENTITY_DIGITS

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence

    from zarr.abc.store import Store

    from oocpr.store.format import Attributes
    from oocpr.store.zarr_arrays import StoredArray

_CRC_BYTES = 4
_READ_AT_ONCE = 64


def content_identity(
    open_array: Callable[[str], StoredArray], attributes: Attributes, paths: Container[str]
) -> str:
    """Compute the identity of a graph from the checksums behind its chunks.

    Returns 32 hexadecimal digits. Raises DamagedError if a chunk is missing.
    """
    facts = [attributes.nodes, attributes.edges, attributes.weighted, attributes.tile_edges]
    digest = hashlib.sha256(f"{json.dumps(facts)}\n".encode())
    for name in IDENTIFIED:
        if name in paths:
            checksums = _checksums(open_array(name))
            digest.update(f"{name} {len(checksums) // _CRC_BYTES}\n".encode())
            digest.update(checksums)
    return digest.hexdigest()[:IDENTITY_DIGITS]


def _checksums(array: StoredArray) -> bytes:
    """CRC-32C of all chunks of an array, 4 bytes each."""
    keys = [array.key(chunk) for chunk in range(-(-array.size // array.chunk))]
    # Chunks without a checksum are read whole.
    has_checksums = array.codecs[-1] == "crc32c"
    found: list[bytes | None] = []
    for first in range(0, len(keys), _READ_AT_ONCE):
        found += sync(_read(array.store, keys[first : first + _READ_AT_ONCE], tails=has_checksums))
    if None in found:
        raise array.damaged(f"{keys[found.index(None)]} is missing")
    parts = [part for part in found if part is not None]
    if not has_checksums:
        parts = [crc32c(part).to_bytes(_CRC_BYTES, "little") for part in parts]
    return b"".join(parts)


async def _read(store: Store, keys: Sequence[str], *, tails: bool) -> list[bytes | None]:
    """Bytes under some keys, or the last 4 of each; None if there are none."""
    wanted = SuffixByteRequest(_CRC_BYTES) if tails else None
    gets = (store.get(key, default_buffer_prototype(), wanted) for key in keys)
    return [None if value is None else value.to_bytes() for value in await asyncio.gather(*gets)]
