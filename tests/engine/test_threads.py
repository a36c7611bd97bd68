"""Threads that work together, asked for by several stripes of one process at once."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pytest
from numba.core.errors import TypingError
from numpy.typing import NDArray

from oocpr.engine.cpu import threads
from oocpr.engine.cpu.threads import PRESENT, Team, barrier, default_threads, parallel_region
from oocpr.engine.settings import Settings
from oocpr.engine.stripe import Job
from oocpr.jit import entry, inner

from .digraphs import random_digraph
from .running import plan_of


class Given(NamedTuple):
    """Arrays as works get them."""

    numbers: NDArray[np.int64]
    nothing: None
    factor: int


@inner(cache=False)
def _part_of_squares(me, team, counter, given, out, members):
    members[me] += 1
    for i in range(me, given.numbers.size, team):
        out[i] = given.numbers[i] * given.factor
    barrier(counter, team, 1)
    # Of what another thread has written.
    other = (me + 1) % team
    for i in range(other, out.size, team):
        out[i] *= given.numbers[i]
    barrier(counter, team, 2)
    if me == 0:
        members[members.size - 1] = team


@entry(cache=False)
def squares(board, *args):
    return parallel_region(board, _part_of_squares, args)


@inner(cache=False)
def _part_of_count(me, team, counter, members):
    members[me] += 1


@entry(cache=False)
def count(board, *args):
    return parallel_region(board, _part_of_count, args)


@inner(cache=False)
def _part_that_fails(me, team, counter, failing, members):
    members[me] += 1
    if me == failing:
        raise ZeroDivisionError


@entry(cache=False)
def fail(board, *args):
    return parallel_region(board, _part_that_fails, args)


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads that are interrupted as often as can be, so that callers come between each other's steps."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def complete(team: Team) -> None:
    """Have all threads of a team come, and stay for some milliseconds."""
    members = np.zeros(team.size, np.int64)
    for _ in range(1000):
        members[:] = 0
        team.run(count, members)
        if members.all():
            return
    raise AssertionError("threads of a team do not come")


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("callers", [1, 2, 3])
@pytest.mark.parametrize("shared", [True, False])
def test_each_part_of_each_of_many_small_works_is_done_once(hasty, size, callers, shared):
    teams = [Team(size)] * callers if shared else [Team(size) for _ in range(callers)]

    def call(team: Team, seed: int) -> int:
        rng = np.random.default_rng(seed)
        most = 0
        for turn in range(150):
            numbers = rng.integers(0, 1000, 1 + turn)
            out, members = np.zeros(len(numbers), np.int64), np.zeros(size + 1, np.int64)
            team.run(squares, Given(numbers, None, turn), out, members)
            took = members[size]
            assert 1 <= took <= size
            assert (members[:size] == (np.arange(size) < took)).all()
            assert (out == numbers * numbers * turn).all()
            # Another work in between, of other types.
            counts = np.zeros(size, np.int64)
            team.run(count, counts)
            assert (counts == (np.arange(size) < counts.sum())).all()
            most = max(most, took)
        return int(most)

    with ThreadPoolExecutor(callers) as pool:
        most = list(pool.map(call, teams, range(callers)))
    assert max(most) == size


def test_threads_come_back_after_they_have_left():
    team = Team(3)
    for _ in range(3):
        complete(team)
        until_left(team)


def until_left(team: Team) -> None:
    """Wait until the threads of a team have gone back to Python."""
    deadline = time.monotonic() + 10
    while team._board[PRESENT]:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_threads_without_work_take_no_time_of_a_processor():
    team = Team(3)
    complete(team)
    begun = time.process_time()
    until_left(team)
    assert time.process_time() - begun < 0.1
    begun = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - begun < 0.05


def test_threads_leave_as_soon_as_their_team_is_gone(monkeypatch):
    # By themselves these would stay for some time.
    monkeypatch.setattr(threads, "_MANY_SPINS", 10**10)
    team = Team(2)
    complete(team)
    (other,) = team._others
    del team
    other.result(timeout=5)


MARK = """
import numpy as np, threading, time
from oocpr.engine.cpu.threads import Team, parallel_region
from oocpr.jit import entry, inner

@inner(cache=False)
def _part(me, team, counter, out):
    out[me] = 1

@entry(cache=False)
def mark(board, *args):
    return parallel_region(board, _part, args)

team, out = Team(4), np.zeros(4, np.int64)
"""

REPEAT = """
while not out.all():
    team.run(mark, out)
print(time.monotonic())
"""


def check_end(program: str) -> None:
    """Have a process work until all threads have taken part, and end at once."""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=120, check=True)
    assert time.monotonic() - float(run.stdout) < 2


def test_a_process_that_ends_right_after_a_work_ends_at_once():
    check_end(MARK + REPEAT)


def test_ctrl_c_while_threads_begin_leaves_a_team_that_works_and_a_process_that_ends():
    # A signal that comes while a thread begins is handled as soon as it has.
    interrupted = """
begin = threading.Thread.start

def begin_and_interrupt(thread):
    begin(thread)
    threading.Thread.start = begin
    raise KeyboardInterrupt

threading.Thread.start = begin_and_interrupt
try:
    team.run(mark, out)
except KeyboardInterrupt:
    assert not out.any()
else:
    raise AssertionError
"""
    check_end(MARK + interrupted + REPEAT)


def fail_with(team: Team, failing: int) -> None:
    """Do a work until the thread that fails takes part."""
    members = np.zeros(team.size, np.int64)
    while not members[failing]:
        team.run(fail, failing, members)


def test_an_error_in_any_thread_reaches_the_caller():
    team = Team(3)
    for failing, kind in enumerate([ZeroDivisionError, RuntimeError, RuntimeError]):
        complete(team)
        with pytest.raises(kind):
            fail_with(team, failing)
    team.run(fail, -1, np.zeros(3, np.int64))


def test_an_error_between_works_leaves_threads_that_leave():
    team = Team(2)
    complete(team)
    with pytest.raises(TypingError, match="cannot share"):
        team.run(count, "text")
    until_left(team)
    complete(team)


def test_nobody_counts_references_to_what_threads_share():
    team, numbers = Team(2), np.arange(5)
    complete(team)
    before = sys.getrefcount(numbers)
    for _ in range(100):
        team.run(squares, Given(numbers, None, 1), np.zeros(5, np.int64), np.zeros(3, np.int64))
    assert sys.getrefcount(numbers) == before


@pytest.mark.parametrize(
    ("cores", "streaming"), [(1, 1), (2, 2), (4, 4), (7, 7), (8, 7), (16, 14), (18, 16), (64, 16)]
)
def test_an_eighth_of_the_cores_is_left_to_those_that_read(monkeypatch, cores, streaming):
    monkeypatch.setattr(threads, "usable_cores", lambda: cores)
    assert default_threads(1 << 40, streams=True) == streaming
    assert default_threads(1 << 40) == min(cores, 16)
    # Of workers that share them, each has its own.
    assert default_threads(1 << 40, streams=True, cores=8) == min(7, streaming)
    assert default_threads(2 * threads.THREAD_EDGES, streams=True) == min(3, streaming)


@pytest.mark.parametrize(("kept", "asked", "size"), [("decoded", None, 8), ("none", None, 7), ("none", 8, 8)])
def test_runs_leave_them_unless_all_tiles_stay_or_threads_are_asked_for(
    monkeypatch, stored, kept, asked, size
):
    monkeypatch.setattr(threads, "usable_cores", lambda: 8)
    monkeypatch.setattr(threads, "THREAD_EDGES", 1)
    store, settings = stored(random_digraph(100, 1000, seed=1), 50), Settings()
    made: Any = Job("", settings, plan_of(store, settings, kept=kept), threads=asked).make_backend(0)
    assert made._team.size == size
