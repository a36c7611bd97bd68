"""The R-MAT generator: reproducible, block by block, with the probabilities it promises."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oocpr.errors import UsageError
from oocpr.sources.rmat import Rmat


def arrays(source: Rmat, max_edges: int = 1 << 20) -> tuple[np.ndarray, np.ndarray]:
    blocks = list(source.blocks(max_edges))
    assert all(len(block.src) <= max_edges for block in blocks)
    return np.concatenate([b.src for b in blocks]), np.concatenate([b.dst for b in blocks])


def reference(source_scale: int, edges: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The unpermuted edges in plain Python integers, from the description of the generator."""
    whole = 2**64 - 1

    def mix(z: int) -> int:
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & whole
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & whole
        return z ^ (z >> 31)

    gamma = 0x9E3779B97F4A7C15
    key = mix(seed + gamma & whole)
    words = -(-source_scale // 4)
    src, dst = [], []
    for e in range(edges):
        row = column = 0
        for level in range(source_scale):
            draw = mix(key + (e * words + level // 4 + 1) * gamma & whole) >> 16 * (level % 4) & 0xFFFF
            quadrant = sum(draw >= round(share * 65536) for share in (0.57, 0.76, 0.95))
            row, column = row << 1 | quadrant >> 1, column << 1 | quadrant & 1
        src.append(row)
        dst.append(column)
    return np.array(src), np.array(dst)


@given(st.integers(1, 9), st.integers(1, 4), st.integers(0, 2**64 - 1), st.booleans(), st.integers(1, 700))
def test_the_same_edges_for_any_block_size(scale, edge_factor, seed, permute, max_edges):
    one = arrays(Rmat(scale, edge_factor, seed, permute))
    source = Rmat(scale, edge_factor, seed, permute)
    other = arrays(source, max_edges)
    np.testing.assert_array_equal(one, other)
    assert len(one[0]) == source.edges == edge_factor * 2**scale
    assert source.position == source.size
    assert max(one[0].max(), one[1].max()) < source.nodes == 2**scale


@pytest.mark.parametrize("scale", [1, 4, 5, 31])
def test_edges_are_those_of_the_description(scale):
    source = Rmat(scale, 20, seed=2**64 - 5, permute=False)
    block = next(source.blocks(40))
    src, dst = reference(scale, 40, 2**64 - 5)
    np.testing.assert_array_equal(block.src, src)
    np.testing.assert_array_equal(block.dst, dst)


@given(st.integers(1, 12), st.integers(0, 2**64 - 1))
def test_permuting_renames_the_nodes_one_to_one(scale, seed):
    before = np.concatenate(arrays(Rmat(scale, 4, seed, permute=False)))
    after = np.concatenate(arrays(Rmat(scale, 4, seed, permute=True)))
    pairs = np.unique(np.stack([before, after]), axis=1)
    assert len(np.unique(pairs[0])) == len(np.unique(pairs[1])) == pairs.shape[1]


@pytest.mark.parametrize("scale", [1, 2, 3, 10, 16])
def test_the_relabelling_is_a_bijection(scale):
    from oocpr.sources import rmat

    keys = Rmat(scale, seed=5)._keys
    half, mask = np.uint64((scale + 1) // 2), np.uint64(2**scale - 1)
    images = {int(rmat.relabel(np.uint64(v), keys, half, mask)) for v in range(2**scale)}
    assert images == set(range(2**scale))


def test_quadrants_have_their_shares_at_every_level():
    src, dst = arrays(Rmat(14, 16, seed=3, permute=False))
    expected = np.array([0.57, 0.19, 0.19, 0.05])
    spread = np.sqrt(expected * (1 - expected) / len(src))
    for level in range(14):
        found = np.bincount((src >> level & 1) * 2 + (dst >> level & 1), minlength=4) / len(src)
        assert (abs(found - expected) < 5 * spread + 2**-16).all()


def test_levels_are_independent_of_each_other():
    src, dst = arrays(Rmat(14, 16, seed=4, permute=False))
    bits = np.array([part >> level & 1 for part in (src, dst) for level in range(14)], float)
    correlation = np.corrcoef(bits)
    np.fill_diagonal(correlation, 0)
    for level in range(14):  # the row bit and the column bit of one level do depend on each other
        correlation[level, level + 14] = correlation[level + 14, level] = 0
    assert abs(correlation).max() < 5 / np.sqrt(len(src))


def test_degrees_are_as_skewed_as_the_model_and_hubs_are_scattered():
    scale = 14
    src, _ = arrays(Rmat(scale, 16, seed=1, permute=True))
    degrees = np.bincount(src, minlength=2**scale)
    # A node with k one-bits has 16 * 2^scale * .24^k * .76^(scale-k) out-edges on average.
    assert degrees.max() == pytest.approx(16 * 2**scale * 0.76**scale, rel=0.1)
    assert (degrees == 0).mean() > 0.2
    hubs = np.sort(np.argsort(degrees)[-64:])
    assert abs(hubs.mean() / 2**scale - 0.5) < 0.2
    assert np.diff(hubs).max() < 2**scale / 5


def test_seeds_give_different_graphs():
    firsts = {tuple(arrays(Rmat(10, 1, seed))[0][:8].tolist()) for seed in range(50)}
    assert len(firsts) == 50


@pytest.mark.parametrize(
    "wrong", [{"scale": 0}, {"scale": 32}, {"scale": 5, "edge_factor": 0}, {"scale": 5, "seed": -1}]
)
def test_parameters_out_of_range_are_refused(wrong):
    with pytest.raises(UsageError, match=list(wrong)[-1]):
        Rmat(**wrong)
