"""Ids and names that are no row numbers, as the blocks of a source have met them.

In each block, ids and names are numbered as they first occur, and the block's edges are kept with these
numbers. What each number stands for is a record; records of all blocks lie one after the other. Ids are
kept as 64-bit words whose order is that of the ids, names as fingerprints with their text.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import numba
import numpy as np

from oocpr.ingest.nodes.fingerprint import Fingerprints
from oocpr.ingest.nodes.hash_table import factorize
from oocpr.ingest.nodes.string_file import INT64S, TEXT, StringFile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from oocpr.ingest.spill.files import SpillDir
    from oocpr.sources.block import Strings

WORD_BYTES = 8

_SIGN = np.uint64(2**63)


def ids_to_words(ids: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Turn ids into words of the same order.

    Examples
    --------
    >>> ids_to_words(np.array([-1, 0])).tolist() == [2**63 - 1, 2**63]
    True
    """
    return ids.view(np.uint64) ^ _SIGN


def words_to_ids(words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Turn words back into ids.

    Examples
    --------
    >>> words_to_ids(ids_to_words(np.array([-7, 5]))).tolist()
    [-7, 5]
    """
    return (words ^ _SIGN).view(np.int64)


@numba.njit((TEXT, TEXT, numba.boolean[::1], INT64S, INT64S, numba.uint8[::1]), cache=True, nogil=True)
def _copy(one, two, of_two, starts, ends, out):  # type: ignore[no-untyped-def]
    at = 0
    for k in range(starts.size):
        for i in range(starts[k], ends[k]):
            out[at] = two[i] if of_two[k] else one[i]
            at += 1


class BlockDictionary:
    """What blocks have met, on disk.

    Parameters
    ----------
    workspace
        Gives the temporary files.
    named
        Whether nodes have names; ids otherwise.
    count, name_bytes, points
        Records that are there already, bytes of their names, and what their fingerprints depend on.

    Attributes
    ----------
    count
        Records so far.
    words
        A word of each record, uint64.
    checks, names
        Of named nodes a second word, and the text; else None.
    key
        A number that nobody knows, for tables of the words.
    points
        What fingerprints depend on.

    Examples
    --------
    >>> from pathlib import Path
    >>> from oocpr.ingest.spill.files import SpillDir
    >>> with SpillDir(Path(".")) as workspace:
    ...     records = BlockDictionary(workspace, named=False)
    ...     records.number_ids(np.array([-5, 9, -5, 2**40])).tolist(), records.count
    ([0, 1, 0, 2], 3)
    """

    def __init__(
        self,
        workspace: SpillDir,
        *,
        named: bool,
        count: int = 0,
        name_bytes: int = 0,
        points: Sequence[int] | None = None,
    ) -> None:
        self.count = count
        self.key = secrets.randbits(64)
        self.words = workspace.file(name="words")
        self.checks = workspace.file(name="checks") if named else None
        self.names = StringFile(workspace, "names", count, name_bytes) if named else None
        self._fingerprints = Fingerprints(points)
        self.points = self._fingerprints.points

    @property
    def named(self) -> bool:
        """Whether nodes have names."""
        return self.names is not None

    def number_ids(self, ids: NDArray[np.int64]) -> NDArray[np.uint32]:
        """Number the ids of a block, adding a record for each different one; uint32, shape (k,)."""
        words = ids_to_words(ids)
        numbers, firsts = factorize(words, None, self.key)
        self._append(words[firsts], None)
        return numbers

    def number_names(self, src: Strings, dst: Strings | None = None) -> NDArray[np.uint32]:
        """Number the names of a block, adding a record for each different one.

        Parameters
        ----------
        src, dst
            Names of both ends of its edges, of the same length; or one list of names alone.

        Returns
        -------
        uint32, shape (2 * edges,) or (names,)
            Numbers of both ends of each edge in turn.
        """
        assert self.checks is not None
        assert self.names is not None
        sides = [src] if dst is None else [src, dst]
        words, checks = (np.empty(len(sides) * src.starts.size, np.uint64) for _ in range(2))
        for k, side in enumerate(sides):
            self._fingerprints.of(side, words[k :: len(sides)], checks[k :: len(sides)])
        numbers, firsts = factorize(words, checks, self.key)
        self._append(words[firsts], checks[firsts])

        places, of_two = firsts // len(sides), firsts % len(sides) == 1
        starts, ends = src.starts[places], src.ends[places]
        if dst is not None:
            starts = np.where(of_two, dst.starts[places], starts)
            ends = np.where(of_two, dst.ends[places], ends)
        text = np.empty(int((ends - starts).sum()), np.uint8)
        _copy(src.text, sides[-1].text, of_two, starts, ends, text)
        self.names.append(text, (ends - starts).astype(np.uint32))
        return numbers

    def _append(self, words: NDArray[np.uint64], checks: NDArray[np.uint64] | None) -> None:
        self.words.write(WORD_BYTES * self.count, words)
        if self.checks is not None and checks is not None:
            self.checks.write(WORD_BYTES * self.count, checks)
        self.count += words.size

    def close(self) -> None:
        """Give the disk space back."""
        for file in (self.words, self.checks, self.names):
            if file is not None:
                file.close()
