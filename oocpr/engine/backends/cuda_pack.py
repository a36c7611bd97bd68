"""Keys sorted and tiles packed on a device; the bytes are those that the host would write."""

from __future__ import annotations

from threading import Semaphore
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from oocpr.engine.backends.cuda_compile import fetch, send
from oocpr.errors import UsageError
from oocpr.store.layout import BLOCK, GROUP, Stream, blocks_of, word_rows, write_tile
from oocpr.store.streams import fixed_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oocpr.engine.backends.cuda_compile import Device

TEAMS = 8
"""Blocks of a stream that a block of threads packs at a time."""

SORTS = 3
"""Sorts at a time: keys come and go while others are sorted."""

BYTES_PER_KEY = 24
"""Of the device, while keys are sorted: the keys, their new places, and what sorting takes beside."""


class _Values(NamedTuple):
    """Values that are to be packed; arrays of the device.

    Attributes
    ----------
    values
        uint32, shape (count,).
    widths
        The width of each group, uint8.
    directory
        uint32, shape (blocks + 1, 4): what each block begins with; the fourth column is left 0.
    """

    values: Any
    widths: Any
    directory: Any

    @property
    def size(self) -> int:
        """How many there are."""
        return int(self.values.size)


class _Sizes(NamedTuple):
    """What packing takes: bits of a lane, exceptions of both kinds."""

    bits: int
    narrow: int
    wide: int

    def nbytes(self, count: int) -> int:
        """Bytes of the stream in a chunk."""
        groups = -(-count // GROUP)
        return fixed_bytes(groups) + 4 * GROUP * word_rows(self.bits) + 4 * self.wide + 2 * self.narrow


class DevicePacker:
    """Sorts keys and packs tiles on a device, for any number of threads.

    Parameters
    ----------
    device
        Where.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._kernels = device.load("encode.cu", TEAMS=TEAMS)
        self._sorting = Semaphore(SORTS)
        self._most_keys = device.free_bytes // (2 * SORTS * BYTES_PER_KEY)

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
        with self._device.apart():
            return self._encoded(columns, lengths)

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

    def _encoded(self, columns: NDArray[np.uint32], lengths: NDArray[np.uint32]) -> NDArray[np.uint8]:
        xp = self._device.xp
        there, counts = xp.empty(columns.size, np.uint32), xp.empty(lengths.size, np.uint32)
        send(there, columns)
        send(counts, lengths)
        ends = xp.cumsum(counts, dtype=np.uint32)
        filled = xp.flatnonzero(counts)
        firsts = ends[filled] - counts[filled]
        before = xp.zeros(there.size, np.uint32)
        before[1:] = there[:-1]
        gaps = there - before - np.uint32(1)
        descents = there <= before
        gaps[firsts] = 0
        descents[firsts] = False
        heads = there[firsts]
        steps = heads.copy()
        steps[1:] -= heads[:-1]
        steps = (steps << np.uint32(1)) ^ (np.uint32(0) - (steps >> np.uint32(31)))

        streams = [self._choose(values) for values in (there, gaps, steps, counts)]
        wrong = xp.count_nonzero(descents).astype(np.uint32).reshape(1)
        totals = fetch(xp.concatenate([*(stream.directory[-1, :3] for stream in streams), wrong]))
        if totals[-1]:
            raise UsageError(
                "The columns of a segment are not strictly ascending.",
                "Sort the columns of each row and merge duplicates.",
            )
        plain, *split = (_Sizes(*map(int, total)) for total in totals[:-1].reshape(4, 3))
        apart = split[0].nbytes(gaps.size) + split[1].nbytes(steps.size)
        ranks = xp.cumsum(counts != np.uint32(0), dtype=np.uint32)
        streams[3].directory[1:, 3] = _lasts(ends, xp)
        if plain.nbytes(there.size) < apart:
            chosen, sizes = [streams[0], streams[3]], [plain, split[2]]
        else:
            chosen, sizes = streams[1:], split
            streams[2].directory[1:, 3] = _lasts(heads, xp)
        chosen[0].directory[1:, 3] = _lasts(there, xp)
        packed = [self._pack(*of) for of in zip(chosen, sizes, strict=True)]
        rank_of_blocks = xp.zeros(blocks_of(counts.size) + 1, np.uint32)
        rank_of_blocks[1:] = _lasts(ranks, xp)
        *arrived, rank_words = self._fetched([*packed, (rank_of_blocks,)])
        of_columns, *of_starts, of_lengths = (
            Stream(stream.size, *parts) for stream, parts in zip(chosen, arrived, strict=True)
        )
        return write_tile(
            of_lengths, rank_words[0], of_starts[0] if of_starts else None, of_columns, int(heads.size),
            lambda size: np.empty(size, np.uint8), runs=False,
        )  # fmt: skip

    def _choose(self, values: Any) -> _Values:
        xp, count = self._device.xp, int(values.size)
        blocks = blocks_of(count)
        widths = xp.empty(max(1, -(-count // GROUP)), np.uint8)
        sizes = xp.zeros((blocks + 1, 3), np.uint32)
        if count:
            kernel = self._kernels.get_function("choose_widths")
            kernel(*_teams(blocks), (values, np.uint32(count), widths, sizes[1:]))
        directory = xp.zeros((blocks + 1, 4), np.uint32)
        directory[:, :3] = xp.cumsum(sizes, axis=0, dtype=np.uint32)
        return _Values(values, widths, directory)

    def _pack(self, of: _Values, sizes: _Sizes) -> tuple[Any, ...]:
        """Words, directory, wide, narrow and widths of a stream."""
        xp = self._device.xp
        words = xp.zeros(GROUP * word_rows(sizes.bits), np.uint32)
        wide, narrow = xp.empty(sizes.wide, np.uint32), xp.empty(sizes.narrow, np.uint16)
        if of.size:
            kernel = self._kernels.get_function("pack_values")
            kernel(
                *_teams(blocks_of(of.size)),
                (of.values, np.uint32(of.size), of.widths, of.directory, words, wide, narrow),
            )
        return words, of.directory, wide, narrow, of.widths[: -(-of.size // GROUP)]

    def _fetched(self, parts: list[tuple[Any, ...]]) -> list[list[NDArray[Any]]]:
        """Bring arrays to the host, all at once."""
        xp = self._device.xp
        flat = [array for part in parts for array in part]
        ends = np.cumsum([array.nbytes + -array.nbytes % 4 for array in flat], dtype=np.int64)
        joined = xp.empty(int(ends[-1]), np.uint8)
        begins = [0, *map(int, ends[:-1])]
        for begin, array in zip(begins, flat, strict=True):
            if array.nbytes:
                joined[begin : begin + array.nbytes] = array.reshape(-1).view(np.uint8)
        here = fetch(joined)
        arrays = iter(
            here[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
            for begin, array in zip(begins, flat, strict=True)
        )
        return [[next(arrays) for _ in part] for part in parts]


def _lasts(values: Any, xp: Any) -> Any:
    """The last value of each block."""
    ends = xp.arange(1, blocks_of(int(values.size)) + 1) * BLOCK
    return values[xp.minimum(ends, values.size) - 1]


def _teams(count: int) -> tuple[tuple[int], tuple[int]]:
    return (-(-count // TEAMS),), (TEAMS * GROUP,)
