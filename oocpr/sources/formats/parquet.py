"""Parquet files, one or many, read row group by row group.

Their metadata and the headers of their pages are read before Arrow decompresses what they announce: a page is
decompressed as a whole, and only its own header tells how much that gives, and Arrow's own objects for the
metadata of columns end the process if these contradict themselves. All are structs of Thrift in its compact
protocol, see ``parquet.thrift`` of parquet-format.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from oocpr.errors import InputError, OocprError
from oocpr.sources.formats.arrow import TEXT_BYTES_PER_EDGE, TableFiles, kinds_of
from oocpr.sources.locations import LocalFile, RemoteFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Unpack

    import pyarrow as pa

    from oocpr.sources.base import SourceOptions
    from oocpr.sources.block import Block
    from oocpr.sources.locations import AnyPath, InputFile

_BUFFER_BYTES = 1 << 20


class ParquetFiles(TableFiles):
    """Edges in two columns of Parquet files.

    A folder stands for all files below it that end in .parquet or .pq, ordered by path.
    """

    def __init__(self, path: AnyPath | Sequence[AnyPath], **options: Unpack[SourceOptions]) -> None:
        super().__init__(path, **options)
        self._set_files([found for file in self.files for found in _files(file)])

    def _read(self, max_edges: int) -> Iterator[Block]:
        import pyarrow as pa

        yield from self._blocks(self._batches(max_edges), max_edges)
        # Arrow keeps freed memory for columns to come, of which there are none.
        pa.default_memory_pool().release_unused()

    def _batches(self, max_edges: int) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        options = {"buffer_size": _BUFFER_BYTES, "pre_buffer": False, "page_checksum_verification": True}
        for input_file in self.files:
            with input_file.open() as opened:
                try:
                    # Arrow reads its own files fastest.
                    source: Any = str(input_file) if isinstance(input_file, LocalFile) else opened
                    file = pq.ParquetFile(source, **options)
                    columns = self._chosen(kinds_of(file.schema_arrow), str(input_file))
                    self._check_columns(file.schema_arrow, columns, str(input_file))
                    chunks = row_groups(opened, self.reserve, str(input_file))
                    if len(chunks) != file.metadata.num_row_groups:
                        raise ValueError("its metadata contradict themselves")
                    rows = [file.metadata.row_group(group).num_rows for group in range(len(chunks))]
                    if sum(rows) != file.metadata.num_rows:
                        raise ValueError("its row groups have other numbers of rows than the file")
                    done = 0
                    for group in filter(rows.__getitem__, range(len(chunks))):
                        about = _RowGroup(chunks[group], rows[group], columns)
                        if isinstance(input_file, LocalFile):
                            about.look_at_pages(opened, self.reserve, str(input_file))
                        if about.dictionary_bytes > TEXT_BYTES_PER_EDGE:
                            named = pq.ParquetFile(
                                source, read_dictionary=columns, metadata=file.metadata, **options
                            )
                            about.look_at_names(named.iter_batches(1, row_groups=[group], columns=columns))
                        behind = done + about.rows
                        for batch in file.iter_batches(
                            about.rows_at_once(max_edges), row_groups=[group], columns=columns
                        ):
                            done += batch.num_rows
                            self.position = (
                                self._before + (input_file.size or 0) * done // file.metadata.num_rows
                            )
                            # The file may have them in another order.
                            yield batch.select(columns)
                        if done != behind:
                            raise ValueError(f"it has {done:,} rows of {behind:,}")
                except (pa.ArrowException, OSError, EOFError, ValueError) as error:
                    if isinstance(error, OocprError) or getattr(error, "errno", None) not in (
                        None,
                        errno.EINVAL,  # of places before the file
                    ):
                        raise
                    raise InputError(
                        f"{input_file} is no whole Parquet file: {' '.join(str(error).split())[:200]}",
                        "Fetch or write the file again.",
                    ) from error
            self._before += input_file.size or 0


class _RowGroup:
    """How much of a row group is to be read at once, by the columns that are read."""

    def __init__(self, chunks: Sequence[ColumnChunk], rows: int, columns: Sequence[str]) -> None:
        self._chunks = [chunk for chunk in chunks if chunk.name in columns]
        self.rows = rows
        text = [chunk for chunk in self._chunks if chunk.text]
        text_bytes = sum(chunk.bytes for chunk in text)
        self.dictionary_bytes = text_bytes if any(chunk.has_dictionary for chunk in text) else 0
        self._row_bytes = text_bytes // max(1, self.rows)
        self._longest = 0

    def look_at_pages(self, file: BinaryIO, reserve: Callable[[int, str], None], title: str) -> None:
        """Refuse pages that do not fit in memory, and find out how long the strings in them are."""
        needed = 0
        self.dictionary_bytes = self._row_bytes = 0
        for chunk in self._chunks:
            dictionary = widest = most = 0
            for page in pages(file, chunk.start, chunk.values):
                if page.kind == DICTIONARY:
                    # Decoded, and once more where its strings are looked at.
                    dictionary = max(dictionary, 3 * page.memory)
                else:
                    widest = max(widest, page.bytes // max(1, page.values))
                most = max(most, page.memory)
                reserve(needed + dictionary + most, f"A page of {page.bytes:,} bytes in {title}")
            needed += dictionary + most
            if chunk.text:
                self._row_bytes += widest
                self.dictionary_bytes += dictionary

    def look_at_names(self, batches: Iterator[pa.RecordBatch]) -> None:
        """Find out how long the strings of dictionaries are, for which rows have only numbers."""
        import pyarrow as pa
        import pyarrow.compute as pc

        for column in next(batches, ()):
            if pa.types.is_dictionary(column.type):
                self._longest += pc.max(pc.binary_length(column.dictionary)).as_py() or 0

    def rows_at_once(self, max_edges: int) -> int:
        """Rows of a batch whose strings are within bounds, however they are spread."""
        longest: int = self._row_bytes + self._longest
        return max(1, min(max_edges, TEXT_BYTES_PER_EDGE * max_edges // max(1, longest)))


def _files(input_file: InputFile) -> list[InputFile]:
    """The Parquet files of a folder, or the file itself."""
    found: list[InputFile] = [input_file]
    if isinstance(input_file, LocalFile) and input_file.path.is_dir():
        paths = sorted(path for path in input_file.path.rglob("*") if path.suffix in (".parquet", ".pq"))
        found = [LocalFile(path) for path in paths if path.is_file() and not path.name.startswith((".", "_"))]
    elif isinstance(input_file, RemoteFile) and str(input_file).endswith("/"):
        system, folder = input_file.found
        names = sorted(name for name in system.find(folder) if name.endswith((".parquet", ".pq")))
        found = [RemoteFile(system.unstrip_protocol(name)) for name in names]
    if not found:
        raise InputError(
            f"{input_file} is a folder and holds no .parquet files.", "Give the path of a graph's file."
        )
    return found


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


class ColumnChunk(NamedTuple):
    """A column of a row group.

    `name` is None for a column inside another; `text` says whether it has strings, as far as these are stored
    with their lengths; `values` is how many its pages have, `bytes` what they decompress to, as the metadata
    say; `start` is where its first page begins; `has_dictionary` whether the metadata tell of one.
    """

    name: str | None
    text: bool
    values: int
    bytes: int
    start: int
    has_dictionary: bool


class Page(NamedTuple):
    """What the header of a page says.

    `kind` is `DATA`, `INDEX`, `DICTIONARY` or `DATA_V2`; `bytes` what it decompresses to; `values` how many
    it has; `memory` the bytes that it takes while it is decoded.
    """

    kind: int
    bytes: int
    values: int
    memory: int


def row_groups(file: BinaryIO, reserve: Callable[[int, str], None], title: str) -> list[list[ColumnChunk]]:
    """Read the columns of all row groups from the metadata at the end of a file; ValueError without them."""
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


def _chunk(facts: dict[int, Any]) -> ColumnChunk:
    """Take what is said of a column; fields are type, path, values, bytes and places of pages."""
    dictionary = facts.get(11) or 0
    starts = [start for start in (dictionary, facts[9]) if start > 0]
    if not starts:
        raise ValueError("a column has no pages")
    name = facts[3][0].decode() if len(facts[3]) == 1 else None
    return ColumnChunk(name, facts[1] == _BYTE_ARRAY, facts[5], facts[6], min(starts), dictionary > 0)


def pages(file: BinaryIO, start: int, values: int) -> Iterator[Page]:
    """Yield the pages of a column of a row group, the first at byte `start`, until all have so many `values`.

    Raises ValueError if there are no such pages.
    """
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
