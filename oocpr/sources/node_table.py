"""Tables of what is known of the nodes: Parquet or CSV files with a row for each."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from oocpr.errors import InputError, UsageError
from oocpr.sources.formats.arrow import is_text
from oocpr.sources.io.locations import LocalFile, place_of
from oocpr.sources.memory.id_columns import arrow_numbers, arrow_strings

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from oocpr.sources.block import Strings
    from oocpr.sources.io.locations import AnyPath

NODE_COLUMNS = ("node", "id")
RESERVED = ("node", "rank")
"""Columns that answers have, whatever is known of the nodes."""

_ROWS = 1 << 14
_BLOCK_BYTES = 1 << 20
_BATCH_BYTES = 1 << 22
"""Rows and, as far as the metadata tell, bytes that are read at once."""


class NodeRows(NamedTuple):
    """Some rows of a table.

    Attributes
    ----------
    nodes
        Ids, int64, shape (k,), or names.
    values
        What is known of each, a column for each attribute, of the types of `NodeTable.schema`.
    """

    nodes: NDArray[np.int64] | Strings
    values: pa.RecordBatch


class NodeTable:
    r"""What is known of the nodes, in a Parquet or CSV file.

    Parameters
    ----------
    path
        The file; ``.csv`` may be packed, as ``.csv.gz``.
    node
        The column with the ids or names of the nodes; None for one called ``node`` or, else, ``id``.

    Attributes
    ----------
    title
        What it is called in messages.
    schema
        Its other columns, as they are kept: large strings, dates among them; integers, floats, booleans.
    textual
        Whether nodes are given as text; in CSV they always are.

    Raises
    ------
    InputError
        No such file, one that cannot be read, or a column of another type.
    UsageError
        No such column, or a name that an attribute cannot have.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "pages.csv")
    ...     _ = path.write_text("node,year,since\n7,2001,2020-02-29\n5,,\n")
    ...     table = NodeTable(path)
    ...     [rows.values.to_pylist() for rows in table.rows(named=False)]
    [[{'year': 2001, 'since': '2020-02-29'}, {'year': None, 'since': ''}]]
    """

    def __init__(self, path: AnyPath, node: str | None = None) -> None:
        import pyarrow as pa

        place = place_of(path)
        if not isinstance(place, LocalFile):
            raise UsageError(f"{place} is no file on this machine.", "Fetch the table first.")
        self.title = str(place)
        self._path = place.path
        self._csv = ".csv" in self._path.suffixes[-2:]
        if not self._csv and self._path.suffix not in (".parquet", ".pq"):
            raise UsageError(f"{self.title} is no .parquet or .csv file.", "Write the table as one of them.")
        found = self._schema_of_csv() if self._csv else self._parquet_schema()
        self._node = _node_column(found.names, node, self.title)
        kind = found.field(self._node).type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        if not (pa.types.is_integer(kind) or is_text(kind)):
            raise InputError(
                f"{self.title}: the column {self._node!r} of {kind} holds no nodes.",
                "Give the nodes as whole numbers or as text.",
            )
        self.textual = self._csv or not pa.types.is_integer(kind)
        self.schema = pa.schema([_kept(field, self.title) for field in found if field.name != self._node])
        if not self.schema.names:
            raise InputError(
                f"{self.title} has no column but {self._node!r}.", "Give it one for each attribute."
            )
        if len(set(self.schema.names)) < len(self.schema.names):
            raise InputError(f"{self.title} has two columns of one name.", "Rename one of them.")

    def rows(self, *, named: bool) -> Iterator[NodeRows]:
        """Yield all rows, some at a time.

        Parameters
        ----------
        named
            Whether nodes are wanted by name; a number is its decimal digits then, and else text is read as
            a number.

        Raises
        ------
        InputError
            A damaged file, a row without its node, or one whose node is no number.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        first = 0
        with self._reading():
            for batch in self._csv_batches() if self._csv else self._parquet_batches():
                node = batch[self._node]
                if pa.types.is_dictionary(node.type):
                    node = node.dictionary_decode()
                if node.null_count:
                    lacking = first + pc.index(node.is_null(), True).as_py() + 1
                    raise InputError(f"{self.title}: row {lacking:,} has no node.", "Drop the row.")
                nodes = arrow_strings(node.cast(pa.large_string())) if named else self._ids(node, first)
                columns = [_cast(batch[field.name], field.type) for field in self.schema]
                yield NodeRows(nodes, pa.RecordBatch.from_arrays(columns, schema=self.schema))
                first += batch.num_rows

    def _ids(self, node: pa.Array, first: int) -> NDArray[np.int64]:
        import pyarrow as pa

        try:
            return arrow_numbers(node.cast(pa.int64()))
        except pa.ArrowInvalid as error:
            raise InputError(
                f"{self.title}: a row from {first + 1:,} to {first + len(node):,} has no id of 64 bits, "
                f"as the graph's nodes have: {' '.join(str(error).split())[:100]}",
                "Give the ids of the graph's source.",
            ) from error

    def _parquet_schema(self) -> pa.Schema:
        import pyarrow.parquet as pq

        with self._reading():
            return pq.read_schema(self._path)

    def _parquet_batches(self) -> Iterator[pa.RecordBatch]:
        import pyarrow.parquet as pq

        with pq.ParquetFile(self._path, buffer_size=_BLOCK_BYTES, pre_buffer=False) as file:
            groups = [file.metadata.row_group(k) for k in range(file.num_row_groups)]
            widest = max((group.total_byte_size // max(1, group.num_rows) for group in groups), default=0)
            rows = max(1, min(_ROWS, _BATCH_BYTES // max(1, widest)))
            yield from file.iter_batches(rows, use_threads=False)

    def _schema_of_csv(self) -> pa.Schema:
        with self._reading():
            return self._opened({}).schema

    def _csv_batches(self) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        # What looks like a date stays as it is written.
        kinds = {field.name: field.type for field in self.schema if pa.types.is_large_string(field.type)}
        yield from self._opened({**kinds, self._node: pa.large_string()})

    def _opened(self, kinds: dict[str, pa.DataType]) -> Any:
        from pyarrow import csv

        return csv.open_csv(
            self._path,
            read_options=csv.ReadOptions(block_size=_BLOCK_BYTES, use_threads=False),
            convert_options=csv.ConvertOptions(column_types=kinds),
        )

    @contextmanager
    def _reading(self) -> Iterator[None]:
        import pyarrow as pa

        try:
            yield
        except (pa.ArrowException, OSError) as error:
            remedy = "Fetch or write the file again."
            if self._csv and isinstance(error, pa.ArrowInvalid):
                remedy = "Correct the row, or write the table as Parquet, where columns have types."
            reason = " ".join(str(error).split())[:200]
            raise InputError(f"{self.title} cannot be read as a table of nodes: {reason}", remedy) from error


def _node_column(names: list[str], node: str | None, title: str) -> str:
    """Find the column of the nodes.

    Examples
    --------
    >>> _node_column(["name", "Id"], None, "pages.csv"), _node_column(["id", "page"], "page", "pages.csv")
    ('Id', 'page')
    """
    wanted = [name for usual in NODE_COLUMNS for name in names if name.lower() == usual]
    if node is not None:
        wanted = [name for name in names if name == node]
    if not wanted:
        lacking = "column of nodes" if node is None else f"column {node!r}"
        raise UsageError(
            f"{title} has no {lacking}; its columns are {', '.join(map(repr, names)) or 'none'}.",
            "Name the column with their ids or names: node_column.",
        )
    return wanted[0]


def _kept(field: pa.Field, title: str) -> pa.Field:
    """The field as it is kept."""
    import pyarrow as pa

    if field.name in RESERVED:
        raise UsageError(
            f"{title} has a column {field.name!r}, as answers have themselves.", "Rename the column."
        )
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    kept = kind
    if pa.types.is_float16(kind):
        kept = pa.float32()
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        kept = pa.large_string()
    refused = InputError(
        f"{title}: the column {field.name!r} is of {kind}, which cannot be kept.",
        "Leave it out, or give numbers, booleans, text or dates.",
    )
    if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        raise refused
    try:
        pa.nulls(1, kind).cast(kept)
    except pa.ArrowException as error:
        raise refused from error
    return pa.field(field.name, kept)


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    column = column.cast(kind)
    if pa.types.is_large_string(kind):
        column.validate(full=True)  # what a file says is UTF-8 may be none
    return column
