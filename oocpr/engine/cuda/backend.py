"""The backend for CUDA devices: everything of a run stays on the device, the host only says what comes next.

All work of a process is launched on one stream, tile after tile, and nothing is waited for until the sums of
a pass are asked for. Workspaces of kernels are kept from tile to tile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from oocpr.engine.cuda.communication import Communicator
from oocpr.engine.cuda.device import THREADS, download
from oocpr.engine.cuda.spmv import READ_STRUCTS, Gather, SegmentSums, SpMV, enough_hubs, launch_config
from oocpr.engine.cuda.staging import CudaTileStream
from oocpr.engine.cuda.tile import CudaTile, check_columns, raise_faults, upload_tile, upload_weights
from oocpr.engine.cuda.vectors import (
    DeviceGatherVector,
    LocalWorkspace,
    PartitionedGatherVector,
    RowState,
    TileRows,
)
from oocpr.engine.tiles.source import split_tile
from oocpr.errors import DamagedError, UsageError
from oocpr.store.codec.layout import blocks_of, parse_tile
from oocpr.store.codec.mantissa_segments import parse_segments
from oocpr.store.codec.tiles import decode_tile

if TYPE_CHECKING:
    from oocpr.engine.backend import PushStep, PushSums, StripeSpec, SweepStep, TileSums
    from oocpr.engine.cuda.baselines import BinThresholds
    from oocpr.engine.cuda.device import Device
    from oocpr.engine.cuda.tile import DeviceTile
    from oocpr.engine.tiles.stream import TileBytes

LOCAL_SWEEPS = 2
"""Sweeps here for one of the processor's, which lets a row read what the rows before it have just become."""

DIAGONAL_SWEEPS = 2
"""The same inside diagonal blocks, where they cost little."""

DIAGONAL_ROWS = THREADS - 1
"""Rows of a diagonal block; one number more stands for no row."""

SLICE_LANES = 32
SLICES = THREADS // SLICE_LANES


class CudaBackend:
    """Kernels on one device; see Backend and Streams.

    `kernel`: a name of :data:`oocpr.engine.cuda.baselines.KERNELS`: what delivers pushes to rows.
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
        device.reset_allocated()
        self._opened: list[ref[Any]] = []
        self._kernel = kernel
        self._pairs = pairs
        self._rows_in_host = rows_in_host
        self._diagonal_blocks_from = diagonal_blocks_from
        self._thresholds = thresholds
        self._lock = Lock()
        # Edges and segments of the largest tile.
        self._largest = 0, 0
        self._products: dict[tuple[Gather, bool], SpMV] = {}
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
            state = RowState(
                self._device, spec, degree, teleport, start,
                pairs=self._pairs, in_host=self._rows_in_host, partitioned=self.slices > 1,
            )  # fmt: skip
            self._opened.append(ref(state))
        return state

    def allocate_reads(self, nodes: int, reads: str, proposals: bool) -> DeviceGatherVector:
        """See Backend."""
        if self.slices > 1:
            made: DeviceGatherVector = PartitionedGatherVector(self._device, nodes, reads, self.slices)
        else:
            made = DeviceGatherVector(self._device, nodes, reads, paired=proposals and self._pairs)
        self._opened.append(ref(made))
        return made

    def make_push(self, state: RowState, step: PushStep) -> tuple[Any, Callable[[], PushSums]]:
        """See Backend."""

        def sums() -> PushSums:
            with self._device, self._lock:
                return state.push_sums()

        with self._device, self._lock:
            state.make_push(step)
            return state.stored[: state.spec.rows], sums

    def select_partition(self, reads: DeviceGatherVector, number: int, *, bring: bool) -> None:
        """See Streams."""
        with self._device, self._lock:
            reads.select_partition(number, bring=bring)

    def load(self, reads: DeviceGatherVector, row_begin: int, pushed: Any) -> None:
        """See Backend; the push of a stripe of this device that has all rows is gathered where it is."""
        if not reads.take(pushed):
            with self._device, self._lock:
                reads.load(row_begin, pushed)

    def prepare(self, encoded: NDArray[np.uint8], nodes: int, decode: bool) -> CudaTile:
        """See Backend; columns stay packed, those of a tile that stays are checked."""
        device, faults = self._device, self._faults
        with device, self._lock:
            there = upload_tile(device, parse_tile(encoded), faults)
            tile = CudaTile(there, decode)
            if decode:
                hub_edges = check_columns(device, there, nodes, faults)
                found = int(download(faults)[0])
                if found:
                    faults[:] = 0
                    raise_faults(found)
                tile.hubs = enough_hubs(int(download(hub_edges)[0]), there.edges)
            if self._kernel != "balanced":
                from oocpr.engine.cuda.baselines import Matrix

                columns, lengths = decode_tile(encoded)
                if columns.max(initial=0) >= nodes:
                    raise DamagedError(f"a tile has column {columns.max()} of {nodes} nodes.")
                offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.uint32)
                tile.matrix = Matrix(device.xp.asarray(offsets), device.xp.asarray(columns), nodes)
        return tile

    def prepare_weighted(
        self, encoded: NDArray[np.uint8], weights: NDArray[np.uint8], factor: float, nodes: int, decode: bool
    ) -> CudaTile:
        """See Backend."""
        if self._kernel != "balanced":
            raise UsageError(
                f"kernel {self._kernel!r} takes no weighted graphs.", "Use kernel balanced, or leave it out."
            )
        tile = self.prepare(encoded, nodes, decode)
        with self._device, self._lock:
            placed = upload_weights(self._device, parse_segments(weights), tile.there.edges, factor)
        tile.there = replace(tile.there, weights=placed)
        return tile

    @property
    def allocated_bytes(self) -> int:
        """See Streams."""
        return self._device.allocated_bytes

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
            edges, segments = self._largest
            self._largest = max(edges, ring["edges"]), max(segments, ring["segments"])

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
            sums, local = self._sums, self._local
            gather = Gather(spec.reads, reads.paired, reads.paired and spec.rows < spec.nodes)
            part = reads if isinstance(reads, PartitionedGatherVector) else None
            window = (spec.row_begin, begin) if part is None else part.window
            if tile.matrix is None:
                gather = replace(
                    gather, checked=not tile.checked, weighted=state.weighted, local=part is not None
                )
                product = self._product(gather, hubs=tile.hubs and part is None)
                product(there, reads.array, spec.nodes, window, sums, self._faults)
                delivered = there
            else:
                if tile.laid is None:
                    from oocpr.engine.cuda.baselines import BASELINES

                    options = {} if self._thresholds is None else {"thresholds": self._thresholds}
                    tile.laid = BASELINES[self._kernel].make(self._device, tile.matrix, gather, **options)
                tile.laid(reads.array, sums.pushes, sums.proposals if gather.paired else None, window)
                delivered = replace(there, filled=None, filled_before=None)
            if part is not None:
                part.carry_sums(state, sums, there, swept)
                if not part.last:
                    return swept
            # Diagonal blocks know which rows have edges, not their weights.
            enough = tile.checked and there.edges >= self._diagonal_blocks_from
            diagonal = inside and enough and there.weights is None
            room = (local.start if inside else None, local.sends if inside and not diagonal else None)
            state.update(sums, delivered, swept, step, reads, room)
            if diagonal:
                if tile.diagonal_blocks is None:
                    tile.diagonal_blocks = find_diagonal_blocks(
                        self._device, there, swept.owned, swept.first, spec.nodes
                    )
                    if self._limited:
                        # As in `allocate`: what finding took is as large as a tile.
                        self._device.limit(None)
                turns = DIAGONAL_SWEEPS * (step.sweeps - 1)
                sweep_diagonal_blocks(
                    self._device, tile.diagonal_blocks, local.start, state, swept, step, reads, turns
                )
            elif inside:
                self._sweep_inside(state, reads, there, swept, step)
        return swept

    def _sweep_inside(
        self, state: RowState, reads: DeviceGatherVector, there: DeviceTile, rows: TileRows, step: SweepStep
    ) -> None:
        local, sums = self._local, self._sums
        product = self._product(Gather("float32", weighted=state.weighted, local=True))
        window = (rows.first, rows.first + rows.owned)
        if there.weights is not None:
            there = replace(there, weights=there.weights.heads)
        turns = LOCAL_SWEEPS * (step.sweeps - 1)
        for turn in range(turns):
            product(there, local.sends, state.spec.nodes, window, sums, self._faults)
            state.end_local_sweep(sums, there, rows, step, local, reads if turn == turns - 1 else None)

    def sums(self, state: RowState, swept: Sequence[TileRows], step: SweepStep) -> TileSums:
        """See Backend."""
        with self._device, self._lock:
            sums, faults = state.tile_sums(swept[-1], step, self._faults)
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
            return state.finish(carry)

    def _make_room(self, tile: DeviceTile, owned: int) -> None:
        """Have room for a tile's sums, and for so many rows that are swept inside.

        At once for the largest tile: what grows tile by tile leaves holes that nothing else fits into.
        """
        edges, segments = self._largest
        balanced = self._kernel == "balanced"
        count = tile.nonempty if balanced else tile.segments
        if count > self._sums.pushes.size or tile.blocks > self._sums.heads.size:
            count = max(count, min(edges, segments) if balanced else segments)
            blocks = max(tile.blocks, blocks_of(edges))
            self._sums = SegmentSums.allocate(self._device, count, blocks, paired=self._pairs)
        if owned > self._local.start.size:
            self._local = LocalWorkspace(self._device, max(owned, segments - 1))

    def _product(self, gather: Gather, *, hubs: bool = False) -> SpMV:
        if (gather, hubs) not in self._products:
            config = launch_config(gather, self._device.shared_bytes if hubs else 0)
            self._products[gather, hubs] = SpMV(self._device, gather, config)
        return self._products[gather, hubs]


@dataclass(frozen=True)
class DiagonalBlocks:
    """The diagonal blocks of a tile, block Jacobi on neighbouring rows; arrays of the device."""

    count: int
    before: Any  # uint32, shape (8 * count + 1,): rows of 32 words before each slice of 32 rows
    order: Any  # uint8, shape (256 * count,): numbers of a block's rows, most edges first
    selves: Any  # uint32, shape (8 * count,): bit l says whether row l of a slice has an edge to itself
    edges: Any  # uint32: four edges per word, one word per lane


def find_diagonal_blocks(
    device: Device, tile: DeviceTile, owned: int, first: int, nodes: int
) -> DiagonalBlocks:
    """Find the edges inside diagonal blocks; waits for the device once.

    The columns of the tile are known to be nodes; `owned` rows are its own, the first of them is `first`.
    """
    xp = device.xp
    kernels = device.load("diagonal_blocks.cu")
    count = -(-owned // DIAGONAL_ROWS)
    columns, edges_of = xp.empty(tile.edges, np.uint32), xp.empty(tile.nonempty, np.uint32)
    if tile.edges:
        check_columns(device, tile, nodes, xp.zeros(1, np.uint32), columns)
        kernels.get_function("list_begins")(
            (-(-tile.blocks // SLICES),),
            (THREADS,),
            (tile.begins, tile.ranks, np.uint32(tile.edges), edges_of),
        )
    words = xp.zeros(SLICES * count + 1, np.uint32)
    rows = (
        tile.filled, tile.filled_before, edges_of, np.uint32(tile.nonempty), np.uint32(tile.edges), columns,
        np.uint32(owned), np.uint32(first),
    )  # fmt: skip
    if count:
        kernels.get_function("measure_islands")((count,), (THREADS,), (*rows, words))
    before = xp.zeros_like(words)
    before[1:] = xp.cumsum(words[:-1], dtype=np.uint32)
    blocks = DiagonalBlocks(
        count,
        before,
        xp.empty(THREADS * count, np.uint8),
        xp.empty(SLICES * count, np.uint32),
        xp.empty(SLICE_LANES * int(download(before[-1:])[0]), np.uint32),
    )
    if count:
        arrays = (before, blocks.order, blocks.selves, blocks.edges)
        kernels.get_function("fill_islands")((count,), (THREADS,), (*rows, *arrays))
    return blocks


def sweep_diagonal_blocks(
    device: Device,
    blocks: DiagonalBlocks,
    start: Any,
    state: RowState,
    rows: TileRows,
    step: SweepStep,
    numbers: DeviceGatherVector,
    turns: int,
) -> None:
    """Sweep `turns` times inside each diagonal block and keep what its rows propose.

    `start`: float32, shape (rows of the tile,): what they have from outside.
    """
    if not blocks.count:
        return
    reads = READ_STRUCTS[state.spec.reads]
    kernels = device.load("diagonal_blocks.cu", READS=reads, PAIRED=int(numbers.paired))
    kernels.get_function("sweep_islands")(
        (blocks.count,),
        (THREADS,),
        (
            start, blocks.before, blocks.order, blocks.selves, blocks.edges, np.uint32(turns),
            np.uint64(rows.owned), np.uint64(rows.offset), np.uint64(state.spec.rows), state.stored,
            state.degree, np.float64(step.damping), np.float64(step.scale), np.int32(step.slot), state.steps,
            state.push, numbers.array, np.uint64(rows.first),
        ),
    )  # fmt: skip
