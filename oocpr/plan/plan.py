"""A run as data: made from integers, printed, checked, and only then carried out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from oocpr.errors import DoesNotFitError, UsageError
from oocpr.plan.memory import Need, decoded_bytes, run_need, whole_need
from oocpr.plan.model import (
    COMPONENT_SWEEPS,
    DEVICE_MIXING,
    MOST_ORDERED_EDGES,
    MOST_WHOLE_EDGES,
    SMALL_EDGES,
    pass_seconds,
    predicted_passes,
)
from oocpr.plan.sweeps import sweeps_for
from oocpr.plan.tiers import RING_SLOTS, kept_tiles, spread_evenly
from oocpr.plan.tiling import default_stripes, stripe_tiles
from oocpr.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from oocpr.plan.device import DeviceTiers
    from oocpr.plan.model import Rates


@dataclass(frozen=True)
class GraphFacts:
    """What a plan has to know of a graph.

    Parameters
    ----------
    nodes, edges, tiles, tile_edges
        As stored.
    column_bytes
        Encoded bytes of all tiles, their weights included.
    most_tile_bytes, most_tile_rows
        Of the largest tile.
    local_share
        Share of edges that stay inside the rows of their tile, in [0, 1].
    weighted
        Whether edges have weights.
    """

    nodes: int
    edges: int
    tiles: int
    tile_edges: int
    column_bytes: int
    most_tile_bytes: int
    most_tile_rows: int
    local_share: float
    weighted: bool = False


@dataclass(frozen=True)
class Plan:
    """What a run needs, where everything stays, and how long it should take.

    Parameters
    ----------
    stripes
        First tile of each stripe and the one past its last.
    mixing
        Passes that mixing remembers; fewer than asked for where memory is short.
    sweeps
        Products inside a tile a pass.
    need
        Bytes at the peak without the cache of tiles.
    memory
        Bytes that were given.
    cached_tiles
        Tiles kept in memory after their first read.
    decoded
        Whether they are kept decoded, which saves a processor the decoding in every pass.
    passes, seconds
        Predicted; `seconds` is None where no rates were measured.
    proposals
        Whether rows propose pushes of their own when mixing, rather than push what mixing makes of residuals.
    devices
        What stays where on the CUDA device of each stripe; empty where a processor computes.
    """

    facts: GraphFacts
    method: str
    reads: str
    stripes: tuple[tuple[int, int], ...]
    mixing: int
    sweeps: int
    need: Need
    memory: int
    cached_tiles: int
    decoded: bool
    passes: int
    seconds: float | None
    proposals: bool = True
    devices: tuple[DeviceTiers, ...] = ()

    @property
    def device(self) -> DeviceTiers | None:
        """What stays where on the one CUDA device that computes; None for none and for several."""
        return self.devices[0] if len(self.devices) == 1 else None

    @property
    def fits(self) -> bool:
        """Whether the run stays within the memory that was given, on each device too."""
        return self.need.total <= self.memory and all(tiers.fits for tiers in self.devices)

    @property
    def cache_bytes(self) -> int:
        """Most bytes that cached tiles take."""
        facts = self.facts
        if self.method == "components":
            # Counted with the scratch of the run.
            return 0
        if self.devices:
            return sum(tiers.pinned_bytes for tiers in self.devices)
        kept = self.cached_tiles * facts.most_tile_bytes
        if not self.decoded:
            return kept
        return kept + _decoded(facts, self.method == "mixed")

    @property
    def streamed_bytes(self) -> int:
        """Encoded bytes read from the store in every pass after the first."""
        return self.facts.column_bytes * (self.facts.tiles - self.cached_tiles) // self.facts.tiles

    @property
    def gathers(self) -> float:
        """Edges gathered a pass, tile-local sweeps included, in units of the graph's edges."""
        return 1 + (self.sweeps - 1) * self.facts.local_share

    def resident(self, stripe: int) -> frozenset[int]:
        """Tiles of a stripe that stay in memory."""
        first, last = self.stripes[stripe]
        kept = self.cached_tiles * last // self.facts.tiles - self.cached_tiles * first // self.facts.tiles
        return spread_evenly(first, last, kept)

    def validate(self) -> None:
        """Refuse what cannot fit.

        Raises
        ------
        DoesNotFitError
            With both numbers and the way out.
        """
        for tiers in self.devices:
            tiers.validate()
        if not self.fits:
            # Rounded up: who gives this much must not be refused again.
            least = f"{-(-self.need.total // 2**20)}MiB"
            narrower = "" if self.reads == "bits8" else ", or use reads bits8"
            raise DoesNotFitError(
                f"the run needs {format_bytes(self.need.total)} (vectors {format_bytes(self.need.vectors)}, "
                f"reads {format_bytes(self.need.reads)}, process {format_bytes(self.need.base)}) "
                f"and was given {format_bytes(self.memory)}.",
                f"Give {least} or more{narrower}.",
            )

    def to_json(self) -> dict[str, object]:
        """Plan as a JSON object: tiers with bytes, passes, predicted_seconds, fits."""
        return {
            "tiers": {
                "process": self.need.base,
                "vectors": self.need.vectors,
                "history": self.need.history,
                "reads": self.need.reads,
                "scratch": self.need.scratch,
                "ring": self.need.ring,
                "tile_cache": self.cache_bytes,
                "store": self.streamed_bytes,
                **self._device_json(),
            },
            "weighted": self.facts.weighted,
            "memory": self.memory,
            "needed": self.need.total,
            "fits": self.fits,
            "method": self.method,
            "reads": self.reads,
            "stripes": len(self.stripes),
            "tiles": self.facts.tiles,
            "cached_tiles": self.cached_tiles,
            "decoded": self.decoded,
            "mixing": self.mixing,
            "sweeps": self.sweeps,
            "passes": self.passes,
            "passes_per_byte": self.gathers * self.facts.edges / max(1, self.facts.column_bytes),
            "predicted_seconds": self.seconds,
        }

    def __str__(self) -> str:
        """Return the plan as a person reads it."""
        facts, need = self.facts, self.need
        tiles = f"{facts.tiles} of {format_count(facts.tile_edges)} edges in {len(self.stripes)} stripe(s)"
        method = f"{self.method}, reads {self.reads}"
        if self.method == "mixed":
            method += f", mixing {self.mixing}, sweeps a tile {self.sweeps}"
        graph = f"{format_count(facts.nodes)} nodes, {format_count(facts.edges)} edges"
        graph += ", weighted" * facts.weighted
        cache = f"{self.cached_tiles} tiles{', decoded' * self.decoded}, {format_bytes(self.cache_bytes)}"
        rows = [
            ("graph", graph),
            ("tiles", tiles),
            ("method", method),
            ("process", format_bytes(need.base)),
            ("vectors", format_bytes(need.vectors)),
            ("history", format_bytes(need.history)),
            ("reads", format_bytes(need.reads)),
            ("scratch, ring", format_bytes(need.scratch + need.ring)),
            ("needed / given", f"{format_bytes(need.total)} / {format_bytes(self.memory)}"),
            ("tile cache", "the whole graph, with the scratch" if self.method == "components" else cache),
            *self._device_rows(),
            ("from the store", f"{format_bytes(self.streamed_bytes)} a pass"),
            ("products a byte", f"{self.gathers * facts.edges / max(1, facts.column_bytes):.2f} edges"),
            ("passes", f"about {self.passes}"),
            ("time", "not predicted" if self.seconds is None else f"about {format_seconds(self.seconds)}"),
            ("fits", "yes" if self.fits else "no"),
        ]
        width = max(16, 1 + max(len(name) for name, _ in rows))
        return "\n".join(f"{name:<{width}}{value}" for name, value in rows)

    def _device_json(self) -> dict[str, object]:
        """Bytes on the device; of several the most on any, and then those on each."""
        each = [tiers.to_json() for tiers in self.devices]
        most = {key: max(of[key] for of in each) for key in (each[0] if each else ())}
        return {**most, "devices": each} if len(each) > 1 else dict(most)

    def _device_rows(self) -> list[tuple[str, str]]:
        """Lines of the plan about devices, numbered where there are several."""
        rows = []
        for number, (tiers, (first, last)) in enumerate(zip(self.devices, self.stripes, strict=False)):
            of = "" if len(self.devices) == 1 else f", {number}"
            rows += [(f"{name}{of}", value) for name, value in tiers.rows(last - first)]
        return rows


def make_plan(
    facts: GraphFacts,
    *,
    method: str,
    reads: str,
    damping: float,
    tol: float,
    mixing: int,
    sweeps: int | None,
    memory: int,
    base: int,
    stripes: int | None = None,
    personalized: bool = False,
    on_device: bool = False,
    rates: Rates | None = None,
) -> Plan:
    """Decide how a run uses the memory it is given.

    Vectors and reads come first, then as much history as fits, then cached tiles.

    Parameters
    ----------
    facts
        The graph.
    method, reads, damping, tol, mixing
        As in the run's settings.
    sweeps
        Products inside a tile a pass; None to choose by the share of edges inside tiles.
    memory
        Bytes the whole process may use.
    base
        Bytes it uses already.
    stripes
        None to choose by the size of the graph.
    personalized
        Whether the teleport vector is not uniform.
    on_device
        Whether a CUDA device computes.
    rates
        Measured rates, to predict the time.
    """
    if method == "components":
        return _whole_plan(facts, damping, tol, memory, base, personalized, rates)
    if stripes is None:
        stripes = default_stripes(facts.edges, facts.tiles)
    cuts = stripe_tiles(facts.tiles, stripes)
    mixed = method == "mixed"

    def need(remembered: int) -> Need:
        return run_need(
            base=base,
            nodes=facts.nodes,
            tile_edges=min(facts.tile_edges, facts.edges),
            most_tile_rows=facts.most_tile_rows,
            most_tile_bytes=facts.most_tile_bytes,
            ring_slots=min(RING_SLOTS, facts.tiles),
            reads=reads,
            mixed=mixed,
            mixing=remembered,
            personalized=personalized,
            weighted=facts.weighted,
        )

    remembered = (min(mixing, DEVICE_MIXING) if on_device else mixing) if mixed else 0
    while remembered and need(remembered).total > memory:
        remembered -= 1
    needed = need(remembered)
    small = facts.tiles == 1 and facts.edges <= SMALL_EDGES
    usual = sweeps_for(facts.local_share, stripes, on_device=on_device, small=small)
    chosen = (sweeps or usual) if mixed else 1
    cached = kept_tiles(facts.tiles, facts.most_tile_bytes, memory - needed.total)
    left = memory - needed.total - cached * facts.most_tile_bytes
    decoded = cached == facts.tiles and _decoded(facts, mixed) <= left
    passes = predicted_passes(damping, tol, method)
    seconds = None
    if rates is not None:
        streamed = facts.column_bytes * (facts.tiles - cached) // facts.tiles
        each = pass_seconds(
            rates,
            edges=facts.edges,
            gathers=1 + (chosen - 1) * facts.local_share,
            rows=facts.nodes,
            streamed_bytes=streamed,
        )
        seconds = passes * each
    # On a device nobody reads the proposals of others: they pay where sweeps inside tiles make them good.
    proposals = mixed and (chosen > 1 or not on_device)
    return Plan(
        facts, method, reads, cuts, remembered, chosen, needed, memory, cached, decoded, passes, seconds,
        proposals,
    )  # fmt: skip


def choose_method(facts: GraphFacts, *, memory: int, base: int, personalized: bool) -> str:
    """Method of a run for which nobody names one.

    Examples
    --------
    >>> small = GraphFacts(1000, 10**5, 4, 2**15, 10**5, 30_000, 300, 0.5)
    >>> choose_method(small, memory=2**30, base=0, personalized=False)
    'components'
    >>> choose_method(small, memory=2**25, base=0, personalized=False)
    'mixed'
    """
    if facts.weighted or facts.edges > MOST_WHOLE_EDGES:
        return "mixed"
    whole = _whole_plan(facts, 0.85, 1e-10, memory, base, personalized, None)
    return "components" if whole.fits else "mixed"


def _decoded(facts: GraphFacts, mixed: bool) -> int:
    return decoded_bytes(facts.nodes, facts.edges, facts.tiles, mixed, facts.weighted)


def _whole_plan(
    facts: GraphFacts,
    damping: float,
    tol: float,
    memory: int,
    base: int,
    personalized: bool,
    rates: Rates | None,
) -> Plan:
    if facts.edges > MOST_ORDERED_EDGES:
        raise UsageError(
            f"method components takes up to {format_count(MOST_ORDERED_EDGES)} edges; "
            f"the graph has {format_count(facts.edges)}.",
            "Use method mixed.",
        )
    need = whole_need(
        base=base,
        nodes=facts.nodes,
        edges=facts.edges,
        most_tile_bytes=facts.most_tile_bytes,
        personalized=personalized,
    )
    passes = predicted_passes(damping, tol, "components")
    seconds = None
    if rates is not None:
        each = pass_seconds(
            rates, edges=facts.edges, gathers=1 + COMPONENT_SWEEPS, rows=facts.nodes, streamed_bytes=0
        )
        seconds = passes * each
    stripes = ((0, facts.tiles),)
    return Plan(
        facts, "components", "float32", stripes, 0, 1, need, memory, facts.tiles, True, passes, seconds
    )
