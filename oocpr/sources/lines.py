"""Whole lines out of a stream of bytes, in bounded memory, and numbered edges and weights out of lines.

Measured: 0.8 to 1.0 GB of text per second of CPU time, 60 to 78 million edges.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from oocpr.errors import InputError
from oocpr.jit import entry, inner
from oocpr.sources.block import MAX_NODES, EdgeBlock, first_wrong, weight_remedy

if TYPE_CHECKING:
    from oocpr.sources.files import ByteStream


BLOCK_BYTES = 1 << 20
LONGEST_LINE = 1 << 20
_NEGATIVE = re.compile(r"-\d+")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


def whole_numbers(line: str, count: int) -> list[int]:
    """Take a line as `count` numbers below 10^19; an empty list if it is anything else.

    Examples
    --------
    >>> whole_numbers("12 0", 2), whole_numbers("-1 3", 2), whole_numbers("9" * 5000, 1)
    ([12, 0], [], [])
    """
    words = line.split()
    fine = all(word.isascii() and word.isdecimal() and len(word) < 20 for word in words)
    return list(map(int, words)) if fine and len(words) == count else []


@dataclass(frozen=True)
class EdgeLines:
    """How lines hold edges: two ids separated by tabs or spaces; ``#`` and ``%`` open comments."""

    first: int = 0  # ids go from here, 0 or 1,
    nodes: int = MAX_NODES  # to first + nodes - 1,
    signed: bool = False  # unless they are any of 64 bits with a sign
    lead: str = ""  # the letter that opens each line
    valued: bool = False  # a third column holds a value, and an edge whose value is zero is left out
    weight: int = 0  # the column of weights, from 1; 0 for none. All other columns are skipped then.
    labels: str = ""  # the file whose labels say how many nodes there are, if one does


class LineReader:
    """Lines of a stream: one by one, as blocks of edges, or as blocks of text, each going on after the other.

    `line` is the number of the next line; `entries` and `zeros` are the edges read so far, and how many of
    them were left out because their value is zero.
    """

    def __init__(self, stream: ByteStream, block_bytes: int = BLOCK_BYTES) -> None:
        self.line = 1
        self.entries = self.zeros = 0
        self._stream = stream
        self._name = stream.title
        self._bytes = bytearray(max(block_bytes, len(_BYTE_ORDER_MARK)) + 1)
        self._start = self._whole = self._end = 0  # unread bytes start, last whole line ends, bytes end
        self._finished = False
        self._fill()
        if self._bytes.startswith(_BYTE_ORDER_MARK):
            self._start = len(_BYTE_ORDER_MARK)
        if self._bytes.startswith(_UTF_16) or 0 in self._bytes[: min(2, self._end)]:
            raise self.error(
                "the text is UTF-16, not UTF-8.", f"Convert it: iconv -f UTF-16 -t UTF-8 {self._name}."
            )
        # Where the rest of a line does not count, as behind weights, all further lines would be lost.
        if self._finished and self.begins and b"\r" in self._bytes[: self._end].strip():
            raise self.error("lines end in carriage returns alone.", "Convert it: tr '\\r' '\\n'.")

    @property
    def begins(self) -> bool:
        """Whether the stream began with the first line of its file."""
        return self._stream.begins

    def peek(self, errors: str = "strict") -> str | None:
        """Look at the next line, without its end; None at the end of the stream."""
        if self._start == self._whole and not self._fill():
            return None
        line = self._bytes[self._start : self._bytes.find(b"\n", self._start)]
        try:
            return line.decode(errors=errors).rstrip("\r")
        except UnicodeDecodeError as error:
            raise self._not_utf8() from error

    def drop(self) -> None:
        """Take the line that `peek` showed."""
        self._start = self._bytes.find(b"\n", self._start) + 1
        self.line += 1

    def pieces(self) -> Iterator[bytes]:
        """Yield the remaining lines in blocks of UTF-8, of whose first line ``line`` is the number."""
        while self._start < self._whole or self._fill():
            piece = bytes(memoryview(self._bytes)[self._start : self._whole])
            try:
                piece.decode()
            except UnicodeDecodeError as error:
                self.line += piece.count(b"\n", 0, error.start)
                raise self._not_utf8() from error
            yield piece
            self.line += piece.count(b"\n")
            self._start = self._whole

    def edges(self, max_edges: int, form: EdgeLines) -> Iterator[EdgeBlock]:
        """Yield the edges of the remaining lines in full blocks; InputError if a line has another shape.

        If ids may be signed, blocks have ids of 64 bits from the first one on that 32 bits do not hold.
        """
        kind: type[np.uint32] | type[np.int64] = np.uint32
        src, dst, count = np.empty(max_edges, kind), np.empty(max_edges, kind), 0
        weighted = max_edges if form.weight else 0
        begins, ends = (np.empty(weighted, np.uint32) for _ in range(2))
        weights = np.empty(weighted)
        while self._start < self._whole or self._fill():
            before, line = count, self.line
            status, start, self.line, count, zeros = scan_edges(
                np.frombuffer(self._bytes, np.uint8), np.uint64(self._start), np.uint64(self._whole), line,
                np.uint8(ord(form.lead) if form.lead else 0), np.uint64(form.first), np.uint64(form.nodes),
                form.valued, kind is np.int64, form.weight, src, dst, begins, ends, count,
            )  # fmt: skip
            if form.weight and count > before:
                here = slice(before, count)
                weights[here] = self.weights(
                    self._bytes, begins[here], ends[here], form.weight, self._start, line
                )
            self._start = int(start)
            self.zeros += zeros
            self.entries += count - before + zeros
            widen = form.signed and kind is np.uint32 and status in (NEGATIVE, BEYOND_LAST)
            if status != OK and not widen:
                raise self._unreadable(status, form)
            if count == max_edges or (count and widen):
                yield EdgeBlock(src[:count], dst[:count], weights[:count] if form.weight else None)
            if widen:
                kind = np.int64
            if count == max_edges or widen:
                src, dst, count = np.empty(max_edges, kind), np.empty(max_edges, kind), 0
                weights = np.empty(weighted)
        if count:
            yield EdgeBlock(src[:count], dst[:count], weights[:count] if form.weight else None)

    def weights(
        self,
        text: bytes | bytearray,
        begins: NDArray[np.uint32],
        ends: NDArray[np.uint32],
        column: int,
        start: int,
        line: int,
    ) -> NDArray[np.float64]:
        """Read weights of a text, in which line number `line` begins at `start`; see `parse_weights`."""

        def refuse(k: int, shown: str, why: str) -> InputError:
            self.line = line + text.count(b"\n", start, int(begins[k]))
            return self.error(f"the weight {shown} in column {column} is {why}.", weight_remedy(shown))

        return parse_weights(np.frombuffer(text, np.uint8), begins, ends, refuse)

    def error(self, cause: str, remedy: str) -> InputError:
        """Build the error for the line that comes next."""
        line = self.line + self._stream.lines_before
        return InputError(f"{self._name}, line {line}: {cause}", remedy)

    def _fill(self) -> bool:
        """Bring at least one more whole line into the buffer; False if there is none."""
        rest = self._bytes[self._start : self._end]
        self._start, self._whole, self._end = 0, 0, len(rest)
        self._bytes[: len(rest)] = rest
        while not self._finished:
            room = len(self._bytes) - 1  # one byte is kept for the newline a last line may lack
            if self._end == room:
                if room >= LONGEST_LINE:
                    raise self.error(
                        f"longer than {LONGEST_LINE:,} bytes.",
                        "Check that the file is text, or give its format.",
                    )
                self._bytes = self._bytes + bytearray(room)
                room *= 2
            with memoryview(self._bytes)[self._end : room] as view:
                read = self._stream.readinto(view)
            if read == 0:
                self._finished = True
                if self._end and self._bytes[self._end - 1] != ord("\n"):
                    self._bytes[self._end] = ord("\n")
                    self._end += 1
                self._whole = self._end
                break
            self._end += read
            self._whole = self._bytes.rfind(b"\n", self._end - read, self._end) + 1
            if self._whole:
                break
        return self._start < self._whole

    def _not_utf8(self) -> InputError:
        return self.error("the text is not UTF-8.", "Convert the file to UTF-8, for example with iconv.")

    def _unreadable(self, status: int, form: EdgeLines) -> InputError:
        line = (self.peek("replace") or "").strip()
        shown = repr(line if len(line) <= 60 else line[:57] + "...")
        lead = f"the letter {form.lead!r} and " if form.lead else ""
        value = f", and a weight in column {form.weight}" if form.weight else ", and a value" * form.valued
        shape = f"Each line needs {lead}two node ids, separated by tabs or spaces{value}."
        names = (
            f'{shape[:-1]}; if they are tab-separated names: format="names"; '
            'if another character separates them, such as a colon: delimiter=":".'
        )
        further = (
            ", say which have the ends: source_column=1, target_column=2, "
            "or name the one with weights: weight=3" * (not form.lead and form.first == 0)
        )
        last = form.first + form.nodes - 1
        ids = f"Give each node an id from {form.first} to {last:,}."
        missing = f"weight in column {form.weight}" if form.weight else "number in its third column"
        beyond, beyond_remedy = f"above {last}", ids
        if form.signed:
            beyond = "of more than 64 bits"
            beyond_remedy = "Give ids from -2^63 to 2^63 - 1, or name the nodes: format='names'."
        elif form.nodes < MAX_NODES:
            stated = f"{form.labels} labels {form.nodes:,} nodes" if form.labels else ""
            beyond_remedy = f"{stated or f'{form.nodes:,} nodes are stated'}: correct that, or the line."
        cause, remedy = {
            ONE_COLUMN: ("has one column", shape),
            EXTRA_COLUMN: ("has more columns than expected", f"Keep the first two columns only{further}."),
            NOT_A_NUMBER: ("holds something that is not a whole number", names if form.signed else shape),
            NEGATIVE: ("holds a negative node id", ids)
            if any(_NEGATIVE.fullmatch(word) for word in line.split())
            else ("holds something that is not a whole number", shape),
            BELOW_FIRST: (f"holds a node id below {form.first}", ids),
            BEYOND_LAST: (f"holds a node id {beyond}", beyond_remedy),
            WRONG_LEAD: (f"does not begin with the letter {form.lead!r}", shape),
            NO_VALUE: (f"holds no {missing}", shape),
        }[status]
        return self.error(f"{shown} {cause}.", remedy)


(
    OK, ONE_COLUMN, EXTRA_COLUMN, NOT_A_NUMBER, NEGATIVE, BELOW_FIRST, BEYOND_LAST, WRONG_LEAD, NO_VALUE,
) = range(9)  # fmt: skip

_ONE = np.uint64(1)
_TEN = np.uint64(10)
_LONGEST = np.uint64(19)  # digits that 64 bits surely hold
_HUGE = np.uint64(2**63)
_LARGEST = np.uint64(2**63 - 1)
_TOO_LARGE = np.uint64(2**64 - 1)
_SPACE, _TAB, _RETURN, _NEWLINE, _HASH, _PERCENT, _MINUS, _ZERO = (np.uint8(ord(c)) for c in " \t\r\n#%-0")
_PLUS, _DOT, _LOWER_E, _UPPER_E = (np.uint8(ord(c)) for c in "+.eE")


@inner()
def _blank(char):  # type: ignore[no-untyped-def]
    return char in (_SPACE, _TAB, _RETURN)


@inner()
def _line_end(text, pos):  # type: ignore[no-untyped-def]
    while text[pos] != _NEWLINE:
        pos += _ONE
    return pos


@inner()
def _number(text, pos):  # type: ignore[no-untyped-def]
    """Value of the digits at `pos`, something above 2^63 for any that is, and the position behind them."""
    start = pos
    value = np.uint64(0)
    digit = np.uint8(text[pos] - _ZERO)
    while digit < 10:
        value = value * _TEN + np.uint64(digit)
        pos += _ONE
        digit = np.uint8(text[pos] - _ZERO)
    if pos - start > _LONGEST:
        value = np.uint64(0)
        for place in range(start, pos):
            if value > _HUGE // _TEN:
                return _TOO_LARGE, pos
            value = value * _TEN + np.uint64(text[place] - _ZERO)
    return value, pos


@inner()
def _value(text, pos):  # type: ignore[no-untyped-def]
    """Whether a real number stands at `pos`, whether it is zero, and the position behind it."""
    start = pos
    zero = True
    exponent = False
    digits = False
    while not (_blank(text[pos]) or text[pos] == _NEWLINE):
        char = text[pos]
        if np.uint8(char - _ZERO) < 10:
            digits = True
            if char != _ZERO and not exponent:
                zero = False
        elif char in (_LOWER_E, _UPPER_E):
            if exponent or not digits:
                return False, zero, start
            exponent = True
            digits = False
        elif char not in (_PLUS, _MINUS, _DOT):
            return False, zero, start
        pos += _ONE
    return digits, zero, pos


@inner()
def _column_at(text, pos, more):  # type: ignore[no-untyped-def]
    """Where the column begins and ends that comes `more` columns behind the blanks at `pos`."""
    while True:
        while _blank(text[pos]):
            pos += _ONE
        begin = pos
        while not (_blank(text[pos]) or text[pos] in (_NEWLINE, _HASH, _PERCENT)):
            pos += _ONE
        if more == 0 or pos == begin:
            return begin, pos
        more -= 1


@inner()
def _no_number(char):  # type: ignore[no-untyped-def]
    if char == _MINUS:
        return NEGATIVE
    if char in (_NEWLINE, _HASH, _PERCENT):
        return ONE_COLUMN
    return NOT_A_NUMBER


@entry()
def scan_edges(  # type: ignore[no-untyped-def]
    text, pos, stop, line, lead, first, nodes, valued, signed, weight, src, dst, begins, ends, count
):
    """Read edges from whole lines until the text ends or the arrays are full.

    `text`, uint8, is read from `pos` to `stop`, uint64, since unsigned positions keep the compiler from
    testing every index for a negative one; a newline stands at ``stop - 1`` unless ``pos == stop``. The line
    at `pos` is number `line`. `lead` is uint8, 0 for none; `first`, `nodes`, `valued`, `signed` and `weight`
    are those of `EdgeLines`, uint64. `src` and `dst`, uint32, or int64 if `signed`, receive edges from place
    `count` on; `begins` and `ends`, uint32, where in `text` their weights are, if there are some.

    Returns status, pos, line, count, zeros, where the next call goes on; `status` is not `OK` if the line at
    `pos` cannot be read.
    """
    zeros = 0
    full = len(src)
    while pos < stop and count < full:
        begin = pos
        while _blank(text[pos]):
            pos += _ONE
        char = text[pos]
        if char in (_NEWLINE, _HASH, _PERCENT):
            pos = _line_end(text, pos) + _ONE
            line += 1
            continue
        if lead != 0:
            if char != lead:
                return WRONG_LEAD, begin, line, count, zeros
            pos += _ONE
            if not _blank(text[pos]):
                return WRONG_LEAD, begin, line, count, zeros
            while _blank(text[pos]):
                pos += _ONE

        negative = signed and text[pos] == _MINUS
        if negative:
            pos += _ONE
        start = pos
        one, pos = _number(text, pos)
        if pos == start:
            return _no_number(text[pos]), begin, line, count, zeros
        if signed:
            if one > _LARGEST + np.uint64(negative):
                return BEYOND_LAST, begin, line, count, zeros
            if negative:
                one = np.uint64(0) - one
        start = pos
        while _blank(text[pos]):
            pos += _ONE
        negative = signed and text[pos] == _MINUS and pos > start
        if negative:
            pos += _ONE
        if pos == start or np.uint8(text[pos] - _ZERO) >= 10:
            return _no_number(text[pos]), begin, line, count, zeros
        two, pos = _number(text, pos)
        char = text[pos]
        if not (_blank(char) or char == _NEWLINE):
            return NOT_A_NUMBER, begin, line, count, zeros
        if signed:
            if two > _LARGEST + np.uint64(negative):
                return BEYOND_LAST, begin, line, count, zeros
            if negative:
                two = np.uint64(0) - two
        else:
            if one < first or two < first:
                return BELOW_FIRST, begin, line, count, zeros
            one -= first
            two -= first
            if one >= nodes or two >= nodes:
                return BEYOND_LAST, begin, line, count, zeros

        zero = False
        if weight:
            begin_weight, pos = _column_at(text, pos, weight - 3)
            if pos == begin_weight:
                return NO_VALUE, begin, line, count, zeros
            begins[count] = begin_weight
            ends[count] = pos
            pos = _line_end(text, pos)
        while _blank(text[pos]):
            pos += _ONE
        if valued:
            fine, zero, pos = _value(text, pos)
            if not fine:
                return NO_VALUE, begin, line, count, zeros
            while _blank(text[pos]):
                pos += _ONE
        char = text[pos]
        if char != _NEWLINE:
            if char != _HASH and char != _PERCENT:
                return EXTRA_COLUMN, begin, line, count, zeros
            pos = _line_end(text, pos)
        pos += _ONE
        line += 1
        if zero:
            zeros += 1
        else:
            src[count] = one
            dst[count] = two
            count += 1
    return OK, pos, line, count, zeros


_NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_WORDS = re.compile(rb"[+-]?(nan|inf(inity)?)", re.IGNORECASE)


@entry()
def _gather(text, begins, ends, out, offsets):  # type: ignore[no-untyped-def]
    """Put the words end to end, without plus signs; `offsets` say where they begin."""
    at = np.int32(0)
    for k in range(begins.size):
        offsets[k] = at
        begin = begins[k]
        if text[begin] == _PLUS and begin + 1 < ends[k]:
            follows = text[begin + 1]
            begin += follows == _DOT or np.uint8(follows - _ZERO) < 10
        for i in range(begin, ends[k]):
            out[at] = text[i]
            at += 1
    offsets[begins.size] = at
    return at


def parse_weights(
    text: NDArray[np.uint8],
    begins: NDArray[np.uint32],
    ends: NDArray[np.uint32],
    refuse: Callable[[int, str, str], InputError],
) -> NDArray[np.float64]:
    """Read decimal numbers ``text[begins[k]:ends[k]]`` as weights, each rounded to the nearest float64.

    `refuse` makes the error for a weight, given its number, its text and what is wrong with it.
    """
    import pyarrow as pa

    def wrong(k: int, why: str) -> InputError:
        word = text[begins[k] : min(ends[k], begins[k] + 40)].tobytes()
        return refuse(k, repr(word.decode(errors="replace")), why)

    count = begins.size
    out = np.empty(int((ends - begins).sum(dtype=np.int64)), np.uint8)
    offsets = np.empty(count + 1, np.int32)
    size = _gather(text, begins, ends, out, offsets)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(out[:size])]
    words = pa.Array.from_buffers(pa.binary(), count, buffers)
    try:
        found = words.cast(pa.string()).cast(pa.float64())
        weights = np.frombuffer(found.buffers()[1], np.float64, count).copy()
    except pa.ArrowInvalid:
        weights = _one_by_one(words.to_pylist(), wrong)
    found_wrong = first_wrong(weights)
    if found_wrong is not None:
        raise wrong(*found_wrong)
    weights += 0.0  # -0.0 + 0.0 is 0.0
    return weights


def _one_by_one(words: list[bytes], refuse: Callable[[int, str], InputError]) -> NDArray[np.float64]:
    """Read numbers of which one at least is unusual."""
    for k, word in enumerate(words):
        if not _NUMBER.fullmatch(word):
            raise refuse(k, "not finite" if _WORDS.fullmatch(word) else "no number")
        if not 0 <= float(word) < np.inf:
            raise refuse(k, "negative" if -np.inf < float(word) < 0 else "not finite")
    return np.array([float(word) for word in words])
