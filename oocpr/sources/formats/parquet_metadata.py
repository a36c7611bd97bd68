"""Metadata of a Parquet file and headers of its pages, read before Arrow unpacks what they announce.

A page is unpacked as a whole, and only its own header tells how much that gives. Arrow's own objects for the
metadata of columns end the process where these contradict themselves. All are structs of Thrift in its
compact protocol, see ``parquet.thrift`` of parquet-format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DATA, INDEX, DICTIONARY, DATA_V2 = range(4)
_HEADERS = {DATA: 5, INDEX: 6, DICTIONARY: 7, DATA_V2: 8}
"""Field of a page's header that is about its kind; the number of values and their encoding come first."""

_LENGTHS_FIRST = (6, 7)
"""Encodings of strings whose lengths are all decoded first: DELTA_LENGTH_BYTE_ARRAY, DELTA_BYTE_ARRAY."""

_BYTE_ARRAY = 6
"""The type of columns of strings."""

_HEADER_BYTES = 1 << 12
_MAX_HEADER_BYTES = 1 << 24
_MAX_DEPTH = 16
_STOP, _TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(13)


_FOOTER_MEMORY = 32
"""Bytes of memory for a byte of metadata."""


class Chunk(NamedTuple):
    """A column of a row group.

    Attributes
    ----------
    name
        Its name; None for a column inside another.
    text
        Whether it has strings, as far as these are stored with their lengths.
    values
        How many values its pages have.
    bytes
        What its pages unpack to, as the metadata say.
    start
        Where its first page begins.
    has_dictionary
        Whether the metadata tell of a dictionary.
    """

    name: str | None
    text: bool
    values: int
    bytes: int
    start: int
    has_dictionary: bool


class Page(NamedTuple):
    """What the header of a page says.

    Attributes
    ----------
    kind
        `DATA`, `INDEX`, `DICTIONARY` or `DATA_V2`.
    bytes
        What it unpacks to.
    values
        How many it has.
    memory
        Bytes that it takes while it is decoded.
    """

    kind: int
    bytes: int
    values: int
    memory: int


def row_groups(file: BinaryIO, reserve: Callable[[int, str], None], title: str) -> list[list[Chunk]]:
    """Read the columns of all row groups out of the metadata at the end of a file.

    Raises
    ------
    ValueError
        Where there are no such metadata.
    """
    end = file.seek(0, 2) - 8
    file.seek(max(0, end))
    size = int.from_bytes(file.read(4), "little")
    if size > end:
        raise ValueError("its metadata begin before the file")
    reserve(_FOOTER_MEMORY * size, f"The metadata of {title}")
    file.seek(end - size)
    try:
        facts, _ = _struct(file.read(size), 0, 0)
        return [[_chunk(column[3]) for column in group[1]] for group in facts[4]]
    except (IndexError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise ValueError("its metadata are not whole") from error


def _chunk(facts: dict[int, Any]) -> Chunk:
    """Take what is said of a column; fields are type, path, values, bytes and places of pages."""
    dictionary = facts.get(11) or 0
    starts = [start for start in (dictionary, facts[9]) if start > 0]
    if not starts:
        raise ValueError("a column has no pages")
    name = facts[3][0].decode() if len(facts[3]) == 1 else None
    return Chunk(name, facts[1] == _BYTE_ARRAY, facts[5], facts[6], min(starts), dictionary > 0)


def pages(file: BinaryIO, start: int, values: int) -> Iterator[Page]:
    """Yield the pages of a column of a row group.

    Parameters
    ----------
    file
        The file.
    start
        Where its first page begins.
    values
        How many values all pages have.

    Raises
    ------
    ValueError
        Where there are no such pages.
    """
    while values > 0:
        header, size = _header(file, start)
        try:
            page, packed = _page(header, values)
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"the page at byte {start:,} has no whole header") from error
        if page.kind in (DATA, DATA_V2):
            values -= page.values
        yield page
        start += size + packed


def _page(header: dict[int, Any], values: int) -> tuple[Page, int]:
    """Take what a header says of a page, of as many values as are left; with its bytes in the file."""
    kind, unpacked, packed = (header[field] for field in (1, 2, 3))
    about = header[_HEADERS[kind]]
    count, encoding = about.get(1, 0), about.get(4 if kind == DATA_V2 else 2, 0)
    if min(unpacked, packed, count) < 0 or (kind in (DATA, DATA_V2) and count > values):
        raise ValueError(f"a page of {unpacked:,} bytes has {count:,} values of {values:,}")
    lengths = 16 * count if encoding in _LENGTHS_FIRST else 0
    return Page(kind, unpacked, count, packed + unpacked + lengths), packed


def _header(file: BinaryIO, start: int) -> tuple[dict[int, Any], int]:
    """Read the struct at a place of a file; with its length."""
    size = _HEADER_BYTES
    while True:
        file.seek(start)
        data = file.read(size)
        try:
            return _struct(data, 0, 0)
        except IndexError:
            if len(data) < size or size > _MAX_HEADER_BYTES:
                raise ValueError(f"there is no page at byte {start:,}") from None
        size *= 16


def _struct(data: bytes, at: int, depth: int) -> tuple[dict[int, Any], int]:
    """Read a struct: its fields by number, and where it ends. IndexError where the bytes end before."""
    fields: dict[int, Any] = {}
    number = 0
    while (first := data[at]) != _STOP:
        at += 1
        if first >> 4:
            number += first >> 4
        else:
            number, at = _integer(data, at)
        fields[number], at = _value(data, at, first & 15, depth)
    return fields, at + 1


def _value(data: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if depth > _MAX_DEPTH:
        raise ValueError("it is nested too deeply")
    if kind in (_TRUE, _FALSE):
        return kind == _TRUE, at
    if kind == _BYTE:
        return data[at], at + 1
    if kind in (_I16, _I32, _I64):
        return _integer(data, at)
    if kind == _DOUBLE:
        return None, _behind(data, at, 8)
    if kind == _BINARY:
        size, at = _natural(data, at)
        end = _behind(data, at, size)
        return data[at:end], end
    if kind == _STRUCT:
        return _struct(data, at, depth + 1)
    if kind != _LIST:  # there are no sets and maps
        raise ValueError("it has an unknown field")
    size, of = data[at] >> 4, data[at] & 15
    size, at = _natural(data, at + 1) if size == 15 else (size, at + 1)
    found = []
    for _ in range(size):
        # A truth value takes a byte here, unlike one that is a field.
        one, at = _value(data, at, _BYTE if of in (_TRUE, _FALSE) else of, depth + 1)
        found.append(one)
    return found, at


def _behind(data: bytes, at: int, size: int) -> int:
    if at + size > len(data):
        raise IndexError
    return at + size


def _natural(data: bytes, at: int) -> tuple[int, int]:
    """Read a number in groups of seven bits, the lowest first."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at
        if shift > 63:
            raise ValueError("it has a number of more than 64 bits")


def _integer(data: bytes, at: int) -> tuple[int, int]:
    value, at = _natural(data, at)
    return value >> 1 ^ -(value & 1), at
