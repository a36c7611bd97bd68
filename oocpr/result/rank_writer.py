"""Ranks as files: Parquet, CSV, Zarr."""

from __future__ import annotations

import contextlib
import secrets
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from oocpr.errors import OocprError, UsageError
from oocpr.ingest.budget import require
from oocpr.plan.memory import writing_bytes
from oocpr.result.names import ROWS, RowNames, aligned, permuted, text_of, to_arrow
from oocpr.sources.block import arrow_array
from oocpr.store.atomic import replacing, require_room
from oocpr.system import resident_after_trim

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    import pyarrow as pa
    from numpy.typing import NDArray

    from oocpr.result.names import Names
    from oocpr.result.ranks import Ranks

Sort = Literal["node", "rank"]

RUN_KEY = b"oocpr"
"""Metadata key of a Parquet file under which the report of the run stands, as JSON."""

_ROWS = ROWS
_BYTES = 1 << 22
"""Most rows of a table and, unless one row has more, most bytes."""


def write_parquet(ranks: Ranks, path: Path, sort: Sort) -> None:
    """Write columns ``node`` and ``rank`` in row groups of 4 MiB or less.

    `sort`: ``"node"`` for the order of the store, ``"rank"`` for the largest first. Raises DoesNotFitError,
    UsageError if the disk is full, or nothing can be written there.
    """
    import pyarrow.parquet as pq

    schema = _schema(ranks)
    if ranks.run is not None:
        schema = schema.with_metadata({RUN_KEY: ranks.run.to_json()})
    with replacing(path) as temporary, pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
        for table in _tables(ranks, schema, sort, _folder_of(path)):
            writer.write_table(table, row_group_size=table.num_rows)


def write_csv(ranks: Ranks, target: Path | BinaryIO, sort: Sort) -> None:
    """Write the lines ``node,rank``; the digits of a rank give back the same float64.

    Raises DoesNotFitError, UsageError if the disk is full, or nothing can be written there.
    """
    if isinstance(target, Path):
        with replacing(target) as temporary, temporary.open("wb") as stream:
            _write_csv(ranks, stream, sort, _folder_of(target))
    else:
        _write_csv(ranks, target, sort, Path(tempfile.gettempdir()))


def write_zarr(ranks: Ranks, path: Path) -> None:
    """Write the ranks and the names of the nodes as a Zarr group, in store order.

    Raises DoesNotFitError, UsageError if the disk is full, or nothing can be written there.
    """
    from oocpr.store.rank_file import write_ranks

    attributes = {} if ranks.run is None else {"run": ranks.run.to_dict()}
    named: dict[str, Any] = {}
    if ranks.names.textual:
        named["labels"] = (text_of(block) for block in ranks.names.blocks(ranks.nodes))
    elif not isinstance(ranks.names, RowNames):
        named["node_ids"] = ranks.names.blocks(ranks.nodes)
    write_ranks(path, ranks.chunks(), ranks.nodes, attributes, **named)


def require_memory(nodes: int, memory: int, *, sort: Sort, kind: str, texts: int = 0, more: int = 0) -> None:
    """Refuse memory in which ranks cannot be written; loads what writes them, which is part of the process.

    `memory`: most bytes that the process may hold. `sort`: order of the ranks. `more`: bytes that the process
    will hold by then, beside what it holds now. Raises DoesNotFitError if it is too small.
    """
    if kind == ".parquet":
        import pyarrow.parquet
    elif kind == ".csv":
        import pyarrow.csv  # noqa: F401
    needed = writing_bytes(
        base=resident_after_trim() + more, nodes=nodes, ordered=sort == "rank", texts=texts
    )
    require(needed, memory, f"Writing {nodes:,} ranks")


def check_sort(sort: str) -> Sort:
    """Pass the two orders, refuse the rest with a UsageError.

    >>> check_sort("rank")
    'rank'
    """
    orders: dict[str, Sort] = {"node": "node", "rank": "rank"}
    if sort not in orders:
        raise UsageError(f"{sort!r} is no order of ranks.", f"Sort by one of {', '.join(orders)}.")
    return orders[sort]


def _write_csv(ranks: Ranks, stream: BinaryIO, sort: Sort, folder: Path) -> None:
    from pyarrow import csv

    # Written here because pyarrow would put all words in quotes.
    stream.write(b"node,rank\n")
    schema = _schema(ranks)
    options = csv.WriteOptions(include_header=False)
    with csv.CSVWriter(stream, schema, write_options=options) as writer:
        for table in _tables(ranks, schema, sort, folder):
            writer.write_table(table)


def _schema(ranks: Ranks) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([("node", pa.string() if ranks.names.textual else pa.int64()), ("rank", pa.float64())])


def _folder_of(path: Path) -> Path:
    """Where temporary files go while a file is written: beside it, or where the system has them."""
    folder = path.absolute().parent
    special = path.exists() and not path.is_file()
    return Path(tempfile.gettempdir()) if special or not folder.is_dir() else folder


def _tables(ranks: Ranks, schema: pa.Schema, sort: Sort, folder: Path) -> Iterator[pa.Table]:
    """Yield all rows in tables of at most `_BYTES`, unless one row has more, and of about `_ROWS` rows."""
    import pyarrow as pa

    held: list[pa.Table] = []
    rows = size = 0
    for table in _pieces(ranks, schema, sort, folder):
        if held and (rows >= _ROWS or size + table.nbytes > _BYTES):
            yield pa.concat_tables(held)
            held, rows, size = [], 0, 0
        held.append(table)
        rows += table.num_rows
        size += table.nbytes
    if held:
        yield pa.concat_tables(held)


def _pieces(ranks: Ranks, schema: pa.Schema, sort: Sort, folder: Path) -> Iterator[pa.Table]:
    import pyarrow as pa

    from oocpr.result.ranks import rank_order  # it imports this module

    values = ranks.to_numpy() if sort == "rank" else None
    order = None if values is None else rank_order(values)
    texts = [_names(ranks, order, folder)] if ranks.names.textual else []
    rows = _rows(ranks.nodes, order)
    vector = ranks.chunks() if values is None else (values[some] for some in _rows(ranks.nodes, order))
    for some, given, *found in aligned(rows, vector, *texts):
        nodes = to_arrow(found[0]) if found else arrow_array(np.array(ranks.names.take(some), np.int64))
        yield pa.table([nodes, arrow_array(given)], schema=schema)


def _rows(nodes: int, order: NDArray[np.uint32] | None) -> Iterator[NDArray[np.integer[Any]]]:
    """Yield the rows of the nodes in the order in which they are written."""
    for start in range(0, nodes, _ROWS):
        stop = min(start + _ROWS, nodes)
        yield np.arange(start, stop) if order is None else order[start:stop]


def _names(ranks: Ranks, order: NDArray[np.uint32] | None, folder: Path) -> Iterator[Any]:
    blocks: Iterator[Any] = ranks.names.blocks(ranks.nodes)
    return blocks if order is None else permuted(blocks, order, ranks.nodes, folder)


SUFFIXES = (".parquet", ".csv", ".zarr")

_SAMPLE = 1000
_MOST_STEM = 200


def least_bytes(suffix: str, nodes: int, name_bytes: float) -> int:
    """Bytes that a file of ranks takes at least, as a rule.

    Equal ranks, and parts of names that repeat, are stored once in Parquet and Zarr: a graph of 2.1 M nodes,
    of which most have no edges, took 4.5 and 3 bytes per node, one of 63 k names of 12 bytes took 12. CSV has
    up to 22 characters of a rank.

    >>> least_bytes(".csv", 1000, 12.0), least_bytes(".parquet", 1000, 12.0)
    (28000, 6000)
    """
    return int(nodes * (16 + name_bytes if suffix == ".csv" else 3 + name_bytes / 4))


def check_room(path: Path, nodes: int, names: Names) -> None:
    """Refuse a file of ranks for which its disk has no room, before they are computed.

    Raises DoesNotFitError with the bytes that it takes and those that are free.
    """
    rows = np.unique(np.linspace(0, nodes - 1, min(nodes, _SAMPLE)).astype(np.int64))
    written = [len(str(name).encode(errors="replace")) for name in names.take(rows)]
    require_room(path, least_bytes(path.suffix, nodes, sum(written) / max(1, len(written))))


def write_ranks(ranks: Ranks, path: Path, sort: str) -> None:
    """Write ranks as the ending of the name says; see `Ranks.to_parquet` and its like."""
    if path.suffix == ".zarr":
        ranks.to_zarr(path)
    else:
        write = ranks.to_csv if path.suffix == ".csv" else ranks.to_parquet
        write(path, sort=sort)


def write_elsewhere(ranks: Ranks, path: Path, sort: str) -> Path | None:
    """Write ranks that could not be written to `path` to another folder, so that they are not lost.

    Returns where they are: in the folder of temporary files, the current folder or the user's own, whichever
    takes them first; None if none does.
    """
    name = f"{path.stem[:_MOST_STEM]}-{secrets.token_hex(4)}{path.suffix}"
    for folder in (tempfile.gettempdir, Path.cwd, Path.home):
        # A folder that is not there or not known is as good as one that is full.
        with contextlib.suppress(OocprError, OSError, RuntimeError):
            found = Path(folder(), name).absolute()
            write_ranks(ranks, found, sort)
            return found
    return None
