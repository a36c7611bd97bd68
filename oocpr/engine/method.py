"""The mathematics between two passes: is it good enough, and what is pushed next.

State of a run: ranks p and residual r = M p - p in float64, kept exact for whatever is pushed. A pass pushes
a (the rounded form of some vector t), after which r has changed by dr and the proposal U(r) by dU. Any t
is right; a good one makes r small. Mixing takes the combination of the last passes whose changes best
explain the residual and steps over all of it at once (Anderson 1965, in the form of Walker and Ni 2011)::

    theta = argmin || r - sum theta_k dr_k ||_2
    t     = U - sum theta_k (a_k + dU_k)

Everything here is a pure function of a few numbers a stripe, added in stripe order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from oocpr.engine.backend import MIXED, RESIDUAL, RESTART, START, Floats, PushStep, PushSums, SweepStep
from oocpr.engine.number_formats import READS
from oocpr.errors import DamagedError
from oocpr.jit import BORROWING, entry
from oocpr.system import in_threads

if TYPE_CHECKING:
    from oocpr.engine.settings import Settings


_AS_ROUNDED = 1.25
"""How much larger than the mean rounding error a residual may be that comes from rounding."""


_LEAST_SIZE = 1e-9
"""Least sum of p, of the largest in a run. Mixing changes it: on ten graphs, for single nodes, to about
2 (1 - damping) at worst, 2e-4 with 0.9999. If only zero solves p = M p, it falls to 1e-14: rounding."""

_DEPENDENT = 1e-12
"""What is left of a slot's product with itself, of 1, when it is a combination of others but for rounding."""


class Claims(NamedTuple):
    """What a store says of a stripe's rows, and of all edges and dangling nodes; see `degree_check`.

    `degrees` is the sum of the out-degrees, `marks` that of out-degree times mark, modulo 2^64.
    """

    degrees: int
    marks: int
    dangling: int
    edges: int
    all_dangling: int


class Balance(NamedTuple):
    """What a stripe reports of the first pass beside its sums.

    `marks` is the sum of the marks of its columns, modulo 2^64, None if its backend does not add them;
    `residual` that of its rows' residual, the first row without what the stripe before owes it.
    """

    claims: Claims
    marks: int | None
    residual: float


class StripeSums(NamedTuple):
    """What one stripe reports after a pass.

    `carry` is the residual that the next stripe's first row is owed; `norm`, the L1 norm of its own, lacks
    what the stripe before owes its first row. `with_change`, `with_residual` and `peaks` are those of
    TileSums, over the stripe; `first` is the residual of its first row, then that row's change in each live
    slot.
    """

    rows: int
    carry: float
    norm: float
    with_change: Floats
    with_residual: Floats
    peaks: Floats
    first: Floats
    balance: Balance | None = None


class Memory(NamedTuple):
    """What mixing remembers: the slots in use, oldest first, and scalar products of the slots' changes."""

    live: tuple[int, ...]
    gram: tuple[Floats, ...]


class State(NamedTuple):
    """The run between two passes.

    `number` counts the passes done, `residuals` are relative L1 norms after each. `mixing_coefficients` are
    (slot, theta) to subtract in the next push. `carries` is what each stripe's first row is still owed,
    `slot` the slot that the last pass wrote, -1 for none, and `scale` a power of two that no number of the
    next push passes. `starting` says whether that push is what the ranks lack of the vector to begin from.
    `total` is the sum of p, and `largest` the largest size of it so far.
    """

    number: int
    residuals: tuple[float, ...]
    memory: Memory
    mixing_coefficients: tuple[tuple[int, float], ...]
    carries: tuple[float, ...]
    slot: int
    scale: float
    starting: bool = False
    total: float = 0.0
    largest: float = 0.0
    afresh: bool = False

    @property
    def growth(self) -> float:
        """How much larger the sum of p has been than it is."""
        return self.largest / abs(self.total) if self.total else 1.0


def begin(settings: Settings, stripes: int, peak: float) -> State:
    """State before the first pass; `peak` is the largest number per out-edge of what the run begins from."""
    slots = settings.mixing if settings.mixed else 0
    memory = Memory((), ((0.0,) * slots,) * slots)
    return State(0, (), memory, (), (0.0,) * stripes, -1, power_of_two(peak), starting=True)


def start_again(settings: Settings, before: State, after: State) -> State:
    """State after a pass that pushed from a given start, of which rounding has left some.

    If the residual is what rounding to the reads makes it, nothing is known of the start yet: what is left of
    it is pushed then, with as many digits again as the reads have. A larger residual is that of the start.
    """
    reads = READS[settings.reads]
    earlier = before.residuals[-1] if before.residuals else 1.0
    rounded = after.residuals[-1] <= _AS_ROUNDED * reads.mean_rounding * earlier
    if settings.method == "power" or not (before.starting and rounded):
        return after
    scale = power_of_two(reads.unit_rounding * before.scale)
    return after._replace(mixing_coefficients=(), scale=scale, starting=True)


def push_afresh(settings: Settings, state: State) -> State:
    """State that next pushes all of p, from nothing, if it has become small beside what rounding has left.

    These may take nearly all of p back, as any multiple of the solution is one. What rounding has left in the
    residual is gone then, and so are the digits of p that reads have no room for. Reads that are scaled would
    have to know the largest of p.
    """
    scaled = settings.reads == "bits8"
    if not settings.mixed or scaled or not settings.has_shrunk(state.growth):
        return state
    return state._replace(memory=state.memory._replace(live=()), mixing_coefficients=(), afresh=True)


def push_step(settings: Settings, state: State, stripe: int) -> PushStep:
    """What `stripe` has to do before the next pass."""
    usual = RESTART if settings.method == "power" else MIXED if settings.mixed else RESIDUAL
    return PushStep(
        kind=START if state.starting else RESTART if state.afresh else usual,
        mixing_coefficients=state.mixing_coefficients,
        carry=state.carries[stripe],
        carry_slot=state.slot,
        scale=state.scale,
    )


def next_slot(state: State) -> int:
    """Slot that the next pass writes: a free one, else the oldest; -1 in the first pass or without mixing.

    The first pass goes from nothing to what the run begins from; remembering it would let mixing explain the
    whole residual by undoing it.
    """
    slots = len(state.memory.gram)
    if slots == 0 or state.starting or state.afresh:
        return -1
    free = [slot for slot in range(slots) if slot not in state.memory.live]
    return free[0] if free else state.memory.live[0]


def _slots(state: State) -> tuple[int, tuple[int, ...]]:
    """Slot that the next pass writes, and those whose scalar products are wanted then, that one last."""
    slot = next_slot(state)
    if slot < 0:
        return slot, ()
    return slot, (*[live for live in state.memory.live if live != slot], slot)


def shared_out(
    damping: float, nodes: int, pushed: Sequence[PushSums], *, strongly: bool
) -> tuple[float, float]:
    """What a push has each row sent: so many times its teleport probability, and something that all rows get.

    Examples
    --------
    >>> shared_out(0.5, 10, [PushSums(0.25, 0.5, 0.0), PushSums(0.25, 0.5, 0.0)], strongly=False)
    (0.5, 0.025)
    """
    spread = damping * math.fsum(part.dangling for part in pushed)
    base = (1 - damping) * math.fsum(part.mass for part in pushed)
    return (base + spread, 0.0) if strongly else (base, spread / nodes)


def sweep_step(
    settings: Settings, state: State, nodes: int, pushed: Sequence[PushSums] | None, key: int = 0
) -> SweepStep:
    """How the next pass treats each tile, from what all stripes pushed (in stripe order).

    There is one stripe, which is told before it has pushed, if `pushed` is None. The first pass of a run adds
    up marks, of that `key`; see `oocpr.engine.degree_check`.
    """
    strongly = settings.dangling == "strongly"
    base, uniform = 0.0, 0.0
    if pushed is not None:
        base, uniform = shared_out(settings.damping, nodes, pushed, strongly=strongly)
    slot, live = _slots(state)
    return SweepStep(
        damping=settings.damping,
        base=base,
        uniform=uniform,
        sweeps=settings.sweeps if settings.mixed else 1,
        slot=slot,
        live=live,
        scale=state.scale,
        key=0 if state.number else key,
        strongly=strongly,
        alone=pushed is None,
    )


def end_pass(state: State, pushed: Sequence[PushSums], sums: Sequence[StripeSums]) -> State:
    """State after a pass, from what all stripes report (in stripe order).

    Raises DamagedError if numbers are not finite, ranks shrink to nothing, or edges belong to no row: the
    store contradicts itself.
    """
    total = _total(pushed, sums)
    largest = max(0.0 if state.afresh else state.largest, abs(total))
    if abs(total) < _LEAST_SIZE * largest:
        # Edges that lose mass, or make some, let nothing but zero solve p = M p, up to rounding.
        raise DamagedError("The ranks do not keep their size: the store contradicts itself.")
    mended, carries = _mend(sums)
    # Mixing may step along the solution itself, by any amount: only the size of p counts, not its sign.
    residual = math.fsum([part.norm for part in mended]) / abs(total)
    residuals = (*state.residuals, residual)
    slot, live = _slots(state)
    memory = state.memory if slot < 0 else _remember(state.memory, live, mended)
    slots = len(memory.gram)
    if slots and len(residuals) > slots and residual >= residuals[-1 - slots]:
        memory = memory._replace(live=())
    mixing = _mixing_coefficients(memory, _fold([part.with_residual for part in mended]))
    peak, *highest = [max(peaks) for peaks in zip(*[part.peaks for part in mended], strict=True)]
    theta = dict(mixing)
    for remembered, high in zip(live, highest, strict=True):
        peak += abs(theta.get(remembered, 0.0)) * high
    # A stripe measured its first row before it got what the stripes before owed it.
    peak += max(map(abs, carries))
    scale = power_of_two(peak)
    return State(
        state.number + 1, residuals, memory, mixing, carries, slot, scale, total=total, largest=largest
    )


def _total(pushed: Sequence[PushSums], sums: Sequence[StripeSums]) -> float:
    """Sum of p, once it has been looked whether sums can be those of a sound store."""
    totals, norms = [part.total for part in pushed], [part.norm for part in sums]
    total = math.fsum(totals) if all(map(math.isfinite, totals + norms)) else 0.0
    if total == 0:
        raise DamagedError("The ranks do not stay finite: the store contradicts itself.")
    if sums[-1].carry != 0.0:
        raise DamagedError("The last tile has edges of a row behind the last one.")
    return total


def power_of_two(peak: float) -> float:
    """Smallest power of two not below `peak`; 1 for 0.

    Examples
    --------
    >>> power_of_two(0.3), power_of_two(0.5), power_of_two(0.0)
    (0.5, 0.5, 1.0)
    """
    if peak <= 0:
        return 1.0
    fraction, exponent = math.frexp(peak)
    return math.ldexp(1.0, exponent - (fraction == 0.5))


def _mend(sums: Sequence[StripeSums]) -> tuple[list[StripeSums], tuple[float, ...]]:
    """Give each stripe's first row what the stripes before delivered to it.

    The later stripe owns a row that a border cuts, but does not know the earlier one's part while the pass
    runs. Its residual r_f and change d_f both grow by the carry.
    """
    mended, carries = [], []
    carry = 0.0
    for part in sums:
        if part.rows == 0:
            carries.append(0.0)
            carry += part.carry
            mended.append(part)
            continue
        carries.append(carry)
        mended.append(part if carry == 0.0 else _with_carry(part, carry))
        carry = part.carry
    return mended, tuple(carries)


def _with_carry(part: StripeSums, carry: float) -> StripeSums:
    residual, *before = part.first
    norm = part.norm + abs(residual + carry) - abs(residual)
    if not before:
        return part._replace(norm=norm)
    *others, own = before
    after = (*others, own + carry)

    def grown(products: Floats, factor: float) -> Floats:
        changes = zip(products, after, before, strict=True)
        return tuple(product + now * (factor + carry) - was * factor for product, now, was in changes)

    return part._replace(
        norm=norm,
        with_change=grown(part.with_change, own),
        with_residual=grown(part.with_residual, residual),
    )


def _remember(memory: Memory, live: tuple[int, ...], sums: Sequence[StripeSums]) -> Memory:
    gram, newest = [list(row) for row in memory.gram], live[-1]
    products = _fold([part.with_change for part in sums])
    for slot, product in zip(live, products, strict=True):
        gram[newest][slot] = gram[slot][newest] = product
    return Memory(live, tuple(map(tuple, gram)))


def _mixing_coefficients(memory: Memory, projections: Floats) -> tuple[tuple[int, float], ...]:
    """Least squares over the live slots through their scalar products."""
    live, gram = memory
    matrix = [[gram[slot][other] for other in live] for slot in live]
    if not live or not all(row[k] > 0 for k, row in enumerate(matrix)):
        return ()
    return tuple(zip(live, _solve(matrix, list(projections)), strict=True))


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Solve for a matrix of scalar products, both in place; what depends on others but for rounding is 0.

    A library takes 0.1 ms for four unknowns between two passes, when nothing of it is in a cache: a fifth of
    a small graph's pass on a device.
    """
    left, solved = list(range(len(right))), list[tuple[int, list[int]]]()
    sizes = [matrix[k][k] for k in left]
    while left:
        pivot, most = -1, _DEPENDENT
        for k in left:
            # Of what it was, so that it does not matter how far the run has come.
            share = matrix[k][k] / sizes[k]
            if share > most:
                pivot, most = k, share
        if pivot < 0:
            break
        row, wanted = matrix[pivot], right[pivot]
        left.remove(pivot)
        solved.append((pivot, left.copy()))
        for k in left:
            below = matrix[k]
            factor = below[pivot] / row[pivot]
            right[k] -= factor * wanted
            for other in left:
                below[other] -= factor * row[other]
    solution = [0.0] * len(right)
    for pivot, after in reversed(solved):
        row, known = matrix[pivot], right[pivot]
        for other in after:
            known -= row[other] * solution[other]
        solution[pivot] = known / row[pivot]
    return solution


def _fold(parts: Sequence[Floats]) -> Floats:
    return parts[0] if len(parts) == 1 else tuple(math.fsum(column) for column in zip(*parts, strict=True))


@dataclass(frozen=True)
class PassRecord:
    """One traversal of the stored graph; the first has number 1.

    Parameters
    ----------
    residual
        L1 norm of the residual over the sum of the ranks, after the pass.
    bound
        Certified L1 error of the ranks, had the run stopped here.
    gathers
        Edges gathered, tile-local sweeps included, in units of the graph's edges.
    seconds
        Wall time of the pass.
    bytes_read
        Encoded bytes that came from the store, not from a cache.
    wait_seconds
        Time in which the computation waited for bytes.
    """

    number: int
    residual: float
    bound: float
    gathers: float
    seconds: float
    bytes_read: int
    wait_seconds: float


@dataclass(frozen=True)
class Solution:
    """The outcome of a run.

    Parameters
    ----------
    ranks
        float64, shape (nodes,), store order, sums to 1.
    error_bound
        Certified bound on the L1 distance from the exact ranks.
    converged
        Whether the run stopped because it was good enough.
    peak_memory, peak_device_memory
        Largest resident set of this process so far, and most bytes taken of a device; 0 without one.
    preparing_seconds
        Seconds in which a device laid tiles out for its product; None if it takes them as they are.
    sweeps
        Of a segmented method the passes at each precision, the lowest first, without the first pass.
    """

    ranks: NDArray[np.float64]
    error_bound: float
    converged: bool
    history: tuple[PassRecord, ...]
    method: str
    reads: str
    damping: float
    tol: float
    seconds: float
    peak_memory: int
    peak_device_memory: int = 0
    preparing_seconds: float | None = None
    sweeps: tuple[int, ...] = ()

    @property
    def passes(self) -> int:
        """Traversals of the stored graph."""
        return len(self.history)

    @property
    def gathers(self) -> float:
        """Gathered edges in units of the graph's edges."""
        return sum(record.gathers for record in self.history)

    @property
    def bytes_read(self) -> int:
        """Encoded bytes that came from the store."""
        return sum(record.bytes_read for record in self.history)


_SUMMED = 512
"""Ranks that are added up one after the other."""

_ROUNDING = 1e-12
"""More than pairwise sums of as many numbers as a graph has nodes are wrong by, of what sums to one."""


@entry(**BORROWING)
def _scale(ranks, total):  # type: ignore[no-untyped-def]
    """Divide ranks, and clip them; returns the least quotient and the sum of what is left."""
    least, size = np.inf, 0.0
    # One sum over all would be wrong by more than the ranks are.
    for first in range(0, ranks.size, _SUMMED):
        some = 0.0
        for i in range(first, min(first + _SUMMED, ranks.size)):
            rank = ranks[i] / total
            if rank < least:
                least = rank
            if rank < 0.0:
                rank = 0.0
            ranks[i] = rank
            some += rank
        size += some
    return least, size


_KEPT = 1e-11
"""How far the sum of p + r may be from that of p, of that: rounding made it 3e-15 at worst on 14 graphs."""

_KEPT_OF_LARGEST = 1e-14
"""The same of the largest sum of p in the run, in proportion to which r has kept rounding."""


def as_distribution(
    ranks: NDArray[np.float64], bound: float, pushed: float | None = None, growth: float = 1.0
) -> NDArray[np.float64]:
    """Scale ranks, in place, to a sum of one, and clip what rounding has made negative.

    Exact ranks are at least zero, so clipping brings none farther from it. Raises DamagedError for ranks of
    which one, or the sum of negative ones, is farther below zero than `bound`, or which do not sum to what
    was `pushed`, if that is given: the store contradicts itself. What a push delivers is as much as it is, so
    p and p + r have one sum; where weights and their sums contradict each other they have not, and the norm
    of r bounds nothing. `growth`: how much larger that sum has been.

    Examples
    --------
    >>> as_distribution(np.array([3.0, 1.0, -1e-17]), 1e-10).tolist()
    [0.75, 0.25, 0.0]
    """
    total = sum(in_threads(lambda lo, hi: float(ranks[lo:hi].sum()), ranks.size))
    if math.isfinite(total) and total != 0 and _is_kept(total, pushed, growth):
        scaled = in_threads(lambda lo, hi: _scale(ranks[lo:hi], total), ranks.size)
        least, sums = zip(*scaled, strict=True)
        if -bound <= min(least) and abs(math.fsum(sums) - 1) <= bound + _ROUNDING:
            return ranks
    raise _no_ranks(total, bound)


def checked_total(above: float, below: float, bound: float, pushed: float, growth: float = 1.0) -> float:
    """Sum of ranks whose positive and negative ones sum to so much; raises DamagedError as `as_distribution`.

    Examples
    --------
    >>> checked_total(0.75, -1e-17, 1e-10, 0.75), checked_total(1e-17, -2.0, 1e-10, -2.0)
    (0.75, -2.0)
    """
    total = above + below
    sound = math.isfinite(total) and total != 0 and _is_kept(total, pushed, growth)
    if sound and min(above / total, below / total) >= -(bound + _ROUNDING):
        return total
    raise _no_ranks(total, bound)


def _is_kept(total: float, pushed: float | None, growth: float) -> bool:
    allowed = max(_KEPT, _KEPT_OF_LARGEST * growth)
    return pushed is None or abs(total - pushed) <= allowed * abs(pushed)


def _no_ranks(total: float, bound: float) -> DamagedError:
    return DamagedError(
        f"What came out sums to {total:g} and is not what ranks with an L1 error of {bound:.2g} can be: the "
        "store contradicts itself."
    )
