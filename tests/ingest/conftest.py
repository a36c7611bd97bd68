import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array

from oocpr.sources.block import EdgeBlock, NameBlock, NodeBlock, Strings


def printed(program, *words):
    """What a program prints in a process of its own, where warnings are errors."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *map(str, words)],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONWARNINGS": "error"},
    ).stdout


class Arrays:
    """A source over arrays, in blocks of any size; `event` runs in the middle of the reading."""

    size = None
    position = 0
    closed = None

    def __init__(self, src, dst, nodes=None, labels=None, event=None, weight=None):
        self.name = "arrays"
        self.src, self.dst = (np.asarray(ids, getattr(ids, "dtype", np.uint32)) for ids in (src, dst))
        self.nodes = nodes
        self.labels = labels
        self.notices = []
        self.event = event
        self.weight = weight
        self.weighted = weight is not None
        self.reads = 0

    def blocks(self, max_edges):
        self.reads += 1
        for start in range(0, self.src.size, max_edges):
            if self.event is not None and start >= self.src.size // 2:
                self.event()
            part = slice(start, start + max_edges)
            yield EdgeBlock(
                self.src[part], self.dst[part], None if self.weight is None else self.weight[part]
            )


class Named(Arrays):
    """A source of pairs of names, and of nodes that are given as such."""

    def __init__(self, pairs, nodes=(), closed=None, weight=None):
        super().__init__([], [], weight=weight)
        self.name = "names"
        self.pairs, self.given = pairs, nodes
        self.closed = closed

    def blocks(self, max_edges):
        if self.given:
            yield NodeBlock(strings(self.given))
        for start in range(0, len(self.pairs), max_edges):
            src, dst = zip(*self.pairs[start : start + max_edges], strict=True)
            weight = None if self.weight is None else self.weight[start : start + max_edges]
            yield NameBlock(strings(src), strings(dst), weight)

    def locate(self, edge):
        return f"edge {edge}"


def strings(names):
    coded = [name.encode() for name in names]
    ends = np.cumsum([len(name) for name in coded], dtype=np.int64)
    starts = ends - np.array([len(name) for name in coded], np.int64)
    return Strings(np.frombuffer(b"".join(coded), np.uint8), starts, ends)


@pytest.fixture(scope="session")
def arrays():
    return Arrays


@pytest.fixture(scope="session")
def named():
    return Named


@pytest.fixture(scope="session")
def stored_matrix():
    """Read a store with Zarr alone: SciPy matrix with an entry 1 at (v, u) for a link u -> v."""
    import zarr

    def read(path):
        edges = zarr.open_group(Path(path), mode="r")["in_edges"]
        indices, indptr = edges["indices"][:], edges["indptr"][:]
        return csr_array((np.ones(indices.size, np.int64), indices, indptr), shape=edges.attrs["shape"])

    return read


@pytest.fixture(scope="session")
def contents():
    """Every file of a folder with its bytes."""

    def read(folder):
        files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
        return {str(path.relative_to(folder)): path.read_bytes() for path in files}

    return read


@pytest.fixture
def cores():
    """Leave this process so many of the processors it may use, as a scheduler does."""
    before = os.sched_getaffinity(0)
    yield lambda count: os.sched_setaffinity(0, sorted(before)[:count])
    os.sched_setaffinity(0, before)
