"""One measurement of disk_stream.py, in a process of its own; prints JSON.

Every program counts what the system says that it read from the disk (`read_bytes` of /proc/self/io), and
begins with the files that it reads out of the page cache.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK = 4 << 20
"""Bytes of one read of the disk alone."""


def forget(folder: Path) -> None:
    """Drop files from the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def read_bytes() -> int:
    """Bytes that this process has read from disks so far."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def peak_mib() -> int:
    """Largest resident set of this process so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) >> 10


def rates(file: Path, stores: list[Path], rounds: int) -> dict[str, Any]:
    """Bytes a second of the disk alone and of tiles with nothing to compute, again and again in random order.

    A disk is fast at one moment and slow at another, and faster after a rest; so each is measured in every
    round for as long as reading one store takes, and the medians compare.
    """
    from oocpr.engine.tiles.source import tiles_of
    from oocpr.engine.tiles.stream import TileStream
    from oocpr.plan.residency import RING_SLOTS, reading_threads
    from oocpr.store.graph import open_store

    readers = reading_threads(os.cpu_count() or 1, past_cache=True)
    ways: dict[str, Callable[[], int]] = {}
    most = 0
    for store in stores:
        opened = open_store(store)
        source, tiles = tiles_of(opened), range(opened.tiles)
        stream = TileStream(source, tiles, frozenset(), RING_SLOTS, readers, lambda *_: None, direct=True)
        ways[f"tiles {store.stem}"] = lambda stream=stream: stream.run(lambda *_: None).bytes_read  # type: ignore[misc]
        # Loads what is compiled.
        most = max(most, ways[f"tiles {store.stem}"]())
        forget(store)
    disk = AloneDisk(file, most)
    ways |= {f"disk, {depth} in flight": partial(disk.read, depth) for depth in (1, 2, 4)}
    found: dict[str, list[float]] = {name: [] for name in ways}
    random, before = Random(0), read_bytes()
    for _ in range(rounds):
        for name in random.sample(list(ways), len(ways)):
            began = perf_counter()
            found[name].append(ways[name]() / (perf_counter() - began) / 1e9)
    told = {name: {"gb_per_second": float(np.median(all_)), "all": all_} for name, all_ in found.items()}
    return {"rates": told, "read_bytes": read_bytes() - before}


class AloneDisk:
    """A large file, read past the page cache, a part at a time from its start to its end and again."""

    def __init__(self, file: Path, size: int) -> None:
        self._descriptor = os.open(file, os.O_RDONLY | os.O_DIRECT)
        self._blocks = file.stat().st_size // BLOCK
        self._count = min(max(1, size // BLOCK), self._blocks)
        self._next = 0

    def read(self, depth: int) -> int:
        """Read one part, `depth` blocks at a time; returns its bytes."""
        first, self._next = self._next, self._next + self._count
        with ThreadPoolExecutor(depth) as pool:
            list(pool.map(partial(self._read, first, depth), range(depth)))
        return self._count * BLOCK

    def _read(self, first: int, depth: int, turn: int) -> None:
        from oocpr.store.direct_io import aligned

        buffer = aligned(BLOCK)
        for number in range(first + turn, first + self._count, depth):
            assert os.preadv(self._descriptor, [buffer.data], number % self._blocks * BLOCK) == BLOCK


def rank(store: Path, memory: str, io: str, method: str, out: Path) -> dict[str, Any]:
    """Rank a graph from disk within a budget of memory, and leave its ranks by node."""
    import oocpr

    forget(store)
    seconds: list[float] = []
    counted = [read_bytes()]
    since = [perf_counter()]

    def note(stage: str, done: float, total: int | None, unit: str, note: str = "") -> None:  # noqa: ARG001
        if stage == "ranking":
            counted.append(read_bytes())
            since.append(perf_counter())

    began = perf_counter()
    ranks = oocpr.pagerank(store, memory=memory, io=io, method=method, progress=note)
    whole, peak = perf_counter() - began, peak_mib()
    run = ranks.run
    assert run is not None
    seconds = np.diff(since[1:]).tolist()
    read = np.diff(counted[1:]).tolist()
    best = min(range(len(seconds)), key=seconds.__getitem__)
    ranks.to_parquet(out)
    return {
        "seconds": whole,
        "passes": run.passes,
        "error_bound": run.error_bound,
        "peak_mib": peak,
        "direct": run.direct,
        "bytes_per_edge": run.bytes_per_edge,
        "pass_seconds": seconds[best],
        "pass_read_bytes": read[best],
        "pass_seconds_all": seconds,
        "wait_seconds_all": [record.wait_seconds for record in ranks.history],
        "read_bytes": counted[-1] - counted[0],
        "gb_per_second": read[best] / seconds[best] / 1e9,
    }


def dask(folder: Path, iterations: int, reference: Path | None) -> dict[str, Any]:
    """Power iteration as users of Dask and Zarr write it: blocks of rows, one task each, two workers."""
    import zarr
    from distributed import Client
    from scipy.sparse import csr_matrix

    indptr = np.load(folder / "in_indptr.npy")
    nodes = len(indptr) - 1
    degree = np.diff(np.load(folder / "out_indptr.npy"))
    path = str(folder / "columns.zarr")
    if not Path(path).exists():
        columns = np.load(folder / "in_indices.npy", mmap_mode="r")
        array = zarr.create_array(path, shape=columns.shape, dtype="uint32", chunks=(1 << 22,))
        for begin in range(0, len(columns), 1 << 22):
            array[begin : begin + (1 << 22)] = columns[begin : begin + (1 << 22)]
    cuts = np.searchsorted(indptr, np.linspace(0, indptr[-1], 33).astype(np.int64))
    cuts[[0, -1]] = 0, nodes

    def multiply(rows: NDArray[np.int64], x: NDArray[np.float64]) -> NDArray[np.float64]:
        columns: Any = zarr.open_array(path, mode="r")[rows[0] : rows[-1]]
        block = csr_matrix((np.ones(len(columns)), columns, rows - rows[0]), shape=(len(rows) - 1, len(x)))
        return block @ x

    exact = None if reference is None else np.load(reference)
    seconds: list[float] = []
    ranks, error = np.full(nodes, 1 / nodes), 1.0
    with Client(n_workers=2, threads_per_worker=1, dashboard_address=None) as client:
        blocks = client.scatter([indptr[a : b + 1] for a, b in pairwise(cuts)])
        while len(seconds) < iterations and error > 1e-10:
            began = perf_counter()
            x = client.scatter(0.85 * ranks / np.maximum(degree, 1), broadcast=True)
            lost = ranks[degree == 0].sum()
            ranks = np.concatenate(client.gather(client.map(multiply, blocks, x=x, pure=False)))
            ranks += (0.15 + 0.85 * lost) / nodes
            seconds.append(perf_counter() - began)
            if exact is not None:
                error = float(np.abs(ranks / ranks.sum() - exact).sum())
    return {
        "pass_seconds": min(seconds), "pass_seconds_all": seconds, "seconds": sum(seconds),
        "passes": len(seconds), "true_error": error,
    }  # fmt: skip


def error(ranks: Path, reference: Path) -> dict[str, Any]:
    """L1 distance of a file of ranks to the reference."""
    from pyarrow import parquet

    table = parquet.read_table(ranks)
    exact = np.load(reference)
    found = np.zeros(len(exact))
    found[table["node"].to_numpy()] = table["rank"].to_numpy()
    return {"true_error": float(np.abs(found / found.sum() - exact).sum())}


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    kinds = parser.add_subparsers(dest="kind", required=True)
    paths = {"file": Path, "store": Path, "out": Path, "folder": Path, "ranks": Path, "reference": Path}
    program = kinds.add_parser("rates")
    program.add_argument("rounds", type=int)
    program.add_argument("file", type=Path)
    program.add_argument("stores", type=Path, nargs="+")
    for kind, words in {
        "rank": ("store", "memory", "io", "method", "out"),
        "dask": ("folder", "iterations", "reference"),
        "error": ("ranks", "reference"),
    }.items():
        program = kinds.add_parser(kind)
        for word in words:
            convert: Any = int if word == "iterations" else paths.get(word, str)
            program.add_argument(word, type=convert)
    chosen = vars(parser.parse_args())
    programs: dict[str, Any] = {"rates": rates, "rank": rank, "dask": dask, "error": error}
    print(json.dumps(programs[chosen.pop("kind")](**chosen)))


if __name__ == "__main__":
    main()
