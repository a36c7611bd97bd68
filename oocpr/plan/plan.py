"""A run as data: made from integers, printed, checked, and only then carried out."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from html import escape
from typing import TYPE_CHECKING

from oocpr.errors import DoesNotFitError
from oocpr.plan.forecast import COMPONENT_SWEEPS, Forecast
from oocpr.plan.memory import (
    READ_BYTES,
    SEGMENTED_METHODS,
    Need,
    decoded_bytes,
    segmented_tile_bytes,
    typical_bytes,
    typical_scc_bytes,
    typical_segmented_bytes,
)
from oocpr.plan.partition import FEW_OUTSIDE, FEW_SECTIONS, MAX_SECTIONS
from oocpr.plan.request import SWEPT_TILES
from oocpr.plan.residency import spread_evenly
from oocpr.plan.ways import way_rows
from oocpr.units import format_bytes, format_count, format_passes, format_seconds

if TYPE_CHECKING:
    from oocpr.plan.device_memory import DeviceTiers
    from oocpr.plan.forecast import Passes, Rates
    from oocpr.plan.request import GraphStats
    from oocpr.plan.ways import Way

MIN_LOADING = 0.05
"""Seconds of loading below which a person does not read of it."""


@dataclass(frozen=True)
class Alternative:
    """A plan that takes fewer passes, as a rule so many, and is chosen from so many bytes of memory on."""

    memory: int
    method: str
    mixing: int
    passes: int


@dataclass(frozen=True)
class Plan:
    """What a run needs, where everything stays, and how long it should take."""

    stats: GraphStats
    method: str
    reads: str
    stripes: tuple[tuple[int, int], ...]  # first tile of each and the one past its last
    mixing: int  # passes that mixing remembers; fewer than asked for if memory is short
    sweeps: int  # products inside a tile per pass
    need: Need  # bytes at the peak without the cache of tiles
    memory: int  # bytes that were given
    cached_tiles: int  # tiles that stay in memory after their first read
    decoded: bool  # whether they stay decoded, which saves a processor the decoding in every pass
    expected: Passes
    proposals: bool = True  # whether rows propose pushes, rather than push what mixing makes of residuals
    devices: tuple[DeviceTiers, ...] = ()  # of each stripe; empty if processors compute
    direct: bool = False  # whether tiles are read past the system's page cache
    forecast: Forecast | None = None  # None if nothing was measured
    reproducible: bool = False  # whether the bits of the ranks depend on the graph and the settings alone
    better: Alternative | None = None  # what more memory allows; None if it changes no bit of the ranks
    ways: tuple[Way, ...] = ()  # how devices could take the graph, if that was asked
    fpga_seconds: float | None = None  # of a product on the FPGA of `oocpr.plan.fpga`, if that was asked
    exchange: bool | None = None  # whether rows read what other stripes propose; None if there are others

    @property
    def device(self) -> DeviceTiers | None:
        """What stays where on the one CUDA device that computes; None for none and for several."""
        return self.devices[0] if len(self.devices) == 1 else None

    @property
    def exchanging(self) -> bool:
        """Whether stripes exchange what rows propose while they are swept."""
        gathered = self.method == "mixed" and self.proposals and all(tiers.pairs for tiers in self.devices)
        return gathered and (len(self.stripes) > 1 if self.exchange is None else self.exchange)

    @property
    def keeps_open(self) -> bool:
        """Whether tiles are still swept while stripes exchange: those of processors."""
        return not self.devices and self.sweeps > 1

    @property
    def sections(self) -> int:
        """Parts in which a pass takes each stripe; stripes exchange what rows propose between them."""
        if not self.exchanging:
            return 1
        longest = max(last - first for first, last in self.stripes)
        if not self.keeps_open:
            return min(FEW_SECTIONS, longest)
        few = self.stats.outside_share(len(self.stripes)) < FEW_OUTSIDE
        # With two tiles each, both are open at the end.
        return min(FEW_SECTIONS if few else MAX_SECTIONS, longest // (SWEPT_TILES - 1) + 1)

    @property
    def exchanges(self) -> int:
        """Exchanges of proposals in a pass: after each section, but for the last if no tile is open then."""
        return self.sections - (not self.keeps_open) if self.exchanging else 0

    @property
    def shares_devices(self) -> bool:
        """Whether there are more stripes than devices."""
        return any(tiers.sharing > 1 for tiers in self.devices)

    def with_a_stripe_each(self) -> Plan:
        """Return the plan as if the stripes that share a device, which are neighbours, were one."""
        stripes: list[tuple[int, int]] = []
        devices: list[DeviceTiers] = []
        for (first, last), tiers in zip(self.stripes, self.devices, strict=True):
            if devices and devices[-1].device == tiers.device:
                stripes[-1] = stripes[-1][0], last
                devices[-1] = replace(
                    devices[-1],
                    memory=devices[-1].memory + tiers.memory,
                    on_device=devices[-1].on_device + tiers.on_device,
                    in_host=devices[-1].in_host + tiers.in_host,
                )
            else:
                stripes.append((first, last))
                devices.append(replace(tiers, sharing=1))
        return replace(self, stripes=tuple(stripes), devices=tuple(devices))

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
        """How often a pass takes all tiles: once for each column partition of what rows gather."""
        return max((tiers.partitions for tiers in self.devices), default=1)

    @property
    def seconds(self) -> float | None:
        """Predicted seconds of the run; None if nothing was measured."""
        return None if self.forecast is None else self.forecast.seconds(self.passes)

    def timing(self, rates: Rates) -> Forecast:
        """Seconds of the passes of a run by what was measured.

        Tiles come to a device while its kernels run, and go on coming between two passes, in which nothing is
        read: a pass takes as long as the link, or as the kernels, or the host that launches them, and what is
        between, whichever takes longer. If kernels reach rows over the link as well, what comes and what they
        reach take turns, and between two passes nothing comes.
        """
        edges, rows, tiles = self.stats.edges, self.stats.nodes, self.stats.tiles
        staying = sum(tiers.on_device for tiers in self.devices) if self.devices else self.cached_tiles
        share = staying / tiles
        moved = edges * (1 - share)
        resident = edges * share / rates.resident
        swept = resident + moved / rates.streamed
        sent = moved / rates.uploaded
        between = rows / rates.rows
        working = max(swept, self.streamed_bytes / rates.store_bytes, edges / rates.launched)
        if not self.devices:
            each = working + between
        elif self.rows_in_host:
            each = max(sent + moved / rates.alternating + resident, working) + between
        else:
            each = max(sent, working + between)
        return Forecast(
            first=max(edges / rates.first, self.first_bytes / rates.store_bytes) + between,
            each=each * (1 + COMPONENT_SWEEPS) if self.method == "components" else each,
            ends=rows / rates.ends,
            loading=rates.loading,
        )

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
            sizes["peak_device_memory"] = max(sum(tiers.typical for tiers in of) for of in each)
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
        if self.method in SEGMENTED_METHODS:
            return self.cached_tiles * segmented_tile_bytes(stats)
        if self.decoded:
            return decoded_bytes(stats, self.sweeps > 1)
        return self.cached_tiles * stats.max_tile_bytes

    @property
    def uncached_bytes(self) -> int:
        """Encoded bytes of the tiles that are read from the store again and again."""
        return self.stats.column_bytes * (self.stats.tiles - self.cached_tiles) // self.stats.tiles

    @property
    def streamed_bytes(self) -> int:
        """Encoded bytes read from the store in every pass after the first."""
        return self.partitions * self.uncached_bytes

    @property
    def first_bytes(self) -> int:
        """Encoded bytes read in the first pass: all tiles, and some again per partition after the first."""
        return self.stats.column_bytes + (self.partitions - 1) * self.uncached_bytes

    @property
    def bytes_read(self) -> int:
        """Encoded bytes that the run should read from the store, all tiles once and some in every pass."""
        return self.first_bytes + (self.passes - 1) * self.streamed_bytes

    @property
    def peak_memory(self) -> int:
        """Bytes that the process should come to hold; `need` and the cache are what it may at most."""
        if self.method == "components":
            return typical_scc_bytes(self.need, self.stats)
        if self.devices:
            return self.need.base + sum(tiers.typical_host for tiers in self.devices)
        if self.method in SEGMENTED_METHODS:
            return typical_segmented_bytes(self.need, self.stats, self.cached_tiles)
        return typical_bytes(
            self.need, self.stats, self.cached_tiles, self.decoded, self.sweeps, len(self.stripes)
        )

    @property
    def passes(self) -> int:
        """Passes as a rule."""
        return self.expected.typical

    @property
    def gathers(self) -> float:
        """Edges gathered per pass, sweeps included, in units of the graph's edges; those are estimated."""
        if self.devices:
            return 1 + (self.sweeps - 1) * self.stats.local_share
        stripes = len(self.stripes)
        swept = (self.sweeps - 1) * self.stats.near_share(stripes)
        # When a tile comes, and twice in a section.
        reread = 1 + 2 * self.exchanges * stripes / self.stats.tiles if self.exchanging else 0
        return 1 + swept + reread * self.stats.outside_share(stripes)

    def resident(self, stripe: int) -> frozenset[int]:
        """Tiles of a stripe that stay in memory."""
        (first, last), tiles = self.stripes[stripe], self.stats.tiles
        count = self.cached_tiles * last // tiles - self.cached_tiles * first // tiles
        return spread_evenly(first, last, count)

    def validate(self) -> None:
        """Raise DoesNotFitError, with both numbers and the way out, if the run does not fit."""
        devices = self.devices
        if self.shares_devices:
            # The stripe that lacks most first: with what it asks for, the others fit.
            devices = tuple(sorted(devices, key=lambda tiers: tiers.memory - tiers.need.total))
        for tiers in devices:
            if self.method in SEGMENTED_METHODS:
                tiers.validate("use method mixed")
            else:
                tiers.validate()
        if not self.fits:
            # Rounded up: who gives this much must not be refused again.
            enough = f"{-(-self.need.total // 2**20)}MiB"
            # Pushes of eight bits take one byte of each that these take.
            saved = self.need.reads - self.need.reads // READ_BYTES[self.reads]
            helps = self.method != "components" and self.need.total - saved <= self.memory
            narrower = ", or use reads bits8" if helps and saved else ""
            if self.method in SEGMENTED_METHODS:
                narrower = ", or use method mixed"
            if self.reproducible:
                narrower += ", or leave reproducible out: a plan by memory may fit"
            raise DoesNotFitError(
                f"the run needs {format_bytes(self.need.total)} (vectors {format_bytes(self.need.vectors)}, "
                f"reads {format_bytes(self.need.reads)}, process {format_bytes(self.need.base)}) "
                f"and was given {format_bytes(self.memory)}.",
                f"Give {enough} or more{narrower}.",
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
                **_device_json(self),
            },
            "weighted": self.stats.weighted,
            "memory": self.memory,
            "needed": self.need.total,
            "fits": self.fits,
            "method": self.method,
            "reads": self.reads,
            "stripes": len(self.stripes),
            "tiles": self.stats.tiles,
            "cached_tiles": self.cached_tiles,
            "decoded": self.decoded,
            "mixing": self.mixing,
            "sweeps": self.sweeps,
            "passes": self.passes,
            "passes_per_byte": self.gathers * self.stats.edges / max(1, self.stats.column_bytes),
            "direct": self.direct,
            "passes_range": [self.expected.fewest, self.expected.most],
            "predicted_seconds": self.seconds,
            "predicted_pass_seconds": None if self.forecast is None else self.forecast.each,
            "predicted_first_pass_seconds": None if self.forecast is None else self.forecast.first,
            "predicted_pass_bytes": self.streamed_bytes,
            "predicted_bytes_read": self.bytes_read,
            "predicted_peak_memory": self.peak_memory,
            "slices": self.partitions,
            "reproducible": self.reproducible,
            "better": None if self.better is None else asdict(self.better),
            "ways": [asdict(way) for way in self.ways],
            "fpga_seconds": self.fpga_seconds,
            "device_needed": max(
                (sum(tiers.max_bytes for tiers in of) for of in self.on_each_device()), default=0
            ),
            "predicted_peak_device_memory": self.predictions().get("peak_device_memory", 0),
        }

    def _repr_html_(self) -> str:
        return f'<pre style="font-family:monospace">{escape(str(self))}</pre>'

    def __str__(self) -> str:
        """Return the plan as a person reads it."""
        stats, need, passes = self.stats, self.need, self.expected
        tiles = f"{stats.tiles} of {format_count(stats.tile_edges)} edges in {len(self.stripes)} stripe(s)"
        method = f"{self.method}, reads {self.reads}"
        if self.method == "mixed":
            method += f", mixing {self.mixing}, sweeps a tile {self.sweeps}"
        graph = f"{format_count(stats.nodes)} nodes, {format_count(stats.edges)} edges"
        graph += ", weighted" * stats.weighted
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
            *_device_rows(self),
            *way_rows(self.ways),
            ("from the store", f"{format_bytes(self.streamed_bytes)} a pass{', directly' * self.direct}"),
            ("products a byte", f"{self.gathers * stats.edges / max(1, stats.column_bytes):.2f} edges"),
            ("should hold", f"about {format_bytes(self.peak_memory)}"),
            (
                "passes",
                f"about {passes.typical}; {passes.fewest} to {passes.most}, by how slowly the graph mixes",
            ),
            *_times(self),
            *_fpga(self),
            ("other memory", _other_memory(self)),
            ("fits", "yes" if self.fits else "no"),
        ]
        width = max(16, 1 + max(len(name) for name, _ in rows))
        return "\n".join(f"{name:<{width}}{value}" for name, value in rows)


def _device_json(plan: Plan) -> dict[str, object]:
    """Bytes on the device; of several the most on any, and then those on each."""
    each = [
        {key: sum(tiers.to_json()[key] for tiers in of) for key in of[0].to_json()}
        for of in plan.on_each_device()
    ]
    most = {key: max(of[key] for of in each) for key in (each[0] if each else ())}
    return {**most, "devices": each} if len(each) > 1 else dict(most)


def _device_rows(plan: Plan) -> list[tuple[str, str]]:
    """Lines of the plan about devices, numbered where there are several."""
    rows = []
    for number, (tiers, (first, last)) in enumerate(zip(plan.devices, plan.stripes, strict=False)):
        of = "" if len(plan.devices) == 1 else f", {number}"
        rows += [(f"{name}{of}", value) for name, value in tiers.rows(last - first)]
    return rows


def _other_memory(plan: Plan) -> str:
    """What becomes of the passes, and with them of the last bits of the ranks, if memory is another."""
    if plan.reproducible:
        return "same passes, same bits: the graph and the settings fix the plan"
    if plan.better is not None:
        more = plan.better
        how = f"mixing {more.mixing}" if more.method == plan.method else f"method {more.method}"
        # Rounded up: who gives this much must get it.
        return f"from {-(-more.memory // 2**20)}MiB on {how}, about {more.passes} passes and other last bits"
    if plan.devices:
        return "passes and last bits depend on the memory of the devices, unless reproducible"
    enough = f"{-(-plan.need.total // 2**20)}MiB"
    return f"same passes and bits from {enough} on; with less, more passes, unless reproducible"


def _fpga(plan: Plan) -> list[tuple[str, str]]:
    if plan.fpga_seconds is None:
        return []
    taken = format_seconds(plan.fpga_seconds)
    return [("FPGA of 2010", f"about {taken} a product, by a model of 8 elements at 125 MHz (Shan 2010)")]


def _times(plan: Plan) -> list[tuple[str, str]]:
    timing, seconds = plan.forecast, plan.seconds
    if timing is None or seconds is None:
        return [("time", "not predicted")]
    first, each = format_seconds(timing.first), format_seconds(timing.each)
    loading = f", {format_seconds(timing.loading)} of it loading" if timing.loading >= MIN_LOADING else ""
    return [
        ("a pass", f"about {each}, the first {first}"),
        ("time", f"about {format_seconds(seconds)} with {format_passes(plan.passes)}{loading}"),
    ]
