"""Tables: blocks out of Arrow record batches, whoever made them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.errors import InputError, UsageError
from oocpr.sources.base import BaseSource, FileSource
from oocpr.sources.block import NameBlock, NodeBlock, Strings, arrow_numbers, arrow_strings, id_block
from oocpr.sources.names import listed_names
from oocpr.sources.weights import WEIGHT_REMEDY, weights_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Unpack

    import pyarrow as pa
    from numpy.typing import NDArray

    from oocpr.sources.base import SourceOptions
    from oocpr.sources.block import Block

SOURCES = ("src", "source", "from", "tail", "u")
TARGETS = ("dst", "target", "to", "head", "v")
TEXT_BYTES_PER_EDGE = 16
"""Most bytes of the names of a block, for each edge that it may have."""


def chosen_columns(
    names: Sequence[str], source: str | None, target: str | None, title: str, weight: str | None = None
) -> list[str]:
    """Find the columns of both ends of the edges, and of weights if there are some.

    `source` and `target` are what the caller calls them; None for a usual name (`SOURCES`, `TARGETS`, small
    or capital letters), or the first and second of two columns, among which the one of weights does not
    count. Raises UsageError for no such column, or none that is the obvious one.

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
            "Name the column of weights with weight, or leave it out.",
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
                "Give the columns of both ends: source_column and target_column.",
            )
        found += known
    if found[0] == found[1]:
        raise UsageError(f"{found[0]!r} is given for both ends of the links.", "Name two columns.")
    return found if weight is None else [*found, weight]


class TableSource(BaseSource):
    """Edges in two columns of a table: whole numbers, or names.

    Labels are those of numbered nodes or, if nodes have names, all names. Raises UsageError for columns that
    there are not and, while blocks are read, InputError for a missing end, or one that is neither a whole
    number nor text.
    """

    def __init__(self, name: str, title: str, **options: Unpack[SourceOptions]) -> None:
        super().__init__(name, title, **options)
        self._columns = options.get("source_column"), options.get("target_column")
        weight = options.get("weight")
        self._weight = None if weight is None else str(weight)

    def _chosen(self, kinds: Mapping[str, bool], title: str) -> list[str]:
        """Find the columns to be read, among those that hold numbers or do not; and which are not used."""
        chosen = chosen_columns(list(kinds), *self._columns, title, self._weight)
        self._pass_over(kinds, chosen)
        return chosen

    def _pass_over(self, kinds: Mapping[str, bool], chosen: Sequence[str]) -> None:
        """Note the columns of numbers that are not read."""
        numeric = (name for name, number in kinds.items() if number and name not in chosen)
        self.unused_columns += [name for name in numeric if name not in self.unused_columns]

    def _blocks(self, batches: Iterable[pa.RecordBatch], max_edges: int) -> Iterator[Block]:
        """Make blocks of batches of the columns."""
        named: bool | None = None
        first = 0
        for batch in batches:
            self._validate(batch, first)
            for start, count in _cuts(batch, max_edges):
                columns = [column.slice(start, count) for column in batch.columns]
                ends = [self._values(column, first) for column in columns[:2]]
                weight = self._weights(columns[2], first) if self.weighted else None
                if named is None:
                    named = isinstance(ends[0], Strings)
                    if not named:
                        self._read_labels()
                    elif self._labels_path is not None:
                        self.closed = str(self._labels_path)
                        yield from map(NodeBlock, listed_names(self._labels_path, 2 * max_edges))
                for end in ends:
                    if isinstance(end, Strings) != named:
                        raise InputError(
                            f"{self.title} has nodes with numbers and nodes with names.",
                            "Write all of them in the same way.",
                        )
                src, dst = ends
                if isinstance(src, Strings) and isinstance(dst, Strings):
                    yield NameBlock(src, dst, weight)
                else:
                    yield id_block(src, dst, self.nodes, self.title, first, weight)  # type: ignore[arg-type]
                first += count

    def _values(self, column: Any, first: int) -> Strings | np.ndarray[Any, Any]:
        """Take a column as numbers or names; `first` is the number of its first row."""
        import pyarrow as pa

        if column.null_count:
            raise InputError(
                f"{self.title}: row {_first_null(column, first):,} lacks an end.",
                "Drop rows without both ends.",
            )
        _check_kind(column.type, self.title)
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if pa.types.is_integer(column.type):
            return arrow_numbers(column)
        return arrow_strings(column.cast(pa.large_string()))

    def _weights(self, column: Any, first: int) -> NDArray[np.float64]:
        """Take a column as weights; `first` is the number of its first row."""
        import pyarrow as pa

        if column.null_count:
            raise InputError(
                f"{self.title}: row {_first_null(column, first):,} lacks a weight.", WEIGHT_REMEDY
            )
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
        return weights_of(arrow_numbers(column), self.title, "row", first)

    def _validate(self, batch: pa.RecordBatch, first: int) -> None:
        """Refuse text that is no UTF-8, and offsets that are not there, as compiled loops go by them."""
        import pyarrow as pa

        try:
            batch.validate(full=True)
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise InputError(
                f"{self.title}: row {first:,} or one of the {batch.num_rows:,} from it on cannot be read: "
                f"{' '.join(str(error).split())[:200]}.",
                "Write the table again, its text in UTF-8.",
            ) from error

    def _check_columns(self, schema: pa.Schema, columns: Sequence[str], title: str) -> None:
        """Refuse columns that cannot be read, before anything of them is."""
        for name in columns:
            if schema.names.count(name) > 1:
                raise InputError(f"{title} has two columns {name!r}.", "Rename one of them.")
        for name in columns[:2]:
            _check_kind(schema.field(name).type, title)


def is_text(kind: pa.DataType) -> bool:
    """Tell whether a column of this type has strings."""
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _check_kind(kind: pa.DataType, title: str) -> None:
    """Refuse a column of ends that has neither whole numbers nor text."""
    import pyarrow as pa

    of = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (is_text(of) or pa.types.is_integer(of)):
        raise InputError(
            f"{title}: a column of {of} holds no nodes.", "Give the nodes as whole numbers or as text."
        )


def _cuts(batch: pa.RecordBatch, max_edges: int) -> Iterator[tuple[int, int]]:
    """Cut a batch into pieces of bounded rows and bytes of names; yields their first rows and row counts.

    A piece of one row may have any number of bytes.
    """
    most = TEXT_BYTES_PER_EDGE * max_edges
    for start in range(0, batch.num_rows, max_edges):
        count = min(max_edges, batch.num_rows - start)
        ends = np.cumsum(sum(_text_bytes(column.slice(start, count)) for column in batch.columns[:2]))
        if ends.size < 2 or ends[-1] <= most:
            yield start, count
            continue
        first = 0
        while first < count:
            before = int(ends[first - 1]) if first else 0
            stop = max(first + 1, int(np.searchsorted(ends, before + most, side="right")))
            yield start + first, stop - first
            first = stop


def _text_bytes(column: Any) -> NDArray[np.int64] | int:
    """Bytes of each name of a column, int64, shape (rows,); 0 for columns of numbers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    names = column.dictionary if pa.types.is_dictionary(kind) else column
    if not is_text(names.type):
        return 0
    if pa.types.is_string_view(names.type):
        views = np.frombuffer(names.buffers()[1], np.int32).reshape(-1, 4)
        lengths: NDArray[np.int64] = views[names.offset : names.offset + len(names), 0].astype(np.int64)
    else:
        lengths = arrow_numbers(_zero_filled(pc.binary_length(names))).astype(np.int64)
    if not pa.types.is_dictionary(kind):
        return lengths
    places = arrow_numbers(_zero_filled(column.indices))
    return lengths.take(places) if lengths.size else 0


def _zero_filled(numbers: Any) -> Any:
    # Arrow loads pandas for what fills the gaps.
    return numbers.fill_null(0) if numbers.null_count else numbers


def kinds_of(schema: pa.Schema) -> dict[str, bool]:
    """Tell of each column whether it holds numbers."""
    from pyarrow import types

    numbers = (types.is_integer, types.is_floating, types.is_decimal)
    return {field.name: any(kind(field.type) for kind in numbers) for field in schema}


def _first_null(column: Any, first: int) -> int:
    """Give the number of the first row that has nothing; that of the first row is `first`."""
    return first + int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])


class TableFiles(FileSource, TableSource):
    """Edges in two columns of tables in files."""


class ArrowTable(TableSource):
    """A table in memory: of Arrow, pandas, Polars, DuckDB or anything that gives an Arrow stream.

    It has ``__arrow_c_stream__``, or ``to_arrow`` as cuDF's data frames do.
    """

    def __init__(self, table: Any, **options: Unpack[SourceOptions]) -> None:
        super().__init__("table", "the table", **options)
        self._table = table

    def _read(self, max_edges: int) -> Iterator[Block]:
        import pyarrow as pa

        table = self._table
        if not hasattr(table, "__arrow_c_stream__"):
            table = table.to_arrow()
        reader = pa.RecordBatchReader.from_stream(table)
        columns = self._chosen(kinds_of(reader.schema), self.title)
        yield from self._blocks((batch.select(columns) for batch in reader), max_edges)


class DaskTable(TableSource):
    """A Dask data frame, computed partition by partition."""

    def __init__(self, frame: Any, **options: Unpack[SourceOptions]) -> None:
        super().__init__("table", "the data frame", **options)
        self._frame = frame

    def _read(self, max_edges: int) -> Iterator[Block]:
        kinds = [getattr(kind, "kind", "O") for kind in self._frame.dtypes]
        numbers = {name: kind in "iuf" for name, kind in zip(self._frame.columns, kinds, strict=True)}
        columns = self._chosen(numbers, self.title)
        yield from self._blocks(self._batches(columns), max_edges)

    def _batches(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for k in range(self._frame.npartitions):
            part = self._frame[columns].partitions[k].compute()
            yield pa.RecordBatch.from_pandas(part, preserve_index=False)
