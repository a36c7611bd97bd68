"""The method in plain NumPy, as docs/method.md has it: an oracle that shares no code with the package."""

import re
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

import oocpr

PAGE = Path(__file__).parent.parent / "docs/method.md"


@pytest.fixture(scope="module")
def page():
    (code,) = re.findall(r"```python\n(import numpy.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert re.findall(r"^(?:import|from) .*", code, re.MULTILINE) == ["import numpy as np"]
    assert code.count("\n") <= 120
    names = {}
    exec(compile(code, str(PAGE), "exec"), names)
    return names["pagerank"]


def random_graph(nodes, edges, seed):
    rng = np.random.default_rng(seed)
    keys = np.unique(rng.integers(0, nodes, edges) ** 2 // nodes * nodes + rng.integers(0, nodes, edges))
    return keys // nodes, keys % nodes


def exact(sources, targets, nodes, weights, damping, teleport):
    """Ranks by a direct solve, without any iteration."""
    out = np.bincount(sources, weights, nodes)
    share = weights / out[sources]
    walk = sp.csr_array((share, (targets, sources)), shape=(nodes, nodes)).toarray()
    walk[:, out == 0] = teleport[:, None]
    ranks = np.linalg.solve(np.eye(nodes) - damping * walk, (1 - damping) * teleport)
    return ranks / ranks.sum()


@pytest.mark.parametrize(
    ("nodes", "edges", "weighted", "damping"),
    [
        (5, 9, False, 0.85),
        (300, 2000, True, 0.85),
        (500, 600, False, 0.85),
        (300, 900, True, 0.95),
        (20, 20, False, 0.9985),
    ],
)
def test_the_page_finds_exact_ranks_within_its_bound(page, nodes, edges, weighted, damping):
    sources, targets = random_graph(nodes, edges, seed=nodes)
    rng = np.random.default_rng(1)
    weights = rng.random(len(sources)) if weighted else np.ones(len(sources))
    teleport = rng.random(nodes)
    teleport /= teleport.sum()
    ranks, bound, passes = page(
        sources, targets, nodes, weights, damping=damping, teleport=teleport, tile_edges=128
    )
    assert bound <= 1e-10
    assert np.abs(ranks - exact(sources, targets, nodes, weights, damping, teleport)).sum() <= bound
    assert passes < (60 if damping > 0.9 else 25)


def test_the_page_and_the_package_agree(page):
    nodes = 1500
    sources, targets = random_graph(nodes, 10000, seed=7)
    ranks, bound, passes = page(sources, targets, nodes, tile_edges=1024)
    matrix = sp.coo_array((np.ones(len(sources)), (sources, targets)), shape=(nodes, nodes))
    ours = oocpr.pagerank(matrix, method="mixed", tol=1e-10)
    assert np.abs(ours.to_numpy() - ranks).sum() <= bound + ours.error_bound
    assert abs(passes - len(ours.history)) <= 4
