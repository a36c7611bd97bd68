"""A pass of a stripe that exchanges nothing with others and reads nothing: launched as one.

The host says how the pass is made, launches all of it, and waits for its sums. If all groups stay on the
device, rows of the last one are swept inside it behind the sums, while the host decides about the next pass;
and all but the first such passes are two CUDA graphs, up to the sums and behind them: what is launched is
recorded once and then launched as one, so that no Python is between kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

if TYPE_CHECKING:
    import numpy as np

    from oocpr.engine.backend import PushStep, PushSums, SweepStep, TileSums
    from oocpr.engine.cuda.backend import CudaBackend
    from oocpr.engine.cuda.staging import CudaTileStream
    from oocpr.engine.cuda.vectors import DeviceGatherVector, RowState

UNRECORDED = 1
"""Passes before one is recorded, in which is made what is kept of a group."""


class ResidentPass:
    """Passes of such a stripe, one after the other.

    Parameters
    ----------
    row_bounds
        First row of each group of the graph, and the number of rows behind; int64.
    recorded
        Whether passes may be recorded: none takes memory.
    """

    def __init__(
        self,
        backend: CudaBackend,
        state: RowState,
        reads: DeviceGatherVector,
        stream: CudaTileStream,
        row_bounds: NDArray[np.int64],
        *,
        recorded: bool,
    ) -> None:
        self._backend, self._state, self._reads = backend, state, reads
        self._stream, self._row_bounds = stream, row_bounds
        self._recorded = recorded
        self._done = 0
        self._graphs: list[Callable[[], None]] = []

    def run(self, push: PushStep, step: SweepStep) -> tuple[PushSums, TileSums]:
        """Push and sweep; `step` is `alone`, and waits for its sums.

        Raises DamagedError for a tile whose bytes are not what was written.
        """
        backend, state = self._backend, self._state
        parts, later = self._graphs, list[Callable[[], None]]()
        state.step.set_sweep(step)
        with backend.device:
            if not parts:
                parts = [partial(self._launch, push, step, later), partial(backend.sweep_later, later)]
            if self._recorded and self._done >= UNRECORDED:
                state.step.set_push(push)
                if not self._graphs:
                    # All passes launch the same; what they are made with is in the memory of the step.
                    parts[0] = backend.device.record(parts[0])
                    self._graphs = parts = [parts[0], *([backend.device.record(parts[1])] if later else [])]
            parts[0]()
            # Not for what is sent meanwhile for the next pass.
            told = backend.device.record_event()
            for sweep_later in parts[1:]:
                sweep_later()
            if self._recorded:
                # Nothing is read any more, so there is room for the ranks.
                if not self._done:
                    self._stream.free_ring()
                state.expect_end(told)
            told.synchronize()
        self._done += 1
        return state.push_sums(), backend.tile_sums(state, step)

    def _launch(self, push: PushStep, step: SweepStep, later: list[Callable[[], None]]) -> None:
        backend, state, reads = self._backend, self._state, self._reads
        stored, _ = backend.make_push(state, push)
        backend.load(reads, 0, stored)
        last, end = None, len(self._row_bounds) - 2

        def sweep(group: int, there: Any) -> None:
            nonlocal last
            rows = int(self._row_bounds[group]), int(self._row_bounds[group + 1])
            # The room of a group that was sent is free behind the sums, and the largest of what rows propose
            # is one of them if numbers are scaled by that.
            put_off = later if self._recorded and group == end and not state.scaled else None
            last = backend.sweep_tile(state, reads, there, rows, step, last, later=put_off)

        self._stream.run(sweep)
        assert last is not None, "a stripe that is alone has a group"
        backend.add_up(state, last, step)
        with backend.device:
            state.bring_report()
