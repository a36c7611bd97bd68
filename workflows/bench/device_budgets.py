"""Rank a stored graph on CUDA devices within less and less of their memory; compare bits, peaks and plans.

Each run has a process of its own, which measures first, as `oocpr rank --predict` does, so that what was
predicted stands beside what was found. While it runs, the driver is asked what the devices hold in all.
Numbers are the medians of a few runs, since both vary; budgets take turns::

    python3 workflows/bench/device.py budgets r26.zarr --budgets all 4GiB 1GiB 512MiB --out device-memory.json
    python3 workflows/bench/device.py budgets r26.zarr --device cuda:all --budgets all 3GiB --out several.json
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from machine import describe

RANK = """
import json, sys
import numpy as np
import oocpr
path, how, out = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
ranks = oocpr.pagerank(path, predict=True, **how)
np.save(out, ranks.to_numpy())
seconds = [record.seconds for record in ranks.history]
print(json.dumps(ranks.run.to_dict() | {"first": seconds[0], "history": seconds}))
"""

EVERYTHING = "all"
"""A budget: what the device has free."""


class Watch:
    """What the driver says that the fullest device holds, asked a few times a second by one process.

    A process for each question would begin with the driver anew, and runs would wait for that.
    """

    def __init__(self) -> None:
        self.most = 0
        self._asking: subprocess.Popen[str] | None = None

    def __enter__(self) -> Watch:
        if shutil.which("nvidia-smi"):
            words = [
                "nvidia-smi",
                "--query-gpu=memory.used",
                "--format=csv,noheader,nounits",
                "--loop-ms=200",
            ]
            self._asking = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
            self._thread = threading.Thread(target=self._note, args=(self._asking,))
            self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._asking is not None:
            self._asking.terminate()
            self._thread.join()
            self._asking.wait()

    def _note(self, asking: subprocess.Popen[str]) -> None:
        assert asking.stdout is not None, "it is a pipe"
        for line in asking.stdout:
            if line.strip().isdigit():
                self.most = max(self.most, int(line))


def ranked(path: Path, how: dict[str, Any], out: Path) -> tuple[dict[str, Any], int]:
    """Rank in a process of its own; returns what the run says of itself, and the most that a device held."""
    words = [sys.executable, "-c", RANK, str(path), json.dumps(how), str(out)]
    with Watch() as watch:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told, watch.most


def ratios(run: dict[str, Any]) -> dict[str, float]:
    """What was predicted over what was found."""
    predicted, found = run["predicted"], {**run, "seconds": run["seconds"] - run["compile_seconds"]}
    told = {name: value / found[name] for name, value in predicted.items() if found[name]}
    # The time, had the number of passes been known.
    known = predicted["seconds"] + (run["passes"] - predicted["passes"]) * predicted["pass_seconds"]
    return told | {"seconds_of_these_passes": known / found["seconds"]}


def row(run: dict[str, Any], held: int, ranks: np.ndarray, first: np.ndarray) -> dict[str, Any]:
    """A run in the words of the results."""
    later = run["history"][1:] or run["history"]
    each = float(np.median(later))
    return {
        "passes": run["passes"],
        "seconds": run["seconds"],
        "first pass, seconds": run["first"],
        "ms a pass": 1e3 * each,
        "GTEPS of a pass": run["edges"] / each / 1e9,
        "bound": run["error_bound"],
        "peak of the device's pool, MiB": run["peak_device_memory"] / 2**20,
        "most that the driver said, MiB": held,
        "peak of the process, MiB": run["peak_memory"] / 2**20,
        "same bits as the first run": bool((ranks == first).all()),
        "L1 to the first run": float(np.abs(ranks - first).sum()),
        "predicted/found": ratios(run),
    }


def middle(cells: list[Any], of: Callable[[list[float]], Any] = np.median) -> Any:
    """Of several rows one: medians, the largest of what was held, and whether all are as they should be."""
    first = cells[0]
    if isinstance(first, dict):
        return {
            name: middle([cell[name] for cell in cells], np.max if name.endswith("MiB") else of)
            for name in first
        }
    return all(cells) if isinstance(first, bool) else float(of(cells))


def main(arguments: list[str] | None = None) -> None:
    """Rank within each budget, print a line each, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("store", type=Path, help="a graph, imported")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--budgets", nargs="+", default=[EVERYTHING, "4GiB", "1GiB", "512MiB"])
    parser.add_argument("--memory", help="of the process")
    parser.add_argument("--method", default="mixed")
    parser.add_argument("--runs", type=int, default=3, help="of each")
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args(arguments)
    found: dict[str, Any] = {"machine": describe(), "store": chosen.store.name, "device": chosen.device}
    rows: dict[str, list[dict[str, Any]]] = {budget: [] for budget in chosen.budgets}
    first: np.ndarray | None = None
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(chosen.runs):
            for budget in chosen.budgets:
                how = {"device": chosen.device, "method": chosen.method, "memory": chosen.memory}
                if budget != EVERYTHING:
                    how["device_memory"] = budget
                out = Path(folder) / "ranks.npy"
                try:
                    run, held = ranked(chosen.store, how, out)
                    ranks = np.load(out)
                    first = ranks if first is None else first
                    rows[budget].append(row(run, held, ranks, first))
                    found[budget] = {"runs": len(rows[budget]), **middle(rows[budget])}
                except RuntimeError as error:
                    found[budget] = {"failed": str(error)}
                print(budget, json.dumps(found[budget]), flush=True)
                chosen.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
