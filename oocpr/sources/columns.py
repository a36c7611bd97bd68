"""Blocks out of columns of whole numbers, wherever these are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.errors import InputError
from oocpr.sources.block import MAX_NODES, EdgeBlock

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LARGEST = 2**63 - 1


def two_ends(shape: tuple[int, ...], title: str) -> bool:
    """Tell whether an array of links has its ends as rows, shape (2, m), rather than as columns, (m, 2).

    Raises
    ------
    InputError
        Another shape, or (2, 2), which could be either.

    Examples
    --------
    >>> two_ends((2, 9), "the array"), two_ends((9, 2), "the array")
    (True, False)
    """
    if len(shape) != 2 or 2 not in shape:
        raise InputError(
            f"{title} has the shape {shape}.", "Give an array of shape (2, links) or (links, 2)."
        )
    if shape == (2, 2):
        raise InputError(
            f"{title} has the shape (2, 2), which could be read in two ways.",
            "Give two arrays of one dimension: from and to.",
        )
    return shape[0] == 2


def id_block(
    src: NDArray[Any],
    dst: NDArray[Any],
    nodes: int | None,
    title: str,
    first: int,
    weight: NDArray[np.float64] | None = None,
) -> EdgeBlock:
    """Make a block of two columns of ids.

    Parameters
    ----------
    src, dst
        Integers of any width, shape (k,).
    nodes
        Ids go from 0 to `nodes` - 1; None where they may be any of 64 bits with a sign.
    title
        What holds the columns, for messages.
    first
        Number of the first edge there, counted from 0.
    weight
        As for `EdgeBlock`.

    Returns
    -------
    EdgeBlock
        Of uint32 where all ids fit, else of int64.

    Raises
    ------
    InputError
        Where an id cannot be; names its place.

    Examples
    --------
    >>> id_block(np.array([1, 2]), np.array([3, 4], np.uint64), None, "the arrays", 0).dst.dtype
    dtype('uint32')
    >>> id_block(np.array([-1, 2]), np.array([3, 4]), None, "the arrays", 0).dst.dtype
    dtype('int64')
    """
    low, high = (0, nodes - 1) if nodes is not None else (-_LARGEST - 1, _LARGEST)
    least = min(0 if ids.dtype.kind == "u" else int(ids.min(initial=0)) for ids in (src, dst))
    most = max(int(src.max(initial=0)), int(dst.max(initial=0)))
    if least < low or most > high:
        for ids in (src, dst):
            wrong = np.flatnonzero((ids < low) | (ids > high))
            if wrong.size:
                raise InputError(
                    f"{title}: the id {ids[wrong[0]]} at place {first + int(wrong[0]):,} cannot be.",
                    f"Give each node an id from {low:,} to {high:,}.",
                )
    kind: type[np.uint32 | np.int64] = np.uint32 if least >= 0 and most < MAX_NODES else np.int64
    return EdgeBlock(src.astype(kind, copy=False), dst.astype(kind, copy=False), weight)
