"""Bounded blocks of edges, which every format becomes, made of arrays or columns of Arrow; their weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from oocpr.errors import InputError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa


MAX_NODES = 2**32 - 1
"""Most nodes a graph may have: rows are numbered in 32 bits."""


@dataclass(frozen=True)
class Strings:
    """Names as pieces of one text, so that no Python object is made for any of them.

    Name k is ``text[starts[k]:ends[k]]`` of UTF-8, uint8; bounds are int64, shape (k,).
    """

    text: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    @classmethod
    def of(cls, text: NDArray[np.uint8], lengths: NDArray[np.integer[Any]]) -> Strings:
        """Take names that lie end to end by their lengths."""
        ends = lengths.cumsum(dtype="int64")
        return cls(text, ends - lengths, ends)

    @property
    def size(self) -> int:
        """Number of names."""
        return self.starts.size

    def take(self, which: NDArray[np.intp] | slice) -> Strings:
        """Select names, without a copy of their text."""
        return Strings(self.text, self.starts[which], self.ends[which])

    def __iter__(self) -> Iterator[str]:
        text = self.text.tobytes()
        for start, end in zip(self.starts.tolist(), self.ends.tolist(), strict=True):
            yield text[start:end].decode()


@dataclass(frozen=True)
class EdgeBlock:
    """A bounded piece of a graph's edge list, between numbered nodes.

    Edge k runs from ``src[k]`` to ``dst[k]``; shape (k,), both uint32 below `MAX_NODES`, or both int64.
    Weights are finite and not negative; None if the source has none.
    """

    src: NDArray[np.uint32 | np.int64]
    dst: NDArray[np.uint32 | np.int64]
    weight: NDArray[np.float64] | None = None


@dataclass(frozen=True)
class NameBlock:
    """A bounded piece of a graph's edge list: edge k runs from name k of `src` to name k of `dst`."""

    src: Strings
    dst: Strings
    weight: NDArray[np.float64] | None = None


@dataclass(frozen=True)
class NodeBlock:
    """Nodes that a graph has whether an edge names them or not: ids, int64, shape (k,), or names."""

    nodes: NDArray[np.int64] | Strings


Block = EdgeBlock | NameBlock | NodeBlock


class Labels(Protocol):
    """Labels of all nodes in order, which can be iterated over more than once."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[str]: ...


class Source(Protocol):
    """A graph in somebody else's format, readable once from front to end.

    Attributes
    ----------
    name
        What people know it by; kept in the store's attributes.
    size
        Bytes to read in all (compressed bytes if compressed), or None if nobody knows.
    position
        Bytes read so far, for progress.
    nodes
        Number of nodes if the ids are 0 .. nodes - 1 already; None if the ids or names that occur are the
        nodes. Known when the first block comes.
    labels
        Label of each node 0 .. nodes - 1, or None; known with `nodes`. Named nodes need none.
    notices
        Sentences a person should read after the import, such as what was ignored.
    closed
        What lists all nodes, as words for a message, if its `NodeBlock` come before all edges and no edge may
        name another node; else None.
    weighted
        Whether edges have weights; then all of them have.
    """

    name: str
    size: int | None
    position: int
    nodes: int | None
    labels: Labels | None
    notices: list[str]
    closed: str | None
    weighted: bool

    def blocks(self, max_edges: int) -> Iterator[Block]:
        """Yield the edges in blocks of at most `max_edges`; raises InputError with file and line."""
        ...

    def locate(self, edge: int) -> str:
        """Say where the edge that came as number `edge`, counted from 0, stands."""
        ...


@runtime_checkable
class ResumableSource(Source, Protocol):
    """A source of which an import can be resumed."""

    def identity(self) -> dict[str, Any] | None:
        """Tell what the blocks depend on, as JSON that changes when they may; None if nobody can tell."""
        ...


_MAX_ID = 2**63 - 1


def id_block(
    src: NDArray[Any],
    dst: NDArray[Any],
    nodes: int | None,
    title: str,
    first: int,
    weight: NDArray[np.float64] | None = None,
) -> EdgeBlock:
    """Make a block of two columns of integers: of uint32 if all ids fit, else of int64.

    Ids go from 0 to `nodes` - 1; they may be any of 64 bits with a sign if `nodes` is None. Else raises
    InputError, which says where in `title` the id is; the first edge has the number `first` there.
    """
    low, high = (0, nodes - 1) if nodes is not None else (-_MAX_ID - 1, _MAX_ID)
    least = min(0 if ids.dtype.kind == "u" else int(ids.min(initial=0)) for ids in (src, dst))
    most = max(int(src.max(initial=0)), int(dst.max(initial=0)))
    if least < low or most > high:
        for ids in (src, dst):
            wrong = np.flatnonzero((ids < low) | (ids > high))
            if wrong.size:
                raise InputError(
                    f"{title}: the id {ids[wrong[0]]} at place {first + int(wrong[0]):,} cannot be.",
                    f"Give each node an id from {low:,} to {high:,}.",
                )
    kind: type[np.uint32 | np.int64] = np.uint32 if least >= 0 and most < MAX_NODES else np.int64
    return EdgeBlock(src.astype(kind, copy=False), dst.astype(kind, copy=False), weight)


# Arrow's own ways from and to NumPy load pandas.


def arrow_array(numbers: NDArray[Any]) -> pa.Array:
    """Make a column of Arrow of numbers, without a copy."""
    import pyarrow as pa

    data = pa.py_buffer(np.ascontiguousarray(numbers))
    return pa.Array.from_buffers(pa.from_numpy_dtype(numbers.dtype), len(numbers), [None, data])


_FLOATS = {"halffloat": "float16", "float": "float32", "double": "float64"}


def arrow_numbers(column: Any) -> np.ndarray[Any, Any]:
    """Take a column of numbers without nulls as an array, without a copy."""
    width = np.dtype(_FLOATS.get(str(column.type), str(column.type)))
    if not len(column):
        return np.empty(0, width)
    return np.frombuffer(column.buffers()[1], width, len(column), width.itemsize * column.offset)


def arrow_strings(column: Any) -> Strings:
    """Take a column of large strings without nulls as names, without a copy."""
    if not len(column):
        return Strings.of(np.empty(0, np.uint8), np.empty(0, np.uint32))
    _, offsets, text = column.buffers()
    bounds = np.frombuffer(offsets, np.int64, len(column) + 1, 8 * column.offset)
    data = np.empty(0, np.uint8) if text is None else np.frombuffer(text, np.uint8)
    return Strings(data, bounds[:-1], bounds[1:])


WEIGHT_REMEDY = "Give each edge a finite weight of 0 or more."


def weight_remedy(shown: str) -> str:
    """Say how to write a weight that was written as `shown`."""
    return "Write weights with a decimal point, such as 1.5." if "," in shown else WEIGHT_REMEDY


def first_wrong(weights: NDArray[np.float64]) -> tuple[int, str] | None:
    """Find the first weight that cannot be, and say what it is; None if all can."""
    fine = (weights >= 0) & (weights < np.inf)
    if fine.all():
        return None
    place = int(np.argmin(fine))
    return place, "negative" if -np.inf < weights[place] < 0 else "not finite"


def weights_of(values: NDArray[Any], title: str, unit: str, first: int) -> NDArray[np.float64]:
    """Take integers, truth values or floats of any width as weights, float64; none of them is -0.0.

    Messages say that `unit`, such as "row", number `first` + k of `title` has the value k that is no weight.
    """
    if values.dtype.kind not in "biuf":
        raise InputError(f"{title}: values of the type {values.dtype} are no weights.", WEIGHT_REMEDY)
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused
        weights = values.astype(np.float64)
    wrong = first_wrong(weights)
    if wrong is not None:
        place, why = wrong
        raise InputError(
            f"{title}: {unit} {first + place:,} has the weight {values[place]}, which is {why}.",
            WEIGHT_REMEDY,
        )
    weights += 0.0  # -0.0 + 0.0 is 0.0
    return weights


def no_weights(title: str) -> UsageError:
    """Build the error for weights that are asked for if there are none."""
    return UsageError(
        f"{title} have no weights.",
        "Leave the weight out, or give a source with a value beside each edge: text, a table or a matrix.",
    )


_WEIGHT_NAMES = (
    "weight", "weights", "w", "value", "values", "amount", "count", "n", "strength", "probability",
)  # fmt: skip
_MAX_NAMED = 5


def unused_columns(columns: Iterable[str]) -> list[str]:
    """Say that columns were read over which may be weights, and how to take one; no sentence without columns.

    Examples
    --------
    >>> unused_columns(["weight"])
    ['"weight" was not used: all edges count the same; weight="weight" takes it as weights.']
    """
    names = list(columns)
    if not names:
        return []
    best = next((name for name in names if name.lower() in _WEIGHT_NAMES), names[0])
    more = f" and {len(names) - _MAX_NAMED:,} more" if len(names) > _MAX_NAMED else ""
    shown = ", ".join(f'"{name}"' for name in names[:_MAX_NAMED]) + more
    were, it = ("were", f'"{best}"') if len(names) > 1 else ("was", "it")
    return [f'{shown} {were} not used: all edges count the same; weight="{best}" takes {it} as weights.']
