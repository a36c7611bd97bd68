"""What all sources but the generator have in common."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from oocpr.errors import InputError
from oocpr.sources.compressed import unpacked_name

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    from oocpr.sources.block import EdgeBlock


class BaseSource:
    """A graph from somewhere; each format gives its own ``_read``.

    Parameters
    ----------
    name
        What people know the graph by.
    title
        What error messages call it: a path, or words such as "the matrix".
    labels
        A file with the label of each node, or None.

    Attributes
    ----------
    name, size, position, nodes, labels, notices
        See `oocpr.sources.block.Source`.
    """

    def __init__(self, name: str, title: str, labels: str | os.PathLike[str] | None = None) -> None:
        self.name = name
        self.title = title
        self.size: int | None = None
        self.position = 0
        self.nodes: int | None = None
        self.labels: Sequence[str] | None = None
        self.notices: list[str] = []
        self._labels_path = labels

    def blocks(self, max_edges: int) -> Iterator[EdgeBlock]:
        """Yield the edges in blocks of at most `max_edges`.

        Raises
        ------
        InputError
            The source cannot be read, or holds no graph; names the file and the line or entry.
        """
        empty = True
        for block in self._read(max_edges):
            empty = False
            yield block
        if empty and not self.nodes:
            raise InputError(f"{self.title} holds no edges.", "Check that it is what you mean.")
        self.position = self.size or self.position

    def _read(self, max_edges: int) -> Iterator[EdgeBlock]:
        raise NotImplementedError

    def _read_labels(self, *, comments: bool = False) -> None:
        """Take the labels from their file, and the number of nodes with them."""
        if self._labels_path is None:
            return
        from oocpr.sources.labels import read_labels

        self.labels = read_labels(self._labels_path, comments=comments)
        if self.nodes is not None and self.nodes != len(self.labels):
            raise InputError(
                f"{self._labels_path} labels {len(self.labels):,} nodes, {self.title} has {self.nodes:,}.",
                "Give the labels file that belongs to this graph.",
            )
        self.nodes = len(self.labels)
        self.notices.append(f"Labels of {self.nodes:,} nodes come from {self._labels_path}.")


class FileSource(BaseSource):
    """A graph in one file.

    Parameters
    ----------
    path
        The file, packed or not.
    labels
        A file with the label of each node, or None.
    """

    def __init__(self, path: str | os.PathLike[str], labels: str | os.PathLike[str] | None = None) -> None:
        super().__init__(Path(unpacked_name(path)).stem, str(path), labels)
        self.path = Path(path)
        self.size = self.path.stat().st_size if self.path.is_file() else None
