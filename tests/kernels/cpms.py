"""PageRank as Gruetzmacher et al. 2018 compute it: power iteration that reads more of each number with time.

Rank vectors and matrix values are held in 2 or 4 segments. A run begins with the first one, reads one more
when the change of a sweep comes near to what that precision can show, and goes on in plain float64 after all
of them are needed. Counts are those of the authors' program: sweeps less one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oocpr.engine.cuda.device import THREADS, download, grid

if TYPE_CHECKING:
    from oocpr.engine.cuda.baselines import Matrix
    from oocpr.engine.cuda.device import Device

_MANTISSA = {2: (20,), 4: (4, 20, 36)}
"""Bits of the mantissa that are read with 1, 2, ... segments."""


@dataclass(frozen=True)
class CpmsRun:
    """What a run did."""

    ranks: NDArray[np.float64]  # float64, shape (nodes,)
    # sweeps decided at each precision, the lowest first; they add up to all sweeps less one
    counts: tuple[int, ...]
    # l1 norm of the change of each sweep but the first, as that sweep read its vectors
    changes: tuple[float, ...]


class SegmentedVector:
    """Float64 numbers in 2 or 4 segments that are read apart."""

    def __init__(self, device: Device, segments: int, count: int) -> None:
        self._xp = device.xp
        self._kernels = device.load("papers/cpms.cu", SEGMENTS=segments)
        self.segments = segments
        self.count = count
        group = 16 * segments
        kind = np.uint32 if segments == 2 else np.uint16
        self.array = device.xp.zeros(-(-count // group) * group * segments, kind)

    def write(self, values: Any, leading: int) -> None:
        """Store the first `leading` segments of `values`, float64, cut and not rounded; leave the others."""
        self._launch("write_numbers", (values, np.uint64(self.count), np.int32(leading), self.array))

    def read(self, leading: int) -> Any:
        """Numbers of the first `leading` segments; float64, shape (count,)."""
        values = self._xp.empty(self.count)
        self._launch("read_numbers", (self.array, np.uint64(self.count), np.int32(leading), values))
        return values

    def plain(self) -> Any:
        """Turn all into float64 where they are; float64, shape (count,), in the same memory."""
        numbers = self.array.view(np.float64)
        self._launch("to_numbers", (numbers, np.uint64(numbers.size)), int(numbers.size))
        return numbers[: self.count]

    def _launch(self, name: str, arguments: tuple[Any, ...], threads: int | None = None) -> None:
        blocks = grid(self.count if threads is None else threads)
        if blocks[0]:
            self._kernels.get_function(name)(blocks, (THREADS,), arguments)


def cpms_pagerank(
    device: Device,
    matrix: Matrix,
    segments: int,
    *,
    damping: float = 0.85,
    tol: float = 1e-10,
    max_sweeps: int = 1000,
) -> CpmsRun:
    """Rank the nodes of a square matrix as the authors' program does.

    `matrix` has offsets of 32 bits, and out-degrees.
    `segments`: 1 for plain float64 throughout, 2 or 4. Dangling nodes have edges to all, damped as edges are.
    The run stops when the change of a sweep is below `tol`, or after `max_sweeps`.
    """
    return _Run(device, matrix, segments, damping).run(tol, max_sweeps)


class _Run:
    def __init__(self, device: Device, matrix: Matrix, segments: int, damping: float) -> None:
        xp = device.xp
        self._device, self._matrix, self._damping = device, matrix, damping
        self._segments = segments
        self._kernels = device.load("papers/cpms.cu", SEGMENTS=max(2, segments))
        rows = matrix.rows
        self._dangling = matrix.degrees == 0
        weights = 1.0 / xp.maximum(matrix.degrees, 1)[matrix.columns]
        start = xp.full(rows, 1 / rows)
        self._leading = 1
        self._plain = segments == 1
        if self._plain:
            self._weights, self._old, self._new = weights, start, xp.empty(rows)
        else:
            held = [SegmentedVector(device, segments, int(n)) for n in (weights.size, rows, rows)]
            self._weights, self._old, self._new = held
            self._weights.write(weights, segments)
            self._old.write(start, segments)

    def run(self, tol: float, max_sweeps: int) -> CpmsRun:
        decided = [0]
        changes: list[float] = []
        raising = False
        for sweep in range(max_sweeps):
            change = self._sweep(raising)
            if raising:
                self._leading += 1
            raising = False
            if sweep == 0:
                continue
            before = changes[-1] if changes else math.inf
            changes.append(change)
            if change < tol:
                break
            if self._leading < self._segments:
                bits = _MANTISSA[self._segments][self._leading - 1]
                raising = change <= 10 * 2.0**-bits or change >= before
                if raising:
                    decided.append(sweep)
        ranks = self._old if self._plain else self._old.read(self._leading)
        parts = np.diff([*decided, len(changes)]).tolist()
        parts += [0] * (self._segments - len(parts))
        return CpmsRun(download(ranks), tuple(parts), tuple(changes))

    def _sweep(self, raising: bool) -> float:
        """Compute the next vector and make it the current one; returns by how much it changed."""
        xp, rows, leading = self._device.xp, self._matrix.rows, self._leading
        old = self._old if self._plain else self._old.read(leading)
        dangling = float(xp.abs(old[self._dangling]).sum())
        damping = np.float64(self._damping)
        constant = np.float64(damping * dangling / rows + (1 - damping) / rows)
        where = (self._matrix.offsets, self._matrix.columns)
        if self._plain:
            self._launch(
                "sweep_numbers", *where, self._weights, old, np.uint32(rows), damping, constant, self._new
            )
            change = float(xp.abs(self._new - old).sum())
            self._old, self._new = self._new, self._old
            return change
        written = min(leading + 1, self._segments)
        precision = (np.uint32(rows), np.int32(leading), damping, constant, np.int32(written))
        self._launch(
            "sweep_segments", *where, self._weights.array, self._old.array, *precision, self._new.array
        )
        seen = written if raising else leading
        new = self._new.read(seen)
        if raising:
            self._new.write(new / float(xp.abs(new).sum()), written)
            new, old = self._new.read(seen), self._old.read(seen)
        change = float(xp.abs(new - old).sum())
        self._old, self._new = self._new, self._old
        if leading == self._segments:
            # All segments were read and written: from here on the same numbers in plain float64.
            self._plain = True
            self._weights, self._old, self._new = (v.plain() for v in (self._weights, self._old, self._new))
        return change

    def _launch(self, name: str, *arguments: Any) -> None:
        self._kernels.get_function(name)(grid(self._matrix.rows), (THREADS,), arguments)
