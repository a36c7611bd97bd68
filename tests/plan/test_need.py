"""What a run needs, by pencil."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oocpr.plan.memory import (
    SHARED,
    SLICE_PADDING,
    WRITING,
    decoded_bytes,
    run_need,
    scc_need,
    typical_bytes,
    writing_bytes,
)
from oocpr.plan.partition import GraphStats

GRAPH = GraphStats(
    nodes=1000, edges=6400, tiles=100, tile_edges=64, column_bytes=10_000, max_tile_bytes=100,
    max_tile_rows=9, local_share=0.5,
)  # fmt: skip


def test_the_default_method_by_pencil():
    need = run_need(
        GRAPH, base=5, ring_slots=4, reads="bits16", proposals=True, mixing=3, personalized=False, sweeps=2
    )
    assert need.base == 5
    assert need.vectors == 1000 * (8 + 8 + 4 + 4)
    assert need.history == 1000 * 3 * (4 + 4)
    assert need.reads == 1000 * 3 * 2
    assert need.scratch == 64 * 12 + 10 * (20 + 12 + 40) + SLICE_PADDING
    assert need.ring == 4 * 100
    assert need.total == 5 + 24_000 + 24_000 + 6_000 + need.scratch + 400 + SHARED


def test_plain_residual_by_pencil():
    need = run_need(GRAPH, base=0, ring_slots=4, reads="bits8", proposals=False, mixing=0, personalized=True)
    assert need.vectors == 1000 * (8 + 8 + 4 + 8)
    assert need.history == 0
    assert need.reads == 1000 * 2
    assert need.scratch == 64 * 4 + 10 * (8 + 12)


def test_rows_without_links_take_their_sums_only():
    wide = replace(GRAPH, max_tile_rows=999)
    need = run_need(wide, base=0, ring_slots=4, reads="bits16", proposals=True, mixing=0, personalized=False)
    assert need.scratch == 64 * 4 + 1000 * 20 + 64 * 12


@pytest.mark.parametrize(("reads", "size"), [("float64", 8), ("float32", 4), ("bits16", 2), ("bits8", 1)])
def test_narrow_reads_take_what_their_name_says(reads, size):
    need = run_need(GRAPH, base=0, ring_slots=4, reads=reads, proposals=True, mixing=0, personalized=False)
    assert need.reads == 1000 * 3 * size


@given(st.integers(0, 10**10), st.integers(0, 10**12), st.integers(1, 10**6), st.booleans())
def test_decoded_tiles_hold_each_column(nodes, edges, tiles, inside):
    stats = replace(GRAPH, nodes=nodes, edges=edges, tiles=tiles)
    assert decoded_bytes(stats, inside) >= 4 * edges + 8 * nodes
    assert decoded_bytes(stats, False) <= decoded_bytes(stats, True)


def test_other_needs_by_pencil():
    need = scc_need(replace(GRAPH, edges=10_000), base=0, personalized=False)
    assert (need.vectors, need.reads, need.scratch - SLICE_PADDING) == (20_000, 4000, 312_000)
    stats = replace(GRAPH, nodes=10, edges=100, tiles=1)
    assert [decoded_bytes(stats, swept) - SLICE_PADDING for swept in (True, False)] == [1520, 720]
    assert [writing_bytes(base=0, nodes=10, ordered=of) - WRITING for of in (False, True)] == [80, 280]


def test_what_a_run_should_hold_by_number():
    stats = GraphStats(10**6, 10**7, 10, 10**6, 2 * 10**7, 2 * 10**6, 10**5, 0.1)
    need = run_need(
        stats, base=10**8, ring_slots=4, reads="bits16", proposals=True, mixing=5, personalized=False
    )
    held = typical_bytes(need, stats, cached_tiles=0, decoded=False, proposals=True, sweeps=2)
    assert held == 198_388_680
