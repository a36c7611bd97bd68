"""Ranks as files: Parquet, CSV, Zarr."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from oocpr.errors import UsageError
from oocpr.result.names import RowNames
from oocpr.store.atomic import replacing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    import pyarrow as pa
    from numpy.typing import NDArray

    from oocpr.result.ranks import Ranks

Sort = Literal["node", "rank"]

RUN_KEY = b"oocpr"
"""Metadata key of a Parquet file under which the report of the run stands, as JSON."""

_ROWS = 1 << 20


def write_parquet(ranks: Ranks, path: Path, sort: Sort) -> None:
    """Write columns ``node`` and ``rank`` in row groups of about a million rows.

    Parameters
    ----------
    ranks
        What to write.
    path
        The file; replaced when the new one is whole.
    sort
        ``"node"`` for the order of the store, ``"rank"`` for the largest first.

    Raises
    ------
    DoesNotFitError, UsageError
        Where the disk is full, or nothing can be written there.
    """
    import pyarrow.parquet as pq

    schema = _schema(ranks)
    if ranks.run is not None:
        schema = schema.with_metadata({RUN_KEY: ranks.run.to_json()})
    with replacing(path) as temporary, pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
        for table in _tables(ranks, schema, sort):
            writer.write_table(table)


def write_csv(ranks: Ranks, target: Path | BinaryIO, sort: Sort) -> None:
    """Write the lines ``node,rank``; each rank with as many digits as it takes to read it back exactly.

    Parameters
    ----------
    ranks, sort
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
            _write_csv(ranks, stream, sort)
    else:
        _write_csv(ranks, target, sort)


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


def _write_csv(ranks: Ranks, stream: BinaryIO, sort: Sort) -> None:
    from pyarrow import csv

    # Written here because pyarrow would put the two words in quotes.
    stream.write(b"node,rank\n")
    schema = _schema(ranks)
    options = csv.WriteOptions(include_header=False)
    with csv.CSVWriter(stream, schema, write_options=options) as writer:
        for table in _tables(ranks, schema, sort):
            writer.write_table(table)


def _schema(ranks: Ranks) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([("node", pa.string() if ranks.names.textual else pa.int64()), ("rank", pa.float64())])


def _tables(ranks: Ranks, schema: pa.Schema, sort: Sort) -> Iterator[pa.Table]:
    import pyarrow as pa

    for rows, values in _pieces(ranks, sort):
        yield pa.table([pa.array(ranks.names.take(rows), schema.field("node").type), values], schema=schema)


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
