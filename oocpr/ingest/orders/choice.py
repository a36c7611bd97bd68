"""The order of the nodes that was asked for, or the cheapest.

A small graph is stored in each order and ranked: nothing else tells how many passes it takes. Costs of others
are those of a sample: windows of neighbouring rows, with all their edges, evenly spread over the edges, not
the rows, as most edges may be in few rows. They follow from the graph and the order alone, so every import of
a graph looks at the same ones. The bytes are what the store's own coder makes of it; the gathers are those
that a cache of 1 MiB would not hold, in lines of 64 bytes, sets of eight, of which the line that was not used
for longest is replaced: about what a core has for itself. A node takes four bytes in it.
"""

# numba compiles by the types of the arguments, not by annotations.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True, allow-untyped-calls=True
# mypy: check-untyped-defs=False

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from oocpr.errors import DoesNotFitError, UsageError
from oocpr.ingest.budget import SLACK_BYTES, require, tile_edges_for
from oocpr.ingest.nodes.strings import MAX_PIECE_NAMES, StringFile, write_strings
from oocpr.ingest.orders.convergence import rehearsed_passes
from oocpr.ingest.orders.depth_first import nodes_left
from oocpr.ingest.orders.neighbourhoods import search_helps
from oocpr.ingest.orders.neighbours import Neighbours, find_neighbours, ranges_of
from oocpr.ingest.orders.permutation import (
    EdgeScan,
    Order,
    Permutation,
    count_degrees,
    degree_keys,
    invert,
    looks_like_urls,
    make_order,
    order_by_bfs,
    order_by_degree,
    order_by_host,
)
from oocpr.ingest.rows import unique_sorted
from oocpr.jit import entry
from oocpr.store.codec.tiles import encode_tile
from oocpr.system import resident_after_trim
from oocpr.units import format_count

if TYPE_CHECKING:
    from oocpr.ingest.read import SpilledEdges
    from oocpr.ingest.spill.files import SpillDir
    from oocpr.ingest.spill.id_bitmap import IdBitmap
    from oocpr.progress import Progress
    from oocpr.sources.block import Source

    Trial = Callable[[Order], "OrderCost"]
    """Stores the graph in an order, and ranks it."""


WINDOWS = 16
WINDOW_EDGES = 1 << 16
"""Most edges of a window; a row that has more by itself is passed over."""

WINDOW_ROWS = 1 << 15

_NO_NODES = np.empty(0, np.uint32)


@dataclass(frozen=True)
class Sample:
    """Edges of the rows of all `windows`, as ascending unique `keys`, uint64.

    Of each window its first row and the row after its last, int64, shape (windows, 2).
    """

    keys: NDArray[np.uint64]
    windows: NDArray[np.int64]


def choose_windows(in_degree: NDArray[np.uint32], permutation: Permutation | None) -> NDArray[np.int64]:
    """Choose windows: all rows of a graph of few edges, else `WINDOWS` windows.

    `in_degree` counts duplicates. Returns first row, row after the last, and edges of each: int64, shape
    (windows, 3).
    """
    edges = int(in_degree.sum(dtype=np.int64))
    whole = edges <= WINDOWS * WINDOW_EDGES
    step = 0 if whole else edges // WINDOWS
    first = 0 if whole else max(0, (step - WINDOW_EDGES) // 2)
    max_windows = -(-2 * edges // WINDOW_EDGES) + in_degree.size // WINDOW_ROWS + 2 if whole else WINDOWS
    windows = np.empty((max_windows, 3), np.int64)
    nodes = _NO_NODES if permutation is None else permutation.nodes
    return windows[: _choose(in_degree, nodes, first, step, WINDOW_EDGES, WINDOW_ROWS, windows)]


@entry()
def _choose(in_degree, nodes, first, step, max_edges, max_rows, windows):
    found = 0
    before = 0
    begin = -1
    edges = 0
    for row in range(in_degree.size):
        size = np.int64(in_degree[nodes[row] if nodes.size else row])
        if begin >= 0 and (edges + size > max_edges or row - begin == max_rows):
            windows[found, 0], windows[found, 1], windows[found, 2] = begin, row, edges
            found += 1
            begin = -1
        if found == windows.shape[0]:
            return found
        if begin < 0 and size <= max_edges and before >= first + found * step:
            begin = row
            edges = 0
        if begin >= 0:
            edges += size
        before += size
    if begin >= 0:
        windows[found, 0], windows[found, 1], windows[found, 2] = begin, in_degree.size, edges
        found += 1
    return found


def take_sample(scan: EdgeScan, in_degree: NDArray[np.uint32], permutation: Permutation | None) -> Sample:
    """Take a sample of the rows of an order; None for that of the nodes."""
    windows = choose_windows(in_degree, permutation)
    wanted = np.zeros(-(-in_degree.size // 8), np.uint8)
    nodes = _NO_NODES if permutation is None else permutation.nodes
    _mark(windows, nodes, wanted)
    keys = np.empty(int(windows[:, 2].sum()), np.uint64)
    filled = 0
    for block in scan:
        filled = _take(block, wanted, keys, filled)
    if permutation is not None:
        permutation.relabel(keys)
    keys.sort()
    return Sample(keys[: unique_sorted(keys)], windows[:, :2])


@entry()
def _mark(windows, nodes, wanted):
    for k in range(windows.shape[0]):
        for row in range(windows[k, 0], windows[k, 1]):
            node = nodes[row] if nodes.size else np.uint32(row)
            wanted[node >> np.uint32(3)] |= np.uint8(1 << (node & np.uint32(7)))


@entry()
def _take(block, wanted, keys, filled):
    """Append the keys whose destinations are wanted; returns how many there are then."""
    for key in block:
        row = key >> np.uint64(32)
        if wanted[row >> np.uint64(3)] >> (row & np.uint64(7)) & 1:
            keys[filled] = key
            filled += 1
    return filled


SETS, WAYS = 1 << 11, 8
CACHE_LINE_NODES = 16


MISS_BYTES = 16
"""Stored bytes that cost as much as a gather from outside the cache.

A line of 64 bytes comes for it, but several are under way at a time, and of a graph that is read from a disk
or over a network the stored bytes are what takes long.
"""

_SAMPLED_SHARE, _TRIED_SHARE = 8, 32
"""An order has to save this part of what the source's costs: it takes 4 bytes a node of the store for ids,
and tears apart what the source may have put together for reasons that a sample does not show."""

_TRIED_EDGES, _TRIED_NODES = 1 << 24, 1 << 22
"""Most edges and nodes of a graph that is stored and ranked in each order."""

_MOST_SEARCHED = 1 << 30
"""Most edges of one that is searched if a sample of neighbourhoods shows that it helps; a search takes 1 us
for each."""

_ORDER_NAMES = {
    "keep": "as in the source",
    "degree": "by out-degree",
    "host": "by host",
    "bfs": "by breadth-first search",
    "dfs": "by depth-first search",
}


@dataclass(frozen=True)
class OrderCost:
    """What an order costs: edges, their stored bytes, and passes to an answer; of a sample, cache misses."""

    edges: int
    stored: int
    missed: int = 0
    passes: int | None = None

    @property
    def cost(self) -> float:
        """Bytes, and what counts as bytes, of an edge: to an answer, if the passes are known, or once."""
        return (self.stored + MISS_BYTES * self.missed) / max(self.edges, 1) * (self.passes or 1)

    def __str__(self) -> str:
        edges = max(self.edges, 1)
        size = f"{self.stored / edges:.2f} B/edge and"
        if self.passes is not None:
            return f"{size} {self.passes} passes"
        return f"{size} {100 - 100 * self.missed / edges:.0f} % of gathers in cache"


def choose(costs: Mapping[str, OrderCost]) -> str:
    """Choose an order: the cheapest, but "keep" unless another saves enough; the first of equals."""
    best, keep = "keep", costs["keep"]
    share = _SAMPLED_SHARE if keep.passes is None else _TRIED_SHARE
    for name, cost in costs.items():
        if share * cost.cost <= (share - 1) * keep.cost and cost.cost < costs[best].cost:
            best = name
    return best


def explain(chosen: str, costs: Mapping[str, OrderCost]) -> str:
    """Say why an order was chosen, in one line."""
    others = (f"{_ORDER_NAMES[name]} {cost}" for name, cost in costs.items() if name != chosen)
    return "; ".join([f"order: {_ORDER_NAMES[chosen]}, {costs[chosen]}", *others])


def measure(sample: Sample) -> OrderCost:
    """Encode a sample and go over its edges twice, the second time with a cache that has seen the first."""
    size = 0
    for first, end in sample.windows.tolist():
        low, high = np.searchsorted(sample.keys, np.array([first, end], np.uint64) << np.uint64(32))
        keys = sample.keys[low:high]
        lengths = np.bincount((keys >> np.uint64(32)).astype(np.int64) - first, minlength=end - first + 1)
        size += len(encode_tile(keys.astype(np.uint32), lengths))
    cache = np.full((SETS, WAYS), 0xFFFFFFFF, np.uint32)
    missed = [int(count_missed(sample.keys, cache)) for _ in range(2)][1]
    return OrderCost(sample.keys.size, size, missed)


@entry()
def count_missed(keys, cache):
    """Count the columns of keys that a cache does not hold when their turn comes.

    A cache is the lines that it holds, the one that was used last first in each set: uint32, shape (sets,
    ways), sets a power of two; 0xFFFFFFFF for none. It is left as the last column left it.
    """
    missed = 0
    sets, ways = cache.shape
    for key in keys:
        line = np.uint32((key & np.uint64(0xFFFFFFFF)) // np.uint64(CACHE_LINE_NODES))
        lines = cache[line & np.uint32(sets - 1)]
        way = 0
        while way < ways and lines[way] != line:
            way += 1
        if way == ways:
            missed += 1
            way -= 1
        for k in range(way, 0, -1):
            lines[k] = lines[k - 1]
        lines[0] = line
    return missed


_BYTES_PER_NODE = {"degree": 12, "host": 8, "bfs": 16, "dfs": 64, "auto": 16}
"""Most bytes per node that each way holds at once.

Ordering by degree: row of a node, node of a row, id of a node; by host no ids. A breadth-first search:
in-degree, row, parent and a place for each parent. Choosing: the same, more than in-degree, row and node of a
finished order. Depth first: three orders, both degrees and one without duplicates, where neighbours begin (8)
and what passes are rehearsed with (32). Neighbours take what is left.
"""

_DOING = {
    "degree": "Ordering {} nodes by out-degree",
    "host": "Ordering {} nodes by host",
    "bfs": "Ordering {} nodes by breadth-first search",
    "dfs": "Ordering {} nodes by depth-first search",
    "auto": "Choosing an order of {} nodes",
}

_PIECES_BYTES, _MIN_SPACE = 3 << 20, 1 << 20
"""Pieces of names on their way, and the least memory for those that are sorted."""

_SAMPLE_BYTES = 8 * WINDOWS * WINDOW_EDGES + 48 * (WINDOW_EDGES + WINDOW_ROWS) + (2 << 20)
"""A sample, a window of it that is encoded, and small arrays."""

_BYTES_BESIDE = {"host": _PIECES_BYTES + _MIN_SPACE, "dfs": _SAMPLE_BYTES, "auto": _SAMPLE_BYTES}


@dataclass
class Ordering:
    """Finds the row of each node, under the stage "ordering" of `progress`.

    `trial` is None if nothing can be ranked.
    """

    edges: SpilledEdges
    source: Source
    spill_dir: SpillDir
    memory: int
    progress: Progress
    trial: Trial | None = None

    def __post_init__(self) -> None:
        self._nodes = self.edges.nodes
        self._total: int | None = None
        # Bytes that neighbours may take, and what is said to need memory.
        self._room, self._doing = 0, ""
        self._scan = EdgeScan(
            self.edges.runs,
            self.edges.ids,
            lambda done: self.progress("ordering", done, self._total, "edges"),
        )

    def find(self, order: str) -> Order:
        """Find the rows of an order, but "keep"; UsageError for hosts of nodes without names."""
        ids = self.edges.ids
        self._doing = _DOING[order].format(format_count(self._nodes))
        trial = self.trial if order == "auto" and self._is_small else None
        self._make_room(order if trial is None else "dfs")
        if order == "host":
            return make_order(order, self._by_host(), ids)
        if order == "degree":
            self._total = self._scan.count
            keys = degree_keys(*self._degrees())
            return make_order(order, order_by_degree(keys), ids)
        if order == "dfs":
            out_degree, in_degree = self._degrees()
            # Degrees and samples, searches, and scans for the neighbours of both and for rehearsals.
            scans = len(ranges_of(out_degree, self._room)) + 3 * len(ranges_of(in_degree, self._room))
            self._total = (5 + scans) * self._scan.count
            permutation, _ = self._by_dfs(in_degree, out_degree)
            unchanged = bool((permutation.nodes[1:] > permutation.nodes[:-1]).all())
            return make_order(order, None if unchanged else permutation, ids)
        if order == "auto":
            return make_order(*self._cheapest()) if trial is None else self._cheapest_tried(trial)
        out_degree, in_degree = self._degrees()
        connected = int(np.count_nonzero(out_degree | in_degree))
        del out_degree
        return make_order(order, order_by_bfs(self._scan, in_degree, connected), ids)

    def _make_room(self, order: str) -> None:
        """Have memory to find an order, and as much as there is for neighbours if it searches."""
        needed = self._nodes * _BYTES_PER_NODE[order] + _BYTES_BESIDE.get(order, 0) + SLACK_BYTES
        neighbours = 4 * self._scan.count if order == "dfs" else 0
        lacking = resident_after_trim() + needed + neighbours - self.memory
        if lacking > 0:
            self.edges.file.shed(lacking)
        self._room = self.memory - resident_after_trim() - needed
        require(self.memory - self._room, self.memory, self._doing)

    def _degrees(self) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """Count the edges that leave and reach each node."""
        return count_degrees(self._scan, self._nodes, destinations=True)

    def _names(self, count: int | None = None) -> StringFile | None:
        """Names of the nodes, at least of the first `count`; None if there are none."""
        dictionary, labels = self.edges.dictionary, self.source.labels
        if dictionary is not None and dictionary.names is not None:
            return dictionary.names
        return None if labels is None else write_strings(islice(labels, count), self.spill_dir)

    def _by_host(self) -> Permutation | None:
        names = self._names()
        if names is None:
            raise UsageError(
                f"{self.source.name} has nodes without names, which have no hosts.",
                "Choose another order, or give the names with labels.",
            )
        space = self.memory - resident_after_trim() - SLACK_BYTES - 8 * self._nodes - _PIECES_BYTES
        return order_by_host(names, self.spill_dir, max(space, _MIN_SPACE))

    @property
    def _is_small(self) -> bool:
        """Whether the graph is stored and ranked in each order."""
        return 0 < self._scan.count <= _TRIED_EDGES and self._nodes <= _TRIED_NODES

    def _measure(self, permutation: Permutation | None, in_degree: NDArray[np.uint32]) -> OrderCost:
        """Cost of an order, None for that of the nodes."""
        return measure(take_sample(self._scan, in_degree, permutation))

    def _by_dfs(
        self, in_degree: NDArray[np.uint32], out_degree: NDArray[np.uint32]
    ) -> tuple[Permutation, OrderCost]:
        """Search along the edges and against them; the order with fewer bytes to an answer, its cost."""
        tile_edges = tile_edges_for(self._scan.count)
        largest = int(max(in_degree.max(initial=0), out_degree.max(initial=0)))
        # Of a run of rows all neighbours are in memory, and so are those of a row.
        require(self.memory - self._room + 4 * (tile_edges + largest), self.memory, self._doing)
        receivers = self._find_neighbours(out_degree, outgoing=True)
        merged, found = receivers.degree(), [self._nodes_left(receivers)[::-1].copy()]
        senders = self._find_neighbours(in_degree, outgoing=False)
        found.append(self._nodes_left(senders))
        del receivers, senders

        costs, passes = [], []
        for nodes in found:
            permutation = Permutation(invert(nodes), nodes)
            costs.append(self._measure(permutation, in_degree))
            of_rows = self._find_neighbours(in_degree[nodes], outgoing=False, permutation=permutation)
            passes.append(rehearsed_passes(of_rows, merged, nodes, tile_edges))
            of_rows.close()
            del permutation
        best = min((0, 1), key=lambda k: costs[k].stored * passes[k])
        nodes = found[best]
        return Permutation(invert(nodes), nodes), costs[best]

    def _find_neighbours(
        self, degree: NDArray[np.uint32], *, outgoing: bool, permutation: Permutation | None = None
    ) -> Neighbours:
        """Neighbours of each row, in memory as far as there is room."""
        rows = _NO_NODES if permutation is None else permutation.rows
        return find_neighbours(
            self._scan, degree, outgoing=outgoing, rows=rows, room=self._room, spill_dir=self.spill_dir
        )

    def _nodes_left(self, neighbours: Neighbours) -> NDArray[np.uint32]:
        """Search, and free the neighbours."""
        each = self._scan.count / max(self._nodes, 1)
        try:
            return nodes_left(neighbours, lambda nodes: self._scan.advance(int(nodes * each)))
        finally:
            neighbours.close()

    def _cheapest_tried(self, trial: Trial) -> Order:
        """Store and rank the graph in each order that may pay; the cheapest."""
        costs: dict[str, OrderCost] = {}
        best: Order | None = None

        def add(name: str, permutation: Permutation | None) -> None:
            nonlocal best
            if permutation is None and costs:
                return
            order = make_order(name, permutation, self.edges.ids)
            costs[name] = trial(order)
            self._scan.advance(self._scan.count)
            if choose(costs) == name:
                best = order

        # A trial wants the memory.
        self.edges.file.shed()
        add("keep", None)
        out_degree, in_degree = self._degrees()
        add("dfs", self._by_dfs(in_degree, out_degree)[0])
        keys = degree_keys(out_degree, in_degree)
        del in_degree
        add("degree", order_by_degree(keys))
        del keys, out_degree
        if self._has_urls():
            add("host", self._by_host())
        assert best is not None
        return replace(best, reason=explain(best.name, costs))

    def _has_urls(self) -> bool:
        some = self._names(MAX_PIECE_NAMES)
        return some is not None and looks_like_urls(some.pieces())

    def _cheapest(self) -> tuple[str, Permutation | None, IdBitmap | None, str]:
        """Measure samples of the orders that may pay; the rows of the cheapest so far are on the disk."""
        out_degree, in_degree = self._degrees()
        costs = {"keep": self._measure(None, in_degree)}

        def add(name: str, permutation: Permutation | None, cost: OrderCost | None = None) -> None:
            if permutation is None:
                return
            costs[name] = cost or self._measure(permutation, in_degree)
            if choose(costs) == name:
                file.write(0, permutation.rows)

        with self.spill_dir.file() as file:
            helps = (
                0 < self._scan.count <= _MOST_SEARCHED
                and costs["keep"].stored >= costs["keep"].edges
                and search_helps(self._scan, in_degree, out_degree, self.spill_dir)
            )
            add("degree", order_by_degree(degree_keys(out_degree, in_degree)))
            if self._has_urls():
                add("host", self._by_host())
            if helps and choose(costs) != "host":
                del out_degree
                try:
                    self._make_room("dfs")
                except DoesNotFitError as error:
                    less = "or name an order: degree takes less"
                    raise DoesNotFitError(error.cause, f"{error.remedy.rstrip('.')}, {less}.") from error
                out_degree, _ = count_degrees(self._scan, self._nodes)
                add("dfs", *self._by_dfs(in_degree, out_degree))
            name = choose(costs)
            rows = None if name == "keep" else file.read_array(np.uint32, 0, self._nodes)
        chosen = None if rows is None else Permutation(rows, invert(rows))
        return name, chosen, self.edges.ids, explain(name, costs)
