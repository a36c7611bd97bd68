"""What rows gather, once a backend of a process: every stripe that it computes reads the same array."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any

from oocpr.engine.backend import Streams

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oocpr.engine.backend import Backend


class GatherVector:
    """The array that rows gather from, and the pass whose pushes it holds.

    Stripes write their proposals in it while they sweep, each to its own rows and read by itself alone;
    pushes change between passes only, under the lock, by the first stripe that comes.
    """

    def __init__(self, backend: Backend, nodes: int, reads: str, proposals: bool) -> None:
        self.backend = backend
        self.reads = backend.allocate_reads(nodes, reads, proposals)
        self._lock = Lock()
        self._holds = 0

    def load(self, number: int, pieces: Iterable[tuple[int, Any]]) -> None:
        """Take the pushes of pass `number` as (first row, stored numbers), unless they are here already."""
        with self._lock:
            if self._holds == number:
                return
            for row_begin, pushed in pieces:
                self.backend.load(self.reads, row_begin, pushed)
            self._holds = number


_exchanges: dict[tuple[str, int], GatherVector] = {}
_lock = Lock()


def exchange(
    token: str, place: int, backend: Backend, nodes: int, reads: str, proposals: bool
) -> GatherVector:
    """Return what a run exchanges on backend number `place` of this process, made when first asked for."""
    with _lock:
        if (token, place) not in _exchanges:
            _exchanges[token, place] = GatherVector(backend, nodes, reads, proposals)
        return _exchanges[token, place]


def forget(token: str) -> None:
    """Free what a run exchanges in this process, and what its backends were limited to."""
    with _lock:
        found = [_exchanges.pop(key) for key in [key for key in _exchanges if key[0] == token]]
    for each in found:
        if isinstance(each.backend, Streams):
            each.backend.close()
