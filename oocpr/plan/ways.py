"""The ways in which a run can divide a graph between devices and host, and what each takes of a device.

As the table of Shan et al. 2010, which picks partition, vector storage and matrix storage by the dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oocpr.plan.device_memory import DeviceTiers
    from oocpr.plan.tile_groups import GroupSize

TIERS = "device, host, store"
"""Where tiles are, the first that has room."""

STORAGE = {
    (True, False, False, False): ("whole", "none", "device", "device"),
    (True, False, False, True): ("whole, less history", "none", "device", "device"),
    (False, False, False, False): ("streamed", "rows", "device", TIERS),
    (False, False, False, True): ("less history", "rows", "device", TIERS),
    (False, True, False, False): ("rows in host", "rows", "host, reads on device", TIERS),
    (False, True, True, False): ("columns", "columns", "host, part of reads on device", TIERS),
}
"""Name, partition, storage of vectors and of the matrix, by `GroupSize.way`."""


@dataclass(frozen=True)
class Way:
    """A way to divide a graph, and what is where then."""

    name: str
    partition: str
    vectors: str
    matrix: str
    device_memory: int  # bytes of each device from which on it fits
    taken: bool
    why: str


def explained(
    sizes: Iterable[GroupSize],
    taken: GroupSize | None,
    given: Sequence[int],
    bare: Callable[[GroupSize], Sequence[DeviceTiers]],
) -> tuple[Way, ...]:
    """Say what each way takes of a device, in the order in which a plan tries them.

    `taken`: what the plan takes; None if nothing fits. `bare` plans stripes with no memory of the devices, of
    which so much is given: what such a plan lacks is the least that it takes.
    """
    ways, tried = [], True
    for way, alike in groupby(sizes, lambda size: size.way):
        plans = [bare(size) for size in alike]
        needs = [[(of.sharing * of.max_bytes, given[of.device]) for of in stripes] for stripes in plans]
        name, partition, vectors, matrix = STORAGE[way]
        if taken is not None and taken.way == way:
            why, tried = "taken", False
        elif not tried:
            why = ""
        elif any(all(need <= most for need, most in each) for each in needs):
            # Of ways that stream and fit, the fastest is taken.
            slower = taken is not None and way[0] == taken.way[0]
            why = "slower" if slower else "too little memory of the host"
        else:
            why = "more than is given"
        ways.append(
            Way(
                name,
                # Each device has a stripe of rows.
                "rows" if len(plans[0]) > 1 else partition,
                vectors,
                matrix,
                min(max(need for need, _ in each) for each in needs),
                taken is not None and taken.way == way,
                why,
            )
        )
    return tuple(ways)


def way_rows(ways: Sequence[Way]) -> list[tuple[str, str]]:
    """Lines of a plan as a person reads it."""
    if not ways:
        return []
    # Rounded up: who gives this much must get it.
    cells = [
        (
            way.name,
            way.partition,
            way.vectors,
            way.matrix,
            f"from {-(-way.device_memory // 2**20)}MiB",
            way.why,
        )
        for way in ways
    ]
    rows = [("divided", "partition", "vectors", "matrix", "of a device", ""), *cells]
    widths = [max(map(len, column)) + 2 for column in zip(*rows, strict=True)]
    return [
        (name, "".join(f"{cell:<{width}}" for cell, width in zip(row, widths[1:], strict=True)).rstrip())
        for name, *row in rows
    ]
