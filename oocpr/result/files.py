"""Rank files read back, whoever wrote them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from oocpr.errors import InputError
from oocpr.result.names import ListedNames
from oocpr.result.ranks import Ranks
from oocpr.result.report import Report
from oocpr.result.writers import RUN_KEY
from oocpr.store.format import TEXT_KIND

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    import pyarrow as pa
    from numpy.typing import NDArray

    from oocpr.result.names import Name, Value
    from oocpr.store.vectors import RankFile

_ROWS = 1 << 20


def read_ranks(path: str | os.PathLike[str]) -> Ranks:
    r"""Open a file of ranks: ``.parquet`` and ``.csv`` with columns ``node`` and ``rank``, or ``.zarr``.

    Other columns of text, numbers or booleans are attributes of the nodes.

    Parameters
    ----------
    path
        The file. Parquet and Zarr stay on disk until they are asked for something.

    Raises
    ------
    InputError
        Where the file is missing, of another kind, cut off, or holds something else than ranks.

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
    if not path.exists():
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
    column = _ParquetColumn(path, starts)
    names = _ParquetNames(column, schema)
    return Ranks(_ParquetVector(path, nodes), names, run=run, attributes=_ParquetAttributes(column, schema))


def _read_csv(path: Path) -> Ranks:
    import pyarrow as pa
    from pyarrow import csv

    # Left to itself the reader would take labels that look like dates or numbers for dates and numbers.
    options = csv.ConvertOptions(column_types={"node": pa.string(), "rank": pa.float64()})
    try:
        table = csv.read_csv(path, convert_options=options)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error) from error
    _check_columns(path, table.schema)
    names = ListedNames(_integers_or_strings(table["node"]))
    return Ranks(_checked(path, table["rank"], 0), names, attributes=_TableAttributes(table))


def _read_zarr(path: Path) -> Ranks:
    from oocpr.store.vectors import open_ranks

    file = open_ranks(path)
    note = file.attributes.get("run")
    run = None if note is None else Report.from_dict(note, str(path))
    return Ranks(file, _ZarrNames(file), run=run)


def _integers_or_strings(column: pa.ChunkedArray) -> NDArray[np.int64] | Sequence[str]:
    import pyarrow as pa

    strings: list[str] = column.to_pylist()
    try:
        numbers = column.cast(pa.int64())
    except pa.ArrowInvalid:
        return strings
    # 007 is a label: as a number it would come back as 7.
    if not numbers.cast(pa.string()).equals(column):
        return strings
    integers: NDArray[np.int64] = numbers.to_numpy()
    return integers


class _ParquetVector:
    """The column ``rank`` of a Parquet file."""

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self.size = size

    def chunks(self) -> Iterator[NDArray[np.float64]]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        start = 0
        try:
            with pq.ParquetFile(self._path) as file:
                for batch in file.iter_batches(_ROWS, columns=["rank"]):
                    yield _checked(self._path, batch["rank"], start)
                    start += batch.num_rows
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(self._path, error) from error


class _ParquetColumn:
    """Columns of a Parquet file, read a row group at a time."""

    def __init__(self, path: Path, starts: NDArray[np.int64]) -> None:
        self._path = path
        self._starts = starts

    def take(self, name: str, rows: NDArray[np.integer[Any]]) -> list[Any]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        groups = np.searchsorted(self._starts, rows, side="right") - 1
        values: list[Any] = [None] * len(rows)
        try:
            with pq.ParquetFile(self._path) as file:
                for group in np.unique(groups).tolist():
                    places = np.flatnonzero(groups == group)
                    column = file.read_row_group(group, columns=[name])[name]
                    found = column.take(pa.array(rows[places] - self._starts[group])).to_pylist()
                    for place, value in zip(places.tolist(), found, strict=True):
                        values[place] = value
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(self._path, error) from error
        return values


class _ParquetNames:
    """The column ``node`` of a Parquet file."""

    def __init__(self, column: _ParquetColumn, schema: pa.Schema) -> None:
        import pyarrow as pa

        self._column = column
        self.textual = not pa.types.is_integer(schema.field("node").type)

    def take(self, rows: NDArray[np.integer[Any]]) -> Sequence[Name]:
        return self._column.take("node", rows)


class _ParquetAttributes:
    """The other columns of a Parquet file."""

    def __init__(self, column: _ParquetColumn, schema: pa.Schema) -> None:
        self._column = column
        self.kinds: Mapping[str, str] = _kinds(schema)

    def take(self, name: str, rows: NDArray[np.integer[Any]]) -> Sequence[Value]:
        return _known(self._column.take(name, rows), self.kinds[name])


class _TableAttributes:
    """The other columns of a table in memory."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self.kinds: Mapping[str, str] = _kinds(table.schema)

    def take(self, name: str, rows: NDArray[np.integer[Any]]) -> Sequence[Value]:
        import pyarrow as pa

        return _known(self._table[name].take(pa.array(rows)).to_pylist(), self.kinds[name])


def _kinds(schema: pa.Schema) -> dict[str, str]:
    """What the columns hold beside nodes and ranks, those that can be told in an answer."""
    import pyarrow as pa

    kinds = {}
    for field in schema:
        if field.name in ("node", "rank"):
            continue
        if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
            kinds[field.name] = TEXT_KIND
        elif pa.types.is_boolean(field.type):
            kinds[field.name] = "bool"
        elif pa.types.is_integer(field.type) or pa.types.is_floating(field.type):
            kinds[field.name] = str(np.dtype(field.type.to_pandas_dtype()))
    return kinds


def _known(values: list[Any], kind: str) -> list[Value]:
    """Values as a store gives them: texts that lack are empty, and NaN is none."""
    if kind == TEXT_KIND:
        return [value or "" for value in values]
    return [None if value is None or math.isnan(value) else value for value in values]


class _ZarrNames:
    """The names in a Zarr file of ranks."""

    def __init__(self, file: RankFile) -> None:
        self._file = file
        self.textual = file.size > 0 and isinstance(file.nodes(np.zeros(1, np.int64))[0], str)

    def take(self, rows: NDArray[np.integer[Any]]) -> Sequence[Name]:
        return self._file.nodes(rows)


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
    values: NDArray[np.float64] = column.to_numpy(**_copy(column)).astype(np.float64, copy=False)
    wrong = np.flatnonzero(~np.isfinite(values))
    if len(wrong):
        raise InputError(
            f"{path}: row {start + int(wrong[0]) + 1} has no finite rank.",
            "Ranks are finite numbers; none may lack.",
        )
    return values


def _copy(column: pa.Array | pa.ChunkedArray) -> dict[str, bool]:
    import pyarrow as pa

    # An array with gaps can only be given as a copy, and says so with an error; chunked arrays always copy.
    return {"zero_copy_only": False} if isinstance(column, pa.Array) else {}


def _unreadable(path: Path, error: Exception) -> InputError:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return InputError(f"{path} cannot be read as ranks: {reason}", "Name a file that `oocpr rank -o` wrote.")
