"""The sparse matrix-vector product of a group, balanced by edges: see kernels/spmv.cu."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.engine.number_formats import READS
from oocpr.store.codec.layout import GROUP
from oocpr.store.codec.mantissa_segments import SEGMENTS

if TYPE_CHECKING:
    from oocpr.engine.cuda.device import Device
    from oocpr.engine.cuda.group import DeviceGroup

SCRATCH_BYTES = 4 * GROUP * (GROUP + 4)
"""Shared memory of a team: SCRATCH of kernels/decode.cuh, in words."""

MAX_IN_EDGE_ORDER = 4
"""Bytes a node: gathered numbers take the place of their columns in shared memory."""

READ_STRUCTS = {"float64": "Float64", "float32": "Float32", "bits16": "Bits16", "bits8": "Bits8"}
"""Struct of ``kernels/narrow.cuh`` for each format of gathered numbers."""

GATHER_PADDING = 4
"""Numbers, all zero, that have to lie behind those of the last node."""

Window = tuple[int, int]
"""First node whose proposals a group reads, and the one past the last; see SweepStep.visible_from."""

_WORD = 2**32 - 1
EVERYTHING: Window = (0, _WORD)


def window_word(window: Window) -> np.uint64:
    """Pass a window to a kernel: its first node in the lower half, the number of nodes in the upper.

    >>> hex(window_word((5, 7))), hex(window_word((7, 5)))
    ('0x200000005', '0xfffffffe00000007')
    """
    first, past = window
    return np.uint64(first & _WORD | (past - first & _WORD) << 32)


@dataclass(frozen=True)
class Gather:
    """What a product gathers, and from what."""

    reads: str  # format of the numbers
    paired: bool = False  # whether a node has two of them, push and proposal side by side, both to be summed
    striped: bool = False  # whether proposals of nodes outside the `window` of a call are left out
    decoded: bool = False  # whether the columns of a group are there, decoded and checked
    checked: bool = False  # whether columns may be no nodes, which is found then
    weighted: bool = False
    # whether nodes outside the `window` send nothing, and numbers begin with those of its first node
    local: bool = False
    # whether nodes outside a tile's own rows send nothing, the `window` being that of all rows of the group
    inside: bool = False

    @property
    def bytes(self) -> int:
        """Bytes of a node."""
        return READS[self.reads].bytes * (1 + self.paired)


@dataclass(frozen=True)
class LaunchConfig:
    """How the product is launched; changes its speed, never its result."""

    teams: int = 2  # teams of 32 lanes in a block of threads
    resident: int = 16  # blocks of threads that shall share a multiprocessor
    each: int = 1  # most blocks of 1024 edges that a team takes, one after the other
    # whether lanes gather for neighbouring edges at a time; for numbers of up to four bytes a node
    edge_order: bool = True
    # nodes, from the first one on, whose numbers each block of threads keeps in shared memory; a multiple of
    # 32
    hubs: int = 0

    def split(self, blocks: int, multiprocessors: int) -> tuple[int, int]:
        """Number of blocks of threads, and of blocks of 1024 edges that each takes at a time.

        >>> LaunchConfig(teams=4, resident=5, each=4).split(100_000, 100)
        (6250, 16)
        >>> LaunchConfig(teams=4, resident=5).split(10, 100)
        (3, 4)
        >>> LaunchConfig(teams=14, resident=1, hubs=32).split(100_000, 100)
        (100, 14)
        """
        if self.hubs:
            # What hubs cost is paid once by each block of threads.
            return min(-(-blocks // self.teams), self.resident * multiprocessors), self.teams
        # Few blocks of edges are spread over all multiprocessors.
        share = -(-blocks // (self.teams * self.resident * multiprocessors))
        each = self.teams * max(1, min(self.each, share // 4))
        return -(-blocks // each), each


WIDE_CONFIG = LaunchConfig(teams=4, resident=5, each=4, edge_order=False)
"""For numbers of more bytes a node."""

DECODED_CONFIG = LaunchConfig(teams=4, resident=6, each=1, edge_order=False)
"""For columns that are decoded: threads need no scratch, but registers for all columns of a lane."""

HUB_TEAMS = 14
NARROW_HUB_BYTES, WIDE_HUB_BYTES = 120 << 10, 80 << 10
"""Teams and bytes of a block of threads that keeps hubs: more of either leaves less for the cache. On an
H200, 120 KiB instead of 80 make 16-bit numbers 12 % faster, 32-bit ones 1 %, and 64-bit ones 7 % slower."""

DECODED_HUB_TEAMS, DECODED_HUB_BYTES = 28, 160 << 10
"""The same where columns are decoded, for numbers of any size."""


def enough_hubs(hub_edges: int, edges: int) -> bool:
    """Say whether hubs are worth keeping near, from how many of a tile's edges are theirs.

    >>> enough_hubs(10, 100), enough_hubs(20, 100)
    (False, True)
    """
    return 8 * hub_edges >= edges


WEIGHTED_RESIDENT = 12
"""Most blocks of threads that share a multiprocessor if edges have weights, which take registers: with 16
the compiler has them wait in memory."""


def launch_config(gather: Gather, shared_bytes: int = 0) -> LaunchConfig:
    """Choose the fastest launch constants.

    `shared_bytes`: shared memory that a block of threads can be given, if hubs are worth it; else 0.

    >>> launch_config(Gather("bits16", paired=True)).edge_order, launch_config(Gather("float64")).edge_order
    (True, False)
    >>> launch_config(Gather("bits16"), 227 << 10).hubs
    61440
    """
    word = gather.bytes
    plain = LaunchConfig() if word <= MAX_IN_EDGE_ORDER else WIDE_CONFIG
    teams, hub_bytes = HUB_TEAMS, NARROW_HUB_BYTES if word <= MAX_IN_EDGE_ORDER else WIDE_HUB_BYTES
    if gather.decoded:
        plain, teams, hub_bytes = DECODED_CONFIG, DECODED_HUB_TEAMS, DECODED_HUB_BYTES
    if gather.weighted:
        plain = replace(plain, resident=min(plain.resident, WEIGHTED_RESIDENT))
    hubs = min(hub_bytes, shared_bytes - scratch_bytes(gather, teams)) // word // GROUP * GROUP
    if hubs <= 0:
        return plain
    return replace(plain, teams=teams, resident=1, each=1, hubs=hubs)


def scratch_bytes(gather: Gather, teams: int) -> int:
    """Shared memory in which so many teams unpack columns."""
    return 0 if gather.decoded else teams * SCRATCH_BYTES


@dataclass(frozen=True)
class SegmentSums:
    """What the product leaves behind, room for the largest group; arrays of the device."""

    pushes: Any  # pushes, proposals: float64 and float32: of each segment that is not empty
    proposals: Any
    # heads, head_proposals: float64 and float32: of the edges of each block before its first segment begins
    heads: Any
    head_proposals: Any

    @classmethod
    def allocate(cls, device: Device, nonempty: int, blocks: int, *, paired: bool) -> SegmentSums:
        """Room for groups of up to so many segments and blocks; without proposals if not `paired`."""
        xp = device.xp
        return cls(
            xp.empty(max(1, nonempty), np.float64),
            xp.empty(max(1, nonempty) if paired else 1, np.float32),
            xp.empty(max(1, blocks), np.float64),
            xp.empty(max(1, blocks) if paired else 1, np.float32),
        )


class SpMV:
    """The balanced product, compiled for what it gathers."""

    def __init__(self, device: Device, gather: Gather, config: LaunchConfig | None = None) -> None:
        self._device, self.gather = device, gather
        self._config = config = config or launch_config(gather)
        kernels = device.load(
            "spmv.cu",
            READS=READ_STRUCTS[gather.reads],
            PAIRED=int(gather.paired),
            STRIPED=int(gather.striped),
            DECODED=int(gather.decoded),
            CHECKED=int(gather.checked),
            WEIGHTED=int(gather.weighted),
            LOCAL=2 if gather.inside else int(gather.local),
            EDGE_ORDER=int(config.edge_order),
            HUBS=int(config.hubs > 0),
            TEAMS=config.teams,
            RESIDENT=config.resident,
        )
        self._product = kernels.get_function("product")
        self._merge = kernels.get_function("join_blocks")
        self._shared = scratch_bytes(gather, config.teams) + config.hubs * gather.bytes
        # Configs of more hubs may have the same kernel.
        shared = max(self._product.max_dynamic_shared_size_bytes, self._shared)
        self._product.max_dynamic_shared_size_bytes = shared

    def __call__(
        self,
        group: DeviceGroup,
        reads: Any,
        nodes: int,
        window: Window,
        sums: SegmentSums,
        faults: Any,
        *,
        weight_parts: int = SEGMENTS,
    ) -> None:
        """Sum what is delivered to each segment of a group that is not empty; see `bound`."""
        self.bound(group, reads, nodes, window, sums, faults, weight_parts=weight_parts)()

    def bound(
        self,
        group: DeviceGroup,
        reads: Any,
        nodes: int,
        window: Window,
        sums: SegmentSums,
        faults: Any,
        *,
        weight_parts: int = SEGMENTS,
    ) -> Callable[[], None]:
        """What sums what is delivered to each segment of a group that is not empty, as often as it is called.

        `reads`: stored numbers of all nodes, and zeros behind them.
        `faults`: uint32, shape (1,): receives the faults found if columns are checked.
        `weight_parts`: segments of the weights that count.
        """
        blocks = group.sizes.blocks
        if not blocks:
            return lambda: None
        config = self._config
        grid, each = config.split(blocks, self._device.multiprocessors)
        hubs = min(config.hubs, nodes // GROUP * GROUP)
        fours = (group.fours,) if self.gather.decoded else ()
        weights: tuple[Any, ...] = ()
        if self.gather.weighted:
            weights = np.uint32(weight_parts), np.float64(group.factor)
        arguments = (
            *group.packed, np.uint32(blocks), np.uint32(nodes), reads, window_word(window), np.uint32(each),
            np.uint32(hubs), sums.pushes, sums.proposals, sums.heads, sums.head_proposals, faults, *fours,
            *weights,
        )  # fmt: skip
        arrays = group.arrays
        joined = (
            arrays.begins, arrays.ranks, np.uint32(blocks), sums.heads, sums.head_proposals, sums.pushes,
            sums.proposals,
        )  # fmt: skip
        return partial(self._launch, grid, arguments, (-(-blocks // 256),), joined)

    # No function inside another: an error that leaves it would hold the arrays.
    def _launch(
        self, grid: int, arguments: tuple[Any, ...], join_grid: tuple[int], joined: tuple[Any, ...]
    ) -> None:
        threads = (self._config.teams * GROUP,)
        self._product((grid,), threads, arguments, shared_mem=self._shared)
        self._merge(join_grid, (256,), joined)
