"""Whole lines out of a stream of bytes, with their numbers, in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from oocpr.errors import InputError
from oocpr.sources.block import MAX_NODES, EdgeBlock
from oocpr.sources.text import edge_scanner
from oocpr.sources.text.floats import parsed
from oocpr.sources.weights import REMEDY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from oocpr.sources.io.compression import ByteStream

BLOCK_BYTES = 1 << 20
LONGEST_LINE = 1 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


def whole_numbers(line: str, count: int) -> list[int]:
    """Take a line as `count` numbers below 10^19; an empty list where it is anything else.

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
    """How the lines of a format hold edges.

    Parameters
    ----------
    first
        The lowest id, 0 or 1.
    nodes
        Ids go from `first` to ``first + nodes - 1``.
    lead
        The letter that opens each line, or nothing.
    valued
        Whether a third column holds a value; an edge whose value is zero is left out.
    signed
        Whether ids may be any of 64 bits with a sign; `first` is 0 then.
    weight
        Number of the column with weights, counted from 1, or 0 for none. All other columns are skipped then.
    """

    first: int = 0
    nodes: int = MAX_NODES
    lead: str = ""
    valued: bool = False
    signed: bool = False
    weight: int = 0


class LineReader:
    """Lines of a stream: one by one, as blocks of edges, or as blocks of text.

    The three ways may follow each other, each going on where the one before stopped.

    Parameters
    ----------
    stream
        Where the bytes come from. A byte order mark at its front is skipped.
    block_bytes
        Bytes read at a time. The buffer grows up to `LONGEST_LINE` for lines that are longer.
    start
        Bytes of the stream to pass over first, which end with a line.
    line
        Number of the first line that is read, counted from 1.

    Attributes
    ----------
    line
        Number of the next line.
    entries, zeros
        Edges read so far, and how many of them were left out because their value is zero.
    """

    def __init__(
        self, stream: ByteStream, block_bytes: int = BLOCK_BYTES, start: int = 0, line: int = 1
    ) -> None:
        self.line = line
        self.entries = self.zeros = 0
        self._stream = stream
        self._name = stream.title
        self._bytes = bytearray(max(block_bytes, len(_BYTE_ORDER_MARK)) + 1)
        self._start = self._whole = self._end = 0  # unread bytes start, last whole line ends, bytes end
        self._finished = False
        self._taken = start
        if start:
            stream.skip(start)
        self._fill()
        if not start and self._bytes.startswith(_BYTE_ORDER_MARK):
            self._start = len(_BYTE_ORDER_MARK)
        if not start and (self._bytes.startswith(_UTF_16) or 0 in self._bytes[: min(2, self._end)]):
            raise self.error(
                "the text is UTF-16, not UTF-8.", f"Convert it: iconv -f UTF-16 -t UTF-8 {self._name}."
            )

    @property
    def offset(self) -> int:
        """Bytes of the stream before the next line."""
        return self._taken - (self._end - self._start)

    def peek(self, errors: str = "strict") -> str | None:
        """Look at the next line, without the characters that end it; None at the end of the stream."""
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
        """Yield the remaining lines in blocks of UTF-8; ``line`` is the number of the block's first line."""
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

    def texts(self) -> Iterator[str]:
        """Yield the remaining lines in blocks; ``line`` is the number of the first line of the block."""
        for piece in self.pieces():
            yield piece.decode()

    def edges(self, max_edges: int, form: EdgeLines) -> Iterator[EdgeBlock]:
        """Yield the edges of the remaining lines in full blocks.

        The last block may have fewer edges. So may the one before the first id that is none of 32 bits, where
        such ids are allowed; from there on blocks have ids of 64 bits.

        Parameters
        ----------
        max_edges
            Edges of a block.
        form
            How a line holds an edge.

        Raises
        ------
        InputError
            A line that cannot be read, with its number and text.
        """
        kind: type[np.uint32] | type[np.int64] = np.uint32
        src, dst, count = np.empty(max_edges, kind), np.empty(max_edges, kind), 0
        weighted = max_edges if form.weight else 0
        begins, ends = (np.empty(weighted, np.uint32) for _ in range(2))
        weights = np.empty(weighted)
        while self._start < self._whole or self._fill():
            before, line = count, self.line
            status, start, self.line, count, zeros = edge_scanner.scan_edges(
                np.frombuffer(self._bytes, np.uint8),
                np.uint64(self._start),
                np.uint64(self._whole),
                line,
                np.uint8(ord(form.lead) if form.lead else 0),
                np.uint64(form.first),
                np.uint64(form.nodes),
                form.valued,
                kind is np.int64,
                form.weight,
                src,
                dst,
                begins,
                ends,
                count,
            )
            if form.weight and count > before:
                here = slice(before, count)
                weights[here] = self._weights(begins[here], ends[here], line, form.weight)
            self._start = int(start)
            self.zeros += zeros
            self.entries += count - before + zeros
            widen = (
                form.signed
                and kind is np.uint32
                and status in (edge_scanner.NEGATIVE, edge_scanner.BEYOND_LAST)
            )
            if status != edge_scanner.FINE and not widen:
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

    def _weights(
        self, begins: NDArray[np.uint32], ends: NDArray[np.uint32], line: int, column: int
    ) -> NDArray[np.float64]:
        """Read the weights of edges that were found in the lines from number `line` on."""
        start = self._start

        def refuse(k: int, why: str) -> InputError:
            begin, end = int(begins[k]), int(ends[k])
            shown = repr(self._bytes[begin : min(end, begin + 40)].decode(errors="replace"))
            self.line = line + self._bytes.count(b"\n", start, begin)
            return self.error(f"the weight {shown} in column {column} is {why}.", REMEDY)

        return parsed(np.frombuffer(self._bytes, np.uint8), begins, ends, refuse)

    def error(self, cause: str, remedy: str) -> InputError:
        """Build the error for the line that comes next."""
        return InputError(f"{self._name}, line {self.line}: {cause}", remedy)

    def _fill(self) -> bool:
        """Bring at least one more whole line into the buffer; False when there is none."""
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
                    self._taken += 1
                self._whole = self._end
                break
            self._end += read
            self._taken += read
            self._whole = self._bytes.rfind(b"\n", self._end - read, self._end) + 1
            if self._whole:
                break
        return self._start < self._whole

    def _not_utf8(self) -> InputError:
        return self.error("the text is not UTF-8.", "Convert the file to UTF-8, for example with iconv.")

    def _unreadable(self, status: int, form: EdgeLines) -> InputError:
        line = (
            self._bytes[self._start : self._bytes.find(b"\n", self._start)].decode(errors="replace").strip()
        )
        shown = repr(line if len(line) <= 60 else line[:57] + "...")
        last = form.first + form.nodes - 1
        lead = f"the letter {form.lead!r} and " if form.lead else ""
        more = ", and a value" if form.valued else ""
        if form.weight:
            more = f", and a weight in column {form.weight}"
        shape = f"Each line needs {lead}two node ids, apart by tabs or spaces{more}."
        if form.signed and status == edge_scanner.BEYOND_LAST:
            remedy = "Give ids from -2^63 to 2^63 - 1, or name the nodes: format='names'."
        elif status == edge_scanner.BEYOND_LAST and form.nodes < MAX_NODES:
            remedy = f"{form.nodes:,} nodes are stated: correct that number, or the line."
        elif status in (edge_scanner.NEGATIVE, edge_scanner.BELOW_FIRST, edge_scanner.BEYOND_LAST):
            remedy = f"Give each node an id from {form.first} to {last:,}."
        elif status == edge_scanner.EXTRA_COLUMN:
            remedy = "Keep the first two columns only."
            if not form.lead and form.first == 0:
                remedy = "Keep the first two columns only, or name the one with weights: weight=3."
        else:
            remedy = shape
            if form.signed and status == edge_scanner.NOT_A_NUMBER:
                remedy = f'{shape[:-1]}; if they are names, apart by tabs: format="names".'
        cause = {
            edge_scanner.ONE_COLUMN: f"{shown} has one column.",
            edge_scanner.EXTRA_COLUMN: f"{shown} has more columns than expected.",
            edge_scanner.NOT_A_NUMBER: f"{shown} holds something that is not a whole number.",
            edge_scanner.NEGATIVE: f"{shown} holds a negative node id.",
            edge_scanner.BELOW_FIRST: f"{shown} holds a node id below {form.first}.",
            edge_scanner.BEYOND_LAST: f"{shown} holds a node id "
            + ("of more than 64 bits." if form.signed else f"above {last}."),
            edge_scanner.WRONG_LEAD: f"{shown} does not begin with the letter {form.lead!r}.",
            edge_scanner.NO_VALUE: f"{shown} holds no weight in column {form.weight}."
            if form.weight
            else f"{shown} holds no number in its third column.",
        }[status]
        return self.error(cause, remedy)
