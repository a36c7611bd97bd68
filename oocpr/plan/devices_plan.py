"""The plan of a run on several CUDA devices: a stripe on each, side by side.

Each device is given its own memory and keeps what it can of its stripe; what the host has for tiles is dealt
out among them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.plan.device_plan import plan_on_device
from oocpr.plan.memory import Need
from oocpr.plan.merge_memory import NOTHING_JOINED, Joining

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from oocpr.plan.graph_stats import GraphStats
    from oocpr.plan.plan import Plan
    from oocpr.plan.tile_bytes import Encoded


Stripes = tuple[tuple[int, int], ...]
"""First tile of each stripe and the one past its last."""

ROW_EDGES = 3
"""Edges that take a device as long as a row does: an H200 moves 74 bytes for a row of R-MAT in a pass, which
is 18 ps at its own copy rate, and delivers an edge in 6 ps."""


def stay_weights(tile_rows: NDArray[np.int64], tile_edges: int) -> NDArray[np.int64]:
    """Weigh tiles that stay on their device by the time that they take.

    Parameters
    ----------
    tile_rows
        First row of each tile, and the number of nodes; int64, shape (tiles + 1,).
    tile_edges
        Of each tile but the last.

    Examples
    --------
    >>> stay_weights(np.array([0, 10, 1000]), 2000)
    array([2030, 4970])
    """
    return tile_edges + ROW_EDGES * np.diff(tile_rows)


def even_cuts(stripes: Stripes, tile_edges: int, joined_edges: int) -> tuple[tuple[int, ...], Stripes]:
    """Join the stored tiles of each stripe to as few as can be, as even as can be.

    Parameters
    ----------
    stripes
        First stored tile of each and the one past its last.
    tile_edges
        Of a stored tile.
    joined_edges
        Edges of a joined tile, or fewer.

    Returns
    -------
    tuple
        First stored tile of each joined one, and the number of tiles.
    tuple
        First joined tile of each stripe and the one past its last.

    Examples
    --------
    >>> even_cuts(((0, 5), (5, 11)), 2**24, 2**26)
    ((0, 2, 5, 8, 11), ((0, 2), (2, 4)))
    >>> even_cuts(((0, 1), (1, 2), (2, 3)), 2**24, 2**26)
    ((0, 1, 2, 3), ((0, 1), (1, 2), (2, 3)))
    """
    each = max(1, joined_edges // tile_edges)
    cuts, bounds = [0], []
    for first, last in stripes:
        parts = -(-(last - first) // each)
        begun = len(cuts) - 1
        cuts += [first + (last - first) * (part + 1) // parts for part in range(parts)]
        bounds.append((begun, begun + parts))
    return tuple(cuts), tuple(bounds)


def plan_on_devices(
    stats: GraphStats,
    tile_rows: NDArray[np.int64],
    stripes: Stripes,
    device_memory: Sequence[int],
    *,
    memory: int,
    base: int,
    joining: Joining = NOTHING_JOINED,
    encoded: Encoded | None = None,
    **how: Any,
) -> Plan:
    """Decide how a run on several devices uses their memory and the host's.

    Parameters
    ----------
    stats, tile_rows
        The graph, in tiles as the run takes them: what is known of them, and the first row of each and the
        number of nodes, int64, shape (tiles + 1,).
    stripes
        First tile of each device's stripe and the one past its last.
    device_memory
        Bytes that the run may use on each device, as many as there are stripes.
    memory, base, joining, encoded, how
        As for `plan_on_device`.
    """
    joining = joining.share(len(stripes))
    parts = [tile_rows[first : last + 1] for first, last in stripes]
    longest = max(last - first for first, last in stripes)

    def planned(number: int, memory: int) -> Plan:
        given = device_memory[number]
        return plan_on_device(
            stats,
            parts[number],
            encoded=None if encoded is None else encoded.part(*stripes[number]),
            longest=longest,
            memory=memory,
            base=base,
            joining=joining,
            device_memory=given,
            **how,
        )

    bare = [planned(number, 0) for number in range(len(stripes))]
    need = _together([plan.need for plan in bare], base)
    # In the end the ranks of all rows are there, and once more those of one stripe.
    need = replace(need, vectors=need.vectors + 4 * max(int(part[-1] - part[0]) for part in parts))
    left = max(0, memory - need.total)
    # Tiles that want memory of the host: those that there is no room for on their device.
    wanted = [len(part) - 1 - plan.devices[0].on_device for part, plan in zip(parts, bare, strict=True)]
    plans = []
    for number, plan in enumerate(bare):
        share = left * wanted[number] // max(1, sum(wanted[number:]))
        plans.append(planned(number, plan.need.total + share))
        left -= plans[-1].devices[0].pinned_bytes
    return replace(
        plans[0],
        stripes=stripes,
        need=need,
        memory=memory,
        # All sweep alike: as often as the device can that has the least room.
        sweeps=min(plan.sweeps for plan in plans),
        proposals=all(plan.proposals for plan in plans),
        cached_tiles=sum(plan.cached_tiles for plan in plans),
        devices=tuple(plan.devices[0] for plan in plans),
    )


def _together(needs: list[Need], base: int) -> Need:
    """Bytes of the host that the parts of a run take together; the process is there once."""
    return Need(
        base,
        sum(need.vectors for need in needs),
        history=sum(need.history for need in needs),
        reads=sum(need.reads for need in needs),
        scratch=sum(need.scratch for need in needs),
        ring=sum(need.ring for need in needs),
    )
