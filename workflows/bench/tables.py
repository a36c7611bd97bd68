"""Make docs/benchmarks.md, and the table of the README, from the JSON in results/; losses included.

    python workflows/bench/tables.py            # writes both
    python workflows/bench/tables.py --check    # exit code 1 if they are not what the JSON says

Times are medians with the fastest and slowest run in brackets. A factor is the other program's median over
that of oocpr: below 1 the other program is faster.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median

import captions as cap
from markdown import Cells, digits, seconds, table
from paper_tables import contest, papers, segments

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results"
ORDERS = ("keep", "degree", "bfs", "dfs", "auto")
PAGE, README = ROOT / "docs" / "benchmarks.md", ROOT / "README.md"
BEGIN, END = "<!-- results:begin -->\n", "<!-- results:end -->\n"

BUDGET_ROWS: dict[str, Callable[[Cells], str]] = {
    "peak memory of the device": lambda cell: _mib(cell.get("most that the driver said, MiB")),
    "peak memory of the process": lambda cell: _mib(cell["peak of the process, MiB"]),
    "first pass, which reads the tiles": lambda cell: f"{cell['first pass, seconds']:.1f} s",
    "each later pass": lambda cell: f"{cell['ms a pass']:.3g} ms, {cell['GTEPS of a pass']:.3g} GTEPS",
    "certified 1e-10, from the store": lambda cell: f"{cell['seconds']:.1f} s, {cell['passes']} passes",
    "predicted / found: a pass, in all": lambda cell: _predicted(cell["predicted/found"]),
}


def load(name: str) -> Cells:
    """Read one file of results."""
    found: Cells = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def provenance(name: str) -> list[str]:
    """Say by which command, when and on what a file of results was measured."""
    run = load(name)["provenance"]
    versions = run["versions"]
    if isinstance(versions, dict):
        versions = ", ".join(f"{package} {version}" for package, version in versions.items())
    return [
        f"`{run['command']}`, {run['date']}, commit {run['commit']}; {run['machine']};"
        f" versions {versions}. [All figures](../workflows/bench/results/{name}.json).",
    ]


def _mib(value: float | None) -> str:
    return "not asked" if value is None else f"{value / 1024:.1f} GiB"


def _predicted(ratios: Cells) -> str:
    return f"{ratios['pass_seconds']:.2f}, {ratios['seconds']:.2f}"


def peers(found: Cells, kind: str, scale: float = 1.0, unit: str = "s") -> list[str]:
    """Programs beside each other on processors; `kind` is "times" or "sweeps"."""
    graphs = found[kind]
    programs = [name for name in cap.PROGRAMS if any(name in cells for cells in graphs.values())]
    head = ["", *(f"{name} ({found['graphs'][name]['edges'] / 1e6:.1f} M edges)" for name in graphs)]

    def cell(cells: Cells, program: str) -> str:
        one = cells.get(program)
        if one is None:
            return "not run"
        if "seconds" not in one:
            return f"{one['status']}: {one['reason']}"
        text = seconds(one["seconds"], scale, unit)
        if program != "oocpr":
            text += f" {digits(median(one['seconds']) / median(cells['oocpr']['seconds']))}x"
        return text if one["status"] == "reached" else f"{text}, not reached: error {one['error']:.1e}"

    return table(head, [[cap.PROGRAMS[p], *(cell(cells, p) for cells in graphs.values())] for p in programs])


def disk(found: Cells) -> list[str]:
    """Runs from disk within a budget of memory."""
    ours = median(found["measured"]["rank keep, direct"]["pass_seconds_all"][1:])

    def row(key: str) -> list[str]:
        cell = found["measured"].get(key, {"reason": "not run"})
        if "reason" in cell:
            return [cell["reason"], "", "", ""]
        passes = cell.get("pass_seconds_all", [0, cell["pass_seconds"]])[1:]
        read = cell.get("pass_read_bytes", 0) or cell.get("read_bytes", 0) / 5
        # The first run's error was looked at; those that took as many passes have the same.
        first, *others = cell["runs"]
        exact = first.get("true_error", 1) <= 1e-10
        whole = [one["seconds"] for one in (first, *others) if exact and one.get("passes") == first["passes"]]
        return [
            f"{seconds(passes)} {median(passes) / ours:.2f}x",
            f"{read / 1e6:.0f} MB",
            seconds(whole) if whole else "not in float32",
            f"{cell['peak_mib']} MiB" if "peak_mib" in cell else "",
        ]

    head = ["", "a pass", "read from disk per pass", "to a true 1e-10", "peak memory"]
    return table(head, [[title, *row(key)] for key, title in cap.DISK.items()])


def disk_rates(found: Cells) -> list[str]:
    """What is reached of the disk alone."""
    cells = {key: cell["all"] for key, cell in found["measured"].items() if "all" in cell}
    best = max(median(rates) for key, rates in cells.items() if key.startswith("disk, "))
    rows = [[key, seconds(rates, unit="GB/s"), f"{median(rates) / best:.0%}"] for key, rates in cells.items()]
    return table(["", "rate", "of the disk"], rows)


def imports(found: Cells) -> list[str]:
    """Imports of one graph from three formats."""

    def cell(programs: Cells, name: str) -> str:
        one = programs.get(name, {"reason": "not run"})
        if "reason" in one:
            return one["reason"] if one["reason"] == "not run" else "failed"
        times = [run["process_seconds"] for run in one["runs"]]
        ours = median(run["process_seconds"] for run in programs["oocpr"]["runs"])
        factor = "" if name == "oocpr" else f" {median(times) / ours:.1f}x"
        return f"{seconds(times)}{factor}, {one['peak_mib']:.0f} MiB"

    kinds = found["imports"]
    rows = [[title, *(cell(kinds[kind], name) for kind in kinds)] for name, title in cap.IMPORTERS.items()]
    return table(["whole process, peak memory", *(f".{kind}" for kind in kinds)], rows)


def _graphs(found: Cells) -> dict[str, Cells]:
    return {name: cells for name, cells in found.items() if isinstance(cells, dict) and "edges" in cells}


def _planned(cells: Cells) -> Cells:
    planned: Cells = cells[f"mixed, bits16, sweeps {cells['sweeps of a plan']}, mixing 3"]
    return planned


def device_runs(found: Cells) -> list[str]:
    """Whole runs on one device, all tiles in its memory, beside cuSPARSE."""
    graphs = _graphs(found)

    def peer(cells: Cells) -> str:
        time = cells["cuSPARSE seconds to true error"].get(f"{1e-10:.3g}")
        return (
            "not reached" if time is None else f"{1e3 * time:.3g} ms {time / _planned(cells)['seconds']:.1f}x"
        )

    def ours(run: Cells) -> str:
        return f"{1e3 * run['seconds']:.3g} ms ({1e3 * run['best seconds']:.3g}-), {run['passes']} passes"

    def share(cells: Cells, of: str) -> str:
        return f"{_planned(cells)[of]:.0%}"

    def recorded(run: Cells) -> str:
        return f"{1e3 * run['seconds to record']:.2g} ms"

    rows = [
        ["**oocpr**, certified 1e-10", *(ours(_planned(cells)) for cells in graphs.values())],
        ["its true error", *(f"{_planned(cells)['true error']:.1e}" for cells in graphs.values())],
        ["cuSPARSE, float64, to a true 1e-10", *(peer(cells) for cells in graphs.values())],
        ["vectors, share of the time", *(share(cells, "share of vectors") for cells in graphs.values())],
        ["passes recorded before the first", *(recorded(_planned(cells)) for cells in graphs.values())],
        ["the device waits, then included", *(share(cells, "share of gaps") for cells in graphs.values())],
        ["in passes alone", *(share(cells, "share of gaps in passes") for cells in graphs.values())],
    ]
    return table(["", *graphs], rows)


def starts(found: Cells) -> list[str]:
    """Stored graphs ranked on a device in new processes, by parts."""
    stores = found["stores"]
    columns = [cells["all"] for cells in stores.values()]
    later = [cells.get("later calls of pagerank in one process, seconds") for cells in stores.values()]

    def row(title: str, values: list[Cells]) -> list[str]:
        return [title, *(seconds([value["min"], value["median"], value["max"]]) for value in values)]

    rows = [
        row("a new process", [cell["seconds of the process"] for cell in columns]),
        row("`pagerank` in it", [cell["seconds of pagerank"] for cell in columns]),
        *(
            row(part, [cell["seconds by parts"][part] for cell in columns])
            for part in columns[0]["seconds by parts"]
        ),
        ["peak memory", *(_mib(cell["peak of the process, MiB"]["median"]) for cell in columns)],
        [
            "a later `pagerank` in one process",
            *("not run" if each is None else seconds(each) for each in later),
        ],
    ]
    return table(["", *stores], rows)


def device_kernels(found: Cells) -> list[str]:
    """Whole runs with each product: a pass, and how much of it is preparing what the product takes."""
    graphs = {
        name: cells for name, cells in found.items() if isinstance(cells, dict) and "commit" not in cells
    }
    ways = [(name, way) for name in graphs for way in ("resident", "2GiB")]

    def cell(kernel: str, name: str, way: str) -> str:
        run = graphs[name].get(f"{kernel}, {way}")
        if run is None:
            return "not run"
        return f"{run['ms a pass']:.3g} ms ({run['of them preparing']:.2g})"

    kernels = [key.partition(",")[0] for key in next(iter(graphs.values())) if key.endswith(", resident")]
    rows = [[kernel, *(cell(kernel, *way) for way in ways)] for kernel in kernels]
    return table(["a pass (preparing)", *(f"{name}, {way}" for name, way in ways)], rows)


def device_products(found: Cells) -> list[str]:
    """Products alone, in GTEPS; beside a limit, the share of it that the balanced product reaches."""
    graphs = _graphs(found)

    def rate(cells: Cells, key: str) -> str:
        value = cells.get(key)
        if not isinstance(value, float):
            return "not run"
        if not key.startswith("limit"):
            return f"{value:.3g}"
        reads = key.split(", ")[2]
        ours = cells.get(f"balanced, {reads}") or cells[f"balanced, packed, {reads}"]
        return f"{value:.3g} ({ours / value:.0%})"

    titles = [f"{name} ({cells['edges'] / 1e6:.4g} M edges)" for name, cells in graphs.items()]
    rows = [
        [title, *(rate(cells, key) for cells in graphs.values())]
        for key, title in cap.PRODUCTS.items()
        if any(key in cells for cells in graphs.values())
    ]
    return table(["GTEPS", *titles], rows)


def device_streams(found: Cells) -> list[str]:
    """Whole runs with no tile on the device, beside the link."""
    graphs = _graphs(found)
    runs = {
        name: next(cell for key, cell in cells.items() if key.endswith("(planned)"))
        for name, cells in graphs.items()
    }

    def plain(cells: Cells) -> str:
        run = cells.get("power iteration, plain columns")
        return "not run" if run is None else f"{1e3 * run['seconds']:.4g} ms {run['factor']:.1f}x"

    rows = [
        ["encoded", *(f"{cells['B/edge']:.2f} B/edge" for cells in graphs.values())],
        ["link alone", *(f"{cells['link alone, GB/s']:.1f} GB/s" for cells in graphs.values())],
        ["a pass", *(f"{run['ms a pass']:.3g} ms, {run['GTEPS']:.3g} GTEPS" for run in runs.values())],
        ["share of the link", *(f"{run['share of the link']:.1%}" for run in runs.values())],
        ["certified 1e-10", *(f"{1e3 * r['seconds']:.3g} ms, {r['passes']} passes" for r in runs.values())],
        ["power iteration, plain columns", *(plain(cells) for cells in graphs.values())],
    ]
    return table(["", *graphs], rows)


def budgets(columns: dict[str, Cells]) -> list[str]:
    """Runs within budgets of device memory; a column each."""
    rows = [[title, *(show(cell) for cell in columns.values())] for title, show in BUDGET_ROWS.items()]
    return table(["", *columns], rows)


def several(found: Cells) -> list[str]:
    """One graph on several devices of a machine."""
    columns = {}
    for name, count in (("two devices", 2), ("four devices", 4)):
        cells = found[name]["rmat26 by degree"]
        for kind in ("streamed", "tiles on the devices"):
            runs = [cells[f"{kind}, {count} devices, run {k}"] for k in range(3)]
            times = [run["ms a pass"] for run in runs]
            one = cells[f"{kind}, one device"]["ms a pass"]
            gteps = median(run["GTEPS"] for run in runs)
            same = "same bits as one" if all(cells.get(f"{kind}: same bits as one device", [])) else ""
            columns[f"{name}, {kind}"] = [
                f"{one:.1f} ms",
                seconds(times, unit="ms"),
                f"{gteps:.0f} GTEPS",
                f"{one / median(times):.2f}x",
                same,
            ]
    head = ["", "one device, a pass", "all, a pass", "", "faster", ""]
    return table(head, [[title, *cells] for title, cells in columns.items()])


def workers(found: Cells) -> list[str]:
    """A graph on two devices, in one process and by a Dask worker for each."""
    rows = [
        [
            what,
            f"{cell['seconds']:.2f} s",
            f"{cell['first pass']:.3f} s",
            f"{cell['ms of a later pass']:.3g} ms",
            f"{cell.get('seconds over those of one process', 1):.2f}",
        ]
        for what, cell in found.items()
        if isinstance(cell, dict) and "seconds" in cell
    ]
    return table(["", "`pagerank`", "first pass", "a later pass", "times one process"], rows)


def dask_cost(found: Cells) -> list[str]:
    """What Dask adds to a pass."""
    rows = []
    for key in ("fixed, 2 stripes", "fixed, 4 stripes", "share, 2 workers", "share, 1 worker", "alone"):
        cells = [(name, cell) for name, cell in found[key].items() if isinstance(cell, dict)]
        times = [f"{name}: {cell['ms_median']:.3g} ms" for name, cell in cells]
        more = found[key]["ms_more_by_median"]
        rows.append([key, *times, f"{more:+.3g} ms ({found[key]['share_by_median']:+.0%})"])
    return table(["", "without", "with", "by median"], rows)


def predictions(found: Cells) -> list[str]:
    """Of how many runs each quantity was predicted within 15 %."""
    ratios = [graph["predicted/actual"] for graph in found["graphs"].values()]
    rows = []
    for key in ("passes", "pass_seconds", "seconds", "bytes_read", "peak_memory"):
        values = [one[key] for one in ratios if one[key] is not None]
        within = sum(abs(value - 1) <= 0.15 for value in values)
        row = f"{median(values):.2f} ({min(values):.2f}-{max(values):.2f})"
        rows.append([key, f"{within} of {len(values)}", row])
    return table(["", "within 15 %", "predicted / found"], rows)


def passes(found: Cells) -> list[str]:
    """Passes until the L1 residual is below 1e-10."""
    columns = found["columns"]
    rows = [
        [name, f"{g['edges'] / 1e6:.1f} M", *(f"{g[c]['passes']} ({g[c]['gathers']:.1f})" for c in columns)]
        for name, g in found["graphs"].items()
    ]
    return table(["graph", "edges", *(f"`{c}`" for c in columns)], rows)


def skipping(found: Cells) -> list[str]:
    """Passes' worth of bytes, without and with skipping, by the share of edges that are new."""
    news = list(next(iter(found["graphs"].values()))["read"])
    rows = [
        [name, *(f"{g['read'][new]['without']:.0f}, {g['read'][new]['skipping']:.1f}" for new in news)]
        for name, g in found["graphs"].items()
    ]
    heads = ["none" if new == "0" else f"one in {1 / float(new):,.0f}" for new in news]
    return table(["graph; new edges:", *heads], rows)


def orders(found: Cells) -> list[str]:
    """Bytes per edge, passes in one stripe and four, and bytes to an answer over those of the best order."""
    rows = []
    for name, ways in found["graphs"].items():
        answer = {order: way["bytes"] * way["passes"][0] for order, way in ways.items()}
        over = {order: f"{sent / min(answer.values()):.2f}" for order, sent in answer.items()}
        cells = {
            order: f"{way['bytes'] / way['edges']:.2f}, {way['passes'][0]}/{way['passes'][1]}, {over[order]}"
            for order, way in ways.items()
        } | {"auto": f"{ways['auto']['order']}, {over['auto']}"}
        row = [name, f"{ways['keep']['edges'] / 1e6:.2f} M", *(cells.get(order, "") for order in ORDERS)]
        rows.append(row + [f"{ways[k]['seconds']:.1f} s, {ways[k]['peak, MiB']} MiB" for k in ORDERS[3:]])
    return table(["graph", "edges", *ORDERS, "import dfs", "import auto"], rows)


def seeds(found: Cells) -> list[str]:
    """Personalized ranks of many seeds, and by programs that rank one at a time."""
    graphs = found["graphs"]
    first = next(iter(graphs.values()))

    def cell(graph: Cells, taken: list[float], said: str = "") -> str:
        ours, middle = graph["oocpr"], median(taken)
        times = middle * ours["seeds"] / ours["all seeds, seconds"]
        shown = f"{middle:.3g} s" if middle >= 1 else f"{1e3 * middle:.3g} ms"
        return f"{shown}, {times:,.0f}x{said}" if times >= 100 else f"{shown}, {times:.3g}x{said}"

    def of_peer(graph: Cells, name: str) -> str:
        known = graph["peers"][name]
        if "reason" in known:
            return str(known["reason"])
        return cell(graph, known["seconds a seed"], f", error {known['worst error']:.0e}")

    ways: dict[str, Callable[[Cells], list[float]]] = {
        "oocpr, one seed": lambda ours: ours["one seed, seconds"],
        "oocpr, 32 seeds, each": lambda ours: [taken / 32 for taken in ours["32 seeds, seconds"]],
        f"oocpr, {first['oocpr']['seeds']:,} seeds, each": lambda ours: [
            ours["all seeds, seconds"] / ours["seeds"]
        ],
    }
    rows = [
        [way, *(cell(graph, of(graph["oocpr"])) for graph in graphs.values())] for way, of in ways.items()
    ]
    rows += [[peer, *(of_peer(graph, peer) for graph in graphs.values())] for peer in first["peers"]]
    head = ["", *(f"{name} ({graph['edges'] / 1e6:.1f} M edges)" for name, graph in graphs.items())]
    return table(head, rows)


def device_seeds(found: Cells) -> list[str]:
    """Personalized ranks of many seeds on a device: one by itself, in turn, and side by side."""
    rows = []
    for name, graph in found["graphs"].items():
        ones = graph["one seed, seconds"]
        usual, in_turn = median(ones), graph["8 seeds one after the other, seconds"]
        rows.append([f"{name}, one seed", seconds(ones), "", ""])
        rows.append(
            [
                f"{name}, 8 seeds in turn",
                seconds([in_turn]),
                f"{in_turn / 8:.3f} s",
                f"{in_turn / usual:.1f}x",
            ]
        )
        for count, cell in graph["side by side"].items():
            taken = median(cell["seconds"])
            rows.append(
                [
                    f"{name}, {count} seeds side by side", seconds(cell["seconds"]),
                    f"{taken / int(count):.3f} s", f"{taken / usual:.1f}x",
                ]
            )  # fmt: skip
        for peer, known in graph["peers"].items():
            if "reason" in known:
                rows.append([f"{name}, {peer}", known["reason"], "", ""])
                continue
            [taken], apart = known["seconds a seed"], known["worst error"]
            times = f"{taken / usual:.0f}x, {apart:.0e} apart"
            rows.append([f"{name}, {peer}, one seed", f"{taken:.0f} s", "", times])
    return table(["", "time", "each", "times one seed"], rows)


def page() -> str:
    """Text of docs/benchmarks.md."""
    memory, r28, r30 = load("device-memory-h200"), load("rmat28-h200"), load("rmat30-h200")
    one = memory["one device"]
    sections: list[tuple[str, str, list[str], str]] = [
        ("Passes until the residual is below 1e-10", cap.PASSES, passes(load("passes")), "passes"),
        ("Orders of the nodes, two cores", cap.ORDERS, orders(load("orders")), "orders"),
        ("What skipping tiles could save", cap.SKIPPING, skipping(load("skipping")), "skipping"),
        ("Systems of earlier papers, two cores", cap.PAPERS, papers(load("papers")), "papers"),
        ("Systems of earlier papers, one H200", cap.PAPERS_DEVICE,
         papers(load("papers-h200")), "papers-h200"),
        ("Systems of earlier papers, within little memory of one H200", cap.PAPERS_STREAMED,
         papers(load("papers-streamed-h200")), "papers-streamed-h200"),
        ("Subgraphs (Jiang 2014), two cores", cap.SUBGRAPHS, papers(load("subgraphs")), "subgraphs"),
        ("Subgraphs (Jiang 2014), 16 cores and one H200", cap.SUBGRAPHS_DEVICE,
         papers(load("subgraphs-h200")), "subgraphs-h200"),
        ("Numbers in segments, one H200", cap.SEGMENTS,
         segments(load("device-segments-h200")), "device-segments-h200"),
        ("Steps of the contest report, one H200", cap.CONTEST,
         contest(load("contest-h200")), "contest-h200"),
        ("Time to a true L1 error of 1e-10, two cores", cap.PEERS,
         peers(load("cpu-peers"), "times"), "cpu-peers"),
        ("Personalized ranks of many seeds, two cores", cap.SEEDS, seeds(load("seeds")), "seeds"),
        ("Personalized ranks of many seeds, one H200", cap.SEEDS_DEVICE,
         device_seeds(load("device-seeds-h200")), "device-seeds-h200"),
        ("One float64-accurate sweep in memory", cap.SWEEPS,
         peers(load("cpu-peers"), "sweeps", 1000.0, "ms"), "cpu-peers"),
        ("From disk, within 640 MiB", cap.DISKS, disk(load("disk-stream")), "disk-stream"),
        ("Tiles from the disk, nothing computed", cap.RATES, disk_rates(load("disk-stream")), "disk-stream"),
        ("Imports within 1 GiB", cap.IMPORTS, imports(load("imports")), "imports"),
        ("What Dask adds to a pass", cap.DASK, dask_cost(load("dask-cost")), "dask-cost"),
        ("What a plan predicts", cap.PLANS, predictions(load("predictions")), "predictions"),
        ("One H200, graph in its memory", cap.DEVICE,
         device_runs(load("device-rank-h200")), "device-rank-h200"),
        ("From the store to the ranks, one H100", cap.START,
         starts(load("device-start-h100")), "device-start-h100"),
        ("From the store to the ranks, 4.26 and 17.1 G edges, one H200", cap.START_LARGE,
         starts(load("device-start-large-h200")), "device-start-large-h200"),
        ("Every product, resident and within 2 GiB of one H200", cap.KERNELS,
         device_kernels(load("device-kernels-h200")), "device-kernels-h200"),
        ("Products alone on one H200", cap.PRODUCT,
         device_products(load("device-papers-h200")), "device-papers-h200"),
        ("Streamed from pinned memory, one H200", cap.STREAM,
         device_streams(load("device-stream-h200")), "device-stream-h200"),
        ("R-MAT of 1.06 G edges in less and less memory of one H200", cap.BUDGETS, budgets({
            "all of it": one["all the device has"], "4 GiB": one["4GiB"],
            "1 GiB": one["1GiB, rows in memory of the host"],
            "512 MiB": one["512MiB, rows in memory of the host"],
            "1 GiB, 5 GiB of the host": one[
                "1GiB within 5GiB of the host, rows in its memory, tiles as stored"],
        }), "device-memory-h200"),
        ("R-MAT of 1.06 G edges on several H200s", cap.SEVERAL,
         several(load("device-several-h200")), "device-several-h200"),
        ("R-MAT of 1.06 G edges on two H200s, in one process and by Dask workers", cap.WORKERS,
         workers(load("device-workers-two-h200")), "device-workers-two-h200"),
        ("From the store to the ranks, one and two H200s", cap.TWO,
         starts(load("device-start-two-h200")), "device-start-two-h200"),
        ("R-MAT of 4.3 G edges, one H200", cap.R28, budgets({
            "all of it": r28["all the device has"], "14 GiB": r28["14GiB"],
            "2 GiB": r28["2GiB, rows in memory of the host"],
        }), "rmat28-h200"),
        ("R-MAT of 17.1 G edges", cap.R30, budgets({
            "one H200": r30["one device, all it has"], "one, 48 GiB of it": r30["one device, 48GiB"],
            "two": r30["two devices"],
            "four, an earlier version": r30[
                "four devices, when they still joined the tiles that stay on them"]["four devices"],
        }), "rmat30-h200"),
    ]  # fmt: skip
    lines = ["# Benchmarks", "", *cap.INTRODUCTION.strip().splitlines(), ""]
    for title, text, body, name in sections:
        lines += [f"## {title}", "", *text.strip().splitlines(), "", *body, "", *provenance(name), ""]
    return "\n".join(lines)


def summary() -> str:
    """Six rows for the README, losses included."""
    cpu, streams = load("cpu-peers"), _graphs(load("device-stream-h200"))
    runs = _graphs(load("device-rank-h200"))
    files = load("imports")["imports"]["txt"]
    stored = load("disk-stream")["measured"]

    def processors(kind: str, graph: str, peer: str, scale: float = 1.0, unit: str = "s") -> list[str]:
        cells = cpu[kind][graph]
        ours, other = (cells[name]["seconds"] for name in ("oocpr", peer))
        return [
            seconds(ours, scale, unit),
            f"{cap.PROGRAMS[peer]}: {seconds(other, scale, unit)}, {median(other) / median(ours):.2f}x",
        ]

    degree, grid = stored["rank keep, direct"]["pass_seconds_all"][1:], stored["GridGraph"]["pass_seconds"]
    text, gap = (
        [run["process_seconds"] for run in files[name]["runs"]] for name in ("oocpr", "gap-converter")
    )
    run = _planned(runs["rmat26 permuted"])
    cusparse = runs["rmat26 permuted"]["cuSPARSE seconds to true error"]["1e-10"]
    stream = next(c for key, c in streams["rmat26 by degree"].items() if key.endswith("(planned)"))
    plain = streams["rmat26 by degree"]["power iteration, plain columns"]
    rows = [
        ["65 M edges in memory to 1e-10, two cores", *processors("times", "rmat22", "gap-pr")],
        ["one sweep over 16 M edges in memory, two cores",
         *processors("sweeps", "rmat20", "gap-pr_spmv", 1000.0, "ms")],
        ["a pass over 131 M edges from disk in 640 MiB, two cores", seconds(degree),
         f"GridGraph, float32: {grid:.2f} s, {grid / median(degree):.1f}x"],
        ["134 M edges imported from text in 1 GiB, two cores", seconds(text),
         f"GAP's converter: {seconds(gap)}, {median(gap) / median(text):.1f}x"],
        ["1.06 G edges in memory of an H200 to 1e-10", f"{1e3 * run['seconds']:.0f} ms",
         f"cuSPARSE, float64: {1e3 * cusparse:.0f} ms, {cusparse / run['seconds']:.1f}x"],
        ["the same, streamed to it", f"{1e3 * stream['seconds']:.0f} ms",
         f"power iteration, plain columns: {1e3 * plain['seconds']:.0f} ms, {plain['factor']:.1f}x"],
    ]  # fmt: skip
    return "\n".join(table(["", "oocpr", "beside it, and its factor"], rows)) + "\n"


def main() -> int:
    """Write both texts, or compare them with what is there."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a text differs")
    readme = README.read_text(encoding="utf-8")
    head, rest = readme.split(BEGIN)
    texts = {PAGE: page(), README: f"{head}{BEGIN}{summary()}{END}{rest.split(END)[1]}"}
    different = [path for path, text in texts.items() if not path.exists() or path.read_text() != text]
    if parser.parse_args().check:
        for path in different:
            print(f"{path.relative_to(ROOT)} is not what the results say; run workflows/bench/tables.py.")
        return 1 if different else 0
    for path in different:
        path.write_text(texts[path], encoding="utf-8")
        print(f"{path.relative_to(ROOT)} written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
