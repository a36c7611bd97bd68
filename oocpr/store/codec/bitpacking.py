"""One packed stream: values in, words, widths, exceptions and directory out, and back.

The first part are instructions that numba does not find by itself, as LLVM intermediate code, without checks
of bounds. Vectors have sixteen 32-bit lanes; LLVM splits or joins them for the processor at hand.
"""

# numba compiles by the types of the arguments, not by annotations.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True, allow-untyped-calls=True

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types, uint32, uint64
from numba.core import cgutils
from numba.extending import intrinsic as _intrinsic
from numpy.typing import DTypeLike, NDArray

from oocpr.jit import BORROWING, entry, inner
from oocpr.store.codec.layout import GROUP, Counts, Stream, allocate_offsets, parse_offsets, word_rows

# The decorated function is called with one argument less than it is declared with.
intrinsic: Any = _intrinsic

_LANES = 16
_I32 = ir.IntType(32)
_I64 = ir.IntType(64)
_VEC = ir.VectorType(_I32, _LANES)
_ZERO = ir.Constant(_VEC, [0] * _LANES)
_LAST = ir.Constant(_VEC, [_LANES - 1] * _LANES)
_UNDEFINED = ir.Constant(_VEC, ir.Undefined)
_ONE = ir.Constant(_VEC, [1] * _LANES)


def _splat(b: Any, value: Any) -> Any:
    first = b.insert_element(_UNDEFINED, value, ir.Constant(_I32, 0))
    return b.shuffle_vector(first, _UNDEFINED, _ZERO)


def _address(b: Any, array: Any, index: Any) -> Any:
    return b.bitcast(b.gep(array.data, [index]), _VEC.as_pointer())


def _load(b: Any, array: Any, index: Any) -> Any:
    value = b.load(_address(b, array, index))
    value.align = 4
    return value


def _store(b: Any, value: Any, array: Any, index: Any) -> None:
    b.store(value, _address(b, array, index)).align = 4


def _running_sum(b: Any, v: Any) -> Any:
    for step in (1, 2, 4, 8):
        lanes = [_LANES + j - step if j >= step else j for j in range(_LANES)]
        v = b.add(v, b.shuffle_vector(_ZERO, v, ir.Constant(_VEC, lanes)))
    return v


@intrinsic
def bit_length(typingctx, value):  # noqa: ARG001
    """Number of bits of a uint32 without its leading zeros."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
        return b.sub(ir.Constant(_I32, 32), b.ctlz(args[0], ir.Constant(ir.IntType(1), 0)))

    return types.uint32(types.uint32), codegen


@intrinsic
def count_ones(typingctx, word):  # noqa: ARG001
    """Number of bits of a uint64 that are set."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
        return b.ctpop(args[0])

    return types.uint64(types.uint64), codegen


@intrinsic
def lowest_one(typingctx, word):  # noqa: ARG001
    """Number of zeros below the lowest set bit of a uint64 that is not 0."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
        return b.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), codegen


@intrinsic
def lanes_above(typingctx, values, at, limit):  # noqa: ARG001
    """Which of the 32 values at ``values[at:at+32]`` are above `limit`: bit k for value k."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        source = context.make_array(signature.args[0])(context, b, args[0])
        limits = _splat(b, args[2])
        halves = []
        for half in (0, _LANES):
            value = _load(b, source, b.add(args[1], ir.Constant(_I64, half)))
            above = b.bitcast(b.icmp_unsigned(">", value, limits), ir.IntType(_LANES))
            halves.append(b.zext(above, _I32))
        return b.or_(halves[0], b.shl(halves[1], ir.Constant(_I32, _LANES)))

    return types.uint32(values, types.uint64, types.uint32), codegen


@intrinsic
def unpack_group(typingctx, words, row, next_row, shift, width, plus, out, at):  # noqa: ARG001
    """Write 32 values of `width` bits plus `plus` to ``out[at:at+32]``.

    The bits start at bit `shift` (0..31) of word `row` of each lane and run on into word `next_row`.
    """
    u32, u64 = types.uint32, types.uint64

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        source = context.make_array(signature.args[0])(context, b, args[0])
        target = context.make_array(signature.args[6])(context, b, args[6])
        _, row, next_row, shift, width, plus, _, at = args
        one = ir.Constant(_I64, 1)
        mask = b.trunc(b.sub(b.shl(one, b.zext(width, _I64)), one), _I32)
        down, up = _splat(b, shift), _splat(b, b.sub(ir.Constant(_I32, 31), shift))
        masks, more = _splat(b, mask), _splat(b, plus)
        for half in (0, _LANES):
            offset = ir.Constant(_I64, half)
            low = _load(b, source, b.add(b.shl(row, ir.Constant(_I64, 5)), offset))
            high = _load(b, source, b.add(b.shl(next_row, ir.Constant(_I64, 5)), offset))
            # Shifting left by one and then by 31 - shift is defined for shift 0 too.
            joined = b.or_(b.lshr(low, down), b.shl(b.shl(high, _ONE), up))
            _store(b, b.add(b.and_(joined, masks), more), target, b.add(at, offset))
        return context.get_dummy_value()

    return types.void(words, u64, u64, u32, u32, u32, out, u64), codegen


@intrinsic
def running_sums(typingctx, source, source_at, target, target_at, vectors, before):  # noqa: ARG001
    """Write the running sums of 16 * `vectors` values, begun with `before`, to `target`.

    Both arrays are taken from an index on; they may be the same. Sums are modulo 2^32. Returns the largest.
    """
    u32, u64 = types.uint32, types.uint64

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        src = context.make_array(signature.args[0])(context, b, args[0])
        dst = context.make_array(signature.args[2])(context, b, args[2])
        _, source_at, _, target_at, vectors, before = args
        carry = cgutils.alloca_once_value(b, _splat(b, before))
        top = cgutils.alloca_once_value(b, _ZERO)
        with cgutils.for_range(b, vectors) as loop:
            step = b.shl(loop.index, ir.Constant(_I64, 4))
            sums = _running_sum(b, _load(b, src, b.add(source_at, step)))
            # Only one addition waits for the vector before: the last sum is spread before the carry is known.
            old = b.load(carry)
            b.store(b.add(old, b.shuffle_vector(sums, _UNDEFINED, _LAST)), carry)
            sums = b.add(sums, old)
            _store(b, sums, dst, b.add(target_at, step))
            best = b.load(top)
            b.store(b.select(b.icmp_unsigned(">", sums, best), sums, best), top)
        kind = ir.FunctionType(_I32, [_VEC])
        reduce = cgutils.get_or_insert_function(b.module, kind, f"llvm.vector.reduce.umax.v{_LANES}i32")
        return b.call(reduce, [b.load(top)])

    return u32(source, u64, target, u64, u64, u32), codegen


@entry()
def _choose_widths(values, widths):
    """Choose the width of fewest bits for each group; returns the numbers of narrow and wide exceptions."""
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
    """How padded values, of which `size` count, will be packed: widths of groups, numbers of exceptions."""

    values: NDArray[np.uint32]
    size: int
    widths: NDArray[np.uint8]
    narrow: int
    wide: int

    def counts(self) -> Counts:
        """Sizes of the stream."""
        rows = word_rows(int(self.widths.sum(dtype=np.int64)))
        return Counts(self.size, rows, self.wide, self.narrow)

    @property
    def nbytes(self) -> int:
        """Bytes of the stream in a chunk."""
        return fixed_bytes(self.widths.size) + 128 * self.counts().rows + 4 * self.wide + 2 * self.narrow


def fixed_bytes(groups: int) -> int:
    """Bytes of the widths and the directory of a stream, whatever its values are."""
    return groups + 16 * (-(-groups // 32) + 1)


def choose_widths(space: BufferPool, name: str, values: NDArray[np.uint32], size: int) -> WidthChoice:
    """Choose the widths of fewest bytes for padded values; valid until the next choice of that name."""
    widths = space.array(f"{name} widths", values.size // GROUP, np.uint8)
    return WidthChoice(values, size, widths, *_choose_widths(values, widths))


def pack_into(choice: WidthChoice, stream: Stream) -> None:
    """Pack values as chosen into memory for `choice.counts()`; the carries are left 0."""
    stream.words[:] = 0
    stream.directory[:, 3] = 0
    stream.widths[:] = choice.widths
    _fill(choice.values, stream.widths, stream.words, stream.directory, stream.wide, stream.narrow)


def padded(space: BufferPool, name: str, count: int) -> NDArray[np.uint32]:
    """Memory for `count` values of a stream; those behind them, to a multiple of 32, are 0."""
    values = space.array(name, -(-count // GROUP) * GROUP, np.uint32)
    values[count:] = 0
    return values


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
    """Arrays that are used again: fresh memory costs more than most of what is done with it."""

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
    choice = choose_widths(BufferPool(), "steps", values, steps.size)
    coded, stream = allocate_offsets(int(offsets[0]), choice.counts())
    pack_into(choice, stream)
    return coded.tobytes()


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
