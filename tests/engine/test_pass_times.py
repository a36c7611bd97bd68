"""What all tiles of a device take, predicted from some of them, and what a timeline says of those."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import nnls

from oocpr.engine.probe import pass_times
from oocpr.engine.probe.pass_times import (
    DeviceWork,
    PassTimeModel,
    SampleTimes,
    TileTimings,
    _in_order,
    completion_times,
    extrapolate,
    fitted,
    tile_timings,
)
from oocpr.engine.trace import COMPUTE, COPY, READ, Trace
from oocpr.plan.device_memory import DeviceNeed, DeviceTiers
from oocpr.plan.request import GraphStats


def second_by_second(brought: list[int], taken: list[int], buffers: int) -> list[int]:
    """When tiles have been taken that are brought one after the other, a second at a time."""
    left, takes, busy, ended, done, clock = list(brought), list(taken), [], set(), [], 0
    begun = 0
    while len(done) < len(brought):
        # Whatever takes no time is done before the next second.
        while True:
            if begun < len(brought) and not busy and begun - len(done) < buffers:
                busy.append(begun)
                begun += 1
            elif len(done) in ended and takes[len(done)] == 0:
                done.append(clock)
            else:
                break
        if len(done) == len(brought):
            break
        taking = len(done) in ended
        clock += 1
        for tile in list(busy):
            left[tile] -= 1
            if left[tile] == 0:
                ended.add(tile)
                busy.remove(tile)
        if taking:
            takes[len(done)] -= 1
    return done


TILES = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 5)), max_size=20)


@given(TILES, st.integers(1, 5))
def test_tiles_are_taken_as_they_are_brought(tiles, buffers):
    brought, taken = ([tile[k] for tile in tiles] for k in (0, 1))
    assert completion_times(brought, taken, buffers) == second_by_second(brought, taken, buffers)


@given(
    st.floats(1e-3, 1e3),
    st.floats(1e-3, 1e3),
    st.lists(st.integers(1, 10**6), min_size=3, max_size=20, unique=True),
    st.data(),
)
def test_what_edges_and_rows_take_is_told_exactly(edge, row, rows, data):
    edges, rows = np.full(len(rows), 1000.0), np.array(rows, np.float64)
    seconds = edge * edges + row * rows
    some = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=2, unique=True))
    told = extrapolate({tile: float(seconds[tile]) for tile in some}, edges, rows)
    assert told == pytest.approx(seconds, rel=1e-6)


@given(st.lists(st.floats(0, 1e3), min_size=2, max_size=8), st.integers(1, 9))
def test_between_two_tiles_that_were_seen_others_lie_between_them(seen, apart):
    tiles = range(0, len(seen) * apart, apart)
    edges, rows = np.full(tiles[-1] + 5, 100.0), np.full(tiles[-1] + 5, 7.0)
    told = extrapolate(dict(zip(tiles, seen, strict=True)), edges, rows)
    assert told[list(tiles)] == pytest.approx(seen)
    for first, (before, after) in zip(tiles, pairwise(seen), strict=False):
        between = told[first : first + apart + 1]
        assert (between >= min(before, after) * (1 - 1e-9) - 1e-12).all()
        assert (between <= max(before, after) * (1 + 1e-9) + 1e-12).all()
    assert told[-4:] == pytest.approx(seen[-1])


@pytest.mark.parametrize("on_device", [0, 3])
@pytest.mark.parametrize("row_edges", [0, 7])
@pytest.mark.parametrize("byte", [1e-3, 1.0])
@pytest.mark.parametrize(("rows_in_host", "slots"), [(False, 5), (True, 5), (True, 1)])
@pytest.mark.parametrize("counted", [0.6, 1.25])
@pytest.mark.parametrize("slices", [1, 3])
def test_what_some_tiles_take_is_told_of_all(
    on_device, row_edges, byte, rows_in_host, slots, counted, slices, monkeypatch
):
    monkeypatch.setattr(pass_times, "DEVICE_EDGES", 4000)
    rows = np.array([1, 2, 2, 3, 5, 8, 6, 9, 20, 40, 700, 90])
    stats = GraphStats(int(rows.sum()), 12_000, 12, 1000, 36_000, 4000, 700, 0.5)
    need = DeviceNeed(0, 0, 0, 0, 0)
    tiers = DeviceTiers(
        0, need, on_device, 12 - on_device, 0, 0, slots, False, False, rows_in_host, partitions=slices
    )
    place = DeviceWork(stats, np.concatenate([[0], rows.cumsum()]), range(12), on_device, tiers)
    sampled = place.streamed_sample().tiles
    assert len(set(sampled)) == 4
    assert sampled == sorted(sampled)
    staying = sorted(tiers.places(range(12))[0])
    passing = sorted(set(range(12)) - set(staying))
    assert max(passing, key=lambda tile: rows[tile]) in sampled
    sent, kernels = np.full(12, 3 * 1000 * byte), 2.0 + 0.5 * rows
    pace = TileTimings(*({tile: float(of[tile]) for tile in sampled} for of in (sent, kernels)), row=0.5)

    def brought(tile: int) -> float:
        """Seconds of a machine that brings an edge in a millisecond, and a row in so many."""
        return 1e-3 * (1000 + row_edges * int(rows[tile]))

    def seen(
        tiles: list[int], take: float, launch: float, close: float = 0.0, later: float = 5.0
    ) -> SampleTimes:
        """What is seen of such a machine."""
        of_each = {tile: brought(tile) for tile in tiles}
        return SampleTimes(77.0, later, of_each, dict.fromkeys(tiles, take), launch, close)

    # Where copies and kernels use the link, rounds tell how long both take.
    def both(tiles: list[int]) -> tuple[float, float, float]:
        turned = 0.5 * rows[tiles].sum() if slots > 1 else kernels[tiles].sum()
        return kernels[tiles].sum(), sent[tiles].sum(), turned if rows_in_host else 0.0

    def busy(swept: float, sent: float, turned: float) -> float:
        return max(sent + turned, swept)

    between = 2
    later, share = counted * busy(*both(sampled)) / 4000, counted if rows_in_host else 1
    kept = seen(place.resident_sample().tiles, 0.25, 3.0) if staying else SampleTimes()
    times = PassTimeModel.of(place, kept, seen(sampled, 0.5, 4.0, 0.125, later), pace, between)
    expected = [share * seconds for seconds in both(passing)]
    if not rows_in_host:
        # Each tile that stays takes five seconds, and what comes late holds up those behind it, which go on
        # coming between two passes.
        swept = np.where(np.isin(range(12), staying), 5000.0, kernels)
        least, most = max(expected[1] - between, swept.sum()), expected[1] + swept.sum()
        assert least <= times.streamed + times.resident <= most
        expected[0] = times.streamed
    assert (times.streamed, times.sent, times.alternating) == pytest.approx(tuple(expected))
    assert times.resident == pytest.approx(5.0 * 1000 * on_device)
    assert times.launched == pytest.approx(3.0 * len(staying) + 4.0 * len(passing))
    assert times.closing == pytest.approx(0.125 * (12 - on_device) / 4)
    takes = [0.25 if tile in staying else 0.5 for tile in range(12)]
    there = completion_times([brought(tile) / 2 for tile in range(12)], takes, 2)[-1]
    of_link = (
        busy(*expected) + times.resident if rows_in_host else max(expected[1], expected[0] + times.resident)
    )
    # While tiles come the first slice is gathered; rounds have all slices in them, and so have the others.
    first = max(there, of_link / slices) + of_link * (slices - 1) / slices
    assert times.first == pytest.approx(first, rel=1e-6)


ROUND = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 5), st.booleans()), min_size=1, max_size=9)


@given(ROUND, st.integers(0, 9), st.integers(1, 5))
def test_a_pass_waits_for_tiles_as_all_later_ones_do(tiles, between, slots):
    assume(not all(stays for _, _, stays in tiles))
    sent, swept, stays = (np.array(of) for of in zip(*tiles, strict=True))
    found = _in_order(sent, np.append(swept, between), stays, slots)
    # Second by second, of many passes; a tile that stays is there at once, and takes no slot from another.
    work = [*tiles, (0, between, True)] * 6
    come = [tile[0] for tile in work if not tile[2]]
    take, before = [], 0
    for _, took, stay in work:
        before += took
        if not stay:
            take.append(before)
            before = 0
    ended = second_by_second(come, take, slots)
    ends = ended[len(come) // 6 - 1 :: len(come) // 6]
    assert [after - end for end, after in pairwise(ends)][1:] == [found] * 4
    assert found <= sent[~stays].sum() + swept.sum() + between
    assert found >= max(sent[~stays].sum(), swept.sum() + between)


@pytest.mark.parametrize("staying", [0, 6, 12])
@pytest.mark.parametrize("an_edge", [0.0, 1e-3])
def test_a_processor_takes_rows_longer_than_those_that_are_measured_have(
    monkeypatch: pytest.MonkeyPatch, staying: int, an_edge: float
) -> None:
    monkeypatch.setattr(pass_times, "SAMPLED", 4)
    monkeypatch.setattr(pass_times, "SAMPLED_EDGES", 4000)
    rows = np.array([1, 700, 2, 3, 5, 8, 6, 9, 20, 40, 90, 2])
    stats = GraphStats(int(rows.sum()), 12_000, 12, 1000, 36_000, 4000, 700, 0.5)
    place = DeviceWork(stats, np.concatenate([[0], rows.cumsum()]), range(12), staying)
    # A machine that reads an edge in a time beside what computing a tile takes.
    takes = 2.0 + 0.5 * rows

    def seen(tiles: list[int]) -> SampleTimes:
        round_ = takes[tiles].sum() + an_edge * 1000 * len(tiles)
        each = {tile: float(takes[tile]) for tile in tiles}
        return SampleTimes(1.0, round_ / (1000 * len(tiles)), computed=each) if tiles else SampleTimes()

    kept, passing = seen(place.resident_sample().tiles), seen(place.streamed_sample().tiles)
    times = PassTimeModel.of(place, kept, passing, TileTimings(), 2)
    if not an_edge:
        assert times.resident + times.streamed == pytest.approx(takes.sum())
    for share, found, kind in (
        (staying / 12, times.resident, kept),
        (1 - staying / 12, times.streamed, passing),
    ):
        # What is beside the computing grows as that does.
        beside = kind.later * 1000 * len(kind.computed) / sum(kind.computed.values()) if kind.computed else 0
        assert found == pytest.approx(share * takes.sum() * beside)


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


def test_where_there_are_no_edges_rows_take_all_of_the_time():
    edges, rows = np.zeros(2), np.array([100.0, 300.0])
    edge, row = fitted(edges, rows, np.array([0.1, 0.3]))
    assert edge == 0
    assert row == pytest.approx(1e-3)
    assert extrapolate({1: 0.3}, edges, rows) == pytest.approx(np.array([0.1, 0.3]))


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
