"""BVGraph, the format of the WebGraph framework: a stream of bits and a file of properties beside it.

Boldi and Vigna, "The WebGraph framework I: compression techniques", WWW 2004. A list of successors is its
length; how far back the list is that it copies from; blocks of that list, copied and skipped in turn; runs of
neighbouring numbers; and the rest as gaps. All are in instantaneous codes, the highest bit of each byte
first: unary (n zeros and a one), gamma and delta (Elias, IEEE Trans. Inf. Theory 21, 1975), zeta (Boldi and
Vigna, "Codes for the World Wide Web", Internet Math. 2, 2005) and nibbles of three bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import numpy as np

from oocpr.errors import InputError
from oocpr.jit import entry, inner
from oocpr.sources.base import FileSource
from oocpr.sources.block import MAX_NODES, EdgeBlock
from oocpr.sources.files import ByteStream
from oocpr.sources.lines import LineReader, whole_numbers

if TYPE_CHECKING:
    from oocpr.sources.base import SourceOptions
    from oocpr.sources.files import InputFile

_CHUNK_BYTES = 1 << 20
_ROOM = 1 << 10  # successors of a list, at first

_KEYS = (
    "graphclass", "endianness", "version", "nodes", "arcs", "windowsize", "minintervallength", "zetak",
    "compressionflags",
)  # fmt: skip
_CODES = ("UNARY", "GAMMA", "DELTA", "ZETA", "NIBBLE")
_FLAGS = ("OUTDEGREES", "REFERENCES", "BLOCK_COUNT", "BLOCKS", "RESIDUALS")
_DEFAULTS = ("GAMMA", "UNARY", "GAMMA", "GAMMA", "ZETA")


class BVGraphFile(FileSource):
    """``NAME.graph`` with ``NAME.properties`` beside it: node x has row x."""

    def __init__(self, files: Sequence[InputFile], **options: Unpack[SourceOptions]) -> None:
        super().__init__(files, **options)
        [file] = self.files
        stem = Path(file.name).stem
        self.files = [
            file if file.name.endswith(kind) else _sibling(file, stem + kind)
            for kind in (".graph", ".properties")
        ]
        self.size = self.files[0].size

    def _read(self, max_edges: int) -> Iterator[EdgeBlock]:
        properties = _Properties(self.files[1])
        self.nodes = properties.number("nodes", MAX_NODES)
        arcs, window = properties.number("arcs"), properties.number("windowsize", 1 << 16)
        least_run = properties.number("minintervallength", MAX_NODES)
        zeta = properties.number("zetak", 60, minimum=1, missing=3)
        codes = properties.codes()
        self._read_labels()
        room = _ROOM
        self.reserve(_list_bytes(room, window), f"A window of {window:,} lists of {self.title}")
        lists, lengths = np.empty((window + 1, room), np.uint32), np.zeros(window + 1, np.int64)
        scratch = np.empty((2, room), np.uint32)
        at, state = np.zeros(1, np.int64), np.array([0, -1], np.int64)
        data, read, total = bytearray(), 0, 0
        with ByteStream(self.files[0]) as stream:
            while state[0] < self.nodes:
                src, dst = np.empty(max_edges, np.uint32), np.empty(max_edges, np.uint32)
                outcome, count = fill_block(
                    np.frombuffer(data, np.uint8), at, 8 * len(data), state, self.nodes, codes, zeta, window,
                    least_run, lists, lengths, scratch, src, dst,
                )  # fmt: skip
                if count:
                    total += count
                    self.position = min(stream.position, self.size or stream.position)
                    yield EdgeBlock(src[:count], dst[:count])
                if outcome == WRONG:
                    raise InputError(
                        f"{self.title}: the list of node {state[0]:,}, near bit {8 * read + int(at[0]):,}, "
                        "cannot be.",
                        "Fetch the file again, with the properties that belong to it.",
                    )
                if outcome == NO_ROOM:
                    # The longest list may be as long as the graph has nodes, but few graphs have any such.
                    wider = min(2 * room, self.nodes)
                    self.reserve(
                        _list_bytes(wider, window),
                        f"{self.title}: node {state[0]:,} with more than {room:,} successors",
                    )
                    lists = np.concatenate([lists, np.empty((window + 1, wider - room), np.uint32)], axis=1)
                    room, scratch = wider, np.empty((2, wider), np.uint32)
                if outcome == CUT_SHORT:
                    done = int(at[0]) // 8
                    data, read = data[done:], read + done
                    at[0] -= 8 * done
                    if not _more(stream, data):
                        raise InputError(
                            f"{self.title} ends in the middle of the list of node {state[0]:,} of "
                            f"{self.nodes:,}.",
                            "Fetch the file again, with the properties that belong to it.",
                        )
        if total != arcs:
            raise InputError(
                f"{self.files[1]} states {arcs:,} arcs, {self.title} holds {total:,}.",
                "Fetch the file again, with the properties that belong to it.",
            )


def _list_bytes(room: int, window: int) -> int:
    """Bytes of lists of `room` successors: those of a window, and two for what one is made of."""
    return 4 * room * (window + 3)


def _more(stream: ByteStream, data: bytearray) -> int:
    """Append as many bytes as are there or more, so that a long list is not read over and over."""
    more = bytearray(max(_CHUNK_BYTES, len(data)))
    with memoryview(more) as view:
        count = stream.readinto(view)
    data += more[:count]
    return count


def _sibling(file: InputFile, name: str) -> InputFile:
    found = file.sibling(name)
    if found is None:
        raise InputError(
            f"{file} has no {name} beside it.", "Give a .graph and its .properties in one folder."
        )
    return found


class _Properties:
    """The file of properties."""

    def __init__(self, file: InputFile) -> None:
        self._title = str(file)
        self._values: dict[str, str] = {}
        with ByteStream(file) as stream:
            lines = LineReader(stream)
            while (line := lines.peek()) is not None:
                key, equals, value = line.partition("=")
                if equals and key.strip() in _KEYS and not line.startswith(("#", "!")):
                    self._values[key.strip()] = value.strip()
                lines.drop()
        kind = self._values.get("graphclass", "")
        if not kind.endswith("webgraph.BVGraph"):
            raise InputError(
                f"{self._title} describes a graph of the class {kind or 'missing'!r}.",
                "Convert it to BVGraph with WebGraph.",
            )
        if self._values.get("endianness", "big") != "big" or self._values.get("version", "0") != "0":
            raise InputError(
                f"{self._title} describes another version of BVGraph.", "Convert it to version 0, big-endian."
            )

    def number(self, key: str, maximum: int = 2**62, minimum: int = 0, missing: int | None = None) -> int:
        value = self._values.get(key, "" if missing is None else str(missing))
        [number] = whole_numbers(value, 1) or [-1]
        if not minimum <= number <= maximum:
            raise InputError(
                f"{self._title}: {key} is {value[:40] or 'missing'!r}, "
                f"not a number from {minimum} to {maximum:,}.",
                "Fetch the file again.",
            )
        return number

    def codes(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Give the codes of the parts of a list, in the order of `_FLAGS`."""
        codes = [_CODES.index(name) for name in _DEFAULTS]
        for flag in self._values.get("compressionflags", "").split("|"):
            part, _, code = flag.strip().rpartition("_")
            if not flag.strip():
                continue
            if part not in _FLAGS or code not in _CODES:
                raise InputError(
                    f"{self._title}: the compression flag {flag.strip()[:40]!r} is not known.",
                    f"Write the graph with codes of: {', '.join(_CODES)}.",
                )
            codes[_FLAGS.index(part)] = _CODES.index(code)
        return np.array(codes, np.int64)


# A list was read, goes on behind the bits, has more entries than there is room for, or cannot be.
READ, CUT_SHORT, NO_ROOM, WRONG = range(4)


@inner()
def _signed(number):  # type: ignore[no-untyped-def]
    return number >> 1 if number & 1 == 0 else -((number + 1) >> 1)


@inner()
def read_lists(data, at, stop, node, nodes, codes, k, window, least_run, lists, lengths, scratch):  # type: ignore[no-untyped-def]
    """Read the list of one of the nodes into its place in the window; returns `READ`, or why it cannot.

    `data`, `at`, `stop` and `k` are those of `read_code`, `codes`, int64, of `_FLAGS`. References go back
    `window` lists, runs have `least_run` entries or more; 0 for none. `lists`, uint32, shape (window + 1,
    room), has the list of node x in row x mod (window + 1), with its length in `lengths`, int64; `scratch`,
    uint32, shape (2, room), receives copied entries and those of runs.
    """
    row = node % (window + 1)
    lengths[row] = 0
    degree = read_code(codes[0], k, data, at, stop)
    if degree == CUT:
        return CUT_SHORT
    if degree > nodes:
        return WRONG
    if degree > lists.shape[1]:
        return NO_ROOM
    if degree == 0:
        return READ
    out = lists[row]
    copied = 0
    back = 0
    if window > 0:
        back = read_code(codes[1], k, data, at, stop)
        if back == CUT:
            return CUT_SHORT
        if back > window or back > node:
            return WRONG
    if back > 0:
        model = (node - back) % (window + 1)
        size = lengths[model]
        blocks = read_code(codes[2], k, data, at, stop)
        if blocks == CUT:
            return CUT_SHORT
        place = 0
        for block in range(blocks):
            count = read_code(codes[3], k, data, at, stop)
            if count == CUT:
                return CUT_SHORT
            if block > 0:
                count += 1
            if count > size - place:
                return WRONG
            if block & 1 == 0:
                if copied + count > degree:
                    return WRONG
                for i in range(place, place + count):
                    scratch[0, copied] = lists[model, i]
                    copied += 1
            place += count
        if blocks & 1 == 0:
            if copied + size - place > degree:
                return WRONG
            for i in range(place, size):
                scratch[0, copied] = lists[model, i]
                copied += 1
    in_runs = 0
    if copied < degree and least_run > 0:
        runs = read_code(GAMMA, k, data, at, stop)
        if runs == CUT:
            return CUT_SHORT
        previous = 0
        for run in range(runs):
            gap = read_code(GAMMA, k, data, at, stop)
            extra = read_code(GAMMA, k, data, at, stop) if gap != CUT else CUT
            if extra == CUT:
                return CUT_SHORT
            left = node + _signed(gap) if run == 0 else previous + 1 + gap
            size = extra + least_run
            if left < 0 or left + size > nodes or copied + in_runs + size > degree:
                return WRONG
            for i in range(size):
                scratch[1, in_runs] = left + i
                in_runs += 1
            previous = left + size
    # The rest goes to the end of the row, from where it is merged with the others.
    first_gap = copied + in_runs
    previous = -1
    for place in range(first_gap, degree):
        gap = read_code(codes[4], k, data, at, stop)
        if gap == CUT:
            return CUT_SHORT
        value = node + _signed(gap) if place == first_gap else previous + 1 + gap
        if value < 0 or value >= nodes:
            return WRONG
        out[place] = value
        previous = value
    one, two, three = 0, 0, first_gap
    last = -1
    for place in range(degree):
        value = nodes
        if one < copied:
            value = scratch[0, one]
        if two < in_runs and scratch[1, two] < value:
            value = scratch[1, two]
        if three < degree and out[three] < value:
            value = out[three]
        if one < copied and scratch[0, one] == value:
            one += 1
        elif two < in_runs and scratch[1, two] == value:
            two += 1
        else:
            three += 1
        if value <= last or value >= nodes:
            return WRONG
        out[place] = value
        last = value
    lengths[row] = degree
    return READ


@entry()
def fill_block(data, at, stop, state, nodes, codes, k, window, least_run, lists, lengths, scratch, src, dst):  # type: ignore[no-untyped-def]
    """Write edges to `src` and `dst`, uint32, until these are full, the bits end, or all nodes are read.

    `state`, int64, shape (2,), has the node whose list comes next or is being written, and how many of its
    edges have been written, -1 if it has not been read; others as for `read_lists`. Returns `READ`, or why it
    stopped early; and how many edges were written.
    """
    count = 0
    while state[0] < nodes:
        row = state[0] % (window + 1)
        if state[1] < 0:
            begin = at[0]
            outcome = read_lists(
                data, at, stop, state[0], nodes, codes, k, window, least_run, lists, lengths, scratch
            )
            if outcome in (CUT_SHORT, NO_ROOM):
                at[0] = begin
            if outcome != READ:
                return outcome, count
            state[1] = 0
        taken = min(lengths[row] - state[1], src.size - count)
        for i in range(taken):
            src[count + i] = state[0]
            dst[count + i] = lists[row, state[1] + i]
        count += taken
        state[1] += taken
        if state[1] < lengths[row]:
            break
        state[0] += 1
        state[1] = -1
    return READ, count


UNARY, GAMMA, DELTA, ZETA, NIBBLE = range(5)

_LONGEST = 62  # bits of a number
CUT = -1  # what is read if the bits end in the middle of a code, or a number is longer


@inner()
def _bits(data, at, stop, count):  # type: ignore[no-untyped-def]
    if at[0] + count > stop or count > _LONGEST:
        return CUT
    value = 0
    pos = at[0]
    left = count
    while left > 0:
        inside = pos & 7
        taken = min(8 - inside, left)
        byte = np.int64(data[pos >> 3])
        value = value << taken | (byte >> (8 - inside - taken)) & ((1 << taken) - 1)
        pos += taken
        left -= taken
    at[0] = pos
    return value


@inner()
def _unary(data, at, stop):  # type: ignore[no-untyped-def]
    pos = at[0]
    while pos < stop:
        inside = pos & 7
        rest = (np.int64(data[pos >> 3]) << inside) & 255
        if rest == 0:
            pos += 8 - inside
            continue
        while rest & 128 == 0:
            rest <<= 1
            pos += 1
        if pos >= stop:
            return CUT
        value = pos - at[0]
        at[0] = pos + 1
        return value
    return CUT


@inner()
def _gamma(data, at, stop):  # type: ignore[no-untyped-def]
    width = _unary(data, at, stop)
    if width == CUT or width > _LONGEST:
        return CUT
    low = _bits(data, at, stop, width)
    return CUT if low == CUT else (1 << width | low) - 1


@inner()
def read_code(code, k, data, at, stop):  # type: ignore[no-untyped-def]
    """Read a number in a code, from bit ``at[0]`` of the `stop` bits of `data`, uint8; or `CUT`.

    `k` is the parameter of zeta; `at` is left behind the number, or anywhere if it is cut.
    """
    if code == GAMMA:
        return _gamma(data, at, stop)
    if code == UNARY:
        return _unary(data, at, stop)
    if code == DELTA:
        width = _gamma(data, at, stop)
        if width == CUT or width > _LONGEST:
            return CUT
        low = _bits(data, at, stop, width)
        return CUT if low == CUT else (1 << width | low) - 1
    if code == ZETA:
        step = _unary(data, at, stop)
        if step == CUT or (step + 1) * k > _LONGEST:
            return CUT
        first = 1 << step * k
        low = _bits(data, at, stop, step * k + k - 1)
        if low == CUT:
            return CUT
        if low < first:
            return low + first - 1
        more = _bits(data, at, stop, 1)
        return CUT if more == CUT else (low << 1 | more) - 1
    value = 0
    while True:
        last = _bits(data, at, stop, 1)
        three = _bits(data, at, stop, 3)
        if three == CUT or value >> (_LONGEST - 3):
            return CUT
        value = value << 3 | three
        if last == 1:
            return value
