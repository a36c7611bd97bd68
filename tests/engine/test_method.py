"""The mathematics between passes, against NumPy on vectors that are written out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from oocpr.engine import method
from oocpr.engine.backend import PushSums
from oocpr.engine.method import State, StripeSums
from oocpr.engine.settings import Settings
from oocpr.errors import DamagedError

MASS = [PushSums(0.0, 1.0, 1.0)]


class Vectors:
    """Residuals of a made-up run, kept whole, and the sums that stripes would report of them.

    Stripe s owns ``cuts[s] .. cuts[s + 1] - 1``; `carry` of each residual's change in a stripe's first row
    comes from the stripe before.
    """

    def __init__(self, settings: Settings, cuts: list[int]) -> None:
        self.settings, self.cuts = settings, cuts
        self.residual = np.zeros(cuts[-1])
        self.changes: dict[int, NDArray[np.float64]] = {}
        self.order: list[NDArray[np.float64]] = []
        self.state = method.begin(settings, len(cuts) - 1, 1.0)

    def end_pass(self, residual: NDArray[np.float64], carries: list[float]) -> State:
        """Let a pass lead to `residual`, of which each stripe's first row got ``carries[s]`` from before."""
        step = method.sweep_step(self.settings, self.state, len(residual), MASS)
        change = residual - self.residual
        if step.slot >= 0:
            self.changes[step.slot] = change
            self.order = [*self.order, change][-self.settings.mixing :]
        sums = []
        for s, (lo, hi) in enumerate(zip(self.cuts[:-1], self.cuts[1:], strict=True)):
            missing = np.zeros(hi - lo)
            if hi > lo:
                missing[0] = carries[s]
            own = residual[lo:hi] - missing
            live = [self.changes[slot][lo:hi] - missing * (slot == step.slot) for slot in step.live]
            sums.append(
                StripeSums(
                    rows=hi - lo,
                    carry=carries[s + 1] if s + 1 < len(carries) else 0.0,
                    norm=float(np.abs(own).sum()),
                    with_change=tuple(float(d @ live[-1]) for d in live),
                    with_residual=tuple(float(d @ own) for d in live),
                    peaks=(0.0,) * (1 + len(live)),
                    first=tuple(float(d[0]) for d in (own, *live)) if hi > lo else (0.0,) * (1 + len(live)),
                )
            )
        self.state = method.end_pass(self.state, MASS, sums)
        self.residual = residual
        return self.state

    def weights(self) -> NDArray[np.float64]:
        """Weights of the state by age, oldest first."""
        theta = dict(self.state.mixing_coefficients)
        return np.array([theta[slot] for slot in self.state.memory.live])


@pytest.mark.parametrize("mixing", [1, 3, 5])
@pytest.mark.parametrize("cuts", [[0, 40], [0, 11, 26, 40], [0, 0, 19, 19, 40]])
@pytest.mark.parametrize("seed", range(3))
def test_weights_solve_the_least_squares_problem_over_the_last_passes(mixing, cuts, seed):
    rng = np.random.default_rng(seed)
    vectors = Vectors(Settings(mixing=mixing), cuts)
    for number in range(12):
        residual = rng.normal(size=40) * 0.5**number
        carries = [0.0, *(rng.normal(size=len(cuts) - 2) * 0.5**number)]
        # What an empty stripe is owed goes on to the next that has rows.
        carries = [c if hi > lo else 0.0 for c, lo, hi in zip(carries, cuts[:-1], cuts[1:], strict=True)]
        state = vectors.end_pass(residual, carries)
        assert state.number == number + 1
        assert state.residuals[-1] == pytest.approx(np.abs(residual).sum(), rel=1e-12)
        if number == 0:
            assert state.mixing_coefficients == ()
            continue
        wanted = np.linalg.lstsq(np.array(vectors.order).T, residual, rcond=None)[0]
        np.testing.assert_allclose(vectors.weights(), wanted, rtol=1e-7, atol=1e-9)


def test_what_empty_stripes_are_owed_adds_up_in_the_next_row():
    vectors = Vectors(Settings(mixing=2), [0, 3, 3, 3, 6])

    def sums(rows: int, carry: float) -> StripeSums:
        own = np.ones(rows)
        return StripeSums(rows, carry, own.sum(), (), (), (0.0,), (1.0,))

    state = method.end_pass(vectors.state, MASS, [sums(3, 0.5), sums(0, 0.25), sums(0, 2.0), sums(3, 0)])
    assert state.carries == (0.0, 0.0, 0.0, 2.75)
    assert state.residuals == (3 + 3 + 2.75,)


def test_the_oldest_pass_gives_its_slot_to_the_newest():
    vectors = Vectors(Settings(mixing=3), [0, 8])
    slots = []
    for number in range(8):
        slots.append(method.next_slot(vectors.state))
        vectors.end_pass(np.eye(8)[number] * 0.5**number, [0.0])
    assert slots == [-1, 0, 1, 2, 0, 1, 2, 0]
    assert vectors.state.memory.live == (1, 2, 0)


def test_memory_is_cleared_when_the_residual_has_not_fallen_over_its_length():
    rng = np.random.default_rng(0)
    vectors = Vectors(Settings(mixing=3), [0, 20])
    for _ in range(3):
        vectors.end_pass(rng.normal(size=20), [0.0])
    assert len(vectors.state.memory.live) == 2
    vectors.end_pass(vectors.residual * 100, [0.0])
    assert vectors.state.memory.live == ()
    assert vectors.state.mixing_coefficients == ()
    vectors.end_pass(vectors.residual * 1e-9, [0.0])
    assert len(vectors.state.memory.live) == 1


def test_equal_changes_get_finite_weights_that_explain_the_residual():
    vectors = Vectors(Settings(mixing=3), [0, 10])
    direction = np.arange(1.0, 11)
    for size in (-10.0, -9.0, -8.0, -7.0):
        vectors.end_pass(direction * size, [0.0])
    weights = vectors.weights()
    assert np.all(np.isfinite(weights))
    np.testing.assert_allclose(sum(weights) * direction, vectors.residual, rtol=1e-6)


def test_without_a_change_nothing_is_mixed():
    vectors = Vectors(Settings(mixing=3), [0, 10])
    for _ in range(3):
        state = vectors.end_pass(np.ones(10), [0.0])
    assert state.mixing_coefficients == ()


@pytest.mark.parametrize("name", ["residual", "power"])
def test_other_methods_remember_nothing(name):
    settings = Settings(method=name, reads="float64")
    vectors = Vectors(settings, [0, 10])
    for number in range(4):
        state = vectors.end_pass(np.ones(10) * 0.5**number, [0.0])
        assert method.next_slot(state) == -1
        step = method.sweep_step(settings, state, 10, MASS)
        assert (step.slot, step.live, step.sweeps) == (-1, (), 1)
        assert state.mixing_coefficients == ()


def test_ranks_that_shrink_to_nothing_are_those_of_no_sound_store():
    state = method.begin(Settings(method="residual"), 1, 1.0)
    sums = [StripeSums(4, 0.0, 0.5, (), (), (0.0,), (0.0,))]
    for total in (1.0, -3.0, 4e-9):
        state = method.end_pass(state, [PushSums(0.0, 0.0, total)], sums)
    assert state.largest == 3.0
    with pytest.raises(DamagedError, match="do not keep their size"):
        method.end_pass(state, [PushSums(0.0, 0.0, 2.9e-9)], sums)


def test_a_residual_is_relative_to_the_size_of_the_ranks_whatever_their_sign():
    vectors = Vectors(Settings(), [0, 4])
    sums = [StripeSums(4, 0.0, 0.5, (), (), (0.0,), (0.0,))]
    for total in (2.0, -2.0):
        state = method.end_pass(vectors.state, [PushSums(0.0, 0.0, total)], sums)
        assert state.residuals == (0.25,)


@given(dangling=st.floats(0, 1), mass=st.floats(0, 2), nodes=st.integers(1, 1000))
def test_teleport_and_dangling_mass_go_where_the_rule_says(dangling, mass, nodes):
    pushed = [PushSums(dangling / 2, mass / 4, 1.0), PushSums(dangling / 2, mass * 3 / 4, 1.0)]
    for rule in ("strongly", "weakly"):
        settings = Settings(damping=0.8, dangling=rule)
        step = method.sweep_step(settings, method.begin(settings, 2, 1.0), nodes, pushed)
        # A row gets base * teleport + uniform; over all rows that is the whole mass that is not along links.
        assert step.base + nodes * step.uniform == pytest.approx(0.8 * dangling + 0.2 * mass)
        assert nodes * step.uniform == pytest.approx(0.8 * dangling if rule == "weakly" else 0)


@given(st.floats(min_value=5e-324, max_value=1e300))
def test_the_scale_is_the_smallest_power_of_two_that_holds_the_peak(peak):
    scale = method.power_of_two(peak)
    assert scale / 2 < peak <= scale
    assert math.frexp(scale)[0] == 0.5
    assert method.power_of_two(scale) == scale


@pytest.mark.parametrize("peak", [0.0, -1.0])
def test_nothing_to_push_has_a_scale_too(peak):
    assert method.power_of_two(peak) == 1.0


@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(0, 5))
def test_weights_leave_no_more_than_the_best_where_changes_depend_on_each_other(seed, slots, rank):
    rng = np.random.default_rng(seed)
    rank = min(rank, slots)
    changes = rng.normal(size=(slots, rank)) @ rng.normal(size=(rank, 12)) * 10.0 ** rng.integers(-8, 8)
    residual = rng.normal(size=12)
    memory = method.Memory(tuple(range(slots)), tuple(map(tuple, (changes @ changes.T).tolist())))
    theta = dict(method._mixing_coefficients(memory, (changes @ residual).tolist()))
    weights = np.array([theta.get(slot, 0.0) for slot in range(slots)])
    best = np.linalg.lstsq(changes.T, residual, rcond=1e-7)[0]
    left, least = (np.linalg.norm(residual - found @ changes) for found in (weights, best))
    assert left <= least + 1e-4 * np.linalg.norm(residual)
