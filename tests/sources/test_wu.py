"""Graphs of the shapes of Wu et al. 2010: published sizes, distinct edges, skewed degrees, same bytes."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

import oocpr
from oocpr.cli import main
from oocpr.errors import UsageError
from oocpr.sources.rmat import draw_keys, mix, relabel
from oocpr.sources.wu import SEED, SHAPES, Wu, row_sizes


def keys_of(source: Wu, max_edges: int = 1 << 22) -> np.ndarray:
    """Edges as numbers, target above, in the order in which they come."""
    blocks = list(source.blocks(max_edges))
    assert all(block.src.size <= max_edges for block in blocks)
    src, dst = (np.concatenate([getattr(block, end) for block in blocks]) for end in ("src", "dst"))
    assert src.max() < source.nodes
    assert dst.max() < source.nodes
    return dst.astype(np.uint64) << np.uint64(32) | src


@pytest.mark.parametrize(
    ("like", "scale_down"),
    [(name, 100) for name in SHAPES]
    + [("su", 1), ("su", 1000), pytest.param("edu-2001", 1, marks=pytest.mark.slow)],
)
def test_rows_and_distinct_edges_are_as_many_as_published(like, scale_down):
    source, shape = Wu(like, scale_down), SHAPES[like]
    keys = np.sort(keys_of(source))
    assert source.nodes == shape.rows // scale_down
    assert keys.size == source.edges == shape.nonzeros // scale_down
    assert (np.diff(keys) > 0).all()
    empty = source.nodes - np.unique(keys >> np.uint64(32)).size
    assert empty == round(shape.empty * source.nodes)
    assert source.position == source.size
    assert "of the same shape" in source.name
    assert "not the graph itself" in source.name


@pytest.mark.parametrize("like", SHAPES)
def test_the_largest_rows_first_follow_the_law_to_the_row(like):
    rows, nonzeros, empty = SHAPES[like]
    exponent, sizes, first_rows, first_edges = row_sizes(rows, nonzeros, empty)
    counts = np.diff(first_rows)
    assert (np.diff(sizes)[1:] < 0).all()
    assert (counts > 0).all()
    assert np.array_equal(np.diff(first_edges), sizes * counts)
    assert first_edges[-1] == nonzeros
    assert 1.8 < exponent < 2.2
    shares = np.arange(1, rows // 10 + 1) ** -exponent
    for size in (1, 2, 10, 100, 1000):
        expected = first_rows[-1] * shares[size - 1 :].sum() / shares.sum()
        assert counts[sizes >= size].sum() == pytest.approx(expected, abs=0.5001)
    assert sizes[-50:].tolist() == list(range(50, 0, -1))


@pytest.mark.parametrize("like", ["su", "su+ucb"])
def test_in_degrees_follow_the_power_law_and_out_degrees_are_skewed(like):
    source = Wu(like)
    keys = keys_of(source)
    degrees = np.bincount((keys >> np.uint64(32)).astype(np.int64), minlength=source.nodes)
    support = np.log(np.arange(1, source.nodes // 10 + 1))
    mean = np.log(degrees).mean()

    def surprise(exponent):
        return exponent * mean + np.log(np.exp(-exponent * support).sum())

    fitted = minimize_scalar(surprise, bounds=(1.2, 3), method="bounded").x
    assert fitted == pytest.approx(source._sizes.exponent, abs=0.01)
    out = np.sort(np.bincount((keys & np.uint64(2**32 - 1)).astype(np.int64), minlength=source.nodes))[::-1]
    # The first x of all columns, by popularity, have the square root of x of all edges.
    for share in (0.01, 0.1):
        assert out[: int(share * out.size)].sum() / out.sum() == pytest.approx(share**0.5, rel=0.15)
    assert out[0] > 100 * out.mean()


@given(st.sampled_from(list(SHAPES)), st.integers(700, 1000), st.integers(1, 9), st.integers(50, 70_000))
def test_the_same_edges_for_any_block_size_and_any_parts(like, scale_down, parts, max_edges):
    source = Wu(like, scale_down)
    whole = keys_of(source)
    divided = Wu(like, scale_down).parts(parts)
    assert np.array_equal(np.concatenate([keys_of(part, max_edges) for part in divided]), whole)


def test_edges_are_those_of_the_description():
    source = Wu("su", 500)
    sizes = np.repeat(source._sizes.sizes, np.diff(source._sizes.first_rows)).tolist()
    key, (columns, rows) = draw_keys(SEED, 2)
    half, mask = np.uint64(5), np.uint64(1023)  # 563 nodes need ten bits

    def scattered(node: int, keys: np.ndarray) -> int:
        node = relabel(np.uint64(node), keys, half, mask)
        return node if node < 563 else scattered(node, keys)

    expected = []
    for row, size in enumerate(sizes):
        for place in range(size):
            counter = (int(key) + len(expected) * 0x9E3779B97F4A7C15) % 2**64
            draw = (place + (int(mix(np.uint64(counter))) >> 11) / 2**53) / size
            column = place + int((563 - size + 1) * draw**2)
            expected.append(int(scattered(row, rows)) << 32 | int(scattered(column, columns)))
    assert keys_of(source).tolist() == expected


def test_bytes_are_what_they_were():
    found = hashlib.sha256(keys_of(Wu("su", 8)).tobytes()).hexdigest()
    assert found == "7e8d34623eb055a2960d7c443671e2e03885d18f9b146ce2403faca985f8d6a2"


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"like": "eu-2005"}, "like"),
        ({"like": "su", "scale_down": 0}, "scale_down"),
        ({"like": "su", "scale_down": 1001}, "scale_down"),
    ],
)
def test_parameters_out_of_range_are_refused(wrong, match):
    with pytest.raises(UsageError, match=match):
        Wu(**wrong)


def test_the_command_makes_the_same_store_in_any_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    paths = [tmp_path / "one.zarr", tmp_path / "two.zarr"]
    for path, memory in zip(paths, ("1GiB", "4GiB"), strict=True):
        words = ["generate", "wu", "--like", "su", "--scale-down", "8", "--memory", memory, "-o", str(path)]
        # What other tests have left in this process would count against the memory that is given.
        subprocess.run([sys.executable, "-m", "oocpr", *words], check=True)
    files = [sorted(file for file in (path / "in_edges").rglob("*") if file.is_file()) for path in paths]
    tiles = [[file.read_bytes() for file in each] for each in files]
    assert tiles[0] == tiles[1]
    capsys.readouterr()
    assert main(["info", str(paths[0]), "--json", "-"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["nodes"], facts["edges"]) == (281_903 // 8, 2_312_497 // 8)
    assert "not the graph itself" in json.dumps(facts)
    assert oocpr.open_graph(paths[0]).edges == facts["edges"]
