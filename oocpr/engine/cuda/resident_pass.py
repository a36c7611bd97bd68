"""A pass of a stripe that exchanges nothing with others and reads nothing: launched as one.

The host says how the pass is made, launches all of it, and waits for its sums. If all groups stay on the
device, rows of the last one are swept inside it behind the sums, while the host decides about the next pass.
What is launched then is recorded and launched as one, so that no Python is between kernels: two CUDA graphs,
one of what is behind the sums, and from the second pass on one of what is up to them.
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
"""Passes before one is recorded up to its sums: they make what is kept of a group, and find its hubs."""


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
        self._to_sums: Callable[[], None] | None = None
        self._behind: Callable[[], None] | None = None

    def run(self, push: PushStep, step: SweepStep) -> tuple[PushSums, TileSums]:
        """Push and sweep; `step` is `alone`, and waits for its sums.

        Raises DamagedError for a tile whose bytes are not what was written.
        """
        backend, state = self._backend, self._state
        later = list[Callable[[], None]]()
        launch: Callable[[], None] = partial(self._launch, push, step, later)
        state.step.set_sweep(step)
        with backend.device:
            if self._recorded and self._done >= UNRECORDED:
                # All passes launch the same; what they are made with is in the memory of the step.
                state.step.set_push(push)
                if self._to_sums is None:
                    self._to_sums = backend.device.record(launch)
                launch = self._to_sums
            launch()
            # Not for what is sent meanwhile for the next pass.
            told = backend.device.record_event()
            if later and self._behind is None:
                self._behind = backend.device.record(partial(backend.sweep_later, later))
            if self._behind is not None:
                self._behind()
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
