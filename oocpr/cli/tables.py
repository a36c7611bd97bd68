"""Answers as aligned text, and as a drawn table on a terminal."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING

from oocpr.units import format_bytes, format_count, format_error_bound, format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oocpr.result.ranks import Report

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
    """List the nodes of largest rank, drawn as a table if standard output is a terminal.

    As many decimals are printed as the certified error allows; `first` is the place of the first node.

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


_WORTH_SAYING = 0.1
"""Seconds of compiling that are told."""


def summary(run: Report) -> str:
    """Return the lines that end a run: its certificate, its size and time, and what bounded it."""
    compiling = ""
    if run.compile_seconds >= _WORTH_SAYING:
        compiling = f" (and {format_seconds(run.compile_seconds)} of compiling, once on a machine)"
    device = f", of the device {format_bytes(run.peak_device_memory)}" if run.peak_device_memory else ""
    return (
        f"certified {format_error_bound(run.error_bound)}; "
        f"{run.passes} passes ({run.gathers:.1f} gathers) over "
        f"{format_count(run.edges)} edges in {format_seconds(run.seconds - run.compile_seconds)}{compiling}: "
        f"{run.gteps:.3g} GTEPS, "
        f"{run.bytes_per_edge:.2f} B/edge, peak memory {format_bytes(run.peak_memory)}{device}\n"
        f"{_read(run)}{_bound_by(run)}{_predicted(run)}{_start(run)}"
    )


def _read(run: Report) -> str:
    """How much came from the store, where it was more than once through."""
    if run.bytes_read < 1.01 * run.bytes_per_edge * run.edges:
        return ""
    rate = format_bytes(int(run.bytes_read / (run.seconds - run.compile_seconds)))
    how = "directly" if run.direct else "through the page cache"
    return f"read from the store: {format_bytes(run.bytes_read)} {how}, {rate}/s\n"


def _bound_by(run: Report) -> str:
    if not run.busy:
        return ""
    shares = {kind: seconds / run.seconds for kind, seconds in run.busy.items()}
    told = ", ".join(f"{kind} {share:.0%}" for kind, share in sorted(shares.items(), key=lambda of: -of[1]))
    return f"busy, of the time of the run: {told}\n"


def _predicted(run: Report) -> str:
    told = run.predicted or {}
    if "seconds" not in told or run.pass_seconds is None:
        return ""
    pairs = [
        ("a pass", format_seconds(told["pass_seconds"]), format_seconds(run.pass_seconds)),
        ("passes", f"{told['passes']}", f"{run.passes}"),
        ("in all", format_seconds(told["seconds"]), format_seconds(run.seconds - run.compile_seconds)),
        ("read", format_bytes(told["bytes_read"]), format_bytes(run.bytes_read)),
        ("peak memory", format_bytes(told["peak_memory"]), format_bytes(run.peak_memory)),
    ]
    return "predicted / found: " + ", ".join(f"{what} {one} / {other}" for what, one, other in pairs) + "\n"


def _start(run: Report) -> str:
    """That the run began with ranks of another graph, if it did."""
    if run.start_identity in (None, run.identity):
        return ""
    return f"began with ranks of another graph, {run.start_identity}; this one is {run.identity}\n"
