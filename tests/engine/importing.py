"""What tests of imports by workers share."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from distributed import Client

IDS = np.random.default_rng(4).integers(0, 5000, (2, 60_000)) * 3


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


def write_lines(path: Path, *columns: Any) -> Path:
    path.write_text("".join(" ".join(map(str, line)) + "\n" for line in zip(*columns, strict=True)))
    return path


def write_names(path: Path) -> Path:
    path.write_text("".join(f"page-{src}\tpage-{dst}\n" for src, dst in IDS.T))
    return path


def killing(client: Client, stage: str, times: int = 1) -> Any:
    """What a progress function does that kills a worker in a stage, so many times."""
    left = [times]

    def kill(now: str, done: int, total: int, unit: str) -> None:
        if now == stage and left[0] and 0 < done < total:
            left[0] -= 1
            # One that was killed before may not have been missed yet.
            os.kill(max(client.run(os.getpid, on_error="ignore").values()), signal.SIGKILL)

    return kill
