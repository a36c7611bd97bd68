"""What a run keeps on a CUDA device, what in pinned memory of the host, and what it reads in every pass."""

from __future__ import annotations

from dataclasses import dataclass

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
        Nothing where rows are kept in memory of the host.
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
    slices: int = 1,
) -> DeviceNeed:
    """Bytes of a run on a device, its tiles apart.

    Parameters
    ----------
    nodes, tile_edges, tile_rows
        Of the graph, and of its largest tile.
    slot_bytes, slots
        Of the ring through which tiles pass.
    reads, mixing
        Format of what rows gather, and passes that mixing remembers.
    proposals, pairs
        Whether rows propose, and whether others gather that.
    personalized
        Whether the teleport vector is not uniform.
    swept
        Whether tiles are swept on their own.
    tiles, rows
        Of its stripe; None for all rows.
    rows_in_host
        Whether rows are kept in memory of the host.
    weighted
        Whether links have weights.
    started
        Whether the run begins from another vector than the teleport vector.
    slices
        Parts in which what rows gather is there; see :mod:`oocpr.plan.partition`.

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
    numbers = partition_nodes(nodes, slices) * (3 if pairs else 1)
    if rows < nodes:
        # On their way between processes they are there twice.
        numbers = nodes * (2 if pairs else 1) + rows + staged_numbers(nodes, rows)
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
    """Numbers of other stripes that are on their way at most; none where kernels read them where they are.

    Examples
    --------
    >>> staged_numbers(1000, 1000), staged_numbers(1000, 500), staged_numbers(2**30, 2**29) == 2**23
    (0, 2000, True)
    """
    return 2 * min(nodes, STAGED_NUMBERS) if rows < nodes else 0


def row_bytes(
    nodes: int, *, proposals: bool, personalized: bool, weighted: bool = False, started: bool = False
) -> int:
    """Bytes of what rows have, what mixing remembers apart.

    Examples
    --------
    >>> row_bytes(10, proposals=True, personalized=False)
    240
    >>> row_bytes(10, proposals=True, personalized=False, weighted=True)
    280
    >>> row_bytes(10, proposals=True, personalized=True, started=True)
    400
    """
    per_row = 16 + divisor_bytes(weighted) + (4 if proposals else 0) + 8 * (personalized + started)
    return nodes * per_row


def divisor_bytes(weighted: bool) -> int:
    """Bytes of what a row's rank is divided by: its out-degree, or the weight that leaves it.

    Examples
    --------
    >>> divisor_bytes(False), divisor_bytes(True)
    (4, 8)
    """
    return 8 if weighted else 4


def history_bytes(nodes: int, mixing: int) -> int:
    """Bytes of what mixing remembers of so many passes.

    Examples
    --------
    >>> history_bytes(10, 3)
    120
    """
    return nodes * 4 * mixing


def usual_host_bytes(
    *, rows: int, state: int, ring: int, pinned: int, joining: int, weighted: bool = False
) -> int:
    """Bytes of the host that a run on a device comes to hold, where `Need` is what it may at most.

    In the beginning there are out-degrees or the weights that leave, until devices have them; then tiles; in
    the end ranks, and no tiles any more.

    Parameters
    ----------
    rows
        Rows that the device has.
    state
        Bytes of what is kept of them in memory of the host.
    ring, pinned
        Bytes of tiles on their way, and of those that stay in pinned memory.
    joining
        What joining stored tiles takes.
    weighted
        Whether links have weights.

    Examples
    --------
    >>> usual_host_bytes(rows=100, state=0, ring=10, pinned=1000, joining=50)
    1060
    >>> usual_host_bytes(rows=1000, state=0, ring=10, pinned=1000, joining=50)
    8000
    >>> usual_host_bytes(rows=100, state=2000, ring=500, pinned=1000, joining=50)
    3550
    """
    ends = 0 if state else 8 * rows
    return state + max(divisor_bytes(weighted) * rows, pinned + ring + joining, ends)


@dataclass(frozen=True)
class DeviceTiers:
    """What stays where in a run on a device.

    Parameters
    ----------
    memory
        Bytes of the device that the run was given.
    need
        Bytes of it without the tiles that stay.
    on_device, in_host
        Tiles that stay on the device, and that stay in pinned memory of the host.
    kept_bytes, pinned_bytes
        Most bytes of these.
    slots
        Slots of the ring on the device.
    pairs
        Whether rows gather the proposals of others beside their pushes.
    promised
        Whether `memory` is the caller's word, which no other use of the device may exceed either.
    rows_in_host
        Whether what a row has is kept in memory of the host, which kernels reach by the link.
    usual_host
        Bytes that the process should come to hold for it; see `usual_host_bytes`.
    usual
        Bytes of the device that it should come to take.
    joined_at_once
        Tiles that are read at a time because each is made of several; 0 for tiles as they are stored.
    slices
        Parts in which what rows gather is on the device, one after the other; see
        :mod:`oocpr.plan.partition`.
    """

    memory: int
    need: DeviceNeed
    on_device: int
    in_host: int
    kept_bytes: int
    pinned_bytes: int
    slots: int
    pairs: bool
    promised: bool = False
    rows_in_host: bool = False
    usual_host: int = 0
    joined_at_once: int = 0
    usual: int = 0
    slices: int = 1

    @property
    def most(self) -> int:
        """Most bytes of the device that the run takes."""
        return self.need.total + self.kept_bytes

    @property
    def fits(self) -> bool:
        """Whether the run stays within the memory of the device that was given."""
        return self.most <= self.memory

    def to_json(self) -> dict[str, int]:
        """Bytes on the device, by what they are."""
        need = self.need
        return {
            "device_vectors": need.vectors + need.history + need.reads,
            "device_scratch": need.scratch,
            "device_ring": need.ring,
            "device_tiles": self.kept_bytes,
        }

    def rows(self, tiles: int) -> list[tuple[str, str]]:
        """Lines of the plan as a person reads it."""
        need, passing = self.need, tiles - self.on_device
        vectors = need.vectors + need.history + need.reads
        passes, parts = f"{passing} tiles a pass", []
        if self.slices > 1:
            passes += f", {self.slices} times"
            parts = [("nodes' numbers", f"in {self.slices} parts, for each of which all tiles are taken")]
        return [
            ("device vectors", f"{format_bytes(vectors)}{', the rest in host memory' * self.rows_in_host}"),
            *parts,
            ("device scratch", format_bytes(need.scratch + need.ring)),
            ("device tiles", f"{self.on_device} of {tiles}, {format_bytes(self.kept_bytes)}"),
            ("device most, given", f"{format_bytes(self.most)} / {format_bytes(self.memory)}"),
            ("device should hold", f"about {format_bytes(self.usual)}"),
            ("over the link", passes if passing else "nothing after the first pass"),
        ]

    def places(self, tiles: range) -> tuple[frozenset[int], frozenset[int]]:
        """Which of the tiles stay on the device, and which of the others in pinned memory.

        Examples
        --------
        >>> none = DeviceNeed(0, 0, 0, 0, 0)
        >>> tiers = DeviceTiers(0, none, 2, 3, 0, 0, 3, True)
        >>> [sorted(tiles) for tiles in tiers.places(range(10, 16))]
        [[12, 15], [11, 13, 14]]
        """
        on_device = spread_evenly(tiles.start, tiles.stop, self.on_device)
        others = [tile for tile in tiles if tile not in on_device]
        in_host = spread_evenly(0, len(others), self.in_host)
        return on_device, frozenset(others[k] for k in in_host)

    def validate(self) -> None:
        """Refuse what cannot fit.

        Raises
        ------
        DoesNotFitError
            With both numbers and the way out.
        """
        if not self.fits:
            need = self.need
            tiles = need.scratch + need.ring
            least = f"{-(-need.total // 2**20)}MiB"
            raise DoesNotFitError(
                f"the run needs {format_bytes(need.total)} of the device (vectors "
                f"{format_bytes(need.vectors)}, history {format_bytes(need.history)}, reads "
                f"{format_bytes(need.reads)}, tiles {format_bytes(tiles)}) and was given "
                f"{format_bytes(self.memory)}.",
                f"Give {least} or more of it, use reads bits8, or use device cpu.",
            )
