"""A pass of a stripe that exchanges nothing with others: launched as one.

The host says how the pass is made, launches all of it, and waits for its sums. If all groups stay on the
device, rows of the last one are swept inside it behind the sums, while the host decides about the next pass.
What is launched then is recorded before the first of these passes and launched as one, so that no Python is
between kernels: two CUDA graphs, one of what is up to the sums and one of what is behind them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from oocpr.engine.tiles.stream import PassTraffic

if TYPE_CHECKING:
    import numpy as np

    from oocpr.engine.backend import PushStep, PushSums, SweepStep, TileSums
    from oocpr.engine.cuda.backend import CudaBackend
    from oocpr.engine.cuda.staging import CudaTileStream
    from oocpr.engine.cuda.vectors import DeviceGatherVector, RowState


class ResidentPass:
    """Passes of such a stripe, one after the other.

    Parameters
    ----------
    row_bounds
        First row of each group of the graph, and the number of rows behind; int64.
    first
        How the first pass is made; the others launch the same.
    recorded
        Whether passes may be recorded: none takes memory. Groups that are not there are read before.
    """

    def __init__(
        self,
        backend: CudaBackend,
        state: RowState,
        reads: DeviceGatherVector,
        stream: CudaTileStream,
        row_bounds: NDArray[np.int64],
        first: tuple[PushStep, SweepStep],
        *,
        recorded: bool,
    ) -> None:
        self._backend, self._state, self._reads = backend, state, reads
        self._stream, self._row_bounds = stream, row_bounds
        self._read = PassTraffic(0, 0.0)
        self._to_sums: Callable[[], None] | None = None
        self._behind: Callable[[], None] | None = None
        if recorded:
            self._record(*first)

    def _record(self, push: PushStep, step: SweepStep) -> None:
        backend, state, later = self._backend, self._state, list[Callable[[], None]]()

        def prepare(group: int, there: Any) -> None:
            backend.prepare_group(state, there, int(self._row_bounds[group]), step)

        # What is made meanwhile is made once.
        self._read = self._stream.run(prepare)
        backend.load(self._reads, 0, state.stored[: state.spec.rows])
        backend.check_groups()
        launch = partial(self._launch, push, step._replace(key=0), later)
        self._to_sums = backend.device.record(launch)
        if later:
            self._behind = backend.device.record(partial(backend.sweep_later, later))

    def run(self, push: PushStep, step: SweepStep) -> tuple[PushSums, TileSums, PassTraffic]:
        """Push and sweep; `step` is `alone`, and waits for its sums.

        Raises DamagedError for a tile whose bytes are not what was written.
        """
        backend, state = self._backend, self._state
        state.step.set_sweep(step)
        with backend.device:
            if self._to_sums is None:
                self._read = self._launch(push, step, None)
            else:
                state.step.set_push(push)
                self._to_sums()
                if step.key:
                    state.add_up_residual()
                    state.bring_report()
            # Not for what is sent meanwhile for the next pass.
            told = backend.device.record_event()
            if self._behind is not None:
                self._behind()
            if self._to_sums is not None:
                # Nothing is read any more, so there is room for the ranks.
                self._stream.free_ring()
                state.expect_end(told)
            told.synchronize()
        read, self._read = self._read, PassTraffic(0, 0.0)
        return state.push_sums(), backend.tile_sums(state, step), read

    def _launch(self, push: PushStep, step: SweepStep, later: list[Callable[[], None]] | None) -> PassTraffic:
        """Launch a pass; `later` receives what is swept behind its sums, if passes are recorded."""
        backend, state, reads = self._backend, self._state, self._reads
        stored, _ = backend.make_push(state, push)
        backend.load(reads, 0, stored)
        last, end = None, len(self._row_bounds) - 2

        def sweep(group: int, there: Any) -> None:
            nonlocal last
            rows = int(self._row_bounds[group]), int(self._row_bounds[group + 1])
            # The room of a group that was sent is free behind the sums, and the largest of what rows propose
            # is one of them if numbers are scaled by that.
            put_off = later if group == end and not state.scaled else None
            last = backend.sweep_tile(state, reads, there, rows, step, last, later=put_off)

        read = self._stream.run(sweep)
        assert last is not None, "a stripe that is alone has a group"
        backend.add_up(state, last, step)
        with backend.device:
            state.bring_report()
        return read
