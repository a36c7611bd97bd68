"""What a timeline says of tiles that pass through a device."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls

from oocpr.engine.probe.pass_times import TileTimings, fitted, tile_timings
from oocpr.engine.trace import COMPUTE, COPY, READ, Trace


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
    pace = tile_timings(whole.spans, tiles)
    assert pace.sent == pytest.approx({tile: 4e-3 * edges for tile, (edges, _) in tiles.items()})
    swept = {tile: 3e-3 * edges + 5e-2 * rows for tile, (edges, rows) in tiles.items()}
    assert pace.swept == pytest.approx(swept)
    assert pace.row == pytest.approx(5e-2)
    assert tile_timings(whole.spans, {}) == TileTimings()


@pytest.mark.parametrize("slices", [2, 3])
def test_the_runs_of_a_round_are_told_of_together(slices):
    trace = Trace()
    tiles = {3: (1000.0, 10.0), 8: (1000.0, 400.0)}
    # Rows are dealt with in the last run of each round; the first round takes longer.
    for slower in (50.0, 1.0, 1.0, 7.0):
        for run in range(slices):
            for tile, (edges, rows) in tiles.items():
                trace.add(COPY, f"tile {tile}", 1.0, 1.0 + slower * edges * 4e-3, int(edges))
                trace.add(COMPUTE, f"tile {tile}", 2.0, 2.0 + slower * edges * 2e-3)
                last = rows * 6e-2 if run == slices - 1 else 0.0
                trace.add(COMPUTE, f"tile {tile}", 3.0, 3.0 + slower * (edges * 1e-3 + last))
    pace = tile_timings(trace.spans, tiles, slices)
    assert pace.sent == pytest.approx({tile: 4e-3 * edges for tile, (edges, _) in tiles.items()})
    swept = {tile: 3e-3 * edges + 6e-2 / slices * rows for tile, (edges, rows) in tiles.items()}
    assert pace.swept == pytest.approx(swept)
    assert pace.row == pytest.approx(6e-2 / slices)
