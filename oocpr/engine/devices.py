"""What computes, by the names that users give: processors, CUDA devices, and which of them fits a graph."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from oocpr.engine.cuda.device import all_devices, is_open, open_device
from oocpr.engine.cuda.names import ALL, check_kernel_device, is_cuda, named_devices
from oocpr.errors import SetupError, UsageError
from oocpr.plan.forecast import MAX_SCC_EDGES, READY_SCC_EDGES
from oocpr.plan.memory import SEGMENTED_METHODS

if TYPE_CHECKING:
    from oocpr.engine.backend import Backend
    from oocpr.plan.device_memory import DeviceTiers
    from oocpr.store.graph import GraphStore

_LOG = logging.getLogger(__name__)


def each_backend(
    backend: str | Backend | tuple[str | Backend, ...],
) -> str | Backend | tuple[str | Backend, ...]:
    """Part the names of several devices, one for each stripe; anything else stays as it is.

    Examples
    --------
    >>> each_backend("cuda:0,cuda:2"), each_backend("cuda"), each_backend("cpu")
    (('cuda:0', 'cuda:2'), 'cuda', 'cpu')
    """
    several = named_devices(backend) if isinstance(backend, str) else ()
    return several if len(several) > 1 else backend


def make_backend(
    name: str | Backend,
    threads: int | None,
    kernel: str | None = None,
    tiers: DeviceTiers | None = None,
    *,
    edges: int = 0,
    streams: bool = False,
) -> Backend:
    """Make the backend of a name, or return the one that is given.

    Names are ``cpu``, ``reference``, ``cuda``, ``cuda:`` and the number of a device, or ``auto``: a CUDA
    device if there is one. `tiers` is what stays where on that device; None if everything does. Without
    `threads`, processors have as many as so many edges feed, and fewer if the run `streams`. Raises
    UsageError for a name or a kernel that is not known, and for a device that cannot be used.
    """
    if not isinstance(name, str):
        return name
    name = chosen_device(name, kernel)
    check_kernel_device(kernel, name)
    if name == "cpu":
        from oocpr.engine.cpu.backend import CpuBackend

        return CpuBackend(threads, edges, streams=streams)
    if name == "reference":
        from oocpr.engine.reference import ReferenceBackend

        return ReferenceBackend()
    if not is_cuda(name):
        raise UsageError(
            f"device {name!r} is not known.",
            "Use one of cpu, reference, auto, cuda, cuda:1, several such as cuda:0,cuda:1, or cuda:all.",
        )
    from oocpr.engine.cuda.backend import CudaBackend

    product, thresholds = "balanced", None
    if kernel is not None:
        from oocpr.engine.cuda.baselines import parse_kernel

        product, thresholds = parse_kernel(kernel)
    return CudaBackend(
        open_device(name),
        product,
        # Gathering proposals beside pushes saved one pass in five and made each a third longer on an H200.
        pairs=tiers is not None and tiers.pairs,
        rows_in_host=tiers is not None and tiers.rows_in_host,
        inside="blocks" if tiers is None else tiers.inside,
        overlap=tiers is not None and tiers.overlap,
        thresholds=thresholds,
        limit=None if tiers is None else tiers.limit,
        slices=1 if tiers is None else tiers.partitions,
        layouts_stay=tiers is None or tiers.layouts_stay,
        at_once=0 if tiers is None else tiers.at_once,
    )


def check_weighted(method: str, kernel: str | None) -> None:
    """Raise UsageError for a method, or a kernel of a CUDA device, without a version for weighted graphs."""
    if method == "components" or method in SEGMENTED_METHODS:
        raise UsageError(
            f"the graph is weighted, which method {method} does not take yet.", "Use method mixed."
        )
    if kernel is None:
        return
    from oocpr.engine.cuda.baselines import BASELINES, parse_kernel

    name = parse_kernel(kernel)[0]
    if name in BASELINES and not BASELINES[name].weights:
        raise UsageError(
            f"the graph is weighted, which kernel {kernel} does not take.", "Use kernel balanced, or binned."
        )


def chosen_device(name: str, kernel: str | None) -> str:
    """Resolve a name on this machine: ``"auto"`` is a CUDA device if one can be used, ``"cuda:all"`` are all.

    If several are named, each is looked for; raises UsageError for one that is named twice, and as
    `open_device`.
    """
    if name == ALL:
        return all_devices()
    several = named_devices(name)
    if len(several) > 1:
        for device in several:
            open_device(device)
        return ",".join(several)
    if name != "auto":
        return name
    try:
        open_device("cuda")
    except (SetupError, UsageError) as error:
        if kernel is None:
            _LOG.info("%s Going on with the processor.", error.cause)
            return "cpu"
    return "cuda"


def device_for(store: GraphStore) -> str:
    """What device ``"auto"`` is for a run of method ``"auto"`` whose graph is open: the faster one.

    A graph whose components are solved before a device is ready goes without one.
    """
    most = READY_SCC_EDGES if is_open("cuda") else MAX_SCC_EDGES
    return "cpu" if store.weights is None and store.edges <= most else chosen_device("auto", None)
