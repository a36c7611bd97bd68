"""Imports by the workers of a real cluster of processes: the store of one process, byte for byte."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client, LocalCluster
from hypothesis import given, settings
from hypothesis import strategies as st
from tornado.iostream import IOStream

import oocpr
from oocpr.engine.executors import dask_import
from oocpr.errors import (
    DoesNotFitError,
    InputError,
    LostError,
    SetupError,
    UsageError,
)
from oocpr.ingest import budget
from oocpr.sources import base
from oocpr.sources.rmat import Rmat

from .importing import IDS, contents, killing, scaled, write_lines, write_names

pytestmark = pytest.mark.usefixtures("small_parts")

MIB = 1 << 20


def same_store(
    client: Client, folder: Path, source: Any, *, alone: str | None = None, **ways: Any
) -> dict[str, bytes]:
    """Import by one process and by workers, and compare; `alone` is why workers cannot, None if they do."""
    own = oocpr.import_graph(source, folder / "own", **ways)
    theirs = oocpr.import_graph(source, folder / "theirs", client=client, **ways)
    said = [] if alone is None else [f"This process imports alone, without workers: {alone}"]
    assert theirs.notices == said + own.notices
    made = contents(folder / "theirs")
    assert made == contents(folder / "own")
    assert sorted(path.name for path in folder.iterdir() if path.suffix != ".txt") == ["own", "theirs"]
    return made


edges = st.lists(
    st.tuples(st.integers(0, 90), st.one_of(st.just(7), st.integers(0, 90)), st.floats(0, 1e9)),
    min_size=1,
    max_size=300,
)


@given(
    edges=edges,
    gap=st.sampled_from([1, 1000, 2**18]),
    order=st.sampled_from(["keep", "degree"]),
    how=st.sampled_from([{}, {"duplicates": "count"}, {"weight": 3}, {"weight": 3, "duplicates": "merge"}]),
    turn=st.sampled_from([{}, {"undirected": True}, {"reverse": True}]),
)
@settings(max_examples=8)
def test_workers_make_the_store_of_one_process(client, tmp_path_factory, edges, gap, order, how, turn):
    folder = tmp_path_factory.mktemp("property")
    src, dst, weights = zip(*edges, strict=True)
    columns = [[gap * k for k in src], [gap * k for k in dst], weights]
    source = write_lines(folder / "edges.txt", *columns[: 3 if "weight" in how else 2])
    same_store(client, folder, source, order=order, **turn, **how)


@pytest.mark.long
@given(
    edges=edges,
    kind=st.sampled_from(["names", "wide", "negative", "wide at last"]),
    order=st.sampled_from(["keep", "degree"]),
    how=st.sampled_from([{}, {"duplicates": "count"}, {"weight": 3}]),
    turn=st.sampled_from([{}, {"undirected": True}, {"reverse": True}]),
)
@settings(max_examples=12)
def test_workers_number_nodes_as_one_process_does(client, tmp_path_factory, edges, kind, order, how, turn):
    folder = tmp_path_factory.mktemp("numbering")
    src, dst, weights = zip(*edges, strict=True)
    name = {
        "names": lambda k: f"Seite {chr(ord('a') + k % 26) * (k % 3)} {k}",
        "wide": lambda k: k * 2**40,
        "negative": lambda k: 7 - k,
        "wide at last": lambda k: 2**33 if k == dst[-1] else k,
    }[kind]
    columns = [[name(k) for k in src], [name(k) for k in dst], weights]
    separator = "\t" if kind == "names" else " "
    lines = zip(*columns[: 3 if "weight" in how else 2], strict=True)
    source = folder / "edges.txt"
    source.write_text("".join(separator.join(map(str, line)) + "\n" for line in lines))
    if kind == "names":
        how = how | {"format": "names"}
    same_store(client, folder, source, order=order, **turn, **how)


@pytest.mark.long
@pytest.mark.parametrize("order", ["keep", "degree"])
def test_many_names_go_from_worker_to_worker(client, tmp_path, order):
    same_store(client, tmp_path, write_names(tmp_path / "names.tsv.txt"), order=order, format="names")


SHARED_PROCESS = """
import sys

import oocpr
from distributed import Client, LocalCluster
from oocpr.ingest import budget
from oocpr.sources import base

base.MIN_PART_BYTES, budget.MIN_BUCKET_EDGES = 64, 16
first, more, names, folder = sys.argv[1:]
with (
    LocalCluster(
        n_workers=3, threads_per_worker=1, processes=False, dashboard_address=":0"
    ) as cluster,
    Client(cluster) as client,
):
    oocpr.import_graph(first, f"{folder}/first", client=client)
    oocpr.append(f"{folder}/first", more, f"{folder}/grown", client=client)
    oocpr.import_graph(names, f"{folder}/named", format="names", client=client)
"""


def test_workers_may_share_a_process(tmp_path):
    first, more = (
        write_lines(tmp_path / name, *ids) for name, ids in (("1.txt", IDS), ("2.txt", IDS[:, ::-3] + 1))
    )
    names = write_names(tmp_path / "names.txt")
    # In a process of its own: such workers close files as they are freed, which would be a warning here.
    words = [sys.executable, "-c", SHARED_PROCESS, first, more, names, tmp_path / "theirs"]
    (tmp_path / "theirs").mkdir()
    subprocess.run(words, check=True)
    oocpr.import_graph(first, tmp_path / "own" / "first")
    oocpr.import_graph([first, more], tmp_path / "own" / "grown")
    oocpr.import_graph(names, tmp_path / "own" / "named", format="names")
    assert contents(tmp_path / "theirs") == contents(tmp_path / "own")


def test_nodes_with_names_and_nodes_with_numbers_are_refused(client, tmp_path):
    folder = tmp_path / "tables.txt"
    folder.mkdir()
    for k, names in enumerate(([1, 2, 3], ["a", "b", "c"])):
        pq.write_table(pa.table({"src": names, "dst": names[::-1]}), folder / f"{k}.parquet")
    errors = []
    for helper in (None, client):
        with pytest.raises(InputError) as caught:
            oocpr.import_graph(folder, tmp_path / "g", client=helper)
        errors.append(str(caught.value))
    assert errors[0] == errors[1]


@pytest.mark.parametrize("tile_edges", [1000, pytest.param(1 << 20, marks=pytest.mark.long)])
@pytest.mark.parametrize("order", ["keep", pytest.param("degree", marks=pytest.mark.long)])
def test_tiles_go_over_the_borders_of_ranges(client, tmp_path, monkeypatch, tile_edges, order):
    monkeypatch.setattr(budget, "tile_edges_for", lambda _: tile_edges)
    made = same_store(client, tmp_path, write_lines(tmp_path / "edges.txt", *IDS), order=order)
    tiles = [name for name in made if name.startswith("in_edges/indices/c/")]
    assert len(tiles) == -(-len(np.unique(IDS, axis=1)[0]) // tile_edges)
    assert "node_ids/zarr.json" in made


@pytest.mark.long
def test_files_and_row_groups_are_parts(client, tmp_path):
    folder = tmp_path / "tables.txt"
    folder.mkdir()
    for k, ids in enumerate(np.array_split(IDS, 5, axis=1)):
        table = pa.table({"src": ids[0], "dst": ids[1], "kg": np.arange(ids.shape[1]) % 10})
        pq.write_table(table, folder / f"{k}.parquet", row_group_size=3000)
    same_store(client, tmp_path, folder, weight="kg")
    same_store(client, tmp_path, folder, overwrite=True)


def test_a_generated_graph_is_made_by_workers(client, tmp_path):
    same_store(client, tmp_path, Rmat(10, permute=False), order="degree")


def test_what_workers_cannot_do_one_process_does_and_says_so(client, tmp_path):
    labels = tmp_path / "labels.txt"
    labels.write_text("".join(f"page-{k}\n" for k in range(15_000)))
    ids = write_lines(tmp_path / "ids.txt", *IDS[:, :300])
    none = tmp_path / "none.txt"
    none.write_text("%%MatrixMarket matrix coordinate pattern general\n3 3 0\n")
    undivided = "cannot be divided among workers."
    for k, (source, reason, ways) in enumerate(
        (
            (ids, f"ids {undivided}", {"labels": labels}),
            (tuple(IDS), f"arrays {undivided}", {}),
            (none, f"none {undivided}", {}),
            (ids, "ids is to be ordered by bfs.", {"order": "bfs"}),
        )
    ):
        folder = tmp_path / str(k)
        folder.mkdir()
        same_store(client, folder, source, alone=reason, **ways)
    resumed = oocpr.import_graph(ids, tmp_path / "resumed", client=client, resume=True)
    assert resumed.notices[0] == (
        "This process imports alone, without workers: ids is to be imported so that it can be resumed."
    )


@pytest.mark.long
def test_a_data_frame_of_the_cluster_comes_partition_by_partition(client, tmp_path):
    frames = pytest.importorskip("dask.dataframe")
    folder = str(tmp_path / "made")
    Path(folder).mkdir()

    # Local, so that it travels by value.
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
    made = oocpr.import_graph(frame, tmp_path / "theirs", client=client)
    assert made.notices[0].endswith("table cannot be divided among workers.")
    told = [Path(folder, str(k)).read_text().split() for k in range(5)]
    assert {int(process) for process, *_ in told} <= set(client.run(os.getpid).values())
    assert all(float(ended) <= float(begun) for (_, _, ended), (_, begun, _) in pairwise(told))
    oocpr.import_graph(frame.compute(), tmp_path / "own")
    assert contents(tmp_path / "theirs") == contents(tmp_path / "own")


@pytest.mark.parametrize("wrong", ["7", "1 x", "3 4 5"])
def test_a_line_that_cannot_be_read_has_its_number_in_the_file(client, tmp_path, wrong):
    source = write_lines(tmp_path / "edges.txt", *IDS[:, :2000])
    lines = source.read_text().splitlines()
    lines[1500] = wrong
    source.write_text("\n".join(lines))
    errors = []
    for helper in (None, client):
        with pytest.raises(InputError) as caught:
            oocpr.import_graph(source, tmp_path / "g", client=helper)
        errors.append(str(caught.value))
    assert "line 1501" in errors[0]
    assert errors[1] == errors[0]
    assert [path.name for path in tmp_path.iterdir()] == ["edges.txt"]


def test_this_process_sees_numbers_only_and_workers_keep_nothing(client, tmp_path, monkeypatch):
    moved = [0]

    def counting(move: Any) -> Any:
        def counted(stream: Any, data: Any) -> Any:
            size = move(stream, data)
            moved[0] += size or 0
            return size

        return counted

    for name in ("read_from_fd", "write_to_fd"):
        monkeypatch.setattr(IOStream, name, counting(getattr(IOStream, name)))
    source = write_lines(tmp_path / "edges.txt", *np.tile(IDS, 4))
    monkeypatch.setattr(base, "MIN_PART_BYTES", MIB)
    monkeypatch.setattr(budget, "MIN_BUCKET_EDGES", 40_000)
    oocpr.import_graph(source, tmp_path / "g", client=client)
    # The scheduler is in this process as well; 12 bytes of text and 8 of a key for each edge are not.
    assert 10_000 < moved[0] < 240_000 * 2
    before = moved[0]
    oocpr.append(tmp_path / "g", source, tmp_path / "new", client=client)
    assert moved[0] - before < 300_000 * 4
    begun = time.monotonic()
    while any(client.run(lambda dask_worker: len(dask_worker.state.actors)).values()):
        assert time.monotonic() - begun < 10, "workers still keep files of the import"
        time.sleep(0.02)


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


@pytest.mark.long
@pytest.mark.parametrize(
    ("mebibytes", "share", "match"), [(200, 0.6, "paused|nanny"), (1000, 0.05, "are given")]
)
def test_workers_with_too_little_memory_are_refused(tmp_path, monkeypatch, mebibytes, share, match):
    # Local, so that it travels by value.
    def take(share):
        from oocpr.engine.executors import dask_import

        dask_import.MEMORY_SHARE = share

    monkeypatch.setattr(dask_import, "SILENT_TIMEOUT", 3.0)
    source = write_lines(tmp_path / "edges.txt", *IDS)
    with (
        LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            dashboard_address=":0",
            memory_limit=mebibytes * MIB,
        ) as cluster,
        Client(cluster) as client,
    ):
        if share < 0.6:
            client.run(take, share)
        with pytest.raises(DoesNotFitError, match=match):
            oocpr.import_graph(source, tmp_path / "g", client=client)
    assert [path.name for path in tmp_path.iterdir()] == ["edges.txt"]


def test_a_client_without_workers_is_refused(tmp_path):
    with (
        LocalCluster(n_workers=0, dashboard_address=":0") as cluster,
        Client(cluster) as client,
        pytest.raises(UsageError, match="no workers"),
    ):
        oocpr.import_graph(tuple(IDS), tmp_path / "g", client=client)
    assert list(tmp_path.iterdir()) == []


PEAK = """
    import sys
    from pathlib import Path

    import oocpr
    from distributed import Client, LocalCluster
    from oocpr.sources.rmat import Rmat

    def peak():
        from oocpr.system import peak_resident
        return peak_resident()

    source, path, workers, threads, limit = *sys.argv[1:3], *map(int, sys.argv[3:])
    with (
        LocalCluster(
            n_workers=workers, threads_per_worker=threads, memory_limit=limit, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        graph = oocpr.import_graph(Rmat(int(source)), path, client=client)
        print(graph.edges, *client.run(peak).values())
"""


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "threads", "mebibytes"), [(1, 1, 512), (2, 1, 512), (1, 2, 640)])
def test_peak_memory_of_workers_stays_in_their_limits(tmp_path, workers, threads, mebibytes):
    program = tmp_path / "peak.py"
    # Workers load the program again under another name.
    program.write_text('if __name__ == "__main__":\n' + PEAK)
    run = subprocess.run(
        [
            sys.executable,
            program,
            "21",
            tmp_path / "g.zarr",
            str(workers),
            str(threads),
            str(mebibytes * MIB),
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    edges, *peaks = map(int, run.stdout.split())
    assert edges > 30_000_000
    assert max(peaks) <= 0.7 * mebibytes * MIB


# Last, since the cluster needs a while to replace the workers.
@pytest.mark.parametrize(
    ("stage", "ways", "times"),
    [
        ("sorting", {"order": "degree"}, 1),
        pytest.param("reading", {}, 1, marks=pytest.mark.long),
        pytest.param("partitioning", {"order": "degree"}, 1, marks=pytest.mark.long),
        pytest.param("writing", {"duplicates": "count"}, 1, marks=pytest.mark.long),
        pytest.param("writing", {}, 3, marks=pytest.mark.slow),
        pytest.param("looking up", {"format": "names"}, 1, marks=pytest.mark.long),
        pytest.param("numbering", {"format": "names"}, 2, marks=pytest.mark.long),
        pytest.param("sorting", {"format": "names"}, 1, marks=pytest.mark.long),
    ],
)
def test_workers_that_are_killed_change_no_byte(client, tmp_path, monkeypatch, stage, ways, times):
    monkeypatch.setattr(dask_import, "CHECK_INTERVAL", 0.5)
    named, source = "format" in ways, tmp_path / "edges.txt"
    source = write_names(source) if named else write_lines(source, *IDS)
    oocpr.import_graph(source, tmp_path / "own", **ways)
    scaled(client, 2)
    before = set(client.run(os.getpid).values())
    kill = killing(client, stage, times)
    oocpr.import_graph(source, tmp_path / "theirs", client=client, progress=kill, **ways)
    assert contents(tmp_path / "theirs") == contents(tmp_path / "own")
    assert set(client.run(os.getpid).values()) != before


@pytest.mark.long
def test_an_import_ends_when_workers_are_lost_again_and_again(client, tmp_path, monkeypatch):
    monkeypatch.setattr(dask_import, "CHECK_INTERVAL", 0.5)
    monkeypatch.setattr(dask_import, "ATTEMPTS", 1)
    source = write_lines(tmp_path / "edges.txt", *IDS)
    with pytest.raises(LostError, match="2 times"):
        oocpr.import_graph(
            source, tmp_path / "g", client=scaled(client, 2), progress=killing(client, "sorting", 9)
        )
    assert [path.name for path in tmp_path.iterdir()] == ["edges.txt"]


@pytest.mark.long
def test_an_import_ends_when_all_workers_are_gone(client, tmp_path, monkeypatch):
    monkeypatch.setattr(dask_import, "CHECK_INTERVAL", 0.5)
    monkeypatch.setattr(dask_import, "RETURN_TIMEOUT", 1.0)
    source = write_lines(tmp_path / "edges.txt", *IDS)
    gone = []

    def lose(stage: str, *rest: Any) -> None:
        if stage == "sorting" and not gone:
            processes = client.run(os.getpid).values()
            gone.append(client.cluster.scale(0))
            for process in processes:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)

    with pytest.raises(LostError, match="lost"):
        oocpr.import_graph(source, tmp_path / "g", client=scaled(client, 2), progress=lose)
    assert [path.name for path in tmp_path.iterdir()] == ["edges.txt"]
