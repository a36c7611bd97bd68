"""What products keep of a group on a device, beside its tiles: arrays by name, and their bytes.

The backend allocates these very arrays, so a plan counts what a run takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from oocpr.plan.memory import READ_BYTES
from oocpr.plan.request import BALANCED
from oocpr.plan.tile_groups import POOL_BYTES, GroupSizes

SELL_WINDOW, MAX_SELL_EDGES = 1 << 14, 256
"""Rows that kernel ``ell`` sorts together, and the most edges of a row in a slice."""

SLICE = 32
"""Rows of a slice."""

MIN_SHARED_BYTES = 48 << 10
"""Shared memory that every device has at least: kernel ``chunked`` has no smaller chunks."""


class Array(NamedTuple):
    """An array that a product keeps."""

    dtype: str
    size: int


def decoded_arrays(rows: int, edges: int, *, weighted: bool = False) -> dict[str, Array]:
    """Columns of a group, where rows begin among them, and where those that are not empty; weights if any."""
    return ({"weights": Array("f8", edges)} if weighted else {}) | {
        "columns": Array("u4", edges),
        "offsets": Array("u4", rows + 1),
        "begins": Array("u4", min(rows, edges)),
    }


def product_arrays(
    kernel: str, rows: int, edges: int, *, chunks: int = 1, window: int = SELL_WINDOW
) -> dict[str, Array]:
    """What a kernel lays out of so many rows and edges at most, beside `decoded_arrays`.

    `chunks`: chunks of columns that kernel ``chunked`` gathers from.

    >>> product_arrays("binned", 1000, 5000)
    {'order': Array(dtype='u4', size=1000), 'counts': Array(dtype='u4', size=6)}
    """
    if kernel == "binned":
        return {"order": Array("u4", rows), "counts": Array("u4", 6)}
    if kernel == "ell":
        # Sizes fall in a window, so a slice is padded by no more edges than the slice before it has.
        padding = SLICE * MAX_SELL_EDGES * -(-rows // window)
        return {
            "sizes": Array("u4", rows),
            "numbers": Array("u4", rows),
            "begins": Array("u4", -(-rows // SLICE)),
            "entries": Array("u4", edges + padding),
            "long_rows": Array("u4", edges // (MAX_SELL_EDGES + 1)),
            "counts": Array("u4", 2),
        }
    if kernel in ("edges", "exchange"):
        return {"numbers": Array("u4", edges)}
    if kernel == "chunked":
        return {
            "ends": Array("u8", chunks),
            "part_offsets": Array("u4", edges + 1),
            "part_rows": Array("u4", edges),
            "near": Array("u2", edges),
        }
    if kernel == "bcsr":
        return {"counts": Array("u4", rows), "blocks": Array("u4", edges), "bits": Array("u1", edges)}
    return {}


def array_bytes(arrays: Mapping[str, Array]) -> int:
    """Bytes of a device that arrays take."""
    sizes = (np.dtype(each.dtype).itemsize * max(1, each.size) for each in arrays.values())
    return sum(-(-size // POOL_BYTES) * POOL_BYTES for size in sizes)


def layout_bytes(
    kernel: str, sizes: GroupSizes, nodes: int, reads: str, *, pairs: bool, weighted: bool, stays: bool
) -> int:
    """Bytes of a device that a group takes decoded and laid out for a kernel.

    `pairs`: whether two numbers of each of the `nodes` are gathered; `weighted`: whether edges have weights;
    `stays`: whether it stays so, or is laid out in every pass, which the default needs not.
    """
    if kernel == BALANCED:
        return array_bytes({"columns": Array("u4", 1024 * sizes.blocks)}) if stays else 0
    # Each tile has a segment more than it has rows.
    rows = sizes.rows + sizes.tiles
    chunks = nodes * READ_BYTES[reads] * (1 + pairs) // MIN_SHARED_BYTES + nodes // 2**16 + 1
    own = product_arrays(kernel, rows, sizes.edges, chunks=chunks)
    return array_bytes(decoded_arrays(rows, sizes.edges, weighted=weighted)) + array_bytes(own)
