"""Groups on their way to a device: stored tiles are read into pinned memory and sent while kernels run.

Groups that stay on the device are expanded once; the tiles of those that stay in pinned memory are sent in
every pass; the others are read in every pass, into a ring of pinned buffers. On the device a group passes
through a ring of slots. Nothing here is waited for but a pinned buffer that is to be read into again, by the
thread that reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oocpr.engine.cuda.device import address_of, upload
from oocpr.engine.cuda.group import (
    COUNTS,
    TILE,
    DeviceGroup,
    GroupArrays,
    TileGroup,
    WidthRoom,
    map_tile,
)
from oocpr.engine.tiles.stream import PassTraffic, TileStream
from oocpr.engine.trace import COMPUTE, COPY, HOST, DeviceTrace
from oocpr.errors import DamagedError, ReplacedError
from oocpr.plan.tile_groups import TILE_PADDING

if TYPE_CHECKING:
    from oocpr.engine.cuda.device import Device, Event
    from oocpr.engine.tiles.stream import TileBytes
    from oocpr.engine.trace import Trace
    from oocpr.plan.tile_groups import GroupLayout


def check_sizes(layout: GroupLayout, tile: int, entry: NDArray[np.uint64]) -> None:
    """Raise DamagedError for a tile of other sizes than belong where it is."""
    found = tuple(entry.view(np.uint32)[COUNTS].tolist()[:2])
    belong = int(layout.edges[tile]), int(layout.first_rows[tile + 1] - layout.first_rows[tile]) + 1
    if found != belong:
        raise DamagedError(
            f"tile {tile} has {found[0]} edges in {found[1]} segments where {belong[0]} in {belong[1]} "
            "belong."
        )


class Room:
    """Memory of the device in which the tiles of groups lie."""

    def __init__(self, device: Device, nbytes: int) -> None:
        memory = device.xp.empty(nbytes + TILE_PADDING, np.uint8)
        self.bytes: Any = memory[-address_of(memory) % TILE_PADDING :]
        self.address = address_of(self.bytes)

    def close(self) -> None:
        """Free it, whoever has this."""
        self.bytes = None


class Slot(Room):
    """Room for a group that does not stay, and for the table of its tiles."""

    def __init__(self, device: Device, nbytes: int, tiles: int) -> None:
        super().__init__(device, nbytes)
        self._device = device
        self.table = device.xp.empty(tiles * TILE.itemsize, np.uint8)
        self._pinned_table = device.pinned(tiles * TILE.itemsize)
        self.free: Event | None = None  # once the group that was there is computed
        self.entries: list[NDArray[np.uint64]] = []  # of the tiles that were sent
        self.group: TileGroup | None = None  # once its table was sent
        self.sent: Event | None = None  # once all of it is there

    def open(self) -> None:
        """Take another group, whose tiles are sent once the one that is there is computed."""
        if self.free is not None:
            self._device.copy_stream_wait(self.free)
        self.entries = []

    def send_table(self, places: NDArray[np.int64]) -> None:
        """Send the table of the tiles, which were sent to such places.

        Behind what is sent ahead, it would have kernels wait for that.
        """
        if self.sent is not None:
            self.sent.synchronize()
        self.group = TileGroup.of(self.entries)
        self.group.entries["base"] = places + self.address
        there = self._pinned_table[: self.group.entries.nbytes]
        there[:] = self.group.entries.view(np.uint8)
        self.sent = self._device.upload_async(self.table[: there.size], there)


class PinnedGroup:
    """A group in pinned memory of the host, laid out as on the device."""

    def __init__(self, device: Device, nbytes: int, tiles: range) -> None:
        self.bytes = device.pinned(nbytes)
        self._tiles = tiles
        self._entries: dict[int, NDArray[np.uint64]] = {}

    def put(self, tile: int, place: int, encoded: NDArray[np.uint8], entry: NDArray[np.uint64]) -> None:
        """Copy a tile to its place."""
        self.bytes[place : place + encoded.size] = encoded
        self._entries[tile] = entry

    @property
    def entries(self) -> list[NDArray[np.uint64]]:
        """Of all its tiles, which are there."""
        return [self._entries[tile] for tile in self._tiles]

    @property
    def complete(self) -> bool:
        """Whether all tiles are there."""
        return len(self._entries) == len(self._tiles)


Arrived = tuple["NDArray[np.uint8]", "NDArray[np.uint64]"]
"""The encoded bytes of a tile, and its entry."""


class CudaTileStream:
    """The groups of one stripe, pass after pass; stands where a `TileStream` does.

    Parameters
    ----------
    source, groups
        Where stored tiles come from; numbers of the groups in their order.
    layout
        Which stored tiles are in the groups of the graph, and how large they are.
    keep
        Makes of a group that has been expanded what stays.
    faults
        uint32, shape (1,), of the device: receives what is wrong with a tile.
    trace
        Receives when each group was read, taken, sent and computed; None for nothing.

    The others are those of `open_stream`, see Streams.
    """

    def __init__(
        self,
        device: Device,
        source: TileBytes,
        groups: Sequence[int],
        *,
        layout: GroupLayout,
        on_device: frozenset[int],
        in_host: frozenset[int],
        slots: int,
        readers: int,
        buffers: int,
        keep: Callable[[DeviceGroup], None],
        faults: Any,
        trace: Trace | None = None,
        direct: bool = False,
        factor: float | None = None,
    ) -> None:
        self._device, self._layout, self._faults, self._keep = device, layout, faults, keep
        self._factor = 1.0 if factor is None else factor
        self._groups, self._on_device = groups, on_device
        self._group_of = {tile: group for group in groups for tile in layout.tiles(group)}
        self._passing = [group for group in groups if group not in on_device]
        self._staying: dict[int, DeviceGroup] = {}
        self._pinned: dict[int, PinnedGroup] = {}
        # By the address of a pinned buffer, which is read until then.
        self._sent: dict[int, Event] = {}
        sent = self._sent
        with device:
            self._arena, begins = self._room_for_all(sorted(on_device))
            self._slots: list[Slot] = []
            self._room: GroupArrays | None = None
            self._widths: WidthRoom | None = None
            if self._passing:
                largest, sizes = int(layout.room[self._passing].max()), layout.largest(self._passing)
                count = max(1, min(slots, len(self._passing)))
                self._slots = [Slot(device, largest, sizes.tiles) for _ in range(count)]
                self._room = GroupArrays.allocate(device, sizes)
                self._widths = WidthRoom(device, sizes)
        # Passing groups take the slots in turns: how many were computed, sent whole, and have a slot.
        self._done = self._whole = self._opened = 0
        self._entries: list[NDArray[np.uint64]] = []  # of the group that comes next, if it stays
        staying = frozenset(
            tile for group in groups if group in on_device or group in in_host for tile in layout.tiles(group)
        )
        examine = partial(
            _examine, device, layout, self._group_of, self._arena, begins, in_host, self._pinned, sent,
            Lock(), factor is not None,
        )  # fmt: skip

        def prepare(tile: int, arrived: Any, stays: bool) -> Any:
            return arrived if stays else examine(tile, arrived)

        def wait_for(buffer: NDArray[np.uint8]) -> None:
            if event := sent.pop(buffer.ctypes.data, None):
                event.synchronize()

        self._host = TileStream(
            source, list(self._group_of), staying, buffers, readers, prepare, device.pinned, trace, direct,
            examine=examine, wait_for=wait_for, label=self._group_of.__getitem__,
        )  # fmt: skip
        self._trace = trace
        self._device_trace = None if trace is None else DeviceTrace(device, trace)

    def _room_for_all(self, groups: list[int]) -> tuple[Room | None, dict[int, int]]:
        """Room for groups that stay, and where each begins in it."""
        if not groups:
            return None, {}
        rooms = self._layout.room[groups]
        begins = (rooms.cumsum() - rooms).tolist()
        return Room(self._device, int(rooms.sum())), dict(zip(groups, begins, strict=True))

    def run(self, compute: Callable[[int, Any], None]) -> PassTraffic:
        """See Tiles; returns before it is done, the first groups of the next pass under way."""
        if self.all_resident and len(self._staying) == len(self._on_device):
            for group in self._groups:
                self._compute(group, compute)
            return PassTraffic(0, 0.0)

        def use(tile: int, arrived: Arrived) -> None:
            group = self._group_of[tile]
            last = tile == self._layout.tiles(group)[-1]
            with nullcontext() if self._trace is None else self._trace.span(HOST, f"tile {group}"):
                if group in self._on_device:
                    if group not in self._staying:
                        self._entries.append(arrived[1])
                elif group not in self._pinned:
                    self._send(tile, arrived)
                if last:
                    self._compute(group, compute)

        return self._host.run(use)

    @property
    def all_resident(self) -> bool:
        """See Tiles."""
        return self._host.all_resident

    @property
    def recordable(self) -> bool:
        """Whether all later passes are alike: all groups stay on the device, and no moments are noted."""
        return self._trace is None and not self._passing

    def close(self) -> None:
        """See Tiles; waits until nothing is under way to the memory that is freed."""
        self._device.synchronize()
        if self._device_trace is not None:
            self._device_trace.finish()
        self._host.close()
        if self._arena is not None:
            self._arena.close()
        for kept in (self._pinned, self._slots, self._staying, self._entries, self._sent):
            kept.clear()
        self._arena = self._room = self._widths = self._faults = None

    def _compute(self, group: int, compute: Callable[[int, Any], None]) -> None:
        if group in self._on_device:
            if group not in self._staying:
                self._staying[group] = self._expanded_to_stay()
            with self._span(COMPUTE, group):
                compute(group, self._staying[group])
            return
        self._send_ahead()
        device, room, widths = self._device, self._room, self._widths
        assert room is not None, "a group that does not stay has room"
        assert widths is not None, "and its widths have"
        slot = self._slots[self._done % len(self._slots)]
        assert slot.group is not None, "its tiles were sent"
        assert slot.sent is not None, "and its table"
        there = DeviceGroup(slot.group, replace(room, table=slot.table), self._factor)
        with device:
            device.wait_for(slot.sent)
            with self._span(COMPUTE, group):
                there.expand(device, widths, self._faults)
        with self._span(COMPUTE, group):
            compute(group, there)
        with device:
            slot.free = device.record_event()
        self._done += 1
        self._send_ahead()

    def _expanded_to_stay(self) -> DeviceGroup:
        device, tiles = self._device, TileGroup.of(self._entries)
        self._entries = []
        with device:
            there = DeviceGroup(tiles, GroupArrays.allocate(device, tiles.sizes), self._factor)
            upload(there.arrays.table, tiles.entries.view(np.uint8))
            # All tiles of the group have been sent before.
            device.wait_for(device.record_event(copy_stream=True))
            there.expand(device, WidthRoom(device, tiles.sizes), self._faults)
            self._keep(there)
        return there

    def _send(self, tile: int, arrived: Arrived) -> None:
        """Send a tile of the passing group that is computed next."""
        encoded, entry = arrived
        slot = self._open(self._done)
        slot.entries.append(entry)
        place = int(self._layout.places[tile])
        with self._device, self._span(COPY, self._group_of[tile], encoded.size):
            self._sent[encoded.ctypes.data] = self._device.upload_async(
                slot.bytes[place : place + encoded.size], encoded
            )
        if tile == self._layout.tiles(self._group_of[tile])[-1]:
            self._send_table(self._done, self._group_of[tile])

    def _send_ahead(self) -> None:
        """Send groups from pinned memory to all slots that are free, or will be before they arrive."""
        for number in range(max(self._whole, self._done), self._done + len(self._slots)):
            group = self._passing[number % len(self._passing)]
            pinned = self._pinned.get(group)
            if pinned is None or not pinned.complete:
                return
            slot = self._open(number)
            slot.entries = pinned.entries
            with self._device, self._span(COPY, group, pinned.bytes.size):
                self._device.upload_async(slot.bytes[: pinned.bytes.size], pinned.bytes)
            self._send_table(number, group)

    def _send_table(self, number: int, group: int) -> None:
        tiles = self._layout.tiles(group)
        with self._device:
            slot = self._slots[number % len(self._slots)]
            slot.send_table(self._layout.places[tiles.start : tiles.stop])
        self._whole = number + 1

    def _open(self, number: int) -> Slot:
        slot = self._slots[number % len(self._slots)]
        if self._opened <= number:
            with self._device:
                slot.open()
            self._opened = number + 1
        return slot

    def _span(self, track: str, group: int, nbytes: int = 0) -> AbstractContextManager[None]:
        trace = self._device_trace
        return nullcontext() if trace is None else trace.span(track, f"tile {group}", nbytes)


# Without a reference to a stream: in a cycle the tiles would be there until somebody looks for garbage, long
# after the run.
def _examine(
    device: Device,
    layout: GroupLayout,
    group_of: dict[int, int],
    arena: Room | None,
    begins: dict[int, int],
    in_host: frozenset[int],
    pinned: dict[int, PinnedGroup],
    sent: dict[int, Event],
    lock: Lock,
    weighted: bool,
    tile: int,
    encoded: NDArray[np.uint8],
) -> Arrived:
    """Check a tile that was read, and bring it to where it stays, if it does; any thread may."""
    entry = map_tile(encoded, weighted=weighted)
    check_sizes(layout, tile, entry)
    if encoded.size > layout.limits[tile]:
        # It would lie on what comes behind it.
        raise ReplacedError(f"tile {tile} has {encoded.size} bytes and had at most {layout.limits[tile]}.")
    group, place = group_of[tile], int(layout.places[tile])
    if group in begins:
        assert arena is not None, "there is room for what stays"
        at = begins[group] + place
        entry[0] = arena.address + at
        with device:
            sent[encoded.ctypes.data] = device.upload_async(arena.bytes[at : at + encoded.size], encoded)
    elif group in in_host:
        with lock:
            if group not in pinned:
                pinned[group] = PinnedGroup(device, int(layout.room[group]), layout.tiles(group))
        pinned[group].put(tile, place, encoded, entry)
    return encoded, entry
