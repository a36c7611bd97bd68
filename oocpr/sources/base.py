"""Options of sources, the classes that they extend, and edges in both directions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast

import numpy as np
from numpy.typing import NDArray

from oocpr.errors import InputError
from oocpr.sources.block import EdgeBlock, NameBlock, NodeBlock, ResumableSource
from oocpr.sources.files import ByteStream, input_file, stamp, uncompressed_name

if TYPE_CHECKING:
    import os

    from oocpr.sources.block import Block, Labels, Source
    from oocpr.sources.files import InputFile

    Reserve = Callable[[int, str], None]


class SourceOptions(TypedDict, total=False):
    """How a source is to be read.

    Parameters
    ----------
    format
        A key of `oocpr.sources.FORMATS`, for files; None to find it by the file's name and first bytes.
    labels
        A file with the name of node i in line i.
    undirected, reverse
        Whether every edge counts in both directions, or in the other one.
    source_column, target_column
        Columns that edges run from and to, by their names or, in CSV, by their numbers from 1; None for the
        usual names.
    weight
        Where the weights of edges are: the name of a column (Parquet, CSV, tables) or of an attribute of
        edges (NetworkX), the number of a column counted from 1 (text), or ``"values"`` (matrices); None for
        none.
    header
        Whether the first line of a text, names or CSV file names its columns; None to decide by the lines.
    delimiter
        What separates the columns of CSV: an ASCII character, or ``"tab"``, ``"comma"``, ``"semicolon"``,
        ``"bar"`` or ``"space"``, which is any number of blanks; None to decide by the lines.
    """

    format: str | None
    labels: str | os.PathLike[str] | None
    undirected: bool
    reverse: bool
    source_column: str | int | None
    target_column: str | int | None
    weight: str | int | None
    header: bool | None
    delimiter: str | None


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those options that ask for something.

    Examples
    --------
    >>> given({"weight": 3, "labels": None, "undirected": False, "header": False})
    {'weight': 3, 'header': False}
    """
    default = ("undirected", False), ("reverse", False)
    return {key: value for key, value in options.items() if value is not None and (key, value) not in default}


def _reserve_anything(needed: int, what: str) -> None:
    """Refuse nothing; see `BaseSource.reserve`."""


class BaseSource(ABC):
    """A graph from somewhere, which messages call `title`; each format has its own ``_read``.

    Attributes
    ----------
    unused_columns
        Names of columns of numbers, or of attributes of edges, that are not read and may be weights; complete
        once ``blocks`` is exhausted.
    reserve
        Called before more memory is taken than the blocks account for, with the bytes and what needs them,
        the subject of a sentence; raises DoesNotFitError if there are not so many. Whoever reads the
        blocks and has a budget sets it; without one nothing is refused.

    reader
        What messages call the process that reads it.
    direction
        A key of `DIRECTIONS` if edges count otherwise than they stand there.
    is_part
        Whether it is one of the `parts` of a source, which may hold no edges.

    The others are those of `oocpr.sources.block.Source`.
    """

    def __init__(self, name: str, title: str, **options: Unpack[SourceOptions]) -> None:
        self.name = name
        self.title = title
        self.size: int | None = None
        self.position = 0
        self.nodes: int | None = None
        self.labels: Labels | None = None
        self.notices: list[str] = []
        self.closed: str | None = None
        self.weighted = options.get("weight") is not None
        self.unused_columns: list[str] = []
        self.reserve: Reserve = _reserve_anything
        self.reader = "this process"
        self.is_part = False
        self.direction: str | None = None
        self._options = options
        self._labels_path = options.get("labels")

    def identity(self) -> dict[str, Any] | None:
        """See `oocpr.sources.block.ResumableSource`."""
        return None

    def parts(self, count: int) -> list[BaseSource]:  # noqa: ARG002 - for those that can be divided
        """Divide the source, of which nothing was read, into about `count` sources for other processes.

        Together they have its edges, and they can be pickled. Empty if it cannot be divided.
        """
        return []

    def sample(self, max_edges: int) -> Block | None:
        """Give some edges that show how all of them are spread: the first, unless others show it better."""
        with closing(cast("Generator[Block]", self.blocks(max_edges))) as blocks:
            return next(blocks, None)

    def locate(self, edge: int) -> str:
        """Say where the edge that came as number `edge`, counted from 0, stands."""
        return f"{self.title}, edge {edge:,}"

    def blocks(self, max_edges: int) -> Iterator[Block]:
        """Yield the edges in blocks of at most `max_edges`; InputError if there are none."""
        empty = True
        for block in self._read(max_edges):
            empty = False
            yield block
        if empty and not self.nodes and not self.is_part:
            raise InputError(f"{self.title} holds no edges.", "Check that it is what you mean.")
        self.position = self.size or self.position

    @abstractmethod
    def _read(self, max_edges: int) -> Iterator[Block]:
        """Yield blocks; an InputError names the file and the line or entry."""

    def _read_labels(self) -> None:
        """Take the labels from their file, and the number of nodes with them."""
        if self._labels_path is None:
            return
        from oocpr.sources.names import FileLabels

        self.labels = FileLabels(self._labels_path)
        if self.nodes is not None and self.nodes != len(self.labels):
            raise InputError(
                f"{self._labels_path} labels {len(self.labels):,} nodes, {self.title} has {self.nodes:,}.",
                "Give the labels file that belongs to this graph.",
            )
        self.nodes = len(self.labels)
        self.notices.append(f"Labels of {self.nodes:,} nodes come from {input_file(self._labels_path)}.")

    def _listed_nodes(self, max_edges: int) -> Iterator[NodeBlock]:
        """Yield the nodes of a labels file, if there is one: no edge may name another."""
        if self._labels_path is not None:
            from oocpr.sources.names import listed_names

            self.closed = str(self._labels_path)
            yield from map(NodeBlock, listed_names(self._labels_path, 2 * max_edges))


_HOW = ("source_column", "target_column", "weight", "header", "delimiter")
"""Options that say how the files of a format are read."""

MIN_PART_BYTES = 1 << 24
"""Least bytes of a part of files, unless there are fewer."""

_LABELS = 1 << 14
"""Labels between two looks at the memory that is left."""


class FileSource(BaseSource):
    """A graph in one file, or in several that are read as one."""

    def __init__(self, files: Sequence[InputFile], **options: Unpack[SourceOptions]) -> None:
        more = f" and {len(files) - 1:,} more" if len(files) > 1 else ""
        super().__init__(f"{Path(uncompressed_name(files[0])).stem}{more}", f"{files[0]}{more}", **options)
        self._set_files(files)
        self._before = 0

    def _set_files(self, files: Sequence[InputFile]) -> None:
        self.files = files
        sizes = [file.size for file in files]
        self.size = None if None in sizes else sum(size for size in sizes if size is not None)

    def identity(self) -> dict[str, Any] | None:
        """Tell the files, when they were changed, and how they are read; None for standard input."""
        labels = [] if self._labels_path is None else [input_file(self._labels_path)]
        files, named = ([stamp(file) for file in files] for files in (self.files, labels))
        if None in files or None in named:
            return None
        how = {name: str(value) for name, value in given(self._options).items() if name in _HOW}
        return {"reader": type(self).__name__, "name": self.name, "files": files, "labels": named, "how": how}

    def parts(self, count: int) -> list[BaseSource]:
        """See BaseSource: neighbouring files, or pieces of them, of about as many bytes."""
        total = self.size
        if total is None or self._labels_path is not None or not all(file.reopenable for file in self.files):
            return []
        step = max(MIN_PART_BYTES, -(-total // count))
        groups: list[list[InputFile]] = []
        before = 0
        for piece in (piece for file in self.files for piece in self._divided(file, step)):
            # By where their middles lie.
            place = (2 * before + (piece.size or 0)) // (2 * step)
            if not groups or place >= len(groups):
                groups.append([])
            groups[-1].append(piece)
            before += piece.size or 0
        made: list[BaseSource] = [type(self)(group, **self._options) for group in groups]
        for part in made:
            part.is_part = True
        return made

    def _divided(self, file: InputFile, max_bytes: int) -> list[InputFile]:  # noqa: ARG002
        """Divide a file that is to be read side by side with others; empty if it has to be read with them."""
        return []

    def _streams(self) -> Iterator[ByteStream]:
        """Open the files one after the other."""
        self._before = 0
        for file in self.files:
            with ByteStream(file) as stream:
                yield stream
                self._before += stream.position

    def _advance(self, stream: ByteStream) -> None:
        self.position = self._before + stream.position

    def _reserve_labels(self, count: int) -> None:
        """Refuse labels that are kept in memory once they do not fit; called with each."""
        if count % _LABELS == 0:
            self.reserve(0, f"{self.title} with more than {count:,} labels")


def both_ways(block: Block) -> list[Block]:
    """Give a block and its edges reversed; self-loops, which are their own reverse, are not repeated."""
    if isinstance(block, NodeBlock):
        return [block]
    reverse = np.flatnonzero(_differ(block))
    if not reverse.size:
        return [block]
    weight = None if block.weight is None else block.weight[reverse]
    if isinstance(block, NameBlock):
        return [block, NameBlock(block.dst.take(reverse), block.src.take(reverse), weight)]
    return [block, EdgeBlock(block.dst[reverse], block.src[reverse], weight)]


def _differ(block: EdgeBlock | NameBlock) -> NDArray[np.bool_]:
    """Tell edges from self-loops; bool, shape (edges,)."""
    if isinstance(block, EdgeBlock):
        return np.not_equal(block.src, block.dst)
    from oocpr.sources.names import compare_names

    one, two = block.src, block.dst
    differ = np.empty(one.size, np.bool_)
    compare_names(one.text, one.starts, one.ends, two.text, two.starts, two.ends, differ)
    return differ


def backwards(block: Block) -> list[Block]:
    """Give a block with its edges reversed."""
    if isinstance(block, NodeBlock):
        return [block]
    if isinstance(block, NameBlock):
        return [NameBlock(block.dst, block.src, block.weight)]
    return [EdgeBlock(block.dst, block.src, block.weight)]


DIRECTIONS: dict[str, Callable[[Block], list[Block]]] = {"undirected": both_ways, "reverse": backwards}
"""What options make of the edges of a block: they count both ways, or backwards."""


class Redirected(BaseSource):
    """A source whose edges count in both directions, or in the other one; it is read through this one only.

    `option` is a key of DIRECTIONS.
    """

    def __init__(self, source: Source, option: str) -> None:
        super().__init__(source.name, source.name)
        self._source, self._option = source, option
        self.direction = option
        self._counts: list[tuple[int, int]] = []  # edges of each block, and how many came besides
        self._follow()

    def _follow(self) -> None:
        for name in ("size", "position", "nodes", "labels", "notices", "closed", "weighted"):
            setattr(self, name, getattr(self._source, name))
        self.unused_columns = getattr(self._source, "unused_columns", [])

    def identity(self) -> dict[str, Any] | None:
        """See `oocpr.sources.block.ResumableSource`."""
        known = self._source.identity() if isinstance(self._source, ResumableSource) else None
        return None if known is None else {self._option: known}

    def parts(self, count: int) -> list[BaseSource]:
        """See BaseSource."""
        parts = self._source.parts(count) if isinstance(self._source, BaseSource) else []
        made: list[BaseSource] = [Redirected(part, self._option) for part in parts]
        for part in made:
            part.is_part = True
        return made

    def locate(self, edge: int) -> str:
        """Say where edge number `edge`, from 0, stands in the source; of one that came besides, one near."""
        read = 0
        for forward, backward in self._counts:
            if edge < forward + backward:
                return self._source.locate(read + edge % max(forward, 1))
            edge -= forward + backward
            read += forward
        return self._source.locate(read)

    def _read(self, max_edges: int) -> Iterator[Block]:
        if isinstance(self._source, BaseSource):
            self._source.reserve = self.reserve
        for block in self._source.blocks(max_edges):
            made = DIRECTIONS[self._option](block)
            self._follow()
            edges = [one.src.size for one in made if not isinstance(one, NodeBlock)]
            if edges:
                self._counts.append((edges[0], sum(edges[1:])))
            yield from made
        self._follow()
