"""Compare PageRank programs on the CPU, side by side, in one run.

Two tables come out as one JSON file. *Times*: each program is asked for more and more accuracy, in its own
units, until its true L1 error is at most the target; the time of that setting is reported. *Sweeps*: one
float64-accurate sweep over the graph in memory. Each measurement runs in a process of its own, one after the
other, and is written as soon as it is known; what cannot be measured is written with its reason.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from edge_set import DAMPING, EdgeSet, add_reference, prepare
from machine import describe
from programs import PROGRAMS, TARGET
from sweeps import SWEEPS

GRAPHS = ("cnr-2000", "linux61-calls", "rmat20", "rmat22")
SWEPT = ("rmat20", "rmat23")
OWN_PYTHON = ("oocpr", "oocpr-store", "oocpr-degree", "scipy", "gap-pr_spmv", "gap-pr", "gap-pr_spmv-huge")
"""Programs that this interpreter has, or that are binaries; the others come from the peers' interpreter."""


@dataclass(frozen=True)
class Bench:
    """One comparison: what is measured how, and where the results go."""

    out: Path
    cache: Path
    graphs: Path | None
    peers_python: Path | None
    runs: int
    budget: float
    limit: float
    threads: int

    def environment(self) -> dict[str, str]:
        """Variables of every measuring process: the same number of threads for all."""
        return os.environ | {"OMP_NUM_THREADS": str(self.threads)}

    def interpreter(self, program: str) -> Path | None:
        """Python that has `program`, or None where none was given."""
        return Path(sys.executable) if program in OWN_PYTHON else self.peers_python

    def measure(self, table: str, program: str, graph: EdgeSet) -> dict[str, Any]:
        """Result of one measuring process, whatever becomes of it."""
        python = self.interpreter(program)
        if python is None:
            return {"status": "unavailable", "reason": "no interpreter with the peers was given (--python)"}
        with tempfile.TemporaryDirectory() as scratch:
            answer = Path(scratch) / "cell.json"
            script = Path(__file__).with_name("measure.py")
            options = {"runs": self.runs, "budget": self.budget, "threads": self.threads}
            command = [str(python), str(script), table, program, str(graph.folder), str(answer)]
            command += [word for key, value in options.items() for word in (f"--{key}", str(value))]
            try:
                done = subprocess.run(
                    command,
                    env=self.environment(),
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=self.limit,
                )
            except subprocess.TimeoutExpired:
                return {"status": "failed", "reason": f"not done after {self.limit:g} s"}
            if not answer.exists():
                said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
                return {"status": "failed", "reason": said[-1]}
            cell: dict[str, Any] = json.loads(answer.read_text())
            return cell

    def load(self) -> dict[str, Any]:
        """Results so far.

        Raises
        ------
        SystemExit
            Where they come from another machine or other settings: such figures do not belong in one table.
        """
        machine = describe()
        settings = {"damping": DAMPING, "target": TARGET, "threads": self.threads}
        if self.out.exists():
            results: dict[str, Any] = json.loads(self.out.read_text())
            same = results["settings"] == settings and all(
                results["machine"][key] == machine[key] for key in ("cpu", "cores")
            )
            if not same:
                raise SystemExit(
                    f"{self.out} has results of another machine or other settings. Choose another --out."
                )
            return results | {"machine": machine}
        return {"machine": machine, "settings": settings, "graphs": {}, "times": {}, "sweeps": {}}

    def save(self, results: dict[str, Any]) -> None:
        """Write the results whole or not at all."""
        self.out.parent.mkdir(parents=True, exist_ok=True)
        partial = self.out.with_suffix(".partial")
        partial.write_text(json.dumps(results, indent=1) + "\n")
        partial.replace(self.out)


def parse() -> argparse.Namespace:
    """Command line of the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--graphs", nargs="*", default=GRAPHS, help="graphs of the first table: rmatN or file names"
    )
    parser.add_argument("--sweeps", nargs="*", default=SWEPT, help="graphs of the second table")
    parser.add_argument(
        "--only", nargs="+", choices=sorted({*PROGRAMS, *SWEEPS}), help="measure these programs only"
    )
    parser.add_argument("--resume", action="store_true", help="keep what --out has already")
    parser.add_argument("--out", type=Path, required=True, help="JSON file; merged into where it exists")
    parser.add_argument(
        "--folder",
        type=Path,
        default=os.environ.get("OOCPR_GRAPHS"),
        help="folder of the graph files [OOCPR_GRAPHS]",
    )
    parser.add_argument(
        "--python",
        type=Path,
        default=os.environ.get("OOCPR_PEERS_PYTHON"),
        help="interpreter that has the peers [OOCPR_PEERS_PYTHON]",
    )
    parser.add_argument(
        "--gap",
        type=Path,
        default=os.environ.get("OOCPR_GAP"),
        help="folder of GAP's binaries [OOCPR_GAP]",
    )
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "oocpr-bench")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=5, help="timed runs of the setting that is reported")
    parser.add_argument(
        "--budget", type=float, default=20, help="seconds for those runs; past them three are enough"
    )
    parser.add_argument("--limit", type=float, default=600, help="seconds after which a program is given up")
    return parser.parse_args()


def main() -> None:
    """Measure what the command line asks for."""
    asked = parse()
    if asked.gap:
        os.environ["OOCPR_GAP"] = str(asked.gap.resolve())
    bench = Bench(
        out=asked.out,
        cache=asked.cache,
        graphs=asked.folder,
        peers_python=asked.python,
        runs=asked.runs,
        budget=asked.budget,
        limit=asked.limit,
        threads=asked.threads,
    )
    results = bench.load()
    for table, names, programs in (
        ("times", asked.graphs, list(PROGRAMS)),
        ("sweeps", asked.sweeps, list(SWEEPS)),
    ):
        for name in names:
            began = perf_counter()
            graph = prepare(name, bench.graphs, bench.cache)
            if table == "times":
                graph = add_reference(graph)
            results["graphs"][name] = graph.facts
            print(f"{table} {name}: prepared in {perf_counter() - began:.1f} s", flush=True)
            for program in programs:
                done = results[table].setdefault(name, {})
                if (asked.only and program not in asked.only) or (asked.resume and program in done):
                    continue
                began = perf_counter()
                done[program] = cell = bench.measure(table, program, graph)
                bench.save(results)
                outcome = cell.get("reason") or f"{cell['seconds_min']:.4g} s, {cell.get('error', '')}"
                spent = perf_counter() - began
                print(f"  {program}: {cell['status']}: {outcome} (in {spent:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
