"""Devices of several processes that bring each other their pushes, straight from device to device.

All of a group have to take part in each round, in the same order, or the others wait for them; so a round
begins only once all have published, and who ends a run aborts the group.
"""

from __future__ import annotations

import logging
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.plan.device_memory import STAGED_NUMBERS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oocpr.engine.cuda.device import Device

_LOG = logging.getLogger(__name__)

TRIED = 1 << 16
"""Numbers that each sends to try the ways."""


class Group:
    """One device's place in a group.

    Parameters
    ----------
    device
        Where.
    key, rank, size
        See NcclLink.
    """

    def __init__(self, device: Device, key: Any, rank: int, size: int) -> None:
        self._device, self._rank, self._size = device, rank, size
        with device:
            self._link = device.join(key, rank, size)

    def works(self) -> bool:
        """Tell whether what each member sends arrives here as it was; all have to ask."""
        xp = self._device.xp
        begins = [TRIED * member for member in range(self._size + 1)]
        sent = np.arange(begins[-1], dtype=np.uint32) * np.uint32(2654435761)
        right = True
        with self._device:
            own = xp.asarray(sent[begins[self._rank] : begins[self._rank + 1]])
            for begin, piece in self.gather(own, begins):
                right &= bool((piece == xp.asarray(sent[begin : begin + len(piece)])).all())
        return right

    def gather(self, own: Any, begins: Sequence[int]) -> Iterator[tuple[int, Any]]:
        """Give the pushes of all members in pieces, each with its first row; all have to take all of them.

        Parameters
        ----------
        own
            This member's push, shape (rows,), of the device.
        begins
            First row of each member, and the number of nodes.

        Yields
        ------
        tuple
            First row and numbers; these are good until the next piece is asked for.
        """
        with self._device:
            room = self._device.xp.empty(min(STAGED_NUMBERS, begins[-1]), own.dtype)
        for root, (first, last) in enumerate(pairwise(begins)):
            for begin in range(first, last, STAGED_NUMBERS):
                piece = room[: min(STAGED_NUMBERS, last - begin)]
                source = piece
                if root == self._rank:
                    source = own[begin - first : begin - first + len(piece)]
                with self._device:
                    self._link.broadcast(source, piece, root)
                yield begin, piece

    def abort(self) -> None:
        """See Link."""
        self._link.abort()
