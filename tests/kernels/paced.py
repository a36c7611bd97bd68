"""A device of the host that says and takes the time of one whose kernels and copies have known paces."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oocpr.engine.cuda.backend import CudaBackend
from oocpr.plan.tile_groups import TILE_ENTRY_BYTES

from .shim.host import HostDevice

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from oocpr.engine.backend import PushSums


class PacedMark:
    """See Mark; passed at a time."""

    def __init__(self, until: float) -> None:
        self.until = until

    def synchronize(self) -> None:
        """See Mark."""
        time.sleep(max(0.0, self.until - time.perf_counter()))


class PacedDevice(HostDevice):
    """Does everything at once and is done with it when its paces say.

    `byte`: seconds for a byte of a tile that is sent while kernels run. What they know of a tile takes none:
        it is next to nothing of tiles that are not as small as those of tests.
    """

    def __init__(self, folder: Path, *, byte: float = 0.0) -> None:
        super().__init__(folder)
        self._byte = byte
        # Until when kernels, and what is sent, keep it busy.
        self._until = [0.0, 0.0]

    def take(self, seconds: float, lane: int = 0) -> None:
        """Be at work for so long, once what was launched before is done."""
        self._until[lane] = max(time.perf_counter(), self._until[lane]) + seconds

    def take_both(self, seconds: float) -> None:
        """Have kernels use the link for so long, in turns with what is sent."""
        begin = max(time.perf_counter(), *self._until)
        self._until = [begin + seconds] * 2

    def synchronize(self) -> None:
        """See Device."""
        PacedMark(max(self._until)).synchronize()

    def record_event(self, *, copy_stream: bool = False) -> PacedMark:  # type: ignore[override]
        """See Device."""
        return PacedMark(self._until[1 if copy_stream else 0])

    def upload_async(self, array: Any, values: NDArray[np.uint8]) -> PacedMark:  # type: ignore[override]
        """See Device."""
        super().upload_async(array, values)
        if values.nbytes > TILE_ENTRY_BYTES:
            self.take(values.nbytes * self._byte, 1)
        return PacedMark(self._until[1])

    def wait_for(self, mark: PacedMark) -> None:  # type: ignore[override]
        """See Device."""
        self._until[0] = max(self._until[0], mark.until)

    def copy_stream_wait(self, mark: PacedMark) -> None:  # type: ignore[override]
        """See Device."""
        self._until[1] = max(self._until[1], mark.until)

    def timestamp(self, *, copy_stream: bool = False, again: Any = None) -> list[float]:
        """See Device."""
        moment = super().timestamp(again=again)
        moment[0] = max(moment[0], self._until[1 if copy_stream else 0])
        return moment

    def has_passed(self, moment: list[float]) -> bool:
        """See Device."""
        return moment[0] <= time.perf_counter()


class PacedBackend(CudaBackend):
    """Takes so many seconds for an edge and a row that it sweeps, and for a row that it pushes.

    `far`: whether it reaches rows over the link.
    """

    def __init__(
        self,
        device: PacedDevice,
        *,
        edge: float = 0.0,
        row: float = 0.0,
        pushed: float = 0.0,
        far: bool = False,
    ) -> None:
        super().__init__(device, pairs=True)
        self._paced = device
        self._edge, self._row, self._push = edge, row, pushed
        self._reach = device.take_both if far else device.take

    def sweep_tile(
        self, state: Any, reads: Any, tile: Any, rows: tuple[int, int], *how: Any, **later: Any
    ) -> Any:
        """See Backend."""
        self._paced.take(tile.sizes.edges * self._edge)
        self._reach((rows[1] - rows[0]) * self._row)
        return super().sweep_tile(state, reads, tile, rows, *how, **later)

    def make_push(self, state: Any, step: Any) -> tuple[Any, Callable[[], PushSums]]:
        """See Backend."""
        self._reach(state.spec.rows * self._push)
        stored, told = super().make_push(state, step)
        done = self._paced.record_event()

        def tell() -> PushSums:
            done.synchronize()
            return told()

        return stored, tell

    def sums(self, *swept: Any) -> Any:
        """See Backend."""
        self._paced.record_event().synchronize()
        return super().sums(*swept)
