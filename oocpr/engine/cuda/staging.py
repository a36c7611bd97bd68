"""A tile whose encoded bytes have just arrived on a device, made ready where they lie.

Words, directories and exceptions are used in place. Widths are moved to multiples of 16 bytes, and segments
are expanded, into rooms that all tiles of a stream share: kernels run in order, so the next tile may
overwrite what the last one has read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from oocpr.engine.cuda.tile import DeviceWeights, Expanded, StreamArrays, device_tile, expand
from oocpr.store.codec.layout import GROUP, blocks_of

if TYPE_CHECKING:
    from oocpr.engine.cuda.device import Device
    from oocpr.engine.cuda.encoded_tile import Part, StreamMap, TileMap
    from oocpr.engine.cuda.tile import DeviceTile

THREADS = 256


class Landed(NamedTuple):
    """A tile in a slot, as kernels take it.

    Attributes
    ----------
    found
        What is in it.
    grid, moves
        How its widths are moved.
    lengths, ranks, starts
        Its segments, packed; see :func:`oocpr.engine.cuda.tile.expand`.
    tile
        What it is once it is ready.
    """

    found: TileMap
    grid: tuple[int]
    moves: tuple[Any, ...]
    lengths: StreamArrays
    ranks: Any
    starts: StreamArrays | None
    tile: DeviceTile


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
        # Zeros, for a damaged tile may leave them as they are and is found only once it has been swept.
        self._segments = Expanded(
            begins=xp.zeros(max(1, blocks_of(edges)) * GROUP, np.uint32),
            ranks=xp.zeros(blocks_of(edges) + 1, np.uint32),
            starts=xp.zeros(max(1, nonempty), np.uint32),
            filled=xp.zeros(max(1, groups), np.uint32),
            filled_before=xp.zeros(max(1, groups), np.uint32),
        )

    def land(self, arrived: Any, found: TileMap, factor: float | None = None) -> Landed:
        """Find the parts of a tile where it arrives, which are the same whenever it arrives there.

        Parameters
        ----------
        arrived
            uint8 of the device, aligned to 16 bytes: where the encoded tile comes to lie.
        found
            What `map_tile` found in it.
        factor
            What weights are multiplied by; None where there are none.
        """
        streams = (found.lengths, found.starts, found.gaps)
        words = max(1, blocks_of(found.edges)) * GROUP
        most = max(words, *(blocks_of(stream.size) * GROUP for stream in streams))
        moves: list[Any] = []
        for stream, room in zip(streams, self._widths, strict=True):
            moves += (np.uint64(stream.widths.offset), np.uint32(stream.widths.items))
            moves += (np.uint32(blocks_of(stream.size) * GROUP), room)
        lengths, starts, gaps = (
            self._arrays(arrived, stream, room) for stream, room in zip(streams, self._widths, strict=True)
        )
        weights = None
        if found.weights is not None and factor is not None:
            parts = (_view(arrived, part) if part.items else None for part in found.weights.parts)
            weights = DeviceWeights(tuple(parts), found.weights.size, factor)
        return Landed(
            found,
            (-(-most // THREADS),),
            (arrived, *moves, self._segments.begins, np.uint32(words)),
            lengths,
            _view(arrived, found.ranks),
            None if found.verbatim else starts,
            device_tile(found, gaps, self._segments, weights),
        )

    def make_ready(self, landed: Landed, faults: Any) -> DeviceTile:
        """Use a tile that has arrived; it is good until the next one is made ready.

        Parameters
        ----------
        landed
            As `land` gave it.
        faults
            As for :func:`oocpr.engine.cuda.tile.place_tile`.
        """
        kernel = self._device.load("arrive.cu").get_function("make_room")
        kernel(landed.grid, (THREADS,), landed.moves)
        expand(
            self._device, landed.found, landed.lengths, landed.ranks, landed.starts, self._segments, faults
        )
        return landed.tile

    def _arrays(self, arrived: Any, stream: StreamMap, widths: Any) -> StreamArrays:
        _, words, directory, wide, narrow, _ = stream
        return (
            _view(arrived, words), _view(arrived, directory), _view(arrived, wide), _view(arrived, narrow),
            widths,
        )  # fmt: skip


def _view(arrived: Any, part: Part) -> Any:
    dtype = np.dtype(part.dtype)
    return arrived[part.offset : part.offset + part.items * dtype.itemsize].view(dtype)
