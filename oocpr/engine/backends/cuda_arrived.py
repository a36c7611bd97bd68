"""A tile whose encoded bytes have just arrived on a device, made ready where they lie.

Words, directories and exceptions are used in place. Widths are moved to multiples of 16 bytes, and segments
are expanded, into rooms that all tiles of a stream share: kernels run in order, so the next tile may
overwrite what the last one has read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from oocpr.engine.backends.cuda_tile import Expanded, StreamArrays, device_tile, expand
from oocpr.store.layout import GROUP, blocks_of, parse_tile

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oocpr.engine.backends.cuda_compile import Device
    from oocpr.engine.backends.cuda_tile import DeviceTile
    from oocpr.store.layout import Stream

THREADS = 256


class Part(NamedTuple):
    """Where an array lies among the bytes of a tile."""

    offset: int
    items: int
    dtype: str


class StreamMap(NamedTuple):
    """Where the arrays of a packed stream lie; see :class:`oocpr.store.layout.Stream`."""

    size: int
    words: Part
    directory: Part
    wide: Part
    narrow: Part
    widths: Part


@dataclass(frozen=True)
class TileMap:
    """What is to be known of an encoded tile to use it on a device without its bytes at hand.

    Parameters
    ----------
    nbytes
        Length of the tile.
    edges, segments, nonempty, verbatim
        As in :class:`oocpr.store.layout.PackedTile`.
    lengths, starts, gaps
        Its streams.
    ranks
        Non-empty segments before each block of lengths.
    """

    nbytes: int
    edges: int
    segments: int
    nonempty: int
    verbatim: bool
    lengths: StreamMap
    starts: StreamMap
    gaps: StreamMap
    ranks: Part


def map_tile(encoded: NDArray[np.uint8]) -> TileMap:
    """Check an encoded tile and note where its parts are.

    Parameters
    ----------
    encoded
        uint8, shape (bytes,), beginning at a multiple of four.

    Raises
    ------
    DamagedError
        If the bytes are not those of a tile.

    Examples
    --------
    >>> from oocpr.store.packing import encode_tile
    >>> coded = encode_tile(np.array([0, 2, 5, 1], np.uint32), np.array([3, 0, 1]))
    >>> encoded = np.zeros(len(coded), np.uint8)
    >>> encoded[:] = np.frombuffer(coded, np.uint8)
    >>> found = map_tile(encoded)
    >>> found.edges, found.gaps.size, found.gaps.words.offset % 16
    (4, 4, 0)
    """
    packed = parse_tile(encoded)
    origin = encoded.ctypes.data

    def part(array: NDArray[Any]) -> Part:
        return Part(array.ctypes.data - origin if array.size else 0, int(array.size), array.dtype.str)

    def stream(of: Stream) -> StreamMap:
        return StreamMap(
            of.size, part(of.words), part(of.directory), part(of.wide), part(of.narrow), part(of.widths)
        )

    return TileMap(
        int(encoded.size), packed.edges, packed.segments, packed.nonempty, packed.verbatim,
        stream(packed.lengths), stream(packed.starts), stream(packed.gaps), part(packed.ranks),
    )  # fmt: skip


class ArrivalRoom:
    """Where tiles are made ready, one after the other.

    Parameters
    ----------
    device
        Where.
    edges, segments
        Most that a tile has.
    """

    def __init__(self, device: Device, edges: int, segments: int) -> None:
        xp = device.xp
        self._device = device
        nonempty, groups = min(edges, segments), -(-segments // GROUP)
        blocks = (blocks_of(segments), blocks_of(nonempty), blocks_of(edges))
        self._widths = [xp.empty(max(1, count) * GROUP, np.uint8) for count in blocks]
        self._segments = Expanded(
            begins=xp.empty(max(1, blocks_of(edges)) * GROUP, np.uint32),
            ranks=xp.empty(blocks_of(edges) + 1, np.uint32),
            starts=xp.empty(max(1, nonempty), np.uint32),
            filled=xp.empty(max(1, groups), np.uint32),
            filled_before=xp.empty(max(1, groups), np.uint32),
        )

    def make_ready(self, arrived: Any, found: TileMap, faults: Any) -> DeviceTile:
        """Use a tile where it has arrived; it is good until the next one is made ready.

        Parameters
        ----------
        arrived
            uint8 of the device, aligned to 16 bytes: the encoded tile.
        found
            What `map_tile` found in it.
        faults
            As for :func:`oocpr.engine.backends.cuda_tile.place_tile`.
        """
        streams = (found.lengths, found.starts, found.gaps)
        words = max(1, blocks_of(found.edges)) * GROUP
        most = max(words, *(blocks_of(stream.size) * GROUP for stream in streams))
        moves: list[Any] = []
        for stream, room in zip(streams, self._widths, strict=True):
            moves += (np.uint64(stream.widths.offset), np.uint32(stream.widths.items))
            moves += (np.uint32(blocks_of(stream.size) * GROUP), room)
        kernel = self._device.load("arrive.cu").get_function("make_room")
        kernel((-(-most // THREADS),), (THREADS,), (arrived, *moves, self._segments.begins, np.uint32(words)))
        lengths, starts, gaps = (
            self._arrays(arrived, stream, room) for stream, room in zip(streams, self._widths, strict=True)
        )
        ranks = _view(arrived, found.ranks)
        expand(
            self._device, found, lengths, ranks, None if found.verbatim else starts, self._segments, faults
        )
        return device_tile(found, gaps, self._segments)

    def _arrays(self, arrived: Any, stream: StreamMap, widths: Any) -> StreamArrays:
        _, words, directory, wide, narrow, _ = stream
        return (
            _view(arrived, words), _view(arrived, directory), _view(arrived, wide), _view(arrived, narrow),
            widths,
        )  # fmt: skip


def _view(arrived: Any, part: Part) -> Any:
    dtype = np.dtype(part.dtype)
    return arrived[part.offset : part.offset + part.items * dtype.itemsize].view(dtype)
