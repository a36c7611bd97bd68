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
from programs import PROGRAMS, release
from search import Trial, climb, first_within
from sweeps import SWEEPS

if TYPE_CHECKING:
    from programs import Program, Way

HOPELESS = 3.0
"""A variant is given up once it takes this many times the best one's time without having arrived."""
FEWEST_RUNS = 3


def time_to_error(
    program: Program, graph: EdgeSet, *, target: float, runs: int, budget: float, threads: int
) -> dict[str, Any]:
    """Time of the first setting that reaches the target, and everything needed to judge it.

    Parameters
    ----------
    target
        True L1 error to reach.
    runs
        Runs of the setting that was found.
    budget
        Seconds for those runs; past them three are enough.
    threads
        Threads where the program can use them.
    """
    began = perf_counter()
    ways = program.build(graph, threads)
    built = perf_counter() - began
    tried: dict[str, list[Trial]] = {}
    best: tuple[str, Trial] | None = None
    for name, way in ways.items():
        limit = HOPELESS * best[1].seconds if best else float("inf")
        tried[name] = search(way, graph, target, limit)
        found = first_within(tried[name], target)
        if found and (best is None or found.seconds < best[1].seconds):
            best = name, found
    name, chosen = best or min(
        ((name, trial) for name, trials in tried.items() for trial in trials),
        key=lambda pair: pair[1].error,
    )
    way = ways[name]
    # The first run of all also pays for compiling and for memory; any later one counts.
    first = next(iter(tried.values()))[0]
    repeats = repeat(way, graph, chosen.step, runs, budget, [] if chosen is first else [chosen])
    while best and max(trial.error for trial in repeats) > target and repeats[0].step < way.ladder.top:
        # Programs whose threads race do not repeat their errors: the step has to hold every time.
        repeats = repeat(way, graph, repeats[0].step + 1, runs, budget, [])
    seconds = [trial.seconds for trial in repeats]
    error = max(trial.error for trial in repeats)
    return {
        "status": "reached" if error <= target else "not reached",
        "seconds_min": min(seconds),
        "seconds_median": median(seconds),
        "error": error,
        "way": name,
        "setting": way.setting(repeats[0].step),
        "build_seconds": built,
        "seconds": seconds,
        "tried": {
            name: [asdict(trial) | {"setting": ways[name].setting(trial.step)} for trial in trials]
            for name, trials in tried.items()
        },
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


def search(way: Way, graph: EdgeSet, target: float, limit: float) -> list[Trial]:
    """Climb the ladder of one way, until a trial takes longer than `limit` without having arrived."""
    return climb(
        way.ladder,
        lambda step: attempt(way, graph, step),
        target,
        lambda trial: trial.seconds > limit and trial.error > target,
    )


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
    parser.add_argument("--target", type=float, required=True)
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
                program,
                graph,
                target=chosen.target,
                runs=chosen.runs,
                budget=chosen.budget,
                threads=chosen.threads,
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
