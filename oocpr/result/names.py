"""What the caller calls the nodes: labels, ids of the source file, or plain row numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from oocpr.errors import InputError
from oocpr.sources.block import Strings, arrow_array, arrow_numbers, arrow_strings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa
    from numpy.typing import NDArray

    from oocpr.store.graph import GraphStore

    Block = NDArray[Any] | Strings

Name = int | str


class Names(Protocol):
    """The names of a graph's nodes, in store order."""

    textual: bool
    """True if the names are strings, False if they are integers."""

    def take(self, rows: NDArray[np.integer[Any]]) -> Sequence[Name]:
        """Names of these rows, Python ints or strings, in the order asked for."""
        ...

    def blocks(self, nodes: int) -> Iterator[Block]:
        """Yield the names of all nodes in order, int64 or texts, in bounded blocks."""
        ...


class RowNames:
    """Nodes that are their own row numbers.

    >>> RowNames().take(np.array([3, 1]))
    [3, 1]
    """

    textual = False

    def take(self, rows: NDArray[np.integer[Any]]) -> Sequence[Name]:
        """Give the rows themselves."""
        numbers: list[int] = rows.tolist()
        return numbers

    def blocks(self, nodes: int) -> Iterator[Block]:
        """Count."""
        return (np.arange(first, min(first + ROWS, nodes)) for first in range(0, nodes, ROWS))


class ListedNames:
    """Names held in memory.

    `names`: name of each row: integers, shape (n,), or a sequence of n strings.

    >>> ListedNames(["libc6", "perl-base"]).take(np.array([1]))
    ['perl-base']
    """

    def __init__(self, names: NDArray[np.integer[Any]] | Sequence[str]) -> None:
        self._names = names
        self.textual = not isinstance(names, np.ndarray)

    def take(self, rows: NDArray[np.integer[Any]]) -> Sequence[Name]:
        """Look the rows up."""
        if isinstance(self._names, np.ndarray):
            numbers: list[int] = self._names[rows].tolist()
            return numbers
        return [self._names[row] for row in rows.tolist()]

    def blocks(self, nodes: int) -> Iterator[Block]:  # noqa: ARG002
        """Give the names as they are."""
        if isinstance(self._names, np.ndarray):
            for first in range(0, len(self._names), ROWS):
                yield self._names[first : first + ROWS].astype(np.int64)
        else:
            from oocpr.store.labels import text_pieces

            yield from (Strings.of(*piece) for piece in text_pieces(self._names))


class LabelNames:
    """Labels that stay in the store until they are asked for."""

    textual = True

    def __init__(self, store: GraphStore) -> None:
        self._store = store

    def take(self, rows: NDArray[np.integer[Any]]) -> Sequence[Name]:
        """Read the labels of the rows."""
        return self._store.labels(rows) or []

    def blocks(self, nodes: int) -> Iterator[Block]:
        """Read all labels."""
        return (Strings.of(*piece) for piece in self._store.label_pieces(0, nodes))


class StoredIds:
    """Ids that stay in the store; those of a graph without any are the rows themselves."""

    textual = False

    def __init__(self, store: GraphStore) -> None:
        self._store = store

    def take(self, rows: NDArray[np.integer[Any]]) -> Sequence[Name]:
        """Read the ids of the rows, one by one."""
        return [int(self._store.ids(row, row + 1)[0]) for row in rows.tolist()]

    def blocks(self, nodes: int) -> Iterator[Block]:
        """Read all ids."""
        return (self._store.ids(first, min(first + ROWS, nodes)) for first in range(0, nodes, ROWS))


def names_of(store: GraphStore) -> Names:
    """Names by which a graph's source knew its nodes.

    Returns labels where the store has them, else the ids of the source, else row numbers.
    """
    if store.has_labels:
        return LabelNames(store)
    ids = store.node_ids()
    return RowNames() if ids is None else ListedNames(ids)


def block_of(names: Sequence[Name], textual: bool) -> Block:
    """Make a block of names of one kind."""
    if textual:
        coded = [str(name).encode(errors="surrogatepass") for name in names]
        text = np.frombuffer(b"".join(coded), np.uint8)
        return Strings.of(text, np.array([len(name) for name in coded], np.uint32))
    return np.array([int(name) for name in names], np.int64)


def sorts_of(names: Iterable[Any], textual: bool) -> NDArray[np.bool]:
    """Tell which names can be those of nodes that have names, or ids; bool, shape (names,).

    >>> sorts_of(["a", 7, 2**63], False).tolist()
    [False, True, False]
    """
    return np.array([_may_name(name, textual) for name in names], bool)


def _may_name(name: object, textual: bool) -> bool:
    if textual:
        return isinstance(name, str)
    if isinstance(name, float | np.floating):
        return bool(name.is_integer() and -(2.0**63) <= name < 2.0**63)
    return isinstance(name, int | np.integer) and -(2**63) <= int(name) < 2**63


ROWS = 1 << 18
"""Most rows of a block of numbers."""

SORTING_BYTES = 1 << 24
"""Bytes of texts that are sorted at once."""

_NONE = np.uint32(0xFFFFFFFF)


def size_of(block: Block) -> int:
    """Rows of a block.

    >>> size_of(np.arange(3)), size_of(Strings.of(np.empty(0, np.uint8), np.zeros(2, np.uint32)))
    (3, 2)
    """
    return (block.starts if isinstance(block, Strings) else block).size


def cut(block: Block, first: int, stop: int) -> Block:
    """Rows `first` to `stop` - 1 of a block, which are not copied."""
    if isinstance(block, Strings):
        return Strings(block.text, block.starts[first:stop], block.ends[first:stop])
    return block[first:stop]


def equal(one: Block, other: Block) -> bool:
    """Whether two blocks of the same size hold the same.

    >>> names = Strings.of(np.frombuffer(b"abb", np.uint8), np.array([1, 2], np.uint32))
    >>> equal(names, names), equal(cut(names, 0, 1), cut(names, 1, 2)), equal(names, np.arange(2))
    (True, False, False)
    """
    if isinstance(one, Strings) and isinstance(other, Strings):
        same = np.array_equal(one.ends - one.starts, other.ends - other.starts)
        return same and np.array_equal(text_of(one)[0], text_of(other)[0])
    if isinstance(one, Strings) or isinstance(other, Strings):
        return False
    return np.array_equal(one, other)


def text_of(block: Block) -> tuple[NDArray[np.uint8], NDArray[np.uint32]]:
    """Texts of a block, which lie end to end, and the length of each."""
    assert isinstance(block, Strings)
    lengths = (block.ends - block.starts).astype(np.uint32)
    return (block.text[block.starts[0] : block.ends[-1]] if lengths.size else block.text[:0]), lengths


def strings_of(block: Strings) -> list[str]:
    """Make a string of each text.

    >>> strings_of(Strings.of(np.frombuffer(b"abb", np.uint8), np.array([1, 2], np.uint32)))
    ['a', 'bb']
    """
    text = block.text.tobytes()
    return [text[a:b].decode() for a, b in zip(block.starts.tolist(), block.ends.tolist(), strict=True)]


def name_at(block: Block, place: int) -> Name:
    """Name that stands at some place of a block."""
    if not isinstance(block, Strings):
        return int(block[place])
    return block.text[block.starts[place] : block.ends[place]].tobytes().decode(errors="replace")


def aligned(*columns: Iterator[Any]) -> Iterator[tuple[Any, ...]]:
    """Cut the blocks of columns so that they have the same rows; ends with the shortest column.

    >>> for one, other in aligned(iter([np.arange(3)]), iter([np.arange(1), np.arange(1, 3)])):
    ...     print(one, other)
    [0] [0]
    [1 2] [1 2]
    """
    held: list[Any] = [next(column, None) for column in columns]
    while all(block is not None for block in held):
        step = min(size_of(block) for block in held)
        if step:
            yield tuple(cut(block, 0, step) for block in held)
        held = [
            cut(block, step, size_of(block)) if size_of(block) > step else next(column, None)
            for block, column in zip(held, columns, strict=True)
        ]


def permuted(
    texts: Iterator[Any], order: NDArray[np.integer[Any]], nodes: int, folder: Path
) -> Iterator[Strings]:
    """Yield the texts of some rows in another order, through temporary files.

    Beside 8 bytes a node, memory holds `SORTING_BYTES` of them and a few pieces.

    `texts`: those of all nodes, in store order. `folder`: where temporary files go, as large as the texts
    twice.

    >>> from pathlib import Path
    >>> names = Strings.of(np.frombuffer(b"abbccc", np.uint8), np.array([1, 2, 3], np.uint32))
    >>> [text_of(block)[0].tobytes() for block in permuted(iter([names]), np.array([2, 0]), 3, Path("."))]
    [b'ccca']
    """
    from oocpr.ingest.nodes.strings import StringFile, permute_strings, take_strings
    from oocpr.ingest.spill.files import SpillDir

    places = np.full(nodes, _NONE)
    places[order] = np.arange(order.size, dtype=np.uint32)
    with SpillDir(folder) as workspace:
        wanted, first = StringFile(workspace), 0
        for block in texts:
            rows = np.flatnonzero(places[first : first + block.starts.size] != _NONE)
            first += block.starts.size
            lengths = (block.ends - block.starts).astype(np.uint32)
            wanted.append(take_strings(block.text, block.starts, lengths, rows), lengths[rows])
        for piece in permute_strings(wanted, places[places != _NONE], workspace, SORTING_BYTES):
            yield Strings.of(*piece)


def to_arrow(block: Block) -> pa.Array:
    """Make an array of Arrow of a block.

    >>> to_arrow(Strings.of(np.frombuffer(b"abb", np.uint8), np.array([1, 2], np.uint32))).to_pylist()
    ['a', 'bb']
    """
    import pyarrow as pa

    if not isinstance(block, Strings):
        return arrow_array(block)
    text, lengths = text_of(block)
    offsets = np.zeros(lengths.size + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.StringArray.from_buffers(lengths.size, pa.py_buffer(offsets), pa.py_buffer(text))


def from_arrow(array: pa.Array, origin: str, name: str) -> Block:
    """Take whole numbers as int64, or texts, from an array of Arrow; texts that lack are empty.

    Raises InputError if a number lacks, or is none of 64 bits.
    """
    import pyarrow as pa

    if pa.types.is_integer(array.type):
        if array.null_count:
            raise InputError(f"{origin}: the column {name!r} has gaps.", "Give each row a value.")
        try:
            return arrow_numbers(array.cast(pa.int64()))
        except pa.ArrowInvalid as error:
            raise InputError(f"{origin}: {error}.", "Numbers must be below 2^63.") from error
    array = array.cast(pa.large_string())
    if array.null_count:
        array = array.fill_null("")
    return arrow_strings(array)
