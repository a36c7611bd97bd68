"""Ranks as files (Parquet, CSV, Zarr): written, and read back whoever wrote them."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import math
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from oocpr.errors import InputError, OocprError, UsageError
from oocpr.ingest.budget import require
from oocpr.plan.memory import writing_bytes
from oocpr.result.names import (
    MAX_BLOCK_ROWS,
    FileNames,
    RowNames,
    from_arrow,
    permute_names,
    text_of,
    to_arrow,
    zip_blocks,
)
from oocpr.result.ranks import Ranks, Report, rank_order
from oocpr.sources.block import arrow_array, arrow_numbers
from oocpr.store.atomic import replacing, require_room
from oocpr.store.remote import is_url
from oocpr.system import resident_after_trim, spans, trim_memory

if TYPE_CHECKING:
    import pyarrow as pa

    from oocpr.result.names import Block, Name, Names
    from oocpr.result.personal_ranks import PersonalRanks
    from oocpr.sources.formats.parquet_metadata import ColumnChunk

_RUN_KEY = b"oocpr"
"""Metadata key of a Parquet file under which the report of the run stands, as JSON."""

_ROWS = MAX_BLOCK_ROWS
_WRITTEN_BYTES = 1 << 22
_READ_BYTES = 1 << 21
"""Most rows and, unless one row has more, most bytes that are written or read at a time."""

_SAMPLE = 1000
_MAX_STEM = 200


def write_parquet(ranks: Ranks, path: Path, sort: str) -> None:
    """Write columns ``node`` and ``rank`` in row groups of 4 MiB or less; see `Ranks.to_parquet`."""
    schema = _schema(ranks)
    write_parquet_tables(path, schema, _tables(ranks, schema, sort, _folder_of(path)), ranks.run)


def write_parquet_tables(
    path: Path, schema: pa.Schema, tables: Iterator[pa.Table], run: Report | None
) -> None:
    """Write a Parquet file with a row group of each table, and a note about the run that made them."""
    import pyarrow.parquet as pq

    from oocpr.sources.formats.parquet_metadata import add_checksum

    if run is not None:
        schema = schema.with_metadata({_RUN_KEY: json.dumps(run.to_dict())})
    with replacing(path) as temporary:
        # Arrow opens no files whose names are not UTF-8.
        with (
            temporary.open("wb") as file,
            pq.ParquetWriter(file, schema, compression="zstd", write_page_checksum=True) as writer,
        ):
            for table in tables:
                writer.write_table(table, row_group_size=table.num_rows)
        if temporary.is_file():  # a pipe is written once
            with temporary.open("r+b") as written:
                add_checksum(written)


def record_batches(ranks: Ranks) -> pa.RecordBatchReader:
    """Read columns ``node`` and ``rank`` in store order; what is in memory as numbers is not copied."""
    import pyarrow as pa

    schema = _schema(ranks)
    pieces = _pieces(ranks, schema, "node", Path(tempfile.gettempdir()))
    batches = (batch for table in pieces for batch in table.to_batches())
    return pa.RecordBatchReader.from_batches(schema, batches)


def write_csv(ranks: Ranks, target: Path | BinaryIO, sort: str) -> None:
    """Write the lines ``node,rank``; see `Ranks.to_csv`."""
    schema = _schema(ranks)
    folder = _folder_of(target) if isinstance(target, Path) else Path(tempfile.gettempdir())
    write_csv_tables(target, schema, _tables(ranks, schema, sort, folder))


def write_zarr(ranks: Ranks, path: Path) -> None:
    """Write the ranks and the names of the nodes as a Zarr group, in store order; see `Ranks.to_zarr`."""
    from oocpr.store.node_data import write_rank_file

    if not path.absolute().parent.is_dir():
        raise UsageError(f"{path} lies in a folder that does not exist.", "Make the folder first.")
    attributes = {} if ranks.run is None else {"run": ranks.run.to_dict()}
    named: dict[str, Any] = {}
    if ranks.names.textual:
        named["labels"] = (text_of(block) for block in ranks.names.blocks(ranks.nodes))
    elif not isinstance(ranks.names, RowNames):
        named["node_ids"] = ranks.names.blocks(ranks.nodes)
    write_rank_file(path, ranks.chunks(), ranks.nodes, attributes, **named)


def check_writing_memory(nodes: int, memory: int, *, sort: str, suffix: str, texts: int, more: int) -> None:
    """Raise DoesNotFitError if ranks cannot be written in `memory` bytes of the whole process.

    Loads what writes them, which is part of the process. `more`: bytes that the process will hold by then,
    beside what it holds now.
    """
    if suffix == ".parquet":
        import pyarrow.parquet
    elif suffix == ".csv":
        import pyarrow.csv  # noqa: F401
    needed = writing_bytes(
        base=resident_after_trim() + more, nodes=nodes, ordered=sort == "rank", texts=texts
    )
    require(needed, memory, f"Writing {nodes:,} ranks")


def check_csv(target: Any) -> None:
    """Refuse to write CSV to a stream of text, or to a file whose name says that it is compressed."""
    if isinstance(target, io.TextIOBase):
        raise UsageError("target is a stream of text.", "Open the file for bytes, as with mode 'wb'.")
    if isinstance(target, str | os.PathLike) and os.fspath(target).endswith((".gz", ".xz", ".bz2", ".zst")):
        raise UsageError(
            f"{os.fspath(target)} would not be compressed.",
            "Leave the ending out, or give a stream that compresses, such as gzip.open(path, 'wb').",
        )


def check_sort(sort: str) -> str:
    """Pass the two orders; raise UsageError for the rest."""
    if sort not in ("node", "rank"):
        raise UsageError(f"{sort!r} is no order of ranks.", "Sort by one of node, rank.")
    return sort


def write_csv_tables(target: Path | BinaryIO, schema: pa.Schema, tables: Iterator[pa.Table]) -> None:
    """Write tables as lines of a CSV file or an open binary stream."""
    from pyarrow import csv

    if isinstance(target, Path):
        with replacing(target) as temporary, temporary.open("wb") as stream:
            write_csv_tables(stream, schema, tables)
        return
    # Written here because pyarrow would put all words in quotes.
    target.write(f"{','.join(schema.names)}\n".encode())
    options = csv.WriteOptions(include_header=False)
    with csv.CSVWriter(target, schema, write_options=options) as writer:
        for table in tables:
            writer.write_table(table)


def _schema(ranks: Ranks) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([("node", pa.string() if ranks.names.textual else pa.int64()), ("rank", pa.float64())])


def _folder_of(path: Path) -> Path:
    """Where temporary files go while a file is written: beside it, or where the system has them."""
    folder = path.absolute().parent
    special = path.exists() and not path.is_file()
    return Path(tempfile.gettempdir()) if special or not folder.is_dir() else folder


def _tables(ranks: Ranks, schema: pa.Schema, sort: str, folder: Path) -> Iterator[pa.Table]:
    """Yield all rows in tables of about `_ROWS` rows and, unless one has more, at most `_WRITTEN_BYTES`."""
    import pyarrow as pa

    held: list[pa.Table] = []
    rows = size = 0
    for table in _pieces(ranks, schema, sort, folder):
        if held and (rows >= _ROWS or size + table.nbytes > _WRITTEN_BYTES):
            yield pa.concat_tables(held)
            held, rows, size = [], 0, 0
        held.append(table)
        rows += table.num_rows
        size += table.nbytes
    if held:
        yield pa.concat_tables(held)


def _pieces(ranks: Ranks, schema: pa.Schema, sort: str, folder: Path) -> Iterator[pa.Table]:
    import pyarrow as pa

    trim_memory()
    values = ranks.to_numpy() if sort == "rank" else None
    order = None if values is None else rank_order(values)
    named: list[Iterator[Any]] = []
    if order is None:
        named = [ranks.names.blocks(ranks.nodes)]
    elif ranks.names.textual:
        named = [permute_names(ranks.names.blocks(ranks.nodes), order, ranks.nodes, folder)]
    rows = _rows(ranks.nodes, order)
    vector = ranks.chunks() if values is None else (values[some] for some in _rows(ranks.nodes, order))
    for some, given, *found in zip_blocks(rows, vector, *named):
        nodes = to_arrow(found[0]) if found else arrow_array(np.array(ranks.names.take(some), np.int64))
        yield pa.table([nodes, arrow_array(given)], schema=schema)


def _rows(nodes: int, order: NDArray[np.uint32] | None) -> Iterator[NDArray[np.integer[Any]]]:
    """Yield the rows of the nodes in the order in which they are written."""
    for start, stop in spans(nodes, _ROWS):
        yield np.arange(start, stop) if order is None else order[start:stop]


def min_file_bytes(suffix: str, nodes: int, name_bytes: float) -> int:
    """Bytes that a file of ranks takes at least, as a rule.

    Equal ranks, and parts of names that repeat, are stored once in Parquet and Zarr: a graph of 2.1 M nodes,
    of which most have no edges, took 4.5 and 3 bytes per node, one of 63 k names of 12 bytes took 12. CSV has
    up to 22 characters of a rank.
    """
    return int(nodes * (16 + name_bytes if suffix == ".csv" else 3 + name_bytes / 4))


def check_room(path: str, nodes: int, names: Names) -> None:
    """Raise DoesNotFitError, before ranks are computed, if the disk of their file has no room."""
    file = Path(tempfile.gettempdir(), path.rpartition("/")[2]) if is_url(path) else Path(path)
    rows = np.unique(np.linspace(0, nodes - 1, min(nodes, _SAMPLE)).astype(np.int64))
    written = [len(str(name).encode(errors="replace")) for name in names.take(rows)]
    require_room(file, min_file_bytes(file.suffix, nodes, sum(written) / max(1, len(written))))


def write_ranks(ranks: Ranks | PersonalRanks, path: str, **how: str) -> None:
    """Write ranks in the format that the suffix names; `how` is what its method takes beside the path."""
    if path.endswith(".zarr"):
        cast("Ranks", ranks).to_zarr(path)
    else:
        write: Callable[..., None] = ranks.to_csv if path.endswith(".csv") else ranks.to_parquet
        write(path, **how)


def write_elsewhere(ranks: Ranks | PersonalRanks, path: str, **how: str) -> Path | None:
    """Write ranks that could not be written to `path` where they can be, so that they are not lost.

    Tries the folder of temporary files, the current and the user's own; returns where they are, or None.
    """
    wanted = Path(path)
    name = f"{wanted.stem[:_MAX_STEM]}-{secrets.token_hex(4)}{wanted.suffix}"
    for folder in (tempfile.gettempdir, Path.cwd, Path.home):
        # A folder that is not there or not known is as good as one that is full.
        with contextlib.suppress(OocprError, OSError, RuntimeError):
            found = Path(folder(), name).absolute()
            write_ranks(ranks, str(found), **how)
            return found
    return None


def read_ranks(path: str | os.PathLike[str]) -> Ranks:
    r"""Open a file of ranks: ``.parquet`` and ``.csv`` with columns ``node`` and ``rank``, or ``.zarr``.

    Parameters
    ----------
    path
        The file, which stays on disk and is read in pieces.

    Raises
    ------
    InputError
        If the file is missing, of another kind, cut off, or holds something else than ranks.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "ranks.csv")
    ...     _ = path.write_text("node,rank\nlibc6,0.75\nperl,0.25\n")
    ...     read_ranks(path).top(1)
    [('libc6', 0.75)]
    """
    path = Path(path)
    if path.suffix not in (".parquet", ".csv", ".zarr"):
        raise InputError(f"{path} is no file of ranks.", "Name a .parquet, .csv or .zarr file.")
    if not os.path.exists(path):  # noqa: PTH110 - Path.exists has errors for names that are too long
        raise InputError(f"{path} does not exist.", "Name a file that `oocpr rank -o` wrote.")
    if path.suffix == ".zarr":
        from oocpr.store.node_data import open_ranks

        file = open_ranks(path)
        textual = file.size > 0 and isinstance(file.nodes(np.zeros(1, np.int64))[0], str)
        note = file.attributes.get("run")
        run = None if note is None else Report.from_dict(note, str(path))
        return Ranks(file, FileNames(textual, file.nodes, file.names), run=run)
    table = _ParquetTable(path) if path.suffix == ".parquet" else _CsvTable(path)
    return Ranks(table, table, run=table.run)


def beside(ranks: Ranks, names: Names) -> Ranks:
    """Take nodes of a CSV file, which does not tell numbers from text, for text beside `names` of text."""
    if not isinstance(ranks.names, _CsvTable) or not names.textual:
        return ranks
    table = copy.copy(ranks.names)
    table.textual = True
    return Ranks(table, table)


class _Table:
    """The columns ``node`` and ``rank`` of a file, as a vector and as names, read in bounded batches."""

    size: int
    textual: bool
    run: Report | None = None

    def __init__(self, path: Path) -> None:
        self._path = path

    def batches(
        self, column: str, rows: NDArray[np.integer[Any]] | None = None
    ) -> Iterator[tuple[int, pa.Array]]:
        """Yield a column of all rows, or at least of `rows`, each piece with the number of its first row."""
        raise NotImplementedError

    def chunks(self) -> Iterator[NDArray[np.float64]]:
        return (_checked_ranks(self._path, column, start) for start, column in self.batches("rank"))

    def blocks(self, nodes: int) -> Iterator[Block]:  # noqa: ARG002
        import pyarrow as pa

        kind = pa.large_string() if self.textual else pa.int64()
        for _, column in self.batches("node"):
            # Numbers of Parquet may be more than 64 bits hold, which `from_arrow` says.
            numbers = pa.types.is_integer(column.type)
            yield from_arrow(column if numbers else column.cast(kind), str(self._path), "node")

    def take(self, rows: NDArray[np.integer[Any]]) -> Sequence[Name]:
        order = np.argsort(rows, kind="stable")
        ascending = rows[order]
        names: list[Any] = [None] * len(rows)
        done = 0
        for start, column in self.batches("node", ascending):
            stop = int(np.searchsorted(ascending, start + len(column)))
            if stop > done:
                found = column.take(arrow_array(ascending[done:stop] - start)).to_pylist()
                for place, name in zip(order[done:stop].tolist(), found, strict=True):
                    names[place] = name if self.textual else int(name)
                done = stop
            if done == len(rows):
                break
        return names


class _CsvTable(_Table):
    """A CSV file; `batches` gives all rows."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        with self._opened() as reader:
            _check_columns(path, reader.schema)
        self.size, self.textual = 0, False
        with self._opened(["node", "rank"]) as reader:
            for batch in reader:
                self.size += len(_checked_ranks(path, batch["rank"], self.size))
                self.textual = self.textual or not _are_integers(batch["node"])

    @contextlib.contextmanager
    def _opened(self, columns: Sequence[str] = ()) -> Iterator[Any]:
        """Open a reader of all columns, or of those that are named."""
        import pyarrow as pa
        from pyarrow import csv

        # Left to itself the reader would take labels that look like dates or numbers for dates and numbers.
        types = {"node": pa.string(), "rank": pa.float64()}
        convert = csv.ConvertOptions(column_types=types, include_columns=list(columns))
        # Labels may hold line ends, at which a file must not be cut into pieces.
        parse = csv.ParseOptions(newlines_in_values=True)
        try:
            with csv.open_csv(self._path, csv.ReadOptions(use_threads=False), parse, convert) as reader:
                yield reader
        except (pa.ArrowException, OSError, UnicodeError) as error:
            raise _unreadable(self._path, error) from error

    def batches(
        self, column: str, rows: NDArray[np.integer[Any]] | None = None
    ) -> Iterator[tuple[int, pa.Array]]:
        del rows
        start = 0
        with self._opened([column]) as reader:
            for batch in reader:
                yield start, batch[column]
                start += batch.num_rows


class _ParquetTable(_Table):
    """A Parquet file; `batches` reads the row groups that have `rows`."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        from oocpr.sources.formats.parquet_metadata import check_metadata, row_groups

        super().__init__(path)
        try:
            with path.open("rb") as opened:
                check_metadata(opened)
                # Asked for a column that contradicts itself, Arrow ends the process.
                self._chunks = row_groups(opened, lambda *_: None, str(path))
            with pq.ParquetFile(path) as file:
                schema, self.size = file.schema_arrow, file.metadata.num_rows
                groups = [file.metadata.row_group(g).num_rows for g in range(len(self._chunks))]
        except (pa.ArrowException, OSError, ValueError) as error:
            raise _unreadable(path, error) from error
        _check_columns(path, schema)
        self._starts = np.cumsum([0, *groups])
        self.textual = not pa.types.is_integer(schema.field("node").type)
        note = (schema.metadata or {}).get(_RUN_KEY)
        self.run = None if note is None else Report.from_json(note, str(path))

    def batches(
        self, column: str, rows: NDArray[np.integer[Any]] | None = None
    ) -> Iterator[tuple[int, pa.Array]]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        groups = np.arange(len(self._starts) - 1)
        if rows is not None:
            groups = np.unique(np.searchsorted(self._starts, rows, side="right") - 1)
        try:
            with pq.ParquetFile(
                self._path, buffer_size=_READ_BYTES, pre_buffer=False, page_checksum_verification=True
            ) as file:
                for group in groups.tolist():
                    start, stop = self._starts[group : group + 2].tolist()
                    step = _batch_rows(self._chunks[group], column, stop - start)
                    # Each thread of Arrow would keep memory of its own, 40 MiB in all.
                    for batch in file.iter_batches(
                        step, row_groups=[group], columns=[column], use_threads=False
                    ):
                        yield start, batch[column]
                        start += batch.num_rows
                    if start != stop:
                        raise ValueError(f"it has {start:,} rows of {stop:,}")
        except (pa.ArrowException, OSError, ValueError) as error:
            raise _unreadable(self._path, error) from error


def _batch_rows(chunks: Sequence[ColumnChunk], column: str, rows: int) -> int:
    """How many of the rows of a row group hold about `_READ_BYTES` of a column."""
    size = sum(chunk.bytes for chunk in chunks if chunk.name == column)
    return min(_ROWS, max(1, _READ_BYTES * rows // max(size, 1)))


def _are_integers(column: pa.Array) -> bool:
    """Whether all words of a column are whole numbers as we write them."""
    import pyarrow as pa

    try:
        numbers = column.cast(pa.int64())
    except pa.ArrowInvalid:
        return False
    # 007 is a label: as a number it would come back as 7.
    return bool(numbers.cast(pa.string()).equals(column))


def _check_columns(path: Path, schema: pa.Schema) -> None:
    import pyarrow as pa

    for name in ("node", "rank"):
        if schema.get_field_index(name) < 0:
            raise InputError(
                f"{path} has no column {name!r}, only {', '.join(schema.names)}.",
                "Name a file with the columns node and rank.",
            )
    if schema.get_field_index("seed") >= 0:
        raise InputError(
            f"{path} has the ranks of several seeds, and a column 'rank' of places.",
            "Name a file of one ranking, such as that of ranks[0].",
        )
    kind = schema.field("node").type
    if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise InputError(f"{path}: the column 'node' holds {kind}.", "Nodes are whole numbers or strings.")


def _checked_ranks(path: Path, column: pa.Array | pa.ChunkedArray, start: int) -> NDArray[np.float64]:
    import pyarrow as pa

    if not pa.types.is_floating(column.type):
        raise InputError(
            f"{path}: the column 'rank' holds {column.type}.", "Ranks are floating-point numbers."
        )
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if column.null_count:
        column = column.fill_null(math.nan)
    values: NDArray[np.float64] = arrow_numbers(column).astype(np.float64, copy=False)
    wrong = np.flatnonzero(~np.isfinite(values))
    if len(wrong):
        raise InputError(
            f"{path}: row {start + int(wrong[0]) + 1} has no finite rank.",
            "Ranks are finite numbers; none may lack.",
        )
    return values


def _unreadable(path: Path, error: Exception) -> InputError:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return InputError(f"{path} cannot be read as ranks: {reason}", "Name a file that `oocpr rank -o` wrote.")
