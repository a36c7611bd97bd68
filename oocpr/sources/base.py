"""What all sources have in common."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, cast

import numpy as np

from oocpr.errors import InputError, UsageError
from oocpr.sources.block import EdgeBlock, NameBlock, NodeBlock, ResumableSource, Strings
from oocpr.sources.files import ByteStream, input_file, stamp, uncompressed_name

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Unpack

    from numpy.typing import NDArray

    from oocpr.sources.block import Block, Labels, Source
    from oocpr.sources.files import AnyPath, InputFile

    AnyBlock = TypeVar("AnyBlock", EdgeBlock, NameBlock, Block)
    Reserve = Callable[[int, str], None]


class SourceOptions(TypedDict, total=False):
    """How a source is to be read.

    Parameters
    ----------
    format
        A key of `oocpr.sources.FORMATS`, for files; None to find it by the file's name and first bytes.
    labels
        A file with the name of node i in line i.
    undirected
        Whether every edge counts in both directions.
    source_column, target_column
        Columns that edges run from and to, if columns have names; None for the usual names.
    weight
        Where the weights of edges are: the name of a column (Parquet, CSV, tables) or of an attribute of
        edges (NetworkX), the number of a column counted from 1 (text), or ``"values"`` (matrices); None for
        none.
    header
        Whether the first line of a text, names or CSV file names its columns; None to tell by the lines.
    """

    format: str | None
    labels: str | os.PathLike[str] | None
    undirected: bool
    source_column: str | None
    target_column: str | None
    weight: str | int | None
    header: bool | None


def check_names(options: Mapping[str, Any], kind: type) -> None:
    """Raise UsageError for keyword options that are no members of `kind`, a typed dictionary."""
    known = kind.__annotations__
    for name in options:
        if name not in known:
            raise UsageError(f"There is no option {name!r}.", f"Options of a source are {', '.join(known)}.")


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those options that ask for something.

    Examples
    --------
    >>> given({"weight": 3, "labels": None, "undirected": False, "header": False})
    {'weight': 3, 'header': False}
    """
    return {
        name: value for name, value in options.items() if value is not None and (name, value) != _DIRECTED
    }


_DIRECTED = ("undirected", False)


_LABELS = 1 << 14
"""Labels between two looks at the memory that is left."""


class BaseSource:
    """A graph from somewhere, which messages call `title`; each format gives its own ``_read``.

    Attributes
    ----------
    name, size, position, nodes, labels, notices, closed, weighted
        See `oocpr.sources.block.Source`.
    unused_columns
        Names of columns of numbers, or of attributes of edges, that are not read and may be weights; settled
        once ``blocks`` is exhausted.
    reserve
        Called before more memory is taken than the blocks account for, with the bytes and what needs them,
        the subject of a sentence; raises DoesNotFitError if there are not so many. Whoever reads the
        blocks and has a budget sets it; without one nothing is refused.
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
        self.reserve: Reserve = _unlimited
        self._options = options
        self._labels_path = options.get("labels")

    def identity(self) -> dict[str, Any] | None:
        """Tell what the blocks depend on; None if nobody can tell."""
        return None

    def locate(self, edge: int) -> str:
        """Say where the edge that came as number `edge`, counted from 0, stands."""
        return f"{self.title}, edge {edge:,}"

    def blocks(self, max_edges: int) -> Iterator[Block]:
        """Yield the edges in blocks of at most `max_edges`.

        Raises InputError if the source cannot be read, or holds no graph; it names the file and the line or
        entry.
        """
        empty = True
        for block in self._read(max_edges):
            empty = False
            yield block
        if empty and not self.nodes:
            raise InputError(f"{self.title} holds no edges.", "Check that it is what you mean.")
        self.position = self.size or self.position

    def _read(self, max_edges: int) -> Iterator[Block]:
        raise NotImplementedError

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


def _unlimited(needed: int, what: str) -> None:
    """Refuse nothing."""


_HOW = ("source_column", "target_column", "weight", "header")
"""Options that say how the files of a format are read."""


class FileSource(BaseSource):
    """A graph in one file, or in several that are read as one: paths, URLs, or ``-`` for standard input."""

    def __init__(self, path: AnyPath | Sequence[AnyPath], **options: Unpack[SourceOptions]) -> None:
        several = isinstance(path, list | tuple)
        files = [input_file(one) for one in cast("Sequence[AnyPath]", path if several else [path])]
        more = f" and {len(files) - 1:,} more" if len(files) > 1 else ""
        super().__init__(f"{Path(uncompressed_name(files[0])).stem}{more}", f"{files[0]}{more}", **options)
        self._set_files(files)
        self._before = 0

    def _set_files(self, files: Sequence[InputFile]) -> None:
        """Take where the files are."""
        self.files = files
        sizes = [file.size for file in files]
        self.size = None if None in sizes else sum(size for size in sizes if size is not None)

    def identity(self) -> dict[str, Any] | None:
        """Tell the files, when they were changed, and how they are read; None for standard input."""
        labels = [] if self._labels_path is None else [input_file(self._labels_path)]
        files, named = ([stamp(file) for file in files] for files in (self._all_files(), labels))
        if None in files or None in named:
            return None
        how = {name: str(value) for name, value in given(self._options).items() if name in _HOW}
        return {"reader": type(self).__name__, "name": self.name, "files": files, "labels": named, "how": how}

    def _all_files(self) -> Sequence[InputFile]:
        """All files that decide what the blocks are, labels aside."""
        return self.files

    def _streams(self) -> Iterator[ByteStream]:
        """Open the files one after the other."""
        self._before = 0
        for file in self.files:
            with ByteStream(file) as stream:
                yield stream
                self._before += stream.position

    def _reserve_labels(self, count: int) -> None:
        """Refuse labels that are kept in memory once they do not fit; called with each."""
        if count % _LABELS == 0:
            self.reserve(0, f"{self.title} with more than {count:,} labels")

    def _advance(self, stream: ByteStream) -> None:
        """Take over how far the stream is."""
        self.position = self._before + stream.position


def both_ways(blocks: Iterable[AnyBlock]) -> Iterator[AnyBlock]:
    """Follow each block by its edges reversed; self-loops, which are their own reverse, are not repeated."""
    for block in blocks:
        yield block
        if isinstance(block, NodeBlock):
            continue
        reverse = np.flatnonzero(_differ(block))
        if not reverse.size:
            continue
        weight = None if block.weight is None else block.weight[reverse]
        if isinstance(block, NameBlock):
            yield NameBlock(_selected(block.dst, reverse), _selected(block.src, reverse), weight)
        else:
            yield EdgeBlock(block.dst[reverse], block.src[reverse], weight)


def _differ(block: EdgeBlock | NameBlock) -> NDArray[np.bool_]:
    """Tell edges from self-loops; bool, shape (edges,)."""
    if isinstance(block, EdgeBlock):
        return np.not_equal(block.src, block.dst)
    from oocpr.sources.names import compare_names

    one, two = block.src, block.dst
    differ = np.empty(one.starts.size, np.bool_)
    compare_names(one.text, one.starts, one.ends, two.text, two.starts, two.ends, differ)
    return differ


def _selected(names: Strings, which: NDArray[np.intp]) -> Strings:
    return Strings(names.text, names.starts[which], names.ends[which])


class Undirected(BaseSource):
    """A source whose edges count in both directions; it is read through this one only."""

    def __init__(self, source: Source) -> None:
        super().__init__(source.name, source.name)
        self._source = source
        self._counts: list[tuple[int, int]] = []  # edges of each block, and how many of them were reversed
        self._follow()

    def _follow(self) -> None:
        for name in ("size", "position", "nodes", "labels", "notices", "closed", "weighted"):
            setattr(self, name, getattr(self._source, name))
        self.unused_columns = getattr(self._source, "unused_columns", [])

    def identity(self) -> dict[str, Any] | None:
        """Tell what the source depends on; None if nobody can tell."""
        known = self._source.identity() if isinstance(self._source, ResumableSource) else None
        return None if known is None else {"undirected": known}

    def locate(self, edge: int) -> str:
        """Say where edge number `edge`, from 0, stands in the source; of a reversed one, one near it."""
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
            both = list(both_ways([block]))
            self._follow()
            if not isinstance(block, NodeBlock):
                forward, *backward = map(_edges, both)
                self._counts.append((forward, sum(backward)))
            yield from both
        self._follow()


def _edges(block: Block) -> int:
    return block.src.starts.size if isinstance(block, NameBlock) else len(getattr(block, "src", ()))
