"""Tables: Arrow record batches as blocks, from data frames in memory and from Parquet files."""

from __future__ import annotations

import errno
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Unpack

import numpy as np
from numpy.typing import NDArray

from oocpr.errors import InputError, OocprError
from oocpr.sources.base import BaseSource, FileSource
from oocpr.sources.block import (
    WEIGHT_REMEDY,
    NameBlock,
    Strings,
    arrow_numbers,
    arrow_strings,
    id_block,
    weights_of,
)
from oocpr.sources.dialect import ROW_NUMBERS, chosen_columns
from oocpr.sources.files import LocalFile, RemoteFile
from oocpr.sources.formats.parquet_metadata import DICTIONARY, pages, row_groups
from oocpr.system import shares

if TYPE_CHECKING:
    import pyarrow as pa

    from oocpr.sources.base import SourceOptions
    from oocpr.sources.block import Block
    from oocpr.sources.files import InputFile
    from oocpr.sources.formats.parquet_metadata import ColumnChunk

_TEXT_BYTES_PER_EDGE = 16  # of the names of a block at most, for each edge that it may have


class TableSource(BaseSource):
    """Edges in two columns of a table: whole numbers, or names."""

    def __init__(self, name: str, title: str, **options: Unpack[SourceOptions]) -> None:
        super().__init__(name, title, **options)
        called = (options.get("source_column"), options.get("target_column"), options.get("weight"))
        source, target, self._weight = (None if name is None else str(name) for name in called)
        self._columns = source, target
        self._rows_before = 0  # rows before the next batch that others read

    @abstractmethod
    def _batches(self, max_edges: int) -> Iterator[pa.RecordBatch]:
        """Yield batches of the columns that are read."""

    def _chosen(self, kinds: Mapping[str, bool], title: str) -> list[str]:
        """Find the columns to be read, among columns that hold numbers or do not; note which are not used."""
        chosen = chosen_columns(list(kinds), *self._columns, title, self._weight)
        self._pass_over(kinds, chosen)
        return chosen

    def _chosen_of(self, schema: pa.Schema, title: str) -> list[str]:
        """Choose among the columns of a table; refuse what cannot be read, before anything of it is."""
        from pyarrow import types

        numbers = (types.is_integer, types.is_floating, types.is_decimal)
        kinds = {field.name: any(kind(field.type) for kind in numbers) for field in schema}
        chosen = self._chosen(kinds, title)
        for name in chosen:
            if schema.names.count(name) > 1:
                raise InputError(f"{title} has two columns {name!r}.", "Rename one of them.")
        for name in chosen[:2]:
            _check_kind(schema.field(name).type, title)
        return chosen

    def _pass_over(self, kinds: Mapping[str, bool], chosen: Sequence[str]) -> None:
        """Note the columns of numbers that are not read."""
        numeric = (
            name
            for name, number in kinds.items()
            if number and name not in chosen and name.casefold() not in ROW_NUMBERS
        )
        self.unused_columns += [name for name in numeric if name not in self.unused_columns]

    def _read(self, max_edges: int) -> Iterator[Block]:
        named: bool | None = None
        first = 0
        for batch in self._batches(max_edges):
            first, self._rows_before = first + self._rows_before, 0
            self._validate(batch, first)
            for start, count in _cuts(batch, max_edges):
                columns = [column.slice(start, count) for column in batch.columns]
                ends = [self._values(column, first) for column in columns[:2]]
                weight = self._weights(columns[2], first) if self.weighted else None
                if named is None:
                    named = isinstance(ends[0], Strings)
                    if not named:
                        self._read_labels()
                    else:
                        yield from self._listed_nodes(max_edges)
                for end in ends:
                    if isinstance(end, Strings) != named:
                        raise InputError(
                            f"{self.title} has nodes with numbers and nodes with names.",
                            "Write all of them in the same way.",
                        )
                src, dst = ends
                if isinstance(src, Strings) and isinstance(dst, Strings):
                    yield NameBlock(src, dst, weight)
                else:
                    yield id_block(src, dst, self.nodes, self.title, first, weight)  # type: ignore[arg-type]
                first += count

    def _values(self, column: Any, first: int) -> Strings | np.ndarray[Any, Any]:
        """Take a column as numbers or names; `first` is the number of its first row."""
        import pyarrow as pa

        if column.null_count:
            raise InputError(
                f"{self.title}: row {_first_null(column, first):,} lacks an end.",
                "Drop rows without both ends.",
            )
        _check_kind(column.type, self.title)
        if pa.types.is_dictionary(column.type):
            if pa.types.is_string_view(
                column.type.value_type
            ):  # which Arrow does not take out of dictionaries
                kind = pa.dictionary(column.type.index_type, pa.large_string())
                names = column.dictionary.cast(pa.large_string())
                column = pa.DictionaryArray.from_arrays(column.indices, names).cast(kind)
            column = column.dictionary_decode()
        if pa.types.is_integer(column.type):
            return arrow_numbers(column)
        return arrow_strings(column.cast(pa.large_string()))

    def _weights(self, column: Any, first: int) -> NDArray[np.float64]:
        """Take a column as weights; `first` is the number of its first row."""
        import pyarrow as pa

        if column.null_count:
            raise InputError(
                f"{self.title}: row {_first_null(column, first):,} lacks a weight.", WEIGHT_REMEDY
            )
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        kind = column.type
        if pa.types.is_decimal(kind) or pa.types.is_boolean(kind):
            column = column.cast(pa.float64() if pa.types.is_decimal(kind) else pa.uint8())
        elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
            raise InputError(
                f"{self.title}: the column {self._weight!r} of {kind} holds no weights.",
                "Give the weights as numbers.",
            )
        return weights_of(arrow_numbers(column), self.title, "row", first)

    def _validate(self, batch: pa.RecordBatch, first: int) -> None:
        """Refuse text that is no UTF-8, and offsets that are not there, as compiled loops go by them."""
        import pyarrow as pa

        try:
            batch.validate(full=True)
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise InputError(
                f"{self.title}: row {first:,} or one of the {batch.num_rows:,} from it on cannot be read: "
                f"{' '.join(str(error).split())[:200]}.",
                "Write the table again, its text in UTF-8.",
            ) from error


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _check_kind(kind: pa.DataType, title: str) -> None:
    """Refuse a column of ends that has neither whole numbers nor text."""
    import pyarrow as pa

    of = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (_is_text(of) or pa.types.is_integer(of)):
        raise InputError(
            f"{title}: a column of {of} holds no nodes.", "Give the nodes as whole numbers or as text."
        )


def _cuts(batch: pa.RecordBatch, max_edges: int) -> Iterator[tuple[int, int]]:
    """Cut a batch into pieces of bounded rows and, unless of one row, bytes of names: first row, rows."""
    max_bytes = _TEXT_BYTES_PER_EDGE * max_edges
    for start in range(0, batch.num_rows, max_edges):
        count = min(max_edges, batch.num_rows - start)
        ends = np.cumsum(sum(_text_bytes(column.slice(start, count)) for column in batch.columns[:2]))
        if ends.size < 2 or ends[-1] <= max_bytes:
            yield start, count
            continue
        first = 0
        while first < count:
            before = int(ends[first - 1]) if first else 0
            stop = max(first + 1, int(np.searchsorted(ends, before + max_bytes, side="right")))
            yield start + first, stop - first
            first = stop


def _text_bytes(column: Any) -> NDArray[np.int64] | int:
    """Bytes of each name of a column, int64, shape (rows,); 0 for columns of numbers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    names = column.dictionary if pa.types.is_dictionary(kind) else column
    if not _is_text(names.type):
        return 0
    if pa.types.is_string_view(names.type):
        views = np.frombuffer(names.buffers()[1], np.int32).reshape(-1, 4)
        lengths: NDArray[np.int64] = views[names.offset : names.offset + len(names), 0].astype(np.int64)
    else:
        lengths = arrow_numbers(_zero_filled(pc.binary_length(names))).astype(np.int64)
    if not pa.types.is_dictionary(kind):
        return lengths
    places = arrow_numbers(_zero_filled(column.indices))
    return lengths.take(places) if lengths.size else 0


def _zero_filled(numbers: Any) -> Any:
    # Arrow loads pandas for what fills the gaps.
    return numbers.fill_null(0) if numbers.null_count else numbers


def _first_null(column: Any, first: int) -> int:
    """Give the number of the first row without a value; that of the first row is `first`."""
    return first + int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])


class TableFiles(FileSource, TableSource):
    """Tables in files."""

    def _read(self, max_edges: int) -> Iterator[Block]:
        import pyarrow as pa

        yield from super()._read(max_edges)
        # Arrow keeps freed memory for columns to come, of which there are none.
        pa.default_memory_pool().release_unused()


def text_table(ends: Sequence[Any]) -> pa.Table:
    """Make a table of two columns of text: lists, arrays, or series of pandas and Polars."""
    import pyarrow as pa

    try:
        columns = [
            pa.chunked_array(end) if hasattr(end, "__arrow_c_stream__") else pa.array(list(end), pa.string())
            for end in ends
        ]
        return pa.table(columns, names=["source", "target"])
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise InputError(
            f"The pair cannot be read as ends of edges: {' '.join(str(error).split())[:200]}.",
            "Give two columns of whole numbers, or two of text, of the same length.",
        ) from error


def _no_table(error: Exception) -> InputError:
    why = " ".join(" ".join(map(str, error.args)).split())
    return InputError(
        f"The table cannot be taken as one of Arrow: {why}.",
        "Give columns of other names each, of numbers of 64 bits or of text.",
    )


class ArrowTable(TableSource):
    """A table in memory that has ``__arrow_c_stream__``, or ``to_arrow`` as cuDF's data frames do."""

    def __init__(self, table: Any, **options: Unpack[SourceOptions]) -> None:
        super().__init__("table", "the table", **options)
        self._table = table

    def _batches(self, max_edges: int) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        import pyarrow as pa

        table = self._table
        if not hasattr(table, "__arrow_c_stream__"):
            table = table.to_arrow()
        try:
            reader = pa.RecordBatchReader.from_stream(table)
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise _no_table(error) from error
        columns = self._chosen_of(reader.schema, self.title)
        yield from (batch.select(columns) for batch in reader)


class DaskTable(TableSource):
    """A Dask data frame, computed partition by partition."""

    def __init__(self, frame: Any, **options: Unpack[SourceOptions]) -> None:
        super().__init__("table", "the data frame", **options)
        self._frame = frame

    def _batches(self, max_edges: int) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        import pyarrow as pa

        kinds = [getattr(kind, "kind", "O") for kind in self._frame.dtypes]
        numbers = {name: kind in "iuf" for name, kind in zip(self._frame.columns, kinds, strict=True)}
        columns = self._chosen(numbers, self.title)
        for k in range(self._frame.npartitions):
            part = self._frame[columns].partitions[k].compute()
            try:
                batch = pa.RecordBatch.from_pandas(part, preserve_index=False)
            except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
                raise _no_table(error) from error
            yield batch


_BUFFER_BYTES = 1 << 20


class _RowGroups(LocalFile):
    """Some row groups of a Parquet file, of about `size` bytes."""

    def __init__(self, path: Path, groups: range, size: int) -> None:
        super().__init__(path)
        self.groups, self._size = groups, size

    @property
    def size(self) -> int:
        return self._size


class ParquetFiles(TableFiles):
    """Parquet files, read row group by row group; a folder stands for those below it, ordered by path."""

    def __init__(self, files: Sequence[InputFile], **options: Unpack[SourceOptions]) -> None:
        super().__init__(files, **options)
        self._set_files([found for file in self.files for found in _files(file)])

    def _divided(self, file: InputFile, max_bytes: int) -> list[InputFile]:
        size = file.size or 0
        if not isinstance(file, LocalFile) or size <= max_bytes:
            return [file]
        with file.open() as opened:
            try:
                groups = len(row_groups(opened, self.reserve, str(file)))
            except ValueError:  # who reads it says what is wrong
                return [file]
        count = max(1, min(groups, -(-size // max_bytes)))
        cuts = zip(shares(groups, count), shares(size, count), strict=True)
        return [_RowGroups(file.path, range(*cut), stop - start) for cut, (start, stop) in cuts]

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
                    columns = self._chosen_of(file.schema_arrow, str(input_file))
                    chunks = row_groups(opened, self.reserve, str(input_file))
                    if len(chunks) != file.metadata.num_row_groups:
                        raise ValueError("its metadata contradict themselves")
                    rows = [file.metadata.row_group(group).num_rows for group in range(len(chunks))]
                    if sum(rows) != file.metadata.num_rows:
                        raise ValueError("its row groups have other numbers of rows than the file")
                    done = 0
                    groups = range(len(chunks))
                    if isinstance(input_file, _RowGroups):
                        groups = input_file.groups
                        self._rows_before = sum(rows[: groups.start])
                    for group in filter(rows.__getitem__, groups):
                        about = _RowGroup(chunks[group], rows[group], columns)
                        if isinstance(input_file, LocalFile):
                            about.look_at_pages(opened, self.reserve, str(input_file))
                        if about.dictionary_bytes > _TEXT_BYTES_PER_EDGE:
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
            dictionary = widest = largest = 0
            for page in pages(file, chunk.start, chunk.values):
                if page.kind == DICTIONARY:
                    # Decoded, and once more where its strings are looked at.
                    dictionary = max(dictionary, 3 * page.memory)
                else:
                    widest = max(widest, page.bytes // max(1, page.values))
                largest = max(largest, page.memory)
                reserve(needed + dictionary + largest, f"A page of {page.bytes:,} bytes in {title}")
            needed += dictionary + largest
            if chunk.text:
                self._row_bytes += widest
                self.dictionary_bytes += dictionary

    def look_at_names(self, batches: Iterator[pa.RecordBatch]) -> None:
        """Find out how long the strings of dictionaries are, of which rows have only the indices."""
        import pyarrow as pa
        import pyarrow.compute as pc

        for column in next(batches, ()):
            if pa.types.is_dictionary(column.type):
                self._longest += pc.max(pc.binary_length(column.dictionary)).as_py() or 0

    def rows_at_once(self, max_edges: int) -> int:
        """Rows of a batch whose strings are within bounds, however they are spread."""
        longest: int = self._row_bytes + self._longest
        return max(1, min(max_edges, _TEXT_BYTES_PER_EDGE * max_edges // max(1, longest)))


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
