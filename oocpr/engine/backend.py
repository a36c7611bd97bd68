"""What every backend can do to one stripe, and the numbers that pass in and out.

A stripe is a run of tiles; its rows keep their state on the backend's memory. A pass calls `publish` once,
then `sweep_tile` for each tile in order, then `sums`. Everything global (dangling mass, mixing, when
to stop) is decided outside, from the few numbers these calls return. What `sweep_tile` returns is the
backend's own, so that a device need not be waited for between two tiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from oocpr.engine.tiles.stream import TileBytes, Tiles
    from oocpr.engine.trace import Trace


@dataclass(frozen=True)
class StripeSpec:
    """Which rows a stripe owns and what its state needs.

    Parameters
    ----------
    first_tile, last_tile
        Tiles ``first_tile .. last_tile - 1``.
    row_begin, row_end
        Owned rows ``row_begin .. row_end - 1``.
    nodes
        Rows of the whole graph.
    slots
        Remembered passes; 0 where nothing is mixed.
    proposals
        Whether the pass proposes (method ``mixed``).
    reads
        Format of gathered numbers.
    """

    first_tile: int
    last_tile: int
    row_begin: int
    row_end: int
    nodes: int
    slots: int
    proposals: bool
    reads: str

    @property
    def rows(self) -> int:
        """Number of owned rows."""
        return self.row_end - self.row_begin


@dataclass(frozen=True)
class PublishStep:
    """How the next push is made from the state.

    Parameters
    ----------
    start
        Push what the ranks lack of the vector that the run begins from: in the first pass, and in more where
        that vector is given.
    restart
        Forget ranks and residual and push their sum: textbook power iteration.
    mixing_coefficients
        (slot, theta) of each remembered pass to subtract.
    carry
        What the stripe before still owed this stripe's first row in the last pass.
    carry_slot
        Slot that the last pass wrote, to which `carry` belongs too; -1 for none.
    scale
        Largest magnitude of ``bits8``.
    """

    start: bool
    restart: bool
    mixing_coefficients: tuple[tuple[int, float], ...]
    carry: float
    carry_slot: int
    scale: float


@dataclass(frozen=True)
class PushSums:
    """Sums over a stripe's rows after publishing, in row order.

    Parameters
    ----------
    dangling
        Pushed by rows without out-links.
    mass
        Pushed by all rows.
    total
        Sum of p.
    """

    dangling: float
    mass: float
    total: float


@dataclass(frozen=True)
class SweepStep:
    """How a pass treats each tile.

    Parameters
    ----------
    damping
        Factor of each product.
    base, uniform
        Added to a row: ``base`` times its teleport probability plus ``uniform``.
    sweeps
        Products inside the tile, the delivering one included.
    slot
        Where this pass is remembered; -1 for nowhere.
    live
        Slots whose scalar products are wanted, `slot` last where it is one of them.
    scale
        Largest magnitude of ``bits8``.
    key
        Key of the marks that are added up in this pass, see `oocpr.engine.degree_check`; 0 for none.
    """

    damping: float
    base: float
    uniform: float
    sweeps: int
    slot: int
    live: tuple[int, ...]
    scale: float
    key: int = 0


@dataclass(frozen=True)
class TileSums:
    """Sums over the owned rows of a tile, or of several, in row order.

    Parameters
    ----------
    carry
        Delivered so far to the row that the tile's last edges belong to and the next tile owns: pushes, and
        proposals of earlier tiles.
    norm
        L1 norm of the residual.
    with_change, with_residual
        Scalar product of each live slot's change of the residual with this pass's change, and with the
        residual; shape (live,).
    peaks
        Largest magnitude per out-link of the proposal, then of each live slot's step; shape (1 + live,);
        zeros where the reads need no scale.
    marks
        Sum of the marks of the columns, modulo 2^64; None where they are not added up.
    residual
        Sum of the residual of the stripe's rows, if marks are asked for; else 0.
    """

    carry: tuple[float, float]
    norm: float
    with_change: NDArray[np.float64]
    with_residual: NDArray[np.float64]
    peaks: NDArray[np.float64]
    marks: int | None = None
    residual: float = 0.0


def join_sums(tiles: Sequence[TileSums]) -> TileSums:
    """Sums over all tiles of a stripe, added in their order; without that of the residual."""
    marks = [tile.marks for tile in tiles if tile.marks is not None]
    return TileSums(
        tiles[-1].carry,
        _total([tile.norm for tile in tiles]),
        _total([tile.with_change for tile in tiles]),
        _total([tile.with_residual for tile in tiles]),
        np.max([tile.peaks for tile in tiles], axis=0),
        sum(marks) if marks else None,
    )


def _total(parts: list[Any]) -> Any:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


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

        Parameters
        ----------
        degree
            Out-degrees, uint32, shape (rows,); or the weight that leaves each row, float64, in the unit in
            which its links' weights are, whose array the state may keep.
        teleport
            float64, shape (rows,); None where uniform.
        start
            What the run begins from, float64, shape (rows,); None for the teleport vector.
        """

    def allocate_reads(self, nodes: int, reads: str, proposals: bool) -> Any:
        """What rows gather, for all nodes: last push, and beside it this pass's proposal."""

    def publish(self, state: Any, step: PublishStep) -> tuple[Any, Callable[[], PushSums]]:
        """Make the next push; returns the stored narrow numbers of the stripe's rows, and what tells sums.

        A device is still at it when this returns; who asks for the sums waits until all is there.
        """

    def load(self, reads: Any, row_begin: int, pushed: Any) -> None:
        """Put a stripe's push where rows gather."""

    def prepare(self, encoded: NDArray[np.uint8], nodes: int, decode: bool) -> Any:
        """Check a tile's bytes and take what a sweep needs of them; raises DamagedError.

        Parameters
        ----------
        nodes
            Nodes of the graph, which bound the columns.
        decode
            Whether the columns may be kept decoded: the tile stays, and there is memory. Its bytes may be
            others once it has been swept.
        """

    def prepare_weighted(
        self,
        encoded: NDArray[np.uint8],
        weights: NDArray[np.uint8],
        factor: float,
        nodes: int,
        decode: bool,
    ) -> Any:
        """Do what `prepare` does for a tile with weights, whose segments come beside it.

        Weights are multiplied by `factor`, a power of two.
        """

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

        Parameters
        ----------
        tile
            As `prepare` returned it.
        rows
            First owned row and the one past the last, counted in the whole graph.
        before
            What this returned for the stripe's tile before; None for its first.

        Returns
        -------
        object
            For the next tile, and for `sums`.
        """

    def sums(self, state: Any, swept: Sequence[Any], step: SweepStep) -> TileSums:
        """Sums over all tiles of the stripe, from what `sweep_tile` returned for each; waits for them.

        Raises
        ------
        DamagedError
            When a tile's bytes are not what was written, where `sweep_tile` could not know.
        """

    def first_row(self, state: Any, live: tuple[int, ...]) -> NDArray[np.float64]:
        """Residual of the stripe's first row after `sums`, then its change in each live slot; (1 + live,)."""

    def finish(self, state: Any, carry: float) -> NDArray[np.float64]:
        """Sum of p and r of the stripe's rows; float64, shape (rows,)."""


@runtime_checkable
class Streams(Protocol):
    """A backend with a memory of its own, through which tiles pass."""

    @property
    def taken_bytes(self) -> int:
        """Most bytes that have been taken of it."""

    def close(self) -> None:
        """Free all of it and let others take what the run was limited to; nothing is computed any more."""

    @property
    def slices(self) -> int:
        """Parts in which what rows gather is there, one after the other; tiles are swept once for each.

        Only for the last of them is `sweep_tile` what it is elsewhere; before, it keeps what a part brings.
        """

    def select_partition(self, reads: Any, number: int, *, bring: bool) -> None:
        """Have rows gather from another of these parts.

        Parameters
        ----------
        reads
            What rows gather, all pushes loaded.
        number
            Which part.
        bring
            Whether its numbers are brought; else those that are there stand for them.
        """

    def open_stream(
        self,
        source: TileBytes,
        tiles: Sequence[int],
        nodes: int,
        *,
        on_device: frozenset[int],
        in_host: frozenset[int],
        edges: int,
        segments: int,
        slots: int,
        readers: int,
        buffers: int,
        trace: Trace | None,
        direct: bool,
        factor: float | None,
    ) -> Tiles:
        """Bring a stripe's tiles there, pass after pass.

        Parameters
        ----------
        source, tiles
            Encoded tiles, and those of the stripe in the order of computation.
        nodes
            Nodes of the graph.
        on_device, in_host
            Tiles that stay there, and that stay in memory of the host.
        edges, segments
            Most that a tile has.
        slots
            Tiles there that do not stay.
        readers, buffers
            Threads that read, and buffers that they read into.
        trace
            Receives when each tile was read, sent and computed; None for nothing.
        direct
            Whether tiles are read past the system's page cache.
        factor
            Power of two by which weights are multiplied, which are behind the columns of each tile; None for
            none.
        """
