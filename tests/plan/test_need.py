"""What a run needs, by pencil."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oocpr.plan.memory import PADDING, SHARED, decoded_bytes, run_need

GRAPH = {"nodes": 1000, "tile_edges": 64, "max_tile_rows": 9, "max_tile_bytes": 100, "ring_slots": 4}


def test_the_default_method_by_pencil():
    need = run_need(base=5, **GRAPH, reads="bits16", proposals=True, mixing=3, personalized=False, sweeps=2)
    assert need.base == 5
    assert need.vectors == 1000 * (8 + 8 + 4 + 4)
    assert need.history == 1000 * 3 * (4 + 4)
    assert need.reads == 1000 * 3 * 2
    assert need.scratch == 64 * 12 + 10 * (20 + 12 + 40) + PADDING
    assert need.ring == 4 * 100
    assert need.total == 5 + 24_000 + 24_000 + 6_000 + need.scratch + 400 + SHARED


def test_plain_residual_by_pencil():
    need = run_need(base=0, **GRAPH, reads="bits8", proposals=False, mixing=0, personalized=True)
    assert need.vectors == 1000 * (8 + 8 + 4 + 8)
    assert need.history == 0
    assert need.reads == 1000 * 2
    assert need.scratch == 64 * 4 + 10 * (8 + 12)


def test_rows_without_links_take_their_sums_only():
    rows = {**GRAPH, "max_tile_rows": 999}
    need = run_need(base=0, **rows, reads="bits16", proposals=True, mixing=0, personalized=False)
    assert need.scratch == 64 * 4 + 1000 * 20 + 64 * 12


@pytest.mark.parametrize(("reads", "size"), [("float64", 8), ("float32", 4), ("bits16", 2), ("bits8", 1)])
def test_narrow_reads_take_what_their_name_says(reads, size):
    need = run_need(base=0, **GRAPH, reads=reads, proposals=True, mixing=0, personalized=False)
    assert need.reads == 1000 * 3 * size


@given(st.integers(0, 10**10), st.integers(0, 10**12), st.integers(1, 10**6), st.booleans())
def test_decoded_tiles_hold_each_column(nodes, edges, tiles, inside):
    assert decoded_bytes(nodes, edges, tiles, inside) >= 4 * edges + 8 * nodes
    assert decoded_bytes(nodes, edges, tiles, False) <= decoded_bytes(nodes, edges, tiles, True)
