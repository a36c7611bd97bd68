"""Rows of named nodes, found within a memory budget.

Names in the order of the graph are recognized by comparing the two, block by block. From the first that
differs on, names are looked up in batches: as many as memory holds, and all names of the graph are read once
for each batch. So memory goes to the names that are looked up, mostly few, and no temporary file is needed.
"""

from __future__ import annotations

from itertools import chain, pairwise
from typing import TYPE_CHECKING

import numpy as np

from oocpr.errors import InputError
from oocpr.ingest.budget import SLACK_BYTES, require
from oocpr.ingest.nodes.hashing import Fingerprints
from oocpr.result.names import RowNames, cut, equal, name_at, size_of, text_of
from oocpr.sources.block import Strings
from oocpr.system import resident_after_trim

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from oocpr.result.names import Block, Names

    Entries = tuple[Block, NDArray[np.float64]]
    Found = tuple[Block, NDArray[np.int64], NDArray[np.float64]]

UNKNOWN = -1

_NAME_BYTES = 112
"""A name of a batch: where it lies and its value, 24; two words of a fingerprint, 16; its place as words are
sorted, 20; its row, 8; and what Arrow and allocators hold beside. Its text is counted apart."""

_LEAST_BATCH = 1 << 22


def in_same_order(names: Names, nodes: int, theirs: Iterable[Block]) -> bool:
    """Tell whether blocks of names are those of all nodes, in the order of the rows."""
    done = 0
    for _, rows, _ in _in_order(names, nodes, ((block, np.empty(size_of(block))) for block in theirs)):
        if rows is None:
            return False
        done += rows.size
    return done == nodes


def match_rows(
    names: Names, nodes: int, theirs: Iterable[Entries], memory: int | None = None
) -> Iterator[Found]:
    """Yield what `find_rows` does, but take names that stand in the order of the rows without a search.

    So names of several nodes are told apart as far as the order is the same.

    >>> from oocpr.result.names import ListedNames
    >>> theirs = [(np.array([7, 5, 4]), np.array([0.5, 0.2, 0.3]))]
    >>> [rows.tolist() for _, rows, _ in match_rows(ListedNames(np.array([7, 9, 5])), 3, theirs)]
    [[0, 2, -1]]
    """
    entries = _in_order(names, nodes, theirs)
    for block, rows, values in entries:
        if rows is None:
            rest = ((their, of_them) for their, _, of_them in entries)
            yield from find_rows(names, nodes, chain([(block, values)], rest), memory)
            return
        yield block, rows, values


def find_rows(
    names: Names, nodes: int, theirs: Iterable[Entries], memory: int | None = None
) -> Iterator[Found]:
    """Yield blocks of names and values with the row of each name, `UNKNOWN` if the graph has no such node.

    Blocks come in the order of `theirs`. `memory` is the most bytes that the process may hold.

    Raises DoesNotFitError if `memory` is too small; InputError if several nodes have a name that is looked
    up.
    """
    batch: list[Entries] = []
    size = 0
    if memory is not None:
        least = resident_after_trim() + 2 * SLACK_BYTES + _LEAST_BATCH
        require(least, memory, f"Looking up {nodes:,} nodes by their names")
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
            if held is None or not size_of(held):
                held = next(ours, None)
            step = 0 if held is None else min(values.size - done, size_of(held))
            part = cut(block, done, done + step)
            same = held is not None and equal(part, cut(held, 0, step))
            if held is None or not same:
                break
            yield part, np.arange(first, first + step), values[done : done + step]
            held = cut(held, step, size_of(held))
            done, first = done + step, first + step
        if done < values.size:
            yield cut(block, done, values.size), None, values[done:]


def _budget(memory: int | None) -> int:
    """Bytes that the next batch may take: allocators do not give everything back that the last one took."""
    if memory is None:
        return 1 << 62
    # Once for what is here, once for the pieces of both files that are read.
    return max(_LEAST_BATCH, memory - resident_after_trim() - 2 * SLACK_BYTES)


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
    cuts = np.cumsum([0, *map(size_of, blocks)])
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
    first = 0
    for block in names.blocks(nodes) if words.size else ():
        ours, other = _words(block, prints)
        # In this order, searches for neighbours end near each other.
        left = np.argsort(ours)
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
                    "Names must tell nodes apart: import the graph with other labels, or use ids.",
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
