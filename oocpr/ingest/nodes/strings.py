"""Strings in temporary files, such as names of nodes, and their permutation and sort in bounded memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numba import types
from numpy.typing import NDArray

from oocpr.jit import entry
from oocpr.store.node_data import spans_of_bytes, text_pieces
from oocpr.system import spans

if TYPE_CHECKING:
    from oocpr.ingest.spill.files import SpillDir

    Piece = tuple[NDArray[np.uint8], NDArray[np.uint32]]


BUCKETS = 64
BYTES_PER_NAME = 32
"""Row, length, start and new place of a name that is in memory."""

# Buffers of other libraries are read-only, columns of interleaved arrays have gaps; functions compiled for
# these take all other arrays as well.
TEXT = types.Array(types.uint8, 1, "C", readonly=True)
UINT32S, INT64S = (types.Array(kind, 1, "A", readonly=True) for kind in (types.uint32, types.int64))

MAX_PIECE_NAMES = 1 << 14
MAX_PIECE_BYTES = 1 << 20
"""Most names and, unless one name alone has more, most bytes of a piece."""


class StringList(Protocol):
    """`count` strings of `size` bytes in all."""

    @property
    def count(self) -> int: ...  # noqa: D102 - see above

    @property
    def size(self) -> int: ...  # noqa: D102

    def pieces(self) -> Iterator[Piece]:
        """Yield all in order, some at a time: their bytes, and the length of each."""


class StringFile:
    """Strings on disk, written and read from front to end; `count` so far, `size` bytes in all.

    Durable files have a `name`; another process gives `count` and `size`.
    """

    def __init__(self, spill_dir: SpillDir, name: str | None = None, count: int = 0, size: int = 0) -> None:
        self.count = count
        self.size = size
        self._text = spill_dir.file(name=name and f"{name}-text")
        self._lengths = spill_dir.file(name=name and f"{name}-lengths")

    def append(self, text: NDArray[np.uint8], lengths: NDArray[np.uint32]) -> None:
        """Add names at the end: their bytes, and the length of each."""
        self._text.write(self.size, text)
        self._lengths.write(4 * self.count, lengths)
        self.size += text.size
        self.count += lengths.size

    def pieces(self) -> Iterator[Piece]:
        """Yield all names in order, some at a time, as `append` takes them."""
        at = 0
        for first, stop in spans(self.count, MAX_PIECE_NAMES):
            lengths = self._lengths.read_array(np.uint32, first, stop - first)
            for part, size in _parts(lengths):
                yield self._text.read_array(np.uint8, at, size), lengths[part]
                at += size

    def whole(self) -> Piece:
        """Read all names at once."""
        return self.some(0, self.count, 0)

    def some(self, first: int, count: int, at: int) -> Piece:
        """Read `count` names from name `first` on, which begins with byte `at`."""
        lengths = self._lengths.read_array(np.uint32, first, count)
        return self._text.read_array(np.uint8, at, int(lengths.sum(dtype=np.int64))), lengths

    def starts(self) -> list[int]:
        """Give the byte that every MAX_PIECE_NAMES-th name begins with."""
        found, at = [], 0
        for first, stop in spans(self.count, MAX_PIECE_NAMES):
            found.append(at)
            at += int(self._lengths.read_array(np.uint32, first, stop - first).sum(dtype=np.int64))
        return found

    def close(self) -> None:
        """Give the disk space back."""
        self._text.close()
        self._lengths.close()


def _parts(lengths: NDArray[np.uint32]) -> Iterator[tuple[slice, int]]:
    """Cut names into pieces; yields which names each has, and their bytes."""
    offsets = np.zeros(lengths.size + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    for first, stop in spans_of_bytes(offsets, MAX_PIECE_BYTES):
        yield slice(first, stop), int(offsets[stop] - offsets[first])


@entry((TEXT, INT64S, UINT32S, INT64S, types.uint8[::1]))
def _gather(text, starts, lengths, order, out):  # type: ignore[no-untyped-def]
    at = np.int64(0)
    for k in order:
        start = starts[k]
        for i in range(np.int64(lengths[k])):
            out[at + i] = text[start + i]
        at += np.int64(lengths[k])


def take_strings(
    text: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.uint32], order: NDArray[np.int64]
) -> NDArray[np.uint8]:
    """Put the strings that `order` picks end to end; k is ``text[starts[k]:starts[k] + lengths[k]]``."""
    out = np.empty(int(lengths[order].sum(dtype=np.int64)), np.uint8)
    _gather(text, starts, lengths, order, out)
    return out


class NumberedStrings(StringFile):
    """Strings on disk with a number for each, such as its row."""

    def __init__(self, spill_dir: SpillDir) -> None:
        super().__init__(spill_dir)
        self._numbers = spill_dir.file()

    def add(self, text: NDArray[np.uint8], lengths: NDArray[np.uint32], numbers: NDArray[np.uint32]) -> None:
        """Add strings at the end, with their numbers."""
        self._numbers.write(4 * self.count, numbers)
        self.append(text, lengths)

    def numbers(self, first: int, count: int) -> NDArray[np.uint32]:
        """Numbers of `count` strings from string `first` on."""
        return self._numbers.read_array(np.uint32, first, count)

    def numbered_pieces(self) -> Iterator[tuple[Piece, NDArray[np.uint32]]]:
        """Yield all strings in order, some at a time, with their numbers."""
        done = 0
        for piece in self.pieces():
            yield piece, self.numbers(done, piece[1].size)
            done += piece[1].size

    def close(self) -> None:
        """Give the disk space back."""
        super().close()
        self._numbers.close()


def write_strings(labels: Iterable[str] | Iterable[Piece], spill_dir: SpillDir) -> StringFile:
    """Write labels to temporary files."""
    names = StringFile(spill_dir)
    for text, lengths in text_pieces(labels):
        names.append(text, lengths.astype(np.uint32, copy=False))
    return names


def _partition(
    pieces: Iterable[tuple[Piece, NDArray[np.uint32]]],
    bucket_of: Callable[[Piece, NDArray[np.uint32]], NDArray[Any]],
    buckets: int,
    spill_dir: SpillDir,
) -> list[NumberedStrings]:
    """Write numbered strings to so many buckets, each in the order in which they come."""
    files = [NumberedStrings(spill_dir) for _ in range(buckets)]
    for (text, lengths), numbers in pieces:
        places = bucket_of((text, lengths), numbers)
        starts = np.cumsum(lengths, dtype=np.int64) - lengths
        order = np.argsort(places, kind="stable")
        for part in np.split(order, np.flatnonzero(np.diff(places[order])) + 1):
            if part.size:
                here = take_strings(text, starts, lengths, part)
                files[int(places[part[0]])].add(here, lengths[part], numbers[part])
    return files


def permute_strings(
    names: StringList, rows: NDArray[np.uint32], spill_dir: SpillDir, space: int
) -> Iterator[Piece]:
    """Yield strings in another order: `rows` is the place that each of them gets, uint32, a permutation.

    They go through temporary files if they do not fit in `space` bytes of memory, beside a few pieces.
    """

    def with_rows() -> Iterator[tuple[Piece, NDArray[np.uint32]]]:
        done = 0
        for piece in names.pieces():
            yield piece, rows[done : done + piece[1].size]
            done += piece[1].size

    yield from _permuted(names, with_rows(), 0, rows.size, spill_dir, space)


def _permuted(
    names: StringList,
    pieces: Iterable[tuple[Piece, NDArray[np.uint32]]],
    low: int,
    high: int,
    spill_dir: SpillDir,
    space: int,
) -> Iterator[Piece]:
    """Partition strings of the rows `low` to `high` - 1 into buckets of equally many rows, and sort these."""
    wanted = -(-(names.size + BYTES_PER_NAME * names.count) // max(1, space))
    step = max(1, -(-(high - low) // min(max(wanted, 1), BUCKETS)))
    buckets = _partition(pieces, lambda _, rows: (rows - low) // step, len(range(low, high, step)), spill_dir)
    for k, bucket in enumerate(buckets):
        first = low + k * step
        if step > 1 and bucket.size + BYTES_PER_NAME * bucket.count > space:
            end = min(high, first + step)
            yield from _permuted(bucket, bucket.numbered_pieces(), first, end, spill_dir, space)
        else:
            yield from _sorted(bucket)
        bucket.close()


def _sorted(bucket: NumberedStrings) -> Iterator[Piece]:
    text, lengths = bucket.whole()
    starts = np.cumsum(lengths, dtype=np.int64) - lengths
    order = np.argsort(bucket.numbers(0, bucket.count), kind="stable")
    for first in range(0, order.size, MAX_PIECE_NAMES):
        part = order[first : first + MAX_PIECE_NAMES]
        for piece, _ in _parts(lengths[part]):
            yield take_strings(text, starts, lengths, part[piece]), lengths[part[piece]]


SORT_BYTES_PER_STRING = 128
"""What Python keeps for a string that is sorted, beside its bytes, which are there three times."""

_SPLITTERS_FROM = 1 << 12
"""Strings of which those are taken that cut a list in parts."""


def external_argsort(keys: NumberedStrings, spill_dir: SpillDir, space: int) -> Iterator[NDArray[np.uint32]]:
    """Yield the numbers of keys as these are sorted by their bytes, equal ones as they come.

    The keys, which may take `space` bytes of memory at once beside a few pieces, are closed once they are
    read.
    """
    if 3 * keys.size + SORT_BYTES_PER_STRING * keys.count <= space or keys.count < 2:
        strings, numbers = split_strings(keys.whole()), keys.numbers(0, keys.count)
        keys.close()
        yield numbers[sorted(range(len(strings)), key=strings.__getitem__)]
        return
    splitters = _splitters(keys)
    buckets = _partition(
        keys.numbered_pieces(),
        lambda piece, _: np.array([bisect_right(splitters, key) for key in split_strings(piece)]),
        len(splitters) + 1,
        spill_dir,
    )
    keys.close()
    for low, bucket in zip([b"", *splitters], buckets, strict=True):
        if low + b"\0" in splitters:
            # All keys from this one to the next possible are equal.
            for first, stop in spans(bucket.count, MAX_PIECE_NAMES):
                yield bucket.numbers(first, stop - first)
            bucket.close()
        else:
            yield from external_argsort(bucket, spill_dir, space)


def _splitters(keys: NumberedStrings) -> list[bytes]:
    """Choose different keys, ascending, that cut all of them in parts; or one that is alone in its part."""
    step = -(-keys.count // _SPLITTERS_FROM)
    some: list[bytes] = []
    done = 0
    for piece in keys.pieces():
        some += split_strings(piece)[-done % step :: step]
        done += piece[1].size
    some.sort()
    chosen = sorted({some[k * len(some) // BUCKETS] for k in range(1, BUCKETS)} - {some[0]})
    return chosen or [some[0], some[0] + b"\0"]


def split_strings(piece: Piece) -> list[bytes]:
    """Make an object of each string."""
    text, lengths = piece
    whole, ends = text.tobytes(), np.cumsum(lengths, dtype=np.int64).tolist()
    return [whole[start:end] for start, end in zip([0, *ends], ends, strict=False)]
