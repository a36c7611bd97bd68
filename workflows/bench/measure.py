"""Measure one program on one graph in a process of its own; started by cpu_peers.py."""

from __future__ import annotations

import argparse
import json
import os
import resource
from dataclasses import asdict
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from edge_set import EdgeSet
from programs import PROGRAMS, TARGET, release
from search import Trial, climb, first_within
from sweeps import SWEEPS

if TYPE_CHECKING:
    from programs import Program, Way

FEWEST_RUNS = 3


def time_to_error(
    program: Program, graph: EdgeSet, *, runs: int, budget: float, threads: int
) -> dict[str, Any]:
    """Time of the first setting that reaches TARGET, and everything needed to judge it.

    Parameters
    ----------
    runs
        Runs of the setting that was found.
    budget
        Seconds for those runs; past them three are enough.
    threads
        Threads where the program can use them.
    """
    began = perf_counter()
    way = program.build(graph, threads)
    built = perf_counter() - began
    trials = climb(way.ladder, lambda step: attempt(way, graph, step), TARGET)
    found = first_within(trials, TARGET)
    chosen = found or min(trials, key=lambda trial: trial.error)
    # The first run of all also pays for compiling and for memory; any later one counts.
    repeats = repeat(way, graph, chosen.step, runs, budget, [] if chosen is trials[0] else [chosen])
    while found and max(trial.error for trial in repeats) > TARGET and repeats[0].step < way.ladder.top:
        # Programs whose threads race do not repeat their errors: the step has to hold every time.
        repeats = repeat(way, graph, repeats[0].step + 1, runs, budget, [])
    seconds = [trial.seconds for trial in repeats]
    error = max(trial.error for trial in repeats)
    return {
        "status": "reached" if error <= TARGET else "not reached",
        "seconds_min": min(seconds),
        "seconds_median": median(seconds),
        "error": error,
        "setting": way.setting(repeats[0].step),
        "build_seconds": built,
        "seconds": seconds,
        "tried": [asdict(trial) | {"setting": way.setting(trial.step)} for trial in trials],
    }


def repeat(way: Way, graph: EdgeSet, step: int, runs: int, budget: float, done: list[Trial]) -> list[Trial]:
    """Runs of one step, those `done` included: `runs`, or `FEWEST_RUNS` where the budget is spent."""
    trials = list(done)
    while len(trials) < runs and (
        len(trials) < FEWEST_RUNS or sum(trial.seconds for trial in trials) < budget
    ):
        trials.append(attempt(way, graph, step))
    return trials


def attempt(way: Way, graph: EdgeSet, step: int) -> Trial:
    """Run one step."""
    seconds, ranks = way.solve(step)
    return Trial(step, seconds, graph.error(ranks))


def peak_memory() -> int:
    """Largest resident set of this process or of a program it ran, in KiB."""
    # What getrusage says of this process also counts the process that started it.
    status = Path("/proc/self/status").read_text()
    own = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return max(int(own.split()[1]), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)


def main() -> None:
    """Write the measurement as JSON; a program that is not installed is a result too."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", choices=["times", "sweeps"])
    parser.add_argument("program")
    parser.add_argument("graph", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--runs", type=int, required=True)
    parser.add_argument("--budget", type=float, required=True)
    parser.add_argument("--threads", type=int, required=True)
    chosen = parser.parse_args()
    load = os.getloadavg()[0]
    graph = EdgeSet(chosen.graph)
    cell: dict[str, Any]
    try:
        if chosen.table == "times":
            program = PROGRAMS[chosen.program]
            cell = time_to_error(
                program, graph, runs=chosen.runs, budget=chosen.budget, threads=chosen.threads
            )
            cell |= {"version": release(program), "threads": chosen.threads if program.parallel else 1}
        else:
            cell = SWEEPS[chosen.program](graph, chosen.runs, chosen.threads)
    except ImportError as missing:
        cell = {"status": "unavailable", "reason": str(missing)}
    cell |= {"peak_memory_mib": peak_memory() // 1024, "load_before": round(load, 2)}
    chosen.out.write_text(json.dumps(cell))


if __name__ == "__main__":
    main()
