"""The process that a step of an import by workers runs in, and what such processes send each other."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from numpy.typing import NDArray

from oocpr.system import spans

if TYPE_CHECKING:
    from pathlib import Path

    T = TypeVar("T")

_SENT = 1 << 21
"""Edges, or records of nodes, that are sent at a time."""

_ROWS = 1 << 20
"""Entries of an array with one per row that are sent at a time."""

Holder = Hashable
"""A worker as far as it has something that was made there: one that is started anew is another."""


class Worker(Protocol):
    """The process that a step runs in.

    Messages call it `name`. It may hold `memory` bytes, and runs `threads` steps at a time. Files are made in
    `folder`; what steps leave there is in `kept`.
    """

    name: str
    folder: Path
    memory: int
    threads: int
    kept: dict[str, Any]

    def shared(self, name: str, make: Callable[[], T]) -> T:
        """Give what is kept under a name; the first that asks makes it."""

    def fetch(self, holder: Holder, name: str, method: str, *args: Any) -> Any:
        """Call a method of what another worker keeps; an error that ends the step if it is lost."""


class KeptArray:
    """An array with an entry per node that others get in pieces."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array

    def part(self, first: int, stop: int) -> NDArray[Any]:
        """Give entries `first` to `stop` - 1."""
        return self.array[first:stop]


def part_name(number: int) -> str:
    """Name under which a worker keeps the edges of a part, in runs."""
    return f"part {number}"


def sent_pieces(start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Divide edges, or records, `start` to `stop` - 1 into pieces that are sent one at a time."""
    return spans(stop, _SENT, start)


def row_spans(size: int) -> Iterator[slice]:
    """Divide an array with an entry per row into pieces that are sent one at a time."""
    return (slice(*span) for span in spans(size, _ROWS))
