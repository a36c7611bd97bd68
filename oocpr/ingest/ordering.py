"""Drives the second stage: finds the order that was asked for, or chooses one, in bounded memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from oocpr.ingest.budget import SLACK_BYTES, require, settled
from oocpr.ingest.choice import choose, explain
from oocpr.ingest.order import Order, by_degree, keep_order, ordered
from oocpr.ingest.sample import WINDOW_EDGES, WINDOW_ROWS, WINDOWS, take_sample
from oocpr.ingest.scan import Scan, count_links
from oocpr.ingest.worth import measure
from oocpr.units import format_count

if TYPE_CHECKING:
    from oocpr.ingest.order import Permutation
    from oocpr.ingest.partition import Run
    from oocpr.ingest.spill import Spilled
    from oocpr.progress import Progress

ORDERS = ("keep", "degree", "auto")

DEGREE_BYTES_PER_NODE = 12
"""Most bytes a node that ordering by degree holds at once: row of a node, node of a row, id of a node."""

AUTO_BYTES_PER_NODE = 16
"""The same for choosing: in-degrees as well, and a bit for rows of the sample."""

SAMPLE_BYTES = 8 * WINDOWS * WINDOW_EDGES + 48 * (WINDOW_EDGES + WINDOW_ROWS) + (2 << 20)
"""A sample, a window of it that is encoded, and small arrays."""


def find_order(run: Run, spilled: Spilled, order: str, memory: int, progress: Progress) -> Order:
    """Find the row of each node.

    Parameters
    ----------
    run
        All edges, as keys of ids. For orders other than "keep" the numbers of the nodes take their place in
        its file.
    spilled
        What is known of the graph.
    order
        One of `ORDERS`.
    memory
        Most bytes that the process may hold.
    progress
        Told the stage "ordering".

    Raises
    ------
    DoesNotFitError
        Where `memory` is too small.
    """
    if order == "keep":
        return keep_order(spilled.ids)
    nodes, ids = spilled.nodes, spilled.ids
    scans = 1 if order == "degree" else 3
    run = replace(run, relabel=None if ids is None else ids.relabel)
    scan = Scan(run, lambda done: progress("ordering", done, scans * run.count, "edges"))
    if order == "degree":
        _require(spilled, nodes * DEGREE_BYTES_PER_NODE, memory, "Ordering {} nodes by out-degree")
        return ordered("degree", by_degree(count_links(scan, nodes, tails=True)[0]), ids)
    needed = nodes * AUTO_BYTES_PER_NODE + SAMPLE_BYTES
    _require(spilled, needed, memory, "Choosing an order of {} nodes")
    name, permutation, reason = _chosen(scan, nodes)
    return ordered(name, permutation, ids, reason)


def _require(spilled: Spilled, needed: int, memory: int, what: str) -> None:
    if settled() + needed + SLACK_BYTES > memory:
        spilled.file.shed()
    require(settled() + needed + SLACK_BYTES, memory, what.format(format_count(spilled.nodes)))


def _chosen(scan: Scan, nodes: int) -> tuple[str, Permutation | None, str]:
    """Choose between the order of the nodes and that by out-degree."""
    out_degree, in_degree = count_links(scan, nodes, tails=True, heads=True)
    worths = {"keep": measure(take_sample(scan, in_degree, None))}
    permutation = by_degree(out_degree)
    if permutation is not None:
        worths["degree"] = measure(take_sample(scan, in_degree, permutation))
    name = choose(worths)
    return name, None if name == "keep" else permutation, explain(name, worths)
