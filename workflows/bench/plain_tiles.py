"""Tiles whose columns take four bytes each, in the same format: what streaming costs without a code."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from oocpr.store.codec.layout import (
    BLOCK,
    GROUP,
    Counts,
    Stream,
    allocate_tile,
    blocks_of,
    parse_tile,
    word_rows,
)
from oocpr.store.codec.tiles import encode_tile

if TYPE_CHECKING:
    Encode = Callable[[NDArray[np.uint32], NDArray[np.integer]], "bytes | NDArray[np.uint8]"]


def plain_tile(columns: NDArray[np.uint32], lengths: NDArray[np.integer]) -> NDArray[np.uint8]:
    """Encode a tile without making its columns any smaller; their lengths are coded as always.

    Parameters
    ----------
    columns, lengths
        As for :func:`oocpr.store.codec.tiles.encode_tile`.

    Returns
    -------
    ndarray
        uint8, shape (bytes,): what any decoder of tiles takes.

    Examples
    --------
    >>> from oocpr.store.codec.tiles import decode_tile
    >>> columns = np.sort(np.random.default_rng(1).choice(9000, 3000, replace=False)).astype(np.uint32)
    >>> found, lengths = decode_tile(plain_tile(columns, np.array([1000, 0, 2000])))
    >>> found.tolist() == columns.tolist(), lengths.tolist()
    (True, [1000, 0, 2000])
    """
    count = columns.size
    coded = parse_tile(np.frombuffer(encode_tile(columns, lengths), np.uint8))
    groups, blocks = -(-count // GROUP), blocks_of(count)
    # A group of 32 values of 32 bits is a row of words, in the order of the values.
    words = np.zeros(GROUP * word_rows(32 * groups), np.uint32)
    words[:count] = columns
    directory = np.zeros((blocks + 1, 4), np.uint32)
    ends = np.minimum(BLOCK * np.arange(blocks + 1), count)
    directory[:, 0] = 32 * np.minimum(GROUP * np.arange(blocks + 1), groups)
    directory[1:, 3] = columns[ends[1:] - 1]
    stream = Stream(
        count,
        words,
        directory,
        np.zeros(0, np.uint32),
        np.zeros(0, np.uint16),
        np.full(groups, 32, np.uint8),
    )
    streams = [stream, coded.lengths]
    counts = [Counts(s.size, s.words.size // GROUP, s.wide.size, s.narrow.size) for s in streams]
    laid = allocate_tile(counts, coded.nonempty, lambda size: np.empty(size, np.uint8), runs=False)
    for to, given in zip(laid.streams, streams, strict=True):
        for part in Stream._fields[1:]:
            getattr(to, part)[...] = getattr(given, part)
    laid.ranks[:] = coded.ranks
    return laid.coded
