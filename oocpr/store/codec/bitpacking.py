"""One packed stream: values in, words, widths, exceptions and directory out, and back."""

# numba compiles by the types of the arguments, not by annotations.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True, allow-untyped-calls=True

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numba import uint32, uint64

from oocpr.jit import BORROWING, entry, inner
from oocpr.store.codec.layout import GROUP, Counts, Stream, blocks_of, parse_offsets, word_rows, write_offsets
from oocpr.store.codec.simd import bit_length, count_ones, lanes_above, lowest_one, unpack_group

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray


@entry()
def _choose_widths(values, widths):
    """Choose the width of least bits for each group; returns the numbers of narrow and wide exceptions."""
    longer = np.zeros(40, np.uint32)  # longer[w]: values of the group that have more than w bits
    narrow = uint64(0)
    wide = uint64(0)
    for g in range(uint64(widths.size)):
        first = uint64(32) * g
        union = uint32(0)
        for lane in range(uint64(32)):
            union |= values[first + lane]
        if union == uint32(0):
            widths[g] = 0
            continue
        full = uint64(bit_length(uint32(union)))
        for w in range(full, full + uint64(7)):
            longer[w] = 0
        best = uint64(32) * full
        width = full
        best_narrow = uint64(0)
        best_wide = uint64(0)
        for less in range(uint64(1), min(full, uint64(22)) + uint64(1)):
            w = full - less
            cut = uint32(count_ones(uint64(lanes_above(values, first, uint32((uint64(1) << w) - uint64(1))))))
            longer[w] = cut
            cut_wide = uint64(longer[w + uint64(6)])
            patches = uint64(16) * (uint64(cut) + cut_wide)
            if patches >= best:
                break
            if uint64(32) * w + patches < best:
                best = uint64(32) * w + patches
                width = w
                best_narrow = uint64(cut) - cut_wide
                best_wide = cut_wide
        widths[g] = width
        narrow += best_narrow
        wide += best_wide
    return narrow, wide


@entry()
def _fill(values, widths, words, directory, wide, narrow):
    """Write the bits, the exceptions and the directory; `words` is zero."""
    position = uint64(0)
    q_narrow = uint64(0)
    q_wide = uint64(0)
    final = uint64(words.size - 32)
    for g in range(uint64(widths.size)):
        if g & uint64(31) == uint64(0):
            b = g >> uint64(5)
            directory[b, 0] = position
            directory[b, 1] = q_narrow
            directory[b, 2] = q_wide
        w = uint64(widths[g])
        mask = uint32((uint64(1) << w) - uint64(1))
        shift = uint32(position & uint64(31))
        first = uint64(32) * g
        row = uint64(32) * (position >> uint64(5))
        if row < final:
            for lane in range(uint64(32)):
                low = uint32(values[first + lane] & mask)
                words[row + lane] |= uint32(low << shift)
                words[row + uint64(32) + lane] |= uint32((low >> uint32(1)) >> (uint32(31) - shift))
        else:
            # Nothing runs on from the last row.
            for lane in range(uint64(32)):
                words[row + lane] |= uint32(uint32(values[first + lane] & mask) << shift)
        left = uint64(lanes_above(values, first, mask))
        while left:
            lane = lowest_one(left)
            left &= left - uint64(1)
            high = uint64(values[first + lane]) >> w
            entry = ((first + lane) & uint64(1023)) | (high << uint64(10))
            if high < uint64(64):
                narrow[q_narrow] = entry
                q_narrow += uint64(1)
            else:
                wide[q_wide] = entry
                q_wide += uint64(1)
        position += w
    b = uint64(directory.shape[0] - 1)
    directory[b, 0] = position
    directory[b, 1] = q_narrow
    directory[b, 2] = q_wide


class WidthChoice(NamedTuple):
    """How a stream will be packed: width of each group, numbers of exceptions."""

    widths: NDArray[np.uint8]
    narrow: int
    wide: int

    @property
    def bits(self) -> int:
        """Bits of a lane, exceptions apart."""
        return int(self.widths.sum(dtype=np.int64))

    def counts(self, values: int) -> Counts:
        """Sizes of the stream of so many values."""
        return Counts(values, word_rows(self.bits), self.wide, self.narrow)

    @property
    def nbytes(self) -> int:
        """Bytes of the stream in a chunk."""
        return fixed_bytes(self.widths.size) + 128 * word_rows(self.bits) + 4 * self.wide + 2 * self.narrow


def fixed_bytes(groups: int) -> int:
    """Bytes of the widths and the directory of a stream, whatever its values are."""
    return groups + 16 * (-(-groups // 32) + 1)


def choose_widths(values: NDArray[np.uint32], space: BufferPool, name: str) -> WidthChoice:
    """Choose the widths of fewest bytes for padded values; valid until the next choice of that name."""
    widths = space.array(f"{name} widths", values.size // GROUP, np.uint8)
    return WidthChoice(widths, *_choose_widths(values, widths))


def pack_into(values: NDArray[np.uint32], choice: WidthChoice, stream: Stream) -> None:
    """Pack values as chosen into memory for `choice.counts`; the carries are left 0."""
    stream.words[:] = 0
    stream.directory[:, 3] = 0
    stream.widths[:] = choice.widths
    _fill(values, stream.widths, stream.words, stream.directory, stream.wide, stream.narrow)


def padded(space: BufferPool, name: str, count: int) -> NDArray[np.uint32]:
    """Memory for `count` values of a stream; those behind them, to a multiple of 32, are 0."""
    values = space.array(name, -(-count // GROUP) * GROUP, np.uint32)
    values[count:] = 0
    return values


def pack_stream(values: NDArray[np.uint32], count: int) -> Stream:
    """Pack padded values; the carries of the directory are left 0.

    >>> packed = pack_stream(np.arange(32, dtype=np.uint32), 32)
    >>> packed.widths.tolist(), packed.words.size
    ([5], 32)
    """
    choice = choose_widths(values, BufferPool(), "")
    of = choice.counts(count)
    stream = Stream(
        count,
        np.empty(GROUP * of.rows, np.uint32),
        np.empty((blocks_of(count) + 1, 4), np.uint32),
        np.empty(of.wide, np.uint32),
        np.empty(of.narrow, np.uint16),
        np.empty(choice.widths.size, np.uint8),
    )
    pack_into(values, choice, stream)
    return stream


@inner(**BORROWING, forceinline=True)
def unpack_block(stream, b, plus, out, at):
    """Write the values of block `b` of a stream, plus `plus`, to ``out[at:at+1024]``; behind the last, 0."""
    first = uint64(32) * b
    last = min(uint64(stream.widths.size), first + uint64(32))
    final = uint64(stream.words.size // 32 - 1)
    position = uint64(stream.directory[b, 0])
    to = uint64(at)
    for g in range(first, last):
        width = stream.widths[g]
        row = position >> uint64(5)
        shift = uint32(position & uint64(31))
        unpack_group(
            stream.words, row, min(row + uint64(1), final), shift, uint32(width), uint32(plus), out, to
        )
        position += uint64(width)
        to += uint64(32)
    after = b + uint64(1)
    for q in range(uint64(stream.directory[b, 1]), uint64(stream.directory[after, 1])):
        entry = uint32(stream.narrow[q])
        i = uint64(entry & uint32(1023))
        out[at + i] += uint32((entry >> uint32(10)) << uint32(stream.widths[first + (i >> uint64(5))]))
    for q in range(uint64(stream.directory[b, 2]), uint64(stream.directory[after, 2])):
        entry = uint32(stream.wide[q])
        i = uint64(entry & uint32(1023))
        out[at + i] += uint32((entry >> uint32(10)) << uint32(stream.widths[first + (i >> uint64(5))]))
    for i in range(min(uint64(1024), uint64(stream.size) - uint64(1024) * b), uint64(1024)):
        out[at + i] = 0


class BufferPool:
    """Arrays that are used again: fresh memory costs more than most of what is done with it.

    >>> space = BufferPool()
    >>> first = space.array("words", 100, np.uint32)
    >>> np.shares_memory(first, space.array("words", 50, np.uint32))
    True
    """

    def __init__(self) -> None:
        self._held: dict[str, NDArray[Any]] = {}

    def array(self, name: str, count: int, dtype: DTypeLike) -> NDArray[Any]:
        """Array of that name with `count` entries, whatever is in it; the one before is void."""
        held = self._held.get(name)
        if held is None:
            held = self._held[name] = np.empty(count, dtype)
        elif held.size < count:
            # The old array goes before the new one comes, and sizes vary a little from tile to tile.
            del held, self._held[name]
            held = self._held[name] = np.empty(count + count // 8, dtype)
        return held[:count]


def encode_offsets(offsets: NDArray[np.int64]) -> bytes | None:
    """Encode at least one offset; None if a step is negative, or 2^32 or more.

    >>> coded = encode_offsets(np.array([5, 5, 9]))
    >>> decode_offsets(np.frombuffer(coded, np.uint8)).tolist()
    [5, 5, 9]
    """
    steps = np.diff(offsets, prepend=offsets[:1])
    if steps.min() < 0 or steps.max() >= 1 << 32:
        return None
    values = np.zeros(-(-steps.size // GROUP) * GROUP, np.uint32)
    values[: steps.size] = steps
    return write_offsets(int(offsets[0]), pack_stream(values, steps.size))


def decode_offsets(buf: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Decode a chunk of offsets, int64; DamagedError if the bytes are not those of one."""
    base, steps = parse_offsets(buf)
    out = np.empty(steps.size, np.int64)
    _add_up(steps, base, out)
    return out


@entry()
def _add_up(steps, base, out):
    buf = np.empty(1024, np.uint32)
    total = np.int64(base)
    for b in range(uint64(steps.directory.shape[0] - 1)):
        unpack_block(steps, b, 0, buf, uint64(0))
        first = uint64(1024) * b
        for i in range(min(uint64(1024), uint64(steps.size) - first)):
            total += np.int64(buf[i])
            out[first + i] = total
