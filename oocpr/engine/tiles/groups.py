"""A stored graph whose tiles are taken in groups, as devices do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from numpy.typing import NDArray

if TYPE_CHECKING:
    import numpy as np

    from oocpr.plan.tile_groups import GroupLayout
    from oocpr.store.graph import GraphStore


class GroupedStore:
    """A `RankedStore` whose `tile_rows` are those of groups; what is read of it are the tiles themselves."""

    def __init__(self, store: GraphStore, layout: GroupLayout) -> None:
        self._store = store
        self.layout = layout
        self.path = store.path
        self.nodes, self.edges, self.dangling = store.nodes, store.edges, store.dangling
        self.encoded, self.weights = store.encoded, store.weights
        self.tile_rows: NDArray[np.int64] = layout.group_rows

    @property
    def identity(self) -> str:
        """See RankedStore."""
        return self._store.identity

    def out_degree(self, lo: int, hi: int) -> NDArray[np.uint32]:
        """See RankedStore."""
        return self._store.out_degree(lo, hi)

    def out_weight(self, lo: int, hi: int) -> NDArray[np.float64]:
        """See RankedStore."""
        return self._store.out_weight(lo, hi)
