"""CSV and JSON lines, parsed by Arrow in pieces of whole rows, so that an unreadable row has a line."""

from __future__ import annotations

import contextlib
import csv
import io
import json
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from oocpr.errors import InputError
from oocpr.jit import entry
from oocpr.sources.block import (
    WEIGHT_REMEDY,
    arrow_array,
    arrow_numbers,
    arrow_strings,
    first_wrong,
    weight_remedy,
)
from oocpr.sources.dialect import (
    BLANKS,
    SEPARATORS,
    Dialect,
    UnclearError,
    chosen_columns,
    dialect_of,
    separator_named,
)
from oocpr.sources.formats.arrow import TableFiles
from oocpr.sources.lines import LONGEST_LINE, LineReader, parse_weights

if TYPE_CHECKING:
    import pyarrow as pa

    from oocpr.sources.block import Strings


SHOWN_BYTES = 1 << 18  # of the first rows, which say what separates columns and what nodes are

_BYTES_PER_EDGE = 16
_MIN_MATRIX = 3
"""Rows and columns from which 0 and 1 alone are no edges, of which there are four between two nodes."""
_MIN_BYTES, _MAX_BYTES = 1 << 17, 1 << 21
_QUOTE, _NEWLINE, _RETURN, _TAB, _SPACE, _MINUS, _ZERO = (np.uint8(ord(char)) for char in '"\n\r\t -0')
_FIELD, _PLAIN, _QUOTED, _BEHIND = range(4)
_LARGEST = np.uint64(2**63 - 1)


@entry()
def _rows_end(text, separator, out):  # type: ignore[no-untyped-def]
    """Copy whole rows without spaces before quoted fields; returns their bytes in `text` and in `out`.

    If `separator` is a space, any number of blanks separate fields and become one space, those at the ends of
    rows none. `text` and `out` are uint8, of one size.
    """
    blanks = separator == _SPACE
    state, end, copied, at, spaces, begun = _FIELD, 0, 0, 0, 0, False
    for i in range(text.size):
        char = text[i]
        if blanks and state != _QUOTED:
            if char in (_SPACE, _TAB, _RETURN):
                state, spaces = _FIELD, 1
                continue
            if spaces and begun and char != _NEWLINE:
                out[at] = _SPACE
                at += 1
            spaces, begun = 0, char != _NEWLINE
        out[at] = char
        at += 1
        if state == _QUOTED:
            if char == _QUOTE:
                state = _BEHIND
        elif char == _NEWLINE:
            state, spaces, end, copied = _FIELD, 0, i + 1, at
        elif char == separator:
            state, spaces = _FIELD, 0
        elif char == _QUOTE and state == _BEHIND:
            state = _QUOTED
        elif char == _QUOTE and state == _FIELD:
            state = _QUOTED
            at -= spaces
            out[at - 1] = char
        elif char == _SPACE and state == _FIELD:
            spaces += 1
        else:
            state = _PLAIN
    return end, copied


@entry()
def _whole_numbers(text, starts, ends, out):  # type: ignore[no-untyped-def]
    """Take names as whole numbers of 64 bits; False if one is none as it would be written: 7, not 007."""
    for k in range(starts.size):
        begin, end = starts[k], ends[k]
        negative = begin < end and text[begin] == _MINUS
        begin += negative
        if begin == end or end - begin > 19 or (text[begin] == _ZERO and (negative or end - begin > 1)):
            return False
        value = np.uint64(0)
        for i in range(begin, end):
            digit = np.uint8(text[i] - _ZERO)
            if digit > 9:
                return False
            value = value * np.uint64(10) + np.uint64(digit)
        if value > _LARGEST + np.uint64(negative):
            return False
        out[k] = -np.int64(value) if negative else np.int64(value)
    return True


def _numbers(names: Strings) -> NDArray[np.int64] | None:
    """Take names as whole numbers of 64 bits; None if one is none."""
    out = np.empty(names.size, np.int64)
    return out if _whole_numbers(names.text, names.starts, names.ends, out) else None


class TextTable(TableFiles):
    """Tables that are written as text."""

    _named: bool | None = None  # whether nodes have names; None until the first rows say it
    _file = ""  # what the file that is read is called
    _names: Sequence[str] = ()  # its columns
    _read_columns: Sequence[str] = ()  # those of both ends, and of weights

    def _batches(self, max_edges: int) -> Iterator[pa.RecordBatch]:
        size = min(max(_BYTES_PER_EDGE * max_edges, _MIN_BYTES), _MAX_BYTES)
        for stream in self._streams():
            self._file = stream.title
            for line, piece in self._pieces(LineReader(stream, size)):
                if piece.strip():
                    batch = self._parsed(piece, line)
                    self._advance(stream)
                    yield batch

    def _pieces(self, lines: LineReader) -> Iterator[tuple[int, bytes]]:
        """Yield whole rows of a file, and the number of their first line."""
        rest, held, line = lines.pieces(), b"", lines.line
        while len(held) < SHOWN_BYTES and (piece := next(rest, b"")):
            held += piece
        shown = held.rfind(b"\n", 0, SHOWN_BYTES) + 1 or len(held)
        head = self._take_head(held[:shown].decode(), line)
        line, held = line + held.count(b"\n", 0, head), held[head:]
        limit: int | None = shown - head
        for piece in chain([b""], rest, [b""]):
            held += piece
            end, rows = self._whole(held[:limit])
            if end:
                yield line, rows
                line, held = line + held.count(b"\n", 0, end), held[end:]
            elif len(held) > LONGEST_LINE:
                break
            limit = None
        if held:
            raise self._error(
                line, "a quote is opened and not closed.", "Close it, or double it if it is a part of a name."
            )

    def _error(self, line: int, cause: str, remedy: str) -> InputError:
        return InputError(f"{self._file}, line {line}: {cause}", remedy)

    def _wrong_weight(self, piece: bytes, line: int, row: int, shown: str, why: str) -> InputError:
        """Build the error for the weight of a row of a piece whose first line is `line`."""
        line += next(islice(self._rows(piece), row, None))[0]
        cause = f"the weight {shown} in column {self._weight!r} is {why}."
        return self._error(line, cause, weight_remedy(shown))

    def _batch(self, ends: Sequence[Any], weights: NDArray[np.float64] | None) -> pa.RecordBatch:
        import pyarrow as pa

        columns = [arrow_array(end) if isinstance(end, np.ndarray) else end for end in ends]
        if weights is not None:
            columns.append(arrow_array(weights))
        return pa.RecordBatch.from_arrays(columns, self._read_columns)

    @abstractmethod
    def _take_head(self, text: str, line: int) -> int:
        """Take what the first rows of a file say; returns the bytes before the first edge."""

    def _whole(self, text: bytes) -> tuple[int, bytes]:
        """Count the bytes of whole rows in whole lines; with these rows, as they are parsed."""
        return len(text), text

    @abstractmethod
    def _parsed(self, piece: bytes, line: int) -> pa.RecordBatch:
        """Parse rows, the first of which is in a line."""

    @abstractmethod
    def _rows(self, piece: bytes) -> Iterator[tuple[int, Any]]:
        """Yield rows as Python has them, each with the number of lines before it."""


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _is_matrix(rows: Sequence[Sequence[str]]) -> bool:
    """Tell whether rows are those of an adjacency matrix: of many columns, and 0 and 1 everywhere."""
    many = len(rows) >= _MIN_MATRIX and all(len(row) >= _MIN_MATRIX for row in rows)
    return many and all(_is_number(field) and float(field) in (0, 1) for row in rows for field in row)


class CsvFiles(TextTable):
    """Edges in two columns of CSV; docs/reference/sources.md has the rules."""

    _separator = ","
    _headed = False  # whether a header has named the columns

    def _take_head(self, text: str, line: int) -> int:
        delimiter = self._options.get("delimiter")
        called = (name for name in (*self._columns, self._weight) if name is not None)
        try:
            dialect = dialect_of(
                text,
                None if delimiter is None else separator_named(delimiter),
                self._options.get("header"),
                named=not all(map(str.isdecimal, called)),
                known=self._names if self._headed else (),
            )
        except UnclearError as unclear:
            raise self._error(line + unclear.line - 1, unclear.cause, unclear.remedy) from unclear
        if dialect.rows or dialect.header:
            self._take_columns_of(dialect, line)
        return sum(len(one.encode()) + 1 for one in text.split("\n")[: dialect.lines])

    def _take_columns_of(self, dialect: Dialect, line: int) -> None:
        begins = not self._names
        named = (*self._columns, self._weight) != (None, None, None)
        if not (named or dialect.header) and _is_matrix(dialect.rows):
            raise self._error(
                line + dialect.lines,
                f"{len(dialect.rows[0]):,} columns of 0 and 1 alone, as in a matrix and not in edges.",
                "Read it with NumPy and give a matrix of SciPy, or name the columns of both ends.",
            )
        self._names, self._separator = dialect.names, dialect.separator
        self._headed |= dialect.header
        self._read_columns = chosen = self._named_columns(self._names)
        numeric = [all(map(_is_number, fields)) for fields in zip(*dialect.rows, strict=False)]
        self._pass_over(dict(zip(self._names, numeric, strict=False)), chosen)
        if begins:
            by = SEPARATORS.get(dialect.separator, repr(dialect.separator))
            place = line + dialect.lines - 1
            header = f"line {place} is its header" if dialect.header else "it has no header"
            weights = f" and weights are in column {chosen[2]!r}" if self.weighted else ""
            # Whoever knows that the first row is one can say so.
            doubt = "" if dialect.header or any(numeric) else "; header=True if its first row is one"
            self.notices.append(
                f"{self._file} is CSV separated by {by}, {header}; "
                f"edges run from column {chosen[0]!r} to column {chosen[1]!r}{weights}{doubt}."
            )

    def _named_columns(self, names: Sequence[str]) -> list[str]:
        """Choose among columns, which the caller may call by their numbers too."""

        def known(name: str | None) -> str | None:
            number = int(name) if name is not None and name.isdecimal() and name not in names else 0
            return names[number - 1] if 0 < number <= len(names) else name

        source, target, weight = map(known, (*self._columns, self._weight))
        others = [name for name in names if name != weight]
        if all(map(str.isdecimal, names)) and None is source is target and len(others) > 1:
            source, target = others[:2]
        return chosen_columns(names, source, target, self._file, weight)

    def _whole(self, text: bytes) -> tuple[int, bytes]:
        if b'"' not in text and self._separator != " ":
            return len(text), text
        out = np.empty(len(text), np.uint8)
        end, copied = _rows_end(np.frombuffer(text, np.uint8), np.uint8(ord(self._separator)), out)
        return int(end), out[:copied].tobytes()

    def _parsed(self, piece: bytes, line: int) -> pa.RecordBatch:
        import pyarrow as pa
        import pyarrow.compute as pc
        from pyarrow import csv as arrow

        names = [str(number) for number in range(len(self._names))]
        wanted = [names[self._names.index(name)] for name in self._read_columns]
        try:
            table = arrow.read_csv(
                pa.BufferReader(piece),
                arrow.ReadOptions(use_threads=False, block_size=len(piece) + 1, column_names=names),
                arrow.ParseOptions(delimiter=self._separator, newlines_in_values=b'"' in piece),
                arrow.ConvertOptions(
                    check_utf8=False,  # it was checked
                    column_types=dict.fromkeys(names, pa.large_string()),
                    include_columns=wanted,
                    null_values=[],
                ),
            )
        except pa.ArrowInvalid as error:
            self._refuse(piece, line, str(error))
        fields = [pc.ascii_trim(table[name].combine_chunks(), BLANKS) for name in wanted]
        found = [arrow_strings(column) for column in fields]
        ends: list[Any] = fields[:2]
        if any((end.starts == end.ends).any() for end in found[:2]):
            self._refuse(piece, line, "an end is missing")
        if not self._named:
            ids = [_numbers(end) for end in found[:2]]
            named = any(column is None for column in ids)
            if named and self._named is False:
                self._refuse(piece, line, "an end is no whole number")
            self._named = named
            ends = ends if named else ids
        weights = None
        if self.weighted:
            begins, stops = (bounds.astype(np.uint32) for bounds in (found[2].starts, found[2].ends))
            weights = parse_weights(found[2].text, begins, stops, partial(self._wrong_weight, piece, line))
        return self._batch(ends, weights)

    def _rows(self, piece: bytes) -> Iterator[tuple[int, Any]]:
        reader = csv.reader(io.StringIO(piece.decode(), newline=""), delimiter=self._separator)
        before = 0
        with contextlib.suppress(csv.Error):  # of longer fields than Python takes
            for row in reader:
                if row:
                    yield before, row
                before = reader.line_num

    def _refuse(self, piece: bytes, line: int, why: str) -> NoReturn:
        """Raise the error for the first row that cannot be read."""
        import pyarrow as pa

        places = [self._names.index(name) for name in self._read_columns[:2]]
        for before, row in self._rows(piece):
            at = line + before
            if len(row) != len(self._names):
                raise self._error(
                    at,
                    f"a row of {len(row)} columns, where there are {len(self._names)}.",
                    "Give all rows as many columns, and put a field that holds a separator in quotes.",
                )
            for name, place in zip(self._read_columns, places, strict=False):
                field = row[place].strip(BLANKS)
                if not field:
                    raise self._error(at, f"no node in column {name!r}.", "Drop rows without both ends.")
                one = pa.array([field], pa.large_string())
                if self._named is False and _numbers(arrow_strings(one)) is None:
                    raise self._error(
                        at,
                        f"{field[:60]!r} in column {name!r} is no whole number of 64 bits, as others are.",
                        'Correct it, or take all nodes as names: format="csv_names".',
                    )
        raise self._error(line, f"in a row from here on: {' '.join(why.split())[:200]}.", "Correct the row.")


class CsvNames(CsvFiles):
    """CSV whose nodes have names, whatever these look like."""

    _named: bool | None = True


class JsonLines(TextTable):
    """Edges as JSON objects, one per line; the members of the first are the columns."""

    def _take_head(self, text: str, line: int) -> int:
        for before, value in islice(self._rows(text.encode()), 1):
            if not isinstance(value, dict):
                raise self._no_object(line + before)
            self._names = list(value)
            kinds = {name: type(member) in (int, float) for name, member in value.items()}
            begins = not self._read_columns
            self._read_columns = self._chosen(kinds, self._file)
            if self._named is None:
                self._named = isinstance(value[self._read_columns[0]], str)
            if begins:
                source, target = self._read_columns[:2]
                weights = f" and weights are {self._weight!r}" if self.weighted else ""
                self.notices.append(
                    f"{self._file} is JSON lines; edges run from {source!r} to {target!r}{weights}."
                )
        return 0

    def _parsed(self, piece: bytes, line: int) -> pa.RecordBatch:
        import pyarrow as pa
        from pyarrow import json as arrow

        end = pa.large_string() if self._named else pa.int64()
        kinds = zip(self._read_columns, (end, end, pa.float64()), strict=False)
        try:
            table = arrow.read_json(
                pa.BufferReader(piece),
                arrow.ReadOptions(use_threads=False, block_size=len(piece) + 1),
                arrow.ParseOptions(
                    explicit_schema=pa.schema(list(kinds)), unexpected_field_behavior="ignore"
                ),
            )
        except pa.ArrowInvalid as error:
            self._refuse(piece, line, str(error))
        columns = [table[name].combine_chunks() for name in self._read_columns]
        if any(column.null_count for column in columns):
            self._refuse(piece, line, "a member is missing")
        weights = None
        if self.weighted:
            weights = arrow_numbers(columns[2]) + 0.0  # -0.0 + 0.0 is 0.0
            wrong = first_wrong(weights)
            if wrong is not None:
                raise self._wrong_weight(piece, line, wrong[0], str(weights[wrong[0]]), wrong[1])
        return self._batch(columns[:2], weights)

    def _rows(self, piece: bytes) -> Iterator[tuple[int, Any]]:
        for before, one in enumerate(piece.decode().split("\n")):
            if one.strip():
                try:
                    yield before, json.loads(one)
                except (ValueError, RecursionError):
                    yield before, None

    def _refuse(self, piece: bytes, line: int, why: str) -> NoReturn:
        """Raise the error for the first object that cannot be read."""
        wanted = (str, "text") if self._named else (int, "a whole number of 64 bits")
        for before, value in self._rows(piece):
            at = line + before
            if not isinstance(value, dict):
                raise self._no_object(at)
            for name in self._read_columns:
                found = value.get(name)
                shown = json.dumps(found)[:60]
                if found is None:
                    raise self._error(
                        at,
                        f"the object has no {name!r}.",
                        "Drop objects without both ends, or without weight.",
                    )
                if name == self._weight:
                    if isinstance(found, bool) or not isinstance(found, int | float):
                        raise self._error(at, f"the weight {shown} in {name!r} is no number.", WEIGHT_REMEDY)
                elif (
                    isinstance(found, bool)
                    or not isinstance(found, wanted[0])
                    or (isinstance(found, int) and not -(2**63) <= found < 2**63)
                ):
                    raise self._error(
                        at,
                        f"{shown} in {name!r} is not {wanted[1]}, as others are.",
                        "Write all nodes as whole numbers, or all in quotes.",
                    )
        raise self._error(line, f"in an object from here on: {' '.join(why.split())[:200]}", "Correct it.")

    def _no_object(self, line: int) -> InputError:
        return self._error(
            line,
            "no JSON object on a line of its own.",
            "Write an object a line, for example with jq -c '.[]'; other layouts can be read with NetworkX.",
        )
