"""What a plan has to know of a graph."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GraphStats:
    """What a plan has to know of a graph.

    Parameters
    ----------
    nodes, edges, tiles, tile_edges
        As stored.
    column_bytes
        Encoded bytes of all tiles, their weights included.
    max_tile_bytes, max_tile_rows
        Of the largest tile; see `weighted_tile_bytes`.
    local_share
        Share of edges that stay inside the rows of their tile, in [0, 1].
    weighted
        Whether edges have weights.
    weight_bytes, max_weight_bytes
        Encoded bytes of the weights of all tiles, and of those of the tile that has most.
    stored_bytes
        The bytes of all tiles as stored, where `column_bytes` are the most that joined ones have; else 0.
    """

    nodes: int
    edges: int
    tiles: int
    tile_edges: int
    column_bytes: int
    max_tile_bytes: int
    max_tile_rows: int
    local_share: float
    weighted: bool = False
    weight_bytes: int = 0
    max_weight_bytes: int = 0
    stored_bytes: int = 0

    @property
    def usual_bytes(self) -> int:
        """Encoded bytes of all tiles as a rule."""
        return self.stored_bytes or self.column_bytes
