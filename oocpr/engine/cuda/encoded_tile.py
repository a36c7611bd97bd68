"""Where the parts of an encoded tile lie, so that a device can use it where it has arrived."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from oocpr.engine.tiles.source import part as part_of
from oocpr.errors import DamagedError
from oocpr.store.codec.layout import parse_tile
from oocpr.store.codec.mantissa_segments import parse_segments
from oocpr.store.format import REMEDY

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from oocpr.store.codec.layout import Stream


class Part(NamedTuple):
    """Where an array lies among the bytes of a tile."""

    offset: int
    items: int
    dtype: str


class StreamMap(NamedTuple):
    """Where the arrays of a packed stream lie; see :class:`oocpr.store.codec.layout.Stream`."""

    size: int
    words: Part
    directory: Part
    wide: Part
    narrow: Part
    widths: Part


class WeightsMap(NamedTuple):
    """Where the segments of a tile's weights lie, and how many weights there are."""

    size: int
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class TileMap:
    """What is to be known of an encoded tile to use it on a device without its bytes at hand.

    Parameters
    ----------
    nbytes
        Length of the tile.
    edges, segments, nonempty, verbatim
        As in :class:`oocpr.store.codec.layout.PackedTile`.
    lengths, starts, gaps
        Its streams.
    ranks
        Non-empty segments before each block of lengths.
    weights
        Those of its links; None where they have none.
    """

    nbytes: int
    edges: int
    segments: int
    nonempty: int
    verbatim: bool
    lengths: StreamMap
    starts: StreamMap
    gaps: StreamMap
    ranks: Part
    weights: WeightsMap | None = None


def map_tile(encoded: NDArray[np.uint8], *, weighted: bool = False) -> TileMap:
    """Check an encoded tile and note where its parts are.

    Parameters
    ----------
    encoded
        uint8, shape (bytes,), beginning at a multiple of four.
    weighted
        Whether weights are behind its columns; see :class:`oocpr.engine.tiles.source.WeightedTiles`.

    Raises
    ------
    DamagedError
        If the bytes are not those of a tile.

    Examples
    --------
    >>> import numpy as np
    >>> from oocpr.store.codec.tile_encoder import encode_tile
    >>> coded = encode_tile(np.array([0, 2, 5, 1], np.uint32), np.array([3, 0, 1]))
    >>> encoded = np.zeros(len(coded), np.uint8)
    >>> encoded[:] = np.frombuffer(coded, np.uint8)
    >>> found = map_tile(encoded)
    >>> found.edges, found.gaps.size, found.gaps.words.offset % 16
    (4, 4, 0)
    """
    columns, coded = part_of(encoded) if weighted else (encoded, None)
    packed = parse_tile(columns)
    origin = encoded.ctypes.data

    def part(array: NDArray[Any]) -> Part:
        return Part(array.ctypes.data - origin if array.size else 0, int(array.size), array.dtype.str)

    def stream(of: Stream) -> StreamMap:
        return StreamMap(
            of.size, part(of.words), part(of.directory), part(of.wide), part(of.narrow), part(of.widths)
        )

    weights: WeightsMap | None = None
    if coded is not None:
        segments = parse_segments(coded)
        check_weights(segments.size, packed.edges)
        weights = WeightsMap(segments.size, tuple(map(part, segments.parts)))
    return TileMap(
        int(encoded.size), packed.edges, packed.segments, packed.nonempty, packed.verbatim,
        stream(packed.lengths), stream(packed.starts), stream(packed.gaps), part(packed.ranks), weights,
    )  # fmt: skip


def check_weights(size: int, edges: int) -> None:
    """Refuse more weights than links.

    Raises
    ------
    DamagedError
        Where there are.
    """
    if size > edges:
        raise DamagedError(f"A chunk has {size} weights where {edges} belong.", REMEDY)
