"""Rank a graph again and again, and have something go wrong each time, drawn at random.

Each run is a command with a checkpoint, on workers that it starts or on those of a scheduler. A worker, its
nanny, the scheduler or the command is killed or stopped, or bytes of the store are damaged, after a time
drawn from that of an undisturbed run. A run has to end within `--patience` seconds, with the ranks of an
undisturbed run to the last bit or with an exit code that is documented; the same command without a fault has
to go on to those ranks then. No process and no file may be left. Prints a line a run, and writes JSON.

    python workflows/bench/faults.py STORE --runs 200 --out workflows/bench/results/faults.json
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]
import pyarrow.parquet as pq
from machine import describe

DOCUMENTED = {2, 3, 4, 5, 6, 7, 8, 130}
"""Exit codes of a command, but for that of a defect."""

THEIRS = {"stderr", "dask-scratch-space"}
"""What this program and Dask's own leave in the folder for temporary files."""

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
)


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


def command_of(store: Path, folder: Path, cluster: Cluster | None) -> list[str]:
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
    fault: str, mark: str, command: subprocess.Popen[bytes], cluster: Cluster | None, copy: Path
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
        tiles = sorted((copy / "in_edges").rglob("c/*"))
        with random.choice(tiles).open("r+b") as file:
            file.seek(100)
            byte = file.read(1)
            file.seek(100)
            file.write(bytes([byte[0] ^ 16]))
        return True
    for process, number in targets:
        with suppress(OSError):
            os.kill(process, number)
    return bool(targets)


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
    copy = store
    if fault == "damage the store":
        copy = folder / "store.zarr"
        shutil.copytree(store, copy)
    cluster = None if own else Cluster(folder, environment)
    try:
        begun = time.monotonic()
        arguments = command_of(copy, folder, cluster)
        # No pipe: a process that is left would keep it open.
        with (temporary / "stderr").open("wb") as said:
            command = subprocess.Popen(arguments, env=environment, stdout=subprocess.DEVNULL, stderr=said)
        with suppress(subprocess.TimeoutExpired):
            command.wait(after)
        told["struck"] = command.poll() is None and strike(fault, mark, command, cluster, copy)
        try:
            command.wait(patience)
        except subprocess.TimeoutExpired:
            command.kill()
            for process in processes(mark):
                process.kill()
            return {**told, "outcome": "hung"}
        told |= {"code": command.returncode, "seconds": round(time.monotonic() - begun, 1)}
        if command.returncode:
            told["said"] = (temporary / "stderr").read_text(errors="replace").strip().splitlines()[-2:]
        if command.returncode == 0:
            told["outcome"] = "right" if ranks_of(folder) == whole else "wrong"
        elif command.returncode not in DOCUMENTED and fault != "kill the command":
            told["outcome"] = "undocumented exit code"
    finally:
        if cluster is not None:
            cluster.close()
    if "outcome" not in told:
        wait_for_end(mark)
        again = subprocess.run(
            command_of(store, folder, None),
            env=environment,
            capture_output=True,
            timeout=patience,
            check=False,
        )
        good = again.returncode == 0 and ranks_of(folder) == whole
        told["outcome"] = "resumed" if good else f"does not go on: {again.stderr.decode()[-300:]}"
    left = wait_for_end(mark)
    strange = sorted(
        path.name for path in folder.iterdir()
        if path.name not in ("ranks.parquet", "tmp", "store.zarr", "scheduler.json", "worker-0", "worker-1")
    )  # fmt: skip
    if fault != "kill the command":
        strange += [path.name for path in temporary.iterdir() if path.name not in THEIRS]
    for process in left:
        process.kill()
    if left or strange:
        told["left"] = [*(" ".join(process.cmdline())[:80] for process in left), *strange]
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
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
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
