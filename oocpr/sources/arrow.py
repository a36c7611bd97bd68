"""Blocks out of Arrow record batches, whoever made them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.errors import InputError, UsageError
from oocpr.sources.base import BaseSource
from oocpr.sources.block import NameBlock, NodeBlock, Strings
from oocpr.sources.columns import id_block
from oocpr.sources.name_lines import listed_names
from oocpr.sources.weights import REMEDY, weights_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from oocpr.sources.block import Block
    from oocpr.sources.places import AnyPath

SOURCES = ("src", "source", "from", "tail", "u")
TARGETS = ("dst", "target", "to", "head", "v")
_FLOATS = {"halffloat": "float16", "float": "float32", "double": "float64"}


def chosen_columns(
    names: Sequence[str], source: str | None, target: str | None, title: str, weight: str | None = None
) -> list[str]:
    """Find the columns of both ends of the links, and of weights where there are some.

    Parameters
    ----------
    names
        Columns that there are.
    source, target
        What the caller calls them; None for a usual name (`SOURCES`, `TARGETS`, small or capital letters), or
        the first and second of two columns.
    title
        What has the columns, for messages.
    weight
        The column of weights; None for none. It is not among those of which there may be two.

    Raises
    ------
    UsageError
        No such column, or none that is the obvious one.

    Examples
    --------
    >>> chosen_columns(["weight", "To", "From"], None, None, "the table")
    ['From', 'To']
    >>> chosen_columns(["a", "b", "kg"], None, None, "the table", "kg")
    ['a', 'b', 'kg']
    """
    found = []
    all_names, names = names, [name for name in names if name != weight]
    if weight is not None and weight not in all_names:
        raise UsageError(
            f"{title} has no column {weight!r}; its columns are {', '.join(map(repr, names)) or 'none'}.",
            "Name the column of weights: --weight.",
        )
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
    return found if weight is None else [*found, weight]


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
    weight
        Name of a column of weights, or None.
    """

    def __init__(
        self,
        name: str,
        title: str,
        labels: AnyPath | None = None,
        source: str | None = None,
        target: str | None = None,
        *,
        weight: str | int | None = None,
    ) -> None:
        super().__init__(name, title, labels)
        self._take_columns(source, target, weight)

    def _take_columns(self, source: str | None, target: str | None, weight: str | int | None) -> None:
        """Take what the columns are called."""
        self._columns = (source, target)
        self._weight = None if weight is None else str(weight)
        self.weighted = weight is not None

    def _chosen(self, names: Sequence[str], title: str) -> list[str]:
        """Find the columns to be read."""
        return chosen_columns(names, *self._columns, title, self._weight)

    def _blocks(self, batches: Iterable[pa.RecordBatch], max_edges: int) -> Iterator[Block]:
        """Make blocks of batches of the columns, the first of which are the first behind the mark."""
        named: bool | None = None
        first = 0
        if self._begun is not None:
            named, first = bool(self._begun["named"]), int(self._begun["edges"])
            self._settle(named)
        for batch in batches:
            for start in range(0, batch.num_rows, max_edges):
                columns = [column.slice(start, max_edges) for column in batch.columns]
                ends = [self._values(column, first) for column in columns[:2]]
                weight = self._weights(columns[2], first) if self.weighted else None
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
                    block: Block = NameBlock(src, dst, weight)
                    first += src.starts.size
                else:
                    block = id_block(src, dst, self.nodes, self.title, first, weight)  # type: ignore[arg-type]
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

        if column.null_count:
            raise InputError(
                f"{self.title}: row {_first_null(column, first):,} lacks an end.",
                "Drop rows without both ends.",
            )
        if pa.types.is_dictionary(column.type):
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

    def _weights(self, column: Any, first: int) -> NDArray[np.float64]:
        """Take a column as weights; `first` is the number of its first row."""
        import pyarrow as pa

        if column.null_count:
            raise InputError(f"{self.title}: row {_first_null(column, first):,} lacks a weight.", REMEDY)
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
        return weights_of(numbers_of(column), self.title, "row", first)


def _first_null(column: Any, first: int) -> int:
    """Give the number of the first row that has nothing, where that of the first row is `first`."""
    return first + int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])


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
    labels, source, target, weight
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
        *,
        weight: str | int | None = None,
    ) -> None:
        super().__init__("table", "the table", labels, source, target, weight=weight)
        self._table = table

    def _read(self, max_edges: int) -> Iterator[Block]:
        import pyarrow as pa

        table = self._table
        if not hasattr(table, "__arrow_c_stream__"):
            table = table.to_arrow()
        reader = pa.RecordBatchReader.from_stream(table)
        columns = self._chosen(reader.schema.names, self.title)
        yield from self._blocks((batch.select(columns) for batch in reader), max_edges)


class DaskTable(TableSource):
    """A Dask data frame, computed partition by partition.

    Parameters
    ----------
    frame
        Has ``partitions``, ``npartitions`` and ``columns``.
    labels, source, target, weight
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
        *,
        weight: str | int | None = None,
    ) -> None:
        super().__init__("table", "the data frame", labels, source, target, weight=weight)
        self._frame = frame

    def _read(self, max_edges: int) -> Iterator[Block]:
        columns = self._chosen(list(self._frame.columns), self.title)
        yield from self._blocks(self._batches(columns), max_edges)

    def _batches(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for k in range(self._frame.npartitions):
            part = self._frame[columns].partitions[k].compute()
            yield pa.RecordBatch.from_pandas(part, preserve_index=False)
