"""Edges as two names a line, apart by a tab; lines that are blank or begin with ``#`` are skipped."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

import numpy as np

from oocpr.errors import InputError
from oocpr.sources.base import FileSource
from oocpr.sources.block import EdgeBlock
from oocpr.sources.compressed import ByteStream
from oocpr.sources.lines import LineReader

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

_BARE_PERCENT = re.compile("%(?![0-9A-Fa-f]{2})")


class NamesFile(FileSource):
    r"""A graph whose nodes are named, not numbered.

    The labels file, where there is one, gives the nodes in their order, and every name must be in it; without
    one nodes are numbered as their names first occur. Names that are percent-encoded throughout, as addresses
    of pages are, become labels in their decoded form.

    Parameters
    ----------
    path
        The file, packed or not.
    labels
        A file with one name a line (blank and ``#`` lines are skipped), or None.

    Raises
    ------
    InputError
        While blocks are read: a line without two names, a name that the labels file lacks or has twice.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "links.tsv")
    ...     _ = path.write_text("# who links to whom\nB%C3%A9la\tAda\n")
    ...     source = NamesFile(path)
    ...     [(block.src.tolist(), block.dst.tolist()) for block in source.blocks(10)], source.labels
    ([([0], [1])], ['Béla', 'Ada'])
    """

    def _read(self, max_edges: int) -> Iterator[EdgeBlock]:
        self._read_labels(comments=True)
        known = {name: node for node, name in enumerate(self.labels or ())}
        if len(known) != len(self.labels or ()):
            raise InputError(
                f"{self._labels_path} holds {len(self.labels or ()) - len(known):,} names twice.",
                "Give each node a name of its own.",
            )
        with ByteStream(self.path) as stream:
            lines = LineReader(stream)
            for text in lines.texts():
                ends = self._number(lines, text, known)
                self.position = stream.position
                for start in range(0, len(ends), 2 * max_edges):
                    piece = ends[start : start + 2 * max_edges].reshape(-1, 2)
                    yield EdgeBlock(np.ascontiguousarray(piece[:, 0]), np.ascontiguousarray(piece[:, 1]))
        self.nodes = len(known)
        self.labels = self._decoded(list(known))

    def _number(self, lines: LineReader, text: str, known: dict[str, int]) -> NDArray[np.uint32]:
        """Numbers of the names of a block, from and to in turn; adds new names unless the nodes are given."""
        closed = self.nodes is not None
        ends: list[int] = []
        for offset, line in enumerate(text.split("\n")[:-1]):
            if not line.strip() or line.startswith("#"):
                continue
            names = line.rstrip("\r").split("\t")
            if len(names) != 2 or not all(names):
                lines.line += offset
                raise lines.error(
                    f"{line[:60]!r} is not two names.", "Give two names a line, apart by one tab."
                )
            for name in names:
                node = known.get(name)
                if node is None:
                    if closed:
                        lines.line += offset
                        raise lines.error(
                            f"{name[:60]!r} is not in {self._labels_path}.",
                            "Add the name there, or leave the labels out.",
                        )
                    node = known[name] = len(known)
                ends.append(node)
        return np.array(ends, np.uint32)

    def _decoded(self, names: Sequence[str]) -> Sequence[str]:
        """Names without percent-encoding, if all are well encoded and stay different."""
        if not any("%" in name for name in names) or any(_BARE_PERCENT.search(name) for name in names):
            return names
        try:
            plain = [unquote(name, errors="strict") for name in names]
        except UnicodeDecodeError:
            return names
        if len(set(plain)) != len(names):
            return names
        self.notices.append("The names are percent-encoded; they are shown decoded.")
        return plain
