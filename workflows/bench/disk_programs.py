"""One measurement of disk_stream.py, in a process of its own; prints JSON.

Every program counts what the system says that it read from the disk (`read_bytes` of /proc/self/io), and
begins with the files that it reads out of the page cache.
"""

from __future__ import annotations

import argparse
import json
import os
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
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


def disk(file: Path, depth: int) -> dict[str, Any]:
    """Read a large file from its start to its end past the page cache, `depth` blocks at a time."""
    from oocpr.store.direct import aligned

    size = file.stat().st_size // BLOCK * BLOCK
    descriptor = os.open(file, os.O_RDONLY | os.O_DIRECT)

    def read(turn: int) -> None:
        buffer = aligned(BLOCK)
        for begin in range(turn * BLOCK, size, depth * BLOCK):
            assert os.preadv(descriptor, [buffer.data], begin) == BLOCK

    before, began = read_bytes(), perf_counter()
    with ThreadPoolExecutor(depth) as pool:
        list(pool.map(read, range(depth)))
    seconds = perf_counter() - began
    os.close(descriptor)
    return {"seconds": seconds, "gb_per_second": size / seconds / 1e9, "read_bytes": read_bytes() - before}


def tiles(store: Path, io: str, least: int) -> dict[str, Any]:
    """Stream all tiles as a run does, at least so many bytes, checksums verified; compute nothing."""
    from oocpr.engine.stream import TileStream
    from oocpr.engine.weighing import tiles_of
    from oocpr.plan.tiers import RING_SLOTS, reading_threads
    from oocpr.store.graph import open_store

    opened = open_store(store)
    source = tiles_of(opened)

    def stream(count: int) -> TileStream:
        readers = reading_threads(os.cpu_count() or 1, past_cache=io == "direct")
        return TileStream(
            source, range(count), frozenset(), RING_SLOTS, readers, lambda *_: None, direct=io == "direct"
        )

    stream(1).run(lambda *_: None)  # loads what is compiled
    forget(store)
    before, began = read_bytes(), perf_counter()
    streamed = stream(opened.tiles)
    size = 0
    # As much as of the disk alone, which may be faster for the first moments.
    while size < least:
        if io != "direct":
            forget(store)
        size += streamed.run(lambda *_: None).bytes_read
    seconds = perf_counter() - began
    return {
        "seconds": seconds,
        "gb_per_second": size / seconds / 1e9,
        "read_bytes": read_bytes() - before,
    }


def rank(store: Path, memory: str, io: str, method: str, out: Path) -> dict[str, Any]:
    """Rank a graph from disk within a budget of memory, and leave its ranks by node."""
    import oocpr

    forget(store)
    seconds: list[float] = []
    counted = [read_bytes()]
    since = [perf_counter()]

    def note(stage: str, done: int, total: int | None, unit: str, note: str = "") -> None:  # noqa: ARG001
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
    for kind, words in {
        "disk": ("file", "depth"),
        "tiles": ("store", "io", "least"),
        "rank": ("store", "memory", "io", "method", "out"),
        "dask": ("folder", "iterations", "reference"),
        "error": ("ranks", "reference"),
    }.items():
        program = kinds.add_parser(kind)
        for word in words:
            convert: Any = int if word in ("depth", "iterations", "least") else paths.get(word, str)
            program.add_argument(word, type=convert)
    chosen = vars(parser.parse_args())
    programs: dict[str, Any] = {"disk": disk, "tiles": tiles, "rank": rank, "dask": dask, "error": error}
    print(json.dumps(programs[chosen.pop("kind")](**chosen)))


if __name__ == "__main__":
    main()
