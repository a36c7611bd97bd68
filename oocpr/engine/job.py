"""Everything a worker must know of a run, small enough to send to each."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import uuid4

from oocpr.engine.backend import StripeSpec
from oocpr.engine.cuda.device import ALL, all_devices, is_cuda, named_devices, open_device
from oocpr.errors import UsageError
from oocpr.plan.forecast import SMALL_EDGES
from oocpr.plan.residency import reading_threads
from oocpr.system import usable_cores

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from oocpr.engine.backend import Backend
    from oocpr.engine.settings import Settings
    from oocpr.engine.tiles.source import RankedStore, WeightScale
    from oocpr.engine.trace import Trace
    from oocpr.plan.device_memory import DeviceTiers
    from oocpr.plan.plan import Plan

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """A run.

    Parameters
    ----------
    path, identity
        Where the graph's store is, as a worker can open it, and which identity it has to have there.
    backend
        A name that `make_backend` takes; or, within this process, a backend itself. Of several, one for each
        stripe.
    threads
        Threads that work on one tile; None for all cores of the process, eight at most.
    teleport, start
        float64, shape (nodes,), sums to 1; None for uniform, and for what the run begins from the teleport
        vector.
    kernel
        Product of a CUDA device; None for the default.
    weight_scale
        What weights are multiplied by; None for a graph without weights.
    trace
        Receives when each tile was read, sent and computed, within this process; None for nothing.
    cuts
        First stored tile of each that the run takes, if workers have to join them; None for stored tiles.
    token
        Names the run inside a process.
    """

    path: str
    settings: Settings
    plan: Plan
    backend: str | Backend | tuple[str | Backend, ...] = "cpu"
    threads: int | None = None
    teleport: NDArray[np.float64] | None = None
    kernel: str | None = None
    start: NDArray[np.float64] | None = None
    weight_scale: WeightScale | None = None
    trace: Trace | None = None
    cuts: tuple[int, ...] | None = None
    identity: str | None = None
    token: str = field(default_factory=lambda: uuid4().hex)

    @property
    def slots(self) -> int:
        """Passes that mixing remembers."""
        return self.plan.mixing if self.settings.mixed else 0

    @property
    def mark_key(self) -> int:
        """Key of the marks of `degree_check`: positive, below 2^63, and nobody's guess."""
        return int(self.token, 16) % (2**63 - 1) + 1

    @property
    def readers(self) -> int:
        """Threads that read tiles for one stripe."""
        return reading_threads(usable_cores(), past_cache=self.plan.direct and self.plan.streamed_bytes > 0)

    def tiers(self, stripe: int) -> DeviceTiers | None:
        """What stays where on the device of a stripe; None if no device was planned with."""
        return self.plan.devices[stripe] if self.plan.devices else None

    def make_backend(self, stripe: int) -> Backend:
        """Return what computes a stripe in this process."""
        name = self.backend[stripe] if isinstance(self.backend, tuple) else self.backend
        if isinstance(name, str):
            name = chosen_device(name, self.kernel)
        return make_backend(name, self.threads, self.kernel, self.tiers(stripe))

    def spec(self, store: RankedStore, stripe: int) -> StripeSpec:
        """Rows and tiles of one stripe."""
        first, last = self.plan.stripes[stripe]
        return StripeSpec(
            first_tile=first,
            last_tile=last,
            row_begin=int(store.tile_rows[first]),
            row_end=int(store.tile_rows[last]),
            nodes=store.nodes,
            slots=self.slots,
            proposals=self.settings.mixed and self.plan.proposals,
            reads=self.settings.reads,
        )


def each_backend(
    backend: str | Backend | tuple[str | Backend, ...],
) -> str | Backend | tuple[str | Backend, ...]:
    """Tell the names of several devices apart, one for each stripe; anything else stays as it is.

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
) -> Backend:
    """Return the backend of a name, or the one that is given.

    Names are ``cpu``, ``reference``, ``cuda``, ``cuda:`` and the number of a device, or ``auto``: a CUDA
    device if there is one. `tiers` is what stays where on that device; None if everything is to. Raises
    UsageError for a name or a kernel that is not known, and for a device that cannot be used.
    """
    if not isinstance(name, str):
        return name
    name = chosen_device(name, kernel)
    if kernel is not None and not is_cuda(name):
        raise UsageError(
            f"kernel {kernel!r} is for CUDA devices and the device is {name}.",
            "Use device cuda, or leave the kernel out.",
        )
    if name == "cpu":
        from oocpr.engine.cpu.backend import CpuBackend

        return CpuBackend(threads)
    if name == "reference":
        from oocpr.engine.reference import ReferenceBackend

        return ReferenceBackend()
    if is_cuda(name):
        return _on_device(name, kernel, tiers)
    raise UsageError(
        f"device {name!r} is not known.",
        "Use one of cpu, reference, auto, cuda, cuda:1, several such as cuda:0,cuda:1, or cuda:all.",
    )


def check_weighted(method: str, kernel: str | None = None) -> None:
    """Raise UsageError for a method, or a kernel of a CUDA device, without a version for weighted graphs."""
    from oocpr.engine.cuda.baselines import parse_kernel

    if method == "components":
        raise UsageError(
            "the graph is weighted, which method components does not take yet.", "Use method mixed."
        )
    if parse_kernel(kernel)[0] != "balanced":
        raise UsageError(
            f"the graph is weighted, which kernel {kernel} does not take.", "Use kernel balanced."
        )


def chosen_device(name: str, kernel: str | None) -> str:
    """Settle what a name stands for on this machine: ``"auto"`` for a CUDA device if one can be used.

    ``"cuda:all"`` stands for the names of all; if several are named, each is looked for, and UsageError is
    raised for one that is named twice or cannot be used.
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
    except UsageError as error:
        if kernel is None:
            _LOG.info("%s Going on with the processor.", error.cause)
            return "cpu"
    return "cuda"


def _on_device(name: str, kernel: str | None, tiers: DeviceTiers | None) -> Backend:
    from oocpr.engine.cuda.backend import CudaBackend

    product, thresholds = "balanced", None
    if kernel is not None:
        from oocpr.engine.cuda.baselines import parse_kernel

        product, thresholds = parse_kernel(kernel)
    # Gathering proposals beside pushes saved one pass in five and made each a third longer on an H200.
    pairs = tiers is not None and tiers.pairs
    rows_in_host = tiers is not None and tiers.rows_in_host
    slices = 1 if tiers is None else tiers.partitions
    small = SMALL_EDGES + 1
    return CudaBackend(
        open_device(name),
        product,
        pairs=pairs,
        rows_in_host=rows_in_host,
        diagonal_blocks_from=small,
        thresholds=thresholds,
        limit=None if tiers is None else tiers.limit,
        slices=slices,
    )
