"""Progress is one live line, or a line every few seconds."""

from __future__ import annotations

import io
import re

import pytest

from oocpr.progress import Reporter, describe


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_live_line_is_redrawn_at_most_ten_times_a_second_and_cleared(clock: Clock) -> None:
    stream = io.StringIO()
    with Reporter(stream, live=True, clock=clock) as progress:
        for done in range(1000):
            progress("reading", done, 1000, "B")
            clock.now += 0.001
    drawn = stream.getvalue().split("\r\x1b[2K")
    assert 8 <= len(drawn) - 2 <= 11
    assert drawn[0] == drawn[-1] == ""
    assert "\n" not in stream.getvalue()


def test_each_stage_is_shown_at_once_on_a_live_line(clock: Clock) -> None:
    stream = io.StringIO()
    with Reporter(stream, live=True, clock=clock) as progress:
        for stage in ("reading", "ordering", "writing"):
            progress(stage, 1, 2, "edges")
    assert re.findall(r"K(\w+)", stream.getvalue()) == ["reading", "ordering", "writing"]


def test_a_live_line_never_wraps(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    stream = io.StringIO()
    with Reporter(stream, live=True, clock=clock) as progress:
        progress("ranking", 3, 40, "passes", "bound 3.1e-07, and a very long note indeed")
    assert max(len(line) for line in stream.getvalue().split("\r\x1b[2K")) == 29


def test_elsewhere_there_is_a_line_every_five_seconds_and_none_for_short_work(clock: Clock) -> None:
    stream = io.StringIO()
    with Reporter(stream, live=False, clock=clock) as progress:
        for done in range(121):
            progress("reading", done, 120, "edges")
            clock.now += 0.125
        progress("writing", 1, 2, "edges")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[0] == "reading 33 %, 40 of 120 edges, 8 edges/s, 10 s left"
    assert "\x1b" not in stream.getvalue()


def test_a_silent_reporter_writes_nothing() -> None:
    stream = io.StringIO()
    with Reporter(stream, live=True):
        pass
    assert stream.getvalue() == ""


@pytest.mark.parametrize(
    ("state", "line"),
    [
        (("reading", 0, None, "B", "", 0.0), "reading, 0 B"),
        (("reading", 5 << 20, None, "B", "", 2.0), "reading, 5 MiB, 2.5 MiB/s"),
        (("reading", 1 << 20, 4 << 20, "B", "", 2.0), "reading 25 %, 1 MiB of 4 MiB, 512 KiB/s, 6 s left"),
        (("writing", 0, 0, "edges", "", 0.0), "writing 0 %, 0 of 0 edges"),
        (("writing", 7, 7, "edges", "", 2.0), "writing 100 %, 7 of 7 edges, 3.5 edges/s"),
        (("ranking", 50, 40, "passes", "slow", 9.0), "ranking 100 %, 50 of 40 passes, slow"),
        (("ranking", 10, 40, "passes", "slow", 9.0), "ranking 25 %, 10 of 40 passes, slow, 27 s left"),
        (("ranking", 0.5, 10, "passes", "slow", 9.0), "ranking 5 %, 0.5 of 10 passes, slow, 2 min 51 s left"),
    ],
)  # fmt: skip
def test_states_in_words(state: tuple[str, float, int | None, str, str, float], line: str) -> None:
    assert describe(*state) == line
