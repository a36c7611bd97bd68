"""Ranks with everything a run leaves in them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import oocpr
from oocpr.result.ranks import Report


@pytest.fixture
def environment() -> dict[str, str]:
    """Give a child process the package under test, installed or not."""
    return os.environ | {"PYTHONPATH": str(Path(oocpr.__file__).parents[1])}


@pytest.fixture
def graph(tmp_path: Path) -> oocpr.Graph:
    src, dst = np.random.default_rng(5).integers(0, 300, (2, 3000))
    return oocpr.import_graph((src, dst), tmp_path / "graph.zarr")


@pytest.fixture
def run() -> Report:
    """Facts of a run, none of them a default."""
    return Report(
        nodes=5,
        edges=7,
        method="residual",
        reads="bits8",
        damping=0.8,
        tol=1e-9,
        dangling="weakly",
        personalized=False,
        converged=True,
        error_bound=3e-10,
        passes=40,
        gathers=40.5,
        seconds=0.25,
        compile_seconds=0.05,
        gteps=7 * 40 / 0.2 / 1e9,
        bytes_per_edge=1.75,
        bytes_read=123,
        peak_memory=1 << 27,
    )
