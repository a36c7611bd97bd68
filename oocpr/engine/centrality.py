"""Relatives of PageRank: Katz centrality, and eigenvectors of A^T and of A A^T, for a graph's matrix A.

A[u, v] is the weight of the edge from u to v. A pass over the tiles gives one product. What passes find spans
a small subspace, from which the next approximation is taken (Arnoldi 1951; for a linear equation GMRES, Saad
and Schultz 1986), so that a few dozen passes do what takes power iteration hundreds.

An approximation x of Katz centrality, x* = M x* + 1 with M = alpha A^T, is certified by its residual
r = M x + 1 - x. M has no negative number. If x > 0 and all |r| <= d < 1, then M x <= x - (1 - d) < x, so the
largest eigenvalue of M is below one and (I - M)^-1 = I + M + M^2 + ... has no negative number either. Hence::

    |x - x*| = |(I - M)^-1 r| <= (I - M)^-1 (d 1) = d x*

Each number is wrong by the share d of itself at most. If d < 1 and some x <= 0, alpha is too large.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oocpr.engine.cpu.backend import CpuBackend
from oocpr.engine.cpu.gather import PIECE
from oocpr.engine.cpu.threads import default_threads
from oocpr.engine.tiles.source import split_tile, tiles_of, weight_scale_of
from oocpr.engine.tiles.stream import TileStream
from oocpr.errors import DamagedError, UsageError
from oocpr.plan.residency import RING_SLOTS, reading_threads, spread_evenly
from oocpr.progress import silent
from oocpr.system import in_threads, usable_cores

if TYPE_CHECKING:
    from oocpr.engine.cpu.backend import CpuTile
    from oocpr.progress import Progress
    from oocpr.store.graph import GraphStore

    Vector = NDArray[np.float64]

MIN_DIRECTIONS, MAX_DIRECTIONS = 2, 12
"""Products from which an approximation is taken; each is a vector in memory."""

_STEP = 1 << 15
"""Numbers of vectors that are added at a time."""

_UNIT, _LEAST = 2.0**-53, 2.0**-1074
_LONGEST_CHAIN, _OTHER_ROUNDINGS = 1024 * PIECE, 64
"""Numbers that the product adds one after the other, and roundings beside them."""

_LEAST_TILE = 1 << 10
"""Edges of the smallest tiles that an import makes, but for the last."""

_ROWS = 1 << 18
"""Rows whose edges are counted at a time."""

_NOTHING = 1e-6
"""Share of the largest product seen that one with an eigenvector must have: of eigenvalue 0 one with the half
of all digits looks like an eigenvector of this size."""

_LARGE = (1e-8, 1e-16, 0.0)
"""Shares of the largest number of an eigenvector above which cycles are looked for, one after the other.

Among few rows they are found sooner."""
_ALL = -1.0
"""Share above which all numbers are."""

_STALLED = 0.9
"""Share of a residual that a step by least squares must not leave; the terms of the series are taken then."""


class StreamedMatrix:
    """The matrix of a stored graph, of which `resident` tiles stay in memory after the first pass.

    Weights are scaled by `factor`, a power of two.
    """

    def __init__(
        self, store: GraphStore, resident: int, threads: int | None, progress: Progress = silent
    ) -> None:
        scale = weight_scale_of(store, "float64")
        self.nodes, self.factor = store.nodes, 1.0 if scale is None else scale.factor
        self.passes = self.bytes_read = 0
        self._store, self._progress = store, progress
        self._weighted, self._rows = scale is not None, store.tile_rows
        threads = threads or default_threads(store.edges, streams=resident < len(store.tile_rows) - 1)
        self._backend = CpuBackend(threads)
        # Each thread scatters to about as many edges.
        degrees = np.cumsum(store.out_degree(0, store.nodes), dtype=np.uint64)
        cuts = np.searchsorted(degrees, np.arange(1, threads) * (store.edges // threads))
        self._bounds = np.array([0, *cuts, store.nodes], np.uint64)
        tiles = len(self._rows) - 1
        self._stream = TileStream(
            tiles_of(store), range(tiles), spread_evenly(0, tiles, resident), RING_SLOTS,
            reading_threads(usable_cores(), past_cache=False), self._prepare,
        )  # fmt: skip

    def _prepare(self, _: int, encoded: NDArray[np.uint8], stays: bool) -> CpuTile:
        own = encoded.copy() if stays else encoded
        if self._weighted:
            return self._backend.prepare_weighted(*split_tile(own), self.factor, self.nodes, False)
        return self._backend.prepare(own, self.nodes, False)

    def receive(self, values: Vector, out: Vector) -> None:
        """Write A^T `values` to `out`."""
        self._multiply(values, out, None)

    def reflect(self, values: Vector, out: Vector, received: Vector | None = None) -> None:
        """Write A A^T `values` to `out` and, if it is given, A^T `values` to `received`, in one pass."""
        out[:] = 0.0
        self._multiply(values, received, out)

    def _multiply(self, values: Vector, received: Vector | None, scattered: Vector | None) -> None:
        carry = 0.0
        waiting: list[tuple[NDArray[np.uint32], Vector | None]] = []  # edges of a row that goes on

        def compute(tile: int, prepared: Any) -> None:
            nonlocal carry
            first, last = int(self._rows[tile]), int(self._rows[tile + 1])
            product = self._backend.multiply_tile(
                prepared, values, last - first, carry, scattered, self._bounds
            )
            carry = product.carry
            if received is not None:
                received[first:last] = product.sums
            if scattered is None:
                return
            if last > first:
                for columns, weights in waiting:
                    scattered[columns] += product.sums[0] * (1.0 if weights is None else weights)
                waiting.clear()
            waiting.append((product.columns, product.weights))

        self.bytes_read += self._stream.run(compute).bytes_read
        if carry:
            raise DamagedError("The last tile has edges of a row behind the last one.")
        self.passes += 1
        self._progress("ranking", self.passes, None, "passes")

    def rounding(self, x: Vector) -> float:
        """Bound what rounding may have hidden of, or added to, a number of alpha A^T x + 1 - x, for x > 0."""
        bounds = [0.0]
        for lo in range(0, self.nodes, _ROWS):
            part = x[lo : lo + _ROWS]
            edges = np.diff(self._store.indptr(lo, lo + len(part) + 1))
            # A row is summed in parts, which end with pieces of a tile and with tiles, and then these.
            chain = np.minimum(edges, _LONGEST_CHAIN) + edges // (_LEAST_TILE // 2) + _OTHER_ROUNDINGS
            bounds.append(float((chain * (2 * np.abs(part) + 1)).max()))
        return _UNIT * max(bounds)

    def close(self) -> None:
        """Free the tiles."""
        self._stream.close()


@dataclass(frozen=True)
class Outcome:
    """What a search has found.

    Parameters
    ----------
    vectors
        float64, shape (nodes,): of an equation and of A^T one, of A A^T itself and its product with A^T.
    converged
        Whether it ended because it was good enough.
    residual
        Largest |M x + 1 - x|, or, of an eigenvector, the L2 norm of M x - eigenvalue x over the eigenvalue,
        for x of norm 1.
    error_bound
        Certified share of itself by which each number is wrong at most; inf if nothing is certified, and None
        for eigenvectors.
    eigenvalue, gap
        The largest eigenvalue of A^T or A A^T, and by what share of it the next one is less in its real part,
        as the subspace has them; None if it was too small to say.
    """

    vectors: tuple[Vector, ...]
    converged: bool
    residual: float
    error_bound: float | None
    eigenvalue: float | None
    gap: float | None


def solve_katz(
    matrix: StreamedMatrix, alpha: float, beta: float, *, tol: float, max_passes: int, directions: int
) -> Outcome:
    """Solve x = alpha A^T x + beta, as beta times the solution for one.

    Raises UsageError if `alpha` is shown to be not below one over the largest eigenvalue, or numbers grow
    past what float64 can certify, or it does not hold them times `beta`.
    """
    scaled = alpha / matrix.factor
    x, basis = np.ones(matrix.nodes), [np.empty(matrix.nodes) for _ in range(directions + 1)]
    eigenvalue: float | None = None
    gap: float | None = None
    before = math.inf
    # No exact number is below beta, and by so much each is wrong if it is subnormal; else rounding covers it.
    underflow = _LEAST / beta

    def small_enough(found: Vector, norm: float) -> bool:
        return _combination(scaled * found, norm)[1] <= tol / 4

    while True:
        matrix.receive(x, basis[0])
        largest, least, norm = _katz_residual(x, basis[0], scaled)
        rounding = matrix.rounding(x)
        bound = largest + rounding
        if bound < 1 and least <= 0:
            raise _too_large(alpha, eigenvalue)
        # No later bound is below one either; a number that is none has grown that far, too.
        if not (rounding < 1 and norm < math.inf):
            # Whether alpha is above the limit is not known: paths of a graph without cycles do it, too.
            raise UsageError(
                f"alpha is {alpha:g}, and numbers grow past what float64 can certify.", "Use a smaller alpha."
            )
        # Of what rounding may have made, further passes find little less.
        stalled = norm == 0 or (largest <= rounding and bound > _STALLED * before)
        if bound + underflow <= tol or stalled or matrix.passes >= max_passes:
            break
        before = bound
        # The last pass says how good x is.
        allowed = min(directions, max_passes - matrix.passes - 1)
        if not allowed:
            # The residual is the next term of the series, which takes no pass.
            _add(x, basis, [1.0])
            continue
        found = _krylov(matrix.receive, basis[: allowed + 1], norm, small_enough)
        eigenvalue, gap, _ = _dominant(found, matrix.factor)
        _add(x, basis, _combination(scaled * found, norm)[0])
    if not max(_pieces(lambda part: float(x[part].max()), len(x))) * beta < math.inf:
        raise UsageError(f"beta is {beta:g}, and float64 holds no numbers as large.", "Use a smaller beta.")
    _scale(x, beta)
    bound += underflow
    certified = bound if bound < 1 else math.inf
    return Outcome((x,), bound <= tol, largest, certified, eigenvalue, gap)


def _too_large(alpha: float, eigenvalue: float | None) -> UsageError:
    cause = f"alpha is {alpha:g}, not below 1 over the largest eigenvalue of the graph"
    # An estimate that contradicts the proof is none.
    if eigenvalue is None or not eigenvalue * alpha >= 1:
        return UsageError(f"{cause}.", "Use a smaller alpha.")
    return UsageError(
        f"{cause}, which is estimated to be {eigenvalue:.4g}.",
        f"Use a smaller alpha, by the estimate below {1 / eigenvalue:.3g}.",
    )


def find_eigenvector(
    matrix: StreamedMatrix, *, reflected: bool, tol: float, max_passes: int, directions: int
) -> Outcome:
    """Find the eigenvector of the largest eigenvalue of A^T, or of A A^T if `reflected`, from ones."""
    basis = [np.empty(matrix.nodes) for _ in range(directions + 1)]
    basis[0][:] = 1.0
    gap: float | None = None
    most = 0.0
    # Passes after which to look whether there is a cycle at all: without one a search may never end. Most
    # others have ended by then.
    next_check = math.inf if reflected else min(8 * directions, max_passes // 2)

    def apply(values: Vector, out: Vector) -> None:
        if reflected:
            # A search ends with a product of the first vector, whose authorities no other one writes over.
            matrix.reflect(values, out, basis[2] if values is basis[0] else None)
        else:
            matrix.receive(values, out)

    def small_enough(found: Vector, norm: float) -> bool:  # noqa: ARG001
        eigenvalue, _, weights = _dominant(found)
        left = abs(found[-1, -1] * weights[-1])
        # The first product says it of what the search went on from, the others of what will come.
        return bool(left <= tol * eigenvalue / (1 if len(weights) == 1 else 4))

    while True:
        # The last pass says how good the vector is.
        allowed = min(directions, max(1, max_passes - matrix.passes - 1))
        found = _krylov(apply, basis[: allowed + 1], _norm(basis[0]), small_enough)
        eigenvalue, residual = float(found[0, 0]), float(abs(found[1, 0]))
        if found.shape[1] > 1:
            _, gap, weights = _dominant(found)
        else:
            # One product leaves power iteration: the matrix times the first is this of it, and the second.
            weights = np.array([eigenvalue, 1.0])
        most = max(most, eigenvalue + residual)
        if eigenvalue + residual <= _NOTHING * most:
            raise _without_cycle()
        converged = residual <= tol * eigenvalue
        if converged and not reflected:
            cyclic = _has_cycle(matrix, basis, max_passes)
            if cyclic is False:
                raise _without_cycle()
            converged = bool(cyclic)
        if converged or matrix.passes >= max_passes:
            break
        _replace_first(basis, weights)
        if matrix.passes >= next_check:
            # With a third of all passes at most, and not with the last, which says how good the vector is.
            until = min(max_passes - 1, matrix.passes * 3 // 2)
            cyclic = _has_cycle(matrix, basis, until, (_ALL,))
            if cyclic is False:
                raise _without_cycle()
            next_check = math.inf if cyclic else 2 * matrix.passes
    # Of A A^T the factor of the weights is there twice.
    unscaled = eigenvalue / matrix.factor / (matrix.factor if reflected else 1.0)
    left = residual / eigenvalue if eigenvalue > 0 else math.inf
    vectors = (basis[0], basis[2]) if reflected else (basis[0],)
    return Outcome(vectors, converged, left, None, unscaled, gap)


def _without_cycle() -> UsageError:
    return UsageError(
        "the largest eigenvalue of the graph is 0, or too small to find: it has no cycle, or none of any "
        "weight.",
        "Use Katz centrality instead.",
    )


def _has_cycle(
    matrix: StreamedMatrix, basis: Sequence[Vector], max_passes: int, shares: Sequence[float] = _LARGE
) -> bool | None:
    """Tell whether there is a cycle where an eigenvector is large; None if passes ran out.

    If each row of a set has an edge from one of them, there is a cycle among them. Rows without one leave the
    set, pass after pass. A graph without cycles has vectors that rounding cannot tell from eigenvectors, of
    eigenvalues far from zero, as a change of the matrix by one rounding error makes them such. `basis`: the
    eigenvector, and two more vectors, which are overwritten. `shares`: of its largest number, those above
    which rows are in a set.
    """
    x, chosen, received = basis[0], basis[1], basis[2]
    most = max(_pieces(lambda part: float(x[part].max(initial=0.0)), len(x)))

    def choose(part: slice, least: float) -> int:
        np.greater(x[part], least, out=chosen[part], casting="unsafe")
        return int(np.count_nonzero(chosen[part]))

    def keep(part: slice) -> int:
        chosen[part] *= received[part] > 0
        return int(np.count_nonzero(chosen[part]))

    for share in shares:
        kept, before = sum(_pieces(partial(choose, least=share * most), len(x))), 0
        while kept and kept != before:
            if matrix.passes >= max_passes:
                return None
            matrix.receive(chosen, received)
            kept, before = sum(_pieces(keep, len(x))), kept
        if kept:
            return True
    return False


def _krylov(
    apply: Callable[[Vector, Vector], None],
    basis: Sequence[Vector],
    norm: float,
    enough: Callable[[Vector, float], bool],
) -> NDArray[np.float64]:
    """Span the space of the first vector, of this `norm`, and of what is made of it by applying a matrix.

    Overwrites `basis` with orthonormal vectors, until `enough`; returns what the matrix is to them: H, shape
    (k + 1, k), with matrix x basis[:k] = basis[: k + 1] x H.
    """
    steps = len(basis) - 1
    found = np.zeros((steps + 1, steps))
    _scale(basis[0], 1 / norm)
    for step in range(steps):
        last = basis[step + 1]
        apply(basis[step], last)
        size = _norm(last)
        for k in range(step + 1):
            found[k, step] = _dot(basis[k], last)
            _add(last, basis[k : k + 1], [-found[k, step]])
        left = _norm(last)
        whole = left <= 16 * _UNIT * math.sqrt(len(last)) * size
        found[step + 1, step] = 0.0 if whole else left
        part = found[: step + 2, : step + 1]
        if whole or step == steps - 1 or enough(part, norm):
            return part
        _scale(last, 1 / left)
    return found


def _combination(found: Vector, norm: float) -> tuple[Vector, float]:
    """Give multiples of basis vectors to add to x, of residual `norm` times the first, and the norm to come.

    `found` is M in the basis. Least squares leave the least, but of a long chain of edges no less than there
    was; the terms of (I + M + M^2 + ...) r come to its end.
    """
    steps = found.shape[1]
    equation, residual = np.eye(steps + 1, steps) - found, np.zeros(steps + 1)
    residual[0] = norm
    chosen: Vector = np.linalg.lstsq(equation, residual)[0].astype(np.float64, copy=False)
    left = float(np.linalg.norm(residual - equation @ chosen))
    if left <= _STALLED * norm:
        return chosen, left
    term, series = residual[:steps], np.zeros(steps)
    for _ in range(steps):
        series += term
        term = found[:steps] @ term
    return series, float(np.linalg.norm(residual - equation @ series))


def _dominant(found: Vector, factor: float = 1.0) -> tuple[float, float | None, Vector]:
    """Give the eigenvalue of largest real part in a subspace, its gap to the next, and its eigenvector."""
    values, vectors = np.linalg.eig(found[:-1])
    order = np.argsort(-values.real, kind="stable")
    first = float(values[order[0]].real)
    gap = None
    if len(order) > 1 and first > 0:
        gap = 1 - float(values[order[1]].real) / first
    vector = vectors[:, order[0]].real
    size = np.linalg.norm(vector)
    return first / factor, gap, vector / size if size else vector


def _pieces(work: Callable[[slice], Any], size: int) -> list[Any]:
    """Give what `work` returns for all pieces, in threads; the pieces depend on the size alone."""

    def several(lo: int, hi: int) -> list[Any]:
        return [work(slice(k, min(k + _STEP, hi))) for k in range(lo, hi, _STEP)]

    return [found for part in in_threads(several, size) for found in part]


def _dot(a: Vector, b: Vector) -> float:
    # Libraries of linear algebra share a product among threads, and its bits would depend on how many.
    return math.fsum(_pieces(lambda part: float(np.einsum("i,i->", a[part], b[part])), len(a)))


def _norm(a: Vector) -> float:
    return math.sqrt(_dot(a, a))


def _scale(a: Vector, by: float) -> None:
    def scale(part: slice) -> None:
        a[part] *= by

    _pieces(scale, len(a))


def _add(to: Vector, basis: Sequence[Vector], weights: Sequence[float] | Vector) -> None:
    """Add multiples of the first vectors of a basis."""

    def add(part: slice) -> None:
        for weight, vector in zip(weights, basis, strict=False):
            to[part] += float(weight) * vector[part]

    _pieces(add, len(to))


def _replace_first(basis: Sequence[Vector], weights: Vector) -> None:
    """Put a combination of basis vectors in the place of the first; without signs, as its limit has none."""

    def replace(part: slice) -> None:
        total = sum(float(weight) * vector[part] for weight, vector in zip(weights, basis, strict=False))
        np.abs(total, out=basis[0][part])

    _pieces(replace, len(basis[0]))


def _katz_residual(x: Vector, received: Vector, alpha: float) -> tuple[float, float, float]:
    """Make alpha times `received` plus 1 minus x, in place.

    Returns its largest magnitude, the least x, and its L2 norm.
    """

    def make(part: slice) -> tuple[float, float, float]:
        r = received[part]
        r *= alpha
        r += 1.0
        r -= x[part]
        return float(np.abs(r).max()), float(x[part].min()), float(np.einsum("i,i->", r, r))

    largest, least, squares = zip(*_pieces(make, len(x)), strict=True)
    return max(largest), min(least), math.sqrt(math.fsum(squares))
