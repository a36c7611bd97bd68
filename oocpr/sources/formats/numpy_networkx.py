"""Edges in NumPy's and similar arrays, in memory or in .npy files, and graphs of NetworkX."""

from __future__ import annotations

import io
import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from numbers import Real
from typing import IO, TYPE_CHECKING, Any, BinaryIO, NamedTuple, Unpack

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from oocpr.errors import InputError, UsageError
from oocpr.sources.base import BaseSource, FileSource
from oocpr.sources.block import WEIGHT_REMEDY, NameBlock, NodeBlock, Strings, id_block
from oocpr.system import spans

if TYPE_CHECKING:
    from oocpr.sources.base import SourceOptions
    from oocpr.sources.block import Block, EdgeBlock
    from oocpr.sources.files import InputFile


def ends_of(spec: Any) -> Any:
    """Take a list of edges (from, to) as a pair of ends; anything else as it is."""
    edges = isinstance(spec, list) and all(isinstance(edge, tuple | list) and len(edge) == 2 for edge in spec)
    if not edges or not spec:
        return spec
    if len(spec) == 2:
        raise InputError(
            "A list of two pairs may be two edges, or the sources and targets of two.",
            "Give two arrays, (sources, targets).",
        )
    return tuple(zip(*spec, strict=True))


def are_texts(ends: Sequence[Any]) -> bool:
    """Tell whether both ends of edges are given as text."""
    return all(_as_array(end).dtype.kind in "OTU" for end in ends)


def _as_array(ids: Any) -> Any:
    """Take whatever holds ids as an array; one of a type of NumPy's, which may be on disk, stays as it is."""
    if hasattr(ids, "to_dask_array"):
        # A column of a table of Dask has no length yet.
        return ids.to_dask_array(lengths=True)
    found = ids if isinstance(getattr(ids, "dtype", None), np.dtype) else np.asarray(ids)
    if isinstance(found, np.ndarray) and found.dtype == object:
        # Whole numbers may come as objects, too.
        kinds = {type(one) for one in found.flat}
        if kinds and all(issubclass(kind, int | np.integer) and kind is not bool for kind in kinds):
            return np.array(found.tolist())
    return found


class EdgeArrays(BaseSource):
    """Node ids in two arrays of shape (m,), from and to, or in one of shape (2, m) or (m, 2).

    Without labels the ids that occur are the nodes, and may be any of 64 bits with a sign. Arrays of Dask,
    Zarr and the like are asked for slices.
    """

    def __init__(self, ends: Any, **options: Unpack[SourceOptions]) -> None:
        if isinstance(ends, tuple | list):
            super().__init__("arrays", "the pair of arrays", **options)
            src, dst = arrays = [_as_array(ids) for ids in ends]
            if len(src.shape) != 1 or src.shape != dst.shape:
                raise InputError(
                    f"The arrays have the shapes {src.shape} and {dst.shape}.",
                    "Give two arrays of one dimension and the same length.",
                )
            self._edges: int = src.shape[0]
            self._slice: Callable[[slice], Any] = lambda edges: (src[edges], dst[edges])
        else:
            super().__init__("array", "the array", **options)
            arrays = [ends]
            by_rows = _by_rows(tuple(ends.shape), self.title)
            self._edges = ends.shape[by_rows]
            self._slice = lambda edges: np.asarray(ends[:, edges] if by_rows else ends[edges].T)
        for ids in arrays:
            if isinstance(ids, np.ma.MaskedArray) and np.ma.is_masked(ids):
                raise InputError("The arrays have masked entries.", "Leave edges without a node out.")
            _check_integers(np.dtype(ids.dtype), "The arrays hold")

    def _read(self, max_edges: int) -> Iterator[EdgeBlock]:
        self._read_labels()
        for start in range(0, self._edges, max_edges):
            src, dst = map(np.asarray, self._slice(slice(start, start + max_edges)))
            yield id_block(src, dst, self.nodes, self.title, start)


def _by_rows(shape: tuple[int, ...], title: str) -> bool:
    """Tell whether an array of edges has its ends as rows, shape (2, m), rather than as columns, (m, 2)."""
    if len(shape) != 2 or 2 not in shape:
        matrix = "; of a dense matrix, scipy.sparse.csr_array(A)" if len({*shape}) == 1 else ""
        raise InputError(
            f"{title} has the shape {shape}.", f"Give an array of shape (2, edges) or (edges, 2){matrix}."
        )
    if shape == (2, 2):
        raise InputError(
            f"{title} has the shape (2, 2), which could be read in two ways.",
            "Give two arrays of one dimension: from and to.",
        )
    return shape[0] == 2


def _check_integers(dtype: np.dtype[Any], what: str) -> None:
    if dtype.kind not in "iu":
        raise InputError(f"{what} {dtype}, no integers.", "Give the ids of nodes as integers.")


_MAX_HEADER_BYTES = 10_000  # what NumPy itself reads at most, since it has Python's parser read it


class ArrayHeader(NamedTuple):
    """What stands before the entries of an array in a file, in `bytes` bytes."""

    shape: tuple[int, ...]
    columnar: bool  # the first index runs fastest (Fortran's order)
    dtype: np.dtype[Any]
    bytes: int

    @property
    def end(self) -> int:
        """Bytes of the header and of all entries."""
        return self.bytes + math.prod(self.shape) * self.dtype.itemsize


def read_header(file: IO[bytes]) -> ArrayHeader:
    """Read what ``numpy.save`` wrote before the first entry; ValueError if it is no header of an array."""
    head = file.read(npy.MAGIC_LEN)
    wide = npy.read_magic(io.BytesIO(head)) != (1, 0)
    length = file.read(4 if wide else 2)
    size = int.from_bytes(length, "little")
    if size > _MAX_HEADER_BYTES:
        raise ValueError(f"its header has {size:,} bytes")
    text = io.BytesIO(length + file.read(size))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            shape, columnar, dtype = (npy.read_array_header_2_0 if wide else npy.read_array_header_1_0)(text)
    except Exception as error:  # Python's tokenizer and parser raise errors of many kinds
        raise ValueError(f"its header cannot be read: {' '.join(str(error).split())[:200]}") from error
    if any(isinstance(count, bool) or count < 0 for count in shape):
        raise ValueError(f"it has the shape {shape}")
    return ArrayHeader(shape, columnar, dtype, len(head) + len(length) + size)


_PIECE_BYTES = 1 << 20  # read at once: archives make a copy


def read_entries(file: IO[bytes], count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Read the next entries of an array; EOFError if the file ends before."""
    values = np.empty(count, dtype)
    view = values.view(np.uint8).data
    done = 0
    while done < len(view):
        got = file.readinto(view[done : done + _PIECE_BYTES])  # type: ignore[attr-defined]
        if not got:
            raise EOFError
        done += got
    return values


class _ArrayFile:
    """An array on disk, of which pieces are read.

    A map of the file would be simpler, but its pages count as memory of the process until the system wants
    them back.
    """

    def __init__(self, file: BinaryIO, input_file: InputFile) -> None:
        self.title = str(input_file)
        try:
            header = read_header(file)
        except ValueError as error:
            raise InputError(
                f"{self.title} is no array of NumPy: {' '.join(str(error).split())[:200]}.",
                "Write it again with numpy.save, and leave it uncompressed.",
            ) from error
        self.shape, self._columnar, self._dtype, self._start = header
        _check_integers(self._dtype, f"{self.title} holds")
        self._file = file
        if input_file.size is not None and header.end > input_file.size:
            raise self._cut(header.end)

    def _cut(self, end: int) -> InputError:
        return InputError(
            f"{self.title} ends in the middle, before byte {end:,}.", "Fetch or write the file again."
        )

    def flat(self, start: int, stop: int) -> NDArray[Any]:
        """Entries `start` to `stop` - 1 as they lie in the file."""
        self._file.seek(self._start + start * self._dtype.itemsize)
        try:
            return read_entries(self._file, stop - start, self._dtype)
        except EOFError as error:
            raise self._cut(self._start + stop * self._dtype.itemsize) from error

    def ends(self, start: int, stop: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Both ends of the edges `start` to `stop` - 1 of an array of two dimensions."""
        by_rows = _by_rows(self.shape, self.title)
        edges = self.shape[by_rows]
        if by_rows != self._columnar:
            return self.flat(start, stop), self.flat(edges + start, edges + stop)
        both = self.flat(2 * start, 2 * stop)
        return both[0::2], both[1::2]


class NpyFiles(FileSource):
    """Edges in arrays that ``numpy.save`` wrote: two of one dimension, or some of two dimensions."""

    def _read(self, max_edges: int) -> Iterator[EdgeBlock]:
        self._read_labels()
        first, size = 0, self.size or 0
        sources: _ArrayFile | None = None
        with ExitStack() as opened:
            for file in self.files:
                array = _ArrayFile(opened.enter_context(file.open()), file)
                if len(array.shape) == 1 and sources is None:
                    sources = array
                    continue
                if (len(array.shape) == 1) != (sources is not None):
                    raise InputError(
                        f"{file} has the shape {array.shape}.",
                        "Give two arrays of one dimension, or arrays of two dimensions only.",
                    )
                if sources is not None and sources.shape != array.shape:
                    raise InputError(
                        f"{sources.title} and {file} have the shapes {sources.shape} and {array.shape}.",
                        "Give two arrays of the same length.",
                    )
                edges = array.shape[sources is None and _by_rows(array.shape, array.title)]
                for start, stop in spans(edges, max_edges):
                    if sources is None:
                        src, dst = array.ends(start, stop)
                    else:
                        src, dst = sources.flat(start, stop), array.flat(start, stop)
                    self.position = min(size, self.position + src.nbytes + dst.nbytes)
                    yield id_block(src, dst, self.nodes, self.title, first + start)
                first += edges
                sources = None
                opened.close()
        if sources is not None:
            raise InputError(
                f"{sources.title} is one array of one dimension.", "Give the array of the other ends as well."
            )


_LARGEST = 2**63
_LACKING = object()
_LOOKED_AT = 1000  # edges whose attributes are named if none has the one asked for


class NetworkGraph(BaseSource):
    """A graph of NetworkX, or of anything like it, whose nodes are whole numbers or all of them text.

    As in NetworkX's own ranks, an undirected edge counts both ways, and an edge without `weight` weighs 1.
    """

    def __init__(self, graph: Any, **options: Unpack[SourceOptions]) -> None:
        super().__init__("graph", "the graph", **options)
        self._graph = graph
        self._weight = options.get("weight")
        if options.get("labels") is not None:
            raise InputError("The nodes of a graph in memory are their own names.", "Leave the labels out.")
        if self.weighted:
            self._check_weight()

    def _check_weight(self) -> None:
        """Refuse a weight that no edge has: all of them would silently count 1."""
        found = (weight for *_, weight in self._graph.edges(data=self._weight, default=_LACKING))
        first = next(found, None)
        if first is not _LACKING or any(weight is not _LACKING for weight in found):
            return
        some = itertools.islice(self._graph.edges(data=True), _LOOKED_AT)
        known = dict.fromkeys(str(name) for *_, attributes in some for name in attributes)
        raise UsageError(
            f"weight is {self._weight!r}, which no edge of the graph has; their attributes are "
            f"{', '.join(map(repr, known)) or 'none'}.",
            "Give the name of one that is the weight, or leave the weight out.",
        )

    def _read(self, max_edges: int) -> Iterator[Block]:
        named = all(isinstance(node, str) for node in self._graph.nodes)
        nodes = iter(self._graph.nodes)
        while some := list(itertools.islice(nodes, 2 * max_edges)):
            if not named:
                _numbers(some)
            yield NodeBlock(_strings(some) if named else np.array(some, np.int64))
        weights = {"data": self._weight, "default": _LACKING} if self.weighted else {"data": True}
        remaining = iter(self._graph.edges(**weights))
        first = given = lacking = 0
        each = max_edges if self._graph.is_directed() else max(1, max_edges // 2)
        while edges := list(itertools.islice(remaining, each)):
            given += len(edges)
            if self.weighted:
                lacking += sum(weight is _LACKING for *_, weight in edges)
            else:
                self._take_note(attributes for *_, attributes in edges)
            if not self._graph.is_directed():
                edges += [(v, u, weight) for u, v, weight in edges if u != v]
            sources, destinations = [edge[0] for edge in edges], [edge[1] for edge in edges]
            weight = self._weights(edges) if self.weighted else None
            if named:
                yield NameBlock(_strings(sources), _strings(destinations), weight)
            else:
                src, dst = (np.array(ends, np.int64) for ends in (sources, destinations))
                yield id_block(src, dst, None, self.title, first, weight)
            first += len(edges)
        if lacking:
            self.notices.append(
                f"{lacking:,} of {given:,} edges have no {self._weight!r}: "
                "they have the weight 1, as in NetworkX."
            )

    def _take_note(self, attributes: Iterable[Mapping[Any, Any]]) -> None:
        """Note which attributes of edges are numbers that are not all 1."""
        for one in attributes:
            for name, value in one.items():
                if isinstance(value, bool) or not isinstance(value, Real) or value == 1:
                    continue
                if str(name) not in self.unused_columns:
                    self.unused_columns.append(str(name))

    def _weights(self, edges: list[Any]) -> NDArray[np.float64]:
        """Take the third of each edge as weights."""
        found = np.empty(len(edges))
        for k, (source, target, weight) in enumerate(edges):
            if weight is _LACKING:
                found[k] = 1.0
                continue
            try:
                found[k] = weight if isinstance(weight, Real) else np.nan
            except OverflowError:
                found[k] = np.inf
            if not 0 <= found[k] < np.inf:
                raise InputError(
                    f"{self.title}: the edge from {source!r} to {target!r} has the weight {weight!r}.",
                    WEIGHT_REMEDY,
                )
        return found + 0.0  # -0.0 + 0.0 is 0.0


def _numbers(nodes: list[Any]) -> None:
    """Refuse nodes that are not whole numbers of 64 bits."""
    for node in nodes:
        if isinstance(node, bool) or not isinstance(node, int | np.integer):
            raise InputError(
                f"The graph has a node {node!r} beside others, which are numbers or not all text.",
                "Name all nodes by whole numbers, or all of them by text.",
            )
        if not -_LARGEST <= int(node) < _LARGEST:
            raise InputError(f"The graph has the node {node}.", "Give numbers from -2^63 to 2^63 - 1.")


def _strings(nodes: list[str]) -> Strings:
    try:
        coded = [node.encode() for node in nodes]
    except UnicodeEncodeError as error:
        raise InputError(
            f"The graph has a node {error.object!r}, which is no text of Unicode.", "Give it another name."
        ) from None
    lengths = np.array([len(name) for name in coded], np.int64)
    return Strings.of(np.frombuffer(b"".join(coded), np.uint8), lengths)
