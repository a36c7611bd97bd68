"""Tiles packed on a device, see kernels/encode.cu; the bytes are those that the host would write.

The streams of a tile lie one after the other, each with zeros up to a whole block, so that one launch chooses
the widths of all: of the columns, in case these take least bytes as they are, of gaps, starts and lengths.
"""

from __future__ import annotations

from itertools import pairwise
from threading import Semaphore
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from oocpr.engine.cuda.device import fetch, send
from oocpr.errors import UsageError
from oocpr.jit import entry
from oocpr.store.codec.bitpacking import fixed_bytes
from oocpr.store.codec.layout import BLOCK, GROUP, Stream, blocks_of, word_rows
from oocpr.store.codec.layout_writer import write_tile
from oocpr.store.direct_io import aligned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from oocpr.engine.cuda.arena import Memory
    from oocpr.engine.cuda.device import Device

    Room = Callable[[int], NDArray[np.uint8]]

THREADS = 256

PLAIN, GAPS, STARTS, LENGTHS = range(4)


class _Sizes(NamedTuple):
    """What packing a stream takes: bits of a lane, and exceptions of both kinds."""

    bits: int
    narrow: int
    wide: int

    def nbytes(self, count: int) -> int:
        """Bytes of the stream in a chunk."""
        words = 4 * GROUP * word_rows(self.bits)
        return fixed_bytes(-(-count // GROUP)) + words + 4 * self.wide + 2 * self.narrow


AT_ONCE = 4
"""Tiles that are packed at a time: for more of them, threads would wait for each other to launch."""


class TileEncoder:
    """Packs tiles; as many threads as like may ask for it, each has a stream of its own.

    Parameters
    ----------
    device
        Where.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._kernels = device.load("encode.cu")
        self._turns = Semaphore(AT_ONCE)

    def encode(
        self,
        edges: int,
        lengths: NDArray[np.uint32],
        place: Callable[[Any], None],
        space: Room = aligned,
        stage: Room = aligned,
        memory: Memory | None = None,
    ) -> NDArray[np.uint8]:
        """Pack a tile.

        Parameters
        ----------
        edges
            Number of columns.
        lengths
            Entries of each segment: uint32, shape (s,), their sum is `edges`.
        place
            Called once the device is current for this thread: puts the columns into an array of it, uint32,
            shape (edges,), strictly ascending inside a segment.
        space
            Gives memory for the bytes of the tile.
        stage
            Gives memory for what comes from the device, which is not used any more afterwards.
        memory
            Gives memory of the device, the same; None for its pool.

        Returns
        -------
        ndarray
            The bytes of :func:`oocpr.store.codec.tile_encoder.encode_tile`: uint8, shape (bytes,).

        Raises
        ------
        UsageError
            Where a segment is not strictly ascending.
        """
        found = _find_heads(lengths)
        heads, nonempty = found.heads, found.heads.size
        with self._turns, self._device.apart():
            streams, lasts = self._streams(edges, heads, lengths, place, stage, memory or self._device.xp)
        lasts[LENGTHS] = found.ends
        gaps, starts, of_lengths = streams[GAPS:]
        plain = not starts.words.size
        for number in (GAPS, LENGTHS) if plain else (GAPS, STARTS, LENGTHS):
            streams[number].directory[1:, 3] = lasts[number]
        return write_tile(
            of_lengths, found.ranks, None if plain else starts, gaps, nonempty, space, runs=False
        )

    def _streams(
        self,
        edges: int,
        heads: NDArray[np.uint32],
        lengths: NDArray[np.uint32],
        place: Callable[[Any], None],
        stage: Room,
        memory: Memory,
    ) -> tuple[list[Stream], dict[int, NDArray[np.uint32]]]:
        """Pack the streams; without words that of which there is none. Carries are left 0.

        With them, the last column of each block of gaps and of starts.
        """
        counts = [edges, edges, heads.size, lengths.size]
        firsts = np.append(0, np.cumsum([blocks_of(count) for count in counts])).astype(np.uint32)
        blocks = int(firsts[-1])
        totals = memory.zeros((5, 4), np.uint32)
        values = self._values(edges, heads, lengths, firsts, place, totals[4, :1], memory)
        widths, sizes = memory.empty(GROUP * blocks, np.uint8), memory.empty(4 * blocks, np.uint32)
        self._run("choose_widths", GROUP * blocks, values, np.uint32(blocks), widths, sizes)
        directory, first_blocks = memory.empty((blocks + 4, 4), np.uint32), memory.empty(5, np.uint32)
        send(first_blocks, firsts)
        self._run("add_up", 4 * THREADS, sizes, first_blocks, directory, totals)
        found = fetch(totals)
        if found[4, 0]:
            raise UsageError(
                "The columns of a segment are not strictly ascending.",
                "Sort the columns of each row and merge duplicates.",
            )
        needed = [_Sizes(*map(int, total[:3])) for total in found[:4]]
        split = needed[GAPS].nbytes(edges) + needed[STARTS].nbytes(heads.size)
        verbatim = needed[PLAIN].nbytes(edges) < split
        chosen = [PLAIN, LENGTHS] if verbatim else [GAPS, STARTS, LENGTHS]
        shapes = [(GROUP * word_rows(of.bits), of.wide, -(-of.narrow // 2)) for of in needed]
        places = np.cumsum([0, *(items for k in chosen for items in shapes[k])])
        packed = memory.zeros(int(places[-1]), np.uint32)
        parts = [packed[low:high] for low, high in pairwise(places)]
        for at, k in enumerate(chosen):
            first, end = int(firsts[k]), int(firsts[k + 1])
            words, wide, narrow = parts[3 * at : 3 * at + 3]
            self._run(
                "pack_values", GROUP * (end - first),
                values[BLOCK * first :], np.uint32(end - first), widths[GROUP * first :],
                directory[first + k :], words, wide, narrow.view(np.uint16),
            )  # fmt: skip
        lasts = {GAPS: self._pick(values, _borders(edges)[1:] - 1, memory)}
        lasts[STARTS] = self._pick(values, heads[_borders(heads.size)[1:] - 1], memory)
        del values
        here = _Fetched(fetch(packed, stage(packed.nbytes).view(np.uint32)), fetch(directory), fetch(widths))
        nothing = here.stream(0, [0, 0, 0, 0], 0, 0, 0)
        streams = {
            k: here.stream(counts[k], places[3 * at : 3 * at + 4], int(firsts[k]), k, needed[k].narrow)
            for at, k in enumerate(chosen)
        }
        columns_as = streams[PLAIN if verbatim else GAPS]
        return [nothing, columns_as, streams.get(STARTS, nothing), streams[LENGTHS]], lasts

    def _pick(self, values: Any, places: NDArray[np.integer], memory: Memory) -> NDArray[np.uint32]:
        """Fetch some of the values."""
        there, picked = (memory.empty(places.size, np.uint32) for _ in range(2))
        if places.size:
            send(there, places.astype(np.uint32))
        self._run("pick", places.size, values, there, np.uint32(places.size), picked)
        return fetch(picked)

    def _values(
        self,
        edges: int,
        heads: NDArray[np.uint32],
        lengths: NDArray[np.uint32],
        firsts: NDArray[np.uint32],
        place: Callable[[Any], None],
        wrong: Any,
        memory: Memory,
    ) -> Any:
        """Lay out the values of all streams, and count the columns that do not ascend."""
        values = memory.zeros(BLOCK * int(firsts[-1]), np.uint32)
        plain, gaps, starts, of_lengths = (values[BLOCK * int(first) :] for first in firsts[:-1])
        begins = memory.empty(heads.size, np.uint32)
        place(plain[:edges])
        for there, here in ((of_lengths, lengths), (begins, heads)):
            if here.size:
                send(there[: here.size], here)
        nonempty = np.uint32(heads.size)
        self._run("find_gaps", edges, plain, np.uint32(edges), gaps, wrong)
        self._run("find_steps", heads.size, plain, begins, nonempty, gaps, starts, wrong)
        return values

    def _run(self, name: str, threads: int, *arguments: Any) -> None:
        if threads:
            self._kernels.get_function(name)((-(-threads // THREADS),), (THREADS,), arguments)


class _Heads(NamedTuple):
    """Where segments begin that are not empty; how many are before each block of lengths; where it ends."""

    heads: NDArray[np.uint32]
    ranks: NDArray[np.uint32]
    ends: NDArray[np.uint32]


def _find_heads(lengths: NDArray[np.uint32]) -> _Heads:
    blocks = blocks_of(lengths.size)
    heads, ranks = np.empty(lengths.size, np.uint32), np.empty(blocks + 1, np.uint32)
    ends = np.empty(blocks, np.uint32)
    filled = _walk(lengths, heads, ranks, ends)
    return _Heads(heads[:filled], ranks, ends)


@entry()
def _walk(lengths, heads, ranks, ends):  # type: ignore[no-untyped-def]
    edge = np.uint32(0)
    filled = np.uint64(0)
    for s in range(np.uint64(lengths.size)):
        if s & np.uint64(1023) == np.uint64(0):
            ranks[s >> np.uint64(10)] = filled
        # Written in vain where the segment is empty, without a branch.
        heads[filled] = edge
        filled += np.uint64(lengths[s] != 0)
        edge += lengths[s]
        ends[s >> np.uint64(10)] = edge
    ranks[np.uint64(ranks.size - 1)] = filled
    return filled


class _Fetched(NamedTuple):
    """What a device has packed."""

    packed: NDArray[np.uint32]
    directory: NDArray[np.uint32]
    widths: NDArray[np.uint8]

    def stream(self, count: int, places: Iterable[int], first: int, number: int, narrow: int) -> Stream:
        """Stream `number` of `count` values, whose first block is number `first`."""
        words, wide, halves = (self.packed[low:high] for low, high in pairwise(places))
        begin = first + number
        return Stream(
            count,
            words,
            self.directory[begin : begin + blocks_of(count) + 1],
            wide,
            halves.view(np.uint16)[:narrow],
            self.widths[GROUP * first :][: -(-count // GROUP)],
        )


def _borders(count: int) -> NDArray[np.int64]:
    """Where the blocks of `count` values begin, and where the last one ends."""
    return np.minimum(BLOCK * np.arange(blocks_of(count) + 1), count)
