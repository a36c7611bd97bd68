"""What a run refuses to be asked."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oocpr.engine.number_formats import READS
from oocpr.engine.planning import DEFAULT_READS, asked_settings
from oocpr.engine.settings import METHODS, ROUNDING, Settings, power_passes
from oocpr.errors import UsageError

REFUSED = {
    "damping 0": ({"damping": 0.0}, "damping is 0.0"),
    "damping 1": ({"damping": 1.0}, "damping is 1.0"),
    "damping below 0": ({"damping": -0.85}, "damping is -0.85"),
    "damping no number": ({"damping": math.nan}, "damping is nan"),
    "tol 0": ({"tol": 0.0}, "tol is 0.0"),
    "tol below 0": ({"tol": -1e-10}, "tol is -1e-10"),
    "tol no number": ({"tol": math.nan}, "tol is nan"),
    "tol without limit": ({"tol": math.inf}, "tol is inf"),
    "tol too small": ({"tol": 1e-14}, "tol is 1e-14"),
    "tol too small for the residual": ({"tol": 1e-15, "stop": "residual"}, "tol is 1e-15"),
    "tol too small for high damping": ({"tol": 1e-11, "damping": 0.999}, "damping 0.999"),
    "passes": ({"max_passes": 0}, "max_passes is 0"),
    "mixing": ({"mixing": -1}, "mixing is -1"),
    "sweeps": ({"sweeps": 0}, "sweeps is 0"),
    "method": ({"method": "gauss"}, "'gauss'"),
    "reads": ({"reads": "bits4"}, "'bits4'"),
    "stop": ({"stop": "never"}, "'never'"),
    "dangling": ({"dangling": "none"}, "'none'"),
    "a byte at damping 0.9": ({"reads": "bits8", "damping": 0.9}, "bits8"),
    "16 bits at damping 0.995": ({"reads": "bits16", "damping": 0.995, "tol": 1e-9}, "bits16"),
    "a byte of plain residual": ({"reads": "bits8", "damping": 0.9, "method": "residual"}, "bits8"),
}


@pytest.mark.parametrize(("parameters", "words"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_is_refused_with_a_way_out(parameters, words):
    with pytest.raises(UsageError) as caught:
        Settings(**parameters)
    assert words in caught.value.cause
    assert caught.value.remedy.startswith(("Use ", "Allow "))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("method", METHODS)
def test_a_damping_that_cannot_be_is_refused_before_reads_are_chosen_for_it(method):
    for damping in (-math.inf, -2.0, -1.0, 0.0, 1.0, math.inf, math.nan):
        with pytest.raises(UsageError, match=rf"^damping is {damping}, outside \(0, 1\)\. Use "):
            asked_settings(method, None, damping=damping)


@pytest.mark.parametrize("reads", READS)
@pytest.mark.parametrize("damping", [0.5, 0.85, 0.87, 0.9, 0.95, 0.99, 0.992, 0.999])
def test_formats_are_refused_exactly_where_convergence_is_not_certain(reads, damping):
    unit = READS[reads].unit_rounding
    contracts = damping + (1 + damping) * unit < 1
    if contracts:
        assert Settings(damping=damping, reads=reads, tol=1e-8).reads == reads
        return
    with pytest.raises(UsageError) as caught:
        Settings(damping=damping, reads=reads, tol=1e-8)
    # Each format that the way out names is accepted.
    wider = [name for name in READS if name in caught.value.remedy]
    assert wider
    for name in wider:
        Settings(damping=damping, reads=name, tol=1e-8)


@pytest.mark.parametrize(
    ("method", "reads"),
    [
        (method, reads)
        for method in METHODS
        for reads in ("float64", "float32")
        if method == "power" or reads == DEFAULT_READS.get(method, reads)
    ],
)
def test_floating_formats_serve_high_dampings(method, reads):
    Settings(damping=0.99, reads=reads, tol=1e-5, method=method)


@given(damping=st.floats(0.01, 0.999), stop=st.sampled_from(["certified", "residual"]))
def test_the_smallest_tolerance_can_be_met_and_less_is_refused(damping, stop):
    least = Settings(damping=damping, stop=stop, reads="float64", tol=1e-3).smallest_tol
    accepted = Settings(damping=damping, stop=stop, reads="float64", tol=least)
    assert accepted.satisfied(ROUNDING)
    with pytest.raises(UsageError):
        Settings(damping=damping, stop=stop, reads="float64", tol=least * 0.999)
    with pytest.raises(UsageError) as caught:
        Settings(damping=damping, stop=stop, reads="float64", tol=least / 2)
    advised = float(caught.value.remedy.removeprefix("Use tol >= ").removesuffix("."))
    assert Settings(damping=damping, stop=stop, reads="float64", tol=advised).tol < 1.1 * least


@given(damping=st.floats(0.01, 0.99), tol=st.floats(1e-9, 1.0))
def test_power_iteration_that_shrinks_its_residual_by_the_damping_meets_the_tolerance_in_time(damping, tol):
    settings = Settings(damping=damping, tol=tol, method="power", reads="float64")
    count = power_passes(damping, tol)
    # Two distributions differ by 2 at most, and a pass shrinks differences by the damping.
    assert settings.bound(2 * damping ** (count - 1)) <= tol * (1 + 1e-9) + ROUNDING / (1 - damping)
    assert settings.pass_limit >= count


@given(st.floats(1e-12, 2.0), st.floats(1e-12, 2.0))
def test_the_bound_grows_with_the_residual(one, other):
    settings = Settings()
    low, high = sorted((one, other))
    assert settings.bound(low) <= settings.bound(high)
    assert settings.satisfied(high) <= settings.satisfied(low)


def test_the_pass_limit_is_what_was_asked_for():
    assert Settings(max_passes=3).pass_limit == 3
