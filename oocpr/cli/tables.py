"""Answers as aligned text, and as a drawn table on a terminal."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oocpr.result.names import Value

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
    known: Sequence[Mapping[str, Value]] = (),
    first: int = 1,
) -> str:
    """List the nodes of largest rank, drawn as a table where standard output is a terminal.

    Parameters
    ----------
    top
        Nodes and their ranks, largest first.
    bound
        Certified error: as many decimals are printed as it allows.
    known
        Attributes of these nodes; empty where nobody asked.
    first
        Place of the first of them.

    Examples
    --------
    >>> print(ranking([("libc6", 0.25), ("perl", 0.125)], 1e-7), end="")
       1  0.2500000  libc6
       2  0.1250000  perl
    >>> print(ranking([("libc6", 0.25)], 1e-7, [{"year": 1992, "by": ""}]), end="")
       1  0.2500000  libc6  year: 1992
    """
    digits = decimals(bound)
    rows = [(str(k), f"{rank:.{digits}f}", printable(node)) for k, (node, rank) in enumerate(top, first)]
    told = [
        {printable(key): _shown(value) for key, value in one.items()} for one in known or [{}] * len(rows)
    ]
    if sys.stdout.isatty():
        return _drawn(rows, told)
    more = ["".join(f"  {key}: {value}" for key, value in one.items() if value) for one in told]
    return "".join(
        f"{place:>4}  {rank}  {node}{one}\n" for (place, rank, node), one in zip(rows, more, strict=True)
    )


def _shown(value: Value) -> str:
    return "" if value is None else printable(str(value))


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


def _drawn(rows: Sequence[tuple[str, str, str]], told: Sequence[Mapping[str, str]]) -> str:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("", "rank", "node", header_style="bold")
    for name in told[0] if told else ():
        table.add_column(Text(name))
    table.columns[0].justify = "right"
    for (place, rank, node), known in zip(rows, told, strict=True):
        table.add_row(place, rank, Text(node), *map(Text, known.values()))
    console = Console(file=sys.stdout)
    with console.capture() as capture:
        console.print(table)
    return capture.get()
