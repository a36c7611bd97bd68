"""kill -9 at any point: the same import goes on, and the store has the bytes of one that nobody disturbed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

EDGES = 24_000
MOMENTS = ("before", "torn", "after")
# Threads may make the same folder at a time: the number of calls of an import is not always the same.
SPREAD_OF_CALLS = 4


def make_sources(folder: Path) -> dict[str, dict[str, Any]]:
    """Sources of every kind, as the program takes them."""
    rng = np.random.default_rng(5)
    ids = rng.integers(0, 3000, (2, EDGES)) * 3
    names = [[f"caf%C3%A9 {i}" for i in end] for end in ids.tolist()]
    np.savetxt(folder / "edges.txt", ids.T, "%d")
    for part in range(3):
        here = slice(part * 8000, (part + 1) * 8000)
        np.savetxt(folder / f"part-{part}.txt", ids[:, here].T, "%d")
        table = pa.table([end[here] for end in names], names=["from", "to"])
        pq.write_table(table, folder / f"{part}.parquet", row_group_size=3000)
    np.save(folder / "edges.npy", ids)
    wide = np.where(np.arange(EDGES) < EDGES // 2, ids, ids << 33)
    np.savetxt(folder / "wide.txt", wide.T, "%d")
    links = "".join(f"{u}\t{v}\n" for u, v in zip(*names, strict=True))
    (folder / "links.tsv").write_text(links)
    (folder / "all.txt").write_text("".join(f"{name}\n" for name in sorted({*names[0], *names[1]})))
    rng = np.random.default_rng(6)
    # Sums of tenths depend on the order in which they are added.
    tenths, few = rng.integers(0, 99, EDGES) / 10, ids % 300
    np.savetxt(folder / "weighted.txt", np.stack([*few, tenths]).T, "%d %d %.1f")
    np.savetxt(
        folder / "wide-weighted.txt",
        np.stack([*np.where(wide > 9000, few << 33, few), tenths]).T,
        "%d %d %.1f",
    )
    called = [pa.array([f"n{i}" for i in end]) for end in few.tolist()]
    pq.write_table(
        pa.table([*called, tenths], names=["from", "to", "kg"]), folder / "named.parquet", row_group_size=3000
    )
    np.save(folder / "few.npy", few)
    add = {"duplicates": "sum"}
    return {
        "weighted": {"source": [f"{folder}/weighted.txt"], "ways": {"weight": 3}, "options": add},
        "wide weighted": {"source": [f"{folder}/wide-weighted.txt"], "ways": {"weight": 3}, "options": add},
        "named weighted": {"source": [f"{folder}/named.parquet"], "ways": {"weight": "kg"}, "options": add},
        "greatest": {"source": [f"{folder}/weighted.txt"], "ways": {"weight": 3, "undirected": True}},
        "counted": {"source": [f"{folder}/few.npy"], "options": {"duplicates": "count"}},
        "text": {"source": [f"{folder}/edges.txt"]},
        "several": {"source": [f"{folder}/part-{part}.txt" for part in range(3)]},
        "undirected": {"source": [f"{folder}/edges.txt"], "ways": {"undirected": True}},
        "npy": {"source": [f"{folder}/edges.npy"]},
        "parquet": {"source": [f"{folder}/{part}.parquet" for part in range(3)]},
        "wide": {"source": [f"{folder}/wide.txt"]},
        "names": {"source": [f"{folder}/links.tsv"]},
        "listed": {"source": [f"{folder}/links.tsv"], "ways": {"labels": f"{folder}/all.txt"}},
        "rmat": {"rmat": {"scale": 11}},
    }


class Imports:
    """Imports of one source with one order, in processes of their own."""

    def __init__(self, ask: Callable[[dict[str, Any]], Any], folder: Path, source: Any, order: str) -> None:
        self.folder = folder
        self.path = folder / "g.zarr"
        source = dict(source)
        options = {"order": order, "memory": 3 << 30, "tile_edges": 1024, **source.pop("options", {})}
        self.options = {**options, "block_edges": 2000, "bucket_edges": 5000, "resume": True}
        self.ask, self.source = ask, source
        undisturbed = {**source, "path": str(folder / "undisturbed.zarr")}
        self.run(**undisturbed, options={**options, "resume": False})
        self.expected = contents(folder / "undisturbed.zarr")
        shutil.rmtree(folder / "undisturbed.zarr")
        self.added = self.finish()["added"]
        shutil.rmtree(self.path)

    def run(self, **job: Any) -> dict[str, Any]:
        """Import; the process must neither crash nor refuse."""
        said: dict[str, Any] = self.ask(job)
        assert (said["status"], said["error"]) == (0, None), said
        return said

    def finish(self, **options: Any) -> dict[str, Any]:
        """Import to the end, and compare the store."""
        said = self.run(**self.source, path=str(self.path), options={**self.options, **options})
        assert contents(self.path) == self.expected
        assert [path.name for path in self.folder.iterdir()] == ["g.zarr"]
        return said

    def kill(self, **when: Any) -> int:
        """Import until the process is killed; returns how it ended."""
        job = {**self.source, "path": str(self.path), "options": self.options, **when}
        status: int = self.ask(job)["status"]
        return status


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[dict[str, Any]], Any]]:
    """Ask the program that runs imports."""
    folder = tmp_path_factory.mktemp("answers")
    program = [sys.executable, str(Path(__file__).with_name("killing.py")), str(folder / "answer")]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        asking, answers = server.stdin, server.stdout

        def put(job: dict[str, Any]) -> Any:
            print(json.dumps(job), file=asking, flush=True)
            return json.loads(answers.readline())

        yield put
        server.stdin.close()


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return make_sources(tmp_path_factory.mktemp("sources"))


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "order"),
    [
        *(("text", "keep"), ("names", "keep"), ("names", "host"), ("npy", "bfs"), ("parquet", "auto")),
        *(("weighted", "keep"), ("named weighted", "degree"), ("counted", "keep")),
    ],
)
def test_killed_while_it_notes_what_is_finished(
    ask: Any, sources: Any, tmp_path: Path, kind: str, order: str
) -> None:
    imports = Imports(ask, tmp_path, sources[kind], order)
    for point in range(6):
        # Once each in the first and the last event, and four times between.
        event = 1 + point * (imports.added - 1) // 5
        assert imports.kill(event=event, moment=MOMENTS[point % 3]) == -9
        said = imports.finish()
        # Of the events before, only those are noted again that open the journal and name the store.
        assert said["added"] <= imports.added - event + 2
        shutil.rmtree(imports.path)


@pytest.mark.long
def test_killed_again_and_again(ask: Any, sources: Any, tmp_path: Path) -> None:
    imports = Imports(ask, tmp_path, sources["several"], "keep")
    kills = 0
    while imports.kill(event=7, moment=MOMENTS[kills % 3]) == -9:
        kills += 1
    # A killed process has got six or seven events further, all but the store's last ones.
    assert imports.added // 7 - 1 <= kills <= imports.added // 6 + 1
    assert contents(imports.path) == imports.expected
    assert [path.name for path in tmp_path.iterdir()] == ["g.zarr"]


def test_a_source_that_was_read_is_not_read_again(ask: Any, tmp_path: Path) -> None:
    path = tmp_path / "edges.txt"
    np.savetxt(path, np.random.default_rng(1).integers(0, 9999, (400_000, 2)), "%d")
    size = path.stat().st_size
    folder = tmp_path / "store"
    folder.mkdir()
    options = {"memory": 3 << 30, "block_edges": 10_000, "tile_edges": 4096, "resume": True}
    job = {"source": [str(path)], "path": str(folder / "g.zarr"), "options": options}
    # Once all was read, and then ten tiles further.
    assert ask({**job, "event": 2, "moment": "after"})["status"] == -9
    assert ask({**job, "event": 12, "moment": "after"})["status"] == -9
    said = ask(job)
    assert said["told"][0].startswith("Going on with an import that was interrupted: all 400,000 edges were")
    assert size > 3 << 20
    # Only its format, and what its first line says.
    assert said["read"] <= (1 << 20) + (1 << 16)


def test_a_disk_that_is_full_before_all_was_read_keeps_nothing(
    ask: Any, sources: Any, tmp_path: Path
) -> None:
    imports = Imports(ask, tmp_path, sources["text"], "keep")
    job = {**imports.source, "path": str(imports.path), "options": imports.options}
    said = ask({**job, "largest_file": 50_000})
    assert "File too large" in said["error"][0]
    assert len(said["error"]) == 2
    assert list(tmp_path.iterdir()) == []
    assert imports.finish()["told"] == ["Nothing to resume: the import starts from the beginning."]


@pytest.mark.long
def test_every_name_and_file_may_be_the_last_that_is_changed(ask: Any, sources: Any, tmp_path: Path) -> None:
    imports = Imports(ask, tmp_path, sources["rmat"], "keep")
    calls = imports.finish()["calls"]
    shutil.rmtree(imports.path)
    # The last ones give the store its name and clean up.
    kills = sum(die_at_call(imports, call) for call in range(calls - 9, calls + 1))
    assert kills >= 10 - SPREAD_OF_CALLS


def die_at_call(imports: Imports, call: int) -> bool:
    """Kill an import at a call and finish it; return whether it got as far as that call."""
    status = imports.kill(call=call)
    assert status in (-9, 0)
    job = {**imports.source, "path": str(imports.path), "options": imports.options}
    said = imports.ask(job)
    if said["error"] is not None:
        # Nothing was left to do but to remove an empty folder.
        assert "exists" in said["error"][0]
    assert contents(imports.path) == imports.expected
    assert [path.name for path in imports.folder.iterdir()] == ["g.zarr"]
    shutil.rmtree(imports.path)
    return status == -9


@pytest.mark.parametrize(
    "moment", [1, 3, 5, 7, 8, *(pytest.param(moment, marks=pytest.mark.slow) for moment in (2, 4, 6))]
)
def test_killed_while_an_older_store_is_replaced(ask: Any, sources: Any, tmp_path: Path, moment: int) -> None:
    imports = Imports(ask, tmp_path, sources["rmat"], "keep")
    old = {**sources["several"], "path": str(imports.path), "options": {"memory": 3 << 30}}
    imports.run(**old)
    before = contents(imports.path)
    calls = imports.finish(overwrite=True)["calls"]
    imports.run(**{**old, "options": {**old["options"], "overwrite": True}})
    job = {**imports.source, "path": str(imports.path), "options": {**imports.options, "overwrite": True}}
    call = calls - (len(before) + 20) * moment // 8
    assert ask({**job, "call": call})["status"] == -9
    found = [path for path in (imports.path, imports.path.with_name("g.zarr.replaced")) if path.exists()]
    assert contents(found[0]) in (before, imports.expected)
    imports.finish(overwrite=True)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["keep", "degree", "auto"])
@pytest.mark.parametrize(
    "kind",
    [
        *("text", "several", "undirected", "npy", "parquet", "wide", "names", "listed", "rmat"),
        *("weighted", "wide weighted", "named weighted", "greatest", "counted"),
    ],
)
def test_killed_at_any_event_of_any_source(
    ask: Any, sources: Any, tmp_path: Path, kind: str, order: str
) -> None:
    random = Random(f"{kind} {order}")
    imports = Imports(ask, tmp_path, sources[kind], order)
    for _ in range(15):
        event = random.randint(1, imports.added)
        assert imports.kill(event=event, moment=random.choice(MOMENTS)) == -9
        assert imports.finish()["added"] <= imports.added - event + 2
        shutil.rmtree(imports.path)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "order"), [("names", "degree"), ("text", "keep")])
def test_killed_at_every_change_of_a_name_or_file(
    ask: Any, sources: Any, tmp_path: Path, kind: str, order: str
) -> None:
    imports = Imports(ask, tmp_path, sources[kind], order)
    calls = imports.finish()["calls"]
    shutil.rmtree(imports.path)
    kills = sum(die_at_call(imports, call) for call in range(1, calls + 1))
    assert kills >= calls - SPREAD_OF_CALLS


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "order"), [("names", "degree"), ("several", "keep")])
def test_killed_at_fifty_random_times(ask: Any, sources: Any, tmp_path: Path, kind: str, order: str) -> None:
    random = Random(f"{kind} {order}")
    imports = Imports(ask, tmp_path, sources[kind], order)
    kills = 0
    while kills < 50:
        status = imports.kill(seconds=random.uniform(0, 0.5))
        kills += status == -9
        if status == 0 or random.random() < 0.3:
            if not (imports.path.exists() and len(list(tmp_path.iterdir())) == 1):
                said = ask({**imports.source, "path": str(imports.path), "options": imports.options})
                assert said["error"] is None or "exists" in said["error"][0], said
            assert contents(imports.path) == imports.expected
            assert [path.name for path in tmp_path.iterdir()] == ["g.zarr"]
            shutil.rmtree(imports.path)
