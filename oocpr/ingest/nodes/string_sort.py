"""Names sorted by their bytes: dealt to ranges that fit in memory, which are sorted one after another."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

import numpy as np

from oocpr.ingest.nodes.string_file import BUCKETS, PIECE_NAMES, NumberedStrings, take_strings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from oocpr.ingest.nodes.string_file import Piece
    from oocpr.ingest.spill.files import SpillDir

SORT_BYTES_PER_STRING = 128
"""What Python keeps for a string that is sorted, beside its bytes, which are there three times."""

_SPLITTERS_FROM = 1 << 12
"""Names of which those are taken that cut a list in parts."""


def external_argsort(keys: NumberedStrings, workspace: SpillDir, space: int) -> Iterator[NDArray[np.uint32]]:
    """Yield the numbers of keys as these are sorted by their bytes, equal ones as they come.

    Parameters
    ----------
    keys
        What to sort; closed as soon as it has been read.
    workspace
        Gives temporary files.
    space
        Bytes of memory that keys may take at once, beside a few pieces.

    Examples
    --------
    >>> from pathlib import Path
    >>> from oocpr.ingest.spill.files import SpillDir
    >>> with SpillDir(Path(".")) as workspace:
    ...     keys = NumberedStrings(workspace)
    ...     numbers = np.array([7, 5, 9, 8], np.uint32)
    ...     keys.add(np.frombuffer(b"bacb", np.uint8), np.ones(4, np.uint32), numbers)
    ...     np.concatenate(list(external_argsort(keys, workspace, 300)))
    array([5, 7, 8, 9], dtype=uint32)
    """
    if 3 * keys.size + SORT_BYTES_PER_STRING * keys.count <= space or keys.count < 2:
        strings, numbers = split_strings(keys.whole()), keys.numbers(0, keys.count)
        keys.close()
        yield numbers[sorted(range(len(strings)), key=strings.__getitem__)]
        return
    splitters = _splitters(keys)
    buckets = [NumberedStrings(workspace) for _ in range(len(splitters) + 1)]
    done = 0
    for text, lengths in keys.pieces():
        places = np.array([bisect_right(splitters, key) for key in split_strings((text, lengths))])
        numbers = keys.numbers(done, lengths.size)
        done += lengths.size
        starts = np.cumsum(lengths, dtype=np.int64) - lengths
        for place in np.unique(places):
            part = np.flatnonzero(places == place)
            buckets[place].add(take_strings(text, starts, lengths, part), lengths[part], numbers[part])
    keys.close()
    for low, bucket in zip([b"", *splitters], buckets, strict=True):
        if low + b"\0" in splitters:
            # All keys from this one to the next possible are equal.
            for first in range(0, bucket.count, PIECE_NAMES):
                yield bucket.numbers(first, min(PIECE_NAMES, bucket.count - first))
            bucket.close()
        else:
            yield from external_argsort(bucket, workspace, space)


def _splitters(keys: NumberedStrings) -> list[bytes]:
    """Choose different keys, ascending, that cut all of them in parts; or one that is alone in its part."""
    step = -(-keys.count // _SPLITTERS_FROM)
    some: list[bytes] = []
    done = 0
    for piece in keys.pieces():
        some += split_strings(piece)[-done % step :: step]
        done += piece[1].size
    some.sort()
    chosen = sorted({some[k * len(some) // BUCKETS] for k in range(1, BUCKETS)} - {some[0]})
    return chosen or [some[0], some[0] + b"\0"]


def split_strings(piece: Piece) -> list[bytes]:
    """Make an object of each name.

    Examples
    --------
    >>> split_strings((np.frombuffer(b"abb", np.uint8), np.array([1, 2], np.uint32)))
    [b'a', b'bb']
    """
    text, lengths = piece
    whole, ends = text.tobytes(), np.cumsum(lengths, dtype=np.int64).tolist()
    return [whole[start:end] for start, end in zip([0, *ends], ends, strict=False)]
