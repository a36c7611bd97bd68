"""Matrix Market coordinate files: entry (i, j) is the edge i -> j, ids from 1.

Values are weights where that is asked for; else they are not read, but an entry that is stored as zero is no
edge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oocpr.errors import InputError, UsageError
from oocpr.sources.block import MAX_NODES
from oocpr.sources.formats.weighted import MatrixFile
from oocpr.sources.io.compression import ByteStream
from oocpr.sources.text.line_reader import EdgeLines, LineReader, whole_numbers
from oocpr.sources.undirected import both_ways
from oocpr.sources.weights import UNREAD

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oocpr.sources.block import EdgeBlock

_FIELDS = ("pattern", "real", "integer")
_VALUE_COLUMN = 3
_SYMMETRIES = ("general", "symmetric", "skew-symmetric")


class MatrixMarketFile(MatrixFile):
    r"""A square sparse matrix; of a symmetric one both halves become edges.

    Parameters
    ----------
    path
        The file, packed or not.
    labels
        A file with one label a row, or None.
    weight
        ``"values"`` where these are weights, else None.

    Raises
    ------
    InputError
        While blocks are read: no coordinate matrix of a known kind, not square, another number of entries
        than stated, or a line that cannot be read.
    UsageError
        Weights that are called otherwise; while blocks are read, those of a matrix without values.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "edges.mtx")
    ...     _ = path.write_text("%%MatrixMarket matrix coordinate pattern general\n3 3 2\n1 3\n3 2\n")
    ...     source = MatrixMarketFile(path)
    ...     [(block.src.tolist(), block.dst.tolist()) for block in source.blocks(10)], source.nodes
    ([([0, 2], [2, 1])], 3)
    """

    def _read(self, max_edges: int) -> Iterator[EdgeBlock]:
        with ByteStream(self.places[0]) as stream:
            lines = LineReader(stream)
            field, symmetry = self._kind(lines)
            self.nodes, stated = self._sizes(lines)
            self._read_labels()
            form = EdgeLines(
                first=1,
                nodes=self.nodes,
                valued=field != "pattern" and not self.weighted,
                weight=_VALUE_COLUMN if self.weighted else 0,
            )
            for block in self._unread(lines.edges(max_edges, form)):
                self.position = stream.position
                both = [block] if symmetry == "general" else list(both_ways([block]))
                yield from self._together(both, self.mark)
        if lines.entries != stated:
            raise InputError(
                f"{self.title} states {stated:,} entries and holds {lines.entries:,}.",
                "Fetch the file again, or correct the numbers behind its comments.",
            )
        if form.valued:
            self.notices.append(UNREAD)
        if lines.zeros:
            self.notices.append(f"{lines.zeros:,} entries are stored as zero and were left out.")

    def _kind(self, lines: LineReader) -> tuple[str, str]:
        words = (lines.peek() or "").lower().split()
        if len(words) != 5 or words[:2] != ["%%matrixmarket", "matrix"]:
            raise lines.error(
                "no Matrix Market header.",
                "The first line must be: %%MatrixMarket matrix coordinate pattern general",
            )
        layout, field, symmetry = words[2:]
        if layout != "coordinate":
            raise lines.error(f"the layout is {layout!r}.", "Write the matrix as coordinates.")
        if field not in _FIELDS:
            raise lines.error(f"the values are {field!r}.", f"Write them as one of: {', '.join(_FIELDS)}.")
        if symmetry not in _SYMMETRIES:
            raise lines.error(
                f"the symmetry is {symmetry!r}.", f"Write it as one of: {', '.join(_SYMMETRIES)}."
            )
        if self.weighted and field == "pattern":
            raise UsageError(f"{self.title} is a pattern without values.", "Leave the weight out.")
        if self.weighted and symmetry == "skew-symmetric":
            raise lines.error(
                "one half of a skew-symmetric matrix is negative.", "Give a matrix whose values are weights."
            )
        lines.drop()
        return field, symmetry

    @staticmethod
    def _sizes(lines: LineReader) -> tuple[int, int]:
        """Rows and entries."""
        while (line := lines.peek()) is not None and (not line.strip() or line.lstrip().startswith("%")):
            lines.drop()
        sizes = whole_numbers(line or "", 3)
        if not sizes:
            raise lines.error(
                "the numbers of rows, columns and entries are missing.",
                "Give them as three whole numbers behind the comments.",
            )
        rows, columns, entries = sizes
        if rows != columns:
            raise lines.error(
                f"{rows:,} rows and {columns:,} columns are no graph.",
                "Give a square matrix, one row a node.",
            )
        if rows > MAX_NODES:
            raise lines.error(f"{rows:,} nodes are too many.", f"A graph has at most {MAX_NODES:,} nodes.")
        lines.drop()
        return rows, entries
