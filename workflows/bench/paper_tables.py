"""Tables of the systems of earlier papers beside the default, from their results."""

from __future__ import annotations

from statistics import median

from markdown import Cells, table


def whole_run(cell: Cells, default: Cells) -> str:
    """Time and passes of runs, and times over those of the default."""
    taken, usual = median(cell["seconds"]), median(default["seconds"])
    over = "" if cell is default else f", {taken / usual:.1f}x"
    passes = cell["passes"] if isinstance(cell["passes"], int) else median(cell["passes"])
    return f"{taken * 1e3:.3g} ms, {passes:.0f} passes{over}"


def papers(found: Cells) -> list[str]:
    """Whole runs of systems to a certified error, their passes, and times over that of the default."""
    ran = {name: graph["systems"] for name, graph in found["graphs"].items()}
    systems = max(map(list, ran.values()), key=len)
    rows = []
    for name, cells in ran.items():
        default = cells[systems[0]]["certified"]
        row = [
            whole_run(cells[system]["certified"], default) if system in cells else "needs more"
            for system in systems
        ]
        rows.append([name, f"{found['graphs'][name]['edges'] / 1e6:.2f} M", *row])
    return table(["graph", "edges", *systems], rows)


def segments(found: Cells) -> list[str]:
    """Products of numbers in segments: time, and how many times as fast as float64 in the same layout."""
    (graph,) = (cells for name, cells in found.items() if "edges" in cells)
    rows = []
    for what in (
        "float64",
        *(f"{64 // n * read} bits of {n} segments" for n in (2, 4) for read in range(1, n + 1)),
    ):
        row = [what]
        for layout in ("CSR", "ELL"):
            taken, plain = graph[f"{layout}, {what}, ms"], graph[f"{layout}, float64, ms"]
            row.append(f"{taken:.3g} ms, {plain / taken:.2f}x")
        rows.append(row)
    return table(["read", "rows one after the other (CSR)", "rows side by side (ELL)"], rows)


def contest(found: Cells) -> list[str]:
    """Personalized ranks by the steps of the contest report, against exact ones."""
    rows = []
    for name, graph in found["graphs"].items():
        default, row = next(iter(graph["steps"].values())), [name]
        for cell in graph["steps"].values():
            right = 100 * sum(cell["top"]) / len(cell["top"])
            row.append(f"{whole_run(cell, default)}, L1 {max(cell['L1']):.0e}, {right:.0f} %")
        rows.append(row)
    return table(["graph", *graph["steps"]], rows)
