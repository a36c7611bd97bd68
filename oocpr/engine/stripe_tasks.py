"""The functions that make up a run: called in turn in this process, or as Dask tasks, unchanged.

A pass is one `publish` and one `sweep` a stripe and one `reduce` in all::

    state ──> publish(stripe 0) ─┬─> sweep(stripe 0) ─┬─> reduce ──> state
          └─> publish(stripe 1) ─┴─> sweep(stripe 1) ─┘

Each sweep takes what all stripes published; every worker that adds those few numbers gets the same sums.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.engine import method
from oocpr.engine.backend import Streams
from oocpr.engine.cuda.device import download
from oocpr.engine.degree_check import check_balance, claims_of, key_of
from oocpr.engine.executors.dask_preflight import open_on_worker
from oocpr.engine.gather_vector import exchange
from oocpr.engine.stripe import Stripe
from oocpr.engine.tiles.merged import JoinedStore
from oocpr.engine.tiles.source import tiles_of
from oocpr.engine.tiles.stream import TileStream
from oocpr.engine.tiles.weights import per_link, prepare_tile
from oocpr.plan.residency import RING_SLOTS, ring_slots
from oocpr.progress import silent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from oocpr.engine.backend import Backend, PushSums, SweepStep
    from oocpr.engine.job import Job
    from oocpr.engine.method import State, StripeSums
    from oocpr.engine.settings import Settings
    from oocpr.engine.solution import Solution
    from oocpr.engine.tiles.source import RankedStore
    from oocpr.engine.tiles.stream import PassTraffic, Tiles
    from oocpr.engine.trace import Trace


@dataclass(frozen=True)
class StripePush:
    """A stripe's push on its way to the others.

    Parameters
    ----------
    row_begin
        First row of the stripe.
    stored
        Narrow numbers of its rows; None where only the sums are reported.
    sums
        See PushSums.
    """

    row_begin: int
    stored: Any
    sums: PushSums


@dataclass(frozen=True)
class StripeReport:
    """What a stripe reports after a pass."""

    sums: StripeSums
    traffic: PassTraffic


def open_stripe(job: Job, store: RankedStore | None, index: int) -> Stripe:
    """Open a stripe on the worker that will own it."""
    store = _open_graph(job) if store is None else store
    spec = job.spec(store, index)
    settings = job.settings
    backend = exchange(
        job.token,
        job.place(index),
        job.make_backend(index),
        store.nodes,
        settings.reads,
        spec.proposals,
    ).backend
    degree = per_link(store, job.weight_scale, spec)
    claims = claims_of(store, spec, degree, key_of(job))
    rows = slice(spec.row_begin, spec.row_end)
    teleport, start = (None if whole is None else whole[rows] for whole in (job.teleport, job.start))

    tiles = range(spec.first_tile, spec.last_tile)
    on_device: frozenset[int] = frozenset()
    kept = job.plan.resident(index)
    tiers = job.tiers(index)
    if tiers is not None and isinstance(backend, Streams):
        on_device, kept = tiers.places(tiles)
    stream = open_stream(job, index, store, backend, tiles, on_device=on_device, kept=kept)
    state = backend.allocate(spec, degree, teleport, start)
    trace = _trace(job, index) if isinstance(stream, TileStream) else None
    return Stripe(spec, store.tile_rows, backend, state, stream, trace, job.place(index), claims=claims)


def _open_graph(job: Job) -> RankedStore:
    """Open the graph of a run on a worker, in the tiles of the plan."""
    store = open_on_worker(job.path, job.identity)
    return store if job.cuts is None else JoinedStore(store, store.attributes.tile_edges, job.cuts)


def open_stream(
    job: Job,
    index: int,
    store: RankedStore,
    backend: Backend,
    tiles: Sequence[int],
    *,
    on_device: frozenset[int],
    kept: frozenset[int],
) -> Tiles:
    """Open what brings tiles to a backend; some stay on a device, some in memory."""
    plan = job.plan
    trace, tiers = _trace(job, index), job.tiers(index)
    if tiers is not None and isinstance(backend, Streams):
        return backend.open_stream(
            tiles_of(store),
            tiles,
            store.nodes,
            on_device=on_device,
            in_host=kept - on_device,
            edges=plan.stats.tile_edges,
            segments=_most_rows(store, plan.stripes[index]) + 1,
            slots=tiers.slots,
            readers=max(job.readers, tiers.joined_at_once),
            buffers=ring_slots(tiers.joined_at_once),
            trace=trace,
            direct=plan.direct,
            factor=None if job.weight_scale is None else job.weight_scale.factor,
        )

    def prepare(_: int, encoded: NDArray[np.uint8], stays: bool) -> Any:
        decoded = stays and plan.decoded
        # Of a tile that stays decoded no bytes are needed once it has been swept, which follows at once.
        own = encoded.copy() if stays and not decoded else encoded
        return prepare_tile(backend, own, job.weight_scale, store.nodes, decoded)

    return TileStream(
        tiles_of(store), tiles, kept, RING_SLOTS, job.readers, prepare, trace=trace, direct=plan.direct
    )


def _most_rows(store: RankedStore, stripe: tuple[int, int]) -> int:
    """Rows of the tile of a stripe that has most."""
    first, last = stripe
    return int(np.diff(store.tile_rows[first : last + 1]).max())


def _trace(job: Job, index: int) -> Trace | None:
    """Where the timeline of a stripe goes, on tracks of its own where its device is one of several."""
    if job.trace is None or not isinstance(job.backend, tuple):
        return job.trace
    return job.trace.part(f"device {index}")


def publish(job: Job, stripe: Stripe, state: State, index: int) -> StripePush:
    """Make a stripe's next push."""
    return begin_publish(job, stripe, state, index)()


def begin_publish(job: Job, stripe: Stripe, state: State, index: int) -> Callable[[], StripePush]:
    """Have a device begin to make a stripe's next push; returns what waits for it."""
    stored, sums = stripe.publish(method.publish_step(job.settings, state, index))
    return partial(_published, stripe.spec.row_begin, stored, sums)


def _published(row_begin: int, stored: Any, sums: Callable[[], PushSums]) -> StripePush:
    return StripePush(row_begin, stored, sums())


def publish_to_host(job: Job, stripe: Stripe, state: State, index: int) -> StripePush:
    """Make a stripe's next push and bring it where other processes can be sent it."""
    published = publish(job, stripe, state, index)
    return replace(published, stored=download(published.stored))


def sweep(job: Job, stripe: Stripe, state: State, published: Sequence[StripePush]) -> StripeReport:
    """Sweep a stripe's tiles once."""
    return begin_sweep(job, stripe, state, published)()


def begin_sweep(
    job: Job, stripe: Stripe, state: State, published: Sequence[StripePush]
) -> Callable[[], StripeReport]:
    """Have a device begin to sweep a stripe's tiles; returns what waits for it."""
    pieces = ((part.row_begin, part.stored) for part in published)
    return _begin_sweep_with(job, stripe, state, published, pieces)


def sweep_with(
    job: Job,
    stripe: Stripe,
    state: State,
    published: Sequence[StripePush],
    pieces: Iterable[tuple[int, Any]],
) -> StripeReport:
    """Sweep a stripe's tiles once, the pushes of all coming as (first row, stored numbers)."""
    return _begin_sweep_with(job, stripe, state, published, pieces)()


def _begin_sweep_with(
    job: Job,
    stripe: Stripe,
    state: State,
    published: Sequence[StripePush],
    pieces: Iterable[tuple[int, Any]],
) -> Callable[[], StripeReport]:
    spec, settings = stripe.spec, job.settings
    shared = exchange(job.token, stripe.place, stripe.backend, spec.nodes, settings.reads, spec.proposals)
    shared.load(state.number + 1, pieces)
    step = _step(job, state, spec.nodes, published)
    report = stripe.sweep(shared.reads, step)
    return partial(_swept, report)


def _swept(report: Callable[[], tuple[StripeSums, PassTraffic]]) -> StripeReport:
    return StripeReport(*report())


def reduce(
    job: Job, state: State, published: Sequence[StripePush], swept: Sequence[StripeReport], nodes: int
) -> State:
    """Add up what the stripes report, in their order, and decide the next push.

    Raises
    ------
    DamagedError
        Where they contradict each other, as those of a sound store do not.
    """
    step = _step(job, state, nodes, published)
    pushed, sums = [part.sums for part in published], [part.sums for part in swept]
    balances = [part.balance for part in sums if part.balance is not None]
    if balances:
        check_balance(job.path, balances, pushed, [part.carry for part in sums], nodes)
    after = method.end_pass(state, step, pushed, sums)
    return after if job.start is None else method.start_again(job.settings, state, after)


def finish(stripe: Stripe, state: State, index: int) -> NDArray[np.float64]:
    """Sum of p and r of a stripe's rows."""
    return stripe.finish(state.carries[index])


def rank_whole(
    path: str,
    identity: str,
    settings: Settings,
    threads: int | None,
    teleport: NDArray[np.float64] | None,
    start: NDArray[np.float64] | None,
) -> Solution:
    """Rank a graph that one worker keeps in memory whole."""
    from oocpr.engine.scc.graph import load_whole
    from oocpr.engine.scc.run import WholeRun

    begun = time.perf_counter()
    graph = load_whole(open_on_worker(path, identity), threads)
    return WholeRun(graph, settings, threads, teleport, start).rank(begun, graph.bytes_read, silent)


def _step(job: Job, state: State, nodes: int, published: Sequence[StripePush]) -> SweepStep:
    step = method.sweep_step(job.settings, state, nodes, [part.sums for part in published])
    return step if state.number else replace(step, key=key_of(job))
