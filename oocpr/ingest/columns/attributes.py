"""A table of what is known of the nodes becomes columns in the order of the rows.

Rows of the table are dealt to buckets of neighbouring nodes in a temporary file, as they come; each bucket is
then put in order by itself.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from oocpr.errors import InputError
from oocpr.ingest.budget import SLACK_BYTES, require
from oocpr.ingest.columns.row_lookup import UNKNOWN, row_index
from oocpr.sources.memory.id_columns import arrow_numbers, arrow_strings
from oocpr.store.format import TEXT_KIND
from oocpr.system import resident, resident_after_trim

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from oocpr.ingest.columns.row_lookup import RowIndex
    from oocpr.ingest.order.permutation import Order
    from oocpr.ingest.read.read import Spilled
    from oocpr.ingest.spill.files import Workspace
    from oocpr.sources.block import Source
    from oocpr.sources.node_table import NodeTable
    from oocpr.store.graph import GraphWriter
    from oocpr.store.labels import TextPiece
    from oocpr.store.node_attributes import AttributeWriter

BUCKETS = 64
LEAST_NODES = 1 << 12
"""Nodes of a bucket, except in small graphs, and of a piece of a column that is written at once."""

_ROW, _PLACE = "row", "place"


def join_attributes(
    table: NodeTable,
    source: Source,
    spilled: Spilled,
    order: Order,
    writer: GraphWriter,
    workspace: Workspace,
    memory: int,
) -> list[str]:
    """Write the columns of a table as attributes of a store.

    Nodes that the table does not have lack them; rows for nodes that the graph does not have are left out.

    Parameters
    ----------
    table
        What to write; its nodes are found by name where the graph has names and the table has text.
    source, spilled, order
        The graph.
    writer
        Writes the store.
    workspace
        Gives temporary files, about as large as the table.
    memory
        Most bytes that the process may hold. An index of the nodes takes 20 bytes each, or 28 by name; a 64th
        of the table must fit beside it three times.

    Returns
    -------
    notices
        What a person should know of the join.

    Raises
    ------
    DoesNotFitError
        Where memory or the disk is too small.
    InputError
        Where the table cannot be read, or has a node twice.
    """
    numbered_only = spilled.dictionary is None or spilled.dictionary.names is None
    named = not numbered_only or (table.textual and source.labels is not None)
    index = row_index(source, spilled, order, workspace, memory, named=named)
    step = max(LEAST_NODES, -(-spilled.nodes // BUCKETS))
    with _Dealt(workspace, table, step) as dealt:
        dealt.take(index, memory, named=named)
        del index
        lacking = dealt.found < spilled.nodes
        columns = [
            writer.attribute(
                field.name, kind_of(field.type), gaps=_counted(field.type) and (lacking or nulls)
            )
            for field, nulls in zip(table.schema, dealt.nulls, strict=True)
        ]
        for first in range(0, spilled.nodes, step):
            _write_bucket(
                dealt.bucket(first // step, memory), first, min(first + step, spilled.nodes), columns
            )
    notices = []
    if dealt.strangers:
        rows = "1 row" if dealt.strangers == 1 else f"{dealt.strangers:,} rows"
        notices.append(f"{table.title}: {rows} left out, of nodes that the graph does not have.")
    return notices


def kind_of(kind: pa.DataType) -> str:
    """Name a type as the store does.

    Examples
    --------
    >>> import pyarrow as pa
    >>> kind_of(pa.float64()), kind_of(pa.bool_()), kind_of(pa.large_string())
    ('float64', 'bool', 'text')
    """
    import pyarrow as pa

    return TEXT_KIND if pa.types.is_large_string(kind) else str(np.dtype(kind.to_pandas_dtype()))


def _counted(kind: pa.DataType) -> bool:
    """Whether a gap cannot be told from a value: numbers that are no floats, and truth values."""
    import pyarrow as pa

    return not (pa.types.is_floating(kind) or pa.types.is_large_string(kind))


class _Dealt:
    """Rows of a table by the bucket of their node, in a temporary file.

    Attributes
    ----------
    found, strangers
        Rows of nodes that the graph has, and of others.
    nulls
        Whether each column has gaps in the former.
    """

    def __init__(self, workspace: Workspace, table: NodeTable, step: int) -> None:
        import pyarrow as pa

        self.found = self.strangers = 0
        self.nulls = [False] * len(table.schema)
        self._table = table
        self._step = step
        self._file = workspace.file()
        self._schema = table.schema.append(pa.field(_ROW, pa.int64())).append(pa.field(_PLACE, pa.int64()))
        self._pieces: dict[int, list[tuple[int, int]]] = {}

    def __enter__(self) -> _Dealt:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def take(self, index: RowIndex, memory: int, *, named: bool) -> None:
        """Deal all rows of the table."""
        import pyarrow as pa

        place = 0
        for nodes, values in self._table.rows(named=named):
            require(resident() + SLACK_BYTES // 2, memory, f"Reading {self._table.title}")
            rows = index.rows(nodes)
            known = np.flatnonzero(rows != UNKNOWN)
            self.found += known.size
            self.strangers += rows.size - known.size
            known = known[np.argsort(rows[known] // self._step, kind="stable")]
            columns = [*values.columns, _arrow(rows), _arrow(np.arange(place, place + rows.size))]
            place += rows.size
            order = _arrow(known)
            taken = [column.take(order) for column in columns]
            self.nulls = [
                before or column.null_count > 0 for before, column in zip(self.nulls, taken, strict=False)
            ]
            buckets = rows[known] // self._step
            bounds = [0, *(np.flatnonzero(np.diff(buckets)) + 1).tolist(), known.size]
            batch = pa.RecordBatch.from_arrays(taken, schema=self._schema)
            for first, last in itertools.pairwise(bounds):
                if first < last:
                    self._write(int(buckets[first]), batch.slice(first, last - first))

    def _write(self, bucket: int, piece: pa.RecordBatch) -> None:
        data = np.frombuffer(piece.serialize(), np.uint8)
        self._pieces.setdefault(bucket, []).append((self._file.size, data.size))
        self._file.write(self._file.size, data)

    def bucket(self, number: int, memory: int) -> pa.Table:
        """Read the rows of a bucket, as they came; InputError where a node is there twice."""
        import pyarrow as pa

        pieces = self._pieces.pop(number, [])
        size = sum(size for _, size in pieces)
        require(
            resident_after_trim() + 3 * size + 8 * self._step + SLACK_BYTES,
            memory,
            f"Putting {self._table.title} in order",
        )
        batches = []
        for at, length in pieces:
            data = np.empty(length, np.uint8)
            self._file.read(at, data)
            batches.append(pa.ipc.read_record_batch(pa.py_buffer(data), self._schema))
        table = pa.Table.from_batches(batches, self._schema).combine_chunks()
        self._refuse_repeats(_column(table, _ROW), _column(table, _PLACE))
        return table

    def _refuse_repeats(self, rows: NDArray[np.int64], places: NDArray[np.int64]) -> None:
        order = np.argsort(rows, kind="stable")
        again = np.flatnonzero(np.diff(rows[order]) == 0)
        if again.size:
            k = again[np.argmin(places[order[again + 1]])]
            first, second = (int(places[order[i]]) + 1 for i in (k, k + 1))
            raise InputError(
                f"{self._table.title}: row {second:,} is of the node of row {first:,}.",
                "Give each node one row.",
            )


def _write_bucket(table: pa.Table, first: int, last: int, columns: list[AttributeWriter]) -> None:
    """Write the nodes `first` to `last` - 1 of all columns."""
    at = np.full(last - first, -1)
    at[_column(table, _ROW) - first] = np.arange(table.num_rows)
    for start in range(0, at.size, LEAST_NODES):
        here = at[start : start + LEAST_NODES]
        taken = table.take(_arrow(here, here >= 0))
        for column, writer in zip(taken.columns, columns, strict=False):
            writer.append(*_entries(column.combine_chunks()))


def _arrow(numbers: NDArray[np.int64], known: NDArray[np.bool] | None = None) -> pa.Array:
    """Take an array as a column without a copy; where it is not `known`, it has gaps."""
    import pyarrow as pa

    # Arrow's own way from NumPy loads pandas.
    bits = None if known is None else pa.py_buffer(np.packbits(known, bitorder="little"))
    return pa.Array.from_buffers(pa.int64(), numbers.size, [bits, pa.py_buffer(numbers)])


def _column(table: pa.Table, name: str) -> NDArray[np.int64]:
    column = table[name].combine_chunks()
    return np.empty(0, np.int64) if not len(column) else arrow_numbers(column)


def _entries(column: pa.Array) -> tuple[NDArray[np.generic] | TextPiece, NDArray[np.bool] | None]:
    """Take a piece of a column as the store does: texts, or numbers and which of them lack."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_large_string(kind):
        filled = column.fill_null(_blank(kind))
        strings = arrow_strings(filled)
        whole = strings.text[strings.starts[0] : strings.ends[-1]]
        return (whole, strings.ends - strings.starts), None
    if pa.types.is_floating(kind):
        return arrow_numbers(column.fill_null(_blank(kind))), None
    missing = arrow_numbers(column.is_null().cast(pa.uint8())).view(np.bool)
    if pa.types.is_boolean(kind):
        return arrow_numbers(column.fill_null(_blank(kind)).cast(pa.uint8())).view(np.bool), missing
    return arrow_numbers(column.fill_null(_blank(kind))), missing


def _blank(kind: pa.DataType) -> pa.Scalar:
    """What stands where a value lacks: NaN, an empty text, 0 or False."""
    import pyarrow as pa

    zeros = np.zeros(2)
    if pa.types.is_floating(kind):
        zeros = np.full(1, np.nan, kind.to_pandas_dtype())
    text = [pa.py_buffer(b"")] if pa.types.is_large_string(kind) else []
    return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(zeros), *text])[0]
