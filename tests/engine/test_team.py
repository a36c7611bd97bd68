"""Threads that work together, asked for by several stripes of one process at once."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from oocpr.engine.backends.team import Team

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads that are interrupted as often as can be, so that callers come between each other's steps."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("callers", [1, 2, 3])
def test_all_threads_of_a_run_work_at_the_same_time_whoever_else_runs(hasty, size, callers):
    team = Team(size)

    def work(me: int, of: int, counter: object, together: threading.Barrier) -> None:
        assert of == size
        together.wait(timeout=10)

    def call() -> None:
        for _ in range(60):
            team.run(work, threading.Barrier(size))

    with ThreadPoolExecutor(callers) as pool:
        for result in [pool.submit(call) for _ in range(callers)]:
            result.result()


def test_an_error_in_any_thread_reaches_the_caller():
    team = Team(3)

    def work(me: int, size: int, counter: object, failing: int) -> None:
        if me == failing:
            raise ZeroDivisionError(me)

    for failing in range(3):
        with pytest.raises(ZeroDivisionError, match=str(failing)):
            team.run(work, failing)
    team.run(work, -1)
