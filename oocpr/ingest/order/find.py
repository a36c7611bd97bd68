"""Drives the second stage: finds the order that was asked for, or chooses one, in bounded memory."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from oocpr.errors import UsageError
from oocpr.ingest.budget import SLACK_BYTES, require
from oocpr.ingest.nodes.strings import PIECE_NAMES, write_strings
from oocpr.ingest.order.bfs import by_search
from oocpr.ingest.order.choose import choose, explain, worth_a_search
from oocpr.ingest.order.cost import measure
from oocpr.ingest.order.edge_scan import Scan, count_links
from oocpr.ingest.order.host import by_host, looks_like_urls
from oocpr.ingest.order.permutation import Permutation, by_degree, keep_order, ordered
from oocpr.ingest.order.sample import WINDOW_EDGES, WINDOW_ROWS, WINDOWS, take_sample
from oocpr.system import resident_after_trim
from oocpr.units import format_count

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oocpr.ingest.nodes.strings import StringFile
    from oocpr.ingest.order.permutation import Order
    from oocpr.ingest.read import SpilledEdges
    from oocpr.ingest.spill.files import SpillDir, SpillFile
    from oocpr.progress import Progress
    from oocpr.sources.block import Source

ORDERS = ("keep", "degree", "host", "bfs", "auto")

_BYTES_PER_NODE = {"degree": 12, "host": 8, "bfs": 16, "auto": 16}
"""Most bytes a node that each way holds at once.

Ordering by degree: row of a node, node of a row, id of a node; by host no ids. A search: in-degree, row,
parent and a place for each parent. Choosing: the same, more than in-degree, row and node of a finished order.
"""

_DOING = {
    "degree": "Ordering {} nodes by out-degree",
    "host": "Ordering {} nodes by host",
    "bfs": "Ordering {} nodes by breadth-first search",
    "auto": "Choosing an order of {} nodes",
}

_PIECES_BYTES, _LEAST_SPACE = 3 << 20, 1 << 20
"""Pieces of names on their way, and least memory for those that are sorted."""

_SAMPLE_BYTES = 8 * WINDOWS * WINDOW_EDGES + 48 * (WINDOW_EDGES + WINDOW_ROWS) + (2 << 20)
"""A sample, a window of it that is encoded, and small arrays."""

_BYTES_BESIDE = {"host": _PIECES_BYTES + _LEAST_SPACE, "auto": _SAMPLE_BYTES}


class Ordering:
    """Finds the row of each node.

    Parameters
    ----------
    spilled
        The graph, its edges as keys of ids.
    source
        Has the labels, where nodes are not known by their names.
    workspace
        Gives temporary files.
    memory
        Most bytes that the process may hold.
    progress
        Told the stage "ordering".
    """

    def __init__(
        self,
        spilled: SpilledEdges,
        source: Source,
        workspace: SpillDir,
        memory: int,
        progress: Progress,
    ) -> None:
        self._spilled = spilled
        self._nodes = spilled.nodes
        self._source = source
        self._workspace = workspace
        self._memory = memory
        self._total: int | None = None
        self._scan = Scan(
            spilled.runs, spilled.ids, lambda done: progress("ordering", done, self._total, "edges")
        )

    def find(self, order: str) -> Order:
        """Find the rows of an order, one of `ORDERS`.

        Raises
        ------
        DoesNotFitError
            Where memory is too small.
        UsageError
            Where nodes without names are to be ordered by them.
        """
        ids = self._spilled.ids
        if order == "keep":
            return keep_order(ids)
        needed = self._nodes * _BYTES_PER_NODE[order] + _BYTES_BESIDE.get(order, 0) + SLACK_BYTES
        lacking = resident_after_trim() + needed - self._memory
        if lacking > 0:
            self._spilled.file.shed(lacking)
        require(resident_after_trim() + needed, self._memory, _DOING[order].format(format_count(self._nodes)))
        name, permutation, reason = order, None, None
        if order == "auto":
            name, permutation, reason = self._choose()
        elif order == "degree":
            self._total = self._scan.count
            permutation = by_degree(count_links(self._scan, self._nodes, tails=True)[0])
        elif order == "host":
            permutation = self._by_host()
        else:
            in_degree, linked = self._in_degree()
            permutation = by_search(self._scan, in_degree, linked)
        return ordered(name, permutation, ids, reason)

    def _in_degree(self) -> tuple[NDArray[np.uint32], int]:
        """Count the links that reach each node, and the nodes with links."""
        out_degree, in_degree = count_links(self._scan, self._nodes, tails=True, heads=True)
        return in_degree, _linked(out_degree, in_degree)

    def _names(self, most: int | None = None) -> StringFile | None:
        """Names of the nodes, at least of the first `most`; None where there are none."""
        dictionary, labels = self._spilled.dictionary, self._source.labels
        if dictionary is not None and dictionary.names is not None:
            return dictionary.names
        return None if labels is None else write_strings(islice(labels, most), self._workspace)

    def _by_host(self) -> Permutation | None:
        names = self._names()
        if names is None:
            raise UsageError(
                f"{self._source.name} has nodes without names, which have no hosts.",
                "Choose another order, or give the names with labels.",
            )
        space = self._memory - resident_after_trim() - SLACK_BYTES - 8 * self._nodes - _PIECES_BYTES
        return by_host(names, self._workspace, max(space, _LEAST_SPACE))

    def _choose(self) -> tuple[str, Permutation | None, str]:
        """Take the cheapest of the orders that are worth a look."""
        out_degree, in_degree = count_links(self._scan, self._nodes, tails=True, heads=True)
        linked = _linked(out_degree, in_degree)
        contest = _Contest(self._scan, in_degree, self._workspace.file())
        contest.enter("degree", by_degree(out_degree))
        del out_degree
        some = self._names(PIECE_NAMES)
        if some is not None and looks_like_urls(some.pieces()):
            contest.enter("host", self._by_host())
        if worth_a_search(contest.worths, self._scan.count):
            contest.enter("bfs", by_search(self._scan, in_degree, linked))
        del in_degree
        return contest.end()


def _linked(out_degree: NDArray[np.uint32], in_degree: NDArray[np.uint32]) -> int:
    return int(np.count_nonzero(out_degree | in_degree))


class _Contest:
    """Looks at one order after another; the rows of the cheapest so far are on the disk.

    Attributes
    ----------
    worths
        Of each order that was looked at.
    """

    def __init__(self, scan: Scan, in_degree: NDArray[np.uint32], rows: SpillFile) -> None:
        self.worths = {"keep": measure(take_sample(scan, in_degree, None))}
        self._scan = scan
        self._in_degree = in_degree
        self._rows = rows

    def enter(self, name: str, permutation: Permutation | None) -> None:
        """Look at an order, unless it changes nothing."""
        if permutation is None:
            return
        self.worths[name] = measure(take_sample(self._scan, self._in_degree, permutation))
        if choose(self.worths) == name:
            self._rows.write(0, permutation.rows)

    def end(self) -> tuple[str, Permutation | None, str]:
        """Give the name of the cheapest, the order and the reason."""
        nodes = self._in_degree.size
        del self._in_degree
        name = choose(self.worths)
        permutation = None
        if name != "keep":
            rows = np.empty(nodes, np.uint32)
            self._rows.read(0, rows)
            permutation = Permutation.of_rows(rows)
        self._rows.close()
        return name, permutation, explain(name, self.worths)
