"""The answer: a rank for each node, with the bound that certifies it and the facts of the run."""

from __future__ import annotations

import importlib
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from numbers import Integral, Real
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from oocpr.engine.top_k import largest
from oocpr.errors import InputError, SetupError, UsageError
from oocpr.html import html_table
from oocpr.result.names import block_of, find_rows, in_memory, permute_names, valid_names, zip_blocks
from oocpr.store.remote import is_url, local_file
from oocpr.units import format_error_bound, format_passes, printable

if TYPE_CHECKING:
    import pyarrow as pa
    from matplotlib.axes import Axes

    from oocpr.engine.method import PassRecord, Solution
    from oocpr.result.comparison import Comparison
    from oocpr.result.names import Name, Names
    from oocpr.store.graph import GraphStore

_CHUNK = 1 << 20
_LISTED = 1 << 10
"""Most nodes that are listed at a time."""

_MAX_TAKEN = 1 << 12
"""Names up to which each is read from where it is; more are sorted."""


class Vector(Protocol):
    """A float64 vector read front to back in bounded chunks."""

    size: int

    def chunks(self) -> Iterator[NDArray[np.float64]]:
        """Yield the vector's pieces in order."""
        ...


class DegreeSource(Protocol):
    """A graph that is open, such as `oocpr.Graph`."""

    store: GraphStore


class MemoryVector:
    """A vector that is a NumPy array, float64, shape (n,)."""

    def __init__(self, values: NDArray[np.float64]) -> None:
        self.values = values
        self.size = len(values)

    def chunks(self) -> Iterator[NDArray[np.float64]]:
        """Yield views of the array."""
        for start in range(0, self.size, _CHUNK):
            yield self.values[start : start + _CHUNK]


@dataclass(frozen=True, kw_only=True)
class Report:
    """The facts of one run.

    Parameters
    ----------
    nodes, edges
        Size of the graph, duplicates merged.
    method, reads, damping, tol, dangling, personalized
        What was asked for; `personalized`: with a teleport vector.
    converged, error_bound
        Whether the stopping rule was met before the passes ran out, and the certified bound on the L1
        distance between these ranks and the exact ones.
    passes, gathers
        Traversals of the stored graph, the one that certifies the result included, and vector elements
        gathered, in units of one full pass over the edges.
    seconds, compile_seconds, pass_seconds
        Wall-clock time of the run, its part that went into compiling, which happens once per machine, and the
        median of the passes after the first.
    preparing_seconds
        Seconds in which a CUDA device laid the graph out for the kernel that was named; None for the default,
        which takes it as it is stored. Of several devices, those of the one that took longest.
    sweeps
        Of methods ``cpms2`` and ``cpms4`` the passes at each precision, the lowest first, without the first
        pass, as the paper counts them; None for others.
    gteps
        edges x passes / (seconds - compile_seconds) / 1e9.
    bytes_per_edge, bytes_read
        Encoded bytes of an edge, its weight included, and bytes that came from the store in the whole run;
        less than passes x edges x bytes_per_edge if memory held a part of them.
    peak_memory, peak_device_memory
        Most bytes of the process that were in memory, and that the run took of a CUDA device.
    busy
        Seconds in which tiles were read, sent to the device and computed; only if a timeline was drawn.
    direct
        Whether the store was read past the system's page cache.
    predicted
        What the plan of the run said: ``passes``, ``bytes_read``, ``peak_memory``, with a device
        ``peak_device_memory``, and if asked for ``pass_seconds`` and ``seconds``; None for runs on a cluster.
    identity, start_identity
        What tells the graph apart from any other, and the same of the graph whose ranks the run began from;
        None if that is not known.
    workers
        Dask workers that had a part of the graph; 0 if this process ranked it.
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
    preparing_seconds: float | None = None
    sweeps: list[int] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Give the facts by name."""
        return asdict(self)

    @classmethod
    def from_json(cls, text: str | bytes, origin: str) -> Report:
        """Read a JSON object of what `to_dict` gives, ignoring keys of later versions.

        Raises InputError, which names `origin`, if it is no JSON object, lacks a key or has a value of
        another kind.
        """
        try:
            facts = json.loads(text)
        except ValueError as error:
            raise _unreadable(origin, error) from error
        return cls.from_dict(facts, origin)

    @classmethod
    def from_dict(cls, facts: Any, origin: str) -> Report:
        """Take facts by name; see `from_json`."""
        try:
            known = {**_DEFAULTS, **facts}
            for field in fields(cls):
                value, kind = known[field.name], _KINDS.get(str(field.type), object)
                if not isinstance(value, kind) or value != value:
                    raise TypeError(f"{field.name} is {value!r}")
            return cls(**{field.name: known[field.name] for field in fields(cls)})
        except (TypeError, KeyError) as error:
            raise _unreadable(origin, error) from error


_DEFAULTS = {field.name: field.default for field in fields(Report) if field.default is not MISSING}
"""What reports of earlier versions, and of runs without a device or a timeline, lack."""

_KINDS: dict[str, type] = {"int": Integral, "float": Real, "bool": bool, "str": str}
"""What facts have to be that are always there, by their annotation."""


def report_of(solution: Solution, store: GraphStore, *, compile_seconds: float, **facts: Any) -> Report:
    """Collect the facts of a run that is over; `facts` are those that neither solution nor store has."""
    # Other threads may have compiled for longer than the run took.
    compile_seconds = compile_seconds if compile_seconds < solution.seconds else 0.0
    return Report(
        nodes=store.nodes,
        edges=store.edges,
        method=solution.method,
        reads=solution.reads,
        damping=solution.damping,
        tol=solution.tol,
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
        preparing_seconds=solution.preparing_seconds,
        sweeps=list(solution.sweeps) or None,
        pass_seconds=median(record.seconds for record in solution.history[1:] or solution.history),
        **facts,
    )


def _unreadable(origin: str, error: Exception) -> InputError:
    return InputError(
        f"{origin}: the note about the run that made it cannot be read ({error!r}).",
        "Write the ranks again with this version.",
    )


class Ranks:
    """PageRank of every node of a graph.

    Polars, DuckDB, pyarrow and whatever else knows Arrow's C stream interface take it as a table with the
    columns ``node`` and ``rank``.

    Parameters
    ----------
    values
        The ranks in store order: float64, shape (nodes,), or a vector that stays on disk.
    names
        What the caller calls the nodes.
    run
        Facts of the run that made the ranks; None for ranks from elsewhere.
    history
        A record of each pass, empty for ranks that were read from a file.

    Examples
    --------
    >>> from oocpr.result.names import ListedNames
    >>> ranks = Ranks(np.array([0.2, 0.5, 0.3]), ListedNames(["a", "b", "c"]))
    >>> ranks.top(2)
    [('b', 0.5), ('c', 0.3)]
    >>> ranks["c"]
    0.3
    """

    __iter__ = None
    """Not the ranks of nodes 0, 1, 2 and so on, as Python would have it."""

    def __init__(
        self,
        values: NDArray[np.float64] | Vector,
        names: Names,
        *,
        run: Report | None = None,
        history: Sequence[PassRecord] = (),
    ) -> None:
        self.vector: Vector = MemoryVector(values) if isinstance(values, np.ndarray) else values
        self.names = names
        self.run = run
        self.history = list(history)

    def __getstate__(self) -> dict[str, Any]:
        # The store or file may be gone where they are unpickled.
        values, names = MemoryVector(self.to_numpy()), in_memory(self.names, self.nodes)
        return vars(self) | {"vector": values, "names": names}

    @property
    def nodes(self) -> int:
        """How many nodes there are."""
        return self.vector.size

    @property
    def error_bound(self) -> float | None:
        """Certified bound on the L1 distance to the exact ranks; None for ranks from elsewhere."""
        return None if self.run is None else self.run.error_bound

    @property
    def converged(self) -> bool | None:
        """Whether the run met its stopping rule; None for ranks from elsewhere."""
        return None if self.run is None else self.run.converged

    @property
    def passes(self) -> int | None:
        """Traversals of the graph that the run made; None for ranks from elsewhere."""
        return None if self.run is None else self.run.passes

    @property
    def identity(self) -> str | None:
        """Identity of the graph that was ranked; None if the ranks do not say."""
        return None if self.run is None else self.run.identity

    def __len__(self) -> int:
        return self.nodes

    def __getitem__(self, node: Name) -> float:
        """Give the rank of a node; KeyError if there is none of this name.

        The names of all nodes may be read for it: for many nodes take a table.
        """
        textual = self.names.textual
        if valid_names([node], textual)[0]:
            named = (block_of([node], textual), np.zeros(1))
            _, rows, _ = next(find_rows(self.names, self.nodes, [named]))
            first = int(rows[0])
            for chunk in self.chunks() if first >= 0 else ():
                if first < len(chunk):
                    return float(chunk[first])
                first -= len(chunk)
        raise KeyError(node)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Give the ranks in store order as a stream of Arrow, made piece by piece."""
        return self._batches().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        if self.run is None:
            return f"Ranks({self.nodes:,} nodes, no certificate)"
        state = "converged" if self.run.converged else "not converged"
        bound = format_error_bound(self.run.error_bound)
        return f"Ranks({self.nodes:,} nodes, {bound}, {state}, {format_passes(self.run.passes)})"

    def _repr_html_(self) -> str:
        rows = ((printable(node), f"{rank:.4g}") for node, rank in self.each_of_top(10))
        return html_table(rows, header=("node", "rank"), caption=repr(self))

    def chunks(self) -> Iterator[NDArray[np.float64]]:
        """Yield the ranks in store order, in bounded pieces."""
        return self.vector.chunks()

    def top(self, k: int = 10) -> list[tuple[Name, float]]:
        """List the `k` nodes of largest rank, by id or label, and their ranks; equal ones in store order.

        Raises UsageError if `k` is not a whole number from 0; a smaller graph gives all its nodes.
        """
        return list(self.each_of_top(k))

    def each_of_top(self, k: int) -> Iterator[tuple[Name, float]]:
        """Yield what `top` lists one after the other, in bounded memory."""
        check_count(k)
        return self._each_of_top(k)

    def _each_of_top(self, k: int) -> Iterator[tuple[Name, float]]:
        rows: NDArray[np.integer[Any]]
        if 4 * k <= self.nodes:
            rows, values = largest(self.chunks(), k)
        else:
            every = self.to_numpy()
            rows = rank_order(every)[:k]
            values = every[rows]
            del every
        for ranks, names in self._named(rows, values):
            yield from zip(names, ranks.tolist(), strict=True)

    def _named(
        self, rows: NDArray[np.integer[Any]], values: NDArray[np.float64]
    ) -> Iterator[tuple[NDArray[np.float64], Sequence[Name]]]:
        """Yield the values and names of some rows at a time."""
        steps = (rows[start : start + _LISTED] for start in range(0, len(rows), _LISTED))
        if len(rows) <= _MAX_TAKEN or not self.names.textual:
            for some, ranks in zip_blocks(steps, iter([values])):
                yield ranks, self.names.take(some)
            return
        every = permute_names(self.names.blocks(self.nodes), rows, self.nodes, Path(tempfile.gettempdir()))
        for _, ranks, names in zip_blocks(steps, iter([values]), every):
            yield ranks, list(names)

    def to_numpy(self) -> NDArray[np.float64]:
        """Give all ranks in store order: float64, shape (nodes,)."""
        if isinstance(self.vector, MemoryVector):
            return self.vector.values
        whole = np.empty(self.nodes)
        start = 0
        for chunk in self.chunks():
            whole[start : start + len(chunk)] = chunk
            start += len(chunk)
        return whole

    def to_arrow(self) -> pa.Table:
        """Give a table of Arrow with the columns ``node`` and ``rank``, in store order."""
        return self._batches().read_all()

    def to_pandas(self) -> Any:
        """Give a data frame of pandas, otherwise as `to_arrow`; SetupError if pandas is not installed."""
        check_installed("pandas")
        return self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        """Give a data frame of Polars, otherwise as `to_arrow`; SetupError if Polars is not installed."""
        return check_installed("polars").DataFrame(self)

    def _batches(self) -> pa.RecordBatchReader:
        from oocpr.result.rank_files import record_batches

        return record_batches(self)

    def to_parquet(self, path: str | Path, *, sort: str = "node") -> None:
        """Write a Parquet file with the columns ``node`` and ``rank``.

        Parameters
        ----------
        path
            The file, or a URL such as ``s3://bucket/ranks.parquet``; an existing one is replaced when the new
            one is whole.
        sort
            ``"node"`` for the order of the store, ``"rank"`` for the largest first.

        Raises
        ------
        DoesNotFitError
            If the disk is full.
        UsageError
            If nothing can be written there, or `sort` is no order.
        LostError, SetupError
            If the server of a URL does not answer, or takes no file of this user.
        """
        from oocpr.result.rank_files import check_sort, write_parquet

        with local_file(checked_path(path)) as file:
            write_parquet(self, file, check_sort(sort))

    def to_csv(self, target: str | Path | BinaryIO, *, sort: str = "node") -> None:
        """Write a CSV file or an open binary stream, otherwise as `to_parquet`; digits give the same float64.

        Names are written as they are. Spreadsheets take a cell that begins with ``=``, ``+``, ``-`` or ``@``
        for a formula: have them import the column as text if names are from people you do not trust.
        """
        from oocpr.result.rank_files import check_csv, check_sort, write_csv

        check_csv(target)
        if hasattr(target, "write"):
            write_csv(self, cast("BinaryIO", target), check_sort(sort))
            return
        with local_file(checked_path(target)) as file:
            write_csv(self, file, check_sort(sort))

    def to_zarr(self, path: str | Path) -> None:
        """Write a Zarr group with the ranks in store order and the names of the nodes; see `to_parquet`."""
        from oocpr.result.rank_files import write_zarr

        if is_url(checked_path(path)):
            raise UsageError(f"{path} is no folder of this machine.", "Write .parquet or .csv to a URL.")
        write_zarr(self, Path(path))

    def to_html(self, path: str | Path, *, top: int = 20, title: str = "PageRank") -> None:
        """Write a page that says what was asked for, found and predicted, with the `top` largest ranks.

        One file, or a URL, without scripts, that loads nothing from elsewhere. Raises as `to_parquet`.
        """
        from oocpr.result.page import page
        from oocpr.store.atomic import replacing

        check_count(top, "top")
        with local_file(checked_path(path)) as file, replacing(file) as written:
            written.write_text(page(self, top, str(title)), encoding="utf-8", errors="backslashreplace")

    def compare(self, other: Ranks, top: int = 100) -> Comparison:
        """Compare with another ranking, as of the day before, by the names of the nodes.

        Takes 48 bytes of memory per node, and if the nodes of `other` have another order up to 112 and the
        name of each.

        Parameters
        ----------
        other
            Ranks of the same graph, or of one that shares nodes with it.
        top
            Nodes of largest rank whose overlap and order are compared.

        Raises
        ------
        UsageError
            If `other` has no ranks, or `top` is not a whole number from 0.
        InputError
            If several nodes have a name that is looked up.

        Examples
        --------
        >>> from oocpr.result.names import ListedNames
        >>> today = Ranks(np.array([0.5, 0.25, 0.25]), ListedNames(["a", "b", "new"]))
        >>> print(today.compare(Ranks(np.array([0.25, 0.75]), ListedNames(["b", "a"])), top=2))
        nodes              3, before 2
        nodes in both      2
        L1 distance        0.5
        top 2 in both      100.0%
        Kendall's tau      1.000
        node  rank  before  place  before
        a      0.5    0.75      1       1
        new   0.25       0      2       -
        """
        from oocpr.result.comparison import compare_ranks

        if not isinstance(other, Ranks):
            raise UsageError(
                f"other is {type(other).__name__}, no ranks.",
                "Compare with what pagerank or read_ranks returns.",
            )
        check_count(top, "top")
        return compare_ranks(self, other, top)

    def plot(self, graph: DegreeSource | None = None) -> list[Axes]:
        """Draw the ranks with Matplotlib and return the axes.

        The certified error against passes and seconds, if a run of this process made the ranks; how many
        nodes have a rank or more; and with `graph`, the `oocpr.Graph` that was ranked, in-degrees against
        ranks, as ``log10`` counts of nodes.

        Raises
        ------
        UsageError
            If the ranks are of another graph.
        SetupError
            If Matplotlib is not installed.
        """
        from oocpr.result.plots import check_same_graph, plot_ranks

        if graph is None:
            return plot_ranks(self, None)
        if not hasattr(graph, "store"):
            raise UsageError(f"graph is a {type(graph).__name__}.", "Give the oocpr.Graph that was ranked.")
        store = graph.store
        check_same_graph(self, store.identity, store.nodes)
        return plot_ranks(self, lambda lo, hi: np.diff(store.indptr(lo, hi + 1)))

    def report(self, top: int = 10) -> dict[str, Any]:
        """Collect what the run did, ready for JSON.

        Returns ``nodes``, if the run is known all of `Report`, and ``top``, a list of
        ``{"node": ..., "rank": ...}`` for so many of the largest ranks.
        """
        facts = {"nodes": self.nodes} if self.run is None else self.run.to_dict()
        return facts | {"top": [{"node": node, "rank": rank} for node, rank in self.top(top)]}


def check_count(k: Any, name: str = "k") -> None:
    """Pass numbers of nodes that may be listed; raise UsageError, with the parameter's name, for others."""
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 0:
        raise UsageError(f"{name} is {k!r}, no count.", "Give a whole number of at least 0.")


def check_installed(library: str) -> ModuleType:
    """Import a library that not everybody has; SetupError, which names it, without."""
    try:
        return importlib.import_module(library)
    except ImportError as error:
        raise SetupError(
            f"{library} cannot be imported: {error}.", f"Install it: pip install {library}."
        ) from error


def checked_path(path: Any) -> str | os.PathLike[str]:
    """Pass the name of a file; raise UsageError for the rest."""
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise UsageError(f"path is {path!r}, no path.", "Give the name of a file, as text or pathlib.Path.")
    return cast("str | os.PathLike[str]", path)


def rank_order(values: NDArray[np.float64]) -> NDArray[np.uint32]:
    """Rows from the largest value to the least, equal ones in order; takes 20 bytes per row, and keeps 4."""
    return np.argsort(-values, kind="stable").astype(np.uint32)
