"""GAP's PageRank kernels with float64 scores, run as the programs they are.

The binaries are built as the README beside this file says: scores in double, and written to the file named
by ``PR_SCORES`` after the last trial, so that their error is measured and not assumed.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from edge_set import EdgeSet

HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


def folder() -> Path:
    """Where the binaries are.

    Raises
    ------
    ImportError
        Where the environment does not say: to a benchmark that is one more program not installed.
    """
    named = os.environ.get("OOCPR_GAP")
    if not named:
        raise ImportError("the folder of GAP's binaries is not given (--gap)")
    return Path(named)


def revision() -> str:
    """Revision the binaries were built from, if the build noted it."""
    note = folder() / "REVISION"
    return note.read_text().strip() if note.exists() else "unknown"


def write_graph(graph: EdgeSet) -> Path:
    """Serialise a graph as the kernels read it, once; both directions."""
    path = graph.folder / "graph.sg"
    if not path.exists():
        partial = path.with_suffix(".partial")
        with partial.open("wb") as out:
            out.write(b"\x01")  # directed
            out.write(np.array([graph.edges, graph.nodes], dtype=np.int64).tobytes())
            for indptr, indices in (
                (graph.out_indptr, graph.out_indices),
                (graph.in_indptr, graph.in_indices),
            ):
                np.asarray(indptr, dtype=np.int64).tofile(out)
                np.asarray(indices, dtype=np.int32).tofile(out)
        partial.rename(path)
    return path


def run(
    kernel: str,
    path: Path,
    *,
    iterations: int,
    trials: int,
    threads: int,
    huge_pages: bool = True,
    scores: Path | None = None,
) -> list[float]:
    """Seconds of each trial; the scores of the last one go to `scores`.

    Raises
    ------
    ImportError
        Where the binary is missing.
    RuntimeError
        Where it fails; the message has its last line.
    """
    binary = folder() / f"{kernel}_f64"
    if not binary.exists():
        raise ImportError(f"no {binary.name} in the folder of GAP's binaries")
    command = [str(binary), "-f", str(path), "-n", str(trials), "-i", str(iterations), "-t", "0"]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    if huge_pages:
        environment |= HUGE_PAGES
    if scores is not None:
        command.append("-a")
        environment["PR_SCORES"] = str(scores)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError((done.stderr or done.stdout).strip().splitlines()[-1])
    return [float(text) for text in re.findall(r"Trial Time:\s*([\d.]+)", done.stdout)]


def read_scores(path: Path, nodes: int) -> NDArray[np.float64]:
    """Scores a kernel wrote.

    Raises
    ------
    RuntimeError
        Where they are not float64: the binary was built as shipped.
    """
    if not path.exists() or path.stat().st_size != 8 * nodes:
        raise RuntimeError("the binary did not write float64 scores; build it as the README says")
    return np.fromfile(path, dtype=np.float64)
