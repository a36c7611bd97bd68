"""What CPMS asks of a processor or a device: the steps of the paper's algorithm."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from oocpr.engine.tiles.stream import PassTraffic


class Sweeps(ABC):
    """Two vectors and a matrix in segments, and what is done to them.

    `read` and `written` say how many segments of each number, the first ones. The current vector is `_old`,
    and the new one `_new`.
    """

    _old: Any
    _new: Any

    @abstractmethod
    def dangling_mass(self, read: int) -> float:
        """Sum of the current vector's numbers of nodes without out-edges."""

    @abstractmethod
    def sweep(self, read: int, written: int, damping: float, constant: float) -> PassTraffic:
        """Make the new vector: damping times what rows gather, and a constant."""

    def total(self, read: int) -> float:
        """Sum of the current vector."""
        return self._norm(self._old, read)

    def norm(self, read: int) -> float:
        """Sum of the new vector."""
        return self._norm(self._new, read)

    @abstractmethod
    def _norm(self, vector: Any, read: int) -> float:
        """Sum of the absolute numbers of a vector."""

    @abstractmethod
    def scale(self, read: int, divisor: float) -> None:
        """Divide the new vector, of which so many segments are read and written."""

    @abstractmethod
    def change(self, read: int) -> float:
        """L1 distance of the new vector from the current one."""

    def advance(self) -> None:
        """Let the new vector be the current one."""
        self._old, self._new = self._new, self._old

    @abstractmethod
    def to_plain(self) -> None:
        """Turn both vectors and the matrix into plain float64, where they are: one segment from now on."""

    @abstractmethod
    def ranks(self, read: int) -> NDArray[np.float64]:
        """Give the current vector; float64, shape (nodes,)."""

    @property
    def allocated_bytes(self) -> int:
        """Most bytes that were taken of a device with a memory of its own; 0 without one."""
        return 0

    def close(self) -> None:  # noqa: B027 - plain arrays need nothing
        """Free everything."""
