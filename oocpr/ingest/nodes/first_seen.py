"""Names in the order in which a source meets them, found part by part of the list of their words."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import numba
import numpy as np

from oocpr.ingest.nodes.block_dictionary import WORD_BYTES
from oocpr.ingest.nodes.dictionary_parts import CHUNK, chunks, write_found
from oocpr.ingest.nodes.hash_table import NOT_FOUND
from oocpr.ingest.nodes.string_file import StringFile

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from oocpr.ingest.nodes.block_dictionary import BlockDictionary
    from oocpr.ingest.nodes.dictionary_parts import Parts
    from oocpr.ingest.spill.files import SpillDir, SpillFile


def number_by_first_seen(
    records: BlockDictionary,
    parts: Parts,
    numbers: SpillFile,
    firsts: SpillFile,
    told: Callable[[int, int], None],
) -> bool:
    """Number names as they first occur, part by part; False where two names have the same word.

    The record that met number k first is written to `firsts`, as number k.
    """
    assert records.checks is not None
    checks_of, arrow_numbers = np.empty(parts.largest, np.uint64), np.empty(parts.largest, np.uint32)
    for first, places in parts:
        arrow_numbers[:] = NOT_FOUND
        met = 0
        for start, words in chunks(records.words, records.count, np.dtype(np.uint64)):
            checks = np.empty(words.size, np.uint64)
            records.checks.read(WORD_BYTES * start, checks)
            found, fresh = places.of(words), np.empty(words.size, np.uint64)
            count = _first_seen(found, checks, start, checks_of, arrow_numbers, met, fresh)
            if count < 0:
                return False
            firsts.write(WORD_BYTES * (first + met), fresh[:count])
            met += count
            write_found(numbers, start, first, found)
            told(*parts.progress(first, start + words.size))
    return True


@numba.njit(
    "int64(uint32[::1], uint64[::1], int64, uint64[::1], uint32[::1], int64, uint64[::1])",
    cache=True,
    nogil=True,
)
def _first_seen(found, checks, start, checks_of, arrow_numbers, met, fresh):  # type: ignore[no-untyped-def]
    """Replace places by numbers in the order of meeting; returns how many are new, or -1."""
    count = 0
    for i in range(found.size):
        place = found[i]
        if place == NOT_FOUND:
            continue
        if arrow_numbers[place] == NOT_FOUND:
            arrow_numbers[place] = met + count
            checks_of[place] = checks[i]
            fresh[count] = start + i
            count += 1
        elif checks_of[place] != checks[i]:
            return -1
        found[i] = arrow_numbers[place]
    return count


def redraw_words(records: BlockDictionary) -> None:
    """Make new words out of both words of each name."""
    assert records.checks is not None
    one, two = (np.uint64(secrets.randbits(64) | 1) for _ in range(2))
    for first, words in chunks(records.words, records.count, np.dtype(np.uint64)):
        checks = np.empty(words.size, np.uint64)
        records.checks.read(WORD_BYTES * first, checks)
        mixed = words * one ^ checks * two
        records.words.write(WORD_BYTES * first, mixed ^ (mixed >> np.uint64(32)))


class _Firsts:
    """Ascending record numbers of one part, taken from the front."""

    def __init__(self, file: SpillFile, start: int, stop: int) -> None:
        self._file = file
        self._next = start
        self._stop = stop
        self._held = np.empty(0, np.uint64)
        self._first = start

    def below(self, record: int) -> tuple[int, NDArray[np.int64]]:
        """Take the records below `record`, and the place in the file of the first of them."""
        while self._next < self._stop and (not self._held.size or self._held[-1] < record):
            more = np.empty(min(CHUNK, self._stop - self._next), np.uint64)
            self._file.read(WORD_BYTES * self._next, more)
            self._held = np.concatenate([self._held, more])
            self._next += more.size
        taken = self._held[: np.searchsorted(self._held, np.uint64(record))]
        first = self._first
        self._first += taken.size
        self._held = self._held[taken.size :]
        return first, taken.astype(np.int64)


def names_in_source_order(
    all_names: StringFile, firsts: SpillFile, starts: range, nodes: int, given: int, workspace: SpillDir
) -> tuple[StringFile, NDArray[np.uint32] | None, tuple[int, int] | None]:
    """Keep the names that were met first, in the order of the source.

    Returns
    -------
    names
        One name a node.
    rows
        Number of each node by its number in the parts; None where there is one part only.
    stranger
        Number and record of the first node whose name was not `given`.
    """
    names = StringFile(workspace, "nodes")
    parts = [_Firsts(firsts, start, min(nodes, start + starts.step)) for start in starts]
    rows = np.empty(nodes, np.uint32) if len(parts) > 1 else None
    stranger = None
    record = 0
    for text, lengths in all_names.pieces():
        stop = record + lengths.size
        taken = [part.below(stop) for part in parts]
        fresh = np.zeros(lengths.size, np.bool_)
        for _, met in taken:
            fresh[met - record] = True
        if rows is not None:
            row = (names.count + np.cumsum(fresh) - 1).astype(np.uint32)
            for first, met in taken:
                rows[first : first + met.size] = row[met - record]
        if stranger is None and stop > given and fresh[max(0, given - record) :].any():
            place = int(np.flatnonzero(fresh[max(0, given - record) :])[0]) + max(0, given - record)
            stranger = names.count + int(fresh[:place].sum()), record + place
        names.append(text[np.repeat(fresh, lengths)], lengths[fresh])
        record = stop
    return names, rows, stranger
