"""The sweeps on processors: tiles are decoded as they come, with a matrix value for each edge."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from oocpr.engine.cpms import segments as held
from oocpr.engine.cpms.sweeps import Sweeps
from oocpr.engine.cpu.threads import default_threads
from oocpr.engine.tiles.stream import PassTraffic, TileStream
from oocpr.errors import DamagedError
from oocpr.plan.residency import RING_SLOTS, reading_threads
from oocpr.store.codec.layout import parse_tile
from oocpr.store.codec.tiles import decode_columns, expand_segments
from oocpr.system import spans

if TYPE_CHECKING:
    from oocpr.engine.tiles.source import RankedStore
    from oocpr.plan.plan import Plan

    Numbers = NDArray[Any]

_PIECE = 1 << 20
"""Rows whose sums are added up by themselves, whatever the number of threads."""

_PARTS, _PART_EDGES = 4, 1 << 15
"""Parts of a tile's rows for each thread, if they have as many edges."""

Result = TypeVar("Result")


class DecodedTile(NamedTuple):
    """A tile's rows, as `segments.sweep_rows` takes them, and the matrix value of each edge."""

    positions: NDArray[np.uint32]
    segments: NDArray[np.uint32]
    columns: NDArray[np.uint32]
    values: Numbers


class HostSweeps(Sweeps):
    """The sweeps on processors; `threads` change no bit."""

    def __init__(self, store: RankedStore, plan: Plan, segments: int, threads: int | None) -> None:
        self._store, self._segments, self._read = store, segments, 1
        self._threads = threads or default_threads(store.edges)
        self._pool = ThreadPoolExecutor(self._threads, "oocpr-cpms")
        nodes, degree = store.nodes, store.out_degree(0, store.nodes)
        self._dangling = np.flatnonzero(degree == 0).astype(np.uint32)
        self._weights, self._old, self._new = (held.allocate_segments(segments, nodes) for _ in range(3))
        for low in range(0, nodes, _PIECE):
            some = degree[low : low + _PIECE]
            held.write_numbers(1 / np.maximum(some, 1), low, segments, self._weights)
            held.write_numbers(np.full(some.size, 1 / nodes), low, segments, self._old)
        # The values of tiles that stay, once all are plain float64.
        self._values: dict[int, Numbers] = {}
        readers = reading_threads(self._threads, past_cache=plan.direct and plan.streamed_bytes > 0)
        tiles = range(plan.stats.tiles)
        self._stream = TileStream(
            store.encoded, tiles, plan.resident(0), RING_SLOTS, readers, self._decode, direct=plan.direct
        )

    def _decode(self, number: int, encoded: NDArray[np.uint8], stays: bool) -> DecodedTile:
        """Decode and check a tile, and give each edge its value, with as many segments as are read of it."""
        tile, store = parse_tile(encoded), self._store
        owned = int(store.tile_rows[number + 1] - store.tile_rows[number])
        if tile.segments != owned + 1:
            raise DamagedError(f"tile {number} has {tile.segments} segments where {owned + 1} belong.")
        positions, rows = np.empty(tile.nonempty + 1, np.uint32), np.empty(tile.nonempty + 1, np.uint32)
        starts, columns = np.empty(tile.nonempty, np.uint32), np.empty(tile.edges, np.uint32)
        expand_segments(tile, positions, starts, rows)
        decode_columns(tile, positions, starts, columns)
        if int(columns.max(initial=0)) >= max(store.nodes, 1):
            raise DamagedError(f"tile {number} has column {columns.max()} of {store.nodes} nodes.")
        values = held.allocate_segments(self._segments, columns.size)
        held.copy_segments(self._weights, columns, self._segments if stays else self._read, values)
        made = DecodedTile(positions, rows[:-1], columns, values)
        if stays:
            self._values[number] = values
        return made

    def dangling_mass(self, read: int) -> float:
        """See Sweeps."""
        return self._add_up(
            self._dangling.size, lambda lo, hi: held.add_up(self._old, self._dangling[lo:hi], read)
        )

    def sweep(self, read: int, written: int, damping: float, constant: float) -> PassTraffic:
        """See Sweeps."""
        self._read, carry = read, 0.0

        def compute(number: int, tile: DecodedTile) -> None:
            nonlocal carry
            first = int(self._store.tile_rows[number])
            owned = int(self._store.tile_rows[number + 1]) - first
            values = self._values.get(number, tile.values)

            def part(low: int, high: int) -> float:
                behind: float = held.sweep_rows(
                    tile.positions, tile.segments, tile.columns, values, self._old, low, high, owned, read,
                    written, damping, constant, carry, first, self._new,
                )  # fmt: skip
                return behind

            carry = self._each(part, list(pairwise(self._parts(tile, owned))))[-1]

        return self._stream.run(compute)

    def _parts(self, tile: DecodedTile, owned: int) -> list[int]:
        """Divide a tile's rows into parts of about as many edges."""
        count = min(self._threads * _PARTS, tile.columns.size // _PART_EDGES)
        if not owned or count < 2:
            return [0, owned]
        wanted = np.arange(1, count) * tile.columns.size // count
        cuts = tile.segments[np.searchsorted(tile.positions[:-2], wanted)]
        return sorted({0, owned, *np.minimum(cuts, owned).tolist()})

    def _norm(self, vector: Numbers, read: int) -> float:
        return self._add_up(self._store.nodes, lambda lo, hi: held.norm(vector, lo, hi, read))

    def scale(self, read: int, divisor: float) -> None:
        """See Sweeps."""
        # Pieces are whole blocks of segments.
        pieces = list(spans(self._store.nodes, _PIECE))
        self._each(lambda low, high: held.scale(self._new, low, high, read, divisor), pieces)

    def change(self, read: int) -> float:
        """See Sweeps."""
        return self._add_up(
            self._store.nodes, lambda lo, hi: held.distance(self._new, self._old, lo, hi, read)
        )

    def to_plain(self) -> None:
        """See Sweeps."""
        self._segments = 1
        self._weights, self._old, self._new = map(held.to_plain, (self._weights, self._old, self._new))
        self._values = {number: held.to_plain(values) for number, values in self._values.items()}

    def ranks(self, read: int) -> NDArray[np.float64]:
        """See Sweeps."""
        found = np.empty(self._store.nodes)
        held.read_numbers(self._old, 0, read, found)
        return found

    def _add_up(self, size: int, part: Callable[[int, int], float]) -> float:
        return float(sum(self._each(part, list(spans(size, _PIECE)))))

    def _each(self, work: Callable[[int, int], Result], pieces: list[tuple[int, int]]) -> list[Result]:
        """Work on pieces by all threads, or here if there is one: handing it over takes a while."""
        if len(pieces) == 1:
            return [work(*pieces[0])]
        return list(self._pool.map(lambda piece: work(*piece), pieces))

    def close(self) -> None:
        """See Sweeps."""
        self._stream.close()
        self._pool.shutdown()
