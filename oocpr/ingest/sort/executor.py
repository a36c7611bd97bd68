"""Who sorts the buckets of an import and packs its tiles: this process, or others that it calls.

Whoever it is, the store has the same bytes: there is one ascending order of keys and one encoding of a tile.
Others than this process are of the room `engine`, which has its methods without importing it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

from oocpr.ingest.budget import OWN_NEEDS
from oocpr.store.codec.tile_encoder import TileCoder
from oocpr.system import usable_cores

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from oocpr.plan.memory import Needs


class SortEncodeService(Protocol):
    """Sorts and packs for an import, which calls both functions from several threads at a time.

    A call returns when its work is done. What it raises ends the import.
    """

    @property
    def workers(self) -> int:
        """Calls that are worth having under way at once; as many threads make them, if there is memory."""

    @property
    def needs(self) -> Needs:
        """What a call takes of this process's memory."""

    def sort(self, keys: NDArray[np.uint64]) -> None:
        """Put keys in ascending order, in place; repeats stay.

        Parameters
        ----------
        keys
            uint64, contiguous, shape (k,); k is 1 or more.
        """

    def encode(self, columns: NDArray[np.uint32], lengths: NDArray[np.uint32]) -> NDArray[np.uint8]:
        """Encode a tile to the bytes that `oocpr.store.codec.tile_encoder.TileCoder.encode` makes of it.

        Parameters
        ----------
        columns
            uint32, contiguous, shape (m,): strictly ascending inside a segment; m may be 0.
        lengths
            Columns of each segment, uint32, contiguous, shape (s,); s is 1 or more.

        Returns
        -------
        uint8, contiguous, shape (bytes,); the next call from the same thread may overwrite it.
        """


class LocalSortEncode:
    """The threads of this process: NumPy sorts, the compiled coder packs.

    Parameters
    ----------
    workers
        Threads; None takes one for each processor that this process may use.

    Examples
    --------
    >>> import numpy as np
    >>> keys = np.array([3, 1, 2, 1], np.uint64)
    >>> LocalSortEncode().sort(keys)
    >>> keys.tolist()
    [1, 1, 2, 3]
    """

    needs = OWN_NEEDS

    def __init__(self, workers: int | None = None) -> None:
        self.workers = usable_cores() if workers is None else workers
        self._own = threading.local()

    def sort(self, keys: NDArray[np.uint64]) -> None:
        """See SortEncodeService."""
        keys.sort()

    def encode(self, columns: NDArray[np.uint32], lengths: NDArray[np.uint32]) -> NDArray[np.uint8]:
        """See SortEncodeService."""
        # Fresh memory costs more than much of what is done with it here.
        if not hasattr(self._own, "coder"):
            self._own.coder = TileCoder()
        coder: TileCoder = self._own.coder
        return coder.encode(columns, lengths)
