"""Vectors that callers give by the names of nodes: ranks to start from, and teleport weights."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence, Set
from decimal import Decimal
from itertools import chain
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oocpr.errors import InputError, UsageError
from oocpr.result.names import block_of, find_rows, match_rows, name_at, place_values, valid_names, zip_blocks
from oocpr.result.rank_files import beside, read_ranks
from oocpr.result.ranks import Ranks
from oocpr.sources.dialect import BLANKS, is_comment
from oocpr.sources.files import ByteStream, LocalFile
from oocpr.sources.lines import LONGEST_LINE, LineReader

if TYPE_CHECKING:
    from oocpr.engine.scc.personal import SeedVectors
    from oocpr.result.names import Block, Name, Names

    Entries = Iterator[tuple[Block, NDArray[np.float64]]]
    NodeWeights = tuple[list[Name] | None, NDArray[np.float64]]
    Pieces = Iterator[tuple[list[Name], Sequence[float] | NDArray[np.float64]]]

NODE_COLUMNS = ("node", "name", "id", "label")
"""What a table calls its column of nodes."""

_CHUNK = 1 << 12
"""Names that are taken at a time."""

_MANY = 1e290  # sums of larger numbers may be beyond float64


def start_vector(
    wanted: Any, names: Names, nodes: int, least: NDArray[np.float64] | float, memory: int | None = None
) -> NDArray[np.float64]:
    """Spread one unit of mass over the nodes as earlier ranks do.

    `least`: what nodes without an earlier rank get while the others sum to one: shape (nodes,), or the same
    for all. `memory`: most bytes of the process while names are looked up; None for any number. Returns
    float64, shape (nodes,). Raises DoesNotFitError if `memory` is too small; InputError for a file that
    cannot be read, and if no node of the graph has a rank; UsageError for numbers that are negative, not
    finite, or all zero, and arrays of another length.
    """
    origin = "start"
    if isinstance(wanted, str | os.PathLike):
        origin = os.fspath(wanted)
        wanted = read_ranks(wanted)
    theirs: Entries | None
    if isinstance(wanted, Ranks):
        wanted = beside(wanted, names)
        total, smallest = _summed(wanted.chunks())
        theirs = zip_blocks(wanted.names.blocks(len(wanted)), wanted.chunks())
    else:
        named, values = node_weights(wanted, origin)
        theirs = None if named is None else _entries(_pieces(named, values), names.textual)
        if named is None and values.shape != (nodes,):
            raise UsageError(
                f"{origin} has the shape {values.shape}.",
                f"Give a number for each of the {nodes} nodes, or ranks with their names.",
            )
        total, smallest = _summed(iter([values]))
    if not (math.isfinite(total) and total > 0 and smallest >= 0):
        raise UsageError(
            f"The numbers of {origin} sum to {total} and the least is {smallest}.",
            "Give finite numbers of at least 0, one of them above.",
        )
    if theirs is None:
        return values / total
    found = match_rows(names, nodes, theirs, memory)
    start, _ = place_values(nodes, ((rows, values) for _, rows, values in found))
    start /= total
    fresh = np.isnan(start)
    if fresh.all():
        raise InputError(
            f"{origin} has no rank of any node of the graph.", "Give ranks of nodes of the same names."
        )
    start[fresh] = least[fresh] if isinstance(least, np.ndarray) else least
    whole = math.fsum(start)
    if whole == 0:
        raise UsageError(
            f"The numbers of {origin} for nodes of the graph are all zero.", "Leave the start out."
        )
    start /= whole
    return start


def start_identity(wanted: object) -> str | None:
    """Identity of the graph that ranks, or a file of them, are of; None if they do not say."""
    # A CSV file says nothing of its run, and would be read whole.
    if isinstance(wanted, str | os.PathLike) and not os.fspath(wanted).endswith(".csv"):
        wanted = read_ranks(wanted)
    return wanted.identity if isinstance(wanted, Ranks) else None


def _summed(chunks: Iterator[NDArray[np.float64]]) -> tuple[float, float]:
    """Sum and least of values, in one pass."""
    smallest = math.inf

    def each() -> Iterator[float]:
        nonlocal smallest
        for chunk in chunks:
            smallest = float(np.minimum(smallest, chunk.min(initial=math.inf)))
            yield from chunk

    try:
        return math.fsum(each()), smallest
    except OverflowError:
        return math.inf, smallest


def _pieces(names: list[Name], values: NDArray[np.float64]) -> Pieces:
    for first in range(0, len(names), _CHUNK):
        yield names[first : first + _CHUNK], values[first : first + _CHUNK]


def _entries(pieces: Pieces, textual: bool, origin: str | None = None) -> Entries:
    """Yield blocks of names and values; names that no node can have are left out, with `origin` refused."""
    for names, values in pieces:
        fits = valid_names(names, textual)
        if origin is not None and not fits.all():
            raise _stranger(names[int(np.flatnonzero(~fits)[0])], origin)
        block = block_of([name for name, fit in zip(names, fits, strict=True) if fit], textual)
        yield block, np.asarray(values, np.float64)[fits]


def teleport_vector(wanted: Any, names: Names, nodes: int, memory: int | None = None) -> NDArray[np.float64]:
    """Spread one unit of mass over the nodes as the caller wants it.

    `wanted`: weights as `node_weights` takes them, nodes that are not named getting none; or a file of lines
    ``node`` or ``node<TAB>weight``, in which comments begin with ``# `` or, if nodes have numbers, with ``#``
    or ``%``. `memory`, results and errors are those of `start_vector`; also InputError for unknown nodes.
    """
    origin = "personalization"
    named: Pieces | None
    if isinstance(wanted, str | os.PathLike):
        origin = os.fspath(wanted)
        named = _read_weights(wanted, textual=names.textual)
    else:
        listed, weights = node_weights(wanted, origin)
        named = None if listed is None else _pieces(listed, weights)
    # A few rows are all that is read and written of a vector of zeros.
    places: NDArray[np.int64] | slice = slice(None)
    if named is not None:
        weights = np.zeros(nodes)
        for number, (rows, of_them) in enumerate(rows_named(names, nodes, named, origin, memory)):
            with np.errstate(over="ignore"):
                np.add.at(weights, rows, of_them)
            places = slice(None) if number else np.unique(rows)
    if weights.shape != (nodes,):
        raise UsageError(
            f"{origin} has the shape {weights.shape}.",
            f"Give one weight for each of the {nodes:,} nodes, or weights by name.",
        )
    _check_sums(weights[places], origin)
    try:
        total = _sum_of(weights[places])
    except OverflowError:
        # The sum of large numbers may be beyond float64.
        weights = weights / weights.max()
        total = _sum_of(weights[places])
    if not total > 0:
        raise UsageError(
            f"{origin} has no number above 0.", "Give one node a number above 0, or leave it out."
        )
    if named is None:
        return weights / total
    weights[places] /= total
    return weights


def _check_sums(summed: NDArray[np.float64], origin: str) -> None:
    """Refuse numbers that were added up for each node and grew past what float64 holds."""
    if not np.isfinite(summed).all():
        raise UsageError(
            f"{origin} gives one node numbers whose sum float64 does not hold.",
            "Give smaller numbers: only their shares of the sum count.",
        )


def _sum_of(weights: NDArray[np.float64]) -> float:
    chunks = (weights[first : first + _CHUNK] for first in range(0, weights.size, _CHUNK))
    return math.fsum(chain.from_iterable(chunk[chunk != 0] for chunk in chunks))


def is_many(wanted: Any) -> bool:
    """Tell whether teleport weights are those of several vectors; see `seed_vectors`."""
    if isinstance(wanted, list | tuple):
        # Tables have columns, and a Series of pandas has `to_dict`.
        return any(
            isinstance(one, Mapping | Set | list | tuple | np.ndarray)
            or hasattr(one, "columns")
            or hasattr(one, "to_dict")
            for one in wanted
        )
    return getattr(wanted, "ndim", 1) == 2 and not hasattr(wanted, "columns")


def seed_vectors(
    wanted: Any, names: Names, nodes: int, memory: int | None = None
) -> tuple[list[Name], SeedVectors]:
    """Teleport vectors as the caller wants them, and what each of them is called.

    `wanted`: a list of weights by node as `node_weights` takes them; a matrix of SciPy or an array, shape
    (seeds, nodes), in store order; or a file of lines ``seed<TAB>node`` or ``seed<TAB>node<TAB>weight``, in
    which the lines of a seed may stand anywhere. Seeds are called by their number or as in the file. Errors
    are those of `teleport_vector`.
    """
    from oocpr.engine.scc.personal import SeedVectors

    origin = "personalization"
    called: list[Name]
    if isinstance(wanted, list | tuple | str | os.PathLike):
        numbers: list[int] = []
        known: dict[str, int] = {}
        if isinstance(wanted, list | tuple):
            pieces = _pieces_of_many(wanted, origin, numbers)
        else:
            origin = os.fspath(wanted)
            pieces = _read_weights(wanted, textual=names.textual, seeds=(known, numbers))
        found = [*rows_named(names, nodes, pieces, origin, memory), (np.empty(0, np.int64), np.empty(0))]
        rows, weights = np.concatenate([of[0] for of in found]), np.concatenate([of[1] for of in found])
        seeds = np.array(numbers, np.int64)
        called = list(range(len(wanted))) if isinstance(wanted, list | tuple) else list(known)
    else:
        seeds, rows, weights, shape = _entries_of_matrix(wanted)
        if shape[1] != nodes:
            raise UsageError(
                f"{origin} has the shape {shape}.",
                f"Give each seed a weight for each of the {nodes:,} nodes.",
            )
        called = list(range(shape[0]))
    if not called:
        raise UsageError(f"{origin} has no seed.", "Give one seed at least.")
    keys, places = np.unique(seeds * nodes + rows, return_inverse=True)
    summed = np.bincount(places, weights, len(keys)).astype(np.float64)
    _check_sums(summed, origin)
    keys, summed = keys[summed > 0], summed[summed > 0]
    ptr = np.searchsorted(keys, np.arange(len(called) + 1) * nodes)
    sizes = np.diff(ptr)
    if not sizes.all():
        raise UsageError(
            f"{origin}: seed {called[int(sizes.argmin())]!r} has no number above 0.",
            "Give one node of each seed a number above 0.",
        )
    # Divided by the largest first: the sum of large numbers may be beyond float64.
    summed = summed / np.repeat(np.maximum.reduceat(summed, ptr[:-1]), sizes)
    summed = summed / np.repeat(np.add.reduceat(summed, ptr[:-1]), sizes)
    return called, SeedVectors(ptr, keys % nodes, summed)


def _pieces_of_many(wanted: Sequence[Any], origin: str, numbers: list[int]) -> Pieces:
    """Yield nodes and weights of each seed; `numbers` receives the seed of each."""
    for number, one in enumerate(wanted):
        named, weights = node_weights(one, f"{origin}[{number}]")
        if named is None:
            raise UsageError(
                f"{origin}[{number}] has no names of nodes.",
                "Give weights by node, {node: weight}, or an array of all seeds, shape (seeds, nodes).",
            )
        numbers += [number] * len(named)
        yield named, weights


def _entries_of_matrix(
    matrix: Any,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64], tuple[int, int]]:
    """Seed, row and weight of each entry of a matrix of SciPy or an array, and its shape."""
    if hasattr(matrix, "tocoo"):
        entries = matrix.tocoo()
        seeds, rows, weights = entries.row, entries.col, entries.data
    else:
        _check_mask(matrix, "personalization")
        matrix = np.asarray(matrix)
        seeds, rows = np.nonzero(matrix)
        weights = matrix[seeds, rows]
    if np.asarray(weights).dtype.kind not in "biuf" or not (np.isfinite(weights) & (weights >= 0)).all():
        raise UsageError(
            "personalization has entries that are no finite numbers of at least 0.",
            "Give others in their place.",
        )
    one, other = (np.asarray(places, np.int64) for places in (seeds, rows))
    return one, other, np.asarray(weights, np.float64), matrix.shape


def named_vector(numbers: Mapping[Any, float], names: Names, nodes: int) -> NDArray[np.float64]:
    """Give the numbers of nodes in store order, 0 for nodes without one; names of no node are left out.

    Returns float64, shape (nodes,). Raises InputError if several nodes have a name.
    """
    vector = np.zeros(nodes)
    pieces = _pieces(list(numbers), np.array(list(numbers.values()), np.float64))
    for _, rows, values in find_rows(names, nodes, _entries(pieces, names.textual)):
        known = rows >= 0
        vector[rows[known]] = values[known]
    return vector


def rows_named(
    names: Names, nodes: int, wanted: Pieces, origin: str, memory: int | None = None
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """Yield the rows of nodes that are named, and what belongs to them.

    Raises DoesNotFitError if `memory` is too small; InputError if no node, or several, have a name.
    """
    for block, rows, values in find_rows(names, nodes, _entries(wanted, names.textual, origin), memory):
        unknown = np.flatnonzero(rows < 0)
        if unknown.size:
            raise _stranger(name_at(block, int(unknown[0])), origin)
        yield rows, values


def _stranger(name: Name, origin: str) -> InputError:
    return InputError(
        f"{origin}: the graph has no node {name!r}.",
        "Use the names of the source: the top of the ranks shows some.",
    )


def _read_weights(
    path: str | os.PathLike[str], *, textual: bool, seeds: tuple[dict[str, int], list[int]] | None = None
) -> Pieces:
    """Yield the nodes of a file and their weights, some at a time.

    `seeds`: if lines begin with a seed, receives the number of each seed and the seed of each line.
    """
    names: list[Name] = []
    weights: list[float] = []
    size = 0
    for lines, line in _lines(path):
        if not line.strip() or (is_comment(line) if textual else line.startswith(("#", "%"))):
            continue
        whole = line
        try:
            if seeds is not None:
                seed, line = line.split("\t" if textual or "\t" in line else None, 1)
                seeds[1].append(seeds[0].setdefault(seed.strip(BLANKS), len(seeds[0])))
            text, _, weight = line.partition("\t")
            # Labels may hold spaces; ids cannot, so there any white space separates.
            if not textual:
                text, weight = [*line.split(maxsplit=1), ""][:2]
            # Python passes over underscores: 2024_1 would be node 20241.
            if "_" in (weight if textual else text + weight):
                raise ValueError(whole)
            names.append(text.strip(BLANKS) if textual else int(text))
            weights.append(float(weight) if weight.strip() else 1.0)
        except ValueError as error:
            what, form = (
                ("node and weight", "") if seeds is None else ("seed, node and weight", "a seed, a tab, ")
            )
            raise lines.error(
                f"{whole.strip()!r} is no {what}.",
                f"Write {form}a node, or {form}a node, a tab and a number, on each line.",
            ) from error
        if not 0 <= weights[-1] < math.inf:
            raise lines.error(f"{weights[-1]} is no weight.", "Give finite numbers of at least 0.")
        size += len(line)
        if len(names) == _CHUNK or size >= LONGEST_LINE:
            yield names, weights
            names, weights, size = [], [], 0
    yield names, weights


def _lines(path: str | os.PathLike[str]) -> Iterator[tuple[LineReader, str]]:
    """Yield the lines of a file, which may be compressed, each with the reader that is at it."""
    if not os.path.lexists(path):
        raise InputError(f"{path} does not exist.", "Name a text file of nodes and weights.")
    with ByteStream(LocalFile(Path(path))) as stream:
        lines = LineReader(stream)
        while (line := lines.peek()) is not None:
            yield lines, line
            lines.drop()


def node_weights(wanted: Any, origin: str) -> NodeWeights:
    """Take weights of nodes as they come.

    `wanted`: numbers by node: a dict, a Series of pandas, whose index has the nodes, or a table with a column
    ``node`` and one of numbers, or none; nodes that count alike: a set, or a list, tuple, array or Series of
    text; or a number for each node in store order: an array, shape (nodes,), or a list of floats. Returns the
    nodes, each once, or None for store order; and the values: float64, finite, at least 0, not all 0. Raises
    UsageError for something else.
    """
    names: list[Name] | None
    _check_mask(wanted, origin)
    if hasattr(wanted, "tocoo"):
        # Sparse, of one dimension.
        wanted = wanted.toarray()
    if isinstance(wanted, Mapping):
        names, values = list(wanted), list(wanted.values())
    elif isinstance(wanted, Set):
        names, values = list(wanted), [1.0] * len(wanted)
    elif hasattr(wanted, "__arrow_c_stream__") and hasattr(wanted, "columns"):
        names, values = _of_table(wanted, origin)
    elif hasattr(wanted, "index") and hasattr(wanted, "to_dict"):
        names, values = wanted.index.tolist(), wanted.tolist()
        if any(isinstance(value, str) for value in values):
            names, values = values, [1.0] * len(values)
    else:
        names, values = _of_sequence(wanted, origin)
    weights = _weights(names, values, origin)
    if names is None:
        return None, weights
    total: dict[Name, float] = {}
    for name, weight in zip(names, weights.tolist(), strict=True):
        total[name] = total.get(name, 0.0) + weight
    return list(total), np.fromiter(total.values(), np.float64, len(total))


def _check_mask(wanted: Any, origin: str) -> None:
    if isinstance(wanted, np.ma.MaskedArray) and np.ma.is_masked(wanted):
        raise UsageError(f"{origin} has masked entries.", "Give numbers in their place: filled(0).")


def _of_sequence(wanted: Any, origin: str) -> tuple[list[Name] | None, Any]:
    if isinstance(wanted, str | bytes) or not (
        isinstance(wanted, list | tuple) or hasattr(wanted, "__array__") or hasattr(wanted, "to_list")
    ):
        raise UsageError(
            f"{origin} is a {type(wanted).__name__}.",
            "Give numbers by node, such as {node: weight}, a set of nodes, or an array with one for each.",
        )
    listed = getattr(wanted, "tolist", getattr(wanted, "to_pylist", None))
    items = list(wanted) if listed is None else listed()
    if not isinstance(items, list):
        items = [items]
    if items and all(isinstance(item, str) for item in items):
        return items, [1.0] * len(items)
    if not isinstance(wanted, np.ndarray) and any(
        isinstance(item, int | np.integer) and not isinstance(item, bool) for item in items
    ):
        raise UsageError(
            f"{origin} is a {type(wanted).__name__} of whole numbers, which may be nodes or weights.",
            "Give nodes as a set, or weights as an array of floats or by node: {node: weight}.",
        )
    if isinstance(wanted, np.ndarray) and wanted.dtype.kind in "biuf":
        items = wanted
    return None, items


def _of_table(table: Any, origin: str) -> tuple[list[Name], list[Any]]:
    import pyarrow as pa

    try:
        read = pa.table(table)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        why = " ".join(" ".join(map(str, error.args)).split())
        raise UsageError(
            f"{origin} cannot be taken as a table of Arrow: {why}.",
            "Give the nodes as whole numbers or as text, and numbers beside them.",
        ) from error
    columns = read.column_names
    texts = [field.name for field in read.schema if "string" in str(field.type)]
    nodes = [name for name in columns if name in NODE_COLUMNS] or texts
    others = [name for name in columns if name not in nodes]
    if len(nodes) != 1 or len(others) > 1:
        raise UsageError(
            f"{origin} is a table with the columns {', '.join(map(repr, columns)) or 'none'}.",
            "Give a table with the columns node and weight.",
        )
    kind = read[nodes[0]].type
    if pa.types.is_nested(kind):
        raise UsageError(
            f"{origin} is a table whose column {nodes[0]!r} holds {kind}.",
            "Give the nodes as whole numbers or as text.",
        )
    names = read[nodes[0]].to_pylist()
    return names, read[others[0]].to_pylist() if others else [1.0] * len(names)


def _weights(names: list[Name] | None, values: Any, origin: str) -> NDArray[np.float64]:
    """Take values as weights, and name the first that is none."""
    if isinstance(values, np.ndarray):
        weights = values.astype(np.float64)
    else:
        weights = np.array([_float(value) for value in values], np.float64)
    wrong = np.flatnonzero(~((weights >= 0) & (weights < np.inf)).reshape(-1))
    if wrong.size:
        place = int(wrong[0])
        whose = f"row {place}" if names is None else f"the node {names[place]!r}"
        value = values.reshape(-1)[place].item() if isinstance(values, np.ndarray) else values[place]
        raise UsageError(
            f"{origin} gives {whose} {_short(value)}.",
            "Give finite numbers of at least 0, one of them above.",
        )
    if not weights.any():
        raise UsageError(
            f"{origin} has no number above 0.", "Give one node a number above 0, or leave it out."
        )
    return weights / weights.max() if weights.max() > _MANY else weights


def _float(value: Any) -> float:
    try:
        return float(value) if isinstance(value, Real | Decimal) else np.nan
    except OverflowError:
        return np.inf


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
