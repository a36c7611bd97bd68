"""Timelines of runs, against what has to hold in any order of events."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oocpr.engine.run import rank_graph
from oocpr.engine.settings import Settings
from oocpr.engine.trace import COMPUTE, READ, Span, Trace
from oocpr.errors import UsageError

from .digraphs import random_digraph
from .running import Stored, plan_of


@pytest.mark.parametrize("kept", ["decoded", "some", "none"])
def test_a_timeline_has_every_tile_of_every_pass(kept: str, tmp_path: Path) -> None:
    trace = Trace()
    with Stored(random_digraph(300, 2500, seed=8), 300) as store:
        settings = Settings()
        plan = plan_of(store, settings, kept=kept)
        solution = rank_graph(store, plan, settings, trace=trace)
        tiles, cached = store.tiles, plan.cached_tiles
    computed = [span for span in trace.spans if span.track == COMPUTE]
    read = [span for span in trace.spans if span.track.startswith(READ)]
    assert len(computed) == solution.passes * tiles
    assert len(read) == tiles + (solution.passes - 1) * (tiles - cached)
    for track in {span.track for span in trace.spans}:
        inside = sorted(span[2:4] for span in trace.spans if span.track == track)
        assert all(before[1] <= after[0] for before, after in pairwise(inside))
    for tile in {span.name for span in computed}:
        begins = sorted(span.begin for span in computed if span.name == tile)
        ends = sorted(span.end for span in read if span.name == tile)
        # Read once or before every pass; never again before it was used.
        assert all(end <= begin for end, begin in zip(ends, begins, strict=False))
    assert all(0 < busy <= solution.seconds for busy in trace.busy().values())

    trace.write(tmp_path / "trace.json")
    written = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert sorted(event["name"] for event in written if event["ph"] == "X") == sorted(
        span.name for span in trace.spans
    )
    assert all(event["ts"] >= 0 and event["dur"] >= 0 for event in written if event["ph"] == "X")


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 10)), min_size=1, max_size=20))
def test_busy_counts_each_moment_once(spans: list[tuple[int, int]]) -> None:
    trace = Trace()
    trace.spans += [Span("read, buffer 1", "", begin, begin + length, 0) for begin, length in spans]
    moments = {moment for begin, length in spans for moment in range(begin, begin + length)}
    assert trace.busy() == {"read": len(moments)}


def test_what_has_no_timeline_is_refused() -> None:
    with Stored(random_digraph(30, 200, seed=8), 300) as store:
        settings = Settings(method="components", reads="float32")
        with pytest.raises(UsageError, match="no timeline"):
            rank_graph(store, plan_of(store, Settings()), settings, trace=Trace())
