"""Groups on their way to a device: stored tiles are read into pinned memory and sent while kernels run.

Groups that stay on the device are expanded once; the tiles of those that stay in pinned memory are sent in
every pass; the others are read in every pass, into a ring of pinned buffers. On the device a group passes
through a ring of slots. Nothing here is waited for but a pinned buffer that is to be read into again, by the
thread that reads.

Several tiles of a group are read and sent as one, a run, laid out as on the device: with 2 MB per tile and
eight threads it is Python's lock that readers wait for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

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
    map_tiles,
)
from oocpr.engine.tiles.source import run_reader
from oocpr.engine.tiles.stream import PassTraffic, ReadAhead, ReadRing, returned
from oocpr.engine.trace import COMPUTE, COPY, HOST, READ, DeviceTrace
from oocpr.errors import DamagedError
from oocpr.plan.device_memory import MIN_OVERLAP_SLOTS
from oocpr.plan.tile_groups import TILE_PADDING

if TYPE_CHECKING:
    from oocpr.engine.cuda.device import Device, Event
    from oocpr.engine.tiles.stream import TileBytes
    from oocpr.engine.trace import Trace
    from oocpr.plan.tile_groups import GroupLayout


def check_sizes(layout: GroupLayout, tiles: range, entries: NDArray[np.uint64]) -> None:
    """Raise DamagedError for a tile of other sizes than belong where it is."""
    belong = layout.counts[tiles.start : tiles.stop]
    found = entries.view(np.uint32)[:, COUNTS][:, :2]
    if not np.array_equal(found, belong):
        tile = int((found != belong).any(axis=1).argmax())
        raise DamagedError(
            f"tile {tiles[tile]} has {found[tile, 0]} edges in {found[tile, 1]} segments where "
            f"{belong[tile, 0]} in {belong[tile, 1]} belong."
        )


class Room:
    """Memory of the device in which the tiles of groups lie."""

    def __init__(self, device: Device, nbytes: int) -> None:
        memory = device.receiving(nbytes + TILE_PADDING)
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
        self.table = device.receiving(tiles * TILE.itemsize)
        self._pinned_table = device.pinned(tiles * TILE.itemsize)
        self.free: Event | None = None  # once the group that was there is computed
        self.entries: list[NDArray[np.uint64]] = []  # of the tiles that were sent, one run after the other
        self.group: TileGroup | None = None  # once its table was sent
        self.sent: Event | None = None  # once all of it is there

    def open(self) -> None:
        """Take another group, whose tiles are sent once the one that is there is computed."""
        if self.free is not None:
            self._device.copy_stream_wait(self.free)
        self.entries = []

    def send_table(self, group: TileGroup, places: NDArray[np.int64]) -> None:
        """Send the table of the tiles, which were sent to such places.

        Behind what is sent ahead, it would have kernels wait for that.
        """
        if self.sent is not None:
            self.sent.synchronize()
        self.group = group
        there = self._pinned_table[: group.entries.nbytes]
        there[:] = group.entries.view(np.uint8)
        there.view(TILE)["base"] = places + self.address
        self.sent = self._device.upload_async(self.table[: there.size], there)


class TileRun(NamedTuple):
    """A run of tiles that was read: bytes of the store, the buffer, the run as it lies there, and entries."""

    bytes_read: int
    buffer: int
    encoded: NDArray[np.uint8]
    entries: NDArray[np.uint64]


class PinnedGroup:
    """A group in pinned memory of the host, laid out as on the device."""

    def __init__(self, device: Device, nbytes: int, runs: Sequence[range]) -> None:
        self.bytes = device.pinned(nbytes)
        self._runs = runs
        self._entries: dict[range, NDArray[np.uint64]] = {}

    def put(self, tiles: range, place: int, run: TileRun) -> None:
        """Copy a run to its place."""
        self.bytes[place : place + run.encoded.size] = run.encoded
        self._entries[tiles] = run.entries

    @cached_property
    def tiles(self) -> TileGroup:
        """All its tiles, which are there."""
        return TileGroup.of([self._entries[tiles] for tiles in self._runs])

    @property
    def complete(self) -> bool:
        """Whether all tiles are there."""
        return len(self._entries) == len(self._runs)


class RunReader:
    """Reads runs of tiles, checks them, and brings them to where they stay, if they do; any thread may.

    Parameters
    ----------
    runs
        Runs of each group, in their order.
    begins, arena
        Where each group that stays on the device begins, in which room.
    slots
        Buffers that runs are read into.

    It has no reference to a stream: in a cycle the tiles would be there until somebody looks for garbage,
    long after the run.
    """

    def __init__(
        self,
        device: Device,
        source: TileBytes,
        layout: GroupLayout,
        runs: dict[int, list[range]],
        *,
        begins: dict[int, int],
        arena: Room | None,
        in_host: frozenset[int],
        slots: int,
        weighted: bool,
        direct: bool,
        trace: Trace | None,
    ) -> None:
        self._device, self._layout, self._runs = device, layout, runs
        self._read = run_reader(source, direct=direct)
        self._begins, self._arena, self._in_host = begins, arena, in_host
        self._weighted, self._trace = weighted, trace
        self._lock = Lock()
        self.pinned: dict[int, PinnedGroup] = {}
        self.sent: list[Event | None] = [None] * slots  # each buffer, which is read by the device until then

    def read(self, item: tuple[int, range], buffer: NDArray[np.uint8], slot: int) -> TileRun:
        """Read tiles of a group into a buffer, each to its place."""
        group, tiles = item
        if event := self.sent[slot]:
            event.synchronize()
        layout = self._layout
        places = layout.places[tiles.start : tiles.stop]
        begins, limits = places - places[0], layout.limits[tiles.start : tiles.stop]
        trace = self._trace
        with nullcontext() if trace is None else trace.span(f"{READ}, buffer {slot}", f"tile {group}"):
            sizes = self._read(tiles, buffer, begins, limits)
        entries = map_tiles(buffer, begins, sizes, weighted=self._weighted)
        check_sizes(layout, tiles, entries)
        run = TileRun(int(sizes.sum()), slot, buffer[: begins[-1] + sizes[-1]], entries)
        if group in self._begins:
            self._send_to_stay(run, places + self._begins[group])
        elif group in self._in_host:
            with self._lock:
                if group not in self.pinned:
                    nbytes = int(layout.room[group])
                    self.pinned[group] = PinnedGroup(self._device, nbytes, self._runs[group])
            self.pinned[group].put(tiles, int(places[0]), run)
        return run

    def _send_to_stay(self, run: TileRun, places: NDArray[np.int64]) -> None:
        arena, first = self._arena, int(places[0])
        assert arena is not None, "there is room for what stays"
        run.entries[:, 0] = places + arena.address
        with self._device:
            there = arena.bytes[first : first + run.encoded.size]
            self.sent[run.buffer] = self._device.upload_async(there, run.encoded)


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
    overlap
        Whether a group that passes is there until the next one has been computed, if there are slots.
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
        overlap: bool = False,
        trace: Trace | None = None,
        direct: bool = False,
        factor: float | None = None,
    ) -> None:
        self._device, self._layout, self._faults, self._keep = device, layout, faults, keep
        self._factor = 1.0 if factor is None else factor
        self._groups, self._on_device = groups, on_device
        # Directly, files are read to the beginning of a page each.
        self._runs = {group: layout.runs(group, one_by_one=direct) for group in groups}
        self._passing = [group for group in groups if group not in on_device]
        self._staying: dict[int, DeviceGroup] = {}
        with device:
            self._arena, begins = self._room_for_all(sorted(on_device))
            self._slots: list[Slot] = []
            self._rooms: list[GroupArrays] = []  # of groups that are computed with, in turns
            self._widths: WidthRoom | None = None
            if self._passing:
                largest, sizes = int(layout.room[self._passing].max()), layout.largest(self._passing)
                count = max(1, min(slots, len(self._passing)))
                self._slots = [Slot(device, largest, sizes.tiles) for _ in range(count)]
                rooms = 2 if overlap and count >= MIN_OVERLAP_SLOTS else 1
                # Each slot has a table of its own.
                self._rooms = [replace(GroupArrays.allocate(device, sizes), table=None) for _ in range(rooms)]
                self._widths = WidthRoom(device, sizes)
        # Passing groups that are still computed with when the next one is.
        self._held = max(0, len(self._rooms) - 1)
        # Passing groups take the slots in turns: how many were computed, sent whole, and have a slot.
        self._done = self._whole = self._opened = 0
        self._entries: list[NDArray[np.uint64]] = []  # of the group that comes next, if it stays
        run_bytes = layout.run_bytes
        if direct:
            buffers, readers, run_bytes = layout.ring_of_tiles(buffers, readers)
        self._reader = RunReader(
            device, source, layout, self._runs, begins=begins, arena=self._arena, in_host=in_host,
            slots=buffers, weighted=factor is not None, direct=direct, trace=trace,
        )  # fmt: skip
        self._pinned = self._reader.pinned
        self._ring = ReadRing(buffers, readers, run_bytes, device.pinned)
        self._trace = trace
        self._device_trace = None if trace is None else DeviceTrace(device, trace)
        # Groups that stay need nothing but their room: they come while rows are made.
        self._begun: ExitStack | None = None
        if not self._passing:
            self._begun = ExitStack()
            self._ahead = self._begun.enter_context(self._reading(groups))

    def _reading(self, groups: Sequence[int]) -> AbstractContextManager[ReadAhead[tuple[int, range]]]:
        """Have the runs of groups read."""
        items = [(group, tiles) for group in groups for tiles in self._runs[group]]
        staying = self._on_device
        return self._ring.reading(items, self._reader.read, lambda item: item[0] not in staying)

    def _room_for_all(self, groups: list[int]) -> tuple[Room | None, dict[int, int]]:
        """Room for groups that stay, and where each begins in it."""
        if not groups:
            return None, {}
        rooms = self._layout.room[groups]
        begins = (rooms.cumsum() - rooms).tolist()
        return Room(self._device, int(rooms.sum())), dict(zip(groups, begins, strict=True))

    def run(self, compute: Callable[[int, Any], None]) -> PassTraffic:
        """See Tiles; returns before it is done, the first groups of the next pass under way."""
        return returned(self.steps(compute))

    def steps(self, compute: Callable[[int, Any], None]) -> Generator[None, None, PassTraffic]:
        """See Tiles; yields before a group is done."""
        reading = {group: self._runs[group] for group in self._groups if not self._stays(group)}
        if not reading:
            for group in self._groups:
                self._compute(group, compute)
                yield
            return PassTraffic(0, 0.0)
        waited, total = 0.0, 0
        with ExitStack() as stack:
            if self._begun is None:
                ahead = stack.enter_context(self._reading(list(reading)))
            else:
                ahead = self._ahead
                stack.push(self._begun)
                self._begun = None
            for group in self._groups:
                for tiles in reading.get(group, ()):
                    asked = time.perf_counter()
                    run = ahead.take()
                    waited += time.perf_counter() - asked
                    total += run.bytes_read
                    if group in self._on_device:
                        self._entries.append(run.entries)
                    elif group not in self._pinned:
                        self._send(group, tiles, run)
                    ahead.release()
                with nullcontext() if self._trace is None else self._trace.span(HOST, f"tile {group}"):
                    self._compute(group, compute)
                yield
        return PassTraffic(total, waited)

    def _stays(self, group: int) -> bool:
        """Whether a group is where it stays."""
        pinned = self._pinned.get(group)
        return group in self._staying or (pinned is not None and pinned.complete)

    @property
    def all_resident(self) -> bool:
        """See Tiles."""
        return all(map(self._stays, self._groups))

    @property
    def recordable(self) -> bool:
        """Whether all later passes are alike: all groups stay on the device, and no moments are noted."""
        return self._trace is None and not self._passing

    def free_ring(self) -> None:
        """Free what groups were read into, once all are where they stay and a pass has ended."""
        self._ring.clear()

    def close(self) -> None:
        """See Tiles; waits until nothing is under way to the memory that is freed."""
        if self._begun is not None:
            self._begun.close()
        self._device.synchronize()
        if self._device_trace is not None:
            self._device_trace.finish()
        self._ring.clear()
        if self._arena is not None:
            self._arena.close()
        for kept in (self._pinned, self._slots, self._rooms, self._staying, self._entries):
            kept.clear()
        self._arena = self._widths = self._faults = None

    def _compute(self, group: int, compute: Callable[[int, Any], None]) -> None:
        if group in self._on_device:
            if group not in self._staying:
                self._staying[group] = self._expanded_to_stay()
                self._send_ahead()
            with self._span(COMPUTE, group):
                compute(group, self._staying[group])
            return
        self._send_ahead()
        device, widths, number, rooms = self._device, self._widths, self._done, self._rooms
        assert widths is not None, "widths of a group that does not stay have room"
        slot = self._slots[number % len(self._slots)]
        assert slot.group is not None, "its tiles were sent"
        assert slot.sent is not None, "and its table"
        arrays = replace(rooms[number % len(rooms)], table=slot.table)
        there = DeviceGroup(slot.group, arrays, self._factor, overlaps=self._held > 0)
        with device:
            device.wait_for(slot.sent)
            with self._span(COMPUTE, group):
                there.expand(device, widths, self._faults)
        with self._span(COMPUTE, group):
            compute(group, there)
        # Two are computed with where there is room for two, so that the one before is done with now.
        if number >= self._held:
            with device:
                self._slots[(number - self._held) % len(self._slots)].free = device.record_event()
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

    def _send(self, group: int, tiles: range, run: TileRun) -> None:
        """Send a run of the passing group that is computed next."""
        slot = self._open(self._done)
        slot.entries.append(run.entries)
        place = int(self._layout.places[tiles.start])
        with self._device, self._span(COPY, group, run.encoded.size):
            self._reader.sent[run.buffer] = self._device.upload_async(
                slot.bytes[place : place + run.encoded.size], run.encoded
            )
        if tiles.stop == self._layout.tiles(group).stop:
            self._send_table(self._done, group, TileGroup.of(slot.entries))

    def _send_ahead(self) -> None:
        """Send groups from pinned memory to all slots that are free, or will be before they arrive.

        Those of the next pass only once all that stay are there, which this pass waits for.
        """
        end = self._done + len(self._slots) - self._held
        if len(self._staying) < len(self._on_device):
            end = min(end, len(self._passing))
        for number in range(max(self._whole, self._done), end):
            group = self._passing[number % len(self._passing)]
            pinned = self._pinned.get(group)
            if pinned is None or not pinned.complete:
                return
            slot = self._open(number)
            with self._device, self._span(COPY, group, pinned.bytes.size):
                self._device.upload_async(slot.bytes[: pinned.bytes.size], pinned.bytes)
            self._send_table(number, group, pinned.tiles)

    def _send_table(self, number: int, group: int, there: TileGroup) -> None:
        tiles = self._layout.tiles(group)
        with self._device:
            slot = self._slots[number % len(self._slots)]
            slot.send_table(there, self._layout.places[tiles.start : tiles.stop])
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
