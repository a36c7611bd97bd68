"""Format 1 of a graph store: everything a second reader has to know.

Store
-----
A store is a Zarr group of Zarr format 3. All numbers are little-endian, n is the number of nodes, m the
number of edges, all arrays have one dimension and every chunk is written, also one of zeros::

    zarr.json            attribute "oocpr": the fields of Attributes, "identity" and "metadata_crc32c"
    in_edges/            the transposed adjacency in compressed sparse rows: row v lists the nodes that link
                         to v, ascending and without repeats; attributes as AnnData has them (encoding-type
                         "csr_matrix", encoding-version, shape)
        indptr           int64, n + 1       codecs oocpr.packed_ints, crc32c
        indices          uint32, m          codecs oocpr.packed_ints, crc32c; a chunk is a tile
        data             float64, m         codecs oocpr.segments, crc32c; where weighted: the weights of the
                                            links, finite and not below 0, in the same chunks as indices
    tile_rows            int64, tiles + 1   codecs bytes, zstd, crc32c, as all that follow
    out_degree           uint32, n
    out_weight           float64, n: of a weighted graph only, the sums of the weights that leave the nodes
    node_ids             uint32 or int64, n: the source's id of row v; missing where that is v
    labels/offsets       int64, n + 1       codecs oocpr.packed_ints, crc32c
    labels/utf8          uint8: the label of row v is bytes offsets[v] to offsets[v + 1] - 1
    attributes/NAME/     arrays values, missing, offsets and utf8 of each key of the object "columns" of
                         attribute "oocpr": written by earlier versions, checked in their metadata only

``metadata_crc32c`` is the checksum of all ``zarr.json`` files, see metadata_checksum; it may be missing.
While a store is being written the attribute "oocpr" is ``{"unfinished": true}``.

Identity
--------
``identity`` tells graphs apart: all that ranks and the names of their nodes depend on has a part in it, and
nothing else, so not the source's name. It is the first 32 hexadecimal digits
of the SHA-256 of these bytes: the numbers of nodes and edges, ``weighted`` and ``tile_edges`` as a JSON array
(``[5, 8, false, 4]``) and a line feed; then, of the arrays in_edges/indptr, in_edges/indices, in_edges/data,
tile_rows, out_degree, out_weight, node_ids, labels/offsets and labels/utf8, for each that there is, in this
order: its path, a space, its number of chunks in decimal, a line feed, and the CRC-32C of each chunk in 4
bytes, little-endian. That is the checksum at the chunk's end or, where crc32c is not the array's last codec,
that of the whole chunk as stored. Stores of version 0.1.0 lack the key, and readers compute it. A reader
trusts the key only beside ``metadata_crc32c``.

Tiles
-----
Tile t holds edges t * tile_edges to min(m, (t + 1) * tile_edges) - 1; a graph without edges has one empty
tile, stored although the array has no such chunk. tile_rows[0] is 0, tile_rows[tiles] is n, and any other
tile_rows[t] is the row of edge t * tile_edges. Tile t owns rows tile_rows[t] to tile_rows[t + 1] - 1. Its
segments are the parts of these rows that lie in the tile, in order, with 0 for an empty row, and last the
part of row tile_rows[t + 1] that lies in it (0 for the last tile). So a tile has one segment more than it
owns rows, and a tile inside a long row owns none.

Packed stream
-------------
A stream is a sequence of unsigned 32-bit values, in groups of 32 (the last one filled up with zeros) and
blocks of 1024. Group g has a width w of 0 to 32 bits. Lane l, 0 to 31, has a string of bits of its own, to
which each group in turn appends the low w bits of its value number l, the lowest bit first. As all lanes
append equally much, the position P in the string is the same in all. Bit P of lane l is bit P mod 32 of
``words[32 * (P div 32) + l]``: 32 lanes of a processor read 32 neighbouring words. Positions run on from
block to block. There are T div 32 + 1 rows of 32 words, T being the sum of all widths.

A value may have more than w bits. Then v >> w is an exception of its block: a narrow one, 16 bits, if it is
below 2^6, else a wide one, 32 bits, and must be below 2^22. Either is ``(v >> w) << 10 | i``, i being the
value's number in its block. Exceptions are ordered as their values are. Which w a group has is the writer's
choice; this one takes the largest w for which bits and exceptions together are shortest.

Each block has a directory entry of four words: P at its start, the numbers of narrow and of wide exceptions
before it, and a carry (below). One more entry at the end has the totals.

For example, let the widths of the first two groups be 3 and 5, and value 37 be 300. It is value 5 of group
1, so it is in lane 5 at position 3. Its low 5 bits, 300 mod 32 = 12, are bits 3 to 7 of word 5; the rest,
300 >> 5 = 9, is a narrow exception ``9 << 10 | 37`` = 9253.

>>> import numpy as np
>>> from oocpr.store.codec.tile_encoder import pack_stream
>>> values = np.repeat(np.array([7, 31], np.uint32), 32)
>>> values[37] = 300
>>> stream = pack_stream(values, 64)
>>> stream.widths.tolist(), int(stream.words[5]) >> 3 & 31, stream.narrow.tolist()
([3, 5], 12, [9253])
>>> stream.directory.tolist()
[[0, 0, 0, 0], [8, 1, 0, 0]]

Chunk
-----
What the codec ``oocpr.packed_ints`` writes begins with the bytes ``oci1`` and a word with the kind of the
chunk. Behind the header lie its sections, the ones with the larger elements first, so that all are aligned
to their elements; zeros fill the chunk up to a multiple of four bytes. A chunk may have fewer values than
its array's chunks: those missing at the end are fill values.

Kind 0, raw: word 2 is the number of values, word 3 their type (``u4``, ``i8``, ... in ASCII, filled up with
zeros); then the values.

Kind 1, offsets: 64-bit values that do not decrease, as one stream of the steps from each to the next, 0
first. Header of 8 words: magic, kind, count, rows of words, wide exceptions, narrow exceptions, and the
first value in 64 bits. Sections: words, directory (carries 0), wide, narrow, widths (8 bits each).

Kind 2, tile: columns in segments, strictly ascending in each. Three streams:

- lengths: edges of each segment. Carry: edges before the block. Also ``ranks``, one word for each directory
  entry: segments before the block that are not empty;
- starts: for each segment that is not empty the difference d, modulo 2^32 and taken as signed, of its first
  column to that of the one before (to 0 for the first), as 2d if d >= 0, else -2d - 1. Carry: first column
  of the last segment before the block, 0 for the first block;
- gaps: for each edge 0 if it begins a segment, else its column less the column before less 1. Carry:
  column of the edge before the block, 0 for the first block.

Where it is shorter, the columns themselves are packed in place of gaps and starts ("verbatim"; the carry
stays what it is).

Header of 16 words: magic; kind, plus 2^8 if the segments are ascending runs instead of rows, plus 2^9 if the
columns are verbatim; edges; segments; segments that are not empty; for gaps, starts, lengths (verbatim: for
columns, lengths) rows of words, wide exceptions, narrow exceptions; zeros. Sections: words of the streams in
the same order, then their directories; ranks; wide exceptions of the streams, narrow exceptions, widths.

So any 1024 edges can be decoded without those before them once lengths and starts are known, and these in
turn block by block. No tile takes more than 4.05 bytes an edge, 300 bytes and its lengths.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from oocpr.errors import DamagedError, NotAStoreError

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT = 1
CODEC_NAME = "oocpr.packed_ints"
SEGMENTS_NAME = "oocpr.segments"
ATTRIBUTES_KEY = "oocpr"
RANKS_KEY = "oocpr_ranks"
CHECKSUM_KEY = "metadata_crc32c"
IDENTITY_KEY, IDENTITY_DIGITS = "identity", 32
UNFINISHED_KEY = "unfinished"

INDPTR, INDICES, DATA = "in_edges/indptr", "in_edges/indices", "in_edges/data"
TILE_ROWS, OUT_DEGREE, OUT_WEIGHT, NODE_IDS = "tile_rows", "out_degree", "out_weight", "node_ids"
LABELS = "labels"
LABEL_OFFSETS, LABEL_BYTES = f"{LABELS}/offsets", f"{LABELS}/utf8"
COLUMNS_KEY = "columns"
NODES = (
    "", "in_edges", INDPTR, INDICES, DATA, TILE_ROWS, OUT_DEGREE, OUT_WEIGHT, NODE_IDS,
    LABELS, LABEL_OFFSETS, LABEL_BYTES,
)  # fmt: skip
"""Every group and array that a store may have, those of `ignored_nodes` aside; the root is ""."""

IDENTIFIED = (
    INDPTR, INDICES, DATA, TILE_ROWS, OUT_DEGREE, OUT_WEIGHT, NODE_IDS, LABEL_OFFSETS, LABEL_BYTES,
)  # fmt: skip
"""Arrays that the identity of a graph depends on, in this order."""

_OF_WEIGHTS = ("data_bytes", "max_data_bytes")
RUN_AGAIN = "Open the graph again, or run the command again."


def ignored_nodes(own: Mapping[str, Any]) -> list[str]:
    """Groups and arrays whose metadata the checksum covers, but which nothing reads any more.

    >>> ignored_nodes({}), ignored_nodes({"columns": {"year": "int64"}})[:3]
    ([], ['attributes', 'attributes/year', 'attributes/year/values'])
    """
    columns = own.get(COLUMNS_KEY)
    if not columns or not isinstance(columns, dict):
        return []
    parts = ("", "/values", "/missing", "/offsets", "/utf8")
    return ["attributes", *(f"attributes/{name}{part}" for name in columns for part in parts)]


@dataclass(frozen=True)
class Attributes:
    """What a store says about its graph, kept as attribute ``oocpr`` of the root group.

    Parameters
    ----------
    nodes, edges
        Numbers of nodes, and of edges after duplicates were merged.
    weighted
        Whether edges have weights.
    order
        ``"keep"``: rows in the order of the source's ids; ``"degree"``: by falling out-degree; ``"host"``: by
        name with the host reversed; ``"bfs"``: as a breadth-first search meets them.
    tile_edges
        Edges of every tile but the last.
    source
        What people know the graph by.
    duplicates
        Edges of the source that repeated another one and were merged into it.
    self_loops, dangling
        Edges from a node to itself; nodes without out-edges, or whose out-edges have no weight.
    local_edges
        Edges whose column is a row owned by their own tile.
    column_bytes
        Bytes of all encoded tiles, without their checksums.
    max_tile_bytes
        Bytes of the largest encoded tile.
    format
        Number of the format.
    data_bytes, max_data_bytes
        Bytes of all encoded weights, without their checksums, and of those of the tile that has most; 0, and
        missing in the JSON object, where the graph is not weighted.
    duplicate_weights
        What the weight of an edge is that the source repeats: ``"merge"``: the greatest, ``"sum"``, or
        ``"count"``: how often it comes. None, and missing in the JSON object, where the graph is not
        weighted, or was imported by a version that did not say.
    """

    nodes: int
    edges: int
    weighted: bool
    order: str
    tile_edges: int
    source: str
    duplicates: int
    self_loops: int
    dangling: int
    local_edges: int
    column_bytes: int
    max_tile_bytes: int
    format: int = FORMAT
    data_bytes: int = 0
    max_data_bytes: int = 0
    duplicate_weights: str | None = None

    @property
    def tiles(self) -> int:
        """Number of tiles; a graph without edges has one."""
        return max(1, -(-self.edges // self.tile_edges))

    def to_json(self) -> dict[str, Any]:
        """Give the attributes as a JSON object."""
        values = {k: v for k, v in dataclasses.asdict(self).items() if v is not None}
        return values if self.weighted else {k: v for k, v in values.items() if k not in _OF_WEIGHTS}

    @property
    def encoded_bytes(self) -> int:
        """Bytes of all encoded tiles with their weights."""
        return self.column_bytes + self.data_bytes

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Attributes:
        """Read the attributes of a JSON object; unknown keys are ignored.

        Raises
        ------
        NotAStoreError
            If the format is newer than this version reads.
        DamagedError
            If a key is missing or a value is not of its kind.

        Examples
        --------
        >>> a = Attributes(5, 8, False, "keep", 4, "five nodes", 0, 1, 1, 3, 900, 460)
        >>> Attributes.from_json(a.to_json()) == a, a.tiles
        (True, 2)
        """
        number = data.get("format")
        if type(number) is int and number > FORMAT:
            raise NotAStoreError(
                f"The store has format {number}, this version of oocpr reads format {FORMAT}.",
                "Upgrade oocpr, or import the graph again with this version.",
            )
        kinds = {"int": int, "bool": bool, "str": str, "str | None": str}
        values: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            if field.name in _OF_WEIGHTS and data.get("weighted") is False:
                continue
            if field.default is None and field.name not in data:
                continue
            value = data.get(field.name)
            # The type itself, not isinstance: True is an int to Python.
            if type(value) is not kinds[str(field.type)] or (type(value) is int and value < 0):
                raise DamagedError(f"Attribute {field.name!r} of the store is {value!r}.")
            values[field.name] = value
        if values["format"] != FORMAT or values["tile_edges"] < 1:
            raise DamagedError("The attributes of the store contradict format 1.")
        return cls(**values)


def metadata_checksum(documents: Mapping[str, Any], key: str = ATTRIBUTES_KEY) -> int:
    """Checksum of the metadata documents of a store.

    `documents`: parsed ``zarr.json`` of the groups and arrays by path, the root's under "". Returns CRC-32C
    of their canonical JSON (sorted keys, no spaces, ASCII) without the checksum itself and without
    consolidated metadata.

    >>> a = metadata_checksum({"": {"zarr_format": 3, "attributes": {"oocpr": {"nodes": 5}}}})
    >>> b = {"zarr_format": 3, "attributes": {"oocpr": {"nodes": 5, "metadata_crc32c": a}}}
    >>> metadata_checksum({"": b}) == a
    True
    """
    from crc32c import crc32c

    root = {k: v for k, v in documents[""].items() if k != "consolidated_metadata"}
    attributes = dict(root["attributes"])
    own = {k: v for k, v in attributes[key].items() if k != CHECKSUM_KEY}
    root["attributes"] = {**attributes, key: own}
    text = json.dumps({**documents, "": root}, sort_keys=True, separators=(",", ":"))
    return crc32c(text.encode())
