"""Names of nodes (labels, ids of the source file, or row numbers), and the rows of nodes that are named.

Names in the order of the graph are recognized by comparing the two, block by block. From the first that
differs on, names are looked up in batches: as many as memory holds, and all names of the graph are read once
for each batch. So memory goes to the names that are looked up, mostly few, and no temporary file is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from oocpr.errors import InputError
from oocpr.ingest.budget import SLACK_BYTES, require
from oocpr.sources.block import Strings, arrow_array, arrow_numbers, arrow_strings
from oocpr.system import resident_after_trim, spans, worked_ahead

if TYPE_CHECKING:
    import pyarrow as pa

    from oocpr.ingest.nodes.hashing import Fingerprints
    from oocpr.store.graph import GraphStore

    Block = NDArray[Any] | Strings
    Entries = tuple[Block, NDArray[np.float64]]
    Found = tuple[Block, NDArray[np.int64], NDArray[np.float64]]

Name = int | str

MAX_BLOCK_ROWS = 1 << 18
"""Most rows of a block of numbers."""

SORTING_BYTES = 1 << 24
"""Bytes of texts that are sorted at once."""

UNKNOWN = -1
"""Row of a name that no node of the graph has."""

_NONE = np.uint32(0xFFFFFFFF)

_NAME_BYTES = 112
"""A name of a batch: where it lies and its value, 24; two words of a fingerprint, 16; its place as words are
sorted, 20; its row, 8; and what Arrow and allocators hold beside. Its text is counted apart."""

_ENDS = np.int64((1 << 20) - 1)
"""The last bits of words, by which those names of the graph are found that may be among few."""

_FEW = 1 << 16
"""Names of which that leaves one in sixteen; for more of them the names of the graph are sorted."""

_MIN_BATCH = 1 << 22

_SPARE_BYTES = 2 * SLACK_BYTES + (6 << 20)
"""What a batch leaves free: a share for what is here, one for the pieces of both files that are read, and
what allocators keep of the batch before. Without the last, a look-up of 20 M names passed 512 MiB by one."""


class Names(Protocol):
    """The names of a graph's nodes, in store order."""

    textual: bool
    """Whether the names are strings; else they are integers."""

    def take(self, rows: NDArray[np.integer[Any]]) -> Sequence[Name]:
        """Names of these rows, Python ints or strings, in the order asked for."""
        ...

    def blocks(self, nodes: int) -> Iterator[Block]:
        """Yield the names of all nodes in order, int64 or texts, in bounded blocks."""
        ...


class RowNames:
    """Nodes that are their own row numbers."""

    textual = False

    def take(self, rows: NDArray[np.integer[Any]]) -> Sequence[Name]:
        """Give the rows themselves."""
        numbers: list[int] = rows.tolist()
        return numbers

    def blocks(self, nodes: int) -> Iterator[Block]:
        """Yield ranges of numbers."""
        return (np.arange(first, stop) for first, stop in spans(nodes, MAX_BLOCK_ROWS))


class ListedNames:
    """Names held in memory: integers, shape (n,), or a sequence of n strings."""

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
        """Yield the names as they are."""
        if isinstance(self._names, np.ndarray):
            for first, stop in spans(len(self._names), MAX_BLOCK_ROWS):
                yield self._names[first:stop].astype(np.int64)
        else:
            from oocpr.store.node_data import text_pieces

            yield from (Strings.of(*piece) for piece in text_pieces(self._names))


@dataclass
class FileNames:
    """Names that stay in a store or a file; `pieces` are ids, or bytes of texts and their lengths."""

    textual: bool
    read: Callable[[NDArray[np.integer[Any]]], Sequence[Name]]
    pieces: Callable[[int], Iterable[Any]]

    def take(self, rows: NDArray[np.integer[Any]]) -> Sequence[Name]:
        """Read the names of the rows."""
        return self.read(rows)

    def blocks(self, nodes: int) -> Iterator[Block]:
        """Read all names."""
        return (Strings.of(*one) if isinstance(one, tuple) else one for one in self.pieces(nodes))


def file_names(store: GraphStore) -> FileNames:
    """Labels, else ids, as they are read from a store."""
    if store.has_labels:
        return FileNames(True, lambda rows: store.labels(rows) or [], partial(store.label_pieces, 0))
    return FileNames(
        False,
        lambda rows: store.take_ids(rows).tolist(),
        lambda nodes: worked_ahead(store.ids, spans(nodes, MAX_BLOCK_ROWS)),
    )


def names_of(store: GraphStore) -> Names:
    """Names by which the source knew the nodes: labels, else the ids of the source, else row numbers."""
    return file_names(store) if store.has_labels or store.has_ids else RowNames()


def in_memory(names: Names, nodes: int) -> Names:
    """Give names that need no file."""
    if isinstance(names, RowNames | ListedNames):
        return names
    blocks = list(names.blocks(nodes))
    if not names.textual:
        return ListedNames(np.concatenate([np.empty(0, np.int64), *blocks]))
    return ListedNames([text for block in blocks for text in cast("Strings", block)])


def block_of(names: Sequence[Name], textual: bool) -> Block:
    """Make a block of names of one kind."""
    if textual:
        coded = [str(name).encode(errors="surrogatepass") for name in names]
        text = np.frombuffer(b"".join(coded), np.uint8)
        return Strings.of(text, np.array([len(name) for name in coded], np.uint32))
    return np.array([int(name) for name in names], np.int64)


def valid_names(names: Iterable[Any], textual: bool) -> NDArray[np.bool]:
    """Tell which names can be those of nodes that have labels, or ids; bool, shape (names,)."""

    def is_valid(name: object) -> bool:
        if textual:
            return isinstance(name, str)
        if isinstance(name, float | np.floating):
            return bool(name.is_integer() and -(2.0**63) <= name < 2.0**63)
        return isinstance(name, int | np.integer) and -(2**63) <= int(name) < 2**63

    return np.array([is_valid(name) for name in names], bool)


def cut(block: Block, first: int, stop: int) -> Block:
    """Rows `first` to `stop` - 1 of a block, which are not copied."""
    rows = slice(first, stop)
    return block.take(rows) if isinstance(block, Strings) else block[rows]


def equal(one: Block, other: Block) -> bool:
    """Whether two blocks of the same size hold the same names."""
    if isinstance(one, Strings) and isinstance(other, Strings):
        same = np.array_equal(one.ends - one.starts, other.ends - other.starts)
        return same and np.array_equal(text_of(one)[0], text_of(other)[0])
    return not isinstance(one, Strings) and not isinstance(other, Strings) and np.array_equal(one, other)


def text_of(block: Block) -> tuple[NDArray[np.uint8], NDArray[np.uint32]]:
    """Texts of a block, which lie end to end, and the length of each."""
    assert isinstance(block, Strings)
    lengths = (block.ends - block.starts).astype(np.uint32)
    return (block.text[block.starts[0] : block.ends[-1]] if lengths.size else block.text[:0]), lengths


def name_at(block: Block, place: int) -> Name:
    """Name that stands at some place of a block."""
    if not isinstance(block, Strings):
        return int(block[place])
    return block.text[block.starts[place] : block.ends[place]].tobytes().decode(errors="replace")


def zip_blocks(*columns: Iterator[Any]) -> Iterator[tuple[Any, ...]]:
    """Cut the blocks of columns so that they have the same rows; ends with the shortest column.

    >>> for one, other in zip_blocks(iter([np.arange(3)]), iter([np.arange(1), np.arange(1, 3)])):
    ...     print(one, other)
    [0] [0]
    [1 2] [1 2]
    """
    held: list[Any] = [next(column, None) for column in columns]
    while all(block is not None for block in held):
        step = min(block.size for block in held)
        if step:
            yield tuple(cut(block, 0, step) for block in held)
        held = [
            cut(block, step, block.size) if block.size > step else next(column, None)
            for block, column in zip(held, columns, strict=True)
        ]


def permute_names(
    texts: Iterator[Any], order: NDArray[np.integer[Any]], nodes: int, folder: Path
) -> Iterator[Strings]:
    """Yield the texts of rows `order`, out of those of all nodes, through temporary files in `folder`.

    The files take twice the bytes of the texts; memory 8 bytes per node, `SORTING_BYTES` and a few pieces.
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
    """Make an array of Arrow of a block."""
    import pyarrow as pa

    if not isinstance(block, Strings):
        return arrow_array(block)
    text, lengths = text_of(block)
    offsets = np.zeros(lengths.size + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.StringArray.from_buffers(lengths.size, pa.py_buffer(offsets), pa.py_buffer(text))


def from_arrow(array: pa.Array, origin: str, name: str) -> Block:
    """Take whole numbers as int64, or texts, from an array of Arrow; missing texts are empty.

    Raises InputError if a number is missing or not of 64 bits.
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


def in_same_order(names: Names, nodes: int, theirs: Iterable[Block]) -> bool:
    """Tell whether blocks of names are those of all nodes, in the order of the rows."""
    done = 0
    for _, rows, _ in _in_order(names, nodes, ((block, np.empty(block.size)) for block in theirs)):
        if rows is None:
            return False
        done += rows.size
    return done == nodes


def match_rows(
    names: Names, nodes: int, theirs: Iterable[Entries], memory: int | None = None
) -> Iterator[Found]:
    """Yield what `find_rows` does, but take names in the order of the rows without a search.

    So names that several nodes share are told apart as far as the order is the same.
    """
    entries = _in_order(names, nodes, theirs)
    for block, rows, values in entries:
        if rows is None:
            rest = ((their, of_them) for their, _, of_them in entries)
            yield from find_rows(names, nodes, chain([(block, values)], rest), memory)
            return
        yield block, rows, values


def place_values(
    nodes: int, found: Iterable[tuple[NDArray[np.int64], NDArray[np.float64]]]
) -> tuple[NDArray[np.float64], int]:
    """Values of rows in the order of the rows, NaN for others, and how many have a row."""
    values, placed = np.full(nodes, np.nan), 0
    for rows, some in found:
        known = rows >= 0
        values[rows[known]] = some[known]
        placed += int(known.sum())
    return values, placed


def find_rows(
    names: Names, nodes: int, theirs: Iterable[Entries], memory: int | None = None
) -> Iterator[Found]:
    """Yield blocks of names and values, in order, with the row of each name or `UNKNOWN`.

    Raises DoesNotFitError if `memory`, the most bytes of the process, is too small; InputError if several
    nodes have a name that is looked up.
    """
    batch: list[Entries] = []
    size = 0
    if memory is not None:
        needed = resident_after_trim() + _SPARE_BYTES + _MIN_BATCH
        require(needed, memory, f"Looking up {nodes:,} nodes by their names")
    budget = _budget(memory)
    for block, values in theirs:
        batch.append((block, values))
        size += _NAME_BYTES * values.size + (text_of(block)[0].size if isinstance(block, Strings) else 0)
        if size >= budget:
            yield from _look_up(names, nodes, batch)
            batch, size = [], 0
            budget = _budget(memory)
    if batch:
        yield from _look_up(names, nodes, batch)


def _in_order(
    names: Names, nodes: int, theirs: Iterable[Entries]
) -> Iterator[tuple[Block, NDArray[np.int64] | None, NDArray[np.float64]]]:
    """Yield entries with their rows as long as names are those of the rows in order, then with None."""
    ours, held, first, same = names.blocks(nodes), None, 0, True
    for block, values in theirs:
        done = 0
        while same and done < values.size:
            if held is None or not held.size:
                held = next(ours, None)
            step = 0 if held is None else min(values.size - done, held.size)
            part = cut(block, done, done + step)
            same = held is not None and equal(part, cut(held, 0, step))
            if held is None or not same:
                break
            yield part, np.arange(first, first + step), values[done : done + step]
            held = cut(held, step, held.size)
            done, first = done + step, first + step
        if done < values.size:
            yield cut(block, done, values.size), None, values[done:]


def _budget(memory: int | None) -> int:
    """Bytes that the next batch may take."""
    if memory is None:
        return 1 << 62
    return max(_MIN_BATCH, memory - resident_after_trim() - _SPARE_BYTES)


def _look_up(names: Names, nodes: int, batch: list[Entries]) -> Iterator[Found]:
    fits = [(block, values) for block, values in batch if isinstance(block, Strings) is names.textual]
    found = iter(_rows_of(names, nodes, [block for block, _ in fits]))
    for block, values in batch:
        if isinstance(block, Strings) is names.textual:
            yield block, next(found), values
        else:
            yield block, np.full(values.size, UNKNOWN), values


def _rows_of(names: Names, nodes: int, blocks: list[Block]) -> Iterator[NDArray[np.int64]]:
    """Find the rows of all names of blocks of one kind, by one reading of the names of the graph."""
    from oocpr.ingest.nodes.hashing import Fingerprints

    cuts = np.cumsum([0, *(block.size for block in blocks)])
    if isinstance(names, RowNames):
        for ids in blocks:
            assert not isinstance(ids, Strings)
            yield np.where((ids >= 0) & (ids < nodes), ids, UNKNOWN)
        return
    prints = Fingerprints()
    words, checks = (np.empty(int(cuts[-1]), np.uint64) for _ in range(2))
    for block, lo, hi in zip(blocks, cuts[:-1], cuts[1:], strict=True):
        words[lo:hi], checks[lo:hi] = _words(block, prints)
    order = np.argsort(words, kind="stable").astype(np.uint32)
    words.sort()
    rows = np.full(words.size, UNKNOWN)
    few = words.size <= _FEW
    may_be = np.zeros(int(_ENDS) + 1, bool)
    if few:
        may_be[words.view(np.int64) & _ENDS] = True
    first = 0
    for block in names.blocks(nodes) if words.size else ():
        ours, other = _words(block, prints)
        # Of many names, searches for neighbours end near each other in this order.
        left = np.flatnonzero(may_be[ours.view(np.int64) & _ENDS]) if few else np.argsort(ours)
        places = np.searchsorted(words, ours[left])
        # More than once only for names that come several times, or of which the first words are equal.
        while left.size:
            there = places < words.size
            left, places = left[there], places[there]
            same = words[places] == ours[left]
            left, places = left[same], places[same]
            known = checks[order[places]] == other[left]
            wanted, theirs = order[places[known]], left[known]
            taken = rows[wanted] != UNKNOWN
            rows[wanted] = first + theirs
            # Two nodes of one block may have the same name as well.
            twice = theirs[taken | (rows[wanted] != first + theirs)]
            if twice.size:
                raise InputError(
                    f"{name_at(block, int(twice[0]))!r} is the name of several nodes of the graph.",
                    "Names must tell nodes apart: give the graph other labels, or a vector of all nodes.",
                )
            places = places + 1
        first += ours.size
    yield from (rows[lo:hi] for lo, hi in pairwise(cuts))


def _words(block: Block, prints: Fingerprints) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Two words of each name, together different for different names; those of a number are itself and 0."""
    if not isinstance(block, Strings):
        return block.astype(np.int64, copy=False).view(np.uint64), np.zeros(block.size, np.uint64)
    words, checks = (np.empty(block.starts.size, np.uint64) for _ in range(2))
    prints.of(block, words, checks)
    return words, checks
