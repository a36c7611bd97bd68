"""A pool of memory that takes, splits, keeps and gives back as CuPy's does, and arrays that count in it."""

from __future__ import annotations

import threading
import weakref
from bisect import insort
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

UNIT = 512
"""Bytes of which all pieces are multiples."""


class PoolError(MemoryError):
    """More would have to be taken than may be."""


class Piece:
    """Part of a block that was taken, between others of it."""

    def __init__(self, size: int, before: Piece | None = None, behind: Piece | None = None):
        self.size = size
        self.before, self.behind = before, behind
        self.used = True

    def __lt__(self, other: Piece) -> bool:
        return self.size < other.size

    def split(self, size: int) -> Piece | None:
        """Keep so many bytes; returns the rest, if there is one."""
        if size == self.size:
            return None
        rest = Piece(self.size - size, self, self.behind)
        if rest.behind is not None:
            rest.behind.before = rest
        self.size, self.behind = size, rest
        return rest

    def take_in(self, behind: Piece) -> None:
        """Become one with the piece behind."""
        self.size += behind.size
        self.behind = behind.behind
        if self.behind is not None:
            self.behind.before = self


class Pool:
    """What has been taken of a device, in blocks that are kept until somebody wants them given back.

    `limit`: most bytes that may be taken; 0 for any.
    `most`: most bytes that were taken at any time since somebody set it.
    """

    def __init__(self) -> None:
        self.limit = self.most = 0
        self._total = self._used = 0
        self._free: list[Piece] = []
        self._lock = threading.Lock()
        # Arrays go at any time, also while this thread has the lock.
        self._gone: deque[Piece] = deque()

    @property
    def used(self) -> int:
        """Bytes of arrays."""
        with self._lock:
            self._free_gone()
            return self._used

    @property
    def total(self) -> int:
        """Bytes that are taken for them, and that were for others."""
        with self._lock:
            return self._total

    def take(self, nbytes: int) -> Callable[[], None]:
        """Take memory of an array; returns what gives it back.

        Raises PoolError if more would have to be taken than may be.
        """
        size = -(-nbytes // UNIT) * UNIT
        with self._lock:
            self._free_gone()
            piece = self._found(size) or self._block(size)
            piece.used = True
            self._used += size
        return lambda: self._gone.append(piece)

    def free_all_blocks(self) -> None:
        """Give back blocks of which no part is used."""
        with self._lock:
            self._free_gone()
            self._free_whole()

    def _free_whole(self) -> None:
        whole = [piece for piece in self._free if piece.before is piece.behind is None]
        self._free = [piece for piece in self._free if piece not in whole]
        self._total -= sum(piece.size for piece in whole)

    def _block(self, size: int) -> Piece:
        if self.limit and self._total + size > self.limit:
            # CuPy's looks for garbage, too, which nobody should rely on.
            self._free_whole()
        if self.limit and self._total + size > self.limit:
            raise PoolError(f"{size} bytes beside {self._total} are more than {self.limit}")
        self._total += size
        self.most = max(self.most, self._total)
        return Piece(size)

    def _found(self, size: int) -> Piece | None:
        """The smallest free piece that has the size, without what it has more."""
        piece = next((piece for piece in self._free if piece.size >= size), None)
        if piece is not None:
            self._free.remove(piece)
            self._keep(piece.split(size))
        return piece

    def _keep(self, piece: Piece | None) -> None:
        if piece is not None:
            piece.used = False
            insort(self._free, piece)

    def _free_gone(self) -> None:
        while self._gone:
            piece = self._gone.popleft()
            self._used -= piece.size
            free = self._free
            if piece.behind is not None and not piece.behind.used:
                free.remove(piece.behind)
                piece.take_in(piece.behind)
            if piece.before is not None and not piece.before.used:
                free.remove(piece.before)
                piece.before.take_in(piece)
                piece = piece.before
            self._keep(piece)


class PooledArray(np.ndarray):
    """An array in a pool; only copies of it come to the host."""

    pool: ClassVar[Pool]

    def __array_finalize__(self, other: object) -> None:
        if self.base is None and self.nbytes:
            weakref.finalize(self, self.pool.take(self.nbytes)).atexit = False

    def get(self, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """See CuPy's."""
        if out is None:
            return np.array(self)
        out[...] = self
        return out

    def set(self, values: NDArray[Any]) -> None:
        """See CuPy's."""
        self[...] = values


class PooledNumpy:
    """NumPy whose arrays are in a pool, as far as CuPy's are made here."""

    def __init__(self, pool: Pool) -> None:
        self.ndarray = type("PooledArray", (PooledArray,), {"pool": pool})

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def empty(self, shape: int | tuple[int, ...], dtype: DTypeLike = np.float64) -> Any:
        """See NumPy."""
        return self.ndarray(shape, dtype)

    def zeros(self, shape: int | tuple[int, ...], dtype: DTypeLike = np.float64) -> Any:
        """See NumPy."""
        made = self.empty(shape, dtype)
        made[...] = 0
        return made

    def array(self, values: Any, dtype: DTypeLike = None) -> Any:
        """See NumPy."""
        here = np.asarray(values, dtype)
        made = self.empty(here.shape, here.dtype)
        made[...] = here
        return made

    def asarray(self, values: Any, dtype: DTypeLike = None) -> Any:
        """See NumPy."""
        there = isinstance(values, self.ndarray) and dtype in (None, values.dtype)
        return values if there else self.array(values, dtype)
