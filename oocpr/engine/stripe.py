"""One stripe's part of a pass: its rows, its stream of tiles, a backend that computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.engine.method import StripeSums

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oocpr.engine.backends.base import Backend, PublishStep, Pushed, StripeSpec, SweepStep, TileSums
    from oocpr.engine.stream import PassTraffic, TileStream


@dataclass
class Stripe:
    """A stripe on the worker that owns it.

    Parameters
    ----------
    spec
        Which rows and tiles.
    tile_rows
        First owned row of each tile of the graph, and the number of nodes; int64, shape (tiles + 1,).
    backend, state
        What computes, and the rows' state on it.
    stream
        Brings the encoded tiles.
    """

    spec: StripeSpec
    tile_rows: NDArray[np.int64]
    backend: Backend
    state: Any
    stream: TileStream

    def publish(self, step: PublishStep) -> tuple[Any, Pushed]:
        """Make the stripe's next push."""
        return self.backend.publish(self.state, step)

    def sweep(self, reads: Any, step: SweepStep) -> tuple[StripeSums, PassTraffic]:
        """Deliver the last push to every tile, in order, and propose the next."""
        tiles: list[TileSums] = []

        def compute(tile: int, prepared: Any) -> None:
            rows = (int(self.tile_rows[tile]), int(self.tile_rows[tile + 1]))
            carry = tiles[-1].carry if tiles else (0.0, 0.0)
            tiles.append(self.backend.sweep_tile(self.state, reads, prepared, rows, step, carry))

        traffic = self.stream.run(compute)
        return self._sums(tiles, step), traffic

    def finish(self, carry: float) -> NDArray[np.float64]:
        """Sum of p and r of the stripe's rows, what the stripe before owed included."""
        return self.backend.finish(self.state, carry)

    def _sums(self, tiles: list[TileSums], step: SweepStep) -> StripeSums:
        live = len(step.live)
        return StripeSums(
            rows=self.spec.rows,
            carry=step.damping * tiles[-1].carry[0],
            norm=_total([tile.norm for tile in tiles]),
            with_change=_total([tile.with_change for tile in tiles]),
            with_residual=_total([tile.with_residual for tile in tiles]),
            peaks=np.max([tile.peaks for tile in tiles], axis=0),
            first=self.backend.first_row(self.state, step.live) if self.spec.rows else np.zeros(1 + live),
        )


def _total(parts: list[Any]) -> Any:
    """Sum in tile order."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
