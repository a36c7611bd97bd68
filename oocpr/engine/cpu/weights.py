"""Weights in compiled code: every kernel once, for graphs with weights and without.

If a graph has none, the argument is None and the out-degrees are integers; numba then compiles what follows
to nothing, and the kernels are what they would be if nobody had thought of weights. If it has some, the
divisor of a row is the weight that leaves it, with a sign that says whether any does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numba import float32, float64, types, uint32, uint64
from numba.extending import overload

from oocpr.engine.cpu.numbers import double_of
from oocpr.jit import entry, inner

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oocpr.store.codec.mantissa_segments import Segments


class Weights(NamedTuple):
    """Weights of a tile's edges as they are stored, to be multiplied by `factor`.

    The parts have shape (edges,), or (0,) if all are zero; see `mantissa_segments.Segments`.
    """

    head: NDArray[np.uint16]
    second: NDArray[np.uint16]
    third: NDArray[np.uint16]
    fourth: NDArray[np.uint16]
    factor: float


def without_data(weights: Weights) -> Weights:
    """Make what has the same types and none of the memory."""
    return Weights(
        _empty_like(weights.head), _empty_like(weights.second), _empty_like(weights.third),
        _empty_like(weights.fourth), weights.factor,
    )  # fmt: skip


def _empty_like(part: NDArray[np.uint16]) -> NDArray[np.uint16]:
    empty = np.empty(0, np.uint16)
    # Compiled functions have a version for each of both.
    empty.flags.writeable = part.flags.writeable
    return empty


def divisors(degree: NDArray[Any]) -> NDArray[Any]:
    """Mark, in place, the rows that no weight leaves: their ranks are divided by one.

    >>> divisors(np.array([0.25, 0.0])).tolist()
    [0.25, -1.0]
    """
    if degree.dtype == np.float64:
        degree[degree == 0] = -1.0
    return degree


def stored_weights(segments: Segments, edges: int, factor: float) -> Weights:
    """Take the weights of a tile of so many edges as they are stored."""
    missing = edges - segments.size
    # Zarr's chunks end before weights of zero.
    if missing == 0:
        return Weights(*segments.parts, factor)
    head, second, third, fourth = (
        np.append(part, np.zeros(missing, np.uint16)) if part.size else part for part in segments.parts
    )
    return Weights(head, second, third, fourth, factor)


def decode_weights(weights: Weights, edges: int) -> NDArray[np.float64]:
    """Weights of a tile's edges: float64, shape (edges,)."""
    out = np.empty(edges)
    _decode_all(weights, out)
    return out


def divisor(degree: Any) -> float:
    """Return what a row's rank is divided by: its out-degree or the weight that leaves it, or one."""
    raise NotImplementedError


def dangles(degree: Any) -> bool:
    """Whether nothing leaves a row."""
    raise NotImplementedError


def times_weight(value: Any, weights: Any, i: Any) -> Any:
    """Return `value` times weight i."""
    raise NotImplementedError


def copy_weight(to: Any, place: Any, weights: Any, i: Any) -> None:
    """Write weight i to a place, if there are weights."""
    raise NotImplementedError


def pad_weight(to: Any, place: Any) -> None:
    """Write a weight of zero to a place, if there are weights."""
    raise NotImplementedError


def store_share(to: Any, place: Any, weights: Any, i: Any, degree: Any, damping: float) -> None:
    """Write the share of a row's rank that edge i passes on, if there are weights."""
    raise NotImplementedError


def piece_buffer(weights: Any, items: int) -> Any:
    """Return memory for the weights of a piece; None if there are none."""
    raise NotImplementedError


def decode_piece_weights(weights: Any, first: Any, count: Any, out: Any) -> None:
    """Write weights first .. first + count - 1 to the front of `out`, if there are weights."""
    raise NotImplementedError


def _none(kind: Any) -> bool:
    return isinstance(kind, types.NoneType)


@overload(divisor, inline="always")
def _divisor(degree):
    if degree == types.uint32:
        return lambda degree: float64(max(degree, uint32(1)))
    return lambda degree: abs(degree)


@overload(dangles, inline="always")
def _dangles(degree):
    if degree == types.uint32:
        return lambda degree: degree == uint32(0)
    return lambda degree: degree < 0.0


@overload(times_weight, inline="always")
def _times_weight(value, weights, i):  # noqa: ARG001
    if _none(weights):
        return lambda value, weights, i: value  # noqa: ARG005
    return lambda value, weights, i: value * weights[i]


@overload(copy_weight, inline="always")
def _copy_weight(to, place, weights, i):  # noqa: ARG001
    if _none(weights):
        return lambda to, place, weights, i: None  # noqa: ARG005

    def keep(to, place, weights, i):
        to[place] = weights[i]

    return keep


@overload(pad_weight, inline="always")
def _pad_weight(to, place):  # noqa: ARG001
    if _none(to):
        return lambda to, place: None  # noqa: ARG005

    def keep(to, place):
        to[place] = 0.0

    return keep


@overload(store_share, inline="always")
def _store_share(to, place, weights, i, degree, damping):  # noqa: ARG001
    if _none(weights):
        return lambda to, place, weights, i, degree, damping: None  # noqa: ARG005

    def keep(to, place, weights, i, degree, damping):
        to[place] = float32(damping * _weight_at(weights, i) / abs(degree))

    return keep


@overload(piece_buffer, inline="always")
def _piece_buffer(weights, items):  # noqa: ARG001
    if _none(weights):
        return lambda weights, items: None  # noqa: ARG005
    return lambda weights, items: np.empty(items, np.float64)  # noqa: ARG005


@overload(decode_piece_weights)
def _decode_piece_weights(weights, first, count, out):  # noqa: ARG001
    if _none(weights):
        return lambda weights, first, count, out: None  # noqa: ARG005
    return lambda weights, first, count, out: _decode_into(weights, first, count, out)


@inner()
def _weight_at(weights, i):
    bits = uint64(0)
    if weights.head.size:
        bits |= uint64(weights.head[i]) << uint64(48)
    if weights.second.size:
        bits |= uint64(weights.second[i]) << uint64(32)
    if weights.third.size:
        bits |= uint64(weights.third[i]) << uint64(16)
    if weights.fourth.size:
        bits |= uint64(weights.fourth[i])
    return double_of(bits) * weights.factor


@inner()
def edge_factor(weights, degree, damping):
    """Return what a row sends along each edge, as a share of its rank; 1 if its edges have shares."""
    if weights is None:
        return float32(damping) / float32(max(degree, uint32(1)))
    return float32(1.0)


@inner()
def loop_share(weights, columns, begin, end, row, degree, damping):
    """Return the share of a row's rank that its edge to itself, one of begin .. end - 1, returns."""
    if weights is None:
        return float32(damping) / float32(max(degree, uint32(1)))
    for i in range(begin, end):
        if columns[i] == row:
            return float32(damping * _weight_at(weights, i) / abs(degree))
    return float32(0.0)


@entry()
def _decode_all(weights, out):
    _decode_into(weights, uint64(0), uint64(out.size), out)


@inner()
def _decode_into(weights, first, count, out):
    bits = out.view(np.uint64)
    for i in range(count):
        bits[i] = uint64(0)
    if weights.head.size:
        for i in range(count):
            bits[i] = uint64(weights.head[first + i]) << uint64(48)
    if weights.second.size:
        for i in range(count):
            bits[i] |= uint64(weights.second[first + i]) << uint64(32)
    if weights.third.size:
        for i in range(count):
            bits[i] |= uint64(weights.third[first + i]) << uint64(16)
    if weights.fourth.size:
        for i in range(count):
            bits[i] |= uint64(weights.fourth[first + i])
    for i in range(count):
        out[i] *= weights.factor
