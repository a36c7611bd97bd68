"""The backend for processors: compiled by numba, all threads of a team on one tile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.engine.backends.base import Pushed, StripeSpec, TileSums
from oocpr.engine.backends.cpu_deliver import PIECE, pieces_of
from oocpr.engine.backends.cpu_numbers import scaled_table
from oocpr.engine.backends.cpu_rows import BLOCK
from oocpr.engine.backends.cpu_tile import Rows, TileArrays, publish, sweep
from oocpr.engine.backends.team import Team, usable_cores
from oocpr.engine.reads import READS
from oocpr.errors import DamagedError
from oocpr.store.layout import REMEDY, PackedTile, parse_tile
from oocpr.store.unpacking import decode_columns, expand_segments

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oocpr.engine.backends.base import PublishStep, SweepStep


@dataclass
class CpuState:
    """A stripe's rows, and the push they made last."""

    spec: StripeSpec
    rows: Rows
    pushed: NDArray[np.generic]


@dataclass
class CpuReads:
    """What rows gather.

    Parameters
    ----------
    numbers
        Push of each node, or push and proposal side by side; zeros after the last node.
    stride
        Numbers a node.
    """

    numbers: NDArray[np.generic]
    stride: int


@dataclass
class CpuTile:
    """A tile ready to be swept.

    Parameters
    ----------
    packed
        Its bytes, checked.
    decoded
        First edge and number of each non-empty segment, and the columns, where they are kept.
    """

    packed: PackedTile
    decoded: tuple[NDArray[np.uint32], NDArray[np.uint32], NDArray[np.uint32]] | None = None


class CpuBackend:
    """numba on all cores.

    Parameters
    ----------
    threads
        Threads that work on one tile; None for all cores this process may use. Results do not depend on it.
    """

    name = "cpu"

    def __init__(self, threads: int | None = None) -> None:
        self._team = Team(threads or usable_cores())
        self._scratch: list[_Scratch] = []

    def allocate(
        self, spec: StripeSpec, degree: NDArray[np.uint32], teleport: NDArray[np.float64] | None
    ) -> CpuState:
        """See Backend."""
        rows, slots = spec.rows, spec.slots
        return CpuState(
            spec,
            Rows(
                np.zeros(rows),
                np.zeros(rows),
                degree,
                np.empty(0) if teleport is None else teleport,
                np.zeros(rows if spec.proposals else 0, np.float32),
                np.zeros((slots, rows), np.float32),
                np.zeros((slots, rows), np.float32),
            ),
            np.zeros(rows, READS[spec.reads].dtype),
        )

    def allocate_reads(self, nodes: int, reads: str, proposals: bool) -> CpuReads:
        """See Backend."""
        stride = 1 + proposals
        return CpuReads(np.zeros((nodes + 1) * stride, READS[reads].dtype), stride)

    def publish(self, state: CpuState, step: PublishStep) -> tuple[NDArray[np.generic], Pushed]:
        """See Backend."""
        rows, spec = state.rows, state.spec
        if spec.rows:
            rows.r[0] += step.carry
            if spec.proposals:
                rows.push[0] += np.float32(step.carry)
            if step.carry_slot >= 0:
                rows.changes[step.carry_slot, 0] += np.float32(step.carry)
        kind = 0 if step.start else 1 if step.restart else 3 if spec.proposals else 2
        sums = np.zeros((-(-spec.rows // BLOCK), 3))
        self._team.run(
            publish,
            rows,
            1 / spec.nodes,
            np.array([slot for slot, _ in step.weights], np.int64),
            np.array([theta for _, theta in step.weights], np.float64),
            kind,
            state.pushed,
            scaled_table(step.scale),
            step.scale,
            sums,
        )
        return state.pushed, Pushed(*_in_order(sums).tolist())

    def load(self, reads: CpuReads, row_begin: int, pushed: NDArray[np.generic]) -> None:
        """See Backend."""
        stride = reads.stride
        reads.numbers[stride * row_begin : stride * (row_begin + len(pushed)) : stride] = pushed

    def prepare(self, encoded: NDArray[np.uint8], nodes: int, decode: bool) -> CpuTile:
        """See Backend."""
        packed = parse_tile(encoded)
        if not decode:
            return CpuTile(packed)
        positions, segments = (np.empty(packed.nonempty + 1, np.uint32) for _ in range(2))
        starts = np.empty(packed.nonempty, np.uint32)
        expand_segments(packed, positions, starts, segments)
        columns = np.empty(packed.edges, np.uint32)
        decode_columns(packed, positions, starts, columns)
        _check_column(int(columns.max(initial=0)), nodes)
        return CpuTile(packed, (positions, segments, columns))

    def sweep_tile(
        self,
        state: CpuState,
        reads: CpuReads,
        tile: CpuTile,
        rows: tuple[int, int],
        step: SweepStep,
        carry: tuple[float, float],
    ) -> TileSums:
        """See Backend."""
        spec, packed = state.spec, tile.packed
        owned = rows[1] - rows[0]
        if packed.segments != owned + 1:
            raise DamagedError(f"a tile has {packed.segments} segments where {owned + 1} belong.", REMEDY)
        keep = spec.proposals and step.sweeps > 1
        scratch = self._scratch.pop() if self._scratch else _Scratch()
        arrays = scratch.arrays(packed, owned, len(step.live), keep, self._team.size)
        if tile.decoded is None:
            expand_segments(packed, arrays.positions, arrays.starts, arrays.segments)
        else:
            positions, segments, columns = tile.decoded
            arrays = arrays._replace(positions=positions, segments=segments, columns=columns)
        most = np.zeros(self._team.size, np.uint32)
        peaks = spec.reads == "bits8"
        self._team.run(
            sweep,
            packed,
            tile.decoded is not None,
            keep or tile.decoded is not None,
            arrays,
            state.rows,
            reads.numbers,
            scaled_table(step.scale),
            spec.nodes,
            rows[0],
            owned,
            rows[0] - spec.row_begin,
            spec.row_begin,
            spec.proposals,
            step.sweeps,
            step.damping,
            step.base,
            step.uniform,
            1 / spec.nodes,
            step.slot,
            np.array(step.live, np.int64),
            carry[0],
            carry[1],
            peaks,
            step.scale,
            most,
        )
        _check_column(int(most.max()), spec.nodes)
        sums = self._tile_sums(arrays, owned, step, peaks)
        self._scratch.append(scratch)
        return sums

    def _tile_sums(self, arrays: TileArrays, owned: int, step: SweepStep, peaks: bool) -> TileSums:
        live = len(step.live)
        added = _in_order(arrays.sums[:, : 1 + 2 * live])
        high = np.zeros(1 + live)
        if peaks and len(arrays.sums):
            high = arrays.sums[:, 1 + 2 * live :].max(axis=0)
        return TileSums(
            (float(arrays.pushes[owned]), float(arrays.proposals[owned])),
            float(added[0]),
            added[1 : 1 + live],
            added[1 + live :],
            high,
        )

    def first_row(self, state: CpuState, live: tuple[int, ...]) -> NDArray[np.float64]:
        """See Backend."""
        rows = state.rows
        return np.array([rows.r[0], *(float(rows.changes[slot, 0]) for slot in live)])

    def finish(self, state: CpuState, carry: float) -> NDArray[np.float64]:
        """See Backend."""
        result = state.rows.p + state.rows.r
        if len(result):
            result[0] += carry
        return result


def _check_column(column: int, nodes: int) -> None:
    if column >= nodes:
        raise DamagedError(f"a tile has column {column} of {nodes} nodes.", REMEDY)


def _in_order(blocks: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum of the blocks, first to last; zeros where there are none."""
    return np.cumsum(blocks, axis=0)[-1] if len(blocks) else np.zeros(blocks.shape[1])


class _Scratch:
    """Memory of one tile, kept from tile to tile and grown when a larger one comes."""

    def __init__(self) -> None:
        self._pool: dict[str, NDArray[Any]] = {}

    def arrays(self, tile: PackedTile, owned: int, live: int, keep: bool, threads: int) -> TileArrays:
        """Return arrays of the sizes that a tile needs; their contents are undefined."""
        segments = owned + 1
        pieces = int(pieces_of(tile.edges))
        columns = tile.edges if keep else threads * PIECE * 1024
        return TileArrays(
            positions=self._take("positions", tile.nonempty + 2, np.uint32),
            starts=self._take("starts", tile.nonempty, np.uint32),
            segments=self._take("segments", tile.nonempty + 2, np.uint32),
            columns=self._take("columns", columns, np.uint32),
            pushes=self._take("pushes", segments, np.float64),
            proposals=self._take("proposals", segments, np.float64),
            ends=self._take("ends", pieces * 2, np.float64).reshape(pieces, 2),
            total=self._take("total", segments, np.float32),
            shares=self._take("shares", segments, np.float32),
            after=self._take("after", segments, np.float32),
            sums=np.zeros((-(-owned // BLOCK), 2 + 3 * live)),
        )

    def _take(self, name: str, items: int, dtype: Any) -> NDArray[Any]:
        held = self._pool.get(name)
        if held is None or len(held) < items:
            held = self._pool[name] = np.empty(items, dtype)
        return held[:items]
