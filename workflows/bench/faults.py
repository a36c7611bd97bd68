"""Rank a graph again and again, and have something go wrong each time, drawn at random.

Each run is a command with a checkpoint, on workers that it starts or on those of a scheduler. A worker, its
nanny, the scheduler or the command is killed or stopped, bytes of the store are damaged, the disk of the
checkpoint gets full, or the S3 server that the store is read from stalls, dies or refuses a tenth of its
requests, after a time drawn from that of an undisturbed run. A run has to end within `--patience` seconds,
with the ranks of an undisturbed run to the last bit or with an exit code that is documented; the same command
without a fault has to go on to those ranks then. No process and no file may be left. Prints a line a run, and
writes JSON. Small disks are mounted, which only root may do; the server needs ``moto[server]``.

    python workflows/bench/faults.py STORE --runs 200 --out workflows/bench/results/faults.json
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow.parquet as pq
from machine import describe, provenance

DOCUMENTED = {2, 3, 4, 5, 6, 7, 8, 130}
"""Exit codes of a command, but for that of a defect."""

THEIRS = {"stderr", "dask-scratch-space"}
"""What this program and Dask's own leave in the folder for temporary files."""

OURS = {"ranks.parquet", "tmp", "disk", "store.zarr", "scheduler.json", "worker-0", "worker-1"}
"""What may be in the folder of a run when it is over."""

MARK = "OOCPR_FAULTS"
"""Environment variable of all processes of a run, by which those that are left are found."""

FAULTS = (
    "kill a worker",
    "stop a worker",
    "kill a nanny",
    "kill the scheduler",
    "kill the command",
    "terminate the command",
    "interrupt the command",
    "damage the store",
    "fill the disk",
    "stall the server",
    "kill the server",
    "refuse requests",
)

DISK_BYTES = 16 << 20
"""Of the disk that gets full: room for some checkpoints of a graph of a million nodes."""

STALLED_SECONDS = 15
REFUSED = 0.1
BUCKET = "faults"


def processes(mark: str) -> list[psutil.Process]:
    """All that live and have the mark."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, PermissionError):
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def role(process: psutil.Process, command: int) -> str:
    """What a process of a run is."""
    if process.pid == command:
        return "command"
    words = " ".join(process.cmdline())
    if "resource_tracker" in words:
        return "tracker"
    if "spawn_main" in words or "forkserver" in words:
        return "worker"
    return "scheduler" if "dask_scheduler" in words or "scheduler" in words else "nanny"


class Cluster:
    """A scheduler and two workers with nannies, each in a process of its own."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        file = folder / "scheduler.json"
        self._begun: list[subprocess.Popen[bytes]] = []
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": environment}
        dask = [sys.executable, "-m", "distributed.cli"]
        for what in (
            [f"{dask[2]}.dask_scheduler", "--port", "0", "--no-dashboard", "--scheduler-file", str(file)],
            *[
                [f"{dask[2]}.dask_worker", "--scheduler-file", str(file), "--nthreads", "1", "--no-dashboard",
                 "--local-directory", str(folder / f"worker-{number}"), "--death-timeout", "60"]
                for number in range(2)
            ],
        ):  # fmt: skip
            self._begun.append(subprocess.Popen([sys.executable, "-m", *what], **quiet))  # type: ignore[call-overload]
        until = time.monotonic() + 60
        while not file.exists() or len(processes(environment[MARK])) < 5:
            assert time.monotonic() < until, "the cluster does not start"
            time.sleep(0.1)
        self.address = json.loads(file.read_text())["address"]
        self.scheduler = self._begun[0].pid
        self.nannies = [each.pid for each in self._begun[1:]]

    def close(self) -> None:
        """End all of them."""
        for each in self._begun:
            with suppress(OSError):
                each.send_signal(signal.SIGCONT)
                each.kill()
            each.wait()


class Server:
    """A process that serves a store by the protocol of S3, and refuses a share of the requests."""

    def __init__(self, store: Path, share: float) -> None:
        words = [sys.executable, __file__, str(store), "--serve", str(share)]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.store = f"s3://{BUCKET}/{store.name}"
        self.environment = {
            "AWS_ENDPOINT_URL": self.process.stdout.readline().strip(),
            "AWS_ACCESS_KEY_ID": "somebody",
            "AWS_SECRET_ACCESS_KEY": "something",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def stall(self) -> None:
        """Have it do nothing for some seconds."""
        self.process.send_signal(signal.SIGSTOP)
        threading.Timer(STALLED_SECONDS, self.process.send_signal, [signal.SIGCONT]).start()

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()


def serve(store: Path, share: float) -> None:
    """Serve a store until the process is killed; prints the server's address once it is there."""
    import boto3  # type: ignore[import-untyped]
    from moto.server import (  # type: ignore[attr-defined]
        DomainDispatcherApplication,
        create_backend_app,
    )
    from werkzeug.serving import make_server

    application, refusing = DomainDispatcherApplication(create_backend_app), threading.Event()

    def answer(environ: dict[str, Any], start: Any) -> Any:
        if refusing.is_set() and random.random() < share:
            start("503 Slow Down", [("Content-Type", "application/xml")])
            return [b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"]
        return application(environ, start)

    # Lines of all requests would be in those of the runs.
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = make_server("127.0.0.1", 0, answer, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    keys = {"aws_access_key_id": "somebody", "aws_secret_access_key": "something"}
    client = boto3.client("s3", endpoint_url=url, region_name="us-east-1", **keys)
    client.create_bucket(Bucket=BUCKET)
    for path in store.rglob("*"):
        if path.is_file():
            client.upload_file(str(path), BUCKET, f"{store.name}/{path.relative_to(store)}")
    refusing.set()
    print(url, flush=True)
    thread.join()


def command_of(store: Path | str, folder: Path, cluster: Cluster | None) -> list[str]:
    """A run of two workers with a checkpoint."""
    where = ["--workers", "2"] if cluster is None else ["--scheduler", cluster.address]
    how = ["--method", "mixed", "--stripes", "2", "--tol", "1e-12", "--threads", "1"]
    kept = ["--checkpoint", str(folder / "kept"), "--resume"]
    out = ["-o", str(folder / "ranks.parquet")]
    return [sys.executable, "-m", "oocpr", "rank", str(store), *how, *kept, *where, *out]


def ranks_of(folder: Path) -> bytes:
    """The ranks that a command wrote."""
    table = pq.read_table(folder / "ranks.parquet")
    return np.asarray(table["rank"]).tobytes()


def strike(
    fault: str,
    mark: str,
    command: subprocess.Popen[bytes],
    cluster: Cluster | None,
    server: Server | None,
    folder: Path,
) -> bool:
    """Have something go wrong; returns whether it did."""
    living = processes(mark)
    workers = [each for each in living if role(each, command.pid) == "worker"]
    kill, stop = signal.SIGKILL, signal.SIGSTOP
    targets: list[tuple[int, signal.Signals]] = []
    if fault in ("kill a worker", "stop a worker") and workers:
        targets = [(random.choice(workers).pid, kill if fault[0] == "k" else stop)]
    elif fault == "kill a nanny" and cluster is not None:
        targets = [(random.choice(cluster.nannies), kill)]
    elif fault == "kill the scheduler" and cluster is not None:
        targets = [(cluster.scheduler, kill)]
    elif fault.endswith("the command"):
        number = {"kill": kill, "terminate": signal.SIGTERM, "interrupt": signal.SIGINT}[fault.split()[0]]
        targets = [(command.pid, number)]
    elif fault == "damage the store":
        chunks = sorted((folder / "store.zarr/in_edges").rglob("c/*"))
        tiles = [path for path in chunks if path.stat().st_size > 100]
        with random.choice(tiles).open("r+b") as file:
            file.seek(100)
            byte = file.read(1)
            file.seek(100)
            file.write(bytes([byte[0] ^ 16]))
        return True
    elif fault == "fill the disk":
        fill(folder / "disk")
        return True
    elif server is not None:
        {"stall the server": server.stall, "kill the server": server.close}.get(fault, bool)()
        return True
    for process, number in targets:
        with suppress(OSError):
            os.kill(process, number)
    return bool(targets)


def fill(disk: Path) -> None:
    """Leave no room on a disk."""
    with suppress(OSError), (disk / "full").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 12))


def one(number: int, store: Path, usual: float, whole: bytes, patience: float) -> dict[str, Any]:
    """One run with a fault, and what becomes of it."""
    random.seed(number)
    fault, own = random.choice(FAULTS), random.random() < 0.5
    if fault in ("kill a nanny", "kill the scheduler"):
        own = False
    mark = f"{os.getpid()}-{number}"
    folder = Path(tempfile.mkdtemp(prefix="oocpr-faults-"))
    temporary = folder / "tmp"
    temporary.mkdir()
    environment = {**os.environ, MARK: mark, "TMPDIR": str(temporary)}
    after = random.uniform(0.2, 1.0) * usual
    told: dict[str, Any] = {"run": number, "fault": fault, "cluster": not own, "after": round(after, 2)}
    read: Path | str = store
    if fault == "damage the store":
        read = folder / "store.zarr"
        shutil.copytree(store, read)
    disk, server = folder, None
    if fault == "fill the disk":
        disk = folder / "disk"
        disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", disk], check=True)
    elif fault in ("stall the server", "kill the server", "refuse requests"):
        server = Server(store, REFUSED if fault == "refuse requests" else 0.0)
        read, environment = server.store, environment | server.environment
    cluster = None if own else Cluster(folder, environment)
    try:
        begun = time.monotonic()
        arguments = command_of(read, disk, cluster)
        # No pipe: a process that is left would keep it open.
        with (temporary / "stderr").open("wb") as said:
            command = subprocess.Popen(arguments, env=environment, stdout=subprocess.DEVNULL, stderr=said)
        with suppress(subprocess.TimeoutExpired):
            command.wait(after)
        told["struck"] = command.poll() is None and strike(fault, mark, command, cluster, server, folder)
        try:
            command.wait(patience)
        except subprocess.TimeoutExpired:
            command.kill()
            command.wait()
            for process in processes(mark):
                process.kill()
            told["outcome"] = "hung"
        told |= {"code": command.returncode, "seconds": round(time.monotonic() - begun, 1)}
        if command.returncode:
            told["said"] = (temporary / "stderr").read_text(errors="replace").strip().splitlines()[-2:]
        if command.returncode == 0:
            told["outcome"] = "right" if ranks_of(disk) == whole else "wrong"
        elif command.returncode not in {*DOCUMENTED, -signal.SIGKILL}:
            told["outcome"] = "undocumented exit code"
    finally:
        if cluster is not None:
            for process in processes(mark):
                # One that is stopped does not end with its nanny.
                with suppress(psutil.Error):
                    process.send_signal(signal.SIGCONT)
            cluster.close()
        if server is not None:
            server.close()
        (disk / "full").unlink(missing_ok=True)
    if "outcome" not in told:
        wait_for_end(mark)
        again = subprocess.run(
            command_of(store, disk, None),
            env=environment,
            capture_output=True,
            timeout=patience,
            check=False,
        )
        good = again.returncode == 0 and ranks_of(disk) == whole
        told["outcome"] = "resumed" if good else f"does not go on: {again.stderr.decode()[-300:]}"
    left = wait_for_end(mark)
    found = {path.name for place in (folder, disk) for path in place.iterdir()}
    strange = sorted(found - OURS)
    if fault != "kill the command":
        # Ranks for which there is no room where they were to be are in the folder for temporary files.
        strange += [
            path.name for path in temporary.iterdir()
            if path.name not in THEIRS and not (fault == "fill the disk" and path.match("ranks-*.parquet"))
        ]  # fmt: skip
    for process in left:
        process.kill()
    if left or strange:
        told["left"] = [*(" ".join(process.cmdline())[:80] for process in left), *strange]
    if disk != folder:
        subprocess.run(["umount", "--lazy", disk], check=True)
    shutil.rmtree(folder, ignore_errors=True)
    return told


def wait_for_end(mark: str) -> list[psutil.Process]:
    """Processes that are left a while after a run."""
    until = time.monotonic() + 30
    while (left := processes(mark)) and time.monotonic() < until:
        time.sleep(0.2)
    return left


def main() -> None:
    """Run, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("store", type=Path, metavar="STORE", help="a graph, imported")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument(
        "--first", type=int, default=0, help="number of the first run, which its faults depend on"
    )
    parser.add_argument("--patience", type=float, default=180, help="seconds until a run counts as hung")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--serve", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        serve(options.store, options.serve)
        return
    if options.out is None:
        parser.error("--out FILE says where the figures go")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for _ in range(2):
            begun = time.monotonic()
            subprocess.run(command_of(options.store, folder, None), stdout=subprocess.DEVNULL, check=True)
            usual = time.monotonic() - begun
        whole = ranks_of(folder)
    runs = []
    for number in range(options.first, options.first + options.runs):
        runs.append(one(number, options.store, usual, whole, options.patience))
        print(json.dumps(runs[-1]), flush=True)
        found = {
            "provenance": provenance("faults.py"),
            "machine": describe(),
            "undisturbed, seconds": usual,
            "outcomes": Counter(run["outcome"] for run in runs),
            "faults": Counter(run["fault"] for run in runs if run.get("struck")),
            "left something": sum("left" in run for run in runs),
            "runs": runs,
        }
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps({key: found[key] for key in ("outcomes", "faults", "left something")}))


if __name__ == "__main__":
    main()
