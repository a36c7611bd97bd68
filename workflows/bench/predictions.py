"""Run `oocpr plan`, then the run that it is of, and put what was predicted over what was found.

Each graph is planned and ranked in processes of their own, with room for all of it and with the least memory
that fits, by the method that oocpr chooses and by `mixed`. Of several runs the one in the middle counts.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from machine import describe

PLAN = """
import json, sys
import oocpr
path, how = sys.argv[1], json.loads(sys.argv[2])
print(json.dumps(oocpr.plan(path, **how).to_json()))
"""

RANK = """
import json, sys
import oocpr
path, how = sys.argv[1], json.loads(sys.argv[2])
ranks = oocpr.pagerank(path, **how)
passes = [[record.seconds, record.bytes_read] for record in ranks.history]
print(json.dumps(ranks.run.to_dict() | {"history": passes}))
"""

LEAST = "least"


def python(program: str, path: Path, how: dict[str, Any]) -> dict[str, Any]:
    """Run a program in a process of its own; returns what it prints."""
    words = [sys.executable, "-c", program, str(path), json.dumps(how)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def least_memory(path: Path, how: dict[str, Any]) -> int:
    """Bytes that are just enough, and some tiles' more: what a fresh process needs varies by a few MiB."""
    needed: int = python(PLAN, path, how)["needed"]
    return needed + 2**24


def compare(path: Path, how: dict[str, Any], runs: int) -> dict[str, Any]:
    """Predictions and findings of one way to rank a graph."""
    # In turns, so that a busy minute falls on both.
    turns = [(python(PLAN, path, how), python(RANK, path, how)) for _ in range(runs)]
    plans, found = [plan for plan, _ in turns], [run for _, run in turns]
    plan = plans[0]

    def predicted(key: str) -> float:
        return float(median(plan[key] for plan in plans))

    # What compiling took is not predicted; it happens once on a machine.
    actual = {
        "pass_seconds": median(run["pass_seconds"] for run in found),
        "seconds": median(run["seconds"] - run["compile_seconds"] for run in found),
        "pass_bytes": median(median(b for _, b in _later(run)) for run in found),
        "bytes_read": median(run["bytes_read"] for run in found),
        "peak_memory": median(run["peak_memory"] for run in found),
        "peak_device_memory": median(run["peak_device_memory"] for run in found),
        "passes": found[0]["passes"],
    }
    told = {key: predicted(f"predicted_{key}") for key in actual if key != "passes"}
    told["passes"] = plan["passes"]
    # The time, had the number of passes been known.
    each = told["pass_seconds"]
    told["seconds_of_these_passes"] = told["seconds"] + (actual["passes"] - plan["passes"]) * each
    actual["seconds_of_these_passes"] = actual["seconds"]
    ratios = {key: told[key] / actual[key] if actual[key] else None for key in actual}
    return {
        "method": plan["method"],
        "cached_tiles": plan["cached_tiles"],
        "tiles": plan["tiles"],
        "edges": found[0]["edges"],
        "predicted": told,
        "actual": actual,
        "predicted/actual": ratios,
        "passes_range": plan["passes_range"],
        "first_pass_seconds": [predicted("predicted_first_pass_seconds"), found[0]["history"][0][0]],
    }


def _later(run: dict[str, Any]) -> list[list[float]]:
    """Passes after the first; the only one where there is no other."""
    history: list[list[float]] = run["history"]
    return history[1:] or history


def main() -> None:
    """Compare, print a line each, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("stores", type=Path, nargs="+", help="graphs, imported")
    parser.add_argument("--device", default="cpu", help="such as cuda, cuda:0,cuda:1 or cuda:all")
    parser.add_argument(
        "--device-memory", nargs="*", default=[], help="budgets to stream within, with cuda; of each device"
    )
    parser.add_argument("--memory", nargs="*", default=[], help="budgets to read within from the disk")
    parser.add_argument("--methods", nargs="*", default=["auto", "mixed"])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    rows: dict[str, Any] = {}
    for path in chosen.stores:
        for method in chosen.methods:
            how: dict[str, Any] = {"method": method, "device": chosen.device}
            ways: dict[str, dict[str, Any]] = {"roomy": how}
            if chosen.device == "cpu" and method != "auto":
                ways[LEAST] = how | {"memory": least_memory(path, how)}
            ways |= {size: how | {"device_memory": size} for size in chosen.device_memory}
            ways |= {size: how | {"memory": size, "io": "direct"} for size in chosen.memory}
            if method == "auto" and python(PLAN, path, how)["method"] == "mixed" in chosen.methods:
                continue
            for name, way in ways.items():
                row = compare(path, way, chosen.runs)
                rows[f"{path.stem}, {method}, {name}"] = row
                ratios = row["predicted/actual"].items()
                told = ", ".join(f"{key} {value:.2f}" for key, value in ratios if value is not None)
                print(f"{path.stem:<22}{row['method']:<11}{name:<6} {told}", flush=True)
    chosen.out.write_text(
        json.dumps(
            {"machine": describe(), "device": chosen.device, "runs": chosen.runs, "graphs": rows}, indent=2
        )
        + "\n"
    )


if __name__ == "__main__":
    main()
