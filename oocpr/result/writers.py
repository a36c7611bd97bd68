"""Ranks as files: Parquet, CSV, Zarr."""

from __future__ import annotations

import csv as python_csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from oocpr.errors import UsageError
from oocpr.result.names import RowNames
from oocpr.store.atomic import replacing
from oocpr.store.format import TEXT_KIND

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import BinaryIO

    import pyarrow as pa
    from numpy.typing import NDArray

    from oocpr.result.ranks import Ranks

Sort = Literal["node", "rank"]

RUN_KEY = b"oocpr"
"""Metadata key of a Parquet file under which the report of the run stands, as JSON."""

_ROWS = 1 << 20


def write_parquet(ranks: Ranks, path: Path, sort: Sort, attributes: Sequence[str] = ()) -> None:
    """Write columns ``node`` and ``rank`` in row groups of about a million rows.

    Parameters
    ----------
    ranks
        What to write.
    path
        The file; replaced when the new one is whole.
    sort
        ``"node"`` for the order of the store, ``"rank"`` for the largest first.
    attributes
        Those that get a column as well.

    Raises
    ------
    DoesNotFitError, UsageError
        Where the disk is full, or nothing can be written there.
    """
    import pyarrow.parquet as pq

    schema = _schema(ranks, attributes)
    if ranks.run is not None:
        schema = schema.with_metadata({RUN_KEY: ranks.run.to_json()})
    with replacing(path) as temporary, pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
        for table in _tables(ranks, schema, sort):
            writer.write_table(table)


def write_csv(ranks: Ranks, target: Path | BinaryIO, sort: Sort, attributes: Sequence[str] = ()) -> None:
    """Write the lines ``node,rank``, and attributes; the digits of a rank give back the same float64.

    Parameters
    ----------
    ranks, sort, attributes
        See `write_parquet`.
    target
        A file, replaced when the new one is whole, or an open binary stream.

    Raises
    ------
    DoesNotFitError, UsageError
        Where the disk is full, or nothing can be written there.
    """
    if isinstance(target, Path):
        with replacing(target) as temporary, temporary.open("wb") as stream:
            _write_csv(ranks, stream, sort, attributes)
    else:
        _write_csv(ranks, target, sort, attributes)


def write_zarr(ranks: Ranks, path: Path) -> None:
    """Write the ranks and the names of the nodes as a Zarr group, in store order.

    Parameters
    ----------
    ranks, path
        See `write_parquet`.

    Raises
    ------
    DoesNotFitError, UsageError
        Where the disk is full, or nothing can be written there.
    """
    from oocpr.store.vectors import write_ranks

    attributes = {} if ranks.run is None else {"run": ranks.run.to_dict()}
    named = (
        {}
        if isinstance(ranks.names, RowNames)
        else {"labels" if ranks.names.textual else "node_ids": _names(ranks)}
    )
    write_ranks(path, ranks.chunks(), ranks.nodes, attributes, **named)


def check_sort(sort: str) -> Sort:
    """Pass the two orders, refuse the rest with a UsageError.

    Examples
    --------
    >>> check_sort("rank")
    'rank'
    """
    orders: dict[str, Sort] = {"node": "node", "rank": "rank"}
    if sort not in orders:
        raise UsageError(f"{sort!r} is no order of ranks.", f"Sort by one of {', '.join(orders)}.")
    return orders[sort]


def _write_csv(ranks: Ranks, stream: BinaryIO, sort: Sort, attributes: Sequence[str]) -> None:
    from pyarrow import csv

    # Written here because pyarrow would put all words in quotes.
    header = io.StringIO()
    python_csv.writer(header, lineterminator="\n").writerow(["node", "rank", *attributes])
    stream.write(header.getvalue().encode())
    schema = _schema(ranks, attributes)
    options = csv.WriteOptions(include_header=False)
    with csv.CSVWriter(stream, schema, write_options=options) as writer:
        for table in _tables(ranks, schema, sort):
            writer.write_table(table)


def _schema(ranks: Ranks, attributes: Sequence[str]) -> pa.Schema:
    import pyarrow as pa

    kinds = ranks.attributes.kinds
    return pa.schema(
        [
            ("node", pa.string() if ranks.names.textual else pa.int64()),
            ("rank", pa.float64()),
            *((name, _arrow_type(kinds[name])) for name in attributes),
        ]
    )


def _arrow_type(kind: str) -> pa.DataType:
    import pyarrow as pa

    return pa.string() if kind == TEXT_KIND else pa.from_numpy_dtype(np.dtype(kind))


def _tables(ranks: Ranks, schema: pa.Schema, sort: Sort) -> Iterator[pa.Table]:
    import pyarrow as pa

    for rows, values in _pieces(ranks, sort):
        columns = [pa.array(ranks.names.take(rows), schema.field("node").type), values]
        columns += [pa.array(ranks.attributes.take(f.name, rows), f.type) for f in list(schema)[2:]]
        yield pa.table(columns, schema=schema)


def _names(ranks: Ranks) -> Iterator[Any]:
    for start in range(0, ranks.nodes, _ROWS):
        names = ranks.names.take(np.arange(start, min(start + _ROWS, ranks.nodes)))
        if ranks.names.textual:
            yield from names
        else:
            yield np.array(names)


def _pieces(ranks: Ranks, sort: Sort) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]:
    if sort == "rank":
        values = ranks.to_numpy()
        order = np.argsort(-values, kind="stable")
        for start in range(0, len(order), _ROWS):
            rows = order[start : start + _ROWS]
            yield rows, values[rows]
        return
    start = 0
    for chunk in ranks.chunks():
        for low in range(0, len(chunk), _ROWS):
            piece = chunk[low : low + _ROWS]
            yield np.arange(start + low, start + low + len(piece)), piece
        start += len(chunk)
