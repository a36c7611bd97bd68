"""Keys in a spill file, in no order and in few bytes.

A key is an edge, row << 32 | column. In a file it is the row counted from some first row, and the column in
as few bits as its neighbours need, in whole bytes: 5 of them if a graph has millions of nodes::

    key          row << 32                              | column
    in the file  (row - first row) << bits of a column  | column      in the lowest `width` bytes

If edges have weights, each key is followed by its weight, a float64. Functions that take weights take an
empty array if there are none.
"""

# numba compiles by the types of the arguments, not by annotations.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True, allow-untyped-calls=True

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numba import uint64

from oocpr.ingest.spill.intrinsics import load_word
from oocpr.jit import entry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from oocpr.ingest.spill.files import SpillFile

KEY_BYTES = 8
"""Bytes of a key in memory, and most bytes of one in a file."""

WEIGHT_BYTES = 8
"""Bytes of a weight, anywhere."""

NO_WEIGHTS = np.empty(0)

_READ_BYTES = 1 << 18
"""Read from the disk at once."""

_PAD = KEY_BYTES
"""Bytes behind the last key, which is read as a whole word: files of keys in fewer bytes have them, too."""


@entry()
def _unpack(data, places, counts, widths, column_bits, weight_bytes, first_row, keys, weights):
    weighted = weights.size > 0
    k = uint64(0)
    for p in range(uint64(places.size)):
        at = uint64(places[p])
        width = uint64(widths[p])
        bits = uint64(column_bits[p])
        key_mask = ~uint64(0) >> (uint64(64) - uint64(8) * width)
        column_mask = (uint64(1) << bits) - uint64(1)
        for _ in range(uint64(counts[p])):
            key = load_word(data, at) & key_mask
            keys[k] = ((key >> bits) + first_row) << uint64(32) | (key & column_mask)
            if weighted:
                weights[k] = load_word(data, at + width)
            at += width + weight_bytes
            k += uint64(1)


def record_bytes(*, weighted: bool) -> int:
    """Bytes of a whole key in a file, and of its weight if there are weights."""
    return KEY_BYTES + WEIGHT_BYTES * weighted


def to_words(keys: NDArray[np.uint64], weights: NDArray[np.float64]) -> NDArray[np.uint64]:
    """Join keys and weights to what lies in a file of whole keys."""
    if not weights.size:
        return keys
    words = np.empty((keys.size, 2), np.uint64)
    words[:, 0], words[:, 1] = keys, weights.view(np.uint64)
    return words.reshape(-1)


@dataclass(frozen=True)
class KeyExtents:
    """Where keys are in a file, and how they are written there.

    Of each extent, shape (extents,): its first byte and number of keys, int64; bytes of a key, 1 to 8, and of
    these the bits of its column, uint8. Rows are counted from `first_row`; if `weighted`, a weight follows
    each key.
    """

    places: NDArray[np.int64]
    counts: NDArray[np.int64]
    widths: NDArray[np.uint8]
    column_bits: NDArray[np.uint8]
    first_row: int
    weighted: bool = False

    def between(self, start: int, stop: int) -> KeyExtents:
        """Give those of the keys number `start` to `stop` - 1."""
        ends = np.cumsum(self.counts)
        begins = ends - self.counts
        here = np.flatnonzero((begins < stop) & (ends > start))
        skipped = np.maximum(start - begins[here], 0)
        counts = np.minimum(ends[here], stop) - begins[here] - skipped
        chosen = self.chosen(here)
        return replace(chosen, places=chosen.places + skipped * chosen.record_sizes, counts=counts)

    def chosen(self, here: NDArray[np.intp]) -> KeyExtents:
        """Give some of them."""
        return replace(
            self,
            places=self.places[here],
            counts=self.counts[here],
            widths=self.widths[here],
            column_bits=self.column_bits[here],
        )

    @property
    def record_sizes(self) -> NDArray[np.int64]:
        """Bytes of a key of each, and of its weight."""
        return self.widths.astype(np.int64) + WEIGHT_BYTES * self.weighted

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Bytes of each."""
        return self.counts * self.record_sizes

    def unpack(self, data: NDArray[np.uint8], keys: NDArray[np.uint64], weights: NDArray[np.float64]) -> None:
        """Write all keys, and their weights if there is room for these.

        Places are those in `data`, where a whole word may be read from the last key on.
        """
        weight_bytes, first_row = np.uint64(WEIGHT_BYTES * self.weighted), np.uint64(self.first_row)
        layout = (self.places, self.counts, self.widths, self.column_bits, weight_bytes, first_row)
        _unpack(data, *layout, keys, weights.view(np.uint64))


@dataclass(frozen=True)
class KeyRun:
    """Keys in a file, `count` of them in no order, all in [low, high)."""

    file: SpillFile
    count: int
    low: int
    high: int
    extents: KeyExtents

    @classmethod
    def of_words(
        cls, file: SpillFile, start: int, count: int, low: int, high: int, *, weighted: bool = False
    ) -> KeyRun:
        """Describe keys that are written as they are, uint64, from key number `start` of the file on."""
        place = np.full(1, start * record_bytes(weighted=weighted))
        width = np.full(1, KEY_BYTES, np.uint8)
        extents = KeyExtents(place, np.full(1, count), width, 4 * width, 0, weighted)
        return cls(file, count, low, high, extents)

    def blocks(self, buffer: NDArray[np.uint64]) -> Iterator[NDArray[np.uint64]]:
        """Yield all keys, as many at a time as `buffer` holds, which every block overwrites."""
        for keys, _ in self.records(buffer, NO_WEIGHTS):
            yield keys

    def records(
        self, buffer: NDArray[np.uint64], weight_buffer: NDArray[np.float64]
    ) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.float64]]]:
        """Yield all keys and, if there is a buffer of the same size for them, their weights."""
        for done in range(0, self.count, buffer.size):
            keys = buffer[: min(buffer.size, self.count - done)]
            weights = weight_buffer[: keys.size]
            whole = self.count <= buffer.size
            self._read(self.extents if whole else self.extents.between(done, done + keys.size), keys, weights)
            yield keys, weights

    def _read(self, extents: KeyExtents, keys: NDArray[np.uint64], weights: NDArray[np.float64]) -> None:
        in_memory = extents.places + extents.sizes <= self.file.kept
        held = extents.chosen(np.flatnonzero(in_memory))
        count = int(held.counts.sum())
        held.unpack(self.file.memory, keys[:count], weights[:count])
        if count < keys.size:
            others = extents.chosen(np.flatnonzero(~in_memory))
            self._read_file(others, keys[count:], weights[count:])

    def _read_file(self, extents: KeyExtents, keys: NDArray[np.uint64], weights: NDArray[np.float64]) -> None:
        """Unpack extents that are not in memory, or not wholly."""
        step = _READ_BYTES // record_bytes(weighted=extents.weighted)
        data = np.empty(_READ_BYTES + _PAD, np.uint8)
        for done in range(0, keys.size, step):
            part = extents.between(done, done + step)
            ends = np.cumsum(part.sizes)
            for place, start, end in zip(part.places, ends - part.sizes, ends, strict=True):
                self.file.read(int(place), data[start:end])
            here = replace(part, places=ends - part.sizes)
            here.unpack(data, keys[done : done + step], weights[done : done + step])
