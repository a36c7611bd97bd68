"""Memory that is used again, for work that is done many times over on arrays of like sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray


class Space:
    """Arrays that are used again: fresh memory costs more than most of what is done with it.

    Examples
    --------
    >>> space = Space()
    >>> first = space.array("words", 100, np.uint32)
    >>> np.shares_memory(first, space.array("words", 50, np.uint32))
    True
    """

    def __init__(self) -> None:
        self._held: dict[str, NDArray[Any]] = {}

    def array(self, name: str, count: int, dtype: DTypeLike) -> NDArray[Any]:
        """Give the array of that name with `count` entries, whatever is in it; the one before is void."""
        held = self._held.get(name)
        if held is None:
            held = self._held[name] = np.empty(count, dtype)
        elif held.size < count:
            # The old array goes before the new one comes, and sizes vary a little from tile to tile.
            del held, self._held[name]
            held = self._held[name] = np.empty(count + count // 8, dtype)
        return held[:count]
