"""Orders of the nodes: by out-degree, by host, or by a breadth-first search.

Hosts are reversed before names are sorted, www.example.com/a becomes com.example.www/a: so the pages of a
host are neighbours, and the hosts of a domain, between which most links of a crawl are (Boldi, Vigna: "The
WebGraph framework I: compression techniques", WWW 2004, who sort by URL).

A search takes edges in both directions. Neighbours in the graph become neighbours in the order, so that a
graph whose nodes were shuffled gets back some of its locality. Each level is a pass over all edges: what a
node is reached from is the first in order of its neighbours in the level before, whatever the order of the
edges. So memory is needed for the nodes only. The search starts at the node of the largest in-degree; where
it ends and nodes with edges are left, it starts again at twice as many as the time before. It gives up when a
pass finds next to nothing and few nodes are left, or after `MAX_PASSES` passes; these nodes keep their order.
"""

# numba compiles by the types of the arguments, not by annotations.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True, allow-untyped-calls=True
# mypy: check-untyped-defs=False

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from oocpr.ingest.nodes.hashing import NOT_FOUND
from oocpr.ingest.nodes.strings import NumberedStrings, StringFile, external_argsort, split_strings
from oocpr.ingest.spill.partition import KeyRun, relabel_keys
from oocpr.jit import BORROWING, entry, inner

if TYPE_CHECKING:
    from oocpr.ingest.nodes.strings import Piece
    from oocpr.ingest.spill.files import SpillDir
    from oocpr.ingest.spill.id_bitmap import IdBitmap


_BLOCK_EDGES = 1 << 17
_COUNTED = 1 << 16
"""Keys below this are counted, larger ones, which few nodes can have, are sorted."""

_MOST_DEGREE = (1 << 31) - 1
"""Largest out-degree that a key tells from others."""


class EdgeScan:
    """Iterates over the keys of all edges, in no order, nodes numbered from 0 on.

    `on_progress` gets the edges gone over so far, those of earlier scans included; `count` are those of one
    scan.
    """

    def __init__(
        self, runs: Sequence[KeyRun], ids: IdBitmap | None, on_progress: Callable[[int], None]
    ) -> None:
        self.count = sum(run.count for run in runs)
        self._runs = runs
        self._ids = ids
        self._on_progress = on_progress
        self._done = 0

    def __iter__(self) -> Iterator[NDArray[np.uint64]]:
        buffer = np.empty(min(_BLOCK_EDGES, max(self.count, 1)), np.uint64)
        for run in self._runs:
            for keys, _ in run.records(buffer):
                if self._ids is not None:
                    self._ids.relabel(keys)
                yield keys
                self.advance(keys.size)

    def advance(self, edges: int) -> None:
        """Count edges that were gone over otherwise."""
        self._done += edges
        self._on_progress(self._done)


def count_degrees(
    scan: EdgeScan, nodes: int, *, destinations: bool = False
) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Count the edges of each node, duplicates included, up to 2^32 - 1.

    Returns out-degrees and in-degrees, uint32, shape (nodes,); these are empty if they were not wanted.
    """
    out_degree, in_degree = np.zeros(nodes, np.uint32), np.zeros(nodes if destinations else 0, np.uint32)
    for keys in scan:
        _count(keys, np.uint64(0), out_degree)
        if destinations:
            _count(keys, np.uint64(32), in_degree)
    return out_degree, in_degree


@entry()
def _count(keys, shift, counts):
    largest = np.uint32(0xFFFFFFFF)
    for key in keys:
        node = key >> shift & np.uint64(0xFFFFFFFF)
        if counts[node] < largest:
            counts[node] += np.uint32(1)


@dataclass(frozen=True)
class Permutation:
    """Another order of the nodes 0 .. n - 1: the row of each node, and the node of each row."""

    rows: NDArray[np.uint32]
    nodes: NDArray[np.uint32]

    def relabel(self, keys: NDArray[np.uint64]) -> None:
        """Turn keys of nodes into keys of rows, in place."""
        relabel_keys(keys, self.rows)


@dataclass(frozen=True)
class Order:
    """How keys become rows.

    `name` is what the store says about it. `relabel` turns keys of ids into keys of rows, in place; None if
    that keeps their order or changes nothing. `node_ids` are the ids of the rows, uint32, None if ids are
    rows. `reason` is why it was chosen, one line; None if it was asked for.
    """

    name: str
    relabel: Callable[[NDArray[np.uint64]], None] | None
    node_ids: NDArray[np.uint32] | None
    reason: str | None = None


def make_order(
    name: str, permutation: Permutation | None, ids: IdBitmap | None, reason: str | None = None
) -> Order:
    """Order the rows by a permutation of the nodes, None for one that changes nothing.

    The permutation's nodes are overwritten if there are ids, which are None if they are 0 .. n - 1.
    """
    if permutation is None:
        return Order(name, None, None if ids is None else ids.to_numpy(), reason)
    if ids is None:
        return Order(name, permutation.relabel, permutation.nodes, reason)

    def relabel(keys: NDArray[np.uint64]) -> None:
        ids.relabel(keys)
        permutation.relabel(keys)

    _look_up(ids.to_numpy(), permutation.nodes)
    return Order(name, relabel, permutation.nodes, reason)


def degree_keys(out_degree: NDArray[np.uint32], in_degree: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Keys to order nodes by: twice the out-degree, up to 2^32 - 2, and one more if edges reach the node.

    Degrees, uint32, shape (nodes,), may count duplicate edges; `out_degree` is overwritten.
    """
    np.minimum(out_degree, np.uint32(_MOST_DEGREE), out=out_degree)
    out_degree <<= np.uint32(1)
    out_degree |= in_degree > 0
    return out_degree


def add_degree_keys(keys: NDArray[np.uint32], more: NDArray[np.uint32]) -> None:
    """Add the keys of other edges of the same nodes."""
    reached = (keys | more) & np.uint32(1)
    keys >>= np.uint32(1)
    keys += np.minimum(more >> np.uint32(1), np.uint32(_MOST_DEGREE) - keys)
    keys <<= np.uint32(1)
    keys |= reached


def order_by_degree(keys: NDArray[np.uint32]) -> Permutation | None:
    """Order nodes by out-degree, descending, of equal ones first those that edges reach, then by number.

    `keys`: of `degree_keys`, overwritten. Nodes that no edge reaches so stand side by side, and runs for
    seeds on a device pass over them together. Returns None if nothing changes.
    """
    if bool((keys[1:] <= keys[:-1]).all()):
        return None
    large = np.flatnonzero(keys >= _COUNTED)
    large = large[np.argsort(-keys[large].astype(np.int64), kind="stable")]
    _rank(keys, np.zeros(_COUNTED, np.int64), large.size)
    keys[large] = np.arange(large.size)
    return Permutation(keys, invert(keys))


@entry()
def _rank(degrees, places, before):
    """Replace keys below the limit by rows, of which the first is `before`."""
    for degree in degrees:
        if degree < places.size:
            places[degree] += 1
    place = before
    for degree in range(places.size - 1, -1, -1):
        count = places[degree]
        places[degree] = place
        place += count
    for node in range(degrees.size):
        degree = degrees[node]
        if degree < places.size:
            degrees[node] = places[degree]
            places[degree] += 1


def invert(rows: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Give the node of each row, or the reverse."""
    nodes = np.empty_like(rows)
    _invert(rows, nodes)
    return nodes


@entry(**BORROWING)
def _invert(rows, nodes):
    for node in range(rows.size):
        nodes[rows[node]] = node


@entry()
def _look_up(known, nodes):
    """Replace nodes by their ids."""
    for row in range(nodes.size):
        nodes[row] = known[nodes[row]]


MAX_PASSES = 64
_FEW, _NOTHING = 16, 512
"""Parts of all nodes with edges: so few are left, so few are next to nothing."""

_CLASSES = 1 << 16
"""In-degrees from this number on count as equals when a search starts."""


def order_by_bfs(scan: EdgeScan, in_degree: NDArray[np.uint32], connected: int) -> Permutation | None:
    """Order nodes by a breadth-first search; None if nothing changes.

    `in_degree` counts duplicates, uint32, shape (nodes,); `connected` nodes have edges at all.
    """
    rows = np.full(in_degree.size, NOT_FOUND)
    parents = np.full(in_degree.size, NOT_FOUND)
    first, placed, starts = 0, 0, 1
    for _ in range(MAX_PASSES):
        if first == placed:
            placed = _start(in_degree, rows, placed, starts, np.zeros(_CLASSES, np.int64))
            starts *= 2
            if first == placed:
                break
        for keys in scan:
            _reach(keys, rows, parents, first, placed)
        first, placed = placed, _place(rows, parents, first, placed)
        if _FEW * (connected - placed) < connected and _NOTHING * (placed - first) < connected:
            break
    del parents
    if _place_rest(rows, placed):
        return None
    return Permutation(rows, invert(rows))


@entry()
def _start(in_degree, rows, placed, wanted, counts):
    """Place the `wanted` nodes without rows of the largest in-degrees; returns how many have rows then."""
    for node in range(rows.size):
        if rows[node] == NOT_FOUND:
            counts[min(in_degree[node], counts.size - 1)] += 1
    above = 0
    lowest = counts.size - 1
    while lowest > 1 and above + counts[lowest] < wanted:
        above += counts[lowest]
        lowest -= 1
    equals = wanted - above
    for node in range(rows.size):
        if rows[node] == NOT_FOUND and in_degree[node] >= lowest:
            if min(in_degree[node], counts.size - 1) == lowest:
                if equals == 0:
                    continue
                equals -= 1
            rows[node] = placed
            placed += 1
    return placed


@entry()
def _reach(keys, rows, parents, first, end):
    """Note for nodes without rows the first of their neighbours that are in rows `first` to `end` - 1."""
    low, count = np.uint32(first), np.uint32(end - first)
    for key in keys:
        row, column = key >> np.uint64(32), key & np.uint64(0xFFFFFFFF)
        of_row, of_column = rows[row], rows[column]
        if of_row == NOT_FOUND:
            if np.uint32(of_column - low) < count:
                parents[row] = min(parents[row], of_column)
        elif of_column == NOT_FOUND and np.uint32(of_row - low) < count:
            parents[column] = min(parents[column], of_row)


@entry()
def _place(rows, parents, first, placed):
    """Give rows to nodes that were reached, by parent and number; returns how many have rows then."""
    places = np.zeros(placed - first + 1, np.uint32)
    for node in range(rows.size):
        if parents[node] != NOT_FOUND:
            places[parents[node] - first + 1] += np.uint32(1)
    places[0] = placed
    for k in range(1, places.size):
        places[k] += places[k - 1]
    for node in range(rows.size):
        if parents[node] != NOT_FOUND:
            k = parents[node] - first
            rows[node] = places[k]
            places[k] += np.uint32(1)
            parents[node] = NOT_FOUND
    return np.int64(places[places.size - 2])


@entry()
def _place_rest(rows, placed):
    """Give the rows that are left in the order of the nodes; returns whether all nodes are in order then."""
    same = True
    for node in range(rows.size):
        if rows[node] == NOT_FOUND:
            rows[node] = placed
            placed += 1
        same = same and rows[node] == node
    return same


_DOT, _SLASH, _COLON, _AT, _HASH, _QUESTION = (np.uint8(ord(char)) for char in "./:@#?")
_BRACKET, _ZERO, _NINE, _A, _Z, _CASE = (np.uint8(ord(char)) for char in "[09AZ ")


def order_by_host(names: StringFile, spill_dir: SpillDir, space: int) -> Permutation | None:
    """Order nodes by `host_keys` of their names, then by number; None if nothing changes.

    Names take `space` bytes of memory at once, besides a few pieces.
    """
    keys = NumberedStrings(spill_dir)
    for text, lengths in names.pieces():
        numbers = np.arange(keys.count, keys.count + lengths.size, dtype=np.uint32)
        keys.add(*host_keys(text, lengths), numbers)
    nodes = np.empty(keys.count, np.uint32)
    filled = 0
    for numbers in external_argsort(keys, spill_dir, space):
        nodes[filled : filled + numbers.size] = numbers
        filled += numbers.size
    if bool((nodes[1:] > nodes[:-1]).all()):
        return None
    return Permutation(invert(nodes), nodes)


def looks_like_urls(names: Iterator[Piece]) -> bool:
    """Whether half of the first names have a scheme, as in https://example.org/."""
    found = [b"://" in name for piece in islice(names, 1) for name in split_strings(piece)]
    return bool(found) and 2 * sum(found) >= len(found)


def host_keys(text: NDArray[np.uint8], lengths: NDArray[np.uint32]) -> Piece:
    """Turn names, end to end with the length of each, into what they are sorted by.

    A scheme and what stands before an @ are dropped; the host, up to the first / ? or #, is reversed by its
    dots and put in lower case, unless it is an address in numbers. A port follows it, then the rest, which is
    at least a slash. A name without :// begins with its host.

    Examples
    --------
    >>> name = b"https://me@WWW.Example.com:8080/A?b"
    >>> host_keys(np.frombuffer(name, np.uint8), np.array([len(name)], np.uint32))[0].tobytes()
    b'com.example.www:8080/A?b'
    """
    keys = np.empty(text.size + lengths.size, np.uint8)
    key_lengths = np.empty_like(lengths)
    return keys[: _host_keys(text, lengths, keys, key_lengths)], key_lengths


@inner()
def _authority(text, start, end):
    """Find where the host begins, the port and the rest."""
    rest = start
    while rest < end and text[rest] not in (_COLON, _SLASH, _QUESTION, _HASH):
        rest += 1
    if rest + 2 < end and text[rest] == _COLON and text[rest + 1] == _SLASH and text[rest + 2] == _SLASH:
        start = rest + 3
    rest = start
    while rest < end and text[rest] not in (_SLASH, _QUESTION, _HASH):
        rest += 1
        if text[rest - 1] == _AT:
            start = rest
    port = rest
    while port > start and _ZERO <= text[port - 1] <= _NINE:
        port -= 1
    port = port - 1 if port > start and text[port - 1] == _COLON else rest
    return start, port, rest


@inner()
def _is_address(text, start, end):
    """Whether a host is an address in numbers, whose parts are in order already."""
    for i in range(start, end):
        if text[i] != _DOT and not _ZERO <= text[i] <= _NINE:
            return text[start] == _BRACKET
    return True


@inner()
def _copy(text, start, end, keys, at):
    for i in range(start, end):
        keys[at] = text[i]
        at += 1
    return at


@inner()
def _reverse(text, start, end, keys, at):
    """Write a host from its last part to its first, in lower case."""
    low = end
    while low > start:
        low -= 1
        if low > start and text[low] != _DOT:
            continue
        begin = at
        at = _copy(text, low + 1 if text[low] == _DOT else low, end, keys, at)
        for i in range(begin, at):
            if _A <= keys[i] <= _Z:
                keys[i] |= _CASE
        if text[low] == _DOT:
            keys[at] = _DOT
            at += 1
        end = low
    return at


@entry()
def _host_keys(text, lengths, keys, key_lengths):
    at = 0
    end = 0
    for k in range(lengths.size):
        begin = at
        start, end = end, end + np.int64(lengths[k])
        start, port, rest = _authority(text, start, end)
        if _is_address(text, start, port):
            at = _copy(text, start, port, keys, at)
        else:
            at = _reverse(text, start, port - 1 if text[port - 1] == _DOT else port, keys, at)
        at = _copy(text, port, rest, keys, at)
        if rest == end or text[rest] != _SLASH:
            keys[at] = _SLASH
            at += 1
        at = _copy(text, rest, end, keys, at)
        key_lengths[k] = at - begin
    return at
