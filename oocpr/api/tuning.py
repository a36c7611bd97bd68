"""Kernels tuned for a graph and a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oocpr.api.arguments import checked, heard
from oocpr.api.choices import asked_settings, plan_run, process_bytes
from oocpr.api.graphs import opened_graph
from oocpr.errors import UsageError

if TYPE_CHECKING:
    from oocpr.api.graphs import Graph
    from oocpr.engine.cuda.cupy_device import CudaDevice
    from oocpr.engine.cuda.tune_graph import Tuned
    from oocpr.engine.tiles.source import RankedStore
    from oocpr.plan.plan import Plan
    from oocpr.progress import Listener, Progress

SECONDS = 8.0
"""How long shapes are tried; the search is over sooner, as a rule."""


@checked
def tune(
    graph: Any,
    *,
    reads: str | None = None,
    kernel: str | None = None,
    device: str = "cuda",
    memory: str | int | None = None,
    seconds: float = SECONDS,
    progress: Listener = None,
) -> Tuned:
    """Find the fastest shape of a kernel for a graph, on the device at hand; later runs take it.

    It is kept in the user's cache folder (OOCPR_CACHE_DIR; else XDG_CACHE_HOME, else ``~/.cache``), for
    graphs of the same class: of like size, with rows of like length in a like order. It changes no bit of
    any result.

    Parameters
    ----------
    graph
        A `Graph`, or the path of a store.
    reads, kernel, device, memory
        As for `pagerank`; a kernel of those that can be tuned, ``"balanced"`` and ``"binned"``.
    seconds
        For trying; reading a few tiles comes on top.
    progress
        Told of tiles and shapes.

    Returns
    -------
    Tuned
        What was tried, how fast it was, and what is kept.

    Raises
    ------
    UsageError
        Where there is no CUDA device, the kernel has nothing to tune, or the graph is weighted.
    NotAStoreError, DamagedError, DoesNotFitError
        See `open_graph` and `pagerank`.
    """
    from oocpr.engine.cuda.tune_graph import tunable, tune_graph

    settings = asked_settings("mixed", reads)
    name = tunable(kernel)
    if not seconds > 0:
        raise UsageError(f"{seconds} seconds are no time to try shapes in.", "Give a few seconds.")
    progress = heard(progress)
    opened = opened_graph(graph)
    check_columns_only(opened)
    opened_device = device_to_tune(device)
    settings, made, planned = plan_run(
        opened,
        settings,
        auto=False,
        memory=memory,
        stripes=None,
        personalized=False,
        device=device,
        base=process_bytes(opened, device),
    )
    made.validate()
    tuned = tune_graph(
        planned,
        made.facts,
        settings.reads,
        device=opened_device,
        kernel=name,
        seconds=seconds,
        progress=progress,
    )
    assert tuned is not None, "it was to be done again"
    return tuned


def tune_once(
    planned: RankedStore, made: Plan, *, device: str, kernel: str | None, progress: Progress
) -> None:
    """Tune for a run that is planned, unless a shape is kept for its graph.

    Parameters
    ----------
    planned, made
        The graph as the run reads it, and its plan.
    device, kernel
        As of the run; `check_tuning` has found nothing against them.
    progress
        Told of tiles and shapes.
    """
    from oocpr.engine.cuda.tune_graph import tunable, tune_graph

    made.validate()
    if made.slices > 1:
        # Rows that gather slices take no shape that is kept, and the numbers of all nodes have no room.
        return
    tune_graph(
        planned,
        made.facts,
        made.reads,
        device=device_to_tune(device),
        kernel=tunable(kernel),
        seconds=SECONDS,
        again=False,
        progress=progress,
    )


def check_tuning(device: str, kernel: str | None, client: Any) -> None:
    """Refuse a run that is to be tuned and cannot be.

    Raises
    ------
    UsageError
        With the way out.
    """
    from oocpr.engine.cuda.tune_graph import tunable

    if client is not None:
        raise UsageError(
            "workers of a client cannot be tuned from here.",
            "Run `oocpr tune` on their machines: they take what is kept there.",
        )
    tunable(kernel)
    device_to_tune(device)


def check_columns_only(graph: Graph) -> None:
    """Refuse to tune for a weighted graph: shapes are tried on products without weights.

    Raises
    ------
    UsageError
        With the way out.
    """
    if graph.store.attributes.weighted:
        raise UsageError(
            "the graph is weighted, and only products without weights are tuned.",
            "Leave tuning out: weighted graphs take the default shape.",
        )


def device_to_tune(name: str) -> CudaDevice:
    """Open the device to tune for.

    Raises
    ------
    UsageError
        Where it is none of CUDA's, or cannot be used.
    """
    from oocpr.engine.cuda.discovery import is_cuda, open_device

    name = "cuda" if name == "auto" else name
    remedy = "Tune on a machine with a CUDA device and CuPy; processors have nothing to tune."
    if not is_cuda(name):
        raise UsageError(f"nothing can be tuned on device {name!r}.", remedy)
    try:
        return open_device(name)
    except UsageError as error:
        raise UsageError(f"nothing can be tuned: {error.cause}", remedy) from error
