"""Graphs in memory whole: every link is laid out once, and the ranks are right and certified."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oocpr.engine.scc.level_schedule import LISTED, SHARED, SWEPT, WALKED, schedule_rows
from oocpr.engine.scc.run import load_scc_graph
from oocpr.engine.settings import Settings
from oocpr.errors import DamagedError, UsageError
from oocpr.store.graph import open_store

from .digraphs import Digraph, digraphs, exact_ranks, fewer, product, random_digraph, teleports
from .running import Stored, rank_whole


def knotted(seed: int = 3) -> Digraph:
    """Cycles small and large, hubs, chains, links to oneself: every kind of stage."""
    random = np.random.default_rng(seed)
    nodes = 61_000
    parts = [
        # A large component with hubs, then a wide level of rows that hang on it.
        (random.integers(0, 9000, 240_000), (random.random(240_000) ** 3 * 9000).astype(np.int64)),
        (random.integers(0, 9000, 60_000), random.integers(9000, 30_000, 60_000)),
        # Pairs that link to each other and to the level above, and a chain below them.
        (np.arange(30_000, 50_000), np.arange(30_000, 50_000) ^ 1),
        (random.integers(9000, 30_000, 40_000), random.integers(30_000, 50_000, 40_000)),
        (np.arange(49_999, 59_998), np.arange(50_000, 59_999)),
        (np.arange(0, 60_000, 7), np.arange(0, 60_000, 7)),
        # Sites whose pages all link to each other and to themselves, small and large.
        *(
            tuple(ends.ravel() for ends in np.meshgrid(site, site))
            for site in (np.arange(100, 120), np.arange(8000, 8200))
        ),
        # Leaves with the same few links, and with the same many.
        tuple(ends.ravel() for ends in np.meshgrid(np.arange(60), np.arange(60_000, 60_500))),
        tuple(ends.ravel() for ends in np.meshgrid(np.arange(0, 9000, 50), np.arange(60_500, 60_550))),
    ]
    src, dst = (np.concatenate(ends) for ends in zip(*parts, strict=True))
    return Digraph(nodes, src, dst)


@fewer(2)
@given(graph=digraphs(), data=st.data())
def test_the_true_error_is_below_the_certified_bound(graph, data):
    damping = data.draw(st.sampled_from([0.2, 0.85, 0.97]))
    dangling = data.draw(st.sampled_from(["strongly", "weakly"]))
    teleport = data.draw(teleports(graph.nodes))
    exact = exact_ranks(graph, damping, teleport, dangling)
    tol = data.draw(st.sampled_from([1e-3, 1e-7, 1e-10]))
    with Stored(graph, data.draw(st.integers(1, 20))) as store:
        run = rank_whole(store, tol=tol, damping=damping, dangling=dangling, teleport=teleport)
    assert run.converged
    assert run.error_bound <= run.tol
    assert np.abs(run.ranks - exact).sum() <= run.error_bound
    assert abs(run.ranks.sum() - 1) <= 1e-14


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    from oocpr.sources import open_source

    from .running import build

    return build(open_source(knotted().entries), tmp_path_factory.mktemp("knotted") / "graph.zarr")


def test_every_kind_of_stage_is_right_in_few_passes(store):
    graph = knotted()
    schedule = load_scc_graph(store).schedule
    assert {*schedule.stages[:, 0].tolist()} == {SHARED, LISTED, WALKED, SWEPT}
    assert len(schedule.long_rows) > 8
    assert len(schedule.duplicate_rows) > 400
    long = schedule.long_ptr.astype(np.int64)
    assert (np.diff(long) == 0).sum() > 40
    run = rank_whole(store)
    assert run.converged
    assert run.passes <= 3
    # One more product moves the exact ranks by nothing, and these by what is certified.
    moved = product(graph, run.ranks, 0.85) - run.ranks
    assert np.abs(moved).sum() <= run.error_bound


def test_the_number_of_threads_changes_no_bit(store):
    ranks = [rank_whole(store, threads=threads).ranks for threads in (1, 2, 3, 5, 8)]
    assert all((ranks[0] == other).all() for other in ranks[1:])


def test_a_graph_that_was_kept_is_not_read_again(store):
    kept = {}
    first, second = rank_whole(store, kept=kept), rank_whole(store, kept=kept)
    assert first.bytes_read > 0
    assert second.bytes_read == 0
    assert (first.ranks == second.ranks).all()
    other = rank_whole(store, kept=kept, damping=0.5)
    assert (other.ranks == rank_whole(store, damping=0.5).ranks).all()


def test_every_link_is_laid_out_once():
    graph = knotted()
    into = graph.into
    schedule = schedule_rows(into.indptr.astype(np.uint32), into.indices.astype(np.uint32))
    live = graph.nodes + 1
    found = [np.stack([schedule.loops, schedule.loops], axis=1)]
    for row in schedule.members:
        first = int(schedule.offsets[row])
        links = schedule.columns[first : first + int(schedule.outer[row]) + int(schedule.inner[row])]
        found.append(np.stack([np.full_like(links, row), links], axis=1))
    ranges = [stage[1:5] for stage in schedule.stages if stage[0] == SHARED] + [*schedule.regions[:, :4]]
    for low, high, long_low, long_high in ranges:
        for s in range(low, high - 1):
            block = schedule.slice_columns[schedule.slice_ptr[s] : schedule.slice_ptr[s + 1]].reshape(-1, 16)
            duplicates = slice(*schedule.duplicate_ptr[s : s + 2])
            rows = [*enumerate(schedule.targets[16 * s : 16 * s + 16], 16 * s)]
            for place, row in [
                *rows,
                *zip(schedule.duplicate_places[duplicates], schedule.duplicate_rows[duplicates], strict=True),
            ]:
                links = block[:, place - 16 * s]
                links = links[links != graph.nodes]
                found.append(np.stack([np.full_like(links, row), links % live], axis=1))
        for q in range(long_low, long_high - 1):
            # A row without columns has those of the next that has some.
            end = next(end for end in schedule.long_ptr[q + 1 :] if end > schedule.long_ptr[q])
            links = schedule.slice_columns[schedule.long_ptr[q] : end]
            found.append(np.stack([np.full_like(links, schedule.long_rows[q]), links % live], axis=1))
    pairs = np.concatenate(found).astype(np.int64)
    keys = np.sort(pairs[:, 0] * graph.nodes + pairs[:, 1])
    expected = into.tocoo()
    assert keys.tolist() == np.sort(expected.row.astype(np.int64) * graph.nodes + expected.col).tolist()


def test_passes_that_run_out_are_an_outcome(store):
    run = rank_whole(store, max_passes=1)
    assert not run.converged
    assert run.passes == 1
    assert run.error_bound > run.tol


def test_high_damping_is_solved_too():
    graph = random_digraph(400, 900, seed=2)
    with Stored(graph, 200) as stored:
        run = rank_whole(stored, damping=0.999, tol=1e-9)
    assert run.converged
    assert np.abs(run.ranks - exact_ranks(graph, 0.999)).sum() <= run.error_bound


def test_only_its_own_number_format_is_taken():
    with pytest.raises(UsageError, match="reads float32"):
        Settings(method="components", reads="bits16")


def test_a_flipped_byte_is_found(store, tmp_path):
    import shutil

    copy = tmp_path / "graph.zarr"
    shutil.copytree(store.path, copy)
    chunk = next(file for file in sorted(copy.rglob("indices/c/*")) if file.is_file())
    damaged = bytearray(chunk.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    chunk.write_bytes(damaged)
    with pytest.raises(DamagedError):
        load_scc_graph(open_store(copy))
