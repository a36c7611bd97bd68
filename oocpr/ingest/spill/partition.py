"""Edges as keys in spill files, partitioned into buckets: ranges of keys that are sorted one after the other.

A key is row << 32 | column in memory. In a file it is the row counted from some first row, and the column in
as few bits as its neighbours need, in whole bytes: 5 of them if a graph has millions of nodes::

    (row - first row) << bits of a column | column      in the lowest `width` bytes

If edges have weights, each key is followed by its weight, a float64; functions that take weights take an
empty array if there are none.

Each block of keys is written grouped by bucket, so that a bucket is later gathered from a piece of each
block: every key is written once and read once. While a source is read, buckets are ranges of rows: half of
them follow from the first block, half divide the rows evenly, for first blocks that are unlike the rest. A
bucket that is too large all the same is partitioned again when its turn comes, by a pass that counts its keys
first: into contiguous rows as a rule, and parts of the columns of one row if a row alone is too large.
"""

# numba compiles by the types of the arguments, not by annotations.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True, allow-untyped-calls=True

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types, uint32, uint64
from numpy.typing import NDArray

from oocpr.ingest.spill.files import SpillFile, require_disk
from oocpr.jit import entry
from oocpr.store.codec.bitpacking import BufferPool, intrinsic

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future


KEY_BYTES = 8
"""Bytes of a key in memory, and most bytes of one in a file."""

WEIGHT_BYTES = 8
NO_WEIGHTS = np.empty(0)
BIN_BITS = 16
MAX_BUCKETS = 512
_KEYS_PER_PIECE = 1 << 10
_MAX_BLOCK = 1 << 20
"""Most keys of a block when a run is partitioned; the bucket of each takes 2 bytes."""

_READ_BYTES = 1 << 18
"""Read from the disk at once."""

_PAD = KEY_BYTES
"""Bytes behind the last key, which is read as a whole word: files of keys in fewer bytes have them, too."""

_I64 = ir.IntType(64)


# Words at any byte, and changes that several threads make at once; nothing checks a bound.
def _place(context: Any, b: Any, signature: Any, args: Any) -> Any:
    """Address of an entry of the first argument, an array; the second one says which."""
    array = context.make_array(signature.args[0])(context, b, args[0])
    return b.gep(array.data, [args[1]])


@intrinsic
def load_word(typingctx, data, at):  # noqa: ARG001
    """Eight bytes of a uint8 array from `at` on, as a uint64."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        word = b.load(b.bitcast(_place(context, b, signature, args), _I64.as_pointer()))
        word.align = 1
        return word

    return types.uint64(data, types.uint64), codegen


@intrinsic
def store_word(typingctx, data, at, word):  # noqa: ARG001
    """Write a uint64 to eight bytes of a uint8 array from `at` on."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        place = b.bitcast(_place(context, b, signature, args), _I64.as_pointer())
        b.store(args[2], place).align = 1
        return context.get_dummy_value()

    return types.void(data, types.uint64, types.uint64), codegen


def _atomic(operation: str) -> Any:
    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        b.atomic_rmw(operation, _place(context, b, signature, args), args[2], "monotonic")
        return context.get_dummy_value()

    return codegen


@intrinsic
def set_bits(typingctx, words, at, bits):  # noqa: ARG001
    """Set bits of an entry of a uint64 array, whatever other threads do to it."""
    return types.void(words, types.uint64, types.uint64), _atomic("or")


@intrinsic
def add_count(typingctx, counts, at, more):  # noqa: ARG001
    """Add to an entry of a uint32 array, whatever other threads do to it."""
    return types.void(counts, types.uint64, types.uint32), _atomic("add")


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


@entry()
def relabel_keys(keys, numbers):
    """Replace rows and columns of keys, uint64, by their `numbers`, uint32, in place."""
    for i in range(keys.size):
        row = uint64(numbers[keys[i] >> uint64(32)])
        column = uint64(numbers[keys[i] & uint64(0xFFFFFFFF)])
        keys[i] = row << uint64(32) | column


def record_bytes(*, weighted: bool) -> int:
    """Bytes of a whole key in a file, with its weight."""
    return KEY_BYTES + WEIGHT_BYTES * weighted


def to_words(keys: NDArray[np.uint64], weights: NDArray[np.float64]) -> NDArray[np.uint64]:
    """Interleave keys and weights, as a file of whole keys has them."""
    if not weights.size:
        return keys
    words = np.empty((keys.size, 2), np.uint64)
    words[:, 0], words[:, 1] = keys, weights.view(np.uint64)
    return words.reshape(-1)


@dataclass(frozen=True)
class KeyExtents:
    """Where keys are in a file, and how they are written there.

    Of each extent its first byte, number of keys, bytes of a key and bits of its column. Rows are counted
    from `first_row`; if `weighted`, a weight follows each key.
    """

    places: NDArray[np.int64]
    counts: NDArray[np.int64]
    widths: NDArray[np.uint8]
    column_bits: NDArray[np.uint8]
    first_row: int
    weighted: bool = False

    @classmethod
    def joined(cls, parts: Sequence[KeyExtents]) -> KeyExtents:
        """Join extents of one file whose rows are counted from the same one."""
        places, counts, widths, column_bits = (
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("places", "counts", "widths", "column_bits")
        )
        return cls(places, counts, widths, column_bits, parts[0].first_row, parts[0].weighted)

    def between(self, start: int, stop: int) -> KeyExtents:
        """Give those of the keys number `start` to `stop` - 1."""
        ends = np.cumsum(self.counts)
        begins = ends - self.counts
        here = (begins < stop) & (ends > start)
        skipped = np.maximum(start - begins[here], 0)
        counts = np.minimum(ends[here], stop) - begins[here] - skipped
        chosen = self.chosen(here)
        return replace(chosen, places=chosen.places + skipped * chosen.record_sizes, counts=counts)

    def chosen(self, here: NDArray[np.bool_]) -> KeyExtents:
        """Give some of them."""
        widths, column_bits = self.widths[here], self.column_bits[here]
        places, counts = self.places[here], self.counts[here]
        return KeyExtents(places, counts, widths, column_bits, self.first_row, self.weighted)

    @property
    def record_sizes(self) -> NDArray[np.int64]:
        """Bytes of a key of each, with its weight."""
        return self.widths.astype(np.int64) + WEIGHT_BYTES * self.weighted

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Bytes of each."""
        return self.counts * self.record_sizes

    def unpack(self, data: NDArray[np.uint8], keys: NDArray[np.uint64], weights: NDArray[np.float64]) -> None:
        """Write all keys, and their weights if there is room; behind the last key `data` has a word more."""
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
        """Describe keys written as they are, uint64, from key number `start` of the file on."""
        place = np.full(1, start * record_bytes(weighted=weighted))
        width = np.full(1, KEY_BYTES, np.uint8)
        extents = KeyExtents(place, np.full(1, count), width, 4 * width, 0, weighted)
        return cls(file, count, low, high, extents)

    def records(
        self, buffer: NDArray[np.uint64], weight_buffer: NDArray[np.float64] = NO_WEIGHTS
    ) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.float64]]]:
        """Yield all keys and, if there is a buffer of the same size for them, their weights.

        They come as many at a time as the buffers hold, which each block overwrites.
        """
        for done in range(0, self.count, buffer.size):
            keys = buffer[: min(buffer.size, self.count - done)]
            weights = weight_buffer[: keys.size]
            whole = self.count <= buffer.size
            extents = self.extents if whole else self.extents.between(done, done + keys.size)
            in_memory = extents.places + extents.sizes <= self.file.in_memory
            held = extents.chosen(in_memory)
            count = int(held.counts.sum())
            held.unpack(self.file.memory, keys[:count], weights[:count])
            if count < keys.size:
                self._read_file(extents.chosen(~in_memory), keys[count:], weights[count:])
            yield keys, weights

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


@entry()
def _count_bins(keys, low, shift, counts):
    for key in keys:
        counts[(key - low) >> shift] += 1


@entry()
def _find_buckets(values, low, shift, bucket_of, numbers, counts):
    """Find the bucket of each row or key, and how many each bucket gets."""
    last = uint64(bucket_of.size - 1)
    counts[:] = 0
    for i in range(uint64(values.size)):
        bucket = bucket_of[min((uint64(values[i]) - low) >> shift, last)]
        numbers[i] = bucket
        counts[bucket] += uint32(1)


@entry()
def _partition(rows, columns, weights, numbers, first_rows, column_bits, width, places, out):
    """Write each key at the place of its bucket, and up to 7 bytes more that the next one overwrites."""
    weighted = weights.size > 0
    step = width + uint64(WEIGHT_BYTES) * uint64(weighted)
    for i in range(uint64(rows.size)):
        bucket = uint64(numbers[i])
        at = places[bucket]
        row = uint64(rows[i]) - first_rows[bucket]
        store_word(out, at, row << column_bits | uint64(columns[i]))
        if weighted:
            store_word(out, at + width, weights[i])
        places[bucket] = at + step


def bin_shift(span: int) -> int:
    """Bits to drop of a key's distance from the lowest, so that at most 2^16 bins cover `span` keys."""
    return max(0, (span - 1).bit_length() - BIN_BITS)


def plan_buckets(counts: Sequence[int], capacity: int) -> list[int]:
    """Join neighbouring bins of so many keys to buckets of at most `capacity`; a larger bin stays alone.

    Returns the first bin of each bucket, ascending from 0.
    """
    starts, held = [0], 0
    for bin_, count in enumerate(counts):
        if bin_ and held + count > capacity:
            starts.append(bin_)
            held = 0
        held += count
    return starts


class _Block(NamedTuple):
    """A block in the file: its first byte, bytes of a key, bits of a column, keys of each bucket."""

    at: int
    width: int
    column_bits: int
    counts: NDArray[np.uint32]


class PartitionedFile:
    """Blocks of keys in a spill file, each grouped by bucket.

    Bucket b has the keys from ``lows[b]`` to below ``lows[b + 1]``, its rows counted from ``first_rows[b]``,
    uint64; all keys are below `high`.
    """

    def __init__(
        self,
        file: SpillFile,
        lows: Sequence[int],
        first_rows: NDArray[np.uint64],
        high: int = 0,
        *,
        weighted: bool,
    ) -> None:
        self.file = file
        self.high = high
        self.blocks: list[_Block] = []
        self.weight_bytes = WEIGHT_BYTES * weighted
        self.first_rows = first_rows
        self._lows = lows

    def write_block(
        self,
        rows: NDArray[np.uint32],
        columns: NDArray[np.uint32],
        weights: NDArray[np.float64],
        numbers: NDArray[np.uint16],
        counts: NDArray[np.uint32],
        column_bits: int,
        width: int,
        buffer: Callable[[int], NDArray[np.uint8]],
    ) -> None:
        """Write a block of keys of `width` bytes with their buckets' `numbers`; several threads may at once.

        `buffer` gives memory for bytes that do not stay in the file's own.
        """
        # Between buckets whole words may end.
        sizes = counts.astype(np.uint64) * np.uint64(width + self.weight_bytes) + np.uint64(KEY_BYTES - width)
        places = np.concatenate([np.zeros(1, np.uint64), np.cumsum(sizes)])
        size = int(places[-1])
        at, view = self.file.reserve(size)
        out = buffer(size) if view is None else view
        layout = (self.first_rows, np.uint64(column_bits), np.uint64(width), places[:-1])
        _partition(rows, columns, weights.view(np.uint64), numbers, *layout, out)
        if view is None:
            self.file.write(at, out)
        self.blocks.append(_Block(at, width, column_bits, counts))

    def runs(self) -> Iterator[KeyRun]:
        """Yield the buckets that have keys, in ascending order."""
        if not self.blocks:
            return
        at, widths, column_bits = (np.array([block[k] for block in self.blocks]) for k in range(3))
        widths, column_bits = widths.astype(np.uint8), column_bits.astype(np.uint8)
        all_counts = np.array([block.counts for block in self.blocks])
        for bucket, low in enumerate(self._lows):
            counts = all_counts[:, bucket].astype(np.int64)
            if counts.any():
                first, weighted = int(self.first_rows[bucket]), self.weight_bytes > 0
                extents = KeyExtents(at, counts, widths, column_bits, first, weighted).chosen(counts > 0)
                below = min([self.high, *self._lows[bucket + 1 : bucket + 2]])
                yield KeyRun(self.file, int(counts.sum()), low, below, extents)
            at = at + counts * (widths + np.int64(self.weight_bytes)) + (KEY_BYTES - widths)


class Edges(NamedTuple):
    """Edges of the one type that compiled functions take: contiguous, and not to be written to.

    Edge k runs from ``src[k]`` to ``dst[k]``, uint32; `weight` is empty if there are none.
    """

    src: NDArray[np.uint32]
    dst: NDArray[np.uint32]
    largest_src: int
    largest_dst: int
    weight: NDArray[np.float64] = NO_WEIGHTS

    @classmethod
    def of(cls, src: NDArray[Any], dst: NDArray[Any], weight: NDArray[np.float64] | None = None) -> Edges:
        """Take ids below 2^32, integers of any type, and weights."""
        src, dst = np.ascontiguousarray(src, np.uint32)[:], np.ascontiguousarray(dst, np.uint32)[:]
        src.flags.writeable = dst.flags.writeable = False
        weight = NO_WEIGHTS if weight is None else weight
        return cls(src, dst, int(src.max(initial=0)), int(dst.max(initial=0)), weight)


class BoundedExecutor:
    """Has calls made by the threads of a pool, at most `limit` of them queued or running, in any order."""

    def __init__(self, pool: Executor, limit: int) -> None:
        self._pool = pool
        self.limit = limit
        self._pending: deque[Future[None]] = deque()

    def submit(self, function: Callable[..., None], *args: Any) -> None:
        """Have a function called; raises what an earlier call raised."""
        while len(self._pending) >= self.limit:
            self._pending.popleft().result()
        self._pending.append(self._pool.submit(function, *args))

    def finish(self) -> None:
        """Wait until all calls have ended; raises what one of them raised."""
        while self._pending:
            self._pending.popleft().result()


class Partitioner(PartitionedFile):
    """Writes blocks of edges, as they come, to a file that nobody else writes to, each grouped by bucket.

    `block_edges` is the most edges of a block, `rows` how many rows there are, None if that is not known. The
    buckets follow from a sample, which `plan` gets before the first edges are added.
    """

    def __init__(
        self, file: SpillFile, block_edges: int, rows: int | None, *, weighted: bool = False
    ) -> None:
        super().__init__(file, [], np.empty(0, np.uint64), weighted=weighted)
        self.count = 0
        self._buckets = max(2, min(MAX_BUCKETS, block_edges // _KEYS_PER_PIECE))
        self._rows = rows
        self._shift = np.uint64(0)
        self._bucket_of = np.empty(0, np.uint16)
        self._last_rows = np.empty(0, np.uint64)
        self._lock = threading.Lock()
        self._buffers: deque[BufferPool] = deque()

    def plan(self, sample: NDArray[np.uint32]) -> None:
        """Choose the buckets by rows of some edges, uint32, shape (k,)."""
        span = int(sample.max(initial=0)) + 1 if self._rows is None else self._rows
        shift = np.uint64(bin_shift(span))
        bins = np.bincount((sample >> shift).astype(np.int64), minlength=-(-span >> int(shift)))
        share = (np.cumsum(bins) - bins) / max(1, sample.size) + np.arange(bins.size) / bins.size
        self._divide(shift, (share * (self._buckets / 2)).astype(np.uint16))

    def _divide(self, shift: np.uint64, bucket_of: NDArray[np.uint16]) -> None:
        """Set the bucket of each bin of rows; the last bin takes all rows beyond it."""
        self._shift, self._bucket_of = shift, bucket_of
        first_rows = np.searchsorted(bucket_of, np.arange(self._buckets)).astype(np.uint64) << shift
        first_rows[int(bucket_of[-1]) + 1 :] = 2**32
        self._last_rows = np.append(first_rows[1:], np.uint64(2**32)) - np.uint64(1)
        self.first_rows, self._lows = first_rows, [int(row) << 32 for row in first_rows]

    def add(self, edges: Edges) -> None:
        """Write some edges; several threads may do so at once."""
        src, dst, largest_src, largest_dst, weight = edges
        if not src.size:
            return
        try:
            buffers = self._buffers.pop()
        except IndexError:
            buffers = BufferPool()
        counts = np.empty(self._buckets, np.uint32)
        numbers = buffers.array("buckets", src.size, np.uint16)
        _find_buckets(dst, np.uint64(0), self._shift, self._bucket_of, numbers, counts)

        column_bits = largest_src.bit_length()
        tops = np.minimum(self._last_rows, np.uint64(largest_dst))[counts > 0]
        row_bits = int((tops - self.first_rows[counts > 0]).max()).bit_length()
        layout = (column_bits, max(1, -(-(row_bits + column_bits) // 8)))
        self.write_block(
            dst, src, weight, numbers, counts, *layout, lambda size: buffers.array("out", size, np.uint8)
        )
        with self._lock:
            self.count += src.size
            self.high = max(self.high, largest_dst + 1 << 32)
        self._buffers.append(buffers)

    def state(self) -> dict[str, Any]:
        """Describe the buckets and blocks as JSON; nobody is adding any."""
        return {
            "shift": int(self._shift),
            "bins": self._bucket_of.size,
            "starts": (self.first_rows >> self._shift).tolist(),
            "largest": (self.high >> 32) - 1,
            "blocks": [[*block[:3], *block.counts.tolist()] for block in self.blocks],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue what another partitioner of the file left."""
        starts = np.array(state["starts"])
        self._buckets = starts.size
        bucket_of = np.searchsorted(starts, np.arange(state["bins"]), side="right") - 1
        self._divide(np.uint64(state["shift"]), bucket_of.astype(np.uint16))
        for at, width, column_bits, *counts in state["blocks"]:
            self.blocks.append(_Block(at, width, column_bits, np.array(counts, np.uint32)))
            self.count += sum(counts)
        self.high = state["largest"] + 1 << 32


def repartition(
    runs: Sequence[KeyRun],
    relabel: Callable[[NDArray[np.uint64]], None] | None,
    rows: int,
    out: SpillFile,
    block_edges: int,
    executor: BoundedExecutor,
    on_progress: Callable[[int], None],
    sample: NDArray[np.uint32] | None = None,
) -> Partitioner:
    """Partition edges by new keys, whose rows are below `rows`, into the file `out`.

    `relabel` turns keys into new ones, in place; None if they are new already. Buckets follow from `sample`,
    new rows of some edges, uint32; None for a sample of these. Raises DoesNotFitError if the disk has no
    room.
    """
    count = sum(run.count for run in runs)
    written = sum(int(run.extents.sizes.sum()) for run in runs)
    require_disk(out.folder, max(0, written - out.room))
    weighted = any(run.extents.weighted for run in runs)
    buffer = np.empty(max(1, min(block_edges, count)), np.uint64)
    weight_buffer = np.empty(buffer.size) if weighted else NO_WEIGHTS

    def relabelled(keys: NDArray[np.uint64], weights: NDArray[np.float64]) -> Edges:
        if relabel is not None:
            relabel(keys)
        sources, destinations = keys.astype(np.uint32), (keys >> np.uint64(32)).astype(np.uint32)
        return Edges.of(sources, destinations, weights.copy())

    partitioner = Partitioner(out, block_edges, rows, weighted=weighted)
    if sample is None:
        samples = [relabelled(*next(run.records(buffer[: -(-buffer.size // len(runs))]))).dst for run in runs]
        sample = np.concatenate(samples or [np.empty(0, np.uint32)])
    partitioner.plan(sample)
    done = 0
    for run in runs:
        for keys, weights in run.records(buffer, weight_buffer):
            executor.submit(partitioner.add, relabelled(keys, weights))
            done += keys.size
            on_progress(done)
    executor.finish()
    return partitioner


def partition_run(
    run: KeyRun, out: SpillFile, space: NDArray[np.uint64], weights: NDArray[np.float64] = NO_WEIGHTS
) -> list[KeyRun]:
    """Partition the keys of `run`, more than `space` holds and not all the same, into the empty file `out`.

    `space` is memory for two keys or more, three if they have weights, and `weights` as much for these. A
    bucket of more keys than `space` holds is one bin of keys. Raises DoesNotFitError if the disk has no room.
    """
    size = record_bytes(weighted=weights.size > 0)
    require_disk(out.folder, run.count * size)
    shift, low = bin_shift(run.high - run.low), np.uint64(run.low)
    bins = np.zeros(((run.high - run.low - 1) >> shift) + 1, np.int64)
    for keys, _ in run.records(space):
        _count_bins(keys, low, np.uint64(shift), bins)
    starts = plan_buckets(bins.tolist(), space.size)
    bucket_of = np.repeat(np.arange(len(starts), dtype=np.uint16), np.diff(np.append(starts, bins.size)))
    lows = [run.low + (start << shift) for start in starts]
    first_rows = np.zeros(len(starts), np.uint64)
    file = PartitionedFile(out, lows, first_rows, run.high, weighted=weights.size > 0)

    block = min(_MAX_BLOCK, space.size // (1 + size // KEY_BYTES))
    numbers = np.empty(block, np.uint16)
    buffer = space[block:].view(np.uint8)
    for keys, some in run.records(space[:block], weights):
        halves, counts = keys.view(np.uint32), np.empty(len(starts), np.uint32)
        _find_buckets(keys, low, np.uint64(shift), bucket_of, numbers, counts)
        file.write_block(
            halves[1::2], halves[::2], some, numbers, counts, 32, KEY_BYTES, lambda size: buffer[:size]
        )
    return list(file.runs())
