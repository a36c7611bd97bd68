"""A run allocates no more than its plan says."""

from __future__ import annotations

import subprocess
import sys
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

UNCOUNTED_BYTES = 2**20
"""Bytes of reports, tables and views that no plan counts."""


@pytest.mark.long
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
    assert peak <= plan.need.total - SHARED + plan.cache_bytes + UNCOUNTED_BYTES


ALONE = """
import sys
from pathlib import Path

import numpy as np
from oocpr.api.graphs import as_graph, open_graph
from oocpr.api.ranking import pagerank
from oocpr.engine.planning import stats_of
from oocpr.plan.memory import scc_need
from oocpr.plan.request import PlanRequest

def resident(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024

few = np.arange(1000)
pagerank(as_graph((few, few[::-1])), method="components")
graph = open_graph(sys.argv[1])
# Loading compiled functions took more than the graph will; the system forgets that peak.
Path("/proc/self/clear_refs").write_text("5")
before = resident("VmRSS")
pagerank(graph, method="components", max_passes=4)
need = scc_need(stats_of(graph.store), PlanRequest(method="components", reads="float32", memory=0))
print(resident("VmHWM") - before, need.total)
"""


@pytest.mark.long
def test_a_graph_in_memory_whole_takes_no_more_than_its_plan(stored):
    nodes = 1_500_000
    # Half of the rows have the links of others, and half of the links lie in cycles.
    src = np.concatenate([RNG.integers(0, 1000, nodes), RNG.integers(0, 2000, nodes // 2)])
    dst = np.concatenate([np.arange(nodes) | 1, np.arange(nodes // 2)])
    store = stored(Digraph(nodes, src, dst), 2**18)
    command = [sys.executable, "-c", ALONE, str(store.path)]
    taken, planned = map(int, subprocess.run(command, capture_output=True, check=True).stdout.split())
    assert planned / 3 < taken <= planned


CALLED = """
import sys
from numba.core.dispatcher import Dispatcher

from oocpr.engine import planning
from oocpr.engine.run import rank_graph
from oocpr.progress import silent
from oocpr.store.graph import open_store

def loaded():
    rooms = [vars(room) for name, room in list(sys.modules.items()) if name.startswith("oocpr.")]
    found = {value for room in rooms for value in room.values() if isinstance(value, Dispatcher)}
    return {(function.__name__, types) for function in found for types in function.overloads}

store, settings = open_store(sys.argv[1]), planning.asked_settings("mixed", None)
plenty = planning.plan_run(store, settings, planning.RunRequest(memory=1 << 40), planning.process_bytes())
# Too little for decoded tiles beside what functions may take, which is more than they do take.
request = planning.RunRequest(memory=plenty.plan.need.total + plenty.plan.cache_bytes // 2)
before = planning.plan_run(store, settings, request, planning.process_bytes()).plan
planned, _ = planning.plan_loaded(store, settings, request, silent)
assert planned.plan.decoded > before.decoded
known = loaded()
rank_graph(planned.store, planned.plan, planned.settings)
print(*(loaded() - known))
"""


@pytest.mark.long
def test_nothing_is_compiled_once_a_run_is_planned_within_little_memory(stored):
    edges = 3_000_000
    store = stored(Digraph(50_000, RNG.integers(0, 50_000, edges), RNG.integers(0, 50_000, edges)), 2**18)
    command = [sys.executable, "-c", CALLED, str(store.path)]
    assert subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip() == ""
