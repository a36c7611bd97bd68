"""Edges as two names a line, apart by a tab; blank lines and comments, which begin with ``# ``, are skipped.

Blanks around a name do not count, and quotes are part of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oocpr.sources.block import NameBlock, NodeBlock, Strings
from oocpr.sources.formats.weighted import ColumnsFile
from oocpr.sources.text.dialect import is_comment, names_ends
from oocpr.sources.text.line_reader import LineReader
from oocpr.sources.text.name_scanner import listed_names, names_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oocpr.sources.block import Block

_BYTES_PER_EDGE = 32
_LEAST_BYTES, _MOST_BYTES = 1 << 20, 1 << 25


class NamesFile(ColumnsFile):
    r"""A graph whose nodes are named, not numbered.

    The labels file, where there is one, gives the nodes in their order, and every name must be in it; without
    one nodes are numbered as their names first occur.

    Parameters
    ----------
    path
        The file, packed or not, or several.
    labels
        A file with one name a line (blank lines and comments are skipped), or None.
    weight
        Number of the column with weights, counted from 1, other columns being skipped; None where there are
        none, and no more than two columns.
    header
        Whether the first line names the columns; None to tell by the line: words such as `source` and
        `target` do.

    Raises
    ------
    InputError
        While blocks are read: a line without two names, or with a weight that cannot be.
    UsageError
        A column that can have no weights.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "links.tsv")
    ...     _ = path.write_text("# who links to whom\nBéla\tAda\n")
    ...     [block] = NamesFile(path).blocks(10)
    ...     block.src.text.tobytes()[block.src.starts[0] : block.src.ends[0]].decode()
    'Béla'
    """

    def _read(self, max_edges: int) -> Iterator[Block]:
        begun = self._begun
        if self._labels_path is not None:
            self.closed = str(self._labels_path)
            for names in () if begun is not None else listed_names(self._labels_path, 2 * max_edges):
                yield NodeBlock(names)
        size = min(max(_BYTES_PER_EDGE * max_edges, _LEAST_BYTES), _MOST_BYTES)
        passed = 0 if begun is None else int(begun["links"])
        for number, stream, lines in self._edge_lines(size):
            # Names come out of larger pieces of text, and a mark says how many of a piece are done.
            piece, done = lines.offset, 0
            found = names_of(lines, 2 * max_edges, pairs=True, skip=True, weight=self._weight)
            for names, weights in found:
                if lines.offset > piece:
                    passed = max(0, passed - done)
                    piece, done = lines.offset, 0
                fresh = 2 * max(0, passed - done)
                done += names.starts.size // 2
                if done <= passed:
                    continue
                passed = 0
                self._advance(stream)
                rest = Strings(names.text, names.starts[fresh:], names.ends[fresh:])
                src, dst = (Strings(rest.text, rest.starts[k::2], rest.ends[k::2]) for k in (0, 1))
                place = {"file": number, "byte": piece, "line": lines.line}
                self.mark = {**place, "links": done, "told": self._told}
                yield NameBlock(src, dst, None if weights is None else weights[fresh // 2 :])
            passed = 0

    def place(self, edge: int) -> str:
        """Say on which line the edge stands that came as number `edge`, counted from 0."""
        if not all(place.again for place in self.places):
            return f"{self.title}, link {edge + 1:,}"
        for stream in self._streams():
            lines = LineReader(stream)
            self._pass_header(lines)
            while (line := lines.peek()) is not None:
                if line.strip(" \t\r") and not is_comment(line):
                    if edge == 0:
                        return f"{stream.title}, line {lines.line}"
                    edge -= 1
                lines.drop()
        return self.title

    def _is_comment(self, line: str) -> bool:
        return is_comment(line)

    def _is_header(self, line: str) -> bool:
        return names_ends(line.split("\t")[:2])
