"""Rank graphs on a CUDA device and say where the time goes, beside power iteration with cuSPARSE.

For each graph: whole runs of the default method to a certified error, the passes they take, the time of a
pass by parts, the true error (against float64 power iteration with cuSPARSE, run until nothing moves), the
time that cuSPARSE takes to the same true error, and whether all runs give the same bits. Gaps are for how
long the device waits: in all, and in passes alone, which are recorded before the first of them.
"""

from __future__ import annotations

import argparse
import json
import os
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import cupy as cp
import device_graphs as graphs
import numpy as np
from device_graphs import CodedGraph, room_bytes
from numpy.typing import NDArray

from oocpr.engine import method
from oocpr.engine.backend import StripeSpec
from oocpr.engine.cuda import backend as cuda
from oocpr.engine.cuda.backend import CudaBackend
from oocpr.engine.cuda.device import open_device
from oocpr.engine.cuda.resident_pass import ResidentPass
from oocpr.engine.cuda.spmv import SpMV
from oocpr.engine.cuda.vectors import DeviceGatherVector, RowState
from oocpr.engine.devices import make_backend
from oocpr.engine.settings import Settings
from oocpr.plan.forecast import DEVICE_MIXING, SMALL_EDGES, sweeps_on_device

if TYPE_CHECKING:
    from oocpr.engine.backend import PushStep, SweepStep
    from oocpr.engine.cuda.staging import CudaTileStream
    from oocpr.plan.tile_groups import GroupLayout

VECTORS = ("make_push", "load", "update", "local_end")
PARTS: dict[str, Any] = {
    **dict.fromkeys(VECTORS, RowState), "load": DeviceGatherVector, "bound": SpMV,
    "sweep_diagonal_blocks": cuda,
}  # fmt: skip
"""What is timed apart: functions that launch kernels, and of which class or module."""

BOUND = ("bound", "local_end")
"""Those that return what launches."""


@dataclass(frozen=True)
class Ranked:
    """A run."""

    ranks: Any
    residuals: tuple[float, ...]
    seconds: float
    bound: float
    recording: float  # of the seconds, those before the first pass


class Parts:
    """Device time of each part of a run, measured by events around launches."""

    def __init__(self) -> None:
        self._events: dict[str, list[tuple[Any, Any]]] = defaultdict(list)

    def __enter__(self) -> Parts:
        self._kept = {name: getattr(owner, name) for name, owner in PARTS.items()}
        for name, owner in PARTS.items():
            setattr(owner, name, self._timed(name, self._kept[name]))
        return self

    def __exit__(self, *exception: object) -> None:
        for name, owner in PARTS.items():
            setattr(owner, name, self._kept[name])

    def _timed(self, name: str, launch: Callable[..., Any]) -> Callable[..., Any]:
        def timed(owner: Any, *args: Any, **options: Any) -> Any:
            label = name
            if isinstance(owner, SpMV):
                local = owner.gather.local or owner.gather.inside
                label = "local product" if local else "product"
            work = partial(launch, owner, *args, **options)
            return partial(self._note, label, work()) if name in BOUND else self._note(label, work)

        return timed

    def _note(self, label: str, work: Callable[[], Any]) -> Any:
        begin, end = cp.cuda.Event(), cp.cuda.Event()
        begin.record()
        result = work()
        end.record()
        self._events[label].append((begin, end))
        return result

    def seconds(self) -> dict[str, float]:
        """Seconds of each part."""
        cp.cuda.Device().synchronize()
        return {
            name: sum(cp.cuda.get_elapsed_time(*pair) for pair in pairs) / 1e3
            for name, pairs in self._events.items()
        }


def stripe_spec(layout: GroupLayout, nodes: int, settings: Settings, *, proposals: bool) -> StripeSpec:
    """The one stripe of a graph in groups, which are its tiles."""
    return StripeSpec(
        first_tile=0,
        last_tile=len(layout.bounds) - 1,
        row_begin=0,
        row_end=nodes,
        nodes=nodes,
        slots=settings.mixing if settings.mixed else 0,
        proposals=proposals,
        reads=settings.reads,
        stored_tiles=int(layout.bounds[-1]),
    )


class Stripe(NamedTuple):
    """All rows of a graph that is in no store, and its groups of tiles."""

    spec: StripeSpec
    group_rows: NDArray[np.int64]
    backend: CudaBackend
    state: Any
    stream: CudaTileStream

    def passes(self, settings: Settings, reads: Any, *, recorded: bool) -> ResidentPass:
        """Passes of a run."""
        first = self._steps(settings, method.begin(settings, 1, 1 / self.spec.nodes))
        return ResidentPass(
            self.backend, self.state, reads, self.stream, self.group_rows, first, recorded=recorded
        )

    def _steps(self, settings: Settings, state: method.State) -> tuple[PushStep, SweepStep]:
        step = method.sweep_step(settings, state, self.spec.nodes, None)
        return method.push_step(settings, state, 0), step

    def run_pass(self, settings: Settings, state: method.State, passes: ResidentPass) -> method.State:
        """One pass, as :mod:`oocpr.engine.stripe` does it; the state after it."""
        push, step = self._steps(settings, state)
        pushed, told, _ = passes.run(push, step)
        sums = method.StripeSums(
            self.spec.rows, step.damping * told.carry[0], told.norm, told.with_change, told.with_residual,
            told.peaks, self.backend.first_row(self.state, step.live),
        )  # fmt: skip
        return method.end_pass(state, [pushed], [sums])


class OnDevice:
    """A graph in groups of tiles on the device, ready to be ranked."""

    def __init__(
        self,
        backend: CudaBackend,
        graph: graphs.DeviceGraph,
        *,
        tile_edges: int,
        group_edges: int,
        threads: int,
    ) -> None:
        self.backend = backend
        self.nodes, self.edges = graph.nodes, graph.edges
        coded = CodedGraph(graph, tile_edges, threads)
        self.layout = coded.layout(group_edges)
        self.tiles, self.local_share = coded.stats.tiles, coded.stats.local_share
        self.stream, groups = coded.put_on_device(backend, self.layout)
        self.groups, self.device_bytes = len(groups), room_bytes(self.layout, groups)
        self.degree = cp.asnumpy(cp.bincount(graph.columns, minlength=graph.nodes)).astype(np.uint32)

    def stripes(self, settings: Settings) -> Iterator[tuple[Stripe, Any]]:
        """The one stripe, with rows as before a run; the same memory each time."""
        proposals = settings.mixed and settings.sweeps > 1
        spec = stripe_spec(self.layout, self.nodes, settings, proposals=proposals)
        rows = self.backend.allocate(spec, self.degree, None)
        reads = self.backend.allocate_reads(self.nodes, settings.reads, proposals)
        while True:
            for array in (rows.ranks, rows.residual, rows.push, rows.changes, rows.steps):
                array.fill(0)
            # Memory for the ranks is made in each run, as where somebody waits for them.
            rows._landing = None
            yield Stripe(spec, self.layout.group_rows, self.backend, rows, self.stream), reads

    def rank(
        self,
        settings: Settings,
        stripe: Stripe,
        reads: Any,
        *,
        recorded: bool = True,
        passes: ResidentPass | None = None,
    ) -> Ranked:
        """One run, as :mod:`oocpr.engine.run` does it; without CUDA graphs if not `recorded`.

        `passes`: those of a run before, which are recorded.
        """
        cp.cuda.Device().synchronize()
        begun = perf_counter()
        passes = passes or stripe.passes(settings, reads, recorded=recorded)
        recording = perf_counter() - begun
        state = method.begin(settings, 1, 1 / self.nodes)
        while state.number < settings.pass_limit:
            state = stripe.run_pass(settings, state, passes)
            if settings.satisfied(state.residuals[-1]):
                break
        seconds = perf_counter() - begun
        ranks = stripe.state.ranks + stripe.state.residual
        ranks[0] += state.carries[0]
        ranks /= ranks.sum()
        bound = settings.bound(state.residuals[-1])
        return Ranked(ranks, state.residuals, seconds, bound, recording)


def busy_seconds(passes: ResidentPass, count: int, times: int = 20) -> float:
    """Time for which a device works on a run of so many passes: what is recorded of them, without waiting.

    What is swept behind the last pass's sums, which nobody waits for, is not counted.
    """
    to_sums, behind = passes._to_sums, passes._behind
    assert to_sums is not None, "a run of several passes has recorded them"

    def seconds(*launches: Callable[[], None]) -> float:
        cp.cuda.Device().synchronize()
        begun = perf_counter()
        for _ in range(times):
            for launch in launches:
                launch()
        cp.cuda.Device().synchronize()
        return (perf_counter() - begun) / times

    alone = seconds(to_sums)
    return count * alone if behind is None else alone + (count - 1) * seconds(to_sums, behind)


class Peer:
    """Power iteration in float64 with cuSPARSE, dangling mass spread over all nodes."""

    def __init__(self, graph: graphs.DeviceGraph, degree: NDArray[np.uint32], damping: float) -> None:
        from cupyx.scipy.sparse import csr_matrix

        self.nodes, self.damping = graph.nodes, damping
        parts = (
            cp.ones(graph.edges, np.float64), graph.columns.view(np.int32), graph.offsets.astype(np.int32)
        )  # fmt: skip
        self._matrix = csr_matrix(parts, shape=(graph.nodes, graph.nodes))
        there = cp.asarray(degree)
        self._share = cp.where(there > 0, 1.0 / cp.maximum(there, 1), 0.0)
        self._dangling = (there == 0).astype(np.float64)
        self._sent, self._sums = cp.empty(graph.nodes), cp.empty(graph.nodes)
        self._send = cp.ElementwiseKernel("float64 x, float64 share", "float64 y", "y = x * share", "send")
        self._next = cp.ElementwiseKernel(
            "float64 got, raw float64 lost, float64 c, float64 nodes", "float64 x",
            "x = c * (got + lost[0] / nodes) + (1 - c) / nodes", "next_ranks",
        )  # fmt: skip

    def sweep(self, x: Any) -> Any:
        """One sweep, in place; nothing is waited for."""
        import cupyx.cusparse

        lost = (self._dangling @ x).reshape(1)
        self._send(x, self._share, self._sent)
        cupyx.cusparse.spmv(self._matrix, self._sent, self._sums)
        self._next(self._sums, lost, self.damping, float(self.nodes), x)
        return x

    def settled(self, x: Any, most: int = 300) -> Any:
        """Sweep until nothing moves but by rounding."""
        x = x.copy()
        least, stuck = float("inf"), 0
        for _ in range(most):
            before = x.copy()
            self.sweep(x)
            moved = float(cp.abs(x - before).sum())
            stuck = 0 if moved < 0.9 * least else stuck + 1
            least = min(least, moved)
            if stuck == 5:
                break
        return x / x.sum()

    def sweeps_to(self, exact: Any, errors: list[float], most: int = 400) -> dict[str, int]:
        """Sweeps from the uniform vector until the true error is no more than each of `errors`."""
        x = cp.full(self.nodes, 1 / self.nodes)
        needed: dict[str, int] = {}
        for number in range(1, most + 1):
            self.sweep(x)
            error = float(cp.abs(x / x.sum() - exact).sum())
            needed |= {f"{e:.3g}": number for e in errors if error <= e and f"{e:.3g}" not in needed}
            if len(needed) == len(errors):
                break
        return needed

    def seconds(self, sweeps: int = 20) -> float:
        """Time of a sweep."""
        x = cp.full(self.nodes, 1 / self.nodes)
        self.sweep(x)
        begin, end = cp.cuda.Event(), cp.cuda.Event()
        begin.record()
        for _ in range(sweeps):
            self.sweep(x)
        end.record()
        end.synchronize()
        return float(cp.cuda.get_elapsed_time(begin, end)) / 1e3 / sweeps


class Bench:
    """What has been found so far."""

    def __init__(self, out: Path, runs: int) -> None:
        self.backend = cast("CudaBackend", make_backend("cuda", None))
        self.out, self.runs = out, runs
        self.results: dict[str, Any] = {"device": cp.cuda.runtime.getDeviceProperties(0)["name"].decode()}
        self.begun = perf_counter()

    def note(self, graph: str, what: str, value: Any) -> None:
        """Print a result and keep it on disk, so that nothing is lost when time runs out."""
        self.results.setdefault(graph, {})[what] = value
        text = f"{value:10.4g}" if isinstance(value, float) else json.dumps(value)
        print(f"{perf_counter() - self.begun:6.1f} s  {graph:18s} {what:32s} {text}", flush=True)
        self.out.write_text(json.dumps(self.results, indent=1) + "\n")

    def guard(self, graph: str, what: str, work: Callable[[], object]) -> None:
        """Do one part; its failure is noted and does not end the others."""
        try:
            work()
        except Exception as error:  # noqa: BLE001
            traceback.print_exc()
            self.note(graph, what, f"failed: {error}"[:500])

    def graph(
        self, graph: graphs.DeviceGraph, chosen: list[dict[str, Any]], options: argparse.Namespace
    ) -> None:
        """Everything that is measured on one graph; settings without sweeps get those of a plan."""
        name = graph.name
        small = graph.edges <= SMALL_EDGES
        there = OnDevice(
            CudaBackend(open_device("cuda"), inside="groups", layouts_stay=True) if small else self.backend,
            graph,
            tile_edges=options.tile_edges,
            group_edges=options.group_edges,
            threads=options.threads,
        )
        planned = sweeps_on_device(there.local_share, small=small)
        facts = {
            "nodes": there.nodes,
            "edges": there.edges,
            "tiles": there.tiles,
            "groups": there.groups,
            "B/edge on the device": there.device_bytes / there.edges,
            "share of edges inside tiles": there.local_share,
            "sweeps of a plan": planned,
        }
        for what, value in facts.items():
            self.note(name, what, value)
        peer = Peer(graph, there.degree, 0.85)
        exact: Any = None
        reached: list[float] = []
        for parameters in chosen:
            settings = Settings(**{"sweeps": planned, "mixing": DEVICE_MIXING, **parameters})
            label = ", ".join(
                [settings.method, settings.reads]
                + [f"sweeps {settings.sweeps}, mixing {settings.mixing}"] * settings.mixed
            )
            first = next(there.stripes(settings))
            run = there.rank(settings, *first)
            exact = peer.settled(run.ranks) if exact is None else exact
            cell = self.run(there, settings, exact)
            reached.append(cell["true error"])
            self.note(name, label, cell)
        sweep = peer.seconds()
        needed = peer.sweeps_to(exact, [1e-10, *reached])
        self.note(name, "cuSPARSE seconds a sweep", sweep)
        self.note(name, "cuSPARSE sweeps to true error", needed)
        self.note(name, "cuSPARSE seconds to true error", {e: n * sweep for e, n in needed.items()})

    def run(self, there: OnDevice, settings: Settings, exact: Any) -> dict[str, Any]:
        """Time runs of one setting, look at their parts, and compare their bits."""
        stripes = there.stripes(settings)
        runs = [there.rank(settings, *next(stripes))]
        same = True
        for _ in range(self.runs - 1):
            run = there.rank(settings, *next(stripes))
            same &= run.residuals == runs[0].residuals and bool((run.ranks == runs[0].ranks).all())
            runs.append(replace(run, ranks=None))
        error = float(cp.abs(runs[0].ranks - exact).sum())
        seconds, recording = (
            float(np.median([getattr(run, of) for run in runs])) for of in ("seconds", "recording")
        )
        stripe, reads = next(stripes)
        kept = stripe.passes(settings, reads, recorded=True)
        there.rank(settings, stripe, reads, passes=kept)
        with Parts() as parts:
            whole = there.rank(settings, *next(stripes), recorded=False)
        passes = len(whole.residuals)
        busy = busy_seconds(kept, passes)
        parted = parts.seconds()
        products, vectors = parted.get("product", 0.0), sum(parted.get(part, 0.0) for part in VECTORS)
        return {
            "passes": passes,
            "seconds": seconds,
            "best seconds": min(run.seconds for run in runs),
            "ms a pass": 1e3 * seconds / passes,
            "ms a pass by parts": {part: 1e3 * s / passes for part, s in parted.items()},
            "share of vectors": vectors / max(1e-12, sum(parted.values())),
            "seconds to record": recording,
            "share of gaps": 1 - busy / seconds,
            "share of gaps in passes": 1 - busy / (seconds - recording),
            "product GTEPS": there.edges * passes / products / 1e9,
            "bound": whole.bound,
            "true error": error,
            "runs": len(runs),
            "same bits": same,
        }


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")) / "device_rank.json")
    parser.add_argument(
        "--small", action="store_true", help="R-MAT 18 and a small web-like graph, all formats"
    )
    graphs.add_options(parser)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--threads", type=int, default=16)
    options = parser.parse_args(arguments)
    bench = Bench(options.out, 3 if options.small else options.runs)
    scales, web = ([18], 18) if options.small else (options.scales, options.web)
    few: list[dict[str, Any]] = [{}, {"reads": "bits8"}, {"method": "residual"}]
    more = [{"sweeps": sweeps} for sweeps in (1, 2, 3)]
    if options.small:
        few += [{"reads": "float32"}, {"reads": "float64"}, {"method": "power", "reads": "float64"}]
    pool = cp.get_default_memory_pool()

    def measure(name: str, make: Callable[[], tuple[int, Any]]) -> None:
        graph = graphs.rows_of(name, *make())
        chosen = [*few, *(more if "web" in name else more[:1])]
        bench.guard(name, "runs", partial(bench.graph, graph, chosen, options))

    for name, make in graphs.makers(scales, web, options.matrix).items():
        bench.guard(name, "graph", partial(measure, name, make))
        pool.free_all_blocks()


if __name__ == "__main__":
    main()
