"""Compiling in a process of its own, so that this one does not keep the memory that it takes.

The compiler leaves a hundred mebibytes behind, once on a machine; within a tight budget a run would have that
much less for its vectors. What is compiled is kept in files, from which this process then loads it.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from typing import TYPE_CHECKING

from oocpr.engine.probe.measure import load_compiled
from oocpr.jit import MustCompileError, watched, without_compiling

if TYPE_CHECKING:
    from oocpr.engine.settings import Settings
    from oocpr.plan.plan import Plan
    from oocpr.progress import Progress
    from oocpr.store.graph import GraphStore

STAGE = "compiling, once on a machine"

_PROGRAM = "from oocpr.engine.probe.warmup import main; main()"


def load_functions(store: GraphStore, plan: Plan, settings: Settings, progress: Progress) -> float:
    """Load the compiled functions of a run on processors, and have another process compile what is not there.

    Progress is reported after each function that is compiled. Returns the seconds that compiling took.
    """
    try:
        with without_compiling():
            load_compiled(store, plan, settings)
    except MustCompileError:
        seconds = _compile(store.path, plan, settings, progress)
        with watched(progress) as compilation:
            # What the other process could not keep, too.
            load_compiled(store, plan, settings)
        return seconds + compilation.seconds
    return 0.0


def _compile(path: str, plan: Plan, settings: Settings, progress: Progress) -> float:
    """Compile in another process; returns the seconds of that, 0 if there can be none."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(part for part in sys.path if part),
        "PYTHONSAFEPATH": "1",  # nothing is imported from the working folder
    }
    command = [sys.executable, "-c", _PROGRAM]
    pipe, seconds = subprocess.PIPE, 0.0
    try:
        process = subprocess.Popen(
            command, env=environment, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL
        )
    except OSError:
        return seconds
    with process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(pickle.dumps((path, plan, settings)))
            process.stdin.close()
            for line in process.stdout:
                functions, took = line.split()
                seconds = float(took)
                progress(STAGE, int(functions), None, "functions")
        except BrokenPipeError:
            pass
        finally:
            process.kill()
    return seconds


def main() -> None:
    """Compile for the run that comes from standard input; print how many functions, and seconds, so far."""
    from oocpr.store.graph import open_store

    path, plan, settings = pickle.load(sys.stdin.buffer)

    def tell(stage: str, done: int, total: int | None, unit: str, note: str = "") -> None:  # noqa: ARG001
        sys.stdout.write(f"{done} {compilation.seconds}\n")
        sys.stdout.flush()

    with watched(tell) as compilation:
        load_compiled(open_store(path), plan, settings)
