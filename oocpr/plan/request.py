"""What a plan is made from: facts of a graph, and what is asked of a run."""

from __future__ import annotations

from dataclasses import dataclass

BALANCED = "balanced"
"""The default product, which takes packed columns, and keeps them decoded where there is room for all."""


SWEPT_TILES = 3
"""Tiles that processors sweep together. In a model of the method, five sweeps of each tile took 19, 13 and 13
passes to 1e-10 with one, three and five tiles on a crawl of 13 million edges, 17, 11 and 11 on citations and
18, 15 and 13 on a social graph. With five, tiles are swept along more edges: a run on 18 million edges took
0.8 s, with one and three 0.5 and 0.6."""


@dataclass(frozen=True)
class GraphStats:
    """What a plan has to know of a graph; bytes are encoded."""

    nodes: int
    edges: int
    tiles: int
    tile_edges: int
    column_bytes: int  # of all tiles, their weights included
    max_tile_bytes: int  # see `weighted_tile_bytes`
    max_tile_rows: int
    local_share: float  # of edges that stay inside the rows of their tile, in [0, 1]
    weighted: bool = False
    weight_bytes: int = 0  # of all tiles

    def near_share(self, stripes: int = 1) -> float:
        """Share of edges inside a tile or to one that it is swept with, if all others end anywhere."""
        beside = min(2 * (SWEPT_TILES - 1), -(-self.tiles // stripes) - 1)
        return self.local_share + (1 - self.local_share) * min(1.0, beside / max(1, self.tiles - 1))

    def outside_share(self, stripes: int) -> float:
        """Share of edges from one stripe to another, if all that leave their tile end anywhere."""
        return (1 - self.local_share) * (1 - 1 / stripes)


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """What a plan is asked for: settings of a run, the memory that it may use, and what it begins from."""

    method: str
    reads: str
    damping: float = 0.85
    tol: float = 1e-10
    mixing: int = 5  # most passes that mixing remembers
    memory: int  # bytes that the whole process may use
    base: int = 0  # those that it uses already
    sweeps: int | None = None  # of a tile per pass, on processors; None to choose by the edges inside tiles
    stripes: int | None = None  # None to choose by the size of the graph, or the number of devices or workers
    bounds: tuple[tuple[int, int], ...] = ()  # of the stripes' tiles, if they are known already
    workers: int = 1  # processes that share the stripes
    device_memory: tuple[int, ...] = ()  # bytes that may be used of each device
    promised: bool = False  # whether these are the caller's word
    cores: int = 1  # processors that may read for each device
    kernel: str = BALANCED  # product of the devices; see `oocpr.plan.products`
    personalized: bool = False  # whether the teleport vector is not uniform
    started: bool = False  # whether the run begins from another vector
    reproducible: bool = False  # whether a plan without room for all of the history does not fit
