"""What a timeline says of tiles that pass through a device."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls

from oocpr.engine import picked
from oocpr.engine.passed import Coming, Pace, coming_of, fitted, pace_of
from oocpr.engine.picked import Place
from oocpr.engine.times import Kind, Times
from oocpr.engine.trace import COMPUTE, COPY, READ, Trace
from oocpr.plan.device import DeviceNeed, DeviceTiers
from oocpr.plan.plan import GraphFacts


@given(
    st.lists(
        st.tuples(st.integers(1, 2**26), st.integers(0, 2**26), st.floats(1e-6, 1.0)), min_size=1, max_size=8
    )
)
def test_a_fit_is_the_least_squares_of_numbers_that_are_not_negative(tiles):
    edges, rows, seconds = np.array(tiles, np.float64).T
    edge, row = fitted(edges, rows, seconds)
    assert edge >= 0
    assert row >= 0
    scale = edges.max(), max(1.0, rows.max())
    columns = np.stack([edges / scale[0], rows / scale[1]], axis=1)
    _, least = nnls(columns, seconds)
    found = np.linalg.norm(columns @ (edge * scale[0], row * scale[1]) - seconds)
    assert found == pytest.approx(least, rel=1e-6, abs=1e-9)


def test_rounds_after_the_first_tell_what_tiles_and_bytes_take():
    whole = Trace()
    trace = whole.part("device 1")
    tiles = {3: (1000.0, 10.0), 8: (1000.0, 400.0), 9: (500.0, 90.0)}
    # What the first round of all takes longer, and a later one: by memory that is taken, and by others.
    for slower in (50.0, 1.0, 1.0, 7.0):
        for tile, (edges, rows) in tiles.items():
            trace.add(READ, f"tile {tile}", 0.0, 9.0, 77)
            trace.add(COPY, f"tile {tile}", 1.0, 1.0 + slower * edges * 4e-3, int(edges))
            ready, swept = slower * edges * 2e-3, slower * (edges * 1e-3 + rows * 5e-2)
            trace.add(COMPUTE, f"tile {tile}", 2.0, 2.0 + ready)
            trace.add(COMPUTE, f"tile {tile}", 3.0, 3.0 + swept)
    pace = pace_of(whole.spans, tiles)
    assert (pace.byte, pace.edge, pace.row) == pytest.approx((4e-3, 3e-3, 5e-2))
    assert pace_of(whole.spans, {}) == Pace()


@pytest.mark.parametrize("on_device", [0, 3])
@pytest.mark.parametrize("row_edges", [0, 7])
@pytest.mark.parametrize("byte", [1e-3, 1.0])
@pytest.mark.parametrize("rows_in_host", [False, True])
def test_what_some_tiles_take_is_told_of_all_that_pass(on_device, row_edges, byte, rows_in_host, monkeypatch):
    monkeypatch.setattr(picked, "DEVICE_PASSING_EDGES", 4000)
    rows = np.array([1, 2, 2, 3, 5, 8, 6, 9, 20, 40, 700, 90])
    facts = GraphFacts(int(rows.sum()), 12_000, 12, 1000, 36_000, 4000, 700, 0.5)
    tiers = DeviceTiers(
        0, DeviceNeed(0, 0, 0, 0, 0), on_device, 12 - on_device, 0, 0, 5, False, False, rows_in_host
    )
    place = Place(facts, np.concatenate([[0], rows.cumsum()]), range(12), on_device, tiers)
    sampled = place.of_passing().tiles
    assert len(set(sampled)) == 4
    assert sampled == sorted(sampled)
    passing = set(range(12)) - tiers.places(range(12))[0]
    assert max(passing, key=lambda tile: rows[tile]) in sampled
    pace = Pace(byte=byte, edge=2e-3, row=0.5)
    staying_rows = rows[place.of_staying().tiles]

    def brought(edges: float, rows: float) -> float:
        """Seconds of a machine that brings an edge in a millisecond, and a row in so many."""
        return 1e-3 * (edges + row_edges * rows)

    # Memory is taken for half an hour first, and two tiles come at a time.
    done = 1800.0 + np.cumsum([brought(1000, rows[tile]) for tile in sampled])
    came = [done[1], done[1], done[3], done[3]]
    kept = Kind(99.0, 5.0, list(600.0 + np.cumsum([brought(1000, row) for row in staying_rows])))
    times = Times.of(place, kept, Kind(77.0, 123.0, came), pace, row_edges)
    edges = 1000 * len(passing)
    swept = 2e-3 * edges + 0.5 * rows[list(passing)].sum()
    assert times.passing == pytest.approx(swept)
    assert times.sent == pytest.approx(3 * edges * byte)
    assert times.kept == pytest.approx(5.0 * 1000 * on_device)
    there = 1800.0 + brought(edges, rows[list(passing)].sum())
    stays = (
        600.0 + brought(1000 * on_device, rows[sorted(set(range(12)) - passing)].sum()) if on_device else 0
    )
    kernels = times.kept + swept
    busy = times.sent + kernels if rows_in_host else max(times.sent, kernels)
    assert times.first == pytest.approx(max(stays + there, busy))
    assert times.came_bytes == pytest.approx(3 * edges / there)


@given(
    st.floats(0, 1e3),
    st.floats(1e-9, 1e3),
    st.lists(st.floats(1, 1e6), min_size=2, max_size=9),
)
def test_what_a_beginning_takes_is_told_from_what_each_tile_takes(begin, unit, units):
    came = begin + unit * np.cumsum(units)
    coming = coming_of(list(came), units)
    assert coming.seconds(sum(units)) == pytest.approx(came[-1])
    assert coming.seconds(1e9) == pytest.approx(begin + 1e9 * unit, rel=1e-3)
    assert coming_of(list(came[:1]), units[:1]).unit == pytest.approx(came[0] / units[0])
    assert coming_of([], []) == Coming()
    assert coming.seconds(0) == 0
