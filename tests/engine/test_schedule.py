"""The schedule under every order in which reads and computations may end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from oocpr.engine.tiles.schedule import Action, Arrived, Compute, Computed, Read, Schedule

if TYPE_CHECKING:
    from collections.abc import Iterable


class Executor:
    """Carries out actions in its head and objects to those that cannot be carried out."""

    def __init__(self, slots: int, resident: set[int]) -> None:
        self.slots, self.resident = slots, resident
        self.holds: dict[int, int] = {}
        self.reading: list[int] = []
        self.arrived: set[int] = set()
        self.running: Compute | None = None
        self.read: list[int] = []
        self.computed: list[int] = []

    def take(self, actions: Iterable[Action]) -> None:
        for action in actions:
            if isinstance(action, Read):
                assert action.slot in range(self.slots)
                assert action.slot not in self.holds, "a buffer was reused before its tile was computed"
                self.holds[action.slot] = action.tile
                self.reading.append(action.tile)
                self.read.append(action.tile)
            else:
                assert self.running is None, "two tiles at once"
                if action.tile in self.resident:
                    assert action.slot is None
                else:
                    assert action.slot is not None
                    assert self.holds[action.slot] == action.tile
                    assert action.tile in self.arrived, "computed before it was read"
                self.running = action

    def arrive(self, which: int) -> Arrived:
        tile = self.reading.pop(which)
        self.arrived.add(tile)
        return Arrived(tile)

    def finish(self) -> Computed:
        assert self.running is not None
        done, self.running = self.running, None
        self.computed.append(done.tile)
        if done.slot is not None:
            del self.holds[done.slot]
        return Computed(done.tile)


@st.composite
def stripes(draw: st.DrawFn) -> tuple[range, set[int], int]:
    first = draw(st.integers(0, 50))
    tiles = range(first, first + draw(st.integers(0, 20)))
    resident = draw(st.sets(st.sampled_from(tiles))) if tiles else set()
    return tiles, resident, draw(st.integers(1, 6))


@given(stripes(), st.data())
def test_each_tile_is_computed_once_in_order_and_no_buffer_is_overwritten(stripe, data):
    tiles, resident, slots = stripe
    schedule = Schedule(tiles, resident, slots)
    executor = Executor(slots, resident)
    executor.take(schedule.begin())
    while not schedule.done:
        choices = [*range(len(executor.reading)), *(["finish"] if executor.running else [])]
        assert choices, "nothing is under way and the pass is not done"
        choice = data.draw(st.sampled_from(choices))
        executor.take(schedule.on(executor.finish() if choice == "finish" else executor.arrive(choice)))
    assert executor.computed == list(tiles)
    assert executor.read == [tile for tile in tiles if tile not in resident]
    assert not executor.reading
    assert executor.running is None


@given(stripes())
def test_all_buffers_are_filled_as_soon_as_they_are_free(stripe):
    tiles, resident, slots = stripe
    schedule = Schedule(tiles, resident, slots)
    executor = Executor(slots, resident)
    executor.take(schedule.begin())
    while not schedule.done:
        left = len(tiles) - len(resident) - len(executor.read)
        assert len(executor.holds) == slots or left == 0
        event = executor.arrive(0) if executor.reading else executor.finish()
        executor.take(schedule.on(event))


def test_a_tile_that_arrives_early_waits_for_its_turn():
    schedule = Schedule([0, 1, 2], resident=set(), slots=3)
    assert schedule.begin() == [Read(0, 0), Read(1, 1), Read(2, 2)]
    assert schedule.on(Arrived(2)) == []
    assert schedule.on(Arrived(0)) == [Compute(0, 0)]
    assert schedule.on(Arrived(1)) == []
    assert schedule.on(Computed(0)) == [Compute(1, 1)]
    assert schedule.on(Computed(1)) == [Compute(2, 2)]
    assert not schedule.done
    assert schedule.on(Computed(2)) == []
    assert schedule.done


def test_a_stripe_without_tiles_is_done_at_once():
    schedule = Schedule([], resident=set(), slots=1)
    assert schedule.begin() == []
    assert schedule.done
