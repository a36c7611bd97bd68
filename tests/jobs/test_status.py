"""How far a run is: what it writes, and when that says it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import oocpr
from oocpr.engine.checkpoint import kept_run
from oocpr.errors import InputError, StoppedError
from oocpr.jobs.job_file import read_job
from oocpr.jobs.status import Position, ProgressFile, checkpoint_status, status_of
from oocpr.sources.rmat import Rmat

STEPS = ("append", "rank", "compare", "publish")


def position(**changes: Any) -> Position:
    values = {
        "steps": STEPS,
        "step": "rank",
        "step_began": 100.0,
        "stage": "ranking",
        "done": 6.0,
        "total": 10,
    }
    values |= {"unit": "passes", "stage_began": 110.0, "stage_done": 2.0, "updated": 118.0}
    return Position(**{**values, **changes})


def test_a_ranking_ends_by_the_passes_that_this_process_has_made() -> None:
    # Four passes, of which the first two were made before, in 8 s: the four that are left take as long.
    assert position().stage_left() == 8.0
    assert position().seconds_left({}, now=118.0) == 8.0
    assert position().seconds_left({"compare": 1.5}, now=120.0) == 7.5
    assert position().seconds_left({}, now=500.0) == 0.0


def test_other_steps_take_as_long_as_the_last_time() -> None:
    at = position(step="append", stage="reading", done=90, total=100)
    assert at.seconds_left({"append": 30.0, "rank": 20.0}, now=120.0) == 10.0 + 20.0
    # Longer than the last time: by how its stage goes on.
    assert at.seconds_left({"append": 5.0, "rank": 20.0}, now=118.0) == pytest.approx(8 / 88 * 10 + 20.0)


@pytest.mark.parametrize(
    ("changes", "before"),
    [
        ({"done": 2.0}, {}),  # nothing is done since it began
        ({"total": None}, {}),
        ({"step": "append", "stage": "reading"}, {"rank": 20.0}),
        ({"step": "append", "stage": "reading"}, {"append": 30.0}),
    ],
)
def test_nobody_knows_the_end_of_what_was_never_measured(
    changes: dict[str, Any], before: dict[str, float]
) -> None:
    assert position(**changes).seconds_left(before, now=118.0) is None


def test_a_file_says_where_the_run_is_and_is_not_written_too_often(tmp_path: Path) -> None:
    clock, told = [100.0], []
    path = tmp_path / "progress.json"
    shown = ProgressFile(path, lambda *state: told.append(state), lambda: clock[0])

    def written() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    shown.begin(STEPS)
    with shown.step("append"):
        assert (written()["step"], written()["step_began"], written()["stage"]) == ("append", 100.0, "")
        shown("reading", 1, 10, "B", "")
        assert (written()["stage"], written()["done"]) == ("reading", 1)
        clock[0] = 101.0
        shown("reading", 2, 10, "B", "")
        assert written()["done"] == 1
        clock[0] = 104.0
        shown("reading", 3, 10, "B", "fast")
        assert (written()["done"], written()["stage_began"], written()["stage_done"]) == (3, 100.0, 1)
        assert written()["note"] == "fast"
        shown("sorting", 5, None, "edges", "")
        assert (written()["stage"], written()["stage_began"], written()["total"]) == ("sorting", 104.0, None)
    assert shown.seconds == {"append": 4.0}
    assert len(told) == 4
    shown.remove()
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The place of a run whose time was up, for ten times, after a pass."""
    folder = tmp_path_factory.mktemp("status")
    oocpr.import_graph(Rmat(12), folder / "graph.zarr")
    for _ in range(10):
        with pytest.raises(StoppedError), kept_run(folder / "kept", resume=True, time_limit=1e-3) as kept:
            oocpr.pagerank(folder / "graph.zarr", method="residual", tol=1e-9, checkpoint=kept)
    return folder / "kept"


def test_a_checkpoint_says_how_far_its_run_is(checkpoint: Path) -> None:
    known, text = status_of(str(checkpoint), 0.0, read_job)
    assert (known["pass"], known["method"], known["tol"]) == (10, "residual", 1e-9)
    assert known["graph"] == oocpr.open_graph(checkpoint.parent / "graph.zarr").store.identity
    assert known["seconds_left"] > 0
    assert text.startswith(f"after pass 10 of about {known['passes']}, bound ")
    # The run itself says how many passes it takes.
    graph = checkpoint.parent / "graph.zarr"
    ranks = oocpr.pagerank(graph, method="residual", tol=1e-9)
    assert known["error_bound"] == ranks.history[9].bound
    assert known["passes"] == pytest.approx(ranks.passes, abs=3)


def test_a_place_without_a_checkpoint_has_no_status(tmp_path: Path) -> None:
    assert checkpoint_status(str(tmp_path)) is None
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(InputError, match="is no job and has no checkpoint"):
            status_of(str(path), 0.0, read_job)


def test_a_ranking_before_its_passes_takes_as_long_as_the_last_time() -> None:
    at = position(stage="measuring", done=2.0)
    assert at.seconds_left({"rank": 30.0}, now=120.0) == 10.0
    assert at.seconds_left({}, now=120.0) is None
