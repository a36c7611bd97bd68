"""The order of the nodes that was asked for, or the cheapest, in bounded memory."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from oocpr.errors import UsageError
from oocpr.ingest.budget import SLACK_BYTES, require
from oocpr.ingest.nodes.strings import PIECE_NAMES, write_strings
from oocpr.ingest.order.cost import (
    WINDOW_EDGES,
    WINDOW_ROWS,
    WINDOWS,
    EdgeScan,
    choose,
    count_degrees,
    explain,
    measure,
    search_pays,
    take_sample,
)
from oocpr.ingest.order.orders import (
    Permutation,
    keep_order,
    looks_like_urls,
    make_order,
    order_by_bfs,
    order_by_degree,
    order_by_host,
)
from oocpr.system import resident_after_trim
from oocpr.units import format_count

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oocpr.ingest.nodes.strings import StringFile
    from oocpr.ingest.order.orders import Order
    from oocpr.ingest.read import SpilledEdges
    from oocpr.ingest.spill.files import SpillDir, SpillFile
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

_SAMPLE_BYTES = 8 * WINDOWS * WINDOW_EDGES + 48 * (WINDOW_EDGES + WINDOW_ROWS) + (2 << 20)
"""A sample, a window of it that is encoded, and small arrays."""

_BYTES_BESIDE = {"host": _PIECES_BYTES + _MIN_SPACE, "auto": _SAMPLE_BYTES}


class Ordering:
    """Finds the row of each node, under the stage "ordering" of `progress`.

    The source has the labels, if nodes are not known by their names.
    """

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
        self._scan = EdgeScan(
            edges.runs, edges.ids, lambda done: progress("ordering", done, self._total, "edges")
        )

    def find(self, order: str) -> Order:
        """Find the rows of an order, one of `ORDERS`; UsageError for hosts of nodes without names."""
        ids = self._edges.ids
        if order == "keep":
            return keep_order(ids)
        needed = self._nodes * _BYTES_PER_NODE[order] + _BYTES_BESIDE.get(order, 0) + SLACK_BYTES
        lacking = resident_after_trim() + needed - self._memory
        if lacking > 0:
            self._edges.file.shed(lacking)
        require(resident_after_trim() + needed, self._memory, _DOING[order].format(format_count(self._nodes)))
        name, permutation, reason = order, None, None
        if order == "auto":
            name, permutation, reason = self._choose()
        elif order == "degree":
            self._total = self._scan.count
            permutation = order_by_degree(count_degrees(self._scan, self._nodes, sources=True)[0])
        elif order == "host":
            permutation = self._by_host()
        else:
            in_degree, linked = self._in_degree()
            permutation = order_by_bfs(self._scan, in_degree, linked)
        return make_order(name, permutation, ids, reason)

    def _in_degree(self) -> tuple[NDArray[np.uint32], int]:
        """Count the edges that reach each node, and the nodes with edges."""
        out_degree, in_degree = count_degrees(self._scan, self._nodes, sources=True, destinations=True)
        return in_degree, _linked(out_degree, in_degree)

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
        return order_by_host(names, self._spill_dir, max(space, _MIN_SPACE))

    def _choose(self) -> tuple[str, Permutation | None, str]:
        """Take the cheapest of the orders that may pay."""
        out_degree, in_degree = count_degrees(self._scan, self._nodes, sources=True, destinations=True)
        linked = _linked(out_degree, in_degree)
        comparison = _Comparison(self._scan, in_degree, self._spill_dir.file())
        comparison.add("degree", order_by_degree(out_degree))
        del out_degree
        some = self._names(PIECE_NAMES)
        if some is not None and looks_like_urls(some.pieces()):
            comparison.add("host", self._by_host())
        if search_pays(comparison.costs, self._scan.count):
            comparison.add("bfs", order_by_bfs(self._scan, in_degree, linked))
        del in_degree
        return comparison.best()


def _linked(out_degree: NDArray[np.uint32], in_degree: NDArray[np.uint32]) -> int:
    return int(np.count_nonzero(out_degree | in_degree))


class _Comparison:
    """Measures one order after another; the rows of the cheapest so far are on the disk."""

    def __init__(self, scan: EdgeScan, in_degree: NDArray[np.uint32], rows: SpillFile) -> None:
        self.costs = {"keep": measure(take_sample(scan, in_degree, None))}
        self._scan = scan
        self._in_degree = in_degree
        self._rows = rows

    def add(self, name: str, permutation: Permutation | None) -> None:
        """Measure an order, unless it changes nothing."""
        if permutation is None:
            return
        self.costs[name] = measure(take_sample(self._scan, self._in_degree, permutation))
        if choose(self.costs) == name:
            self._rows.write(0, permutation.rows)

    def best(self) -> tuple[str, Permutation | None, str]:
        """Give the name of the cheapest, the order and the reason."""
        nodes = self._in_degree.size
        del self._in_degree
        name = choose(self.costs)
        permutation = None
        if name != "keep":
            rows = np.empty(nodes, np.uint32)
            self._rows.read(0, rows)
            permutation = Permutation.of_rows(rows)
        self._rows.close()
        return name, permutation, explain(name, self.costs)
