"""The edge set that every program of a comparison starts from, and its PageRank to the last digits.

A graph is kept as a folder of ``.npy`` arrays: both directions in CSR, duplicates merged, self-loops kept,
and the reference vector. It needs NumPy and SciPy only, because the interpreters of the peers read it too.
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

DAMPING = 0.85
REFERENCE_DELTA = 2e-16
"""L1 change between two power iterations at which the reference has nothing left to gain."""
REFERENCE_PATIENCE = 30
"""Iterations without a smaller change after which rounding is all that is left."""


@dataclass(frozen=True)
class EdgeSet:
    """A prepared graph in its folder; arrays are mapped, not read, until they are used."""

    folder: Path

    def _array(self, name: str) -> NDArray[Any]:
        mapped: NDArray[Any] = np.load(self.folder / f"{name}.npy", mmap_mode="r")
        return mapped

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What a reader of the results wants to know of the graph."""
        facts: dict[str, Any] = json.loads((self.folder / "facts.json").read_text())
        return facts

    @property
    def nodes(self) -> int:
        """Number of nodes, those without any edge included."""
        return int(self.facts["nodes"])

    @property
    def edges(self) -> int:
        """Number of distinct edges."""
        return int(self.facts["edges"])

    @property
    def out_indptr(self) -> NDArray[np.int64]:
        """Where each node's out-neighbours start; shape (nodes + 1,)."""
        return self._array("out_indptr")

    @property
    def out_indices(self) -> NDArray[np.int32]:
        """Out-neighbours, ascending inside a node; shape (edges,)."""
        return self._array("out_indices")

    @property
    def in_indptr(self) -> NDArray[np.int64]:
        """Where each node's in-neighbours start; shape (nodes + 1,)."""
        return self._array("in_indptr")

    @property
    def in_indices(self) -> NDArray[np.int32]:
        """In-neighbours, ascending inside a node; shape (edges,)."""
        return self._array("in_indices")

    @property
    def reference(self) -> NDArray[np.float64]:
        """PageRank that errors are measured against; shape (nodes,), sums to 1."""
        return self._array("reference")

    @property
    def sources(self) -> NDArray[np.int32]:
        """Where each edge of ``out_indices`` starts; shape (edges,)."""
        return np.repeat(np.arange(self.nodes, dtype=np.int32), np.diff(self.out_indptr))

    def adjacency(self, dtype: type[np.generic] = np.float64) -> sparse.csr_matrix:
        """Matrix with a one at [i, j] for every edge i -> j."""
        ones: NDArray[Any] = np.ones(self.edges, dtype=dtype)
        return sparse.csr_matrix((ones, self.out_indices, self.out_indptr), (self.nodes, self.nodes))

    def transition(self) -> sparse.csr_matrix:
        """Matrix that takes a probability vector one damped step along the edges."""
        degree = np.diff(self.out_indptr)
        share = np.divide(DAMPING, degree, out=np.zeros(self.nodes), where=degree > 0)
        return sparse.csr_matrix(
            (share[self.in_indices], self.in_indices, self.in_indptr), (self.nodes, self.nodes)
        )

    def error(self, ranks: Any) -> float:
        """L1 distance to the reference, once the ranks are scaled to sum 1."""
        exact: NDArray[np.float64] = np.asarray(ranks, dtype=np.float64)
        return float(np.abs(exact / exact.sum() - self.reference).sum())


def power_iteration(
    step: sparse.csr_matrix,
    dangling: NDArray[np.intp],
    stop: Callable[[float], bool],
) -> NDArray[np.float64]:
    """PageRank by SciPy's product; dangling mass is spread uniformly.

    Parameters
    ----------
    step
        The graph's `EdgeSet.transition`.
    dangling
        Nodes without out-edges.
    stop
        Told the L1 change of each iteration, says whether it was the last.
    """
    nodes = step.shape[0]
    ranks = np.full(nodes, 1 / nodes)
    while True:
        moved: NDArray[np.float64] = step @ ranks
        moved += (DAMPING * ranks[dangling].sum() + 1 - DAMPING) / nodes
        ranks -= moved
        change = float(np.abs(ranks).sum())
        ranks = moved
        if stop(change):
            return ranks


def prepare(name: str, graphs: Path | None, cache: Path) -> EdgeSet:
    """Edge set of a named graph, made on first use.

    Parameters
    ----------
    name
        ``rmatN`` for an R-MAT graph of 2**N nodes, or the name of a file in `graphs`.
    graphs
        Folder of edge lists (``NAME.mtx`` or ``NAME.txt``, compressed or not).
    cache
        Folder where prepared graphs stay.

    Raises
    ------
    FileNotFoundError
        Where no such graph is.
    """
    folder = cache / name
    if (folder / "facts.json").exists():
        return EdgeSet(folder)
    folder.mkdir(parents=True, exist_ok=True)
    scale = re.fullmatch(r"rmat(\d+)", name)
    nodes, keys = _rmat_keys(int(scale[1])) if scale else _file_keys(name, graphs)
    keys.sort()
    distinct = np.ones(keys.size, dtype=bool)
    np.not_equal(keys[1:], keys[:-1], out=distinct[1:])
    keys = keys[distinct]
    target = (keys & np.uint64(2**32 - 1)).astype(np.int32)
    source = (keys >> np.uint64(32)).astype(np.int32)
    del keys, distinct
    indptr = np.concatenate([[0], np.cumsum(np.bincount(source, minlength=nodes))])
    marks = sparse.csr_matrix((np.ones(target.size, dtype=np.int8), target, indptr), (nodes, nodes))
    inward = marks.tocsc()
    arrays = {
        "out_indptr": indptr,
        "out_indices": target,
        "in_indptr": inward.indptr.astype(np.int64),
        "in_indices": inward.indices.astype(np.int32),
    }
    for key, array in arrays.items():
        np.save(folder / f"{key}.npy", array)
    facts: dict[str, object] = {
        "nodes": nodes,
        "edges": int(target.size),
        "dangling": int(np.count_nonzero(np.diff(indptr) == 0)),
        "self_loops": int(np.count_nonzero(source == target)),
    }
    del marks, inward, source, target, arrays
    (folder / "facts.json").write_text(json.dumps(facts))
    return EdgeSet(folder)


def add_reference(graph: EdgeSet) -> EdgeSet:
    """Give a graph its reference vector, computed where it has none yet."""
    if "reference_bound" in graph.facts:
        return graph
    began = perf_counter()
    changes: list[float] = []

    def settled(change: float) -> bool:
        changes.append(change)
        return change < REFERENCE_DELTA or min(changes[:-REFERENCE_PATIENCE], default=9.0) <= min(
            changes[-REFERENCE_PATIENCE:]
        )

    ranks = power_iteration(graph.transition(), np.flatnonzero(np.diff(graph.out_indptr) == 0), settled)
    np.save(graph.folder / "reference.npy", ranks / ranks.sum())
    facts = graph.facts | {
        "reference_bound": changes[-1] * DAMPING / (1 - DAMPING),
        "reference_seconds": round(perf_counter() - began, 2),
    }
    (graph.folder / "facts.json").write_text(json.dumps(facts))
    return EdgeSet(graph.folder)


def _rmat_keys(scale: int) -> tuple[int, NDArray[np.uint64]]:
    from oocpr.sources.rmat import Rmat

    blocks = [_keys(block.src, block.dst) for block in Rmat(scale).blocks(2**22)]
    return 2**scale, np.concatenate(blocks)


def _file_keys(name: str, graphs: Path | None) -> tuple[int, NDArray[np.uint64]]:
    found = [path for kind in ("mtx", "txt") for path in sorted((graphs or Path()).glob(f"{name}.{kind}*"))]
    if not found:
        raise FileNotFoundError(f"no graph {name}.mtx or {name}.txt in the folder of graphs")
    opener: Any = {".xz": lzma.open, ".gz": gzip.open, ".bz2": bz2.open}.get(found[0].suffix, open)
    with opener(found[0], "rt") as lines:
        if ".mtx" not in found[0].suffixes:
            pairs = np.loadtxt(lines, dtype=np.int64, usecols=(0, 1), ndmin=2)
            ids, pairs = np.unique(pairs, return_inverse=True)
            pairs = pairs.reshape(-1, 2)
            return ids.size, _keys(pairs[:, 0], pairs[:, 1])
        header = next(lines)
        if "general" not in header.lower():
            raise ValueError(f"{found[0].name} is not a general Matrix Market file")
        while (sizes := next(lines)).startswith("%"):
            pass
        pairs = np.loadtxt(lines, dtype=np.int64, usecols=(0, 1), ndmin=2) - 1
        return int(sizes.split()[0]), _keys(pairs[:, 0], pairs[:, 1])


def _keys(source: NDArray[Any], target: NDArray[Any]) -> NDArray[np.uint64]:
    """One sortable number an edge: source in the high half, target in the low."""
    return (source.astype(np.uint64) << np.uint64(32)) | target.astype(np.uint64)
