"""Turn the JSON of device_papers.py and device_rank.py into Markdown tables, losses included."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

Graphs = dict[str, dict[str, Any]]

PRODUCTS = {
    "balanced, bits16": "**balanced** (default), bits16",
    "limit, plain columns, bits16, 8 x 8": "limit: gathering alone, bits16",
    "binned, bits16": "binned by row size (Wu 2010), bits16",
    "csr-vector, bits16": "one warp a row, bits16",
    "csr-16, bits16": "16 threads a row, bits16",
    "csr-scalar, bits16": "one thread a row, bits16",
    "ell, bits16": "one thread a row, side by side (SELL-C-sigma), bits16",
    "bcsr, bits16": "blocks 1 x 4 (Shan 2010), bits16",
    "chunked, bits16": "chunks in shared memory, bits16",
    "edges, bits16": "one thread an edge, exchange (Jiang 2014), bits16",
    "edges-divide, float64": "one thread an edge, dividing (Jiang 2014), float64",
    "balanced, bits8": "**balanced**, bits8",
    "limit, plain columns, bits8, 8 x 8": "limit: gathering alone, bits8",
    "balanced, float32": "**balanced**, float32",
    "limit, plain columns, float32, 8 x 8": "limit: gathering alone, float32",
    "cuSPARSE float32": "cuSPARSE, float32",
    "balanced, float64": "**balanced**, float64",
    "limit, plain columns, float64, 8 x 8": "limit: gathering alone, float64",
    "cuSPARSE float64": "cuSPARSE, float64",
}


def products(results: Graphs) -> list[str]:
    """Products alone, in GTEPS; beside a limit, the share of it that the balanced product reaches."""
    graphs = {name: cells for name, cells in results.items() if "edges" in cells}
    titles = [f"{name} ({cells['edges'] / 1e6:.4g} M links)" for name, cells in graphs.items()]
    rows = [[title, *(_rate(cells, key) for cells in graphs.values())] for key, title in PRODUCTS.items()]
    return _table(["GTEPS", *titles], rows)


def runs(results: Graphs) -> list[str]:
    """Whole runs as planned, beside cuSPARSE."""
    graphs = {name: cells for name, cells in results.items() if "edges" in cells}
    planned = {name: cells[_planned(cells)] for name, cells in graphs.items()}
    rows = [
        [
            "certified 1e-10, as a run is planned",
            *(f"{1e3 * run['seconds']:.3g} ms, {run['passes']} passes" for run in planned.values()),
        ],
        ["true error of that run", *(f"{run['true error']:.1e}" for run in planned.values())],
        ["cuSPARSE, float64, to a true 1e-10", *(_peer(cells, 1e-10) for cells in graphs.values())],
        [
            "cuSPARSE, to the true error of that run",
            *(_peer(cells, planned[name]["true error"]) for name, cells in graphs.items()),
        ],
        ["vectors, share of the time", *(f"{run['share of vectors']:.1%}" for run in planned.values())],
        ["gaps between kernels", *(f"{run['share of gaps']:.1%}" for run in planned.values())],
    ]
    return _table(["", *graphs], rows)


def streams(results: Graphs) -> list[str]:
    """Whole runs with no tile on the device, beside the link."""
    graphs = {name: cells for name, cells in results.items() if "edges" in cells}
    chosen = {
        name: next(cell for key, cell in cells.items() if key.endswith("(planned)"))
        for name, cells in graphs.items()
    }
    rows = [
        ["encoded", *(f"{cells['B/edge']:.2f} B/edge" for cells in graphs.values())],
        ["link alone", *(f"{cells['link alone, GB/s']:.1f} GB/s" for cells in graphs.values())],
        ["a pass", *(f"{run['ms a pass']:.3g} ms, {run['GTEPS']:.3g} GTEPS" for run in chosen.values())],
        ["share of the link", *(f"{run['share of the link']:.1%}" for run in chosen.values())],
        [
            "certified 1e-10, as a run is planned",
            *(f"{1e3 * run['seconds']:.3g} ms, {run['passes']} passes" for run in chosen.values()),
        ],
        [
            "power iteration, plain columns at the rate of the link",
            *(
                f"{1e3 * run['plain columns at the rate of the link, seconds']:.4g} ms ({run['factor']:.1f}x)"
                for run in chosen.values()
            ),
        ],
        ["the same as it ran", *(_plain(cells) for cells in graphs.values())],
    ]
    return _table(["", *graphs], rows)


def _plain(cells: dict[str, Any]) -> str:
    run = cells.get("power iteration, plain columns")
    return "not run" if run is None else f"{1e3 * run['seconds']:.4g} ms ({run['factor']:.1f}x)"


def _planned(cells: dict[str, Any]) -> str:
    return f"mixed, bits16, sweeps {cells['sweeps of a plan']}, mixing 3"


def _peer(cells: dict[str, Any], error: float) -> str:
    seconds = cells["cuSPARSE seconds to true error"].get(f"{error:.3g}")
    if seconds is None:
        return "not reached"
    return f"{1e3 * seconds:.3g} ms ({seconds / cells[_planned(cells)]['seconds']:.1f}x)"


def _rate(cells: dict[str, Any], key: str) -> str:
    value = cells.get(key)
    if not isinstance(value, float):
        return "not run"
    text = f"{value:.3g}"
    if key.startswith("limit"):
        text += f" ({cells['balanced, ' + key.split(', ')[2]] / value:.0%})"
    return text


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("papers", type=Path, help="JSON of device_papers.py")
    parser.add_argument("rank", type=Path, help="JSON of device_rank.py")
    parser.add_argument("stream", type=Path, help="JSON of device_stream.py")
    options = parser.parse_args()
    print("\n".join(runs(json.loads(options.rank.read_text()))), end="\n\n")
    print("\n".join(products(json.loads(options.papers.read_text()))), end="\n\n")
    print("\n".join(streams(json.loads(options.stream.read_text()))))


if __name__ == "__main__":
    main()
