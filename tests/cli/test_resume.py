"""Imports that were interrupted, as the command line tells of them."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import oocpr
from oocpr.sources.rmat import Rmat

from .conftest import contents

if TYPE_CHECKING:
    Run = Callable[..., Any]

RMAT = ("generate", "rmat", "--scale", 18, "--resume")


def wait_for(journal: Path, lines: int, seconds: float = 60) -> None:
    """Wait until a journal has so many lines."""
    end = time.monotonic() + seconds
    while not journal.is_file() or journal.read_bytes().count(b"\n") < lines:
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_import_that_was_interrupted_goes_on(
    process: Run, oocpr_command: Run, tmp_path: Path, number: signal.Signals
) -> None:
    oocpr.import_graph(Rmat(18), tmp_path / "undisturbed.zarr")
    folder = tmp_path / "graph.zarr.unfinished"
    done = process(*RMAT, "-o", tmp_path / "graph.zarr", stderr=subprocess.PIPE, text=True)
    wait_for(folder / "journal", 3)
    done.send_signal(number)
    _, err = done.communicate(timeout=60)
    if number == signal.SIGKILL:
        assert done.returncode == -number
    else:
        assert done.returncode == 130
        note, cause, remedy = err.splitlines()
        assert note == "note: Nothing to resume: the import starts from the beginning."
        assert cause == "error: interrupted."
        kept = rf"remedy: What is finished is kept, \S+ [KM]iB in {re.escape(str(folder))}: .* --resume"
        assert re.match(kept, remedy)
    outcome = oocpr_command(*RMAT, "-o", tmp_path / "graph.zarr")
    assert outcome.code == 0
    assert outcome.err.startswith("note: Going on with an import that was interrupted: all 4,194,304 edges")
    assert contents(tmp_path / "graph.zarr") == contents(tmp_path / "undisturbed.zarr")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["graph.zarr", "undisturbed.zarr"]


@pytest.fixture
def killed(process: Run, tmp_path: Path) -> tuple[Path, Path]:
    """Kill an import; returns its source and the store it was to make."""
    source, store = tmp_path / "edges.txt", tmp_path / "graph.zarr"
    np.savetxt(source, np.random.default_rng(1).integers(0, 99_999, (400_000, 2)), "%d")
    done = process("import", source, "-o", store, "--resume", stderr=subprocess.DEVNULL)
    wait_for(tmp_path / "graph.zarr.unfinished" / "journal", 2)
    done.kill()
    done.wait()
    return source, store


def test_a_source_that_was_changed_is_refused(fails: Run, killed: tuple[Path, Path]) -> None:
    source, store = killed
    with source.open("a") as file:
        file.write("1 2\n")
    cause = fails(2, "import", source, "-o", store, "--resume")
    assert cause.endswith(f"graph.zarr.unfinished is left of cannot go on: {source} was changed.")


def test_another_order_is_refused(fails: Run, killed: tuple[Path, Path]) -> None:
    source, store = killed
    cause = fails(2, "import", source, "-o", store, "--resume", "--order", "degree")
    assert cause.endswith("cannot go on: order was keep and is degree.")


@pytest.mark.long
def test_what_is_left_is_reported_without_resume(oocpr_command: Run, killed: tuple[Path, Path]) -> None:
    source, store = killed
    outcome = oocpr_command("import", source, "-o", store)
    assert outcome.code == 0
    left = f"{store}.unfinished"
    said = r"note: An interrupted import has left \S+ MiB; continue it with --resume, or "
    assert re.fullmatch(said + f"remove it with: rm -r {re.escape(left)}\n", outcome.err)
    shutil.rmtree(store)
    assert oocpr_command("import", source, "-o", store, "--resume").code == 0


def test_standard_input_cannot_be_resumed(fails: Run, tmp_path: Path) -> None:
    cause = fails(2, "import", "-", "--format", "text", "-o", tmp_path / "graph.zarr", "--resume")
    assert cause == "An import of stdin cannot be resumed: nobody can tell whether it has changed."


@pytest.mark.long
def test_from_python_it_is_among_the_notices(killed: tuple[Path, Path]) -> None:
    graph = oocpr.import_graph(*killed, resume=True)
    [notice] = graph.notices
    assert notice.startswith("Going on with an import that was interrupted: ")
    shutil.rmtree(killed[1])
    assert oocpr.import_graph(*killed, resume=True).notices == [
        "Nothing to resume: the import starts from the beginning."
    ]


def test_a_run_whose_time_is_up_is_kept_and_goes_on(oocpr_command: Run, tmp_path: Path) -> None:
    oocpr.import_graph(Rmat(12), tmp_path / "graph.zarr")
    place = tmp_path / "kept"
    run = ("rank", tmp_path / "graph.zarr", "--method", "mixed")
    whole = oocpr_command(*run, "-o", tmp_path / "whole.csv")
    assert whole.code == 0
    kept = (*run, "-o", tmp_path / "ranks.csv", "--checkpoint", place)
    stopped = oocpr_command(*kept, "--time-limit", "4 fortnights")
    assert (stopped.code, stopped.err.count("\n")) == (2, 2)
    stopped = oocpr_command(*kept, "--time-limit", "1e-6s")
    assert stopped.code == 130
    cause, remedy = stopped.err.splitlines()[-2:]
    assert cause.startswith(
        "error: the run was stopped after pass 1: its time limit of 0.001 ms leaves no room"
    )
    assert remedy == f"remedy: {place} has the run after pass 1: give --resume to go on."
    assert not (tmp_path / "ranks.csv").exists()
    few = oocpr_command(*kept, "--resume", "--max-passes", 3)
    assert few.code == 3
    assert f"note: {place} has the run after pass 3: give --resume to go on." in few.err
    assert oocpr_command(*kept).code == 2
    done = oocpr_command(*kept, "--resume")
    assert done.code == 0
    assert (tmp_path / "ranks.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert not place.exists()
