"""Runs that are kept and go on, against runs that were never stopped."""

from __future__ import annotations

import importlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c
from distributed import Client, LocalCluster

import oocpr
from oocpr.engine.checkpoint import open_checkpoints
from oocpr.errors import DamagedError, StoppedError, UsageError
from oocpr.store.checkpoint import DOCUMENT, CheckpointFolder

from .digraphs import random_digraph
from .running import build
from .weighted import WeightedGraph

GRAPH = random_digraph(2000, 12_000, seed=12)
checkpoint_module = import_module("oocpr.engine.checkpoint")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A graph of many tiles."""
    folder = tmp_path_factory.mktemp("graph")
    build(oocpr.sources.open_source(GRAPH.entries), folder / "g.zarr", 1400)
    return str(folder / "g.zarr")


def bits(ranks: oocpr.Ranks) -> tuple[bytes, list[float]]:
    """Ranks, and the residual after each pass."""
    return ranks.to_numpy().tobytes(), [record.residual for record in ranks.history]


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize(
    "how",
    [
        {"method": "mixed"},
        {"method": "mixed", "stripes": 3, "reads": "bits8"},
        {"method": "residual", "stripes": 2},
        {"method": "power", "dangling": "weakly"},
        {"method": "mixed", "personalization": {0: 1.0, 7: 2.0}, "start": {3: 1.0}},
    ],
    ids=str,
)
def test_a_run_that_stops_after_any_pass_goes_on_to_the_same_bits(
    path: str, tmp_path: Path, device: str, how: dict[str, Any]
) -> None:
    how = how | {"device": device, "memory": "2GiB", "tol": 1e-12}
    whole = oocpr.pagerank(path, **how)
    assert whole.converged
    place = tmp_path / "kept"
    for stop in (1, 2, 5, len(whole.history) - 1):
        stopped = oocpr.pagerank(path, **how, checkpoint=place, max_passes=stop)
        assert not stopped.converged
        again = oocpr.pagerank(path, **how, checkpoint=place, resume=True, threads=1)
        assert bits(again) == bits(whole)
        assert again.error_bound == whole.error_bound
        assert not place.exists()


def test_weights_are_kept_too(tmp_path: Path) -> None:
    WeightedGraph.of(GRAPH, 0.5).write(tmp_path / "w.zarr", 900)
    whole = oocpr.pagerank(tmp_path / "w.zarr", method="mixed", stripes=2)
    oocpr.pagerank(tmp_path / "w.zarr", method="mixed", stripes=2, checkpoint=tmp_path / "kept", max_passes=4)
    again = oocpr.pagerank(tmp_path / "w.zarr", method="mixed", checkpoint=tmp_path / "kept", resume=True)
    assert bits(again) == bits(whole)


def test_a_run_that_was_good_enough_goes_on_to_a_smaller_error(path: str, tmp_path: Path) -> None:
    place, how = tmp_path / "kept", {"method": "mixed"}
    whole = oocpr.pagerank(path, tol=1e-12, **how)
    with open_checkpoints(place, resume=False) as kept:
        first = oocpr.pagerank(path, tol=1e-300 + 1e-6, checkpoint=kept, max_passes=3, **how)
        assert kept.number == len(first.history)
    assert bits(oocpr.pagerank(path, tol=1e-12, checkpoint=place, resume=True, **how)) == bits(whole)


def test_nothing_to_go_on_from_is_a_run_from_the_beginning(path: str, tmp_path: Path) -> None:
    found = oocpr.pagerank(path, method="mixed", checkpoint=tmp_path / "kept", resume=True)
    assert bits(found) == bits(oocpr.pagerank(path, method="mixed"))


class Killed(BaseException):
    """What ends a process, as far as this one can."""


@pytest.mark.parametrize("name", ["write_arrays", "publish", "remove_passes"])
@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
def test_what_ends_while_it_is_kept_leaves_the_last_checkpoint(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, late: bool
) -> None:
    whole = oocpr.pagerank(path, method="mixed", stripes=2)
    work, calls, at = getattr(CheckpointFolder, name), 0, 0

    def failing(*args: Any, **how: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at and not late:
            raise Killed
        result = work(*args, **how)
        if calls == at:
            raise Killed
        return result

    place = tmp_path / "kept"
    for call in (1, 2, 5):
        calls, at = 0, call
        with monkeypatch.context() as patched:
            patched.setattr(checkpoint_module, "INTERVAL", 0)
            patched.setattr(CheckpointFolder, name, failing)
            with pytest.raises(Killed):
                oocpr.pagerank(path, method="mixed", stripes=2, checkpoint=place)
        assert bits(oocpr.pagerank(path, method="mixed", stripes=2, checkpoint=place, resume=True)) == bits(
            whole
        )
        assert not place.exists()


KILLED = """
import sys
import oocpr, oocpr.engine.checkpoint
oocpr.engine.checkpoint.INTERVAL = 0
ranks = oocpr.pagerank(sys.argv[1], method="mixed", stripes=2, tol=1e-12, checkpoint=sys.argv[2], resume=True)
sys.stdout.buffer.write(ranks.to_numpy().tobytes())
"""


@pytest.mark.long
def test_a_process_that_is_killed_again_and_again_comes_to_the_same_bits(path: str, tmp_path: Path) -> None:
    whole = oocpr.pagerank(path, method="mixed", stripes=2, tol=1e-12)
    words, place = [sys.executable, "-c", KILLED, path, str(tmp_path / "kept")], tmp_path / "kept" / DOCUMENT
    killed = 0
    for _ in range(6):
        before = place.read_bytes() if place.exists() else b""
        process = subprocess.Popen(words, stdout=subprocess.PIPE)
        while process.poll() is None and (not place.exists() or place.read_bytes() == before):
            time.sleep(0.001)
        process.kill()
        killed += process.wait() == -signal.SIGKILL
        process.communicate()
    assert killed >= 3
    done = subprocess.run(words, capture_output=True, check=True)
    assert done.stdout == whole.to_numpy().tobytes()
    assert not place.exists()


def test_a_time_limit_ends_a_run_that_is_kept(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    def tick() -> float:
        nonlocal now
        now += 10
        return now

    monkeypatch.setattr(checkpoint_module.time, "monotonic", tick)
    with pytest.raises(StoppedError, match="time limit of 45 s leaves no room"):
        oocpr.pagerank(path, method="mixed", checkpoint=tmp_path / "kept", time_limit="45s")
    monkeypatch.undo()
    again = oocpr.pagerank(path, method="mixed", checkpoint=tmp_path / "kept", resume=True)
    assert bits(again) == bits(oocpr.pagerank(path, method="mixed"))


@pytest.mark.parametrize("seconds", [5e-05, 1e-9])
def test_a_time_limit_below_that_of_any_pass_ends_the_run_after_the_first(
    path: str, tmp_path: Path, seconds: float
) -> None:
    with pytest.raises(StoppedError, match="after pass 1: its time limit of "):
        oocpr.pagerank(path, method="mixed", checkpoint=tmp_path / "kept", time_limit=seconds)


def test_a_signal_ends_the_run_after_its_pass(path: str, tmp_path: Path) -> None:
    place = tmp_path / "kept"

    def stop(what: str, done: int, *_: object) -> None:
        if what == "ranking" and done == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt) as raised:
        oocpr.pagerank(path, method="mixed", checkpoint=place, progress=stop)
    assert raised.value.__notes__ == [f"{place} has the run after pass 3: give resume=True to go on."]
    assert signal.getsignal(signal.SIGTERM) == before
    again = oocpr.pagerank(path, method="mixed", checkpoint=place, resume=True)
    assert bits(again) == bits(oocpr.pagerank(path, method="mixed"))


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("damping", {"damping": 0.9}),
        ("reads", {"reads": "bits8"}),
        ("dangling", {"dangling": "weakly"}),
        ("personalization", {"personalization": {1: 1.0}}),
        ("stripes", {"stripes": 3}),
        ("method", {"method": "residual"}),
        ("device", {"device": "reference"}),
    ],
)
def test_a_checkpoint_of_another_run_is_refused_by_name(
    path: str, tmp_path: Path, name: str, how: dict[str, Any]
) -> None:
    place = tmp_path / "kept"
    usual: dict[str, Any] = {"method": "mixed", "stripes": 2}
    oocpr.pagerank(path, **usual, checkpoint=place, max_passes=2)
    with pytest.raises(UsageError, match=f"is of a run with {name} "):
        oocpr.pagerank(path, **usual | how, checkpoint=place, resume=True)
    again = oocpr.pagerank(path, **usual, checkpoint=place, resume=True)
    assert bits(again) == bits(oocpr.pagerank(path, **usual))


def test_a_checkpoint_of_stripes_that_exchanged_less_is_refused(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for stripes in (1, 2):
        place = tmp_path / f"kept {stripes}"
        how: dict[str, Any] = {"method": "mixed", "stripes": stripes, "checkpoint": place}
        with monkeypatch.context() as context:
            context.setattr(importlib.import_module("oocpr.plan.plan"), "MAX_SECTIONS", 1)
            oocpr.pagerank(path, **how, max_passes=2)
        if stripes == 1:
            assert oocpr.pagerank(path, **how, resume=True).run.converged
            continue
        with pytest.raises(UsageError, match="is of a run with exchanges 1, and this one has"):
            oocpr.pagerank(path, **how, resume=True)


def test_a_checkpoint_of_another_graph_is_refused(path: str, tmp_path: Path) -> None:
    oocpr.pagerank(path, method="mixed", checkpoint=tmp_path / "kept", max_passes=2)
    build(oocpr.sources.open_source(random_digraph(2000, 12_000, seed=13).entries), tmp_path / "o.zarr", 1400)
    with pytest.raises(UsageError, match="is of a run with graph "):
        oocpr.pagerank(tmp_path / "o.zarr", method="mixed", checkpoint=tmp_path / "kept", resume=True)


def test_what_cannot_be_is_refused(path: str, tmp_path: Path) -> None:
    place = tmp_path / "kept"
    for how, cause in (
        ({"resume": True}, "is to go on and has no checkpoint"),
        ({"time_limit": "4h"}, "has a time limit and has no checkpoint"),
        ({"checkpoint": place, "time_limit": "4 fortnights"}, "'4 fortnights', no time"),
        ({"checkpoint": place, "method": "components"}, "method components is not kept"),
        ({"checkpoint": tmp_path / ("no" * 200)}, "checkpoint is a PosixPath, too long for the name of"),
        ({"checkpoint": Path(path, "zarr.json", "kept")}, "cannot be written"),
    ):
        with pytest.raises(UsageError, match=cause):
            oocpr.pagerank(path, **how)
    oocpr.pagerank(path, method="mixed", checkpoint=place, max_passes=2)
    with pytest.raises(UsageError, match="has the checkpoint of a run after pass 2"):
        oocpr.pagerank(path, method="mixed", checkpoint=place)
    with open_checkpoints(place, resume=True) as kept:
        kept.unfinished = True
        with pytest.raises(UsageError, match="another run writes its checkpoints"):
            oocpr.pagerank(path, method="mixed", checkpoint=place, resume=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(UsageError, match=r"thesis\.tex, which is no part of a checkpoint"):
        oocpr.pagerank(path, checkpoint=tmp_path / "mine")


def test_damage_is_found(path: str, tmp_path: Path) -> None:
    place, how = tmp_path / "kept", {"method": "mixed", "stripes": 2}
    oocpr.pagerank(path, **how, checkpoint=place, max_passes=2)
    arrays = sorted(place.rglob("c/*"))
    assert len(arrays) == 2 * len(list((place / "pass-2" / "stripe-0").glob("*/zarr.json")))
    for file in [arrays[0], arrays[-1], *place.rglob("residual/zarr.json"), place / DOCUMENT]:
        sound = file.read_bytes()
        changed = [] if file.name == "zarr.json" else [sound[:-9] + bytes([sound[-9] ^ 1]) + sound[-8:]]
        for damaged in (sound[:-3], b"", *changed):
            file.write_bytes(damaged)
            with pytest.raises(DamagedError):
                oocpr.pagerank(path, **how, checkpoint=place, resume=True)
        file.write_bytes(sound)
    facts = json.loads(json.loads((place / DOCUMENT).read_text())["facts"])
    assert facts["pass"] == 2
    assert bits(oocpr.pagerank(path, **how, checkpoint=place, resume=True)) == bits(
        oocpr.pagerank(path, **how)
    )


def test_arrays_of_another_pass_or_name_are_found(path: str, tmp_path: Path) -> None:
    place, how = tmp_path / "kept", {"method": "mixed", "stripes": 2}
    chunks = {}
    for number in (3, 4):
        oocpr.pagerank(path, **how, checkpoint=place, resume=number > 3, max_passes=number)
        for chunk in place.glob(f"pass-{number}/stripe-*/*/c/0"):
            chunks[number, chunk.parts[-4], chunk.parts[-3]] = chunk.read_bytes()
    names = [name for number, stripe, name in chunks if (number, stripe) == (4, "stripe-0")]
    assert {"ranks", "residual", "proposal", "change-0", "step-0"} <= set(names)
    last = place / "pass-4" / "stripe-0"
    # A chunk has a checksum of its own, so that each of these is sound by itself.
    mixtures = [
        *({name: chunks[3, "stripe-0", name]} for name in ("ranks", "residual", "proposal")),
        *({a: chunks[4, "stripe-0", b], b: chunks[4, "stripe-0", a]}
          for a, b in (("ranks", "residual"), ("change-0", "step-0"), ("change-0", "change-1"))),
        {name: chunks[3, "stripe-0", name] for name in ("ranks", "residual", "proposal")},
    ]  # fmt: skip
    for mixture in mixtures:
        for name, content in mixture.items():
            (last / name / "c" / "0").write_bytes(content)
        with pytest.raises(DamagedError, match="pass-4/stripe-0 has arrays that were not written there"):
            oocpr.pagerank(path, **how, checkpoint=place, resume=True)
        for name in mixture:
            (last / name / "c" / "0").write_bytes(chunks[4, "stripe-0", name])
    again = oocpr.pagerank(path, **how, checkpoint=place, resume=True)
    assert bits(again) == bits(oocpr.pagerank(path, **how))


def test_checkpoints_of_an_earlier_format_are_refused(path: str, tmp_path: Path) -> None:
    place = tmp_path / "kept"
    oocpr.pagerank(path, method="mixed", checkpoint=place, max_passes=2)
    text = json.loads((place / DOCUMENT).read_text())["facts"].replace('"format": 2', '"format": 1')
    (place / DOCUMENT).write_text(json.dumps({"facts": text, "crc32c": crc32c(text.encode())}))
    with pytest.raises(UsageError, match=r"has a checkpoint of format 1, and this version has 2\."):
        oocpr.pagerank(path, method="mixed", checkpoint=place, resume=True)


def test_checkpoints_may_lie_behind_a_url(path: str) -> None:
    place = "memory://runs/kept"
    oocpr.pagerank(path, method="mixed", stripes=2, checkpoint=place, max_passes=3)
    assert CheckpointFolder(place).read() is not None
    again = oocpr.pagerank(path, method="mixed", checkpoint=place, resume=True)
    assert bits(again) == bits(oocpr.pagerank(path, method="mixed", stripes=2))
    assert CheckpointFolder(place).read() is None


@pytest.mark.long
def test_runs_go_on_with_and_without_workers(path: str, tmp_path: Path) -> None:
    place, how = tmp_path / "kept", {"method": "mixed", "stripes": 3}
    whole = bits(oocpr.pagerank(path, **how))
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as two,
    ):
        oocpr.pagerank(path, **how, client=two, checkpoint=place, max_passes=3)
        assert bits(oocpr.pagerank(path, **how, checkpoint=place, resume=True)) == whole
        oocpr.pagerank(path, **how, checkpoint=place, max_passes=3)
        again = oocpr.pagerank(path, method="mixed", client=two, checkpoint=place, resume=True)
        assert bits(again) == whole


@pytest.mark.long
def test_stripes_by_speed_are_those_that_a_run_goes_on_with(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe, place = import_module("oocpr.engine.probe.workers"), tmp_path / "kept"
    monkeypatch.setattr(probe, "MIN_EDGES", 0)
    measured: list[list[float]] = []

    def speeds(*asked: Any) -> list[float]:
        measured.append(original(*asked))
        return [1.0, 0.25]

    original = probe.worker_speeds
    monkeypatch.setattr(probe, "worker_speeds", speeds)
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as two,
    ):
        whole = oocpr.pagerank(path, method="mixed", client=two)
        oocpr.pagerank(path, method="mixed", client=two, checkpoint=place, max_passes=3)
        kept = CheckpointFolder(str(place)).read()
        assert kept is not None
        tiles = oocpr.open_graph(path).store.tiles
        assert kept["run"]["first tiles"] == [0, round(tiles * 0.8)]
        with pytest.raises(UsageError, match="is of a run with stripes"):
            oocpr.pagerank(path, method="mixed", stripes=2, checkpoint=place, resume=True)
        again = oocpr.pagerank(path, method="mixed", checkpoint=place, resume=True)
        assert [len(found) for found in measured] == [2, 2]
        assert all(0 < rate < math.inf for found in measured for rate in found)
        # Stripes that somebody counts are alike.
        oocpr.pagerank(path, method="mixed", stripes=2, client=two)
        assert len(measured) == 2
    assert bits(again) == bits(whole)
    assert bits(whole) != bits(oocpr.pagerank(path, method="mixed", stripes=2))


@pytest.mark.long
def test_workers_that_are_killed_or_stopped_cost_a_kept_run_nothing_but_time(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    how: dict[str, Any] = {"method": "mixed", "stripes": 3, "tol": 1e-12}
    whole = bits(oocpr.pagerank(path, **how))
    monkeypatch.setattr(checkpoint_module, "INTERVAL", 0)
    for name, seconds in (("CHECK_INTERVAL", 0.5), ("EPOCH_SECONDS", 0)):
        monkeypatch.setattr(import_module("oocpr.engine.executors.dask"), name, seconds)
    monkeypatch.setattr(import_module("oocpr.engine.executors.dask_client"), "SILENT_TIMEOUT", 4)
    left, hit = {3: signal.SIGKILL, 6: signal.SIGSTOP}, list[int]()

    def kill(what: str, done: int, *_: object) -> None:
        if what == "ranking" and done in left:
            hit.append(max(client.run(os.getpid).values()))
            os.kill(hit[-1], left.pop(done))

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        found = oocpr.pagerank(path, **how, client=client, checkpoint=tmp_path / "kept", progress=kill)
        # The cluster would wait for it.
        os.kill(hit[-1], signal.SIGKILL)
    assert not left
    assert bits(found) == whole
    assert not (tmp_path / "kept").exists()
