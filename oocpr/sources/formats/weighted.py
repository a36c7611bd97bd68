"""Files whose links may have weights: in a column, or as the values of a matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oocpr.sources.base import FileSource
from oocpr.sources.text.line_reader import BLOCK_BYTES
from oocpr.sources.weights import VALUES, check_values, column_number

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oocpr.sources.io.compression import ByteStream
    from oocpr.sources.io.locations import AnyPath
    from oocpr.sources.text.line_reader import LineReader


class ColumnsFile(FileSource):
    """Lines of columns.

    Parameters
    ----------
    path, labels
        As for `FileSource`.
    weight
        Number of the column of weights, counted from 1; None for links without.
    header
        Whether the first line of each file, comments aside, names the columns; None to tell by the line.

    Raises
    ------
    UsageError
        A column that can have no weights.
    """

    def __init__(
        self,
        path: AnyPath | Sequence[AnyPath],
        labels: AnyPath | None = None,
        *,
        weight: str | int | None = None,
        header: bool | None = None,
    ) -> None:
        super().__init__(path, labels)
        self._weight = 0 if weight is None else column_number(weight)
        self._header = header
        self.weighted = weight is not None

    def identity(self) -> dict[str, Any] | None:
        """Tell the files, when they were changed, the column of weights, and whether there is a header."""
        known = self._with_weight(super().identity(), self._weight or None)
        return known if known is None or self._header is None else {**known, "header": self._header}

    def _edge_lines(self, block_bytes: int = BLOCK_BYTES) -> Iterator[tuple[int, ByteStream, LineReader]]:
        """Open the files from the mark on, one after the other, behind their headers; with their numbers."""
        begun = self._begun or {"file": 0, "byte": 0, "told": []}
        self._tell(begun["told"])
        for number, stream, lines in self._lines(block_bytes):
            header = self._pass_header(lines) if number > begun["file"] or not begun["byte"] else None
            if header is not None and not self._told:
                self._tell(
                    [f"{header!r} in {stream.title} is taken as a header; with header=False it is an edge."]
                )
            yield number, stream, lines

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


class MatrixFile(FileSource):
    """A matrix.

    Parameters
    ----------
    path, labels
        As for `FileSource`.
    weight
        ``"values"`` to take the stored values as weights; None for links without.

    Raises
    ------
    UsageError
        Weights that a matrix does not have.
    """

    def __init__(
        self,
        path: AnyPath | Sequence[AnyPath],
        labels: AnyPath | None = None,
        *,
        weight: str | int | None = None,
    ) -> None:
        super().__init__(path, labels)
        check_values(weight, self.title)
        self.weighted = weight is not None

    def identity(self) -> dict[str, Any] | None:
        """Tell the file, when it was changed, and whether values are weights."""
        return self._with_weight(super().identity(), VALUES if self.weighted else None)
