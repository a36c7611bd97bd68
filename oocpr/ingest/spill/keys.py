"""Keys in a temporary file, in no order and in few bytes.

A key is an edge, row << 32 | column. In a file it is the row counted from some first row, and the column in
as few bits as its neighbours need, in whole bytes: 5 of them where a graph has millions of nodes::

    key          row << 32                              | column
    in the file  (row - first row) << bits of a column  | column      in the lowest `width` bytes

Where links have weights, each key is followed by its weight, a float64.
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

_READ_BYTES = 1 << 18
"""Read from the disk at once."""

_PAD = KEY_BYTES
"""Bytes behind the last key, which is read as a whole word: files of keys in fewer bytes have them, too."""


@entry()
def _unpack(data, places, counts, widths, column_bits, beside, first_row, keys):
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
            at += width + beside
            k += uint64(1)


@entry()
def _unpack_weights(data, places, counts, widths, weights):
    k = uint64(0)
    for p in range(uint64(places.size)):
        width = uint64(widths[p])
        at = uint64(places[p]) + width
        for _ in range(uint64(counts[p])):
            weights[k] = load_word(data, at)
            at += width + uint64(WEIGHT_BYTES)
            k += uint64(1)


def record_bytes(*, weighted: bool) -> int:
    """Bytes of a whole key in a file, and of its weight where there are weights."""
    return KEY_BYTES + WEIGHT_BYTES * weighted


def to_words(keys: NDArray[np.uint64], weights: NDArray[np.float64] | None) -> NDArray[np.uint64]:
    """Join keys and weights, shape (k,) each, to what lies in a file of whole keys.

    Examples
    --------
    >>> to_words(np.array([7, 5], np.uint64), np.zeros(2)).tolist()
    [7, 0, 5, 0]
    """
    if weights is None:
        return keys
    words = np.empty((keys.size, 2), np.uint64)
    words[:, 0], words[:, 1] = keys, weights.view(np.uint64)
    return words.reshape(-1)


@dataclass(frozen=True)
class KeyExtents:
    """Where keys are in a file, and how they are written there.

    Parameters
    ----------
    places, counts
        First byte and number of keys of each piece; int64, shape (pieces,).
    widths, column_bits
        Bytes of a key, 1 to 8, and of these the bits of its column; uint8, shape (pieces,).
    first_row
        What rows are counted from.
    weighted
        Whether a weight follows each key.
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
        return KeyExtents(
            self.places[here],
            self.counts[here],
            self.widths[here],
            self.column_bits[here],
            self.first_row,
            self.weighted,
        )

    @property
    def record_sizes(self) -> NDArray[np.int64]:
        """Bytes of a key of each, and of its weight."""
        return self.widths.astype(np.int64) + WEIGHT_BYTES * self.weighted

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Bytes of each."""
        return self.counts * self.record_sizes

    def unpack(
        self, data: NDArray[np.uint8], keys: NDArray[np.uint64], weights: NDArray[np.float64] | None
    ) -> None:
        """Write all keys, and their weights where these are wanted.

        Places are those in `data`, where a whole word may be read from the last key on.
        """
        _unpack(
            data,
            self.places,
            self.counts,
            self.widths,
            self.column_bits,
            np.uint64(WEIGHT_BYTES * self.weighted),
            np.uint64(self.first_row),
            keys,
        )
        if weights is not None:
            _unpack_weights(data, self.places, self.counts, self.widths, weights.view(np.uint64))


@dataclass(frozen=True)
class KeyRun:
    """Keys in a file, in no order.

    Parameters
    ----------
    scratch
        The file.
    count
        How many keys.
    low, high
        All keys are in [low, high).
    pieces
        Where they are.
    """

    scratch: SpillFile
    count: int
    low: int
    high: int
    pieces: KeyExtents

    @classmethod
    def of_words(
        cls, scratch: SpillFile, start: int, count: int, low: int, high: int, *, weighted: bool = False
    ) -> KeyRun:
        """Describe keys that are written as they are, uint64, from key number `start` of the file on.

        A weight may follow each of them.

        Examples
        --------
        >>> from pathlib import Path
        >>> from oocpr.ingest.spill.files import SpillFile
        >>> with SpillFile(Path(".")) as scratch:
        ...     scratch.write(0, np.array([7, 5, 9], np.uint64))
        ...     run = KeyRun.of_words(scratch, 0, 3, 5, 10)
        ...     [keys.tolist() for keys in run.blocks(np.empty(2, np.uint64))]
        [[7, 5], [9]]
        """
        one = np.ones(1, np.int64)
        width = np.full(1, KEY_BYTES, np.uint8)
        pieces = KeyExtents(
            start * record_bytes(weighted=weighted) * one, count * one, width, 4 * width, 0, weighted
        )
        return cls(scratch, count, low, high, pieces)

    def blocks(self, buffer: NDArray[np.uint64]) -> Iterator[NDArray[np.uint64]]:
        """Yield all keys, as many at a time as `buffer` holds, which every block overwrites."""
        for keys, _ in self.records(buffer, None):
            yield keys

    def records(
        self, buffer: NDArray[np.uint64], beside: NDArray[np.float64] | None
    ) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.float64] | None]]:
        """Yield all keys and, where there is a buffer of the same size for them, their weights."""
        for done in range(0, self.count, buffer.size):
            keys = buffer[: min(buffer.size, self.count - done)]
            weights = _part(beside, 0, keys.size)
            pieces = self.pieces.between(done, done + keys.size) if self.count > buffer.size else self.pieces
            self._fill(pieces, keys, weights)
            yield keys, weights

    def _fill(
        self, pieces: KeyExtents, keys: NDArray[np.uint64], weights: NDArray[np.float64] | None
    ) -> None:
        in_memory = pieces.places + pieces.sizes <= self.scratch.kept
        held = pieces.chosen(np.flatnonzero(in_memory))
        count = int(held.counts.sum())
        held.unpack(self.scratch.memory, keys[:count], _part(weights, 0, count))
        if count < keys.size:
            others = pieces.chosen(np.flatnonzero(~in_memory))
            self._read(others, keys[count:], _part(weights, count, keys.size))

    def _read(
        self, pieces: KeyExtents, keys: NDArray[np.uint64], weights: NDArray[np.float64] | None
    ) -> None:
        """Unpack pieces that are not in memory, or not wholly."""
        step = _READ_BYTES // record_bytes(weighted=pieces.weighted)
        data = np.empty(_READ_BYTES + _PAD, np.uint8)
        for done in range(0, keys.size, step):
            part = pieces.between(done, done + step)
            ends = np.cumsum(part.sizes)
            for place, start, end in zip(part.places, ends - part.sizes, ends, strict=True):
                self.scratch.read(int(place), data[start:end])
            here = replace(part, places=ends - part.sizes)
            here.unpack(data, keys[done : done + step], _part(weights, done, done + step))


def _part(weights: NDArray[np.float64] | None, start: int, stop: int) -> NDArray[np.float64] | None:
    return None if weights is None else weights[start:stop]
