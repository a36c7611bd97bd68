"""Text with an edge per line: SNAP's, pairs of names, gr0 and hollins files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Unpack, cast

from oocpr.errors import InputError, UsageError
from oocpr.sources.base import FileSource
from oocpr.sources.block import MAX_NODES, NameBlock
from oocpr.sources.dialect import are_words, is_comment, usual_ends
from oocpr.sources.files import ByteStream, FileLines, LocalFile, is_compressed
from oocpr.sources.lines import BLOCK_BYTES, EdgeLines, LineReader, whole_numbers
from oocpr.sources.names import scan_names
from oocpr.system import shares

if TYPE_CHECKING:
    from oocpr.sources.base import BaseSource, SourceOptions
    from oocpr.sources.block import Block, EdgeBlock
    from oocpr.sources.files import InputFile


def _column_number(weight: str | int) -> int:
    """Take what a caller calls the column of weights as its number, from 1."""
    text = str(weight)
    if not text.isdecimal() or int(text) < 3:
        raise UsageError(
            f"{text!r} is no column of weights in lines of text, whose first two have the ends.",
            "Give the number of the column, counted from 1: 3 as a rule.",
        )
    return int(text)


class TextFile(FileSource):
    """SNAP text: lines ``from to`` of ids, any of 64 bits unless a labels file counts the nodes."""

    def __init__(self, files: Sequence[InputFile], **options: Unpack[SourceOptions]) -> None:
        super().__init__(files, **options)
        self._all_files = files  # also those that other parts read
        weight = options.get("weight")
        self._weight = 0 if weight is None else _column_number(weight)

    def parts(self, count: int) -> list[BaseSource]:
        """See BaseSource."""
        made = super().parts(count)
        for part in made:
            cast("TextFile", part)._all_files = self._all_files
        return made

    @cached_property
    def _header_of_all(self) -> str:
        """What the first line of the first file that has one says, if it is a header; else empty."""
        for file in self._all_files:
            if not file.reopenable:
                break
            with ByteStream(file) as stream:
                lines = LineReader(stream)
                line = self._next_line(lines)
                if line is not None:
                    return line.strip() if self._options.get("header") or self._is_header(line) else ""
        return ""

    def _edge_lines(self, block_bytes: int = BLOCK_BYTES) -> Iterator[tuple[ByteStream, LineReader]]:
        """Open the files one after the other, behind their headers, of which a notice names the first."""
        noticed = False
        for stream in self._streams():
            lines = LineReader(stream, block_bytes)
            header = self._pass_header(lines)
            if header is not None and not noticed:
                noticed = True
                self.notices.append(
                    f"{header!r} in {stream.title} is taken as a header; with header=False it is an edge."
                )
            yield stream, lines

    def _divided(self, file: InputFile, max_bytes: int) -> list[InputFile]:
        size = file.size or 0
        if not isinstance(file, LocalFile) or is_compressed(file):
            return [file]
        return [FileLines(file.path, *cut) for cut in shares(size, max(1, -(-size // max_bytes)))]

    def _next_line(self, lines: LineReader) -> str | None:
        """Look at the next line that is neither blank nor a comment."""
        while (line := lines.peek("replace")) is not None:
            if line.strip(" \t\r") and not self._is_comment(line):
                break
            self._check_order(lines, line)
            lines.drop()
        return line

    def _check_order(self, lines: LineReader, line: str) -> None:
        """Refuse a line that says that targets come first."""
        words = line.strip("#% \t\r").split()
        if (
            self._options.get("header") is not False
            and len(words) == 2
            and usual_ends(words) == (words[1], words[0])
        ):
            raise lines.error(
                f"{line[:60]!r} names the targets of edges first.",
                "Give source_column=2 and target_column=1, or header=False if edges run from the first.",
            )

    def _pass_header(self, lines: LineReader) -> str | None:
        """Pass over the line that names the columns, if there is one."""
        asked = self._options.get("header") if lines.begins else False
        line = None if asked is False else self._next_line(lines)
        if line is None:
            return None
        if asked and len(self._all_files) > 1 and all(file.reopenable for file in self._all_files):
            # Of further files only if it is the same.
            asked = line.strip() == self._header_of_all
        if not (asked or self._is_header(line)):
            return None
        self._check_order(lines, line)
        lines.drop()
        return line.strip()

    def _read(self, max_edges: int) -> Iterator[Block]:
        self._read_labels()
        signed = self.nodes is None
        labels = "" if self._labels_path is None else str(self._labels_path)
        form = EdgeLines(nodes=self.nodes or MAX_NODES, signed=signed, weight=self._weight, labels=labels)
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
_MIN_BYTES, _MAX_BYTES = 1 << 20, 1 << 25


class NamesFile(TextFile):
    """Two tab-separated names per line; a labels file, if there is one, has all names."""

    def _read(self, max_edges: int) -> Iterator[Block]:
        yield from self._listed_nodes(max_edges)
        size = min(max(_BYTES_PER_EDGE * max_edges, _MIN_BYTES), _MAX_BYTES)
        for stream, lines in self._edge_lines(size):
            for names, weights in scan_names(
                lines, 2 * max_edges, pairs=True, skip=True, weight=self._weight
            ):
                self._advance(stream)
                yield NameBlock(names.take(slice(0, None, 2)), names.take(slice(1, None, 2)), weights)

    def locate(self, edge: int) -> str:
        """See `BaseSource`; it reads the files again."""
        if not all(file.reopenable for file in self.files):
            return f"{self.title}, edge {edge + 1:,}"
        for stream in self._streams():
            lines = LineReader(stream)
            self._pass_header(lines)
            while self._next_line(lines) is not None:
                if edge == 0:
                    return f"{stream.title}, line {lines.line}"
                edge -= 1
                lines.drop()
        return self.title

    def _is_comment(self, line: str) -> bool:
        return is_comment(line)

    def _is_header(self, line: str) -> bool:
        return usual_ends(line.split("\t")[:2]) is not None


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
