"""Tables in HTML, as notebooks show them: nothing in a cell is taken for a tag."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def html_table(rows: Iterable[Sequence[object]], *, header: Sequence[str] = (), caption: str = "") -> str:
    """Make a table of rows of cells; cells of the first column are to the left, the others to the right.

    Examples
    --------
    >>> html_table([("<b>", 1)], header=("node", "rank"))[-38:]
    '>&lt;b&gt;</td><td>1</td></tr></table>'
    """
    lines = ["<table>"]
    if caption:
        lines.append(f'<caption style="white-space:nowrap">{escape(caption)}</caption>')
    if header:
        lines.append(_row(header, "th"))
    lines += [_row(row, "td") for row in rows]
    return "".join((*lines, "</table>"))


def _row(cells: Sequence[object], tag: str) -> str:
    first, *others = (escape(str(cell)) for cell in cells)
    left = f'<{tag} style="text-align:left">{first}</{tag}>'
    return "".join(("<tr>", left, *(f"<{tag}>{cell}</{tag}>" for cell in others), "</tr>"))
