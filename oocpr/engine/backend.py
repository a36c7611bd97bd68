"""What every backend can do to one stripe, and the numbers that pass in and out.

A stripe is a run of tiles, whose rows keep their state in the backend's memory. A pass calls `make_push`,
`sweep_tile` for each tile in order, then `sums`. Everything global (dangling mass, mixing, when to stop) is
decided outside, from the few numbers these calls return.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from oocpr.engine.tiles.stream import PassTraffic, TileBytes, Tiles
    from oocpr.engine.trace import Trace
    from oocpr.plan.tile_groups import GroupLayout


Floats = tuple[float, ...]
"""A few numbers. What comes between two passes of a small graph on a device is made without arrays and data
classes, which takes half as long."""


def _no_rows() -> NDArray[np.int64]:
    return np.zeros(1, np.int64)


@dataclass(frozen=True)
class StripeSpec:
    """Tiles and rows that a stripe owns, the last ones excluded, and what its state needs.

    `slots` passes are remembered by mixing; `proposals` are made by method ``mixed``. `stored_tiles` is how
    many tiles of the store these are; 0 if each is one. `tile_rows`: first row of each tile, and the row
    behind the last; int64. `exchanging`: whether tiles that are swept read what other stripes propose.
    """

    first_tile: int
    last_tile: int
    row_begin: int
    row_end: int
    nodes: int
    slots: int
    proposals: bool
    reads: str
    stored_tiles: int = 0
    tile_rows: NDArray[np.int64] = field(default_factory=_no_rows, compare=False)
    exchanging: bool = False

    @property
    def borders(self) -> int:
        """Tiles of the store, at the ends of which rows are cut."""
        return self.stored_tiles or self.last_tile - self.first_tile

    @property
    def rows(self) -> int:
        """Number of owned rows."""
        return self.row_end - self.row_begin


START, RESTART, RESIDUAL, MIXED = range(4)
"""Kinds of pushes: what the ranks lack of the vector that the run begins from; ranks and residual, which are
forgotten, as in textbook power iteration; the residual; the proposal, or the residual if nothing is proposed,
less a multiple of each remembered step."""


class PushStep(NamedTuple):
    """How the next push is made from the state.

    `kind` is START, RESTART, RESIDUAL or MIXED; `mixing_coefficients` are (slot, theta) of each remembered
    pass to subtract. `carry` is what the stripe before still owed this one's first row in the last pass, in
    whose slot `carry_slot` it belongs too; -1 for none. `scale` is the largest magnitude of ``bits8``.
    """

    kind: int
    mixing_coefficients: tuple[tuple[int, float], ...]
    carry: float
    carry_slot: int
    scale: float


class PushSums(NamedTuple):
    """Sums in row order of what a stripe's rows without out-edges pushed, of what all pushed, and of p."""

    dangling: float
    mass: float
    total: float


class SweepStep(NamedTuple):
    """How a pass treats each tile.

    A row gets `base` times its teleport probability plus `uniform`. `sweeps` counts the products inside the
    tile, the delivering one included. The pass is remembered in `slot`, -1 for nowhere; `live` are the slots
    whose scalar products are wanted, `slot` last if it is one of them. `scale` is the largest magnitude of
    ``bits8``, and `key` that of the marks added up in this pass, see `oocpr.engine.degree_check`; 0 for none.
    `exchanged` says whether proposals of other stripes are where rows gather, and rows are to read them.
    `strongly` says whether dangling mass goes where teleports go, else to all nodes alike; a stripe that is
    `alone` makes `base` and `uniform` of its own push, as `oocpr.engine.method.shared_out` does.
    """

    damping: float
    base: float
    uniform: float
    sweeps: int
    slot: int
    live: tuple[int, ...]
    scale: float
    key: int = 0
    strongly: bool = True
    alone: bool = False
    exchanged: bool = False

    def visible_from(self, spec: StripeSpec) -> int:
        """First node whose proposals a tile reads that owns rows from ``first`` on; ``first`` ends them.

        They are those of its stripe before the tile or, once proposals are exchanged, all but those of its
        stripe from the tile on. These end before they begin: modulo a power of two that is no less than the
        nodes, ``node - visible_from < first - visible_from`` is right for both.
        """
        return spec.row_end if self.exchanged else spec.row_begin


class TileSums(NamedTuple):
    """Sums over the owned rows of a tile, or of several, in row order.

    Parameters
    ----------
    carry
        Pushes, and proposals of earlier tiles, delivered so far to the row of the tile's last edges, which
        the next tile owns.
    norm
        L1 norm of the residual.
    with_change, with_residual
        Scalar product of each live slot's change of the residual with this pass's change, and with the
        residual.
    peaks
        Largest magnitude per out-edge of the proposal, then of each live slot's step; zeros if the reads need
        no scale.
    marks
        Sum of the marks of the columns, modulo 2^64; None if they are not added up.
    residual
        Sum of the residual of the stripe's rows, if marks are asked for; else 0.
    """

    carry: tuple[float, float]
    norm: float
    with_change: Floats
    with_residual: Floats
    peaks: Floats
    marks: int | None = None
    residual: float = 0.0


def kept_arrays(ranks: Any, residual: Any, proposal: Any, changes: Any, steps: Any) -> dict[str, Any]:
    """Arrays of a stripe that a pass leaves for the next one, by name; changes and steps by their slots."""
    history = {f"change-{slot}": change for slot, change in enumerate(changes)}
    history |= {f"step-{slot}": step for slot, step in enumerate(steps)}
    return {"ranks": ranks, "residual": residual, "proposal": proposal, **history}


def join_sums(tiles: Sequence[TileSums]) -> TileSums:
    """Sums over all tiles of a stripe, added in their order; without that of the residual."""
    marks = [tile.marks for tile in tiles if tile.marks is not None]
    return TileSums(
        tiles[-1].carry,
        reduce(add, [tile.norm for tile in tiles]),
        _in_order(tile.with_change for tile in tiles),
        _in_order(tile.with_residual for tile in tiles),
        tuple(map(max, zip(*(tile.peaks for tile in tiles), strict=True))),
        sum(marks) if marks else None,
    )


def _in_order(numbers: Iterable[Floats]) -> Floats:
    return tuple(reduce(add, column) for column in zip(*numbers, strict=True))


class Backend(Protocol):
    """One kind of device."""

    name: str

    def allocate(
        self,
        spec: StripeSpec,
        degree: NDArray[Any],
        teleport: NDArray[np.float64] | None,
        start: NDArray[np.float64] | None = None,
    ) -> Any:
        """State of a stripe, zero ranks and residual.

        `degree` are out-degrees, uint32, or scaled weights that leave each row, float64; the state may keep
        the array. `teleport`, and `start`, what the run begins from, are float64, None for uniform and for
        the teleport vector. All have shape (rows,).
        """

    def allocate_reads(self, nodes: int, reads: str, proposals: bool) -> Any:
        """What rows gather, for all nodes: last push, and beside it this pass's proposal."""

    def make_push(self, state: Any, step: PushStep) -> tuple[Any, Callable[[], PushSums]]:
        """Make the next push; returns the narrow numbers of the rows, and what waits for the sums."""

    def load(self, reads: Any, row_begin: int, pushed: Any) -> None:
        """Put a stripe's push where rows gather; its proposals begin at zero."""

    def take_proposals(self, reads: Any, row_begin: int, row_end: int) -> Any:
        """Take what rows propose from where others gather it, and leave zeros; waits until that is done."""

    def put_proposals(self, reads: Any, row_begin: int, proposals: Any) -> None:
        """Put what rows propose, from the first of them, where others gather it."""

    def sweep_tile(
        self,
        state: Any,
        reads: Any,
        tile: Any,
        rows: tuple[int, int],
        step: SweepStep,
        before: Any,
    ) -> Any:
        """Deliver the push to a tile's rows, sweep inside the tile, propose.

        Returns what the next tile and `sums` take; it is the backend's own, so that a device need not be
        waited for between two tiles. `tile` is as it was prepared, or as a stream has it, `rows` the first
        owned row and the one past the last, counted in the whole graph, and `before` what this returned for
        the stripe's tile before; None for its first.
        """

    def sums(self, state: Any, swept: Sequence[Any], step: SweepStep) -> TileSums:
        """Sums over all tiles of the stripe, from what `sweep_tile` returned for each; waits for them.

        Raises DamagedError for a tile whose bytes are not what was written, if `sweep_tile` could not know.
        """

    def first_row(self, state: Any, live: tuple[int, ...]) -> Floats:
        """Residual of the stripe's first row after `sums`, then its change in each live slot; (1 + live,)."""

    def finish(self, state: Any, carry: float, out: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
        """Sum of p and r of the stripe's rows, in `out` if it is given; float64, shape (rows,)."""

    def restart(self, state: Any, rows: NDArray[np.int64], weights: NDArray[np.float64]) -> None:
        """Make a state that has been finished as it was allocated, but for its teleport weights.

        These rows have some, all others none. It had some before, and was not given what to begin from. What
        it gave in the end stays as it is.
        """

    def kept(self, state: Any) -> dict[str, Any]:
        """Arrays of a stripe that a pass leaves for the next, by name; see `kept_arrays`."""

    def bring(self, array: Any) -> NDArray[Any]:
        """One of those arrays in memory of the host, once what was begun is done."""

    def put(self, array: Any, values: NDArray[Any]) -> None:
        """Fill one of those arrays."""


class HostBackend(Backend, Protocol):
    """A backend that computes in memory of the host, where tiles are read."""

    def show_open(self, state: Any, reads: Any, row_end: int, step: SweepStep) -> int:
        """Put what rows propose so far whose tiles are still swept where others gather it.

        Returns the first of these rows; `row_end`, one past the last that have come, if there are none.
        """

    def reread(self, state: Any, reads: Any, step: SweepStep) -> None:
        """Let the tiles that are still swept have what rows of other stripes propose now."""

    def prepare(self, encoded: NDArray[np.uint8], nodes: int, decode: bool) -> Any:
        """Check a tile's bytes and take what a sweep needs of them; raises DamagedError.

        `decode` says whether columns may be kept decoded: the tile stays, and there is memory. Its bytes may
        be others once it has been swept.
        """

    def prepare_weighted(
        self,
        encoded: NDArray[np.uint8],
        weights: NDArray[np.uint8],
        factor: float,
        nodes: int,
        decode: bool,
    ) -> Any:
        """Do the same for a tile with weights, which are multiplied by `factor`, a power of two."""

    def bring(self, array: NDArray[Any]) -> NDArray[Any]:
        """See Backend."""
        return array

    def put(self, array: NDArray[Any], values: NDArray[Any]) -> None:
        """See Backend."""
        array[:] = values


class ResidentPass(Protocol):
    """Passes of a stripe that exchanges nothing with others."""

    def run(self, push: PushStep, step: SweepStep) -> tuple[PushSums, TileSums, PassTraffic]:
        """Push and sweep, `step` being `alone`; waits for all of it, and says what was read for it."""


class SeedBlock(Protocol):
    """Runs over the same tiles, side by side in lanes, each for teleport weights of its own."""

    spec: StripeSpec

    @property
    def lanes(self) -> Sequence[Any]:
        """The states of their rows."""

    def restart(self, lane: int, rows: NDArray[np.int64], weights: NDArray[np.float64]) -> None:
        """Make a lane as before a run, with these rows' teleport weights instead of others."""

    def run(
        self, steps: Mapping[int, tuple[PushStep, SweepStep]]
    ) -> dict[int, tuple[PushSums, TileSums, Floats]]:
        """Push and sweep in these lanes, each step being `alone`; waits for all of it.

        Returns the sums of each, and what `first_row` says.
        """


class Streams(ABC):
    """A backend with a memory of its own, through which tiles pass."""

    slices: int
    """Number of column partitions; tiles are swept once for each.

    Only for the last of them is `sweep_tile` what it is elsewhere; before, it keeps what a part brings.
    """

    @property
    @abstractmethod
    def allocated_bytes(self) -> int:
        """Most bytes that have been taken of it."""

    @property
    @abstractmethod
    def preparing_seconds(self) -> float | None:
        """Seconds in which it laid tiles out for its product; None if it takes them as they are."""

    @abstractmethod
    def clear(self) -> None:
        """Free what was made for one run, so that another one has all the memory."""

    @abstractmethod
    def close(self) -> None:
        """Free all of it; nothing is computed any more."""

    @abstractmethod
    def resident_pass(
        self,
        state: Any,
        reads: Any,
        stream: Any,
        row_bounds: NDArray[np.int64],
        push: PushStep,
        step: SweepStep,
    ) -> ResidentPass:
        """Take whole passes of a stripe that is the only one; `push` and `step` are those of the first one.

        Its groups are there or in memory of the host, or there is one, which is read then. `row_bounds`:
        first row of each group, and the number of rows; int64.
        """

    @abstractmethod
    def largest(
        self, state: Any, carry: float, k: int, bound: float, pushed: float, growth: float
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]] | None:
        """Rows and ranks of the `k` largest of the sums that `finish` gives, scaled to a sum of one.

        None if that takes all of them. Raises DamagedError for what cannot be ranks with an error of `bound`,
        `pushed` being the sum of p, and `growth` how much larger it has been.
        """

    @abstractmethod
    def seed_block(self, state: Any, stream: Any, row_bounds: NDArray[np.int64], lanes: int) -> SeedBlock:
        """Run side by side for teleport vectors; the first of the lanes takes a state whose run has ended.

        All groups of the stream stay, and rows propose nothing and read 16 bits.
        """

    @abstractmethod
    def select_partition(self, reads: Any, number: int, *, bring: bool) -> None:
        """Have rows gather from a column partition, once all pushes are loaded.

        Its numbers are brought if `bring`; else those that are there stand for them.
        """

    @abstractmethod
    def open_stream(
        self,
        source: TileBytes,
        groups: Sequence[int],
        nodes: int,
        *,
        layout: GroupLayout,
        on_device: frozenset[int],
        in_host: frozenset[int],
        slots: int,
        readers: int,
        buffers: int,
        trace: Trace | None,
        direct: bool,
        factor: float | None,
    ) -> Tiles:
        """Bring groups of tiles of a stripe there, in the order of `groups`, pass after pass.

        Some stay there, some in memory of the host, and the others pass through so many `slots`. `layout`
        says which tiles of the source are in which group. `factor` multiplies weights, behind the columns of
        each tile; None if there are none.
        """
