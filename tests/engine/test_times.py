"""What all tiles of a device take, told from some of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oocpr.engine import picked
from oocpr.engine.coming import Coming, Reading, arrivals, coming_of
from oocpr.engine.passed import Pace
from oocpr.engine.picked import Place
from oocpr.engine.times import Kind, Times
from oocpr.plan.device import DeviceNeed, DeviceTiers
from oocpr.plan.plan import GraphFacts


def second_by_second(seconds: list[int], threads: int, buffers: int) -> list[int]:
    """When tiles have come, by threads that work a second at a time."""
    left, busy, ended, come, clock = list(seconds), [], {}, [], 0
    begun = 0
    while len(come) < len(seconds):
        while begun < len(seconds) and len(busy) < threads and begun - len(come) < buffers:
            busy.append(begun)
            begun += 1
        clock += 1
        for tile in list(busy):
            left[tile] -= 1
            if left[tile] == 0:
                ended[tile] = clock
                busy.remove(tile)
        while len(come) in ended:
            come.append(clock)
    return come


@given(st.lists(st.integers(1, 9), max_size=20), st.integers(1, 5), st.integers(0, 4))
def test_tiles_come_as_threads_that_work_bring_them(seconds, threads, spare):
    assert arrivals(seconds, threads, threads + spare) == second_by_second(seconds, threads, threads + spare)


@given(
    st.floats(0, 1e3),
    st.floats(1e-3, 1e3),
    st.floats(1e-3, 1e3),
    st.integers(1, 4),
    st.lists(st.integers(1, 10**6), min_size=6, max_size=20, unique=True),
)
def test_what_a_beginning_takes_is_told_from_what_each_tile_takes(begin, edge, row, threads, rows):
    edges, rows = np.full(len(rows), 1000.0), np.array(rows, np.float64)
    reading = Reading(threads, threads + 2)
    took = list(edge * edges + row * rows)
    came = [begin + at for at in arrivals(took, *vars(reading).values())]
    coming = coming_of(came, took, edges, rows, reading)
    assert coming.seconds(edges, rows, reading) == pytest.approx(came[-1], rel=1e-6)
    assert coming.begin == pytest.approx(begin, abs=1e-6 * came[-1])
    # Ten times as many tiles, which begin once.
    many = np.tile(edges, 10), np.tile(rows, 10)
    truth = arrivals(took * 10, *vars(reading).values())[-1]
    assert coming.seconds(*many, reading) == pytest.approx(begin + truth, rel=1e-6)


def test_who_takes_the_tiles_may_be_slower_than_who_brings_them():
    edges, rows, reading = np.full(8, 100.0), np.ones(8), Reading(4, 6)
    # Tiles come every five seconds, though four threads could bring one every second.
    coming = coming_of(list(np.arange(8) * 5.0 + 9), [4.0] * 8, edges, rows, reading)
    assert coming.more == pytest.approx((5 - 1) / 100)
    assert coming.seconds(np.full(80, 100.0), np.ones(80), reading) == pytest.approx(9 + 79 * 5, abs=5)


def test_nothing_and_one_tile_are_told_as_they_are():
    reading = Reading(2, 4)
    none = np.zeros(0)
    assert coming_of([], [], none, none, reading) == Coming(0.0, 0.0, 0.0, 0.0)
    one = coming_of([7.0], [4.0], np.array([10.0]), np.array([3.0]), reading)
    assert one.seconds(np.array([10.0]), np.array([3.0]), reading) == pytest.approx(7.0)
    assert one.seconds(none, none, reading) == 0


@pytest.mark.parametrize("on_device", [0, 3])
@pytest.mark.parametrize("row_edges", [0, 7])
@pytest.mark.parametrize("byte", [1e-3, 1.0])
@pytest.mark.parametrize("rows_in_host", [False, True])
def test_what_some_tiles_take_is_told_of_all(on_device, row_edges, byte, rows_in_host, monkeypatch):
    monkeypatch.setattr(picked, "DEVICE_PASSING_EDGES", 4000)
    rows = np.array([1, 2, 2, 3, 5, 8, 6, 9, 20, 40, 700, 90])
    facts = GraphFacts(int(rows.sum()), 12_000, 12, 1000, 36_000, 4000, 700, 0.5)
    need = DeviceNeed(0, 0, 0, 0, 0)
    tiers = DeviceTiers(0, need, on_device, 12 - on_device, 0, 0, 5, False, False, rows_in_host)
    place = Place(facts, np.concatenate([[0], rows.cumsum()]), range(12), on_device, tiers)
    sampled = place.of_passing().tiles
    assert len(set(sampled)) == 4
    assert sampled == sorted(sampled)
    passing = sorted(set(range(12)) - tiers.places(range(12))[0])
    assert max(passing, key=lambda tile: rows[tile]) in sampled
    pace = Pace(byte=byte, edge=2e-3, row=0.5)

    def brought(tiles: list[int]) -> list[float]:
        """Seconds of a machine that brings an edge in a millisecond, and a row in so many."""
        return [1e-3 * (1000 + row_edges * int(rows[tile])) for tile in tiles]

    def seen(tiles: list[int], begin: float) -> Kind:
        """What is seen of two threads that bring tiles, and take memory first."""
        took = brought(tiles)
        return Kind(77.0, 5.0, [begin + at for at in arrivals(took, 2, 4)], took)

    times = Times.of(place, seen(place.of_staying().tiles, 600.0), seen(sampled, 1800.0), pace, 2)
    edges = 1000 * len(passing)
    swept = 2e-3 * edges + 0.5 * rows[passing].sum()
    assert times.passing == pytest.approx(swept)
    assert times.sent == pytest.approx(3 * edges * byte)
    assert times.kept == pytest.approx(5.0 * 1000 * on_device)
    there = 1800.0 + arrivals(brought(passing), 2, 4)[-1]
    kernels = times.kept + swept
    busy = times.sent + kernels if rows_in_host else max(times.sent, kernels)
    staying = sorted(set(range(12)) - set(passing))
    if staying and row_edges:
        # Two of three are too few to tell rows from edges by: between what either would be alone.
        assert times.first >= max(there + 600.0, busy)
    else:
        stays = 600.0 + arrivals(brought(staying), 2, 4)[-1] if staying else 0.0
        assert times.first == pytest.approx(max(stays + there, busy), rel=1e-3)
    assert times.came_bytes == pytest.approx(3 * edges / there)
