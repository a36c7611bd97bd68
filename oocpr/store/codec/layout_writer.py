"""Chunks laid out in memory: all sizes are known first, so that a stream may be packed where it belongs.

The layout itself is specified in :mod:`oocpr.store.format`; :mod:`oocpr.store.codec.layout` finds the parts
again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from oocpr.store.codec.layout import (
    FLAG_RUNS,
    FLAG_VERBATIM,
    GROUP,
    KIND_OFFSETS,
    KIND_TILE,
    OFFSETS_HEADER,
    TILE_HEADER,
    Counts,
    Stream,
    blocks_of,
    new_header,
    parts_of,
    sections,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray


class LaidTile(NamedTuple):
    """Bytes of a tile, and its parts in them, which are yet to be filled.

    Attributes
    ----------
    coded
        uint8, shape (bytes,).
    streams
        As `lay_tile` was asked for them.
    ranks
        uint32, non-empty segments before each block of lengths.
    """

    coded: NDArray[np.uint8]
    streams: list[Stream]
    ranks: NDArray[np.uint32]


def lay_tile(
    counts: Sequence[Counts], nonempty: int, space: Callable[[int], NDArray[np.uint8]], *, runs: bool
) -> LaidTile:
    """Lay out a tile whose sizes are known, so that its streams are packed where they belong.

    Parameters
    ----------
    counts
        Of gaps, starts and lengths, or of the columns themselves and lengths.
    nonempty
        Number of segments that are not empty.
    space
        Gives memory for so many bytes, at an address that is a multiple of four.
    runs
        The segments are ascending runs, not rows.
    """
    columns, lengths = counts[0], counts[-1]
    flags = (FLAG_RUNS if runs else 0) | (FLAG_VERBATIM if len(counts) == 2 else 0)
    header = new_header(TILE_HEADER, KIND_TILE | flags)
    header[2:5] = columns.values, lengths.values, nonempty
    for k, of in enumerate(counts):
        header[5 + 3 * k : 8 + 3 * k] = of[1:]
    coded, streams, others = _lay(header, counts, [("ranks", blocks_of(lengths.values) + 1)], space)
    return LaidTile(coded, streams, others["ranks"])


def write_tile(
    lengths: Stream,
    ranks: NDArray[np.uint32],
    starts: Stream | None,
    columns: Stream,
    nonempty: int,
    space: Callable[[int], NDArray[np.uint8]],
    *,
    runs: bool,
) -> NDArray[np.uint8]:
    """Join the parts of a tile.

    Parameters
    ----------
    lengths
        The packed lengths.
    ranks
        uint32, non-empty segments before each block of lengths.
    starts, columns
        The packed starts and gaps, or None and the packed columns.
    nonempty
        Number of segments that are not empty.
    space
        Gives memory for so many bytes.
    runs
        The segments are ascending runs, not rows.

    Returns
    -------
    ndarray
        The bytes of the chunk, in that memory: uint8, shape (bytes,).
    """
    streams = [columns, lengths] if starts is None else [columns, starts, lengths]
    laid = lay_tile([_counts(stream) for stream in streams], nonempty, space, runs=runs)
    for to, stream in zip(laid.streams, streams, strict=True):
        _copy(stream, to)
    laid.ranks[:] = ranks
    return laid.coded


def write_offsets(base: int, steps: Stream) -> bytes:
    """Join the parts of a chunk of offsets.

    Parameters
    ----------
    base
        First offset, a signed 64-bit number.
    steps
        The packed differences of neighbours, 0 first.

    Returns
    -------
    bytes
    """
    header = new_header(OFFSETS_HEADER, KIND_OFFSETS)
    header[2:6] = steps.size, steps.words.size // GROUP, steps.wide.size, steps.narrow.size
    header[6:8].view("<i8")[0] = base
    coded, (laid,), _ = _lay(header, [_counts(steps)], [], lambda size: np.empty(size, np.uint8))
    _copy(steps, laid)
    return coded.tobytes()


def _lay(
    header: NDArray[np.uint32],
    counts: Sequence[Counts],
    extras: Sequence[tuple[str, int]],
    space: Callable[[int], NDArray[np.uint8]],
) -> tuple[NDArray[np.uint8], list[Stream], dict[str, NDArray[Any]]]:
    """Begin a chunk: its bytes, with nothing but the header and the last padding, and its parts in them."""
    used = sum(items * np.dtype(dtype).itemsize for _, _, dtype, items in sections(counts, extras))
    used += header.nbytes
    out = space(used + -used % 4)
    out[: header.nbytes] = header.view(np.uint8)
    out[used:] = 0
    return (out, *parts_of(out, header.nbytes, counts, extras))


def _counts(stream: Stream) -> Counts:
    return Counts(stream.size, stream.words.size // GROUP, stream.wide.size, stream.narrow.size)


def _copy(stream: Stream, to: Stream) -> None:
    for part in Stream._fields[1:]:
        getattr(to, part)[...] = getattr(stream, part)
