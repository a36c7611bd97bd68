"""Rank files read back, whoever wrote them."""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from oocpr.errors import InputError
from oocpr.result.names import from_arrow
from oocpr.result.rank_writer import RUN_KEY
from oocpr.result.ranks import Ranks
from oocpr.result.report import Report
from oocpr.sources.block import Strings, arrow_array, arrow_numbers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    import pyarrow as pa
    from numpy.typing import NDArray

    from oocpr.result.names import Block, Name
    from oocpr.store.rank_file import RankFile

_ROWS = 1 << 18
_BYTES = 1 << 21
"""Most rows and, unless one alone has more, about so many bytes are read at a time."""


def read_ranks(path: str | os.PathLike[str]) -> Ranks:
    r"""Open a file of ranks: ``.parquet`` and ``.csv`` with columns ``node`` and ``rank``, or ``.zarr``.

    Parameters
    ----------
    path
        The file, which stays on disk until it is asked for something.

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
    readers = {".parquet": _read_parquet, ".csv": _read_csv}
    if path.suffix not in {*readers, ".zarr"}:
        raise InputError(f"{path} is no file of ranks.", "Name a .parquet, .csv or .zarr file.")
    if not os.path.exists(path):  # noqa: PTH110 - Path.exists has errors for names that are too long
        raise InputError(f"{path} does not exist.", "Name a file that `oocpr rank -o` wrote.")
    if path.suffix == ".zarr":
        return _read_zarr(path)
    return readers[path.suffix](path)


def _read_parquet(path: Path) -> Ranks:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            schema, nodes = file.schema_arrow, file.metadata.num_rows
            starts = np.cumsum(
                [0] + [file.metadata.row_group(g).num_rows for g in range(file.num_row_groups)]
            )
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error) from error
    _check_columns(path, schema)
    note = (schema.metadata or {}).get(RUN_KEY)
    run = None if note is None else Report.from_json(note, str(path))
    columns = _ParquetColumns(path, starts)
    textual = not pa.types.is_integer(schema.field("node").type)
    return Ranks(_FileVector(columns, nodes), _FileNames(columns, textual), run=run)


def _read_csv(path: Path) -> Ranks:
    columns = _CsvColumns(path)
    with columns.opened() as reader:
        schema = reader.schema
    _check_columns(path, schema)
    nodes, numbered = 0, True
    for start, batch in columns.batches(["node", "rank"]):
        nodes += len(_checked(path, batch["rank"], start))
        numbered = numbered and _are_integers(batch["node"])
    return Ranks(_FileVector(columns, nodes), _FileNames(columns, textual=not numbered))


def _read_zarr(path: Path) -> Ranks:
    from oocpr.store.rank_file import open_ranks

    file = open_ranks(path)
    note = file.attributes.get("run")
    run = None if note is None else Report.from_dict(note, str(path))
    return Ranks(file, _ZarrNames(file), run=run)


def _are_integers(column: pa.Array) -> bool:
    """Whether all words of a column are whole numbers as we write them."""
    import pyarrow as pa

    try:
        numbers = column.cast(pa.int64())
    except pa.ArrowInvalid:
        return False
    # 007 is a label: as a number it would come back as 7.
    return bool(numbers.cast(pa.string()).equals(column))


class _Columns(Protocol):
    """Columns of a file that is read front to back in bounded batches."""

    path: Path

    def batches(
        self, names: Sequence[str], rows: NDArray[np.integer[Any]] | None = None
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield columns of all rows, or at least of `rows`, each batch with the number of its first row."""
        ...


class _CsvColumns:
    """Columns of a CSV file; `batches` gives all rows."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextlib.contextmanager
    def opened(self, include: Sequence[str] = ()) -> Iterator[Any]:
        """Open a reader of all columns, or of those that are named."""
        import pyarrow as pa
        from pyarrow import csv

        # Left to itself the reader would take labels that look like dates or numbers for dates and numbers.
        types = {"node": pa.string(), "rank": pa.float64()}
        convert = csv.ConvertOptions(column_types=types, include_columns=list(include))
        try:
            with csv.open_csv(
                self.path, csv.ReadOptions(use_threads=False), convert_options=convert
            ) as reader:
                yield reader
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(self.path, error) from error

    def batches(
        self, names: Sequence[str], rows: NDArray[np.integer[Any]] | None = None
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        del rows
        start = 0
        with self.opened(names) as reader:
            for batch in reader:
                yield start, batch
                start += batch.num_rows


class _ParquetColumns:
    """Columns of a Parquet file."""

    def __init__(self, path: Path, starts: NDArray[np.int64]) -> None:
        self.path = path
        self._starts = starts

    def batches(
        self, names: Sequence[str], rows: NDArray[np.integer[Any]] | None = None
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        groups = np.arange(len(self._starts) - 1)
        if rows is not None:
            groups = np.unique(np.searchsorted(self._starts, rows, side="right") - 1)
        try:
            with pq.ParquetFile(self.path, buffer_size=_BYTES, pre_buffer=False) as file:
                for group in groups.tolist():
                    step = _batch_rows(file.metadata.row_group(group), names)
                    start = int(self._starts[group])
                    # Each thread of Arrow would keep memory of its own, 40 MiB in all.
                    for batch in file.iter_batches(
                        step, row_groups=[group], columns=list(names), use_threads=False
                    ):
                        yield start, batch
                        start += batch.num_rows
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(self.path, error) from error


def _batch_rows(group: Any, names: Sequence[str]) -> int:
    """Rows that hold about so many bytes as are read at a time."""
    size = sum(
        group.column(k).total_uncompressed_size
        for k in range(group.num_columns)
        if group.column(k).path_in_schema in names
    )
    return int(min(_ROWS, max(1, _BYTES * group.num_rows // max(size, 1))))


class _FileVector:
    """The column ``rank`` of a file."""

    def __init__(self, columns: _Columns, size: int) -> None:
        self._columns = columns
        self.size = size

    def chunks(self) -> Iterator[NDArray[np.float64]]:
        for start, batch in self._columns.batches(["rank"]):
            yield _checked(self._columns.path, batch["rank"], start)


def _taken(columns: _Columns, name: str, rows: NDArray[np.integer[Any]]) -> list[Any]:
    """Values of some rows of a column, in the order asked for."""
    order = np.argsort(rows, kind="stable")
    ascending = rows[order]
    values: list[Any] = [None] * len(rows)
    done = 0
    for start, batch in columns.batches([name], ascending):
        stop = int(np.searchsorted(ascending, start + batch.num_rows))
        if stop > done:
            found = batch[name].take(arrow_array(ascending[done:stop] - start)).to_pylist()
            for place, value in zip(order[done:stop].tolist(), found, strict=True):
                values[place] = value
            done = stop
        if done == len(rows):
            break
    return values


def _blocks(columns: _Columns, name: str, kind: pa.DataType) -> Iterator[Block]:
    for _, batch in columns.batches([name]):
        yield from_arrow(batch[name].cast(kind), str(columns.path), name)


class _FileNames:
    """The column ``node`` of a file."""

    def __init__(self, columns: _Columns, textual: bool) -> None:
        self._columns = columns
        self.textual = textual

    def take(self, rows: NDArray[np.integer[Any]]) -> Sequence[Name]:
        names = _taken(self._columns, "node", rows)
        return names if self.textual else [int(name) for name in names]

    def blocks(self, nodes: int) -> Iterator[Block]:  # noqa: ARG002
        import pyarrow as pa

        return _blocks(self._columns, "node", pa.large_string() if self.textual else pa.int64())


class _ZarrNames:
    """The names in a Zarr file of ranks."""

    def __init__(self, file: RankFile) -> None:
        self._file = file
        self.textual = file.size > 0 and isinstance(file.nodes(np.zeros(1, np.int64))[0], str)

    def take(self, rows: NDArray[np.integer[Any]]) -> Sequence[Name]:
        return self._file.nodes(rows)

    def blocks(self, nodes: int) -> Iterator[Block]:
        for piece in self._file.names(nodes):
            yield Strings.of(*piece) if isinstance(piece, tuple) else piece


def _check_columns(path: Path, schema: pa.Schema) -> None:
    import pyarrow as pa

    for name in ("node", "rank"):
        if schema.get_field_index(name) < 0:
            raise InputError(
                f"{path} has no column {name!r}, only {', '.join(schema.names)}.",
                "Name a file with the columns node and rank.",
            )
    kind = schema.field("node").type
    if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise InputError(f"{path}: the column 'node' holds {kind}.", "Nodes are whole numbers or strings.")


def _checked(path: Path, column: pa.Array | pa.ChunkedArray, start: int) -> NDArray[np.float64]:
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
