"""Compiling ahead what imports and runs on processors need, such as for an image of a container."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from oocpr.api.graphs import import_graph
from oocpr.api.ranking import pagerank
from oocpr.jit import kept_in, watched
from oocpr.progress import Progress, silent

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oocpr.api.graphs import Graph

TILED = ("mixed", "residual", "power")
READS = ("float64", "float32", "bits16", "bits8")


def warmup(progress: Progress = silent) -> tuple[str, float]:
    """Compile what an import, a run on processors and a list of the first nodes need.

    Parameters
    ----------
    progress
        Told of each function that is compiled.

    Returns
    -------
    str
        Folder in which the compiled functions are kept; empty if no folder can be written.
    float
        Seconds that compiling took; 0 if everything was there.
    """
    ids = np.random.default_rng(1).integers(0, 300, (2, 3000))
    with TemporaryDirectory(prefix="oocpr-warmup-") as folder, watched(progress) as compilation:
        numbers, names = Path(folder, "numbers.txt"), Path(folder, "names.tsv")
        np.savetxt(numbers, ids.T, "%d")
        names.write_text("".join(f"n{source}\tn{target}\n" for source, target in ids.T))
        weighted = Path(folder, "weighted.txt")
        np.savetxt(weighted, np.vstack([ids, ids[0] + 1]).T, "%d")
        path = Path(folder, "g.zarr")
        import_graph(names, path)
        _rank(import_graph(numbers, path, order="degree", overwrite=True), ("auto", *TILED))
        weighing = import_graph(weighted, path, weight="3", duplicates="sum", overwrite=True)
        _rank(weighing, TILED)
    return kept_in(), compilation.seconds


def _rank(graph: Graph, methods: Iterable[str]) -> None:
    for method in methods:
        for reads in (None,) if method in ("auto", "power") else READS:
            pagerank(graph, method=method, reads=reads, tol=1e-4).top(3)
