"""Blocks out of Arrow record batches, whoever made them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.errors import InputError, UsageError
from oocpr.sources.base import BaseSource
from oocpr.sources.block import NameBlock, NodeBlock, Strings
from oocpr.sources.columns import id_block
from oocpr.sources.name_lines import listed_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

    from oocpr.sources.base import AnyPath
    from oocpr.sources.block import Block

SOURCES = ("src", "source", "from", "tail", "u")
TARGETS = ("dst", "target", "to", "head", "v")
_FLOATS = {"float": "float32", "double": "float64"}


def chosen_columns(
    names: Sequence[str], source: str | None, target: str | None, title: str
) -> tuple[str, str]:
    """Find the columns of both ends of the links.

    Parameters
    ----------
    names
        Columns that there are.
    source, target
        What the caller calls them; None for a usual name (`SOURCES`, `TARGETS`, small or capital letters), or
        the first and second of two columns.
    title
        What has the columns, for messages.

    Raises
    ------
    UsageError
        No such column, or none that is the obvious one.

    Examples
    --------
    >>> chosen_columns(["weight", "To", "From"], None, None, "the table")
    ('From', 'To')
    """
    found = []
    for given, usual, place, option in (
        (source, SOURCES, 0, "source"),
        (target, TARGETS, 1, "target"),
    ):
        known = [name for name in names if name.lower() in usual]
        if given is not None:
            known = [given] if given in names else []
        elif len(known) != 1 and len(names) == 2 and None is source is target:
            known = [names[place]]
        if len(known) != 1:
            wanted = f"no column {given!r}" if given is not None else f"no obvious {option} column"
            raise UsageError(
                f"{title} has {wanted}; its columns are {', '.join(map(repr, names)) or 'none'}.",
                "Name the columns of both ends: --source-column and --target-column.",
            )
        found += known
    if found[0] == found[1]:
        raise UsageError(f"{found[0]!r} is given for both ends of the links.", "Name two columns.")
    return found[0], found[1]


class TableSource(BaseSource):
    """Links in two columns of a table: whole numbers, or names.

    Parameters
    ----------
    name, title
        See `oocpr.sources.base.BaseSource`.
    labels
        A file with the label of each node, or, where nodes have names, with all names; or None.
    source, target
        Names of the columns; see `chosen_columns`.
    """

    def __init__(
        self,
        name: str,
        title: str,
        labels: AnyPath | None = None,
        source: str | None = None,
        target: str | None = None,
    ) -> None:
        super().__init__(name, title, labels)
        self._columns = (source, target)

    def _blocks(self, batches: Iterable[pa.RecordBatch], max_edges: int) -> Iterator[Block]:
        """Make blocks of batches of two columns, the first of which are the first behind the mark."""
        named: bool | None = None
        first = 0
        if self._begun is not None:
            named, first = bool(self._begun["named"]), int(self._begun["edges"])
            self._settle(named)
        for batch in batches:
            for start in range(0, batch.num_rows, max_edges):
                ends = [self._values(column.slice(start, max_edges), first) for column in batch.columns]
                if named is None:
                    named = isinstance(ends[0], Strings)
                    self._settle(named)
                    if self.closed is not None and self._labels_path is not None:
                        yield from map(NodeBlock, listed_names(self._labels_path, 2 * max_edges))
                for end in ends:
                    if isinstance(end, Strings) != named:
                        raise InputError(
                            f"{self.title} has nodes with numbers and nodes with names.",
                            "Write all of them in the same way.",
                        )
                src, dst = ends
                if isinstance(src, Strings) and isinstance(dst, Strings):
                    block: Block = NameBlock(src, dst)
                    first += src.starts.size
                else:
                    block = id_block(src, dst, self.nodes, self.title, first)  # type: ignore[arg-type]
                    first += len(src)  # type: ignore[arg-type]
                self.mark = {"edges": first, "named": named}
                yield block

    def _settle(self, named: bool) -> None:
        """Take the labels as what they are: those of numbered nodes, or all names that there are."""
        if not named:
            self._read_labels()
        elif self._labels_path is not None:
            self.closed = str(self._labels_path)

    def _values(self, column: Any, first: int) -> Strings | np.ndarray[Any, Any]:
        """Take a column as numbers or names; `first` is the number of its first row."""
        import pyarrow as pa

        kind = column.type
        if column.null_count:
            row = first + int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
            raise InputError(f"{self.title}: row {row:,} lacks an end.", "Drop rows without both ends.")
        if pa.types.is_dictionary(kind):
            column = column.dictionary_decode()
            kind = column.type
        if pa.types.is_integer(kind):
            return numbers_of(column)
        if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
            return strings_of(column.cast(pa.large_string()))
        raise InputError(
            f"{self.title}: a column of {kind} holds no nodes.",
            "Give the nodes as whole numbers or as text.",
        )


def numbers_of(column: Any) -> np.ndarray[Any, Any]:
    """Take a column of numbers without gaps as an array, without a copy."""
    # Arrow's own way to NumPy loads pandas.
    width = np.dtype(_FLOATS.get(str(column.type), str(column.type)))
    if not len(column):
        return np.empty(0, width)
    return np.frombuffer(column.buffers()[1], width, len(column), width.itemsize * column.offset)


def strings_of(column: Any) -> Strings:
    """Take a column of large strings without gaps as names, without a copy."""
    _, offsets, text = column.buffers()
    bounds = np.frombuffer(offsets, np.int64, len(column) + 1, 8 * column.offset)
    data = np.empty(0, np.uint8) if text is None else np.frombuffer(text, np.uint8)
    return Strings(data, bounds[:-1], bounds[1:])


class ArrowTable(TableSource):
    """A table in memory: of Arrow, pandas, Polars, DuckDB or anything that gives an Arrow stream.

    Parameters
    ----------
    table
        Has ``__arrow_c_stream__``, or ``to_arrow`` as cuDF's data frames do.
    labels, source, target
        See `TableSource`.

    Raises
    ------
    UsageError
        Columns that there are not.
    InputError
        While blocks are read: a missing end, or one that is neither a whole number nor text.

    Examples
    --------
    >>> import pyarrow as pa
    >>> table = pa.table({"from": [4, 5], "to": [5, 4]})
    >>> [(block.src.tolist(), block.dst.tolist()) for block in ArrowTable(table).blocks(10)]
    [([4, 5], [5, 4])]
    """

    def __init__(
        self,
        table: Any,
        labels: AnyPath | None = None,
        source: str | None = None,
        target: str | None = None,
    ) -> None:
        super().__init__("table", "the table", labels, source, target)
        self._table = table

    def _read(self, max_edges: int) -> Iterator[Block]:
        import pyarrow as pa

        table = self._table
        if not hasattr(table, "__arrow_c_stream__"):
            table = table.to_arrow()
        reader = pa.RecordBatchReader.from_stream(table)
        columns = list(chosen_columns(reader.schema.names, *self._columns, self.title))
        yield from self._blocks((batch.select(columns) for batch in reader), max_edges)


class DaskTable(TableSource):
    """A Dask data frame, computed partition by partition.

    Parameters
    ----------
    frame
        Has ``partitions``, ``npartitions`` and ``columns``.
    labels, source, target
        See `TableSource`.

    Raises
    ------
    UsageError, InputError
        See `ArrowTable`.
    """

    def __init__(
        self,
        frame: Any,
        labels: AnyPath | None = None,
        source: str | None = None,
        target: str | None = None,
    ) -> None:
        super().__init__("table", "the data frame", labels, source, target)
        self._frame = frame

    def _read(self, max_edges: int) -> Iterator[Block]:
        columns = list(chosen_columns(list(self._frame.columns), *self._columns, self.title))
        yield from self._blocks(self._batches(columns), max_edges)

    def _batches(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for k in range(self._frame.npartitions):
            part = self._frame[columns].partitions[k].compute()
            yield pa.RecordBatch.from_pandas(part, preserve_index=False)
