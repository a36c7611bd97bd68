"""What every foreign format becomes: bounded blocks of edges, made of arrays or of columns of Arrow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from oocpr.errors import InputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from numpy.typing import NDArray


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
    """Labels of all nodes in order, to be gone through more than once."""

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
        nodes. Settled when the first block comes.
    labels
        Label of each node 0 .. nodes - 1, or None; settled with `nodes`. Named nodes need none.
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


_LARGEST = 2**63 - 1
_FLOATS = {"halffloat": "float16", "float": "float32", "double": "float64"}


def two_ends(shape: tuple[int, ...], title: str) -> bool:
    """Tell whether an array of edges has its ends as rows, shape (2, m), rather than as columns, (m, 2).

    Raises InputError for another shape, or (2, 2), which could be either.
    """
    if len(shape) != 2 or 2 not in shape:
        raise InputError(
            f"{title} has the shape {shape}.", "Give an array of shape (2, links) or (links, 2)."
        )
    if shape == (2, 2):
        raise InputError(
            f"{title} has the shape (2, 2), which could be read in two ways.",
            "Give two arrays of one dimension: from and to.",
        )
    return shape[0] == 2


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
    low, high = (0, nodes - 1) if nodes is not None else (-_LARGEST - 1, _LARGEST)
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


def arrow_array(numbers: NDArray[Any]) -> pa.Array:
    """Make a column of Arrow of numbers, without a copy."""
    import pyarrow as pa

    # Arrow's own way from NumPy loads pandas.
    data = pa.py_buffer(np.ascontiguousarray(numbers))
    return pa.Array.from_buffers(pa.from_numpy_dtype(numbers.dtype), len(numbers), [None, data])


def arrow_numbers(column: Any) -> np.ndarray[Any, Any]:
    """Take a column of numbers without gaps as an array, without a copy."""
    # Arrow's own way to NumPy loads pandas.
    width = np.dtype(_FLOATS.get(str(column.type), str(column.type)))
    if not len(column):
        return np.empty(0, width)
    return np.frombuffer(column.buffers()[1], width, len(column), width.itemsize * column.offset)


def arrow_strings(column: Any) -> Strings:
    """Take a column of large strings without gaps as names, without a copy."""
    if not len(column):
        return Strings.of(np.empty(0, np.uint8), np.empty(0, np.uint32))
    _, offsets, text = column.buffers()
    bounds = np.frombuffer(offsets, np.int64, len(column) + 1, 8 * column.offset)
    data = np.empty(0, np.uint8) if text is None else np.frombuffer(text, np.uint8)
    return Strings(data, bounds[:-1], bounds[1:])


VALUES = "values"
"""What the weights of a matrix are called."""

UNREAD = (
    "The values of the matrix were not used: it is ranked as an unweighted graph; "
    f'weight="{VALUES}" takes them as weights.'
)

USUAL = ("weight", "weights", "w", "value", "values", "amount", "count", "n", "strength", "probability")
"""What columns of weights are often called."""

_MOST_NAMED = 5

WEIGHT_REMEDY = "Give each link a finite weight of 0 or more."


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


def column_number(weight: str | int) -> int:
    """Take what a caller calls the column of weights of a text as its number, from 1; or UsageError."""
    text = str(weight)
    if not text.isdecimal() or int(text) < 3:
        raise UsageError(
            f"{text!r} is no column of weights in lines of text, whose first two have the ends.",
            "Give the number of the column, counted from 1: 3 as a rule.",
        )
    return int(text)


def check_values(weight: str | int | None, title: str) -> None:
    """Raise UsageError if the weights of a matrix are called anything but `VALUES`."""
    if weight is not None and weight != VALUES:
        raise UsageError(
            f"{title} has values and no column {str(weight)!r}.", f'Call them {VALUES}: weight="{VALUES}".'
        )


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
    best = next((name for name in names if name.lower() in USUAL), names[0])
    more = f" and {len(names) - _MOST_NAMED:,} more" if len(names) > _MOST_NAMED else ""
    shown = ", ".join(f'"{name}"' for name in names[:_MOST_NAMED]) + more
    were, it = ("were", f'"{best}"') if len(names) > 1 else ("was", "it")
    return [f'{shown} {were} not used: all edges count the same; weight="{best}" takes {it} as weights.']


def no_weights(title: str) -> UsageError:
    """Build the error for weights that are asked for if there are none."""
    return UsageError(
        f"{title} have no weights.",
        "Leave the weight out, or give a source with a value beside each link: text, a table or a matrix.",
    )
