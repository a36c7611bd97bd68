"""The backend for CUDA devices: everything of a run stays on the device, the host only says what comes next.

All work of a process is launched on one stream, tile after tile, and nothing is waited for until the sums of
a pass are asked for. Workspaces of kernels are kept from tile to tile.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import inf
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np

from oocpr.engine.cuda.communication import Communicator
from oocpr.engine.cuda.diagonal_blocks import find_diagonal_blocks, sweep_diagonal_blocks
from oocpr.engine.cuda.gather_vector import (
    DeviceGatherVector,
    PartitionedGatherVector,
    carry_sums,
    load_pushes,
)
from oocpr.engine.cuda.spmv import Gather, SegmentSums, SpMV, launch_config
from oocpr.engine.cuda.staging import CudaTileStream
from oocpr.engine.cuda.tile import CudaTile, load_tile, raise_faults, upload_weights
from oocpr.engine.cuda.vectors import LocalWorkspace, TileRows, Vectors
from oocpr.engine.tiles.source import split_tile
from oocpr.errors import DamagedError, UsageError
from oocpr.store.codec.layout import blocks_of
from oocpr.store.codec.mantissa_segments import parse_segments

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from oocpr.engine.backend import PublishStep, PushSums, StripeSpec, SweepStep, TileSums
    from oocpr.engine.cuda.device import Device
    from oocpr.engine.cuda.papers.products import BinThresholds, Matrix
    from oocpr.engine.cuda.papers.products import Product as Baseline
    from oocpr.engine.cuda.tile import DeviceTile
    from oocpr.engine.cuda.vectors import RowState
    from oocpr.engine.tiles.stream import TileBytes

LOCAL_SWEEPS = 2
"""Sweeps here for one of the processor's, which lets a row read what the rows before it have just become."""

DIAGONAL_SWEEPS = 2
"""The same inside diagonal blocks, where they cost little."""


class CudaBackend:
    """Kernels on one device.

    `kernel`: a name of :data:`oocpr.engine.cuda.papers.products.KERNELS`: what delivers pushes to rows.
    `pairs`: whether rows also gather the proposals of tiles before theirs, at twice the bytes.
    `rows_in_host`: whether what a row has is kept in memory of the host, which kernels reach by the link.
    `diagonal_blocks_from`: edges from which on a resident tile is swept in diagonal blocks; else as a whole.
    `thresholds`: how kernel ``binned`` divides rows; None for the default.
    `limit`: most bytes of the device that may be taken until the backend is closed; None for no limit.
    `slices`: partitions of what rows gather, which are on the device one after the other; several only
        without pairs, and with the balanced kernel. The pushes are then in memory of the host.
    """

    name = "cuda"

    def __init__(
        self,
        device: Device,
        kernel: str = "balanced",
        *,
        pairs: bool = True,
        rows_in_host: bool = False,
        diagonal_blocks_from: float = inf,
        thresholds: BinThresholds | None = None,
        limit: int | None = None,
        slices: int = 1,
    ) -> None:
        self._device, self.slices = device, slices
        self._limited = limit is not None
        self._limit_before = device.limit(limit)
        device.forget_taken()
        self._opened: list[ref[Any]] = []
        self._kernel = kernel
        self._pairs = pairs
        self._rows_in_host = rows_in_host
        self._diagonal_blocks_from = diagonal_blocks_from
        self._thresholds = thresholds
        self._lock = Lock()
        self._most = 0, 0
        self._vectors: dict[tuple[str, bool, int, bool], Vectors] = {}
        self._products: dict[tuple[Gather, bool, bool, bool, bool], SpMV] = {}
        try:
            with device:
                self._sums = SegmentSums.allocate(device, 1, 1, paired=pairs)
                self._local = LocalWorkspace(device, 1)
                self._faults = device.xp.zeros(1, np.uint32)
        except BaseException:
            # Nobody has this backend, so nobody can close it.
            self.close()
            raise

    def allocate(
        self,
        spec: StripeSpec,
        degree: NDArray[Any],
        teleport: NDArray[np.float64] | None,
        start: NDArray[np.float64] | None = None,
    ) -> RowState:
        """See Backend."""
        with self._device, self._lock:
            if self._limited:
                # What is held back of earlier rows and tiles would be cut up, and lost to what is larger.
                self._device.limit(None)
            weighted = degree.dtype == np.float64
            state = self._vectors_of(spec, weighted=weighted).allocate(spec, degree, teleport, start)
            self._opened.append(ref(state))
        return state

    def allocate_reads(self, nodes: int, reads: str, proposals: bool) -> DeviceGatherVector:
        """See Backend."""
        made = DeviceGatherVector(self._device, nodes, reads, paired=proposals and self._pairs)
        if self.slices > 1:
            made = PartitionedGatherVector(self._device, nodes, reads, self.slices)
        self._opened.append(ref(made))
        return made

    def publish(self, state: RowState, step: PublishStep) -> tuple[Any, Callable[[], PushSums]]:
        """See Backend."""
        with self._device, self._lock:
            self._vectors_for(state).publish(state, step)
            return state.stored[: state.spec.rows], partial(self._pushed, state)

    def _pushed(self, state: RowState) -> PushSums:
        with self._device, self._lock:
            return self._vectors_for(state).pushed(state)

    def select_partition(self, reads: DeviceGatherVector, number: int, *, bring: bool) -> None:
        """See Streams."""
        with self._device, self._lock:
            reads.select_partition(number, bring=bring)

    def load(self, reads: DeviceGatherVector, row_begin: int, pushed: Any) -> None:
        """See Backend; the push of a stripe of this device that has all rows is gathered where it is."""
        if not reads.take(pushed):
            with self._device, self._lock:
                load_pushes(self._device, reads, row_begin, pushed)

    def prepare(self, encoded: NDArray[np.uint8], nodes: int, decode: bool) -> CudaTile:
        """See Backend; columns stay packed, those of a tile that stays are checked."""
        with self._device, self._lock:
            return load_tile(
                self._device, encoded, nodes, self._faults, checked=decode, decoded=self._kernel != "balanced"
            )

    def prepare_weighted(
        self,
        encoded: NDArray[np.uint8],
        weights: NDArray[np.uint8],
        factor: float,
        nodes: int,
        decode: bool,
    ) -> CudaTile:
        """See Backend."""
        if self._kernel != "balanced":
            raise UsageError(
                f"kernel {self._kernel!r} takes no weighted graphs.", "Use kernel balanced, or leave it out."
            )
        with self._device, self._lock:
            tile = load_tile(self._device, encoded, nodes, self._faults, checked=decode, decoded=False)
            placed = upload_weights(self._device, parse_segments(weights), tile.there.edges, factor)
        tile.there = replace(tile.there, weights=placed)
        return tile

    @property
    def taken_bytes(self) -> int:
        """See Streams."""
        return self._device.taken_bytes

    def close(self) -> None:
        """See Streams; what was made here is freed whoever has it, as the error of a run that failed may."""
        while self._opened:
            made = self._opened.pop()()
            if made is not None:
                made.close()
        for room in ("_sums", "_local", "_faults"):
            vars(self).pop(room, None)
        if self._limited:
            self._limited = False
            self._device.limit(self._limit_before)

    def join_group(self, unique_id: Any, rank: int, size: int) -> Communicator:
        """Take a place among devices of other processes; returns once all have come."""
        return Communicator(self._device, unique_id, rank, size)

    def open_stream(
        self,
        source: TileBytes,
        tiles: Sequence[int],
        nodes: int,
        *,
        on_device: frozenset[int],
        factor: float | None = None,
        **ring: Any,
    ) -> CudaTileStream:
        """See Streams.

        Raises UsageError if a kernel of decoded tiles has some that are not resident, or partitions.
        """
        if self._kernel != "balanced" and (len(on_device) < len(tiles) or self.slices > 1):
            raise UsageError(
                f"kernel {self._kernel!r} needs the graph in the memory of the device.",
                "Give it more device memory, or use kernel balanced.",
            )
        with self._lock:
            # At once and whole: what grows tile by tile leaves holes that nothing else fits into.
            edges, segments = self._most
            self._most = max(edges, ring["edges"]), max(segments, ring["segments"])

        def keep(encoded: NDArray[np.uint8]) -> CudaTile:
            if factor is None:
                return self.prepare(encoded, nodes, True)
            return self.prepare_weighted(*split_tile(encoded), factor, nodes, True)

        stream = CudaTileStream(
            self._device,
            source,
            tiles,
            on_device=on_device,
            factor=factor,
            keep=keep,
            wrap_streamed=lambda arrived: CudaTile(arrived, False),
            faults=self._faults,
            **ring,
        )
        self._opened.append(ref(stream))
        return stream

    def sweep_tile(
        self,
        state: RowState,
        reads: DeviceGatherVector,
        tile: CudaTile,
        rows: tuple[int, int],
        step: SweepStep,
        before: TileRows | None,
    ) -> TileRows:
        """See Backend; returns before any of it is done."""
        spec, there = state.spec, tile.there
        begin, end = rows
        if there.segments != end - begin + 1:
            raise DamagedError(f"a tile has {there.segments} segments where {end - begin + 1} belong.")
        number, place = (before.number + 1, before.place + before.blocks) if before else (0, 0)
        swept = TileRows(number, begin, end - begin, begin - spec.row_begin, place)
        with self._device, self._lock:
            inside = spec.proposals and step.sweeps > 1
            self._make_room(there, swept.owned if inside else 0)
            gather = Gather(spec.reads, reads.paired, reads.paired and spec.rows < spec.nodes)
            part = reads if isinstance(reads, PartitionedGatherVector) else None
            window = (spec.row_begin, begin) if part is None else part.window
            if tile.matrix is None:
                product = self._product(
                    gather, checked=not tile.checked, weighted=state.weighted, local=part is not None,
                    hubs=tile.hubs and part is None,
                )  # fmt: skip
                product(there, reads.array, spec.nodes, window, self._sums, self._faults)
                delivered = there
            else:
                laid = tile.laid = tile.laid or self._lay(tile.matrix, gather)
                laid(reads.array, self._sums.pushes, self._sums.proposals if gather.paired else None, window)
                delivered = replace(there, filled=None, filled_before=None)
            if part is not None:
                carry_sums(self._device, state, self._sums, there, swept, part.turn)
                if not part.last:
                    return swept
            local = self._local if inside else None
            # Diagonal blocks know which rows have edges, not their weights.
            enough = tile.checked and there.edges >= self._diagonal_blocks_from
            diagonal = local is not None and enough and there.weights is None
            room = (None, None) if local is None else (local.start, None if diagonal else local.sends)
            self._vectors_for(state).update(state, self._sums, delivered, swept, step, reads, room)
            if diagonal:
                self._sweep_diagonal_blocks(state, reads, tile, swept, step)
            elif local is not None:
                self._sweep_inside(state, reads, there, swept, step)
        return swept

    def _sweep_diagonal_blocks(
        self, state: RowState, reads: DeviceGatherVector, tile: CudaTile, rows: TileRows, step: SweepStep
    ) -> None:
        if tile.diagonal_blocks is None:
            tile.diagonal_blocks = find_diagonal_blocks(
                self._device, tile.there, rows.owned, rows.first, state.spec.nodes
            )
            if self._limited:
                # As in `allocate`: what finding took is as large as a tile.
                self._device.limit(None)
        turns = DIAGONAL_SWEEPS * (step.sweeps - 1)
        sweep_diagonal_blocks(
            self._device, tile.diagonal_blocks, self._local.start, state, rows, step, reads, turns
        )

    def _sweep_inside(
        self, state: RowState, reads: DeviceGatherVector, there: DeviceTile, rows: TileRows, step: SweepStep
    ) -> None:
        local, sums, vectors = self._local, self._sums, self._vectors_for(state)
        product = self._product(Gather("float32"), local=True, weighted=state.weighted)
        window = (rows.first, rows.first + rows.owned)
        if there.weights is not None:
            there = replace(there, weights=there.weights.heads)
        turns = LOCAL_SWEEPS * (step.sweeps - 1)
        for turn in range(turns):
            product(there, local.sends, state.spec.nodes, window, sums, self._faults)
            if turn < turns - 1:
                vectors.settle(state, sums, there, rows, step, local)
        vectors.propose(state, sums, there, rows, step, reads, local)

    def sums(self, state: RowState, swept: Sequence[TileRows], step: SweepStep) -> TileSums:
        """See Backend."""
        with self._device, self._lock:
            sums, faults = self._vectors_for(state).totals(state, swept[-1], step, self._faults)
            if faults:
                self._faults[:] = 0
            raise_faults(faults)
        return sums

    def first_row(self, state: RowState, live: tuple[int, ...]) -> NDArray[np.float64]:  # noqa: ARG002
        """See Backend."""
        return state.first_row

    def finish(self, state: RowState, carry: float) -> NDArray[np.float64]:
        """See Backend."""
        with self._device, self._lock:
            return self._vectors_for(state).finish(state, carry)

    def _make_room(self, tile: DeviceTile, owned: int) -> None:
        """Have the rooms of the largest tile, and of so many rows that are swept inside, all empty."""
        room, (most_edges, most_segments) = self._sums, self._most
        sums = tile.nonempty if self._kernel == "balanced" else tile.segments
        if sums > room.pushes.size or tile.blocks > room.heads.size:
            most = min(most_edges, most_segments) if self._kernel == "balanced" else most_segments
            sums, blocks = max(sums, most), max(tile.blocks, blocks_of(most_edges))
            self._sums = SegmentSums.allocate(self._device, sums, blocks, paired=self._pairs)
        if owned > self._local.start.size:
            self._local = LocalWorkspace(self._device, max(owned, most_segments - 1))

    def _vectors_of(self, spec: StripeSpec, *, weighted: bool) -> Vectors:
        key = (spec.reads, spec.proposals, spec.slots, weighted)
        if key not in self._vectors:
            self._vectors[key] = Vectors(
                self._device, spec, pairs=self._pairs, in_host=self._rows_in_host, weighted=weighted,
                sliced=self.slices > 1,
            )  # fmt: skip
        return self._vectors[key]

    def _vectors_for(self, state: RowState) -> Vectors:
        return self._vectors_of(state.spec, weighted=state.weighted)

    def _product(
        self,
        gather: Gather,
        *,
        checked: bool = False,
        local: bool = False,
        hubs: bool = False,
        weighted: bool = False,
    ) -> SpMV:
        key = (gather, checked, local, hubs, weighted)
        if key not in self._products:
            near = self._device.shared_bytes if hubs else 0
            config = launch_config(gather.reads, paired=gather.paired, shared_bytes=near, weighted=weighted)
            self._products[key] = SpMV(
                self._device,
                gather.reads,
                paired=gather.paired,
                striped=gather.striped,
                checked=checked,
                weighted=weighted,
                local=local,
                config=config,
            )
        return self._products[key]

    def _lay(self, matrix: Matrix, gather: Gather) -> Baseline:
        from oocpr.engine.cuda.papers.products import BASELINES

        options = {} if self._thresholds is None else {"thresholds": self._thresholds}
        return BASELINES[self._kernel].make(self._device, matrix, gather, **options)
