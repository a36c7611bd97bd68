"""What a run keeps on a CUDA device, what in pinned memory of the host, and what it reads in every pass."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from oocpr.errors import DoesNotFitError
from oocpr.plan.memory import READ_BYTES
from oocpr.plan.partition import partition_nodes
from oocpr.plan.residency import spread_evenly
from oocpr.units import format_bytes

DEVICE_SLOTS = 5
"""Tiles on a device that do not stay, at most: one computed with, the others there or arriving. Between two
passes nothing is computed for a time in which several arrive: streams of R-MAT with 1.06 G edges in tiles of
2**25 had 95 to 96 % of the link with three, 95 to 98 with four and 99.9 with five."""

MIN_SLOTS = 3
"""The same at least, as long as rows stay on the device."""

MIN_ALTERNATING_SLOTS = 2
"""The same where rows are kept in memory of the host, unless tiles are as small as they are stored: passes of
R-MAT with 529 M edges took 63 ms with one slot, and 53 with two, three or five."""

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
        Ranks and residual (8 each) and out-degree (4, or the weight that leaves, 8) a row; 4 more where rows
        propose, 8 more where the teleport vector is not uniform, and where the run begins from another.
        Nothing if rows are kept in memory of the host.
    history
        Change and step of each remembered pass, 2 bytes each, a row; the same.
    reads
        The last push or a slice of it and, where rows gather proposals, both of them side by side; where the
        stripe is one of several, what all of them push and how it comes.
    scratch
        Of the largest tile: sums of rows (8 a row and block of 1024 edges, 12 with proposals of others), what
        tile-local sweeps send (8 a row), of a tile that does not stay where its segments lie, and of one that
        does what finding its islands takes. And of all rows, a few sums of each 1024 and of each tile.
    ring
        Slots through which tiles pass that do not stay.
    """

    vectors: int
    history: int
    reads: int
    scratch: int
    ring: int

    @property
    def total(self) -> int:
        """All of it, and the small change."""
        return self.lasting + UNCOUNTED_BYTES

    @property
    def lasting(self) -> int:
        """What is there while tiles are joined and after that."""
        return self.vectors + self.history + self.reads + self.scratch + self.ring


def device_need(
    *,
    nodes: int,
    tile_edges: int,
    tile_rows: int,
    slot_bytes: int,
    slots: int,
    reads: str,
    mixing: int,
    proposals: bool,
    pairs: bool,
    personalized: bool,
    swept: bool = False,
    tiles: int = 1,
    rows: int | None = None,
    rows_in_host: bool = False,
    weighted: bool = False,
    started: bool = False,
    partitions: int = 1,
    sharing: int = 1,
) -> DeviceNeed:
    """Bytes of a run on a device, without the tiles that stay.

    `slot_bytes` and `slots` are those of the ring through which tiles stream; `pairs` says whether rows
    gather the proposals of others, `swept` whether tiles are swept on their own, `started` whether the run
    begins from another vector than the teleport vector. `tiles` and `rows` are those of the stripe, all by
    default; `partitions` has the column partitions of what
    rows gather, `sharing` the stripes that gather from the same array.

    Examples
    --------
    >>> need = device_need(nodes=1000, tile_edges=2048, tile_rows=100, slot_bytes=8000, slots=3,
    ...                    reads="bits16", mixing=3, proposals=False, pairs=False, personalized=False)
    >>> need.vectors, need.history, need.reads, need.ring
    (20000, 12000, 2000, 24000)
    """
    rows = nodes if rows is None else rows
    segments, blocks = min(tile_edges, tile_rows + 1), tile_edges // 1024 + 1
    scratch = (12 if pairs else 8) * (segments + blocks) + (8 * (tile_rows + 1) if swept else 0)
    # Of each 1024 rows and, where tiles begin and end, of two more of each.
    several = max(1, mixing)
    sums = 1 + 2 * several + (1 + several if reads == "bits8" else 0)
    scratch += 8 * sums * (rows // 1024 + 2 * tiles + 1) + 16 * (tiles + 1)
    if slots:
        # A bit and a width an edge and a row, a first column a row.
        scratch += tile_edges // 8 + tile_edges // 32 + 4 * segments + (tile_rows + 1) // 8 * 3 + 2**16
    numbers = partition_nodes(nodes, partitions) * (3 if pairs else 1)
    if rows < nodes:
        # On their way between processes they are there twice.
        numbers = -(-(nodes * (2 if pairs else 1) + staged_numbers(nodes, rows)) // sharing) + rows
    here = 0 if rows_in_host else 1
    vectors = row_bytes(
        rows, proposals=proposals, personalized=personalized, weighted=weighted, started=started
    )
    return DeviceNeed(
        vectors=here * vectors,
        history=here * history_bytes(rows, mixing),
        reads=numbers * READ_BYTES[reads],
        scratch=scratch,
        ring=slots * slot_bytes,
    )


def staged_numbers(nodes: int, rows: int) -> int:
    """Numbers of other stripes that are on their way at most; none if kernels read them where they are."""
    return 2 * min(nodes, STAGED_NUMBERS) if rows < nodes else 0


def row_bytes(
    nodes: int, *, proposals: bool, personalized: bool, weighted: bool = False, started: bool = False
) -> int:
    """Bytes of what rows have, without what mixing remembers."""
    per_row = 16 + divisor_bytes(weighted) + (4 if proposals else 0) + 8 * (personalized + started)
    return nodes * per_row


def divisor_bytes(weighted: bool) -> int:
    """Bytes of what a row's rank is divided by: its out-degree, or the weight that leaves it."""
    return 8 if weighted else 4


def history_bytes(nodes: int, mixing: int) -> int:
    """Bytes of what mixing remembers of so many passes."""
    return nodes * 4 * mixing


def usual_host_bytes(
    *, rows: int, state: int, ring: int, pinned: int, joining: int, weighted: bool = False
) -> int:
    """Bytes of the host that a run on a device comes to hold, of which `Need` is the most.

    In the beginning there are out-degrees or the weights that leave, until devices have them; then tiles, on
    their way in a `ring` and those that stay `pinned`; in the end ranks, and no tiles any more. `state` is
    what is kept of rows in memory of the host.

    Examples
    --------
    >>> usual_host_bytes(rows=100, state=0, ring=10, pinned=1000, joining=50)
    1060
    >>> usual_host_bytes(rows=1000, state=0, ring=10, pinned=1000, joining=50)
    8000
    """
    ends = 0 if state else 8 * rows
    return state + max(divisor_bytes(weighted) * rows, pinned + ring + joining, ends)


@dataclass(frozen=True)
class DeviceTiers:
    """What stays where in a stripe of a run on a device.

    Parameters
    ----------
    memory
        Bytes of the device that the stripe was given.
    need
        Bytes of it without the tiles that stay.
    on_device, in_host
        Tiles that stay on the device, and that stay in pinned memory of the host.
    resident_bytes, pinned_bytes
        Most bytes of these.
    slots
        Slots of the ring on the device.
    pairs
        Whether rows gather the proposals of others beside their pushes.
    promised
        Whether `memory` is the caller's word, which no other use of the device may exceed either.
    rows_in_host
        Whether what a row has is kept in memory of the host, which kernels reach by the link.
    usual_host, usual
        Bytes that the process should come to hold for it, see `usual_host_bytes`, and that it should come to
        take of the device.
    joined_at_once
        Tiles that are read at a time because each is made of several; 0 for tiles as they are stored.
    partitions
        Column partitions of what rows gather; see :mod:`oocpr.plan.partition`.
    device, sharing
        Number of the device among those of the run, and how many stripes share it.
    """

    memory: int
    need: DeviceNeed
    on_device: int
    in_host: int
    resident_bytes: int
    pinned_bytes: int
    slots: int
    pairs: bool
    promised: bool = False
    rows_in_host: bool = False
    usual_host: int = 0
    joined_at_once: int = 0
    usual: int = 0
    partitions: int = 1
    device: int = 0
    sharing: int = 1

    @property
    def limit(self) -> int | None:
        """Bytes of the device that nothing may exceed; None if nobody has given any."""
        return self.memory * self.sharing if self.promised else None

    @property
    def most(self) -> int:
        """Most bytes of the device that the stripe takes."""
        return self.need.total + self.resident_bytes

    @property
    def fits(self) -> bool:
        """Whether the stripe stays within the memory of the device that was given."""
        return self.most <= self.memory

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
            ("device most, given", f"{format_bytes(self.most)} / {format_bytes(self.memory)}"),
            ("device should hold", f"about {format_bytes(self.usual)}"),
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

    def validate(self) -> None:
        """Raise DoesNotFitError, with both numbers and the way out, if the stripes do not fit."""
        if not self.fits:
            # Rounded up: who gives this much must not be refused again.
            least = f"{-(-self.need.total * self.sharing // 2**20)}MiB"
            need, memory = (
                {name: format_bytes(self.sharing * size) for name, size in asdict(self.need).items()},
                format_bytes(self.sharing * self.memory),
            )
            tiles = self.need.scratch + self.need.ring
            fewer = ", leave stripes out" * (self.sharing > 1)
            raise DoesNotFitError(
                f"the run needs {format_bytes(self.sharing * self.need.total)} of the device (vectors "
                f"{need['vectors']}, history {need['history']}, reads {need['reads']}, tiles "
                f"{format_bytes(self.sharing * tiles)}) and was given {memory}.",
                f"Give {least} or more of it{fewer}, use reads bits8, or use device cpu.",
            )
