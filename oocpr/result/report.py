"""What a run did, in plain numbers: written beside the ranks and printed as JSON."""

from __future__ import annotations

import json
from dataclasses import MISSING, asdict, dataclass, fields
from statistics import median
from typing import TYPE_CHECKING, Any

from oocpr.errors import InputError

if TYPE_CHECKING:
    from oocpr.engine.solution import Solution
    from oocpr.store.graph import GraphStore


@dataclass(frozen=True, kw_only=True)
class Report:
    """The facts of one run.

    Parameters
    ----------
    nodes, edges
        Size of the graph, duplicates merged.
    method, reads, damping, tol, dangling
        What was asked for.
    personalized
        Whether the teleport vector was given by the caller.
    converged
        Whether the stopping rule was met before the passes ran out.
    error_bound
        Certified bound on the L1 distance between these ranks and the exact ones.
    passes
        Traversals of the stored graph, the one that certifies the result included.
    gathers
        Vector elements gathered, in units of one full pass over the edges.
    seconds
        Wall-clock time of the run.
    compile_seconds
        What of it went into compiling in this process, which happens once on a machine.
    gteps
        edges x passes / (seconds - compile_seconds) / 1e9.
    bytes_per_edge
        Encoded bytes of an edge, its weight included, that is, what one pass moves for it.
    bytes_read
        Encoded bytes that came from the store in the whole run; less than passes x edges x bytes_per_edge
        where memory held a part of them.
    peak_memory
        Largest resident memory of the process, in bytes.
    peak_device_memory
        Most bytes that the run took of a CUDA device's memory; 0 without one.
    busy
        Seconds in which tiles were read, sent to the device and computed; only where a timeline was drawn.
    direct
        Whether the store was read past the system's page cache.
    pass_seconds
        Of a pass after the first, the one in the middle; of the only one where there is no other.
    predicted
        What the plan of the run said: ``passes``, ``bytes_read``, ``peak_memory``, with a device
        ``peak_device_memory``, and where it was asked for ``pass_seconds`` and ``seconds``; None for runs on
        a cluster.
    identity
        What tells the graph apart from any other, see `oocpr.store.format`; None in files of version 0.1.0.
    workers
        Dask workers that had a part of the graph; 0 where this process ranked it.
    start_identity
        That of the graph whose ranks the run began from; None if it began otherwise or they do not say.

    Examples
    --------
    >>> report = Report(
    ...     nodes=2, edges=2, method="mixed", reads="bits16", damping=0.85, tol=1e-10, dangling="strongly",
    ...     personalized=False, converged=True, error_bound=8e-11, passes=2, gathers=2.0, seconds=0.5,
    ...     compile_seconds=0.0, gteps=8e-9, bytes_per_edge=1.5, bytes_read=6, peak_memory=2**27,
    ... )
    >>> Report.from_json(report.to_json(), "ranks.parquet") == report
    True
    """

    nodes: int
    edges: int
    method: str
    reads: str
    damping: float
    tol: float
    dangling: str
    personalized: bool
    converged: bool
    error_bound: float
    passes: int
    gathers: float
    seconds: float
    compile_seconds: float
    gteps: float
    bytes_per_edge: float
    bytes_read: int
    peak_memory: int
    peak_device_memory: int = 0
    busy: dict[str, float] | None = None
    direct: bool = False
    pass_seconds: float | None = None
    predicted: dict[str, float] | None = None
    identity: str | None = None
    start_identity: str | None = None
    workers: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Give the facts by name."""
        return asdict(self)

    def to_json(self) -> str:
        """Write the facts as one JSON object."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, text: str | bytes, origin: str) -> Report:
        """Read what `to_json` wrote; keys of later versions are ignored.

        Parameters
        ----------
        text
            The JSON object.
        origin
            Where it stands, for the message.

        Raises
        ------
        InputError
            If it is no JSON object, or lacks a key.
        """
        try:
            return cls.from_dict(json.loads(text), origin)
        except ValueError as error:
            raise _unreadable(origin, error) from error

    @classmethod
    def from_dict(cls, facts: Any, origin: str) -> Report:
        """Take facts by name; see `from_json`."""
        try:
            known = {**_DEFAULTS, **facts}
            return cls(**{field.name: known[field.name] for field in fields(cls)})
        except (TypeError, KeyError) as error:
            raise _unreadable(origin, error) from error


_DEFAULTS = {field.name: field.default for field in fields(Report) if field.default is not MISSING}
"""What reports of runs without a device and without a timeline lack, and those of earlier versions."""


def report_of(
    solution: Solution,
    store: GraphStore,
    *,
    identity: str,
    start_identity: str | None,
    dangling: str,
    personalized: bool,
    compile_seconds: float,
    busy: dict[str, float] | None = None,
    direct: bool = False,
    predicted: dict[str, float] | None = None,
    workers: int = 0,
) -> Report:
    """Collect the facts of a run that is over.

    `compile_seconds`: of its seconds; not counted where other threads compiled for longer than the run took.
    `busy`: what a timeline tells; None without one. `direct`: whether the store was read past the system's
    page cache.
    """
    compile_seconds = compile_seconds if compile_seconds < solution.seconds else 0.0
    return Report(
        nodes=store.nodes,
        edges=store.edges,
        method=solution.method,
        reads=solution.reads,
        damping=solution.damping,
        tol=solution.tol,
        dangling=dangling,
        personalized=personalized,
        converged=solution.converged,
        error_bound=solution.error_bound,
        passes=solution.passes,
        gathers=solution.gathers,
        seconds=solution.seconds,
        compile_seconds=compile_seconds,
        gteps=store.edges * solution.passes / (solution.seconds - compile_seconds) / 1e9,
        bytes_per_edge=store.attributes.encoded_bytes / max(store.edges, 1),
        bytes_read=solution.bytes_read,
        peak_memory=solution.peak_memory,
        peak_device_memory=solution.peak_device_memory,
        busy=busy,
        direct=direct,
        pass_seconds=median(record.seconds for record in solution.history[1:] or solution.history),
        predicted=predicted,
        identity=identity,
        start_identity=start_identity,
        workers=workers,
    )


def _unreadable(origin: str, error: Exception) -> InputError:
    return InputError(
        f"{origin}: the note about the run that made it cannot be read ({error!r}).",
        "Write the ranks again with this version.",
    )
