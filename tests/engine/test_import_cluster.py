"""Imports over the workers of a real cluster of processes: the store of this process, byte for byte."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import oocpr
from oocpr.engine.executors import dask_import
from oocpr.engine.executors.dask_import import DaskSortEncodeService
from oocpr.errors import LostError, SetupError, UsageError
from oocpr.ingest.build import build_store
from oocpr.sources import open_source
from oocpr.store.codec.tiles import encode_tile

from .running import PLENTY

MIB = 1 << 20
IDS = np.random.default_rng(4).integers(0, 5000, (2, 60_000))


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        yield client


def scaled(client: Client, workers: int) -> Client:
    """The client, once its cluster has so many workers."""
    client.cluster.scale(workers)
    begun = time.monotonic()
    while len(client.nthreads()) != workers:
        assert time.monotonic() - begun < 60, "the cluster does not come to its size"
        time.sleep(0.02)
    return client


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def build(
    path: Path, hands: DaskSortEncodeService | None, source: Any = tuple(IDS), **ways: Any
) -> dict[str, bytes]:
    """Import in many small buckets, unless `ways` say otherwise, and read the store."""
    build_store(open_source(source), path, service=hands, **{"memory": PLENTY, "bucket_edges": 5000, **ways})
    return contents(path)


@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 2])
def test_any_number_of_workers_makes_the_bytes_of_this_process(client, tmp_path, workers):
    hands = DaskSortEncodeService(scaled(client, workers))
    assert hands.workers == 2 * workers
    for number, ways in enumerate(
        (
            {},
            {"order": "degree"},
            {"tile_edges": 1000, "order": "degree"},
            {"tile_edges": 1 << 20},
            {"bucket_edges": None},
        )
    ):
        own = build(tmp_path / f"own{number}", None, **ways)
        assert build(tmp_path / f"cluster{number}", hands, **ways) == own


@pytest.mark.long
def test_names_and_graphs_without_links_make_the_bytes_of_this_process(client, tmp_path):
    names = tmp_path / "names.tsv"
    names.write_text("".join(f"page-{src}\tpage-{dst}\n" for src, dst in IDS.T[:3000]))
    none = tmp_path / "none.mtx"
    none.write_text("%%MatrixMarket matrix coordinate pattern general\n3 3 0\n")
    for source in (names, none):
        for order in ("keep", "degree"):
            own, theirs = (tmp_path / f"{source.stem}-{order}-{who}" for who in ("own", "theirs"))
            oocpr.import_graph(source, own, order=order)
            oocpr.import_graph(source, theirs, order=order, client=client)
            assert contents(theirs) == contents(own)


def test_workers_add_edges_to_the_bytes_of_this_process(client, tmp_path):
    oocpr.import_graph(tuple(IDS[:, :50_000]), tmp_path / "old")
    for path, helper in (("own", None), ("theirs", client)):
        oocpr.append(tmp_path / "old", tuple(IDS[:, 50_000:]), tmp_path / path, client=helper)
    assert contents(tmp_path / "theirs") == contents(tmp_path / "own")


@pytest.mark.long
def test_a_data_frame_of_the_cluster_comes_partition_by_partition(client, tmp_path):
    frames = pytest.importorskip("dask.dataframe")
    scaled(client, 2)
    folder = str(tmp_path / "made")
    Path(folder).mkdir()

    # Local, so that it travels by value: workers know this package and not its tests.
    def part(k: int) -> Any:
        import os
        import time
        from pathlib import Path

        import numpy as np
        import pandas as pd

        begun = time.time()
        ids = np.random.default_rng(k).integers(0, 500, (2000, 2))
        time.sleep(0.02)
        Path(folder, str(k)).write_text(f"{os.getpid()} {begun} {time.time()}")
        return pd.DataFrame(ids, columns=["from", "to"])

    frame = frames.from_map(part, range(5), meta=part(0).iloc[:0])
    oocpr.import_graph(frame, tmp_path / "theirs", client=client)
    told = [Path(folder, str(k)).read_text().split() for k in range(5)]
    assert {int(process) for process, *_ in told} <= set(client.run(os.getpid).values())
    assert all(float(ended) <= float(begun) for (_, _, ended), (_, begun, _) in pairwise(told))
    oocpr.import_graph(frame.compute(), tmp_path / "own")
    assert contents(tmp_path / "theirs") == contents(tmp_path / "own")


@given(
    st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=50),
    st.lists(st.sets(st.integers(0, 2**32 - 1), max_size=50), min_size=1, max_size=20),
)
@settings(max_examples=10)
def test_workers_sort_and_encode_anything(client, values, rows):
    hands = DaskSortEncodeService(client)
    keys = np.array(values, np.uint64)
    hands.sort(keys)
    assert keys.tolist() == sorted(values)
    columns = np.array([column for row in rows for column in sorted(row)], np.uint32)
    lengths = np.array([len(row) for row in rows], np.uint32)
    assert hands.encode(columns, lengths).tobytes() == encode_tile(columns, lengths)


@pytest.mark.long
def test_the_scheduler_sees_no_data_and_workers_keep_none(client, tmp_path):
    scaled(client, 2)
    sizes: list[int] = []

    class Watched(DaskSortEncodeService):
        def encode(self, columns: NDArray[np.uint32], lengths: NDArray[np.uint32]) -> NDArray[np.uint8]:
            coded = super().encode(columns, lengths)
            tasks = list(client.cluster.scheduler.tasks.values())
            sizes.extend(len(pickle.dumps(task.run_spec)) for task in tasks)
            return coded

    build(tmp_path / "g", Watched(client), tile_edges=5000)
    assert len(sizes) > 10
    assert max(sizes) < 4000 < 5000 * 4
    begun = time.monotonic()
    while any(client.has_what().values()):
        assert time.monotonic() - begun < 10, "workers still hold data of the import"
        time.sleep(0.02)


def test_what_a_worker_raises_is_raised_here(client):
    with pytest.raises(UsageError, match="segment 0 are not strictly ascending"):
        DaskSortEncodeService(client).encode(np.array([2, 1], np.uint32), np.array([2], np.uint32))


@pytest.mark.long
def test_workers_of_another_version_are_refused(client, tmp_path):
    # Local, so that it travels by value.
    def become(version: str) -> None:
        import oocpr.version

        oocpr.version.__version__ = version

    client.run(become, "0.0.1")
    try:
        with pytest.raises(SetupError, match=r"has no oocpr .* but answers '0\.0\.1'"):
            oocpr.import_graph(tuple(IDS), tmp_path / "g", client=client)
    finally:
        client.run(become, oocpr.__version__)


PEAK = """
    import sys
    from pathlib import Path

    from distributed import Client, LocalCluster

    from oocpr.engine.executors.dask_import import DaskSortEncodeService
    from oocpr.system import resident
    from oocpr.ingest.build import build_store
    from oocpr.sources.rmat import Rmat

    path, workers, scale, spare, tile_edges = sys.argv[1], *map(int, sys.argv[2:])
    with (
        LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        hands = DaskSortEncodeService(client)
        build_store(Rmat(5), path, memory=1 << 33, service=hands)
        Path("/proc/self/clear_refs").write_text("5")
        memory = resident() + spare
        facts = build_store(
            Rmat(scale), path, memory=memory, overwrite=True, service=hands, tile_edges=tile_edges
        )
        status = dict(line.split(":", 1) for line in open("/proc/self/status"))
        print(memory, int(status["VmHWM"].split()[0]) << 10, facts.edges + facts.duplicates, sep=",")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "scale", "spare", "tile_edges"),
    [(1, 19, 50, 1 << 17), (2, 19, 60, 1 << 17), (2, 20, 200, 1 << 20), (4, 19, 80, 1 << 17)],
)
def test_peak_memory_of_this_process_stays_in_its_budget(tmp_path, workers, scale, spare, tile_edges):
    program = tmp_path / "peak.py"
    # Workers load the program again under another name.
    program.write_text('if __name__ == "__main__":\n' + PEAK)
    numbers = map(str, (workers, scale, spare * MIB, tile_edges))
    run = subprocess.run(
        [sys.executable, program, tmp_path / "g.zarr", *numbers], check=True, capture_output=True, text=True
    )
    memory, peak, edges = map(int, run.stdout.split(","))
    assert edges == 16 << scale
    assert peak <= memory, (peak - memory) >> 20


def test_a_client_without_workers_is_refused(tmp_path):
    with (
        LocalCluster(n_workers=0, dashboard_address=":0") as cluster,
        Client(cluster) as client,
        pytest.raises(UsageError, match="no workers"),
    ):
        oocpr.import_graph(tuple(IDS), tmp_path / "g", client=client)
    assert list(tmp_path.iterdir()) == []


def killing(client: Client, times: int) -> Any:
    """What a progress function does that kills a worker, so many times, while tiles are written."""
    left = [times]

    def kill(stage: str, done: int, total: int, unit: str) -> None:
        if stage == "writing" and left[0] and done > total * (times - left[0] + 1) / (times + 2):
            left[0] -= 1
            os.kill(max(client.run(os.getpid).values()), signal.SIGKILL)

    return kill


# Last, since the cluster needs a while to replace the workers.
@pytest.mark.parametrize("times", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_workers_that_are_killed_change_no_byte(client, tmp_path, monkeypatch, times):
    monkeypatch.setattr(dask_import, "CHECK_INTERVAL", 0.5)
    own = build(tmp_path / "own", None, tile_edges=1000)
    hands = DaskSortEncodeService(scaled(client, 2))
    theirs = build(tmp_path / "theirs", hands, tile_edges=1000, progress=killing(client, times))
    assert theirs == own


@pytest.mark.long
def test_an_import_ends_when_all_workers_are_gone(client, tmp_path, monkeypatch):
    monkeypatch.setattr(dask_import, "CHECK_INTERVAL", 0.5)
    monkeypatch.setattr(dask_import, "RETURN_TIMEOUT", 1.0)
    hands = DaskSortEncodeService(scaled(client, 2))
    kill = killing(client, 1)

    def lose(stage: str, *rest: Any) -> None:
        if stage == "writing":
            client.cluster.scale(0)
        kill(stage, *rest)

    with pytest.raises(LostError, match="lost"):
        build(tmp_path / "g", hands, tile_edges=1000, progress=lose)
    assert list(tmp_path.iterdir()) == []
