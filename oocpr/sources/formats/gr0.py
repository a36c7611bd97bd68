"""gr0 files: lines ``n <id> <label>`` and behind them lines ``e <from> <to>``, ids from 0 without gaps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oocpr.sources.base import FileSource
from oocpr.sources.io.compression import ByteStream
from oocpr.sources.text.line_reader import EdgeLines, LineReader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oocpr.sources.block import EdgeBlock


class Gr0File(FileSource):
    r"""A graph whose nodes come with labels, mostly addresses of pages.

    Parameters
    ----------
    path
        The file, packed or not.

    Raises
    ------
    InputError
        While blocks are read: a line of another shape, node ids out of order, an edge of an unknown node.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "pages.gr0")
    ...     _ = path.write_text("n 0 a.org\nn 1 b.org\ne 1 0\n")
    ...     source = Gr0File(path)
    ...     [(block.src.tolist(), block.dst.tolist()) for block in source.blocks(10)], source.labels
    ([([1], [0])], ['a.org', 'b.org'])
    """

    def _read(self, max_edges: int) -> Iterator[EdgeBlock]:
        labels: list[str] = []
        with ByteStream(self.places[0]) as stream:
            lines = LineReader(stream)
            while (line := lines.peek()) is not None and not line.startswith("e"):
                words = line.split(maxsplit=2)
                if words and not line.startswith("#"):
                    if len(words) != 3 or words[:2] != ["n", str(len(labels))]:
                        raise lines.error(
                            f"{line[:60]!r} is not the line of node {len(labels)}.",
                            f"Write it as: n {len(labels)} LABEL; nodes come first, ordered by id.",
                        )
                    labels.append(words[2].rstrip())
                    self._reserve_labels(len(labels))
                lines.drop()
            self.nodes, self.labels = len(labels), labels
            for block in self._unread(lines.edges(max_edges, EdgeLines(nodes=len(labels), lead="e"))):
                self.position = stream.position
                yield block
