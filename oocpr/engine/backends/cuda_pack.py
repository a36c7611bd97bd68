"""Keys sorted and tiles packed on a device; the bytes are those that the host would write.

The streams of a tile lie one after the other, each with zeros up to a whole block, so that one launch chooses
the widths of all: of the columns, in case these take least bytes as they are, of gaps, starts and lengths.
"""

from __future__ import annotations

import os
from itertools import pairwise
from threading import Semaphore
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from oocpr.engine.backends.cuda_compile import fetch, send
from oocpr.errors import UsageError
from oocpr.plan.needs import Needs
from oocpr.store.layout import BLOCK, GROUP, Stream, blocks_of, word_rows, write_tile
from oocpr.store.streams import fixed_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from oocpr.engine.backends.cuda_compile import Device

THREADS = 256

SORTS = 3
"""Sorts at a time: keys come and go while others are sorted."""

TILES = 4
"""Tiles that are packed at a time: for more of them, threads would wait for each other to launch."""

BYTES_PER_KEY = 24
"""Of the device, while keys are sorted: the keys, their new places, and what sorting takes beside."""

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


class DevicePacker:
    """Sorts keys and packs tiles for an import, see `oocpr.ingest.hands.Hands`, on a device.

    Parameters
    ----------
    device
        Where.

    Attributes
    ----------
    workers
        Threads that are worth having: as many as there are processors.
    needs
        Encoded tiles come back in parts, which are then joined.
    """

    needs = Needs(key_bytes=0, edge_bytes=12, row_bytes=32)

    def __init__(self, device: Device) -> None:
        self.workers = len(os.sched_getaffinity(0))
        self._device = device
        self._kernels = device.load("encode.cu")
        self._sorting, self._packing = Semaphore(SORTS), Semaphore(TILES)
        self._most_keys = device.free_bytes // (2 * SORTS * BYTES_PER_KEY)
        # What is loaded on first use takes memory, of which an import sees only what is there when it begins.
        self.sort(np.zeros(2, np.uint64))
        self.encode(np.zeros(1, np.uint32), np.ones(1, np.uint32))

    def sort(self, keys: NDArray[np.uint64]) -> None:
        """Put keys into ascending order, in their place.

        Parameters
        ----------
        keys
            uint64, shape (k,). More of them than the device has memory for are sorted by the host.
        """
        if keys.size > self._most_keys:
            keys.sort()
            return
        with self._sorting, self._device.apart():
            there = self._device.xp.empty(keys.size, np.uint64)
            send(there, keys)
            there.sort()
            fetch(there, keys)

    def encode(self, columns: NDArray[np.uint32], lengths: NDArray[np.uint32]) -> NDArray[np.uint8]:
        """Pack a tile.

        Parameters
        ----------
        columns
            uint32, shape (m,): strictly ascending inside a segment.
        lengths
            Entries of each segment: uint32, shape (s,), their sum is m.

        Returns
        -------
        ndarray
            The bytes of :func:`oocpr.store.packing.encode_tile`: uint8, shape (bytes,).

        Raises
        ------
        UsageError
            Where a segment is not strictly ascending.
        """
        ends = np.cumsum(lengths, dtype=np.uint32)
        filled = np.flatnonzero(lengths)
        heads = ends[filled] - lengths[filled]
        with self._packing, self._device.apart():
            streams = self._streams(columns, heads, lengths)
        for number, lasts in ((GAPS, columns), (STARTS, columns[heads]), (LENGTHS, ends)):
            directory = streams[number].directory
            directory[1:, 3] = lasts[_borders(lasts.size)[1:] - 1]
        gaps, starts, of_lengths = streams[GAPS:]
        ranks = np.searchsorted(filled, _borders(lengths.size)).astype(np.uint32)
        plain = not starts.words.size
        return write_tile(
            of_lengths, ranks, None if plain else starts, gaps, heads.size,
            lambda size: np.empty(size, np.uint8), runs=False,
        )  # fmt: skip

    def _streams(
        self, columns: NDArray[np.uint32], heads: NDArray[np.uint32], lengths: NDArray[np.uint32]
    ) -> list[Stream]:
        """Pack the streams; without words that of which there is none. Carries are left 0."""
        xp = self._device.xp
        counts = [columns.size, columns.size, heads.size, lengths.size]
        firsts = np.append(0, np.cumsum([blocks_of(count) for count in counts])).astype(np.uint32)
        blocks = int(firsts[-1])
        totals = xp.zeros((5, 4), np.uint32)
        values = self._values(columns, heads, lengths, firsts, totals[4, :1])
        widths, sizes = xp.empty(GROUP * blocks, np.uint8), xp.empty(4 * blocks, np.uint32)
        self._run("choose_widths", GROUP * blocks, values, np.uint32(blocks), widths, sizes)
        directory, first_blocks = xp.empty((blocks + 4, 4), np.uint32), xp.empty(5, np.uint32)
        send(first_blocks, firsts)
        self._run("add_up", 4 * THREADS, sizes, first_blocks, directory, totals)
        found = fetch(totals)
        if found[4, 0]:
            raise UsageError(
                "The columns of a segment are not strictly ascending.",
                "Sort the columns of each row and merge duplicates.",
            )
        needed = [_Sizes(*map(int, total[:3])) for total in found[:4]]
        split = needed[GAPS].nbytes(columns.size) + needed[STARTS].nbytes(heads.size)
        verbatim = needed[PLAIN].nbytes(columns.size) < split
        chosen = [PLAIN, LENGTHS] if verbatim else [GAPS, STARTS, LENGTHS]
        shapes = [(GROUP * word_rows(of.bits), of.wide, -(-of.narrow // 2)) for of in needed]
        places = np.cumsum([0, *(items for k in chosen for items in shapes[k])])
        packed = xp.zeros(int(places[-1]), np.uint32)
        parts = [packed[low:high] for low, high in pairwise(places)]
        for at, k in enumerate(chosen):
            first, end = int(firsts[k]), int(firsts[k + 1])
            words, wide, narrow = parts[3 * at : 3 * at + 3]
            self._run(
                "pack_values", GROUP * (end - first),
                values[BLOCK * first :], np.uint32(end - first), widths[GROUP * first :],
                directory[first + k :], words, wide, narrow.view(np.uint16),
            )  # fmt: skip
        here = _Fetched(fetch(packed), fetch(directory), fetch(widths))
        nothing = here.stream(0, [0, 0, 0, 0], 0, 0, 0)
        streams = {
            k: here.stream(counts[k], places[3 * at : 3 * at + 4], int(firsts[k]), k, needed[k].narrow)
            for at, k in enumerate(chosen)
        }
        columns_as = streams[PLAIN if verbatim else GAPS]
        return [nothing, columns_as, streams.get(STARTS, nothing), streams[LENGTHS]]

    def _values(
        self,
        columns: NDArray[np.uint32],
        heads: NDArray[np.uint32],
        lengths: NDArray[np.uint32],
        firsts: NDArray[np.uint32],
        wrong: Any,
    ) -> Any:
        """Lay out the values of all streams, and count the columns that do not ascend."""
        xp = self._device.xp
        values = xp.zeros(BLOCK * int(firsts[-1]), np.uint32)
        plain, gaps, starts, of_lengths = (values[BLOCK * int(first) :] for first in firsts[:-1])
        begins = xp.empty(heads.size, np.uint32)
        for there, here in ((plain, columns), (of_lengths, lengths), (begins, heads)):
            if here.size:
                send(there[: here.size], here)
        edges, nonempty = np.uint32(columns.size), np.uint32(heads.size)
        self._run("find_gaps", columns.size, plain, edges, gaps, wrong)
        self._run("find_steps", heads.size, plain, begins, nonempty, gaps, starts, wrong)
        return values

    def _run(self, name: str, threads: int, *arguments: Any) -> None:
        if threads:
            self._kernels.get_function(name)((-(-threads // THREADS),), (THREADS,), arguments)


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
