"""The Zarr codecs ``oocpr.packed_ints`` and ``oocpr.segments``, which see the values of a chunk only.

Chunks of 32-bit columns that oocpr writes itself have the rows of the matrix; if Zarr writes them, ascending
runs stand in for rows. Both are read.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from zarr.abc.codec import ArrayBytesCodec
from zarr.registry import register_codec

from oocpr.errors import DamagedError
from oocpr.store.codec.bitpacking import decode_offsets, encode_offsets
from oocpr.store.codec.layout import KIND_OFFSETS, KIND_RAW, KIND_TILE, kind_of, new_header
from oocpr.store.codec.mantissa_segments import encode_segments, join_segments
from oocpr.store.codec.tiles import decode_tile, encode_runs
from oocpr.store.format import CODEC_NAME, SEGMENTS_NAME

if TYPE_CHECKING:
    from zarr.core.array_spec import ArraySpec
    from zarr.core.buffer import Buffer, NDBuffer
    from zarr.core.common import JSON

_RAW_HEADER = 16


class _ChunkCodec(ArrayBytesCodec):
    """A codec without configuration of chunks that may have fewer values than their array's chunks."""

    is_fixed_size = False
    name: ClassVar[str]

    @abstractmethod
    def _values(self, coded: NDArray[np.uint8]) -> NDArray[Any]: ...

    @abstractmethod
    def _bytes(self, values: NDArray[Any]) -> bytes: ...

    @classmethod
    def from_dict(cls, data: dict[str, JSON]) -> Self:
        """Make the codec of a metadata document; it has no configuration."""
        if data.get("name") != cls.name or data.get("configuration"):
            raise ValueError(f"codec {data!r}: expected {cls.name!r} without configuration")
        return cls()

    def to_dict(self) -> dict[str, JSON]:
        """Describe the codec for a metadata document."""
        return {"name": self.name}

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: ArraySpec) -> int:
        """Refuse: the size depends on the values."""
        raise NotImplementedError

    async def _decode_single(self, chunk_data: Buffer, chunk_spec: ArraySpec) -> NDBuffer:
        coded = np.asarray(chunk_data.as_numpy_array()).view(np.uint8)
        values = await asyncio.to_thread(self._values, coded)
        dtype = chunk_spec.dtype.to_native_dtype()
        size = int(np.prod(chunk_spec.shape))
        if values.dtype != dtype or values.size > size:
            raise DamagedError(f"A chunk holds {values.size} {values.dtype} where {size} {dtype} belong.")
        if values.size < size:
            values = np.concatenate([values, np.full(size - values.size, chunk_spec.fill_value, dtype)])
        shaped: Any = values.reshape(chunk_spec.shape)
        return chunk_spec.prototype.nd_buffer.from_ndarray_like(shaped)

    async def _encode_single(self, chunk_data: NDBuffer, chunk_spec: ArraySpec) -> Buffer | None:
        values = np.ascontiguousarray(chunk_data.as_numpy_array()).ravel()
        # Zarr fills the last chunk up; behind offsets the fill values would be a step down.
        own = np.flatnonzero(values != chunk_spec.fill_value)
        values = values[: own[-1] + 1 if own.size else 0]
        coded = await asyncio.to_thread(self._bytes, values)
        return chunk_spec.prototype.buffer.from_bytes(coded)


@dataclass(frozen=True)
class PackedInts(_ChunkCodec):
    """Codec of sorted integers: uint32 in ascending runs, int64 that never decrease; others are stored raw.

    >>> import zarr
    >>> array = zarr.create_array({}, shape=(4,), dtype="int64", serializer=PackedInts(), compressors=None)
    >>> array[:] = [0, 2, 2, 5]
    >>> array[1:3].tolist()
    [2, 2]
    """

    name: ClassVar[str] = CODEC_NAME

    def _values(self, coded: NDArray[np.uint8]) -> NDArray[Any]:
        return decode_chunk(coded)

    def _bytes(self, values: NDArray[Any]) -> bytes:
        return encode_chunk(values)


@dataclass(frozen=True)
class MantissaSegments(_ChunkCodec):
    """Codec of float64 values as segments of 16 bits, the heads of all values first."""

    name: ClassVar[str] = SEGMENTS_NAME

    def _values(self, coded: NDArray[np.uint8]) -> NDArray[Any]:
        return join_segments(coded)

    def _bytes(self, values: NDArray[Any]) -> bytes:
        if values.dtype != np.float64:
            raise TypeError(f"codec {SEGMENTS_NAME!r}: expected float64, not {values.dtype}")
        return encode_segments(values.astype(np.float64, copy=False)).tobytes()


def register_codecs() -> None:
    """Let Zarr know the codecs if the package is on the path but its entry points are not installed."""
    for codec in (PackedInts, MantissaSegments):
        register_codec(codec.name, codec)


def encode_chunk(values: NDArray[Any]) -> bytes:
    """Encode a chunk of integers or floats of 1 to 8 bytes by its values alone."""
    raw_size = _RAW_HEADER + values.nbytes
    coded = None
    if values.size and values.dtype == np.uint32:
        coded = encode_runs(values)
    elif values.size and values.dtype == np.int64:
        coded = encode_offsets(values)
    if coded is not None and len(coded) < raw_size:
        return coded
    header = new_header(_RAW_HEADER // 4, KIND_RAW)
    header[2] = values.size
    header[3] = int.from_bytes(values.dtype.newbyteorder("<").str[1:].encode(), "little")
    return header.tobytes() + values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()


def decode_chunk(buf: NDArray[np.uint8]) -> NDArray[Any]:
    """Decode a chunk of any kind to its values; DamagedError if the bytes are not those of a chunk."""
    kind = kind_of(buf)
    if kind == KIND_RAW:
        return _decode_raw(buf)
    if kind == KIND_OFFSETS:
        return decode_offsets(buf)
    if kind & 0xFF == KIND_TILE:
        return decode_tile(buf)[0]
    raise DamagedError(f"A chunk has kind {kind:#x}, which format 1 does not know.")


def _decode_raw(buf: NDArray[np.uint8]) -> NDArray[Any]:
    try:
        count, code = np.frombuffer(buf[8:_RAW_HEADER].tobytes(), "<u4").tolist()
        dtype = np.dtype("<" + code.to_bytes(4, "little").rstrip(b"\0").decode("ascii"))
        if dtype.kind not in "iuf" or buf.size != _RAW_HEADER + count * dtype.itemsize:
            raise ValueError(f"{buf.size} bytes")
    except (TypeError, ValueError) as error:
        raise DamagedError(f"A raw chunk contradicts its header: {error}.") from error
    return np.frombuffer(buf[_RAW_HEADER:].tobytes(), dtype).astype(dtype.newbyteorder("="), copy=False)
