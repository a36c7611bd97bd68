"""SNAP text and its relatives: one edge a line, as two node ids apart by tabs or spaces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oocpr.sources.formats.weighted import ColumnsFile
from oocpr.sources.text.dialect import are_words
from oocpr.sources.text.line_reader import EdgeLines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oocpr.sources.block import EdgeBlock


class TextFile(ColumnsFile):
    r"""Edges as lines ``from to``; ``#`` and ``%`` open comments, ids are any of 64 bits with a sign.

    Without labels the ids that occur are the nodes. With labels, label i belongs to node i, and a node that
    no line names is a node still.

    Parameters
    ----------
    path
        The file, packed or not, or several.
    labels
        A file with one label a line, or None.
    weight
        Number of the column with weights, counted from 1, other columns being skipped; None where there are
        none, and no more than two columns.
    header
        Whether the first line names the columns; None to tell by the line: two words do.

    Raises
    ------
    InputError
        While blocks are read: a line without two node ids, a third column, an id or a weight that cannot be.
    UsageError
        A column that can have no weights.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "edges.txt")
    ...     _ = path.write_text("# from to\n3 7\n7\t3\n")
    ...     [(block.src.tolist(), block.dst.tolist()) for block in TextFile(path).blocks(10)]
    [([3, 7], [7, 3])]
    """

    def _read(self, max_edges: int) -> Iterator[EdgeBlock]:
        self._read_labels()
        nodes, weight = self.nodes, self._weight
        form = (
            EdgeLines(signed=True, weight=weight) if nodes is None else EdgeLines(nodes=nodes, weight=weight)
        )
        for number, stream, lines in self._edge_lines():
            for block in lines.edges(max_edges, form):
                self._advance(stream)
                self.mark = {"file": number, "byte": lines.offset, "line": lines.line, "told": self._told}
                yield block

    def _is_comment(self, line: str) -> bool:
        return line.lstrip(" \t").startswith(("#", "%"))

    def _is_header(self, line: str) -> bool:
        fields = line.split()
        return len(fields) > 1 and are_words(fields[:2])
