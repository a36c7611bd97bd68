"""One stripe's part of a pass: its rows, its stream of tiles, a backend that computes."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.engine.degree_check import Balance, Claims
from oocpr.engine.method import StripeSums
from oocpr.engine.tiles.partitions import each_partition, traffic_of
from oocpr.engine.trace import COMPUTE

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from oocpr.engine.backend import Backend, PublishStep, PushSums, StripeSpec, SweepStep, TileSums
    from oocpr.engine.tiles.stream import PassTraffic, Tiles
    from oocpr.engine.trace import Trace


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
    trace
        Receives when each was computed, where the backend does not measure that by itself; None for nothing.
    place
        Number of the backend among those of the run.
    pushed
        The last push, where others come for it; as the backend has it.
    claims
        What the store says of the rows; None where nobody asks for a balance.
    """

    spec: StripeSpec
    tile_rows: NDArray[np.int64]
    backend: Backend
    state: Any
    stream: Tiles
    trace: Trace | None = None
    place: int = 0
    pushed: Any = None
    claims: Claims | None = None

    def publish(self, step: PublishStep) -> tuple[Any, Callable[[], PushSums]]:
        """Make the stripe's next push; see Backend."""
        return self.backend.publish(self.state, step)

    def sweep(self, reads: Any, step: SweepStep) -> Callable[[], tuple[StripeSums, PassTraffic]]:
        """Deliver the last push to every tile, in order, and propose the next; returns what tells the sums.

        A device is still at it when this returns; who asks for the sums waits until all is done.
        """
        swept: list[Any] = []
        runs: list[PassTraffic] = []

        def compute(tile: int, prepared: Any) -> None:
            rows = (int(self.tile_rows[tile]), int(self.tile_rows[tile + 1]))
            before = swept[-1] if swept else None
            span = nullcontext() if self.trace is None else self.trace.span(COMPUTE, f"tile {tile}")
            with span:
                swept.append(self.backend.sweep_tile(self.state, reads, prepared, rows, step, before))

        for _ in each_partition(self.backend, reads):
            # What the last slice leaves tells the sums.
            swept.clear()
            runs.append(self.stream.run(compute))

        def report() -> tuple[StripeSums, PassTraffic]:
            return self._sums(self.backend.sums(self.state, swept, step), step), traffic_of(runs)

        return report

    def close(self) -> None:
        """End what the stream of tiles is still doing."""
        self.stream.close()

    def finish(self, carry: float) -> NDArray[np.float64]:
        """Sum of p and r of the stripe's rows, what the stripe before owed included."""
        self.close()
        return self.backend.finish(self.state, carry)

    def _sums(self, sums: TileSums, step: SweepStep) -> StripeSums:
        live = len(step.live)
        return StripeSums(
            rows=self.spec.rows,
            carry=step.damping * sums.carry[0],
            norm=sums.norm,
            with_change=sums.with_change,
            with_residual=sums.with_residual,
            peaks=sums.peaks,
            first=self.backend.first_row(self.state, step.live) if self.spec.rows else np.zeros(1 + live),
            balance=Balance(self.claims, sums.marks, sums.residual) if step.key and self.claims else None,
        )
