"""Tables of Markdown, and times as they stand in them."""

from __future__ import annotations

from statistics import median
from typing import Any

Cells = dict[str, Any]
"""Part of a file of results."""


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    """Lines of a Markdown table, numbers to the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def seconds(values: list[float], scale: float = 1.0, unit: str = "s") -> str:
    """Median of some times, with the fastest and the slowest."""
    low, middle, high = (digits(scale * value) for value in (min(values), median(values), max(values)))
    return f"{middle} {unit} ({low}-{high})" if len(values) > 1 else f"{middle} {unit}"


def digits(value: float) -> str:
    """A number with three digits or so."""
    decimals = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:.{decimals}f}"
