"""Passes over records for every part of a list of words that fits in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.ingest.nodes.block_dictionary import WORD_BYTES
from oocpr.ingest.nodes.hash_table import NOT_FOUND, HashIndex, slots_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from oocpr.ingest.nodes.block_dictionary import BlockDictionary
    from oocpr.ingest.spill.files import SpillFile

CHUNK = 1 << 16
_NAME_BYTES = 12
"""Beside its place, a name in memory has a second word and the number that it gets."""


class Parts:
    """A list of different words, in parts that fit in memory.

    Parameters
    ----------
    known
        The list, ascending, uint64.
    nodes
        How many words it has.
    records
        Whose words they are.
    space
        Bytes that a part may take.

    Attributes
    ----------
    largest, starts
        Words of a part, the last one excepted, and the number of the first word of each.
    """

    def __init__(self, known: SpillFile, nodes: int, records: BlockDictionary, space: int) -> None:
        per_word = HashIndex.BYTES_PER_WORD + (_NAME_BYTES if records.named else 0)
        self._known = known
        self._records = records.count
        self._key = records.key
        self._nodes = nodes
        self.largest = min(nodes, max(1, space // per_word))
        self.starts = range(0, nodes, self.largest)

    def __iter__(self) -> Iterator[tuple[int, HashIndex]]:
        """Yield the number of the first word of each part, and where its words are."""
        words, slots = np.empty(self.largest, np.uint64), np.empty(slots_for(self.largest), np.uint32)
        for first in self.starts:
            here = words[: self._nodes - first]
            self._known.read(WORD_BYTES * first, here)
            yield first, HashIndex(here, self._key, slots)

    def progress(self, first: int, done: int) -> tuple[int, int]:
        """Records passed by in all, and to pass by, when the part of word `first` has passed `done`."""
        return first // self.largest * self._records + done, len(self.starts) * self._records


def chunks(file: SpillFile, count: int, dtype: np.dtype[Any]) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield the entries of a file, some at a time, with the number of the first of them."""
    for first in range(0, count, CHUNK):
        entries = np.empty(min(CHUNK, count - first), dtype)
        file.read(first * dtype.itemsize, entries)
        yield first, entries


def write_found(numbers: SpillFile, start: int, first: int, found: NDArray[np.uint32]) -> None:
    """Write numbers `first` and on for records `start` and on, those excepted that were not found."""
    here = found != NOT_FOUND
    found += np.uint32(first)
    if not here.all():
        old = np.empty(found.size, np.uint32)
        if first:
            numbers.read(4 * start, old)
        found[~here] = old[~here]
    numbers.write(4 * start, found)
