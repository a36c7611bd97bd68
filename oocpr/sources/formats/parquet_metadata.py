"""Metadata of Parquet files and headers of their pages, read before Arrow reads them; a checksum of metadata.

Arrow decompresses a page as a whole, and only its header says how much that gives; and Arrow ends the process
if metadata of columns contradict themselves. All are structs of Thrift in its compact protocol, see
``parquet.thrift`` of parquet-format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple

from crc32c import crc32c

DATA, INDEX, DICTIONARY, DATA_V2 = range(4)
# The field of a page's header that is about its kind; the number of values and their encoding come first.
_HEADERS = {DATA: 5, INDEX: 6, DICTIONARY: 7, DATA_V2: 8}
# Strings whose lengths are all decoded first: DELTA_LENGTH_BYTE_ARRAY, DELTA_BYTE_ARRAY.
_LENGTHS_FIRST = (6, 7)
_BYTE_ARRAY = 6  # the type of columns of strings
_FOOTER_MEMORY = 32  # bytes of memory for a byte of metadata
_MARK = b"crc="  # of a checksum before metadata
_CHECKSUM_BYTES = 4
_TAIL_BYTES = 8  # the size of the metadata, and what Parquet files end with

_HEADER_BYTES = 1 << 12
_MAX_HEADER_BYTES = 1 << 24
_MAX_DEPTH = 16
_STOP, _TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(13)


class ColumnChunk(NamedTuple):
    """A column of a row group, as the metadata say."""

    name: str | None  # None for a column inside another
    text: bool  # it has strings, as far as these are stored with their lengths
    values: int
    bytes: int  # decompressed
    start: int  # of its first page in the file
    has_dictionary: bool


class Page(NamedTuple):
    """What the header of a page says."""

    kind: int  # `DATA`, `INDEX`, `DICTIONARY` or `DATA_V2`
    bytes: int  # decompressed
    values: int
    memory: int  # bytes that it takes while it is decoded


def row_groups(file: BinaryIO, reserve: Callable[[int, str], None], title: str) -> list[list[ColumnChunk]]:
    """Read the columns of all row groups from the metadata at the end of a file; ValueError without them."""
    start, size = _place(file)
    reserve(_FOOTER_MEMORY * size, f"The metadata of {title}")
    file.seek(start)
    try:
        groups = _Thrift(file.read(size)).struct()[4]
        return [[_chunk(column[3]) for column in group[1]] for group in groups]
    except (AttributeError, IndexError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise ValueError("its metadata are not whole") from error


def add_checksum(file: BinaryIO) -> None:
    """Put a checksum of the metadata of a file before them, where no reader looks; Parquet has none."""
    start, _ = _place(file)
    file.seek(start)
    metadata = file.read()
    file.seek(start)
    file.write(_MARK + crc32c(metadata).to_bytes(_CHECKSUM_BYTES, "little") + metadata)


def check_metadata(file: BinaryIO) -> None:
    """Raise ValueError if the metadata of a file are not those of the checksum before them, if any."""
    start, _ = _place(file)
    file.seek(max(0, start - _CHECKSUM_BYTES - len(_MARK)))
    mark, stored, metadata = file.read(len(_MARK)), file.read(_CHECKSUM_BYTES), file.read()
    if mark == _MARK and int.from_bytes(stored, "little") != crc32c(metadata):
        raise ValueError("its metadata are not what was written")


def _place(file: BinaryIO) -> tuple[int, int]:
    """Find the first byte of the metadata at the end of a file, and how many they are."""
    end = file.seek(0, 2) - _TAIL_BYTES
    file.seek(max(0, end))
    size = int.from_bytes(file.read(4), "little")
    if size > end:
        raise ValueError("its metadata begin before the file")
    return end - size, size


def _chunk(facts: dict[int, Any]) -> ColumnChunk:
    """Take the fields 1 (type), 3 (path), 5 (values), 6 (bytes), 9 and 11 (first pages) of a column."""
    dictionary = facts.get(11) or 0
    starts = [start for start in (dictionary, facts[9]) if start > 0]
    if not starts and facts[5] != 0:
        raise ValueError("a column has no pages")
    name = facts[3][0].decode() if len(facts[3]) == 1 else None
    first = min(starts, default=0)
    return ColumnChunk(name, facts[1] == _BYTE_ARRAY, facts[5], facts[6], first, dictionary > 0)


def pages(file: BinaryIO, start: int, values: int) -> Iterator[Page]:
    """Yield pages from byte `start` on until they have so many `values`; ValueError if there are none."""
    while values > 0:
        header, size = _header(file, start)
        try:
            page, stored = _page(header, values)
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"the page at byte {start:,} has no whole header") from error
        if page.kind in (DATA, DATA_V2):
            values -= page.values
        yield page
        start += size + stored


def _page(header: dict[int, Any], values: int) -> tuple[Page, int]:
    """Take what a header says of a page, of as many values as are left; with its bytes in the file."""
    kind, decompressed, stored = (header[field] for field in (1, 2, 3))
    about = header[_HEADERS[kind]]
    count, encoding = about.get(1, 0), about.get(4 if kind == DATA_V2 else 2, 0)
    if min(decompressed, stored, count) < 0 or (kind in (DATA, DATA_V2) and count > values):
        raise ValueError(f"a page of {decompressed:,} bytes has {count:,} values of {values:,}")
    lengths = 16 * count if encoding in _LENGTHS_FIRST else 0
    return Page(kind, decompressed, count, stored + decompressed + lengths), stored


def _header(file: BinaryIO, start: int) -> tuple[dict[int, Any], int]:
    """Read the struct at byte `start` of a file; with its length."""
    size = _HEADER_BYTES
    while True:
        file.seek(start)
        reader = _Thrift(file.read(size))
        try:
            return reader.struct(), reader.at
        except IndexError:
            if len(reader.data) < size or size > _MAX_HEADER_BYTES:
                raise ValueError(f"there is no page at byte {start:,}") from None
        size *= 16


class _Thrift:
    """Structs in Thrift's compact protocol; IndexError if the bytes end before."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """Read a struct as its fields by number."""
        fields: dict[int, Any] = {}
        number = 0
        while (first := self._byte()) != _STOP:
            number = number + (first >> 4) if first >> 4 else self._integer()
            fields[number] = self._value(first & 15, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise ValueError("it is nested too deeply")
        if kind in (_TRUE, _FALSE):
            return kind == _TRUE
        if kind == _BYTE:
            return self._byte()
        if kind in (_I16, _I32, _I64):
            return self._integer()
        if kind in (_DOUBLE, _BINARY):
            return self._bytes(8 if kind == _DOUBLE else self._natural())
        if kind == _STRUCT:
            return self.struct(depth + 1)
        if kind != _LIST:  # there are no sets and maps
            raise ValueError("it has an unknown field")
        first = self._byte()
        size, of = first >> 4, first & 15
        if size == 15:
            size = self._natural()
        # A truth value takes a byte here, unlike one that is a field.
        return [self._value(_BYTE if of in (_TRUE, _FALSE) else of, depth) for _ in range(size)]

    def _byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def _bytes(self, size: int) -> bytes:
        self.at += size
        if self.at > len(self.data):
            raise IndexError
        return self.data[self.at - size : self.at]

    def _natural(self) -> int:
        """Read a number in groups of seven bits, the lowest first."""
        value = shift = 0
        while (byte := self._byte()) & 128:
            value |= (byte & 127) << shift
            shift += 7
            if shift > 63:
                raise ValueError("it has a number of more than 64 bits")
        return value | byte << shift

    def _integer(self) -> int:
        value = self._natural()
        return value >> 1 ^ -(value & 1)
