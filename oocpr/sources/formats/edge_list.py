"""Text with an edge per line: SNAP's, pairs of names, gr0 and hollins files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oocpr.errors import InputError
from oocpr.sources.base import FileSource
from oocpr.sources.block import MAX_NODES, NameBlock, NodeBlock, Strings, column_number
from oocpr.sources.files import ByteStream
from oocpr.sources.lines import BLOCK_BYTES, EdgeLines, LineReader, whole_numbers
from oocpr.sources.names import listed_names, scan_names
from oocpr.sources.registry import are_words, is_comment, names_ends

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Unpack

    from oocpr.sources.base import SourceOptions
    from oocpr.sources.block import Block, EdgeBlock
    from oocpr.sources.files import AnyPath


class ColumnsFile(FileSource):
    """Lines of columns, one of which may have the weights, below a header or not."""

    def __init__(self, path: AnyPath | Sequence[AnyPath], **options: Unpack[SourceOptions]) -> None:
        super().__init__(path, **options)
        weight = options.get("weight")
        self._weight = 0 if weight is None else column_number(weight)
        self._header = options.get("header")
        self._told = False  # whether a notice says that there is a header

    def _edge_lines(self, block_bytes: int = BLOCK_BYTES) -> Iterator[tuple[ByteStream, LineReader]]:
        """Open the files one after the other, behind their headers."""
        for stream in self._streams():
            lines = LineReader(stream, block_bytes)
            header = self._pass_header(lines)
            if header is not None and not self._told:
                self._told = True
                self.notices.append(
                    f"{header!r} in {stream.title} is taken as a header; with header=False it is an edge."
                )
            yield stream, lines

    def _pass_header(self, lines: LineReader) -> str | None:
        """Pass over the line that names the columns, if there is one, and over comments before it."""
        if self._header is False:
            return None
        while (line := lines.peek("replace")) is not None:
            if line.strip(" \t\r") and not self._is_comment(line):
                break
            lines.drop()
        if line is None or not (self._header or self._is_header(line)):
            return None
        lines.drop()
        return line.strip()

    def _is_comment(self, line: str) -> bool:
        raise NotImplementedError

    def _is_header(self, line: str) -> bool:
        raise NotImplementedError


class TextFile(ColumnsFile):
    """SNAP text: edges as lines ``from to``; ``#`` and ``%`` open comments, ids have 64 bits and a sign.

    Without labels the ids that occur are the nodes. With labels, label i belongs to node i, and a node that
    no line names is a node still. Two words in the first line are a header, unless `header` says otherwise.
    """

    def _read(self, max_edges: int) -> Iterator[EdgeBlock]:
        self._read_labels()
        nodes, weight = self.nodes, self._weight
        form = (
            EdgeLines(signed=True, weight=weight) if nodes is None else EdgeLines(nodes=nodes, weight=weight)
        )
        for stream, lines in self._edge_lines():
            for block in lines.edges(max_edges, form):
                self._advance(stream)
                yield block

    def _is_comment(self, line: str) -> bool:
        return line.lstrip(" \t").startswith(("#", "%"))

    def _is_header(self, line: str) -> bool:
        fields = line.split()
        return len(fields) > 1 and are_words(fields[:2])


_BYTES_PER_EDGE = 32
_LEAST_BYTES, _MOST_BYTES = 1 << 20, 1 << 25


class NamesFile(ColumnsFile):
    """Edges as two names a line, tab-separated; blank lines and comments, ``# ...``, are skipped.

    Blanks around a name do not count, and quotes are part of it. The labels file, if there is one, gives the
    nodes in their order, and every name must be in it; without one nodes are numbered as their names first
    occur. Words such as `source` and `target` in the first line are a header, unless `header` says otherwise.
    """

    def _read(self, max_edges: int) -> Iterator[Block]:
        if self._labels_path is not None:
            self.closed = str(self._labels_path)
            yield from map(NodeBlock, listed_names(self._labels_path, 2 * max_edges))
        size = min(max(_BYTES_PER_EDGE * max_edges, _LEAST_BYTES), _MOST_BYTES)
        for stream, lines in self._edge_lines(size):
            for names, weights in scan_names(
                lines, 2 * max_edges, pairs=True, skip=True, weight=self._weight
            ):
                self._advance(stream)
                src, dst = (Strings(names.text, names.starts[k::2], names.ends[k::2]) for k in (0, 1))
                yield NameBlock(src, dst, weights)

    def locate(self, edge: int) -> str:
        """Say on which line the edge stands that came as number `edge`, counted from 0."""
        if not all(file.reopenable for file in self.files):
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


class Gr0File(FileSource):
    """gr0 files: lines ``n <id> <label>`` and behind them lines ``e <from> <to>``, ids from 0 on."""

    def _read(self, max_edges: int) -> Iterator[EdgeBlock]:
        labels: list[str] = []
        with ByteStream(self.files[0]) as stream:
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
            for block in lines.edges(max_edges, EdgeLines(nodes=len(labels), lead="e")):
                self.position = stream.position
                yield block


class HollinsFile(FileSource):
    """Files like hollins.dat: ``nodes edges``, ``id label`` per node, ``from to`` per edge; ids from 1."""

    def _read(self, max_edges: int) -> Iterator[EdgeBlock]:
        with ByteStream(self.files[0]) as stream:
            lines = LineReader(stream)
            self.nodes, stated = self._sizes(lines)
            self.labels = self._nodes(lines, self.nodes)
            for block in lines.edges(max_edges, EdgeLines(first=1, nodes=self.nodes)):
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
