"""The order of the nodes that was asked for, or the cheapest, in bounded memory."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from oocpr.errors import UsageError
from oocpr.ingest.budget import SLACK_BYTES, require
from oocpr.ingest.nodes.strings import MAX_PIECE_NAMES, write_strings
from oocpr.ingest.order import cost, orders
from oocpr.system import resident_after_trim
from oocpr.units import format_count

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oocpr.ingest.nodes.strings import StringFile
    from oocpr.ingest.order.orders import Order, Permutation
    from oocpr.ingest.read import SpilledEdges
    from oocpr.ingest.spill.files import SpillDir
    from oocpr.ingest.spill.id_bitmap import IdBitmap
    from oocpr.progress import Progress
    from oocpr.sources.block import Source

ORDERS = ("keep", "degree", "host", "bfs", "auto")

_BYTES_PER_NODE = {"degree": 12, "host": 8, "bfs": 16, "auto": 16}
"""Most bytes per node that each way holds at once.

Ordering by degree: row of a node, node of a row, id of a node; by host no ids. A search: in-degree, row,
parent and a place for each parent. Choosing: the same, more than in-degree, row and node of a finished order.
"""

_DOING = {
    "degree": "Ordering {} nodes by out-degree",
    "host": "Ordering {} nodes by host",
    "bfs": "Ordering {} nodes by breadth-first search",
    "auto": "Choosing an order of {} nodes",
}

_PIECES_BYTES, _MIN_SPACE = 3 << 20, 1 << 20
"""Pieces of names on their way, and the least memory for those that are sorted."""

_SAMPLE_BYTES = 8 * cost.WINDOWS * cost.WINDOW_EDGES + 48 * (cost.WINDOW_EDGES + cost.WINDOW_ROWS) + (2 << 20)
"""A sample, a window of it that is encoded, and small arrays."""

_BYTES_BESIDE = {"host": _PIECES_BYTES + _MIN_SPACE, "auto": _SAMPLE_BYTES}


class Ordering:
    """Finds the row of each node, under the stage "ordering" of `progress`."""

    def __init__(
        self,
        edges: SpilledEdges,
        source: Source,
        spill_dir: SpillDir,
        memory: int,
        progress: Progress,
    ) -> None:
        self._edges = edges
        self._nodes = edges.nodes
        self._source = source
        self._spill_dir = spill_dir
        self._memory = memory
        self._total: int | None = None
        self._scan = orders.EdgeScan(
            edges.runs, edges.ids, lambda done: progress("ordering", done, self._total, "edges")
        )

    def find(self, order: str) -> Order:
        """Find the rows of an order, one of `ORDERS`; UsageError for hosts of nodes without names."""
        ids = self._edges.ids
        if order == "keep":
            return orders.make_order("keep", None, ids)
        needed = self._nodes * _BYTES_PER_NODE[order] + _BYTES_BESIDE.get(order, 0) + SLACK_BYTES
        lacking = resident_after_trim() + needed - self._memory
        if lacking > 0:
            self._edges.file.shed(lacking)
        require(resident_after_trim() + needed, self._memory, _DOING[order].format(format_count(self._nodes)))
        if order == "host":
            return orders.make_order(order, self._by_host(), ids)
        if order == "degree":
            self._total = self._scan.count
            out_degree, _ = orders.count_degrees(self._scan, self._nodes, sources=True)
            return orders.make_order(order, orders.order_by_degree(out_degree), ids)
        if order == "auto":
            return orders.make_order(*self._cheapest())
        out_degree, in_degree, connected = self._degrees()
        del out_degree
        return orders.make_order(order, orders.order_by_bfs(self._scan, in_degree, connected), ids)

    def _degrees(self) -> tuple[NDArray[np.uint32], NDArray[np.uint32], int]:
        """Count the edges that leave and reach each node, and the nodes with edges."""
        degrees = orders.count_degrees(self._scan, self._nodes, sources=True, destinations=True)
        return *degrees, int(np.count_nonzero(degrees[0] | degrees[1]))

    def _names(self, count: int | None = None) -> StringFile | None:
        """Names of the nodes, at least of the first `count`; None if there are none."""
        dictionary, labels = self._edges.dictionary, self._source.labels
        if dictionary is not None and dictionary.names is not None:
            return dictionary.names
        return None if labels is None else write_strings(islice(labels, count), self._spill_dir)

    def _by_host(self) -> Permutation | None:
        names = self._names()
        if names is None:
            raise UsageError(
                f"{self._source.name} has nodes without names, which have no hosts.",
                "Choose another order, or give the names with labels.",
            )
        space = self._memory - resident_after_trim() - SLACK_BYTES - 8 * self._nodes - _PIECES_BYTES
        return orders.order_by_host(names, self._spill_dir, max(space, _MIN_SPACE))

    def _cheapest(self) -> tuple[str, Permutation | None, IdBitmap | None, str]:
        """Measure the orders that may pay; the rows of the cheapest so far are on the disk."""
        out_degree, in_degree, connected = self._degrees()
        costs = {"keep": cost.measure(cost.take_sample(self._scan, in_degree, None))}

        def add(name: str, permutation: Permutation | None) -> None:
            if permutation is None:
                return
            costs[name] = cost.measure(cost.take_sample(self._scan, in_degree, permutation))
            if cost.choose(costs) == name:
                file.write(0, permutation.rows)

        with self._spill_dir.file() as file:
            add("degree", orders.order_by_degree(out_degree))
            del out_degree
            some = self._names(MAX_PIECE_NAMES)
            if some is not None and orders.looks_like_urls(some.pieces()):
                add("host", self._by_host())
            if cost.search_pays(costs, self._scan.count):
                add("bfs", orders.order_by_bfs(self._scan, in_degree, connected))
            name = cost.choose(costs)
            rows = None if name == "keep" else file.read_array(np.uint32, 0, self._nodes)
        permutation = None if rows is None else orders.Permutation.of_rows(rows)
        return name, permutation, self._edges.ids, cost.explain(name, costs)
