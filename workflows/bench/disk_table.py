"""Turn the JSON of disk_stream.py into Markdown tables, losses included."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

RANKED = {
    "rank keep, direct": "**oocpr**, `--io direct`",
    "rank keep, buffered": "**oocpr**, `--io buffered`",
    "rank degree, direct": "**oocpr**, imported with `--order degree`, `--io direct`",
    "rank degree, buffered": "**oocpr**, imported with `--order degree`, `--io buffered`",
    "GridGraph": "GridGraph, float32",
    "Dask": "Dask, Zarr and SciPy, two workers, page cache warm",
}
OURS = ("rank keep, direct", "rank degree, direct")
"""What factors compare with."""


def render(results: dict[str, Any]) -> str:
    """Both tables: runs on one graph, and what is reached of the disk."""
    found = results["measured"]
    ranked = ["a pass", "read from disk a pass", "to a true 1e-10", "peak memory"]
    rows = [[title, *_ranked(found, key)] for key, title in RANKED.items()]
    disk = max(cell["gb_per_second"] for key, cell in found.items() if key.startswith("disk, "))
    streamed = [
        [key, f"{cell['gb_per_second']:.2f} GB/s", f"{cell['gb_per_second'] / disk:.0%}"]
        for key, cell in found.items()
        if "gb_per_second" in cell
    ]
    return "\n".join([*_table(["", *ranked], rows), "", *_table(["", "rate", "of the disk"], streamed)])


def _ranked(found: dict[str, Any], key: str) -> list[str]:
    cell = found.get(key, {"reason": "not run"})
    if "reason" in cell:
        return [cell["reason"], "", "", ""]
    factors = [f"{cell['pass_seconds'] / found[ours]['pass_seconds']:.1f}x" for ours in OURS]
    text = f"{cell['pass_seconds']:.3f} s" + ("" if key in OURS else f" ({' / '.join(factors)})")
    read = cell.get("pass_read_bytes", 0) or cell.get("read_bytes", 0) / 5
    whole = min((one["seconds"] for one in cell["runs"] if _exact(one, cell["runs"])), default=None)
    return [
        text,
        f"{read / 1e6:.0f} MB",
        "not in float32" if whole is None else f"{whole:.1f} s",
        f"{cell['peak_mib']} MiB" if "peak_mib" in cell else "",
    ]


def _exact(one: dict[str, Any], runs: list[dict[str, Any]]) -> bool:
    """Whether a run went all the way; the first one's error was looked at."""
    return "seconds" in one and runs[0]["true_error"] <= 1e-10 and one["passes"] == runs[0]["passes"]


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    print(render(json.loads(parser.parse_args().results.read_text())))


if __name__ == "__main__":
    main()
