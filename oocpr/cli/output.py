"""Answers: where they go, and how they look as aligned text, JSON, or tables on a terminal."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oocpr.cli.options import in_flags
from oocpr.errors import DoesNotFitError, OocprError, UsageError
from oocpr.system import is_disk_full
from oocpr.units import (
    format_bytes,
    format_count,
    format_error_bound,
    format_passes,
    format_seconds,
    printable,
)

if TYPE_CHECKING:
    from oocpr.api import Graph, PersonalRanks, Ranks
    from oocpr.progress import Reporter
    from oocpr.result.ranks import Report
    from oocpr.store.degrees import DegreeClass

_MIN_DECIMALS = 6
_MIN_COMPILE_SECONDS = 0.1
"""Seconds from which compiling is mentioned."""

LINES = 1 << 10
"""Lines of a list that are written at a time."""


def emit_json(value: object, target: str, last: Iterable[object] = ()) -> None:
    """Write a value as JSON to a file, or to standard output for ``-``.

    `last` has the entries of the empty list with which `value` ends, written one after the other.
    """
    from oocpr.store.atomic import replacing

    # JSON is UTF-8 whatever a terminal shows; halves of pairs, of file names, are escaped as JSON does it.
    data = (piece.encode("utf-8", "backslashreplace") for piece in _json(value, last))
    if target == "-":
        with naming_stdout():
            sys.stdout.flush()
            sys.stdout.buffer.writelines(data)
            sys.stdout.buffer.flush()
    else:
        with replacing(Path(target)) as temporary, temporary.open("wb") as file:
            file.writelines(data)


def _json(value: object, last: Iterable[object]) -> Iterator[str]:
    dump = functools.partial(json.dumps, indent=2, allow_nan=False, ensure_ascii=False)
    end = "]\n}"
    head = dump(value)
    opened = False
    for entry in last:
        yield ",\n" if opened else head.removesuffix(end) + "\n"
        opened = True
        yield "    " + dump(entry).replace("\n", "\n    ")
    yield f"\n  {end}\n" if opened else head + "\n"


def emit_report(ranks: Ranks, k: int, path: str) -> None:
    """Write what `Ranks.report` gives, the list of nodes one after the other."""
    entries = ({"node": node, "rank": rank} for node, rank in ranks.each_of_top(k))
    emit_json(ranks.report(0), path, entries)


def emit(pieces: str | Iterable[str]) -> None:
    """Write text to standard output, all of it or an error."""
    with naming_stdout():
        sys.stdout.writelines([pieces] if isinstance(pieces, str) else pieces)
        sys.stdout.flush()


def answer(text: str, value: object, json_path: str | None) -> None:
    """Print an answer, and write it as JSON if asked; JSON on standard output stands alone."""
    if json_path != "-":
        emit(text)
    if json_path is not None:
        emit_json(value, json_path)


def taken_graph(
    graph: str, memory: str | None, tmp: str | None, progress: Reporter, parameters: dict[str, Any]
) -> Graph:
    """Open or import the graph of a command; takes the options of its source out of the parameters."""
    from oocpr import api
    from oocpr.api.arguments import ImportOptions

    options: Any = {name: parameters.pop(name) for name in ImportOptions.__annotations__}
    return api.as_graph(graph, memory=memory, tmp=tmp, progress=progress, **options)


def write_notices(notices: Iterable[str]) -> None:
    """Write to standard error what a person should know of an import."""
    for notice in notices:
        sys.stderr.write(f"note: {in_flags(notice)}\n")


def notice_writer(reporter: Reporter) -> Callable[[str], None]:
    """Let a reporter write notices as `write_notices` does."""
    return lambda notice: reporter.write_line(f"note: {in_flags(notice)}")


@contextlib.contextmanager
def naming_stdout() -> Iterator[None]:
    """Give failures to write to standard output a cause and a remedy."""
    try:
        yield
    except (BrokenPipeError, OocprError):
        raise
    except OSError as error:
        discard_output()
        cause = f"standard output cannot be written: {error.strerror or error}."
        kind = DoesNotFitError if is_disk_full(error) else UsageError
        raise kind(cause, "Send it somewhere with room.") from error


def discard_output() -> None:
    """Let what is left of standard output go nowhere: Python would complain of it once more when it ends."""
    # What stands for standard output in a program may be no file.
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, sys.stdout.fileno())
        finally:
            os.close(nowhere)


def pairs(rows: Sequence[tuple[str, str]]) -> str:
    """Align names and values."""
    width = max(len(name) for name, _ in rows)
    return "".join(f"{name:<{width}}  {value}\n" for name, value in rows)


def ranking(top: Sequence[tuple[int | str, float]], bound: float | None, first: int = 1) -> str:
    """List the nodes of largest rank, drawn as a table if standard output is a terminal.

    As many decimals are printed as the certified error allows; `first` is the place of the first node.
    """
    digits = decimals(bound)
    rows = [(str(k), f"{rank:.{digits}f}", printable(node)) for k, (node, rank) in enumerate(top, first)]
    if sys.stdout.isatty():
        return _drawn(rows)
    return "".join(f"{place:>4}  {rank}  {node}\n" for place, rank, node in rows)


def decimals(bound: float | None) -> int:
    """Decimals of a rank whose last digit is still certified to about one.

    >>> decimals(8.4e-11), decimals(0.01), decimals(None)
    (10, 6, 12)
    """
    if bound is None:
        return 12
    return max(_MIN_DECIMALS, min(17, math.floor(-math.log10(max(bound, 1e-17)))))


def seed_rankings(ranks: PersonalRanks, k: int) -> Iterator[str]:
    """Yield, for each seed, a line with what it is called, and the list of its nodes of largest rank."""
    for seed, top, bound in zip(ranks.seeds, ranks.top(k), ranks.error_bound.tolist(), strict=True):
        yield f"{printable(seed)}\n{ranking(top, bound)}"


def write_answer(ranks: Ranks | PersonalRanks, output: str, **how: str) -> list[OocprError]:
    """Write all ranks, elsewhere if they cannot be written where they should; returns why not.

    `how` is what their `to_csv` and `to_parquet` take beside the path.
    """
    from oocpr.result.rank_files import write_elsewhere, write_ranks

    path = "ranks.csv" if output == "-" else output
    to_csv: Callable[..., None] = ranks.to_csv
    try:
        if output == "-":
            with naming_stdout():
                to_csv(sys.stdout.buffer, **how)
                sys.stdout.buffer.flush()
        else:
            write_ranks(ranks, path, **how)
    except OocprError as error:
        found = write_elsewhere(ranks, path, **how)
        where = (
            "No other folder takes them either." if found is None else f"All ranks are in {found} instead."
        )
        return [type(error)(error.cause, f"{where} {error.remedy}")]
    return []


def _drawn(rows: Sequence[tuple[str, str, str]]) -> str:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("", "rank", "node", header_style="bold")
    table.columns[0].justify = "right"
    # Narrow terminals take several lines for a name, and cut off nothing.
    table.columns[0].no_wrap = table.columns[1].no_wrap = True
    table.columns[2].overflow = "fold"
    for place, rank, node in rows:
        table.add_row(place, rank, Text(node))
    console = Console(file=sys.stdout)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def _compiling(run: Report) -> str:
    if run.compile_seconds < _MIN_COMPILE_SECONDS:
        return ""
    return f" (plus {format_seconds(run.compile_seconds)} compiling, once per machine)"


def seed_summary(ranks: PersonalRanks) -> str:
    """Return the line that ends a run of many seeds."""
    run = ranks.run
    seconds = run.seconds - run.compile_seconds
    return (
        f"{len(ranks):,} seeds, certified {format_error_bound(run.error_bound)} for each; "
        f"up to {format_passes(run.passes)} over {format_count(run.edges)} edges in {format_seconds(seconds)}"
        f"{_compiling(run)}: {format_seconds(seconds / len(ranks))} per seed, "
        f"peak memory {format_bytes(run.peak_memory)}\n"
    )


def summary(run: Report) -> str:
    """Return the lines that end a run: its certificate, its size and time, and what bounded it."""
    compiling = _compiling(run)
    preparing = ""
    if run.preparing_seconds is not None:
        preparing = f"preparing the products: {format_seconds(run.preparing_seconds)} of the device\n"
    start = ""
    if run.start_identity not in (None, run.identity):
        start = f"began with ranks of another graph, {run.start_identity}; this one is {run.identity}\n"
    device = f", of the device {format_bytes(run.peak_device_memory)}" if run.peak_device_memory else ""
    return (
        f"certified {format_error_bound(run.error_bound)}; "
        f"{format_passes(run.passes)} ({run.gathers:.1f} gathers) over "
        f"{format_count(run.edges)} edges in {format_seconds(run.seconds - run.compile_seconds)}{compiling}: "
        f"{run.gteps:.3g} GTEPS, "
        f"{run.bytes_per_edge:.2f} B/edge, peak memory {format_bytes(run.peak_memory)}{device}\n"
        f"{_sweeps(run)}{preparing}{_read(run)}{_bound_by(run)}{_predicted(run)}{start}"
    )


def _sweeps(run: Report) -> str:
    """How many passes read how much of each number, if not all of it."""
    if not run.sweeps:
        return ""
    bits = [64 * (number + 1) // len(run.sweeps) for number in range(len(run.sweeps))]
    parts = (f"{count} at {width} bits" for count, width in zip(run.sweeps, bits, strict=True))
    return f"passes after the first: {', '.join(parts)}\n"


def _read(run: Report) -> str:
    """How much came from the store, if it was read more than once."""
    if run.bytes_read < 1.01 * run.bytes_per_edge * run.edges:
        return ""
    rate = format_bytes(int(run.bytes_read / (run.seconds - run.compile_seconds)))
    how = "directly" if run.direct else "through the page cache"
    return f"read from the store: {format_bytes(run.bytes_read)} {how}, {rate}/s\n"


def _bound_by(run: Report) -> str:
    if not run.busy:
        return ""
    shares = {kind: seconds / run.seconds for kind, seconds in run.busy.items()}
    listed = (f"{kind} {share:.0%}" for kind, share in sorted(shares.items(), key=lambda of: -of[1]))
    return f"busy, of the time of the run: {', '.join(listed)}\n"


def _predicted(run: Report) -> str:
    predicted = run.predicted or {}
    if "seconds" not in predicted or run.pass_seconds is None:
        return ""
    from oocpr.result.page import predicted_rows

    rows = predicted_rows(run)
    return "predicted / found: " + ", ".join(f"{what} {one} / {other}" for what, one, other in rows) + "\n"


def _became(facts: dict[str, Any]) -> str:
    """What became of duplicate edges."""
    return {"sum": "added up", "count": "counted"}.get(facts["duplicate_weights"], "merged")


def imported(graph: Graph, seconds: float) -> str:
    """Return the line that ends an import."""
    facts = graph.info()
    edges, repeats = facts["edges"], facts["duplicates"]
    speed = float(f"{(edges + repeats) / max(seconds, 1e-9):.3g}")
    weights = f"{facts['weight_bytes_per_edge']:.2f} of them weights, " if facts["weighted"] else ""
    return (
        f"{graph.path}: {format_count(graph.nodes)} nodes, {format_count(edges)} edges, "
        f"{format_count(repeats)} duplicates {_became(facts)}, "
        f"{format_count(facts['self_loops'])} self-loops, "
        f"{format_count(facts['dangling'])} dangling; "
        f"{facts['bytes_per_edge']:.2f} B/edge, {weights}{format_bytes(facts['store_bytes'])} in all; "
        f"{format_seconds(seconds)}, {format_count(speed)} edges/s"
        f"{f'; {graph.reason}' if graph.reason else ''}\n"
    )


_BAR = 24
"""Letters of the longest bar of a table."""


def degree_table(classes: Sequence[DegreeClass]) -> str:
    """List nodes and edges by degrees, with a bar for the share of nodes of each in-degree.

    >>> from oocpr.store.degrees import DegreeClass
    >>> print(degree_table([DegreeClass(0, 0, 1, 0, 0, 0), DegreeClass(1, 1, 3, 3, 4, 4)]), end="")
    degree  nodes by in-degree                            edges  nodes by out-degree  edges
    0                        1  ########                      0                    0      0
    1                        3  ########################      3                    4      4
    """
    most = max(1, *(each.in_nodes for each in classes))
    rows = [["degree", "nodes by in-degree", "", "edges", "nodes by out-degree", "edges"]]
    for each in classes:
        degrees = f"{each.lowest:,}" + (f" to {each.highest:,}" if each.highest > each.lowest else "")
        bar = "#" * -(-_BAR * each.in_nodes // most)
        counts = f"{each.in_nodes:,}", bar, f"{each.in_edges:,}", f"{each.out_nodes:,}", f"{each.out_edges:,}"
        rows.append([degrees, *counts])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    def line(row: Sequence[str]) -> str:
        cells = zip("<><>>>", row, widths, strict=True)
        return "  ".join(f"{cell:{side}{width}}" for side, cell, width in cells).rstrip()

    return "".join(f"{line(row)}\n" for row in rows)


def described(facts: dict[str, Any]) -> str:
    """Align what `Graph.info` gives."""
    edges = max(facts["edges"], 1)
    weighted = facts["weighted"]
    weights = f"yes, {facts['weight_bytes_per_edge']:.3f} B/edge" if weighted else "no"
    tiles = "columns, weights" if weighted else "columns"
    rows = [
        ("nodes", f"{facts['nodes']:,}"),
        ("edges", f"{facts['edges']:,}"),
        ("weighted", weights),
        ("dangling", f"{facts['dangling']:,} nodes without out-edges{' of any weight' * weighted}"),
        ("self-loops", f"{facts['self_loops']:,}"),
        ("duplicates", f"{facts['duplicates']:,} {_became(facts)} at import"),
        ("order", facts["order"]),
        ("names", facts["names"]),
        ("source", facts["source"]),
        ("tiles", f"{facts['tiles']:,} of up to {facts['tile_edges']:,} edges"),
        (tiles, f"{facts['bytes_per_edge']:.3f} B/edge, all that is needed to decode them included"),
        ("whole store", f"{format_bytes(facts['store_bytes'])}, {facts['store_bytes'] / edges:.3f} B/edge"),
        ("identity", facts["identity"]),
    ]
    arrays = [
        (f"  {name}", f"{format_bytes(size)}, {size / edges:.3f} B/edge")
        for name, size in facts["arrays"].items()
    ]
    return pairs(rows + arrays)


def check_memory(
    nodes: int, memory: str | int | None, output: str | None, sort: str, k: int, *, texts: bool, more: int = 0
) -> None:
    """Refuse memory in which ranks cannot be listed or written; see `check_writing_memory`."""
    from oocpr.engine.planning import given_memory
    from oocpr.result.rank_files import check_sort, check_writing_memory

    most = given_memory(memory)
    if output is None and k <= LINES:
        return
    order = "rank" if 4 * k > nodes else check_sort(sort)
    suffix = "" if output is None else Path(output).suffix or ".csv"
    check_writing_memory(nodes, most, sort=order, suffix=suffix, texts=int(texts), more=more)
