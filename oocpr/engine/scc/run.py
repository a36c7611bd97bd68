"""A run on a graph in memory: solve, push, deliver, until what is left is small enough.

Sums over rows are made by blocks and added in their order, so they do not depend on the number of threads.
"""

from __future__ import annotations

import contextlib
import math
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numba import float32, float64, uint32, uint64
from numpy.typing import NDArray

from oocpr.engine.cpu.gather import SLICE_ROWS, sum_long_row, sum_slice
from oocpr.engine.cpu.numbers import ROW_BLOCK, add_up, norm
from oocpr.engine.cpu.threads import THREAD_EDGES, Team, barrier, parallel_region
from oocpr.engine.method import PassRecord, Solution, as_distribution
from oocpr.engine.scc.block import RowOrder, order_rows
from oocpr.engine.scc.level_schedule import (
    EDGES_PER_THREAD,
    MAX_REGIONS,
    SHARED,
    schedule_blocks,
    schedule_rows,
)
from oocpr.engine.scc.solve import DEPTH, REL_TOL, TERMS, Contributions, balanced_range, solve
from oocpr.engine.settings import ROUNDING
from oocpr.engine.tiles.source import weight_scale_of
from oocpr.errors import DamagedError
from oocpr.jit import entry, inner
from oocpr.plan.forecast import COMPONENT_PASSES
from oocpr.store.codec.mantissa_segments import join_segments
from oocpr.store.codec.tiles import decode_tile
from oocpr.store.direct_io import zeros_in_huge_pages
from oocpr.store.integrity import check_dangling, check_degrees
from oocpr.system import peak_resident, usable_cores

if TYPE_CHECKING:
    from oocpr.engine.scc.level_schedule import LevelSchedule
    from oocpr.engine.settings import Settings
    from oocpr.engine.tiles.source import RankedStore
    from oocpr.progress import Progress


_LINE = 64
"""Bytes of a line of the cache, at which arrays begin."""

MOST_THREADS = 8
"""On 16 cores, graphs of 3.2 and 3.9 M edges took 83 and 61 ms with eight threads, and 92 and 64 with 16."""


def component_threads(edges: int) -> int:
    """Threads that rank a graph of so many edges unless the caller says.

    >>> component_threads(2**19 - 1)
    1
    """
    return max(1, min(edges // EDGES_PER_THREAD, usable_cores(), MOST_THREADS))


_KEPT_BYTES = 1 << 26
"""Most bytes of a workspace that is kept from run to run. The system clears new memory: 3.6 MB of it took a
seventh of a run on 148 thousand edges that came after other work."""


class Workspace(NamedTuple):
    """What runs from a uniform teleport vector with that damping work in, one after the other."""

    damping: float
    vectors: RankVectors
    contributions: Contributions

    @property
    def nbytes(self) -> int:
        """Bytes it takes beside the graph."""
        arrays: list[NDArray[Any]] = [*self.vectors, *self.contributions]
        return sum(array.nbytes for array in arrays) - self.vectors.degree.nbytes


@dataclass(frozen=True)
class SccGraph:
    """What runs on a graph have in common, whatever their damping and teleport vector.

    `degree` is the out-degrees, `bytes_read` the encoded bytes that came from the store, `kept` the workspace
    of a run that has ended, if it is small. With `weights`, float64, those of the edges in their order, it is
    for blocks of vectors only, and `degree` is the out-weights, float64.
    """

    schedule: LevelSchedule
    degree: NDArray[Any]
    bytes_read: int
    weights: NDArray[np.float64] | None = None
    kept: list[Workspace] = field(default_factory=list)

    def take_workspace(self, damping: float) -> Workspace:
        """Have what a run works in, as the last one with this damping has left it or new; p is zero."""
        # Another thread may have it meanwhile.
        with contextlib.suppress(IndexError):
            kept = self.kept.pop()
            if kept.damping == damping:
                return kept._replace(vectors=kept.vectors._replace(p=np.zeros(len(self.degree))))
            del kept  # or it would be there beside the new one
        return _workspace(self, damping)

    def keep_workspace(self, workspace: Workspace) -> None:
        """Keep what a run has worked in for the next one; but for p, which are its ranks."""
        vectors = workspace.vectors._replace(p=np.empty(0), teleport=np.empty(0))
        workspace = workspace._replace(vectors=vectors)
        if workspace.nbytes <= _KEPT_BYTES:
            self.kept[:] = [workspace]

    @property
    def nbytes(self) -> int:
        """Bytes it takes."""
        arrays: list[NDArray[Any] | Workspace] = [self.degree, *self.schedule, *self.kept]
        if "order" in self.__dict__:
            arrays += self.order
        if self.weights is not None:
            arrays.append(self.weights)
        return sum(array.nbytes for array in arrays)

    @cached_property
    def order(self) -> RowOrder:
        """Order of the rows for blocks of vectors, found when it is first asked for."""
        return order_rows(self.schedule, distinct=self.weights is not None)


def decoded_graph(
    store: RankedStore, threads: int | None, decoded: dict[str, SccGraph]
) -> tuple[SccGraph, int]:
    """Give the graph that earlier runs left in `decoded`, or leave it there; and the bytes read for it."""
    if "graph" in decoded:
        return decoded["graph"], 0
    graph = decoded["graph"] = load_scc_graph(store, threads)
    return graph, graph.bytes_read


def load_scc_graph(store: RankedStore, threads: int | None = None) -> SccGraph:
    """Read and decode a stored graph, with all usable cores for None, and find the order of its rows.

    Raises DamagedError when a tile's bytes are not what was written, or tiles and out-degrees contradict;
    UsageError if weights are too far apart.
    """
    nodes, tile_rows = store.nodes, store.tile_rows
    tiles, scale = len(tile_rows) - 1, weight_scale_of(store, "float32")

    def decode(tile: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32], int]:
        buffer = np.empty(store.encoded.max_bytes, np.uint8)
        size = store.encoded.read_into(tile, buffer)
        columns, lengths = decode_tile(buffer[:size])
        owned = int(tile_rows[tile + 1] - tile_rows[tile])
        if len(lengths) != owned + 1:
            raise DamagedError(f"tile {tile} has {len(lengths)} segments where {owned + 1} belong.")
        if int(columns.max(initial=0)) >= max(nodes, 1):
            raise DamagedError(f"tile {tile} has column {columns.max()} of {nodes} nodes.")
        return columns, lengths, size

    if store.edges <= THREAD_EDGES:
        parts = [decode(tile) for tile in range(tiles)]
    else:
        with ThreadPoolExecutor(threads or usable_cores(), thread_name_prefix="oocpr-load") as pool:
            parts = list(pool.map(decode, range(tiles)))
    lengths = np.zeros(nodes + 1, np.int64)
    for tile, (_, part, _) in enumerate(parts):
        # The last number is of the row after those that the tile owns, which the next tile goes on with.
        first = int(tile_rows[tile])
        lengths[first : first + len(part)] += part
    if lengths[nodes]:
        raise DamagedError(f"{store.path}: the last tile has edges of a row behind the last one.")
    offsets = np.zeros(nodes + 1, np.uint32)
    np.cumsum(lengths[:nodes], out=offsets[1:])
    columns = parts[0][0] if tiles == 1 else np.concatenate([part[0] for part in parts])
    bytes_read, edges = sum(size for _, _, size in parts), [len(part) for part, _, _ in parts]
    del parts
    if scale is not None:
        return _weighted(store, offsets, columns, edges, scale.factor, bytes_read)
    degree = store.out_degree(0, nodes)
    counted = np.zeros(nodes, np.uint32)
    _count(columns, counted)
    check_degrees(store.path, counted, degree)
    check_dangling(store.path, int((degree == 0).sum()), store.dangling)
    del counted
    return SccGraph(schedule_rows(offsets, columns), degree, bytes_read)


def _weighted(
    store: RankedStore,
    offsets: NDArray[np.uint32],
    columns: NDArray[np.uint32],
    edges: list[int],
    factor: float,
    bytes_read: int,
) -> SccGraph:
    """The same of a graph with weights, whose tiles have so many edges."""
    assert store.weights is not None, "it has weights"
    weights, coded, at = np.empty(len(columns)), np.empty(store.weights.max_bytes, np.uint8), 0
    for tile, count in enumerate(edges):
        size = store.weights.read_into(tile, coded)
        join_segments(coded[:size], weights[at : at + count])
        bytes_read, at = bytes_read + size, at + count
    sums = store.out_weight(0, store.nodes)
    found = np.bincount(columns, weights, len(sums))
    if not np.allclose(found, sums, rtol=_SAME_WEIGHT, atol=0):
        raise DamagedError(f"{store.path}: the out-weights are not those of the edges in the tiles.")
    check_dangling(store.path, int((sums == 0).sum()), store.dangling)
    weights *= factor
    sums *= factor
    return SccGraph(schedule_blocks(offsets, columns, weights), sums, bytes_read, weights)


@entry()
def _count(columns, counted):
    for i in range(columns.size):
        counted[uint64(columns[i])] += uint32(1)


class RankVectors(NamedTuple):
    """The rows of a graph in a run."""

    # Shape (rows,); the teleport vector (0,) if uniform.
    p: NDArray[np.float64]
    r: NDArray[np.float64]
    degree: NDArray[np.uint32]
    teleport: NDArray[np.float64]
    # Shape (rows + 1,): pushed along each edge, zero after the last; delivered, the last of it padding.
    reads: NDArray[np.float32]
    pushes: NDArray[np.float64]
    # Shape (blocks, 4): dangling mass, mass, sum of p, norm of r.
    blocks: NDArray[np.float64]


@inner()
def push_contributions(me, team, vectors, sends, damping):
    """Round what rows contribute to what is pushed, and add it to the ranks.

    `sends`, float32, shape (rows,), is damping times what each row contributes along an edge.
    """
    out = np.empty(ROW_BLOCK, np.float64)
    rows = uint64(vectors.p.size)
    blocks = vectors.blocks.shape[0]
    back = 1.0 / damping
    for block in range(blocks * me // team, blocks * (me + 1) // team):
        begin = uint64(block) * uint64(ROW_BLOCK)
        end = min(begin + uint64(ROW_BLOCK), rows)
        count = end - begin
        p, degree = vectors.p[begin:end], vectors.degree[begin:end]
        sum_row, reads = sends[begin:end], vectors.reads[begin:end]
        for i in range(count):
            reads[i] = float32(float64(sum_row[i]) * back)
        pushes = vectors.pushes[begin:end]
        for i in range(count):
            pushes[i] = 0.0
        for i in range(count):
            out[i] = float64(reads[i]) * float64(max(degree[i], uint32(1)))
        for i in range(count):
            p[i] += out[i]
        sums = vectors.blocks[block]
        sums[1] = add_up(out, count)
        sums[2] = add_up(p, count)
        for i in range(count):
            out[i] = out[i] if degree[i] == uint32(0) else 0.0
        sums[0] = add_up(out, count)


@inner()
def update(me, team, vectors, damping, base, spread):
    """Subtract what was pushed from the residual and add what was delivered and what the teleport brings."""
    out = np.empty(ROW_BLOCK, np.float64)
    rows = uint64(vectors.p.size)
    blocks = vectors.blocks.shape[0]
    for block in range(blocks * me // team, blocks * (me + 1) // team):
        begin = uint64(block) * uint64(ROW_BLOCK)
        end = min(begin + uint64(ROW_BLOCK), rows)
        count = end - begin
        r, degree = vectors.r[begin:end], vectors.degree[begin:end]
        reads, pushes = vectors.reads[begin:end], vectors.pushes[begin:end]
        for i in range(count):
            out[i] = float64(reads[i]) * float64(max(degree[i], uint32(1)))
        if vectors.teleport.size:
            teleport = vectors.teleport[begin:end]
            for i in range(count):
                out[i] = damping * pushes[i] + (base * teleport[i] + spread) - out[i]
        else:
            constant = base / float64(rows) + spread
            for i in range(count):
                out[i] = damping * pushes[i] + constant - out[i]
        for i in range(count):
            r[i] += out[i]
        vectors.blocks[block, 3] = norm(r, count)


@inner()
def _deliver_slices(low, high, schedule, reads, pushes):
    """Add what the rows of slices receive, and those with the same edges; columns read live lie behind."""
    slice_ptr, targets, slice_columns = schedule.slice_ptr, schedule.targets, schedule.slice_columns
    duplicate_ptr, duplicate_rows = schedule.duplicate_ptr, schedule.duplicate_rows
    duplicate_places = schedule.duplicate_places
    lanes = np.empty(SLICE_ROWS, np.float64)
    behind = uint32(pushes.size)
    for s in range(low, high):
        end = uint64(slice_ptr[s + uint64(1)])
        sum_slice(lanes, reads, slice_columns, behind, None, slice_ptr[s], end)
        place = s * uint64(SLICE_ROWS)
        for t in range(duplicate_ptr[s], duplicate_ptr[s + uint64(1)]):
            pushes[uint64(duplicate_rows[t])] += lanes[uint64(duplicate_places[t]) - place]
        for lane in range(uint64(SLICE_ROWS)):
            pushes[uint64(targets[place + lane])] += lanes[lane]


@inner()
def _deliver_long_rows(low, high, schedule, reads, pushes):
    long_ptr, long_rows, slice_columns = schedule.long_ptr, schedule.long_rows, schedule.slice_columns
    lanes = np.empty(SLICE_ROWS, np.float64)
    behind = uint32(pushes.size)
    waiting = low
    for q in range(low, high):
        i = uint64(long_ptr[q])
        end = uint64(long_ptr[q + uint64(1)])
        if i == end:
            continue
        total = sum_long_row(lanes, reads, slice_columns, behind, None, i, end)
        for k in range(waiting, q + uint64(1)):
            pushes[uint64(long_rows[k])] += total
        waiting = q + uint64(1)


@inner(late=True)
def deliver(me, team, counter, phase, schedule, reads, pushes):
    """Sum what is pushed to each row; returns the number of the last barrier.

    `pushes`, float64, shape (rows + 1,), zeros, receives the sums of `reads`, float32 of that shape.
    """
    members = uint64(schedule.members.size)
    for q in range(members * uint64(me) // uint64(team), members * uint64(me + 1) // uint64(team)):
        row = uint64(schedule.members[q])
        first = uint64(schedule.offsets[row])
        total = 0.0
        for i in range(first, first + uint64(schedule.outer[row]) + uint64(schedule.inner[row])):
            total += float64(reads[uint64(schedule.columns[i])])
        pushes[row] = total
    for region in range(me, schedule.regions.shape[0], team):
        part = schedule.regions[region]
        low, high = uint64(part[0]), uint64(max(part[0], part[1] - 1))
        _deliver_slices(low, high, schedule, reads, pushes)
        low, high = uint64(part[2]), uint64(max(part[2], part[3] - 1))
        _deliver_long_rows(low, high, schedule, reads, pushes)
    phase += 1
    barrier(counter, team, phase)
    for k in range(schedule.stages.shape[0]):
        stage = schedule.stages[k]
        if stage[0] == SHARED:
            low, high = balanced_range(schedule.slice_ptr, stage[1], stage[2], me, team)
            _deliver_slices(low, high, schedule, reads, pushes)
            low, high = balanced_range(schedule.long_ptr, stage[3], stage[4], me, team)
            _deliver_long_rows(low, high, schedule, reads, pushes)
    phase += 1
    barrier(counter, team, phase)
    loops = uint64(schedule.loops.size)
    for q in range(loops * uint64(me) // uint64(team), loops * uint64(me + 1) // uint64(team)):
        row = uint64(schedule.loops[q])
        pushes[row] += float64(reads[row])
    phase += 1
    barrier(counter, team, phase)
    return phase


_SAME_WEIGHT = 1e-9
"""How far sums of the same weights may be apart, relative: more than rounding makes of any number of them."""

UNSOLVED_SHARE = 0.25
"""Share of the tolerated residual that components may leave behind."""


def rank_components(
    graph: SccGraph,
    settings: Settings,
    threads: int | None,
    begun: float,
    bytes_read: int,
    progress: Progress,
    teleport: NDArray[np.float64] | None = None,
    start: NDArray[np.float64] | None = None,
) -> Solution:
    """Rank a graph that is in memory: pass after pass, until the residual is small enough or they run out.

    A pass pushes the solution of (I - damping * edges) z = r for the residual r, found in float32 and rounded
    to what rows read; as with any push, the residual stays exact, so two or three are enough.

    `threads`, None for as many as the edges feed, change no bit. The run began at `begun`, a
    `time.perf_counter`, and `bytes_read` encoded bytes have been read since. `teleport` and `start`, what is
    pushed first, sum to 1; None for uniform, and for what the teleport vector makes rows contribute to each
    other.
    """
    nodes, schedule, damping = len(graph.degree), graph.schedule, settings.damping
    if threads is None:
        threads = component_threads(int(graph.degree.sum(dtype=np.int64)))
    team, tolerance = Team(threads), residual_tolerance(settings)
    team.start()
    workspace = graph.take_workspace(damping)
    _, vectors, contributions = workspace
    vectors.r[:] = 1 / nodes if teleport is None else teleport
    if teleport is not None:
        vectors = vectors._replace(teleport=teleport)
    out = np.empty(1)

    def run_pass(*, pushes: bool) -> None:
        team.run(
            _pass, pushes, schedule, vectors, contributions, damping, settings.dangling == "strongly",
            tolerance, max_sweeps_of(damping), out,
        )  # fmt: skip

    if start is None:
        run_pass(pushes=False)
    else:
        sends = contributions.sends[nodes + 1 : 2 * nodes + 1]
        np.multiply(start, damping, out=sends, casting="same_kind")
        sends /= np.maximum(graph.degree, np.uint32(1))
    vectors.r[:] = 0.0
    history: list[PassRecord] = []
    passed = begun
    while len(history) < settings.pass_limit:
        run_pass(pushes=True)
        now, residual = time.perf_counter(), float(out[0])
        bound = settings.bound(residual)
        read = 0 if history else bytes_read
        history.append(PassRecord(len(history) + 1, residual, bound, 1.0, now - passed, read, 0.0))
        passed = now
        progress("ranking", len(history), COMPONENT_PASSES, "passes", f"bound {bound:.1e}")
        if residual <= tolerance:
            break
    ranks = vectors.p
    ranks += vectors.r
    graph.keep_workspace(workspace)
    residual, bound = history[-1].residual, history[-1].bound
    return Solution(
        ranks=as_distribution(ranks, bound),
        error_bound=bound,
        converged=residual <= tolerance,
        history=tuple(history),
        method=settings.method,
        reads=settings.reads,
        damping=damping,
        tol=settings.tol,
        seconds=time.perf_counter() - begun,
        peak_memory=peak_resident(),
    )


def residual_tolerance(settings: Settings) -> float:
    """Largest residual with which a run may stop."""
    if settings.stop == "residual":
        return math.nextafter(settings.tol, 0)
    return (settings.tol * (1 - settings.damping) - ROUNDING) / settings.damping


def max_sweeps_of(damping: float) -> int:
    """Sweeps after which a component is left in any case."""
    return math.ceil(math.log(REL_TOL / 10) / math.log(damping))


def row_weights(graph: SccGraph, damping: float) -> NDArray[np.float32]:
    """Weights w of `oocpr.engine.scc.solve`: float32, shape (rows + 1,), of which the last is 1."""
    weights, rows = np.ones(len(graph.degree) + 1, np.float32), graph.schedule.loops
    np.divide(np.float32(damping), divisors(graph), out=weights[:-1], casting="same_kind")
    loops = weights[rows]
    kept = loops if graph.weights is None else loops * graph.weights[graph.schedule.offsets[1:][rows] - 1]
    weights[rows] = loops / (1 - kept)
    return weights


def divisors(graph: SccGraph) -> NDArray[Any]:
    """What ranks are divided by: out-degrees or out-weights, and 1 for rows without; shape (rows,)."""
    return np.where(graph.degree > 0, graph.degree, graph.degree.dtype.type(1))


def _workspace(graph: SccGraph, damping: float) -> Workspace:
    """Make what a run from a uniform teleport vector works in; the ranks, which outlive it, are apart."""
    schedule, nodes = graph.schedule, len(graph.degree)
    weights = row_weights(graph, damping)
    (
        r, reads, pushes, blocks, sends, slice_starts, duplicate_starts, long_starts, member_starts,
        next_component, states, changes, sums,
    ) = zeros_together(
        ((nodes,), np.float64),
        ((nodes + 1,), np.float32),
        ((nodes + 1,), np.float64),
        ((-(-nodes // ROW_BLOCK), 4), np.float64),
        ((2 * (nodes + 1),), np.float32),
        ((len(schedule.targets),), np.float32),
        ((len(schedule.duplicate_rows),), np.float32),
        ((len(schedule.long_rows),), np.float32),
        ((len(schedule.members),), np.float32),
        ((max(1, len(schedule.stages)),), np.int64),
        ((DEPTH + 2, nodes), np.float32),
        ((DEPTH + 1, nodes), np.float32),
        ((2, MAX_REGIONS, TERMS), np.float64),
        whole=True,
    )  # fmt: skip
    vectors = RankVectors(np.zeros(nodes), r, graph.degree, np.empty(0), reads, pushes, blocks)
    contributions = Contributions(
        sends, weights, weights[schedule.targets], slice_starts, weights[schedule.duplicate_rows],
        duplicate_starts, long_starts, member_starts, next_component, np.reciprocal(weights), states, changes,
        sums,
    )  # fmt: skip
    return Workspace(damping, vectors, contributions)


def zeros_together(
    *wanted: tuple[tuple[int, ...], type[np.generic]], whole: bool = False
) -> list[NDArray[Any]]:
    """Make arrays of zeros side by side, in huge pages where there are some; `whole`: all of them.

    Apart, 13 arrays of 62,586 rows came page by page, 860 of them.

    >>> [(array.shape, array.dtype.name) for array in zeros_together(((2, 3), np.float32), ((4,), np.int64))]
    [((2, 3), 'float32'), ((4,), 'int64')]
    """
    sizes = [math.prod(shape) * np.dtype(kind).itemsize for shape, kind in wanted]
    ends = list(accumulate(-(-size // _LINE) * _LINE for size in sizes))
    room = zeros_in_huge_pages(ends[-1], whole=whole)
    return [
        room[end - -(-size // _LINE) * _LINE :][:size].view(kind).reshape(shape)
        for end, size, (shape, kind) in zip(ends, sizes, wanted, strict=True)
    ]


@entry()
def _pass(board, *args):
    """Do a pass by all threads of a team."""
    return parallel_region(board, _part_of_pass, args)


@inner(late=True)
def _part_of_pass(
    me, team, counter, pushes, schedule, vectors, contrib, damping, strongly, tolerance, max_sweeps, out
) -> Any:
    """Push what rows send, if it `pushes`, and find what to push next unless the residual is small enough."""
    phase = 0
    row_tol = 0.0
    residual = np.inf
    if pushes:
        rows = vectors.p.size
        sends = contrib.sends[rows + 1 : 2 * rows + 1]
        push_contributions(me, team, vectors, sends, damping)
        barrier(counter, team, 1)
        # Each thread adds the same numbers in the same order.
        dangling, mass, total = 0.0, 0.0, 0.0
        for block in range(vectors.blocks.shape[0]):
            dangling += vectors.blocks[block, 0]
            mass += vectors.blocks[block, 1]
            total += vectors.blocks[block, 2]
        phase = deliver(me, team, counter, 1, schedule, vectors.reads, vectors.pushes)
        base, spread = (1 - damping) * mass, damping * dangling / rows
        if strongly:
            base, spread = base + damping * dangling, 0.0
        update(me, team, vectors, damping, base, spread)
        phase += 1
        barrier(counter, team, phase)
        left = 0.0
        for block in range(vectors.blocks.shape[0]):
            left += vectors.blocks[block, 3]
        residual = left / abs(total)
        row_tol = UNSOLVED_SHARE * tolerance * abs(total) / rows
        if me == 0:
            out[0] = residual
    if residual > tolerance:
        solve(me, team, counter, phase, schedule, vectors.r, max_sweeps, row_tol, contrib)
