"""A run as data: made from integers, printed, checked, and only then carried out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from oocpr.errors import DoesNotFitError, UsageError
from oocpr.plan.forecast import (
    COMPONENT_SWEEPS,
    MAX_SCC_EDGES,
    MAX_SCC_NUMBERED_EDGES,
    Forecast,
    forecast,
    predicted_passes,
    sweeps_for,
)
from oocpr.plan.memory import Need, decoded_bytes, run_need, scc_need, usual_bytes, usual_scc_bytes
from oocpr.plan.partition import default_stripes, stripe_tiles
from oocpr.plan.render import render, to_json
from oocpr.plan.residency import RING_SLOTS, kept_tiles, spread_evenly
from oocpr.units import format_bytes, format_count

if TYPE_CHECKING:
    from oocpr.plan.device_memory import DeviceTiers
    from oocpr.plan.forecast import Passes, Rates
    from oocpr.plan.graph_stats import GraphStats


@dataclass(frozen=True)
class Alternative:
    """A plan that takes fewer passes, as a rule so many, and is chosen from so many bytes of memory on."""

    memory: int
    method: str
    mixing: int
    passes: int


@dataclass(frozen=True)
class Plan:
    """What a run needs, where everything stays, and how long it should take.

    Parameters
    ----------
    stats, method, reads
        Of the graph, and of the run.
    stripes
        First tile of each stripe and the one past its last.
    mixing
        Passes that mixing remembers; fewer than asked for if memory is short.
    sweeps
        Products inside a tile per pass.
    need
        Bytes at the peak without the cache of tiles.
    memory
        Bytes that were given.
    cached_tiles
        Tiles kept in memory after their first read.
    decoded
        Whether they are kept decoded, which saves a processor the decoding in every pass.
    expected
        How many passes it takes.
    proposals
        Whether rows propose pushes of their own when mixing, rather than push what mixing makes of residuals.
    devices
        What stays where on the CUDA device of each stripe; empty if processors compute.
    direct
        Whether tiles are read past the system's page cache.
    forecast
        Seconds of its passes; None if nothing was measured.
    reproducible
        Whether the graph and the settings alone decide all that the bits of the ranks depend on, whatever
        the memory.
    better
        What more memory allows; None if it changes no bit of the ranks.
    """

    stats: GraphStats
    method: str
    reads: str
    stripes: tuple[tuple[int, int], ...]
    mixing: int
    sweeps: int
    need: Need
    memory: int
    cached_tiles: int
    decoded: bool
    expected: Passes
    proposals: bool = True
    devices: tuple[DeviceTiers, ...] = ()
    direct: bool = False
    forecast: Forecast | None = None
    reproducible: bool = False
    better: Alternative | None = None

    @property
    def device(self) -> DeviceTiers | None:
        """What stays where on the one CUDA device that computes; None for none and for several."""
        return self.devices[0] if len(self.devices) == 1 else None

    @property
    def shares_devices(self) -> bool:
        """Whether there are more stripes than devices."""
        return any(tiers.sharing > 1 for tiers in self.devices)

    def on_each_device(self) -> list[list[DeviceTiers]]:
        """What stays where, by device: of each of its stripes."""
        numbers = dict.fromkeys(tiers.device for tiers in self.devices)
        return [[tiers for tiers in self.devices if tiers.device == number] for number in numbers]

    @property
    def rows_in_host(self) -> bool:
        """Whether devices reach what rows have by the link over which tiles come."""
        return any(tiers.rows_in_host for tiers in self.devices)

    @property
    def partitions(self) -> int:
        """How often a pass takes all tiles: once for each slice of what rows gather."""
        return max((tiers.partitions for tiers in self.devices), default=1)

    @property
    def seconds(self) -> float | None:
        """Predicted seconds of the run; None if nothing was measured."""
        return None if self.forecast is None else self.forecast.seconds(self.passes)

    def timed(self, rates: Rates) -> Plan:
        """Return the plan with the time that it takes by what was measured."""
        stats = self.stats
        staying = sum(tiers.on_device for tiers in self.devices) if self.devices else self.cached_tiles
        made = forecast(
            rates,
            edges=stats.edges,
            rows=stats.nodes,
            stored_bytes=self.first_bytes,
            streamed_bytes=self.streamed_bytes,
            kept_share=staying / stats.tiles,
            beside=bool(self.devices),
            rows_in_host=self.rows_in_host,
        )
        if self.method == "components":
            made = replace(made, each=(1 + COMPONENT_SWEEPS) * made.each)
        return replace(self, forecast=made)

    def loaded(self, seconds: float) -> Plan:
        """Return the plan with the seconds in which a new process loads what is compiled."""
        if self.forecast is None:
            return self
        return replace(self, forecast=replace(self.forecast, loading=self.forecast.loading + seconds))

    def predictions(self) -> dict[str, float]:
        """What a run's report shows beside what was found; the time of a process that has done such work."""
        sizes: dict[str, float] = {
            "passes": self.passes,
            "bytes_read": self.bytes_read,
            "peak_memory": self.peak_memory,
        }
        if self.devices:
            each = self.on_each_device()
            sizes["peak_device_memory"] = max(sum(tiers.usual for tiers in of) for of in each)
        if self.forecast is None:
            return sizes
        timing = replace(self.forecast, loading=0.0)
        return sizes | {"pass_seconds": timing.each, "seconds": timing.seconds(self.passes)}

    @property
    def fits(self) -> bool:
        """Whether the run stays within the memory that was given, on each device too."""
        return self.need.total <= self.memory and all(tiers.fits for tiers in self.devices)

    @property
    def cache_bytes(self) -> int:
        """Most bytes that cached tiles take."""
        stats = self.stats
        if self.method == "components":
            # Counted with the scratch of the run.
            return 0
        if self.devices:
            return sum(tiers.pinned_bytes for tiers in self.devices)
        return _decoded(stats, self.sweeps) if self.decoded else self.cached_tiles * stats.max_tile_bytes

    @property
    def uncached_bytes(self) -> int:
        """Encoded bytes of the tiles that are read from the store again and again."""
        return self.stats.usual_bytes * (self.stats.tiles - self.cached_tiles) // self.stats.tiles

    @property
    def streamed_bytes(self) -> int:
        """Encoded bytes read from the store in every pass after the first."""
        return self.partitions * self.uncached_bytes

    @property
    def first_bytes(self) -> int:
        """Encoded bytes read in the first pass: all tiles, and for each slice after the first some again."""
        return self.stats.usual_bytes + (self.partitions - 1) * self.uncached_bytes

    @property
    def bytes_read(self) -> int:
        """Encoded bytes that the run should read from the store, all tiles once and some in every pass."""
        return self.first_bytes + (self.passes - 1) * self.streamed_bytes

    @property
    def peak_memory(self) -> int:
        """Bytes that the process should come to hold; `need` and the cache are what it may at most."""
        stats = self.stats
        if self.method == "components":
            return usual_scc_bytes(self.need, nodes=stats.nodes, edges=stats.edges)
        if self.devices:
            return self.need.base + sum(tiers.usual_host for tiers in self.devices)
        return usual_bytes(
            self.need,
            nodes=stats.nodes,
            edges=stats.edges,
            tiles=stats.tiles,
            tile_edges=min(stats.tile_edges, stats.edges),
            max_tile_rows=stats.max_tile_rows,
            column_bytes=stats.column_bytes,
            local_share=stats.local_share,
            cached_tiles=self.cached_tiles,
            decoded=self.decoded,
            proposals=self.proposals,
            sweeps=self.sweeps,
            weight_bytes=_weight_bytes(stats),
        )

    @property
    def passes(self) -> int:
        """Passes as a rule."""
        return self.expected.usual

    @property
    def gathers(self) -> float:
        """Edges gathered per pass, tile-local sweeps included, in units of the graph's edges."""
        return 1 + (self.sweeps - 1) * self.stats.local_share

    def resident(self, stripe: int) -> frozenset[int]:
        """Tiles of a stripe that stay in memory."""
        first, last = self.stripes[stripe]
        kept = self.cached_tiles * last // self.stats.tiles - self.cached_tiles * first // self.stats.tiles
        return spread_evenly(first, last, kept)

    def validate(self) -> None:
        """Raise DoesNotFitError, with both numbers and the way out, if the run does not fit."""
        devices = self.devices
        if self.shares_devices:
            # The stripe that lacks most first: with what it asks for, the others fit.
            devices = tuple(sorted(devices, key=lambda tiers: tiers.memory - tiers.need.total))
        for tiers in devices:
            tiers.validate()
        if not self.fits:
            # Rounded up: who gives this much must not be refused again.
            least = f"{-(-self.need.total // 2**20)}MiB"
            narrower = "" if self.reads == "bits8" else ", or use reads bits8"
            if self.reproducible:
                narrower += ", or leave reproducible out: a plan by memory may fit"
            raise DoesNotFitError(
                f"the run needs {format_bytes(self.need.total)} (vectors {format_bytes(self.need.vectors)}, "
                f"reads {format_bytes(self.need.reads)}, process {format_bytes(self.need.base)}) "
                f"and was given {format_bytes(self.memory)}.",
                f"Give {least} or more{narrower}.",
            )

    def to_json(self) -> dict[str, object]:
        """Plan as a JSON object: tiers with bytes, passes, predicted_seconds, fits."""
        return to_json(self)

    def __str__(self) -> str:
        """Return the plan as a person reads it."""
        return render(self)


def make_plan(
    stats: GraphStats,
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
    reproducible: bool = False,
) -> Plan:
    """Decide how a run uses the memory it is given.

    Vectors and reads come first, then as much history as fits, then cached tiles.

    Parameters
    ----------
    method, reads, damping, tol, mixing
        As in the run's settings.
    sweeps
        Products inside a tile per pass; None to choose by the share of edges inside tiles.
    memory, base
        Bytes the whole process may use, and those it uses already.
    stripes
        None to choose by the size of the graph.
    personalized
        Whether the teleport vector is not uniform.
    reproducible
        Whether memory may not decide how much history there is: a plan without room for all of it does not
        fit.
    """
    if method == "components":
        whole = _scc_plan(stats, damping, tol, memory, base, personalized)
        return replace(whole, reproducible=reproducible)
    if stripes is None:
        stripes = default_stripes(stats.edges, stats.tiles)
    cuts = stripe_tiles(stats.tiles, stripes)
    mixed = method == "mixed"
    usual = sweeps_for(stats.local_share, stripes)
    chosen = (sweeps or usual) if mixed else 1
    # If few edges stay inside tiles, reading what others propose saved R-MAT one pass in ten, and made
    # each a third longer.
    proposals = chosen > 1

    def need(remembered: int) -> Need:
        return run_need(
            base=base,
            nodes=stats.nodes,
            tile_edges=min(stats.tile_edges, stats.edges),
            max_tile_rows=stats.max_tile_rows,
            max_tile_bytes=stats.max_tile_bytes,
            ring_slots=min(RING_SLOTS, stats.tiles),
            reads=reads,
            proposals=proposals,
            mixing=remembered,
            personalized=personalized,
            sweeps=chosen,
            weighted=stats.weighted,
        )

    wanted = mixing if mixed else 0
    remembered = wanted
    while remembered and need(remembered).total > memory and not reproducible:
        remembered -= 1
    needed = need(remembered)
    left = memory - needed.total
    decoded = _decoded(stats, chosen) <= left
    cached = stats.tiles if decoded else kept_tiles(stats.tiles, stats.max_tile_bytes, left)

    def passes(remembered: int) -> Passes:
        # What neither proposes nor remembers is pushed as it is.
        like = "residual" if mixed and not proposals and not remembered else method
        mixing = remembered if remembered < wanted else None
        return predicted_passes(damping, tol, like, stats.local_share, mixing=mixing)

    better = None
    if remembered < wanted:
        better = Alternative(need(wanted).total, method, wanted, passes(wanted).usual)
    return Plan(
        stats, method, reads, cuts, remembered, chosen, needed, memory, cached, decoded, passes(remembered),
        proposals, reproducible=reproducible, better=better,
    )  # fmt: skip


def choose_method(
    stats: GraphStats, *, memory: int, base: int, personalized: bool, reproducible: bool = False
) -> tuple[str, Alternative | None]:
    """Method of a run for which nobody names one, and what more memory would make of it.

    Examples
    --------
    >>> from oocpr.plan.graph_stats import GraphStats
    >>> small = GraphStats(1000, 10**5, 4, 2**15, 10**5, 30_000, 300, 0.5)
    >>> choose_method(small, memory=2**30, base=0, personalized=False)
    ('components', None)
    >>> choose_method(small, memory=2**25, base=0, personalized=False)
    ('mixed', Alternative(memory=44142256, method='components', mixing=0, passes=2))
    """
    if stats.weighted or stats.edges > MAX_SCC_EDGES:
        return "mixed", None
    whole = _scc_plan(stats, 0.85, 1e-10, memory, base, personalized)
    if whole.fits or reproducible:
        return "components", None
    return "mixed", Alternative(whole.need.total, "components", 0, whole.passes)


def _weight_bytes(stats: GraphStats) -> int:
    """Bytes of a decoded weight: two segments have no more of the fraction than a float, as a rule."""
    if not stats.weighted:
        return 0
    return 4 if stats.weight_bytes <= 4 * stats.edges else 8


def _decoded(stats: GraphStats, sweeps: int) -> int:
    return decoded_bytes(stats.nodes, stats.edges, stats.tiles, sweeps > 1, stats.weighted)


def _scc_plan(
    stats: GraphStats,
    damping: float,
    tol: float,
    memory: int,
    base: int,
    personalized: bool,
) -> Plan:
    if stats.edges > MAX_SCC_NUMBERED_EDGES:
        raise UsageError(
            f"method components takes up to {format_count(MAX_SCC_NUMBERED_EDGES)} edges; "
            f"the graph has {format_count(stats.edges)}.",
            "Use method mixed.",
        )
    need = scc_need(
        base=base,
        nodes=stats.nodes,
        edges=stats.edges,
        max_tile_bytes=stats.max_tile_bytes,
        personalized=personalized,
    )
    passes = predicted_passes(damping, tol, "components")
    stripes = ((0, stats.tiles),)
    return Plan(stats, "components", "float32", stripes, 0, 1, need, memory, stats.tiles, True, passes)
