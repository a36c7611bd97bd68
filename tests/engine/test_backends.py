"""The compiled backend against the plain one, and against itself with other numbers of threads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oocpr.engine.devices import make_backend
from oocpr.engine.number_formats import READS
from oocpr.engine.settings import Settings
from oocpr.engine.stripe import Job
from oocpr.errors import UsageError

from .digraphs import Digraph, digraphs, fewer, random_digraph
from .running import CONVERGENT, KEPT, Passed, Stored, check_same_bits, passes, plan_of, rank

if TYPE_CHECKING:
    from oocpr.store.graph import GraphStore


def first_passes(
    store: GraphStore, settings: Settings, backend: str, sweeps: int = 3, **how: object
) -> tuple[Passed, Passed]:
    """Two passes from a state of no pattern: the first pushes a random teleport vector."""
    weights = np.random.default_rng(5).random(store.nodes) ** 4
    plan = plan_of(store, settings, sweeps=sweeps, personalized=True, **how)  # type: ignore[arg-type]
    job = Job("", settings, plan, backend, threads=1, teleport=weights / weights.sum())
    one, two = passes(job, store, 2)
    return one, two


@pytest.mark.long
@pytest.mark.parametrize("reads", READS)
@pytest.mark.parametrize("tile_edges", [1, 5, 16, 64, 2000])
def test_a_pass_delivers_what_the_plain_backend_delivers(stored, reads, tile_edges):
    graph = random_digraph(30, 50, seed=tile_edges)
    store = stored(graph, tile_edges)
    # With one sweep rows do not propose: their residuals are what they push next.
    for most, sweeps in ((1, 3), (2, 1), (4, 3)):
        settings = Settings(reads=reads)
        how = {"stripes": min(most, store.tiles), "sweeps": sweeps}
        plain, later = first_passes(store, settings, "reference", **how)
        for kept in KEPT:
            ours, then = first_passes(store, settings, "cpu", kept=kept, **how)
            assert np.array_equal(ours.pushed, plain.pushed)
            assert np.abs(ours.after - plain.after).sum() <= 1e-14
            assert abs(ours.residual - plain.residual) <= 1e-14
            # Proposals are float32 in one and float64 in the other, before they are rounded.
            close = 1e-6 if READS[reads].bytes >= 4 else 2 * READS[reads].unit_rounding
            assert np.abs(then.pushed - later.pushed).sum() <= close * np.abs(later.pushed).sum()


@pytest.mark.long
@pytest.mark.parametrize(("name", "reads"), CONVERGENT)
@pytest.mark.parametrize("stripes", [1, 2, 3, 4])
def test_a_run_takes_as_many_passes_as_the_plain_one(stored, name, reads, stripes):
    tol = 1e-6 if (name, reads) == ("power", "float32") else 1e-10
    graph = random_digraph(200, 700, seed=1)
    store = stored(graph, 100)
    how = {"reads": reads, "method": name, "tol": tol, "stripes": stripes, "sweeps": 4 if stripes % 2 else 1}
    ours = rank(store, **how)
    plain = rank(store, backend="reference", **how)
    assert ours.converged
    assert plain.converged
    assert abs(ours.passes - plain.passes) <= 1
    assert np.abs(ours.ranks - plain.ranks).sum() <= ours.error_bound + plain.error_bound


@pytest.mark.long
@pytest.mark.parametrize("kept", ["decoded", "none"])
@pytest.mark.parametrize("reads", READS)
def test_any_number_of_threads_gives_the_same_bits(stored, reads, kept):
    graph = random_digraph(3000, 40_000, seed=2)
    store = stored(graph, 9000)
    runs = [rank(store, reads=reads, threads=threads, stripes=2, kept=kept) for threads in (1, 2, 3, 5, 8)]
    for run in runs[1:]:
        check_same_bits(run, runs[0])


@pytest.mark.long
@fewer(5)
@given(graph=digraphs(most_nodes=60, most_links=150), data=st.data())
def test_threads_and_cached_tiles_change_no_bit_of_any_graph(graph, data):
    with Stored(graph, data.draw(st.integers(1, 40))) as store:
        stripes = data.draw(st.integers(1, min(4, store.tiles)))
        reads, sweeps = data.draw(st.sampled_from(list(READS))), data.draw(st.sampled_from([1, 3]))
        how = {"reads": reads, "stripes": stripes, "sweeps": sweeps}
        one = rank(store, threads=1, **how)
        for threads, kept in ((1, "packed"), (2, "decoded"), (2, "some"), (3, "none")):
            other = rank(store, threads=threads, kept=kept, **how)
            assert np.array_equal(one.ranks, other.ranks)


def long_rows() -> Digraph:
    """60 000 links; node 7 has 30 000 of them, and rows before and behind it have theirs."""
    rng = np.random.default_rng(4)
    nodes = 30_000
    src = [np.arange(nodes), rng.integers(0, nodes, 30_000)]
    dst = [np.full(nodes, 7), rng.integers(0, 400, 30_000)]
    return Digraph(nodes, np.concatenate(src), np.concatenate(dst))


# One tile of several pieces of 16 x 1024 edges; tiles that lie inside the long row; stripes that do.
@pytest.mark.long
@pytest.mark.parametrize(
    ("tile_edges", "stripes", "sweeps"), [(2**17, 1, 3), (20_000, 1, 3), (5000, 4, 3), (5000, 4, 1)]
)
@pytest.mark.parametrize("kept", ["decoded", "none"])
def test_a_row_that_spans_pieces_tiles_and_stripes(stored, tile_edges, stripes, sweeps, kept):
    store = stored(long_rows(), tile_edges)
    settings = Settings(reads="float64")
    how = {"stripes": stripes, "sweeps": sweeps}
    plain, later = first_passes(store, settings, "reference", **how)
    ours, then = first_passes(store, settings, "cpu", kept=kept, **how)
    assert np.abs(ours.after - plain.after).sum() <= 1e-14
    # Sweeps inside a tile add the 30 000 numbers of a row in float32.
    assert np.abs(then.after - later.after).sum() <= 1e-4 * np.abs(later.after - plain.after).sum()
    one, three = (rank(store, threads=threads, kept=kept, **how) for threads in (1, 3))
    assert np.array_equal(one.ranks, three.ranks)


def test_a_backend_that_is_not_known_is_refused():
    with pytest.raises(UsageError, match="abacus"):
        make_backend("abacus", 1)
