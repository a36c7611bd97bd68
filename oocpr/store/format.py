"""Names of what a graph store holds, and its attributes; docs/reference/format.md is the specification."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oocpr.errors import DamagedError, NotAStoreError

FORMAT = 1
CODEC_NAME = "oocpr.packed_ints"
SEGMENTS_NAME = "oocpr.segments"
ATTRIBUTES_KEY = "oocpr"
RANKS_KEY = "oocpr_ranks"
CHECKSUM_KEY = "metadata_crc32c"
CRC_BYTES = 4  # of the CRC-32C, little-endian, at the end of a chunk
IDENTITY_KEY, IDENTITY_DIGITS = "identity", 32
UNFINISHED_KEY = "unfinished"

INDPTR, INDICES, DATA = "in_edges/indptr", "in_edges/indices", "in_edges/data"
TILE_ROWS, OUT_DEGREE, OUT_WEIGHT, NODE_IDS = "tile_rows", "out_degree", "out_weight", "node_ids"
LABEL_OFFSETS, LABEL_BYTES = "labels/offsets", "labels/utf8"
NODES = (
    "", "in_edges", INDPTR, INDICES, DATA, TILE_ROWS, OUT_DEGREE, OUT_WEIGHT, NODE_IDS,
    "labels", LABEL_OFFSETS, LABEL_BYTES,
)  # fmt: skip
"""Every group and array that a store may have, besides those of `ignored_nodes`; the root is ""."""

IDENTIFIED = (
    INDPTR, INDICES, DATA, TILE_ROWS, OUT_DEGREE, OUT_WEIGHT, NODE_IDS, LABEL_OFFSETS, LABEL_BYTES,
)  # fmt: skip
"""Arrays that the identity of a graph covers, in this order."""

_OF_WEIGHTS = ("data_bytes", "max_data_bytes")


def ignored_nodes(own: Mapping[str, Any]) -> list[str]:
    """Groups and arrays whose metadata the checksum covers, but which nothing reads any more.

    >>> ignored_nodes({}), ignored_nodes({"columns": {"year": "int64"}})[:3]
    ([], ['attributes', 'attributes/year', 'attributes/year/values'])
    """
    columns = own.get("columns")
    if not columns or not isinstance(columns, dict):
        return []
    parts = ("", "/values", "/missing", "/offsets", "/utf8")
    return ["attributes", *(f"attributes/{name}{part}" for name in columns for part in parts)]


@dataclass(frozen=True)
class Attributes:
    """What a store says about its graph, as attribute ``oocpr`` of the root group.

    `edges`, `duplicates`: edges after duplicates were merged, and those that were. `order`: ``"keep"`` (rows
    in the order of the source's ids), ``"degree"`` (by falling out-degree), ``"host"`` (by name with the host
    reversed), ``"bfs"``, ``"dfs"``. `tile_edges`: edges of every tile but the last. `dangling`: nodes without
    out-edges, or whose out-edges have no weight. `local_edges`: edges whose column is a row owned by their
    own tile. `column_bytes`, `data_bytes`: bytes of all encoded tiles and of all encoded weights, without
    checksums; `max_...`: of the largest. `duplicate_weights`: the weight of an edge that the source repeats:
    ``"merge"`` (the greatest), ``"sum"`` or ``"count"``; None if the graph is not weighted, or was imported
    by a version that did not say. `direction`: ``"undirected"`` or ``"reverse"`` if the edges of the source
    count otherwise than they stand there; earlier versions did not say.
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
    direction: str | None = None

    @property
    def tiles(self) -> int:
        """Number of tiles; a graph without edges has one."""
        return max(1, -(-self.edges // self.tile_edges))

    def to_json(self) -> dict[str, Any]:
        """Give the attributes as a JSON object; what is of weights is missing if there are none."""
        values = {k: v for k, v in dataclasses.asdict(self).items() if v is not None}
        return values if self.weighted else {k: v for k, v in values.items() if k not in _OF_WEIGHTS}

    @property
    def encoded_bytes(self) -> int:
        """Bytes of all encoded tiles with their weights."""
        return self.column_bytes + self.data_bytes

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Attributes:
        """Read the attributes of a JSON object; unknown keys are ignored.

        Raises NotAStoreError if the format is newer than this version reads; DamagedError if a key is missing
        or a value is not of its kind.
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


def own_attributes(documents: Mapping[str, Any], key: str = ATTRIBUTES_KEY) -> dict[str, Any] | None:
    """Attribute `key` of the root, of parsed ``zarr.json`` documents by path; None if it is no object."""
    attributes = documents.get("", {}).get("attributes")
    own = attributes.get(key) if isinstance(attributes, dict) else None
    return own if isinstance(own, dict) else None


def metadata_checksum(documents: Mapping[str, Any], key: str = ATTRIBUTES_KEY) -> int:
    """CRC-32C of parsed ``zarr.json`` documents by path, without the checksum itself; the root's is ""."""
    from crc32c import crc32c

    root = {k: v for k, v in documents[""].items() if k != "consolidated_metadata"}
    attributes = dict(root["attributes"])
    own = {k: v for k, v in attributes[key].items() if k != CHECKSUM_KEY}
    root["attributes"] = {**attributes, key: own}
    text = json.dumps({**documents, "": root}, sort_keys=True, separators=(",", ":"))
    return crc32c(text.encode())
