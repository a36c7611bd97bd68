"""How many segments of each number a sweep reads and writes: decided by the changes of the sweeps before.

Float64 numbers are held in 2 or 4 segments of as many bits, the first of which has sign, exponent and the
leading bits of the mantissa; those that are not read count as zeros. A run begins with the first segment, and
reads one more once the change of a sweep comes near to what that precision can show, or no longer falls
(Gruetzmacher et al. 2018, section 3; where the paper leaves it open, as the authors' public program does).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from oocpr.engine.settings import ROUNDING

_MANTISSA_BITS = {2: (20,), 4: (4, 20, 36)}
"""Bits of the mantissa that 1, 2, ... segments have, fewer than all."""

_NEAR = 10.0
"""A change of so many units of what is read is near to what that can show."""

UNKNOWN_CHANGE = 2.0
"""Change of the first sweep, which is not computed: two distributions are no farther apart."""


def cut_by(segments: int, read: int) -> float:
    """Largest relative change of a number of which only the first `read` segments are read.

    Examples
    --------
    >>> cut_by(2, 1) == 2.0**-20, cut_by(4, 4)
    (True, 0.0)
    """
    return 0.0 if read == segments else 2.0 ** -_MANTISSA_BITS[segments][read - 1]


@dataclass
class PrecisionSchedule:
    """What the next sweep reads and writes.

    Attributes
    ----------
    read
        Segments of the vector and of the matrix that it reads, at first 1.
    raising
        Whether the sweep after it reads one more: its result is then scaled to a sum of one, and the change
        is that of numbers with one segment more.
    plain
        Whether all are in float64 as usual, from the sweep on that follows the first with all segments.
    """

    segments: int
    read: int = 1
    raising: bool = False
    plain: bool = False
    _changes: list[float] = field(default_factory=list)
    _decided: list[int] = field(default_factory=lambda: [0])
    _swept: bool = False

    @property
    def written(self) -> int:
        """Segments that the sweep writes: one more than it reads, as the authors' program does."""
        return min(self.read + 1, self.segments)

    @property
    def seen(self) -> int:
        """Segments of both vectors that its change is computed of."""
        return self.written if self.raising else self.read

    @property
    def first(self) -> bool:
        """Whether it is the first sweep, of which no change is computed."""
        return not self._swept

    def note(self, change: float) -> None:
        """Take the change of the sweep, and decide about the next; that of the first counts for nothing."""
        self.plain = self.plain or self.read == self.segments
        self.read += self.raising
        self.raising = False
        if self.first:
            self._swept = True
            return
        before = self._changes[-1] if self._changes else math.inf
        self._changes.append(change)
        if self.read < self.segments:
            near = change <= _NEAR * cut_by(self.segments, self.read)
            if near or change >= before:
                self.raising = True
                self._decided.append(len(self._changes))

    @property
    def sweeps(self) -> tuple[int, ...]:
        """Sweeps at each precision, the lowest first, as the paper counts them: the first sweep is left out.

        A sweep counts at the precision that was decided when it began; all together are the sweeps less one.
        """
        ends = [*self._decided[1:], len(self._changes)]
        counts = [end - begin for begin, end in zip(self._decided, ends, strict=True)]
        return tuple(counts + [0] * (self.segments - len(counts)))

    def bound(self, change: float, damping: float) -> float:
        """Certified L1 distance of what the sweep leaves from the exact ranks.

        The sweep is the exact one but for what cutting takes: of the numbers that it reads, of the two that
        are multiplied, of those that it writes, and of the vectors that `change` is computed of.
        """
        if self.first:
            return UNKNOWN_CHANGE
        cut = 0.0 if self.plain else cut_by(self.segments, self.read)
        seen = 0.0 if self.plain else cut_by(self.segments, self.seen)
        written = 0.0 if self.plain else cut_by(self.segments, self.written)
        # In the end the vector is read as it was written.
        swept = 2 * damping * cut + written
        exact = change + 2 * seen + swept
        bound = (damping * exact + ROUNDING) / (1 - damping) + swept
        # Scaling moves the vector by no more than it is away.
        return 2 * bound + written if self.raising else bound
