"""A run allocates no more than its plan says."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from oocpr.engine.settings import Settings
from oocpr.plan.memory import SHARED

from .digraphs import Digraph
from .running import KEPT, plan_of, rank

RNG = np.random.default_rng(13)
SPARSE = Digraph(300_000, RNG.integers(0, 300_000, 200_000), RNG.integers(0, 300_000, 200_000))
DENSE = Digraph(5000, RNG.integers(0, 5000, 400_000), RNG.integers(0, 5000, 400_000))
HUB = Digraph(200_000, np.arange(200_000), np.full(200_000, 99))
GRAPHS = {"sparse": SPARSE, "dense": DENSE, "hub": HUB}

SMALL_CHANGE = 2**20
"""Bytes of reports, tables and views that no plan counts."""


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize(("method", "reads"), [("mixed", "float64"), ("residual", "bits8")])
def test_the_peak_is_within_the_plan(stored, name, method, reads, kept):
    store = stored(GRAPHS[name], 2**15)
    how = {"method": method, "reads": reads, "stripes": 2}
    plan = plan_of(store, Settings(method=method, reads=reads), stripes=2, kept=kept)
    rank(store, max_passes=1, kept=kept, **how)
    tracemalloc.start()
    try:
        rank(store, max_passes=8, kept=kept, **how)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= plan.need.total - SHARED + plan.cache_bytes + SMALL_CHANGE
