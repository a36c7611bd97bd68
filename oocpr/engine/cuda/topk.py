"""The largest numbers of a vector on a device; what leaves the device is their number, not the vector's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.engine.cuda.device import fetch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oocpr.engine.cuda.device import Device

_BLOCK = 256
_DIGITS = 12


def largest_on(device: Device, values: Any, k: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Find the `k` largest values of a vector and where they are, as :func:`oocpr.result.topk.largest` does.

    Parameters
    ----------
    device
        Where the vector is.
    values
        float64, shape (n,), n below 2**32.
    k
        How many; a shorter vector gives all it has.

    Returns
    -------
    rows : int64, shape (k,)
        Positions, largest value first; equal values in the order of the vector.
    values : float64, shape (k,)
        The values there.
    """
    xp = device.xp
    count = int(values.size)
    k = min(k, count)
    if k == 0:
        return np.empty(0, np.int64), np.empty(0)
    kernels = device.load("topk.cu")
    grid = (min(-(-count // _BLOCK), 8 * device.multiprocessors),)
    # Value, and place with the number of those still to be found in one word.
    selection = xp.asarray(np.array([0, k << 32], np.uint64))
    counts = xp.zeros(256, xp.uint32)
    for digit in range(_DIGITS):
        arguments = (values, np.uint64(count), np.int32(digit), selection, counts)
        kernels.get_function("count_digit")(grid, (_BLOCK,), arguments)
        kernels.get_function("choose_digit")((1,), (256,), (np.int32(digit), selection, counts))
    taken, places, found = xp.zeros(1, xp.uint32), xp.zeros(k, xp.uint32), xp.zeros(k)
    kernels.get_function("take")(grid, (_BLOCK,), (values, np.uint64(count), selection, taken, places, found))
    rows, numbers = fetch(places), fetch(found)
    order = np.lexsort((rows, -numbers))
    return rows[order].astype(np.int64), numbers[order]
