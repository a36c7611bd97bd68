"""Turn the JSON of cpu_peers.py into the Markdown tables of the README, losses included."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

OURS = "oocpr"
TITLES = {
    "oocpr": "**oocpr**",
    "oocpr-store": "**oocpr**, opening and decoding the store",
    "oocpr-degree": "**oocpr**, imported with `--order degree`",
    "gap-pr_spmv": "GAP pr_spmv, float64",
    "gap-pr_spmv-huge": "GAP pr_spmv, float64, huge pages",
    "gap-pr": "GAP pr (Gauss-Seidel), float64",
    "scipy": "SciPy",
    "scikit-network": "scikit-network",
    "igraph": "igraph (PRPACK)",
    "networkit": "NetworKit",
    "fast-pagerank": "fast-pagerank",
    "graphblas-algorithms": "graphblas-algorithms",
}


def render(results: dict[str, Any]) -> str:
    """Both tables and the machine.

    Parameters
    ----------
    results
        What `cpu_peers.py` wrote.

    Returns
    -------
    str
        Markdown. A factor is the program's shortest time over that of oocpr on the same graph: below 1 the
        program is faster.
    """
    machine, settings = results["machine"], results["settings"]
    where = (
        f"{machine['cpu']}, {machine['cores']} cores, {settings['threads']} threads where a program can use "
        f"them, {machine['memory_gib']} GiB, Python {machine['python']}."
    )
    times = _table(results, "times", 1.0, "s")
    sweeps = _table(results, "sweeps", 1000.0, "ms")
    return "\n".join(
        [
            where,
            "",
            f"Time to a true L1 error of {settings['target']:.0e} (shortest / median; factor to oocpr):",
            "",
            *times,
            "",
            "One float64-accurate sweep in memory (shortest / median; factor to oocpr):",
            "",
            *sweeps,
            "",
        ]
    )


def _table(results: dict[str, Any], table: str, scale: float, unit: str) -> list[str]:
    graphs = list(results[table])
    programs = sorted(
        {program for cells in results[table].values() for program in cells}, key=list(TITLES).index
    )
    lines = [
        " | ".join(["| ", *(_graph_title(name, results["graphs"][name]) for name in graphs)]) + " |",
        "| --- " + "| ---: " * len(graphs) + "|",
    ]
    for program in programs:
        cells = [_cell(results[table][graph], program, scale, unit) for graph in graphs]
        lines.append(" | ".join([f"| {TITLES[program]}", *cells]) + " |")
    return lines


def _graph_title(name: str, facts: dict[str, Any]) -> str:
    return f"{name} ({facts['edges'] / 1e6:.1f} M edges)"


def _cell(cells: dict[str, Any], program: str, scale: float, unit: str) -> str:
    cell = cells.get(program)
    if cell is None:
        return "not run"
    if "seconds_min" not in cell:
        return f"{cell['status']}: {cell['reason']}"
    shortest, median = (_three_digits(cell[key] * scale) for key in ("seconds_min", "seconds_median"))
    text = f"{shortest} / {median} {unit}"
    ours = cells.get(OURS, {}).get("seconds_min")
    if ours and program != OURS:
        text += f" ({_three_digits(cell['seconds_min'] / ours)}x)"
    return text if cell["status"] == "reached" else f"{text}, not reached: error {cell['error']:.1e}"


def _three_digits(value: float) -> str:
    decimals = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:.{decimals}f}"


def main() -> None:
    """Print the tables of a results file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    print(render(json.loads(parser.parse_args().results.read_text())), end="")


if __name__ == "__main__":
    main()
