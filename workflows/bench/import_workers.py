"""Import R-MAT from Parquet files by Dask workers, beside one process that imports the same files.

The scheduler and the workers are processes of their own, of a thread each, so that what passes through the
client's sockets is what passes through this process. Every store has to have the same bytes::

    python workflows/bench/import_workers.py --scale 24 --files 64 --folder DIR --out import-workers.json
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from machine import describe, provenance
from tornado.iostream import IOStream

import oocpr
from oocpr.sources.rmat import Rmat

BLOCK_EDGES = 1 << 20


def write_files(folder: Path, scale: int, files: int) -> int:
    """Write the edges of R-MAT as so many Parquet files; returns how many there are."""
    if not folder.exists():
        folder.mkdir(parents=True)
        writers: list[Any] = []
        for number, block in enumerate(Rmat(scale).blocks(BLOCK_EDGES)):
            table = pa.table({"source": block.src, "target": block.dst})
            if number < files:
                writers.append(pq.ParquetWriter(folder / f"{number:03}.parquet", table.schema))
            writers[number % files].write_table(table)
        for writer in writers:
            writer.close()
    return sum(pq.read_metadata(path).num_rows for path in folder.iterdir())


def digest(store: Path) -> str:
    """Hash of the names and bytes of all files of a store."""
    found = blake2b(digest_size=8)
    for path in sorted(path for path in store.rglob("*") if path.is_file()):
        found.update(str(path.relative_to(store)).encode())
        found.update(path.read_bytes())
    return found.hexdigest()


def used() -> tuple[float, int]:
    """Processor seconds and largest resident set, in bytes, of the process that this runs in."""
    from oocpr.system import peak_resident

    return sum(os.times()[:2]), peak_resident()


class Sockets:
    """Counts the bytes that pass through the sockets of this process."""

    def __init__(self) -> None:
        self.bytes = 0
        for name in ("read_from_fd", "write_to_fd"):
            setattr(IOStream, name, self._counted(getattr(IOStream, name)))

    def _counted(self, usual: Any) -> Any:
        def counted(stream: IOStream, data: Any) -> Any:
            passed = usual(stream, data)
            self.bytes += passed or 0
            return passed

        return counted


def alone(source: Path, store: Path, memory: str) -> dict[str, Any]:
    """Import in this process."""
    begun, before = time.perf_counter(), used()[0]
    oocpr.import_graph(source, store, memory=memory)
    seconds = time.perf_counter() - begun
    after, peak = used()
    return {"seconds": seconds, "processor seconds": after - before, "peak, MiB": peak / 2**20}


def by_workers(source: Path, store: Path, count: int, limit: str, kill: str | None) -> dict[str, Any]:
    """Import by so many workers; one of them is killed in the stage `kill`, if that is named."""
    from distributed import Client

    dask = [sys.executable, "-m"]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "scheduler.json")
        scheduler = [*dask, "distributed.cli.dask_scheduler", "--port", "0", "--no-dashboard"]
        worker = [*dask, "distributed.cli.dask_worker", "--nthreads", "1", "--memory-limit", limit]
        worker += ["--no-dashboard", "--local-directory", folder, "--scheduler-file", str(file)]
        begun_processes = [subprocess.Popen([*scheduler, "--scheduler-file", str(file)], **quiet)]
        begun_processes += [subprocess.Popen(worker, **quiet) for _ in range(count)]
        try:
            while not file.exists():
                time.sleep(0.1)
            sockets = Sockets()
            with Client(scheduler_file=str(file)) as client:
                client.wait_for_workers(count)
                living = sorted(client.run(os.getpid).values())

                def strike(
                    stage: str,
                    done: float,
                    total: int | None,
                    unit: str,  # noqa: ARG001
                    note: str = "",  # noqa: ARG001
                ) -> None:
                    if stage == kill and living and total and done > 0.4 * total:
                        os.kill(living.pop(), signal.SIGKILL)
                        living.clear()

                before, own, sockets.bytes = client.run(used), used()[0], 0
                begun = time.perf_counter()
                oocpr.import_graph(source, store, client=client, progress=strike)
                seconds, passed = time.perf_counter() - begun, sockets.bytes
                after = client.run(used)
                spent = (
                    used()[0] - own + sum(cpu - before.get(who, (0.0,))[0] for who, (cpu, _) in after.items())
                )
                peaks = [peak / 2**20 for _, peak in after.values()]
        finally:
            for process in begun_processes:
                process.terminate()
            for process in begun_processes:
                process.wait()
    return {
        "seconds": seconds,
        "processor seconds": spent,
        "peak, MiB": max(peaks),
        "bytes through the client": passed,
    }


def main() -> None:
    """Measure, print a line for each import, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--scale", type=int, default=24)
    parser.add_argument("--files", type=int, default=64)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument(
        "--kill", nargs="*", default=["reading", "sorting", "writing"], help="stages, of two workers"
    )
    parser.add_argument("--limit", default="2GiB", help="memory limit of a worker")
    parser.add_argument("--memory", default="4GiB", help="of one process")
    parser.add_argument("--folder", type=Path, required=True, help="for files and stores")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    source = options.folder / f"rmat{options.scale}"
    edges = write_files(source, options.scale, options.files)
    store, whole = options.folder / "store.zarr", ""
    found: dict[str, Any] = {"provenance": provenance("import_workers.py"), "machine": describe()}
    found |= {"edges": edges, "files": options.files}
    ways: list[tuple[str, int, str | None]] = [("one process", 0, None)]
    ways += [(f"{count} workers", count, None) for count in options.workers]
    ways += [(f"2 workers, one killed while {stage}", 2, stage) for stage in options.kill]
    for name, count, kill in ways:
        shutil.rmtree(store, ignore_errors=True)
        if count:
            cell = by_workers(source, store, count, options.limit, kill)
        else:
            alone(source, store, options.memory)  # what is compiled, and files in the page cache
            shutil.rmtree(store)
            cell = alone(source, store, options.memory)
        made = digest(store)
        whole = whole or made
        found[name] = {**cell, "same bytes": made == whole, "load before": os.getloadavg()[0]}
        print(name, json.dumps(found[name]), flush=True)
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
