"""Stored tiles joined on a device: it decodes them and packs what they hold as one.

A thread for each processor reads, checks and decodes what is little of a tile, its lengths; the columns are
decoded where they will be packed.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from oocpr.engine.cuda.arena import Slab
from oocpr.engine.cuda.device import fetch
from oocpr.engine.cuda.encoded_tile import TileMap, map_tile
from oocpr.engine.cuda.staging import ArrivalRoom
from oocpr.engine.cuda.tile import check_columns, raise_found
from oocpr.engine.cuda.tile_encoder import TileEncoder
from oocpr.engine.tiles.host_merge import join_lengths
from oocpr.plan.merge_memory import JOINING_BUFFERS
from oocpr.store.codec.layout import parse_tile
from oocpr.store.codec.tile_decoder import decode_lengths
from oocpr.system import usable_cores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from oocpr.engine.cuda.device import Device
    from oocpr.engine.tiles.stream import TileBytes


class DeviceJoins:
    """Joins tiles on a device; see :class:`oocpr.engine.tiles.merged.Joins`.

    Parameters
    ----------
    open_device
        Returns the device; called when the first tiles are joined.
    tiles
        Encoded tiles as stored.
    nodes, edges
        Of the graph.
    tile_edges, segments
        Most that a stored tile has.
    slab_bytes
        Of the device, for joining a tile.
    at_once
        Joined tiles that are made at a time.
    """

    def __init__(
        self,
        open_device: Callable[[], Device],
        tiles: TileBytes,
        *,
        nodes: int,
        edges: int,
        tile_edges: int,
        segments: int,
        slab_bytes: int,
        at_once: int = 1,
    ) -> None:
        self._open = open_device
        self._tiles = tiles
        self._nodes, self._edges = nodes, edges
        self._tile_edges, self._segments = tile_edges, segments
        self._slab_bytes = slab_bytes
        self._device: Device | None = None
        self._opening = Lock()
        self._rooms: SimpleQueue[_Room | None] = SimpleQueue()
        for _ in range(at_once):
            self._rooms.put(None)

    def join(
        self, stored: range, rows: NDArray[np.int64], out: NDArray[np.uint8], *, direct: bool = False
    ) -> int:
        """See Joins."""
        room = self._rooms.get()
        try:
            room = room or self._make_room()
            return self._join(room, stored, rows, out, direct)
        finally:
            self._rooms.put(room)

    def close(self) -> None:
        """See Joins; for the thread that joined the last tile, while no other joins."""
        for _ in range(self._rooms.qsize()):
            self._rooms.get()
            self._rooms.put(None)
        if self._device is not None:
            # What is held back of rooms would be cut up, and lost to the next ones.
            self._device.limit(None)

    def _make_room(self) -> _Room:
        with self._opening:
            self._device = self._device or self._open()
        return _Room(self._device, self._tiles.max_bytes, self._tile_edges, self._segments, self._slab_bytes)

    def _join(
        self, room: _Room, stored: range, rows: NDArray[np.int64], out: NDArray[np.uint8], direct: bool
    ) -> int:
        device = room.device
        room.slab.clear()
        lengths: list[NDArray[np.uint32]] = []
        edges = 0
        with device.apart(), ThreadPoolExecutor(room.threads, thread_name_prefix="oocpr-join") as pool:
            columns = room.slab.empty(min(self._edges, len(stored) * self._tile_edges), np.uint32)
            left = iter(stored)

            def ahead(buffers: Iterable[NDArray[np.uint8]]) -> list[Future[_Found]]:
                # Buffers first, so that no tile is lost where there are none.
                return [pool.submit(self._read, tile, buffer, direct) for buffer, tile in zip(buffers, left)]  # noqa: B905

            waiting = deque(ahead(room.buffers))
            while waiting:
                found = waiting.popleft().result()
                room.decode(found, self._nodes, columns[edges : edges + found.map.edges])
                lengths.append(found.lengths)
                edges += found.map.edges
                waiting.extend(ahead([found.buffer]))
            faults = int(fetch(room.faults)[0])
            if faults:
                room.faults[:] = 0
            raise_found(faults)
        place = partial(_place, columns[:edges])
        coded = room.encoder.encode(
            edges, join_lengths(stored, rows, lengths), place, lambda size: out[:size], room.stage, room.slab
        )
        return int(coded.size)

    def _read(self, tile: int, buffer: NDArray[np.uint8], direct: bool) -> _Found:
        encoded = buffer[: self._tiles.read_into(tile, buffer, direct=direct)]
        return _Found(buffer, map_tile(encoded), decode_lengths(parse_tile(encoded)))


def _place(columns: Any, values: Any) -> None:
    values[...] = columns


class _Found(NamedTuple):
    """A stored tile that was read."""

    buffer: NDArray[np.uint8]
    map: TileMap
    lengths: NDArray[np.uint32]


class _Room:
    """What joining works in."""

    def __init__(self, device: Device, most: int, edges: int, segments: int, slab_bytes: int) -> None:
        self.device = device
        self.threads = min(JOINING_BUFFERS, usable_cores())
        self.buffers = [device.pinned(most) for _ in range(JOINING_BUFFERS)]
        self.encoder = TileEncoder(device)
        self.slab = Slab(device, slab_bytes)
        with device:
            self.faults = device.xp.zeros(1, np.uint32)
            self._slot = device.xp.empty(most, np.uint8)
            self._arrivals = ArrivalRoom(device, edges, segments)
        self._staged = np.zeros(0, np.uint8)
        # What was made above was made on another stream than those of the threads that join.
        device.synchronize()

    def decode(self, found: _Found, nodes: int, columns: Any) -> None:
        """Decode a tile's columns on the device; its buffer may be read into again then."""
        arrived = self._slot[: found.map.nbytes]
        self.device.hold_beside(self.device.mark())
        sent = self.device.send_beside(arrived, found.buffer[: found.map.nbytes])
        self.device.wait_for(sent)
        ready = self._arrivals.make_ready(self._arrivals.land(arrived, found.map), self.faults)
        check_columns(self.device, ready, nodes, self.faults, columns)
        sent.synchronize()

    def stage(self, nbytes: int) -> NDArray[np.uint8]:
        """Pinned memory, which a device fills fastest."""
        if self._staged.size < nbytes:
            self._staged = self.device.pinned(nbytes * 3 // 2)
        return self._staged[:nbytes]
