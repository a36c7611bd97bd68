"""Files like hollins.dat: ``nodes edges``, then ``id label`` a node, then ``from to`` an edge; ids from 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oocpr.errors import InputError
from oocpr.sources.base import FileSource
from oocpr.sources.block import MAX_NODES
from oocpr.sources.io.compression import ByteStream
from oocpr.sources.text.line_reader import EdgeLines, LineReader, whole_numbers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oocpr.sources.block import EdgeBlock


class HollinsFile(FileSource):
    r"""A graph that states its sizes and comes with labels, mostly addresses of pages.

    Parameters
    ----------
    path
        The file, packed or not.

    Raises
    ------
    InputError
        While blocks are read: a line of another shape, node ids out of order, another number of edges than
        stated.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "pages.dat")
    ...     _ = path.write_text("2 1\n1 a.org\n2 b.org\n2 1\n")
    ...     source = HollinsFile(path)
    ...     [(block.src.tolist(), block.dst.tolist()) for block in source.blocks(10)], source.labels
    ([([1], [0])], ['a.org', 'b.org'])
    """

    def _read(self, max_edges: int) -> Iterator[EdgeBlock]:
        with ByteStream(self.places[0]) as stream:
            lines = LineReader(stream)
            self.nodes, stated = self._sizes(lines)
            self.labels = self._nodes(lines, self.nodes)
            for block in self._unread(lines.edges(max_edges, EdgeLines(first=1, nodes=self.nodes))):
                self.position = stream.position
                yield block
        if lines.entries != stated:
            raise InputError(
                f"{self.title} states {stated:,} edges and holds {lines.entries:,}.",
                "Fetch the file again, or correct its first line.",
            )

    @staticmethod
    def _sizes(lines: LineReader) -> tuple[int, int]:
        sizes = whole_numbers(lines.peek() or "", 2)
        if not sizes:
            raise lines.error(
                "the numbers of nodes and edges are missing.",
                "Give them as two whole numbers in the first line.",
            )
        nodes, edges = sizes
        if nodes > MAX_NODES:
            raise lines.error(f"{nodes:,} nodes are too many.", f"A graph has at most {MAX_NODES:,} nodes.")
        lines.drop()
        return nodes, edges

    def _nodes(self, lines: LineReader, nodes: int) -> list[str]:
        labels = []
        for node in range(1, nodes + 1):
            words = (lines.peek() or "").split(maxsplit=1)
            if len(words) != 2 or words[0] != str(node):
                raise lines.error(
                    f"not the line of node {node:,} of {nodes:,}.",
                    f"Write it as: {node} LABEL; nodes come in the order of their ids.",
                )
            labels.append(words[1].rstrip())
            self._reserve_labels(node)
            lines.drop()
        return labels
