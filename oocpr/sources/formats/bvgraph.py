"""BVGraph, the format of the WebGraph framework: a stream of bits and a file of properties beside it.

Boldi and Vigna, "The WebGraph framework I: compression techniques", WWW 2004. A list of successors is written
as its length; how far back the list is that it copies from; blocks of that list which it takes and leaves in
turn; runs of neighbouring numbers; and the rest as gaps. All are in instantaneous codes, the highest bit of
each byte first: unary (n zeros and a one), gamma and delta (Elias, "Universal codeword sets and
representations of the integers", IEEE Trans. Inf. Theory 21, 1975), zeta (Boldi and Vigna, "Codes for the
World Wide Web", Internet Math. 2, 2005) and nibbles of three bits.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from oocpr.errors import InputError
from oocpr.jit import entry, inner
from oocpr.sources.base import FileSource
from oocpr.sources.block import MAX_NODES, EdgeBlock
from oocpr.sources.files import ByteStream
from oocpr.sources.lines import LineReader, whole_numbers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Unpack

    from oocpr.sources.base import SourceOptions
    from oocpr.sources.files import AnyPath, InputFile
    from oocpr.sources.files import ByteStream as Stream

_CHUNK_BYTES = 1 << 20
_ROOM = 1 << 10
"""Successors of a list for which there is room at first."""

_KEYS = (
    "graphclass", "endianness", "version", "nodes", "arcs", "windowsize", "minintervallength", "zetak",
    "compressionflags",
)  # fmt: skip
_CODES = ("UNARY", "GAMMA", "DELTA", "ZETA", "NIBBLE")
_FLAGS = ("OUTDEGREES", "REFERENCES", "BLOCK_COUNT", "BLOCKS", "RESIDUALS")
_USUAL = ("GAMMA", "UNARY", "GAMMA", "GAMMA", "ZETA")


class BVGraphFile(FileSource):
    """``NAME.graph`` with ``NAME.properties`` beside it: node x has row x."""

    def __init__(self, path: AnyPath | Sequence[AnyPath], **options: Unpack[SourceOptions]) -> None:
        super().__init__(path, **options)
        [file] = self.files
        stem = Path(file.name).stem
        self._parts = {
            kind: file if file.name.endswith(kind) else _sibling(file, stem + kind)
            for kind in (".graph", ".properties")
        }
        self.files = [self._parts[".graph"]]
        self.size = self.files[0].size

    def _all_files(self) -> Sequence[InputFile]:
        return list(self._parts.values())

    def _read(self, max_edges: int) -> Iterator[EdgeBlock]:
        properties = _Properties(self._parts[".properties"])
        self.nodes = properties.number("nodes", MAX_NODES)
        arcs, window = properties.number("arcs"), properties.number("windowsize", 1 << 16)
        least_run = properties.number("minintervallength", MAX_NODES)
        zeta = properties.number("zetak", 60, least=1, missing=3)
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
                f"{self._parts['.properties']} states {arcs:,} arcs, {self.title} holds {total:,}.",
                "Fetch the file again, with the properties that belong to it.",
            )


def _list_bytes(room: int, window: int) -> int:
    """Bytes of lists with so many successors each: those of a window, and two for what one is made of."""
    return 4 * room * (window + 3)


def _more(stream: Stream, data: bytearray) -> int:
    """Append some bytes; at least as many as are there, so that a long list is not read over and over."""
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
    """What a file of properties says."""

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

    def number(self, key: str, most: int = 2**62, least: int = 0, missing: int | None = None) -> int:
        """Give a whole number from `least` to `most`."""
        value = self._values.get(key, "" if missing is None else str(missing))
        [number] = whole_numbers(value, 1) or [-1]
        if not least <= number <= most:
            raise InputError(
                f"{self._title}: {key} is {value[:40] or 'missing'!r}, "
                f"not a number from {least} to {most:,}.",
                "Fetch the file again.",
            )
        return number

    def codes(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Give the codes of a list's parts, in the order of `_FLAGS`."""
        codes = [_CODES.index(name) for name in _USUAL]
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


READ, CUT_SHORT, NO_ROOM, WRONG = range(4)
"""What became of a list: it was read; it goes on behind the bits; it has more entries than there is room for;
it cannot be."""


@inner()
def _signed(number):  # type: ignore[no-untyped-def]
    return number >> 1 if number & 1 == 0 else -((number + 1) >> 1)


@inner()
def read_lists(data, at, stop, node, nodes, codes, k, window, least_run, lists, lengths, scratch):  # type: ignore[no-untyped-def]
    """Read the list of one node into its place in the window; returns `READ`, or why it cannot.

    Parameters
    ----------
    data, at, stop
        See `read_code`; `at` is left behind the list if it could be read, else anywhere.
    node, nodes
        The node, and how many there are.
    codes, k
        int64, shape (5,): codes of out-degrees, references, numbers of blocks, blocks and gaps; parameter of
        zeta.
    window, least_run
        How far back a reference may go, and the shortest run; 0 for no references, and no runs.
    lists, lengths
        uint32, shape (window + 1, room): the lists of the last nodes, node x in row x mod (window + 1); and
        their lengths, int64, shape (window + 1,).
    scratch
        uint32, shape (2, room): receives copied entries and those of runs.
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
    """Write edges to two arrays until these are full, the bits end, or all nodes have been read.

    `state`, int64, shape (2,), has the node whose list comes next or is being written, and how many of its
    edges have been written, -1 if it has not been read; `src` and `dst` are uint32, shape (edges,); others as
    for `read_lists`. Returns `READ` if the arrays are full or all is read, else why it stopped; and how many
    edges were written.
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

CUT = -1
"""What is read if the bits end in the middle of a code, or a number has more than 62 bits."""

_LONGEST = 62


@inner()
def _bits(data, at, stop, count):  # type: ignore[no-untyped-def]
    """Read `count` bits as a number, `CUT` if they are not there."""
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
    """Read a number in a code, `k` being the parameter of zeta; `CUT` if it is not whole.

    `data` is uint8; `at`, int64, shape (1,), is the bit to begin at, left behind the number, or anywhere if
    it is cut; `stop` is the number of bits.
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
