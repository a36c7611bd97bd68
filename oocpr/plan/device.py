"""What a run keeps on a CUDA device, what in pinned memory of the host, and what it reads in every pass."""

from __future__ import annotations

from dataclasses import dataclass

from oocpr.errors import DoesNotFitError
from oocpr.plan.memory import READ_BYTES
from oocpr.plan.tiers import spread_evenly
from oocpr.units import format_bytes

DEVICE_SLOTS = 3
"""Tiles on a device that do not stay: one computed with, one there, one arriving."""

STAGED_NUMBERS = 2**22
"""Numbers of another stripe's push that are on their way to where rows gather."""

SPARE = 1.25
"""Encoded bytes of a joined tile over the mean of the stored ones, at most; checked when it is made."""


@dataclass(frozen=True)
class DeviceNeed:
    """Bytes that a run keeps on a device at its peak, by what they are.

    Parameters
    ----------
    vectors
        Ranks and residual (8 each) and out-degree (4) a row; 4 more where rows propose, 8 more where the
        teleport vector is not uniform.
    history
        Change and step of each remembered pass, 2 bytes each, a row.
    reads
        The last push and, where rows gather proposals, both of them side by side; where the stripe is one of
        several, what all of them push and how it comes.
    scratch
        Of the largest tile: sums of rows (12 a row, and 12 a block of 1024 edges), what tile-local sweeps
        send (8 a row), and of a tile that does not stay where its segments lie.
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
        return self.vectors + self.history + self.reads + self.scratch + self.ring + 2**23


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
    rows: int | None = None,
) -> DeviceNeed:
    """Bytes of a run on a device, its tiles apart; `rows` are those of its stripe, None for all.

    Examples
    --------
    >>> need = device_need(nodes=1000, tile_edges=2048, tile_rows=100, slot_bytes=8000, slots=3,
    ...                    reads="bits16", mixing=3, proposals=False, pairs=False, personalized=False)
    >>> need.vectors, need.history, need.reads, need.ring
    (20000, 12000, 2000, 24000)
    """
    sums = min(tile_edges, tile_rows + 1)
    scratch = 12 * sums + 12 * (tile_edges // 1024 + 1) + (8 * (tile_rows + 1) if proposals else 0)
    if slots:
        # A bit and a width an edge and a row, a first column a row.
        scratch += tile_edges // 8 + tile_edges // 32 + 4 * sums + (tile_rows + 1) // 8 * 3 + 2**16
    rows = nodes if rows is None else rows
    numbers = nodes * (3 if pairs else 1)
    if rows < nodes:
        # On their way between processes they are there twice.
        numbers = nodes * (2 if pairs else 1) + rows + 2 * min(nodes, STAGED_NUMBERS)
    return DeviceNeed(
        vectors=rows * (20 + (4 if proposals else 0) + (8 if personalized else 0)),
        history=rows * 4 * mixing,
        reads=numbers * READ_BYTES[reads],
        scratch=scratch,
        ring=slots * slot_bytes,
    )


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

    @property
    def fits(self) -> bool:
        """Whether the run stays within the memory of the device that was given."""
        return self.need.total + self.kept_bytes <= self.memory

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
        return [
            ("device vectors", format_bytes(need.vectors + need.history + need.reads)),
            ("device scratch", format_bytes(need.scratch + need.ring)),
            ("device tiles", f"{self.on_device} of {tiles}, {format_bytes(self.kept_bytes)}"),
            ("device given", format_bytes(self.memory)),
            ("over the link", f"{passing} tiles a pass" if passing else "nothing after the first pass"),
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
            least = f"{-(-need.total // 2**20)}MiB"
            raise DoesNotFitError(
                f"the run needs {format_bytes(need.total)} of the device (vectors "
                f"{format_bytes(need.vectors)}, history {format_bytes(need.history)}, reads "
                f"{format_bytes(need.reads)}, tiles {format_bytes(need.scratch + need.ring)}) and was given "
                f"{format_bytes(self.memory)}.",
                f"Give {least} or more of it, use reads bits8, or use device cpu.",
            )


def tile_bytes(column_bytes: int, edges: int, tile_edges: int) -> int:
    """Encoded bytes that a tile is allowed for, from what the stored ones have.

    Examples
    --------
    >>> tile_bytes(2000, 1000, 100)
    65786
    """
    return int(SPARE * column_bytes * tile_edges / max(1, edges)) + 2**16


def kept_bytes(encoded: int, tile_edges: int, tile_rows: int) -> int:
    """Bytes of a tile that stays on a device: encoded, and where its segments lie.

    Examples
    --------
    >>> kept_bytes(1000, 800, 100)
    1621
    """
    return encoded + tile_edges // 8 + tile_edges // 256 + 5 * min(tile_rows + 1, tile_edges) + 13
