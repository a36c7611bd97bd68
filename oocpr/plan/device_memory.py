"""What a run keeps on a CUDA device, what in pinned memory of the host, and what it reads in every pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from oocpr.errors import DoesNotFitError
from oocpr.plan.memory import READ_BYTES
from oocpr.plan.partition import partition_nodes
from oocpr.plan.products import layout_bytes
from oocpr.plan.request import BALANCED
from oocpr.plan.residency import spread_evenly
from oocpr.plan.tile_groups import POOL_BYTES, TILE_ENTRY_BYTES, GroupSizes, expanded_bytes
from oocpr.units import format_bytes

if TYPE_CHECKING:
    from oocpr.plan.request import GraphStats, PlanRequest
    from oocpr.plan.tile_groups import GroupLayout

DEVICE_SLOTS = 5
"""Groups on a device that do not stay, at most: one computed with, the others there or arriving. Between two
passes nothing is computed for a time in which several arrive: streams of R-MAT with 1.06 G edges in groups of
2**25 had 95 to 96 % of the link with three, 95 to 98 with four and 99.9 with five."""

MIN_SLOTS = 3
"""The same at least, as long as rows stay on the device."""

MIN_ALTERNATING_SLOTS = 2
"""The same if rows are kept in memory of the host, unless a group is a single tile: passes of R-MAT with
529 M edges took 63 ms with one slot, and 53 with two, three or five."""

MIN_OVERLAP_SLOTS = 3
"""The same at least where groups are swept two at a time: another one arrives then."""

OVERLAP_SLOTS = 1
"""More of them then, at most: R-MAT with 1.06 G edges streamed in 418 ms, and in 425 without."""

STAGED_NUMBERS = 2**22
"""Numbers of another stripe's push that are on their way to where rows gather."""

UNCOUNTED_BYTES = 2**23
"""Bytes of what is not counted: sums, flags, and what pieces of memory are rounded up to."""


@dataclass(frozen=True)
class DeviceNeed:
    """Bytes that a run keeps on a device at its peak, by what they are.

    Parameters
    ----------
    vectors
        Per row: ranks and residual (8 each), out-degree (4, or the weight that leaves, 8), the proposal if
        rows propose (4), and 8 each for a teleport vector that is not uniform and another start.
        Nothing if rows are kept in memory of the host.
    history
        Per row: change and step of each remembered pass (2 each); the same.
    reads
        The last push or a partition of it and, if rows gather proposals, both of them side by side; if the
        stripe is one of several, what all of them push and how it comes.
    scratch
        Of the largest group: sums of rows (8 per row and block of 1024 edges, 12 with proposals of others),
        what tile-local sweeps send (6 per row, and 2 that may be lost between pieces of memory), what is
        expanded of a group that does not stay, both for two groups that are swept together, with what all
        rows send (2 per row), what a kernel other than the default lays out of one in every
        pass, and what finding the diagonal blocks of one that stays takes. And of all rows, a few sums of
        each 1024 and of each tile.
    ring
        Slots through which groups pass that do not stay.
    """

    vectors: int
    history: int
    reads: int
    scratch: int
    ring: int

    @property
    def total(self) -> int:
        """All of it, and UNCOUNTED_BYTES."""
        return self.lasting + UNCOUNTED_BYTES

    @property
    def lasting(self) -> int:
        """What is there after the first pass."""
        return self.vectors + self.history + self.reads + self.scratch + self.ring


def device_need(
    stats: GraphStats,
    layout: GroupLayout,
    request: PlanRequest,
    *,
    slots: int,
    mixing: int,
    sweeps: int,
    pairs: bool,
    rows_in_host: bool = False,
    partitions: int = 1,
    sharing: int = 1,
    layouts_stay: bool = False,
    overlap: bool = False,
) -> DeviceNeed:
    """Bytes of a stripe on a device, without the groups that stay; see `DeviceTiers`.

    `layout` has the groups of the stripe. `overlap`: whether there are slots for two that are swept together.
    """
    nodes, sizes = stats.nodes, layout.sizes
    rows, tiles = int(sizes[:, 3].sum()), int(sizes[:, 0].sum())
    largest = GroupSizes(*sizes.max(axis=0).tolist())
    # The default product sums segments that are not empty, the others all, a tile one more than it has rows.
    summed = largest.nonempty if request.kernel == BALANCED else largest.rows + largest.tiles
    scratch = (12 if pairs else 8) * (summed + largest.blocks)
    if not layouts_stay:
        scratch += layout_bytes(
            request.kernel, largest, nodes, request.reads, pairs=pairs, weighted=stats.weighted, stays=False
        )
    scratch += 8 * largest.rows if sweeps > 1 else 0
    # Of each 1024 rows and, where tiles begin and end, of two more of each.
    several = max(1, mixing)
    sums = 1 + 2 * several + (1 + several if request.reads == "bits8" else 0)
    scratch += 8 * sums * (rows // 1024 + 2 * tiles + 1) + 16 * (tiles + 1)
    # Widths of lengths and of first columns while a group is expanded.
    scratch += 32 * (largest.length_blocks + largest.start_blocks) + 2 * POOL_BYTES
    if slots:
        # The group of most blocks may not be the one of most rows.
        scratch += (2 if overlap else 1) * int(expanded_bytes(sizes.max(axis=0)))
    if overlap:
        scratch += 8 * largest.rows + 2 * rows + 2 * POOL_BYTES
    numbers = partition_nodes(nodes, partitions) * (3 if pairs else 1)
    if rows < nodes:
        # On their way between processes they are there twice; proposals are taken from among the others.
        gathered, own = (2 * nodes, 2 * rows) if pairs else (nodes, rows)
        numbers = -(-(gathered + staged_numbers(nodes, rows)) // sharing) + own
    here = 0 if rows_in_host else 1
    return DeviceNeed(
        vectors=here * row_bytes(rows, stats, request, proposals=sweeps > 1 or pairs),
        history=here * history_bytes(rows, mixing),
        reads=numbers * READ_BYTES[request.reads],
        scratch=scratch,
        ring=slots * (int(layout.room.max()) + TILE_ENTRY_BYTES * largest.tiles + 2 * POOL_BYTES),
    )


def staged_numbers(nodes: int, rows: int) -> int:
    """Numbers of other stripes that are on their way at most; none if kernels read them where they are."""
    return 2 * min(nodes, STAGED_NUMBERS) if rows < nodes else 0


def row_bytes(rows: int, stats: GraphStats, request: PlanRequest, *, proposals: bool) -> int:
    """Bytes of what rows have, without what mixing remembers."""
    beside = (4 if proposals else 0) + 8 * (request.personalized + request.started)
    return rows * (16 + divisor_bytes(stats) + beside)


def divisor_bytes(stats: GraphStats) -> int:
    """Bytes of what a row's rank is divided by: its out-degree, or the weight that leaves it."""
    return 8 if stats.weighted else 4


def history_bytes(rows: int, mixing: int) -> int:
    """Bytes of what mixing remembers of so many passes."""
    return rows * 4 * mixing


SEED_LANES = (16, 8)
"""Runs for different seeds that a device does side by side: so many numbers of 16 bits come at once."""


def seed_block_bytes(stats: GraphStats, layout: GroupLayout, mixing: int, lanes: int) -> int:
    """Bytes of a device that so many runs take side by side, beyond those of one.

    Each has rows of its own; a node has what each pushes, and a bit; a segment has a sum of each; and rows
    are listed to find the largest of one.
    """
    rows, tiles = stats.nodes, int(layout.sizes[:, 0].sum())
    largest = GroupSizes(*layout.sizes.max(axis=0).tolist())
    sums = 1 + 2 * max(1, mixing)
    lane = 24 * rows + history_bytes(rows, mixing)
    lane += 8 * sums * (rows // 1024 + 2 * tiles + 1) + 16 * (tiles + 1) + 8 * POOL_BYTES
    listed = 4 * rows
    numbers = 2 * lanes * (rows + 8) + 8 * (rows // 32 + 1)
    return (lanes - 1) * lane + numbers + listed + 8 * lanes * (largest.nonempty + largest.blocks + 2)


MAX_AT_ONCE = 64 << 20
"""Most bytes of a device that the driver is asked for at once."""

Inside = Literal["tiles", "groups", "blocks"]
"""What rows are swept in again after a push was delivered, along the edges that stay there: stored tiles;
groups; or diagonal blocks of groups that stay on the device, and the others whole."""


@dataclass(frozen=True)
class DeviceTiers:
    """What stays where in a stripe of a run on a device."""

    memory: int  # bytes of the device that the stripe was given
    need: DeviceNeed  # without the tiles that stay
    on_device: int  # groups that stay on the device
    in_host: int  # groups that stay in pinned memory of the host
    resident_bytes: int  # most bytes of the groups on the device
    pinned_bytes: int  # most bytes of those in pinned memory
    slots: int  # of the ring on the device
    pairs: bool  # whether rows gather the proposals of others beside their pushes
    promised: bool = False  # whether `memory` is the caller's word, which no other use may exceed either
    rows_in_host: bool = False  # whether kernels reach what rows have in memory of the host, by the link
    typical_host: int = 0  # bytes that the process should come to hold for it
    typical: int = 0  # bytes that it should come to take of the device
    partitions: int = 1  # column partitions of what rows gather; see `oocpr.plan.partition`
    device: int = 0  # its number among the devices of the run
    sharing: int = 1  # stripes that share it
    readers: int = 2  # threads that read tiles for it
    inside: Inside = "tiles"  # what rows are swept in, where they are swept more than once
    layouts_stay: bool = False  # whether groups stay as the kernel lays them out
    overlap: bool = False  # whether groups that pass are swept two at a time

    @property
    def limit(self) -> int | None:
        """Bytes of the device that nothing may exceed; None if nobody has given any."""
        return self.memory * self.sharing if self.promised else None

    @property
    def at_once(self) -> int:
        """Bytes that the driver is asked for at once: of a small run, with room for the rest of them beside.

        Its 34 calls took a twentieth of a run on 948 k edges.

        Examples
        --------
        >>> need = DeviceNeed(0, 0, 0, 1000, 0)
        >>> given = need.total + 899, need.total + 900
        >>> [DeviceTiers(memory, need, 1, 0, 0, 0, 3, True, typical=900).at_once for memory in given]
        [0, 900]
        """
        ample = self.max_bytes + self.typical <= self.memory and self.sharing == 1
        return self.typical if ample and self.typical <= MAX_AT_ONCE else 0

    @property
    def max_bytes(self) -> int:
        """Most bytes of the device that the stripe takes."""
        return self.need.total + self.resident_bytes

    @property
    def fits(self) -> bool:
        """Whether the stripe stays within the memory of the device that was given."""
        return self.max_bytes <= self.memory

    def to_json(self) -> dict[str, int]:
        """Bytes on the device, by what they are."""
        need = self.need
        return {
            "device_vectors": need.vectors + need.history + need.reads,
            "device_scratch": need.scratch,
            "device_ring": need.ring,
            "device_tiles": self.resident_bytes,
        }

    def rows(self, tiles: int) -> list[tuple[str, str]]:
        """Lines of the plan as a person reads it."""
        need, streamed = self.need, tiles - self.on_device
        vectors = need.vectors + need.history + need.reads
        passes, parts = f"{streamed} tiles a pass", []
        if self.partitions > 1:
            passes += f", {self.partitions} times"
            parts = [("nodes' numbers", f"in {self.partitions} parts, for each of which all tiles are taken")]
        return [
            ("device vectors", f"{format_bytes(vectors)}{', the rest in host memory' * self.rows_in_host}"),
            *parts,
            ("device scratch", format_bytes(need.scratch + need.ring)),
            ("device tiles", f"{self.on_device} of {tiles}, {format_bytes(self.resident_bytes)}"),
            ("device most, given", f"{format_bytes(self.max_bytes)} / {format_bytes(self.memory)}"),
            ("device should hold", f"about {format_bytes(self.typical)}"),
            ("over the link", passes if streamed else "nothing after the first pass"),
        ]

    def places(self, tiles: range) -> tuple[frozenset[int], frozenset[int]]:
        """Which of the tiles stay on the device, and which of the others in pinned memory.

        Examples
        --------
        >>> tiers = DeviceTiers(0, DeviceNeed(0, 0, 0, 0, 0), 2, 3, 0, 0, 3, True)
        >>> [sorted(tiles) for tiles in tiers.places(range(10, 16))]
        [[12, 15], [11, 13, 14]]
        """
        on_device = spread_evenly(tiles.start, tiles.stop, self.on_device)
        others = [tile for tile in tiles if tile not in on_device]
        in_host = spread_evenly(0, len(others), self.in_host)
        return on_device, frozenset(others[k] for k in in_host)

    def validate(self, narrower: str = "use reads bits8") -> None:
        """Raise DoesNotFitError, with both numbers and the way out, if the stripes do not fit.

        `narrower`: what takes less of a device.
        """
        if not self.fits:

            def of_all(size: int) -> str:
                return format_bytes(self.sharing * size)

            need = self.need
            # Rounded up: who gives this much must not be refused again.
            enough = f"{-(-need.total * self.sharing // 2**20)}MiB"
            fewer = ", leave stripes out" * (self.sharing > 1)
            raise DoesNotFitError(
                f"the run needs {of_all(need.total)} of the device (vectors {of_all(need.vectors)}, "
                f"history {of_all(need.history)}, reads {of_all(need.reads)}, "
                f"tiles {of_all(need.scratch + need.ring)}) and was given {of_all(self.memory)}.",
                f"Give {enough} or more of it{fewer}, {narrower}, or use device cpu.",
            )
