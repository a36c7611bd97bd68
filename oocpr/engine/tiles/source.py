"""What a run needs of a stored graph, whatever its tiles are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from oocpr.engine.tiles.stream import TileBytes


class RankedStore(Protocol):
    """What a run needs of a stored graph."""

    @property
    def identity(self) -> str:
        """What tells the graph apart from any other."""

    @property
    def path(self) -> str:
        """Where it is, for messages."""

    @property
    def nodes(self) -> int:
        """Number of nodes."""

    @property
    def edges(self) -> int:
        """Number of edges."""

    @property
    def dangling(self) -> int:
        """Number of nodes that nothing leaves, as the store says."""

    @property
    def tile_rows(self) -> NDArray[np.int64]:
        """First owned row of each tile, and the number of nodes."""

    @property
    def encoded(self) -> TileBytes:
        """Encoded tiles."""

    @property
    def weights(self) -> TileBytes | None:
        """Encoded weights of the tiles; None where the graph is not weighted."""

    def out_degree(self, lo: int, hi: int) -> NDArray[np.uint32]:
        """Out-degrees of the nodes lo .. hi - 1."""

    def out_weight(self, lo: int, hi: int) -> NDArray[np.float64]:
        """Weights that leave the nodes lo .. hi - 1."""
