"""How often a tile is swept while it is there."""

from __future__ import annotations

LINK_BYTES = 50e9
DEVICE_EDGES = 120e9
"""Bytes a second from pinned memory, and edges a second of a product: what an H200 has, and some to spare."""


def sweeps_for(local_share: float, stripes: int = 1, *, on_device: bool = False, small: bool = False) -> int:
    """Products inside a tile that pay: more where more of the edges stay inside.

    With four, crawls, citation, social and call graphs need 20 to 50 % fewer passes than with two; where most
    edges stay inside, six save a fifth more in one stripe, and in several a tenth or nothing for up to two
    fifths more products. R-MAT, with 6 % inside, saves one pass in ten with two and nothing with more.

    On a CUDA device, where a sweep of a tile decodes it again, more than two took longer than the passes they
    saved, and two where few edges stay inside. A graph so small that the host is slower than the device is
    swept many times between two questions of the host: cnr-2000, in one tile, took 9 passes and 6 ms with
    eight sweeps, 36 and 13 ms with two.

    Parameters
    ----------
    local_share
        Share of the edges that begin and end inside a tile.
    stripes
        Stripes of the plan.
    on_device
        Whether a CUDA device computes.
    small
        Whether the graph is one tile of at most SMALL_EDGES edges.

    Examples
    --------
    >>> sweeps_for(0.9), sweeps_for(0.9, stripes=4), sweeps_for(0.2), sweeps_for(0.06), sweeps_for(0.001)
    (6, 4, 4, 2, 1)
    >>> sweeps_for(0.9, on_device=True), sweeps_for(0.2, on_device=True)
    (2, 1)
    >>> sweeps_for(0.2, on_device=True, small=True)
    8
    """
    if on_device and small:
        return 8
    if on_device:
        return 2 if local_share >= 0.5 else 1
    for least, sweeps in ((0.5, 6 if stripes == 1 else 4), (0.1, 4), (0.02, 2)):
        if local_share >= least:
            return sweeps
    return 1


def streamed_sweeps(bytes_an_edge: float, local_share: float) -> int:
    """Products inside a tile that pay while the next one is on its way.

    Those that end before it has arrived cost nothing, and are worth it where enough edges stay inside a tile.
    Where most do, three pay even if they are not free: a crawl of 0.56 B/edge took 365 ms with one, the only
    one that is, 201 with two, 170 with three and 177 with four.

    Parameters
    ----------
    bytes_an_edge
        Encoded bytes of the tiles over their edges.
    local_share
        Share of edges that stay inside the rows of their tile.

    Examples
    --------
    >>> streamed_sweeps(2.0, 0.2), streamed_sweeps(4.0, 0.9)
    (2, 5)
    >>> streamed_sweeps(0.6, 0.9), streamed_sweeps(2.0, 0.01)
    (3, 1)
    """
    products = bytes_an_edge / LINK_BYTES * DEVICE_EDGES
    # One product delivers; each further sweep is two, as rows of a tile are swept side by side.
    free = max(1, 1 + int((products - 1) / 2))
    return min(sweeps_for(local_share), max(free, 3 if local_share >= 0.5 else 1))
