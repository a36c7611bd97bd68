"""Numbers in segments, and the published counts of the program that they come from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import scipy.sparse

from oocpr.engine.cuda.baselines import Matrix
from oocpr.engine.cuda.device import download
from oocpr.sources import open_source

from .cpms import SegmentedVector, cpms_pagerank

if TYPE_CHECKING:
    from oocpr.engine.cuda.device import Device


def cut(values: np.ndarray, bits: int) -> np.ndarray:
    """The first bits of float64 numbers."""
    return (values.view(np.uint64) >> np.uint64(64 - bits) << np.uint64(64 - bits)).view(np.float64)


@pytest.mark.parametrize("segments", [2, 4])
@pytest.mark.parametrize("count", [1, 31, 64, 1000])
def test_reading_fewer_segments_cuts_numbers(device: Device, segments: int, count: int) -> None:
    values = np.random.default_rng(count).standard_normal(count)
    vector = SegmentedVector(device, segments, count)
    vector.write(device.xp.asarray(values), segments)
    for kept in range(1, segments + 1):
        assert np.array_equal(download(vector.read(kept)), cut(values, 64 // segments * kept))
    assert np.array_equal(download(vector.plain()), values)


@pytest.mark.parametrize("segments", [2, 4])
def test_writing_fewer_segments_leaves_the_others(device: Device, segments: int) -> None:
    rng = np.random.default_rng(segments)
    first, second = rng.random(200), rng.random(200)
    vector = SegmentedVector(device, segments, 200)
    vector.write(device.xp.asarray(first), segments)
    vector.write(device.xp.asarray(second), 1)
    bits = 64 // segments
    rest = first.view(np.uint64) << np.uint64(bits) >> np.uint64(bits)
    expected = (cut(second, bits).view(np.uint64) | rest).view(np.float64)
    assert np.array_equal(download(vector.read(segments)), expected)


@pytest.mark.parametrize("segments", [2, 4])
def test_blocks_of_128_bytes_hold_one_segment_of_neighbours(device: Device, segments: int) -> None:
    numbers = 16 * segments
    values = np.random.default_rng(0).random(3 * numbers)
    vector = SegmentedVector(device, segments, len(values))
    vector.write(device.xp.asarray(values), segments)
    kind = f"u{8 // segments}"
    parts = values.view(kind).reshape(3, numbers, segments)[:, :, ::-1]
    assert np.array_equal(download(vector.array).reshape(3, segments, numbers), parts.swapaxes(1, 2))


@pytest.mark.parametrize("segments", [2, 4])
def test_converting_in_place_there_and_back(device: Device, segments: int) -> None:
    values = np.random.default_rng(1).random(1280)
    there = device.xp.asarray(values.copy())
    kernels = device.load("papers/cpms.cu", SEGMENTS=segments)
    kernels.get_function("to_segments")((10,), (128,), (there, np.uint64(1280)))
    vector = SegmentedVector(device, segments, 1280)
    vector.write(device.xp.asarray(values), segments)
    assert np.array_equal(download(there).view(vector.array.dtype), download(vector.array))
    kernels.get_function("to_numbers")((10,), (128,), (there, np.uint64(1280)))
    assert np.array_equal(download(there), values)


# Sweeps less one: in plain float64, in 2 segments, in 4; those of the paper's authors' program, emulated.
GOLDEN = {
    "python311-doc": ((28,), (12, 16), (1, 11, 16, 0)),
    "wiki-Vote": ((28,), (12, 16), (1, 11, 16, 1)),
    "p2p-Gnutella31": ((17,), (7, 10), (1, 1, 14, 0)),
    "openjdk17-javadoc": ((61,), (27, 34), (1, 26, 33, 2)),
    "hollins": ((110,), (44, 66), (1, 43, 64, 2)),
    "cit-HepTh": ((108,), (39, 69), (1, 38, 2, 67)),
}


def in_links(source: Path) -> Matrix:
    """Rows of a graph file without repeated links, nodes numbered as they come by value; on the host."""
    blocks = [np.stack([block.src, block.dst], axis=1) for block in open_source(source).blocks(1 << 20)]
    ends = np.concatenate(blocks)
    ids, dense = np.unique(ends, return_inverse=True)
    src, dst = dense.reshape(ends.shape).T
    rows = scipy.sparse.csr_array((np.ones(len(src)), (dst, src)), (len(ids), len(ids)))
    rows.sum_duplicates()
    degrees = np.bincount(rows.indices, minlength=len(ids)).astype(np.uint32)
    return Matrix(rows.indptr.astype(np.uint32), rows.indices.astype(np.uint32), len(ids), degrees)


def counts(device: Device, host: Matrix, segments: int) -> tuple[int, ...]:
    xp = device.xp
    there = Matrix(xp.asarray(host.offsets), xp.asarray(host.columns), host.nodes, xp.asarray(host.degrees))
    return cpms_pagerank(device, there, segments).counts


@pytest.mark.long
@pytest.mark.parametrize(("name", "expected"), GOLDEN.items(), ids=str)
def test_counts_of_the_authors_program(
    device: Device, graphs: Path, name: str, expected: tuple[tuple[int, ...], ...]
) -> None:
    (file,) = (f for f in graphs.glob(f"{name}*") if "labels" not in f.name and "undirected" not in f.name)
    host = in_links(file)
    for segments, split in zip((1, 2, 4), expected, strict=True):
        assert counts(device, host, segments) == split
