"""How far a probe is, told tile by tile."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oocpr.progress import Progress

STAGE = "measuring"


class Measuring:
    """Tells of the tiles that a probe reads, which is what takes it long.

    Tiles that are quick are read once more until there is something to time, so how many there will be is not
    known. Those that are read in any case are told, and no others.

    Parameters
    ----------
    progress
        Told of each, by one thread at a time, though not always by the same one.
    steps
        What is measured, and how many tiles are read for it in any case.

    Examples
    --------
    >>> measuring = Measuring(lambda *told: print(*told), {"reading": 1, "tiles that stay": 2})
    >>> measuring.begin("reading")
    measuring 0 3 tiles reading
    >>> measuring.read()
    measuring 1 3 tiles reading
    >>> measuring.read()
    >>> measuring.begin("tiles that stay")
    measuring 1 3 tiles tiles that stay
    """

    def __init__(self, progress: Progress, steps: Mapping[str, int]) -> None:
        self._progress, self._steps = progress, steps
        self._lock = Lock()
        self._step = ""
        self._done = self._end = 0

    def begin(self, step: str) -> None:
        """Tell what is measured from now on."""
        with self._lock:
            self._step, self._end = step, self._done + self._steps[step]
            self._tell()

    def read(self) -> None:
        """Tell that a tile was read, and is joined where it is made of several; any thread may."""
        with self._lock:
            if self._done < self._end:
                self._done += 1
                self._tell()

    def _tell(self) -> None:
        self._progress(STAGE, self._done, sum(self._steps.values()), "tiles", self._step)
