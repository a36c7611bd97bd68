"""Answers as aligned text, and as a drawn table on a terminal."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_FEWEST_DECIMALS = 6


def pairs(rows: Sequence[tuple[str, str]]) -> str:
    """Align names and values.

    Examples
    --------
    >>> print(pairs([("nodes", "5"), ("self-loops", "0")]), end="")
    nodes       5
    self-loops  0
    """
    width = max(len(name) for name, _ in rows)
    return "".join(f"{name:<{width}}  {value}\n" for name, value in rows)


def ranking(
    top: Sequence[tuple[int | str, float]],
    bound: float | None,
    first: int = 1,
) -> str:
    """List the nodes of largest rank, drawn as a table where standard output is a terminal.

    Parameters
    ----------
    top
        Nodes and their ranks, largest first.
    bound
        Certified error: as many decimals are printed as it allows.
    first
        Place of the first of them.

    Examples
    --------
    >>> print(ranking([("libc6", 0.25), ("perl", 0.125)], 1e-7), end="")
       1  0.2500000  libc6
       2  0.1250000  perl
    """
    digits = decimals(bound)
    rows = [(str(k), f"{rank:.{digits}f}", printable(node)) for k, (node, rank) in enumerate(top, first)]
    if sys.stdout.isatty():
        return _drawn(rows)
    return "".join(f"{place:>4}  {rank}  {node}\n" for place, rank, node in rows)


def decimals(bound: float | None) -> int:
    """Decimals of a rank whose last digit is still certified to about one.

    Examples
    --------
    >>> decimals(8.4e-11), decimals(0.01), decimals(None)
    (10, 6, 12)
    """
    if bound is None:
        return 12
    return max(_FEWEST_DECIMALS, min(17, math.floor(-math.log10(max(bound, 1e-17)))))


def printable(name: int | str) -> str:
    r"""Write a name so that it stays in its column: labels come from strangers' files.

    Examples
    --------
    >>> printable("mutex_lock\tkernel/mutex.c"), printable("red \x1b[31m")
    ('mutex_lock  kernel/mutex.c', 'red \\x1b[31m')
    """
    text = str(name).replace("\t", "  ")
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def _drawn(rows: Sequence[tuple[str, str, str]]) -> str:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("", "rank", "node", header_style="bold")
    table.columns[0].justify = "right"
    for place, rank, node in rows:
        table.add_row(place, rank, Text(node))
    console = Console(file=sys.stdout)
    with console.capture() as capture:
        console.print(table)
    return capture.get()
