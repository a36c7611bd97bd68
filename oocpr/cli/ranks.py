"""Commands that rank, and that look at ranks."""

from __future__ import annotations

import sys
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oocpr.cli import NOT_CONVERGED, fail
from oocpr.cli.graphs import source_options
from oocpr.cli.options import (
    Command,
    check_output,
    cluster_options,
    device_options,
    emit,
    emit_json,
    io_option,
    json_option,
    kernel_option,
    naming_stdout,
    output_file,
    reproducible_option,
    write_notices,
)
from oocpr.cli.tables import pairs, ranking, summary
from oocpr.errors import OocprError, UsageError
from oocpr.units import MAX_L1_DISTANCE, format_bound, format_error_bound

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oocpr.api.graphs import Graph
    from oocpr.cli.options import Session
    from oocpr.result.ranks import Ranks, Report
    from oocpr.result.verify import Verification

_LINES = 1 << 10


def _ranks_file(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    from oocpr.result.rank_files import SUFFIXES

    if value is not None:
        check_output(value, SUFFIXES)
    return value


@click.command(
    cls=Command,
    examples="""
    oocpr rank links.txt.gz --top 10
    oocpr rank web.zarr -o ranks.parquet --json run.json
    oocpr rank web.zarr --damping 0.99 --reads float32 --tol 1e-8 --memory 2GiB
    oocpr rank web.zarr -o - --sort rank | head
    oocpr rank web2.zarr --start ranks.parquet -o ranks2.parquet
    oocpr rank web.zarr --device cuda:all --device-memory 40GiB
    """,
)
@click.argument("graph", metavar="G.zarr|SOURCE")
@click.option(
    "--damping", type=float, default=0.85, show_default=True, help="Probability of following a link."
)
@click.option(
    "--tol",
    type=float,
    default=1e-10,
    show_default=True,
    help="Where to stop: certified bound on the L1 error of the ranks.",
)
@click.option(
    "--stop",
    default="certified",
    show_default=True,
    metavar="certified|residual",
    help="What --tol bounds: the error, or the L1 norm of the residual, as papers count.",
)
@click.option(
    "--method",
    default="auto",
    show_default=True,
    metavar="NAME",
    help="components (in memory, for graphs that fit), mixed (fewest passes over tiles), residual (one "
    "product a pass), power (textbook) or auto, which takes one of the first two.",
)
@click.option(
    "--reads",
    metavar="NAME",
    help="How ranks are gathered: float64, float32, bits16 or bits8. The answer is as exact with each.  "
    "[default: bits16; float32 with components, float64 with power]",
)
@click.option(
    "--dangling",
    default="strongly",
    show_default=True,
    metavar="strongly|weakly",
    help="Rank of nodes without out-links follows the teleport vector, or is spread evenly.",
)
@click.option(
    "--personalization",
    metavar="FILE",
    help="Teleport weights: a node, or a node, a tab and a weight, on each line.  [default: all nodes alike]",
)
@click.option(
    "--start",
    metavar="R",
    help="Ranks to begin from, such as those of an earlier version of the graph: R.parquet, R.csv or "
    "R.zarr. The answer is as exact with any; near ones save passes.  [default: the teleport weights]",
)
@click.option("--max-passes", type=int, metavar="N", help="Give up after so many.  [default: ample]")
@click.option(
    "--memory", metavar="SIZE", help="Most memory of the process.  [default: what the machine has free]"
)
@click.option(
    "--stripes",
    type=int,
    metavar="N",
    help="Parts of the graph that advance side by side.  [default: by size]",
)
@click.option("--threads", type=int, metavar="N", help="Computing threads.  [default: all cores, 16 at most]")
@reproducible_option
@io_option
@device_options
@kernel_option
@click.option(
    "--trace",
    metavar="FILE.json",
    callback=output_file,
    help="Write a timeline of the run, which Perfetto and chrome://tracing draw: when each tile was read, "
    "sent to the device and computed.",
)
@click.option(
    "--predict",
    is_flag=True,
    help="Measure for a second first, as `oocpr plan` does, and say what time was predicted beside what it "
    "took.",
)
@click.option(
    "--top",
    "top_k",
    type=click.IntRange(0),
    default=10,
    show_default=True,
    metavar="K",
    help="Print the first K.",
)
@click.option(
    "-o",
    "--output",
    metavar="R",
    callback=_ranks_file,
    help="Write all ranks: R.parquet, R.csv, R.zarr, or - for CSV on standard output.",
)
@click.option(
    "--sort", default="node", show_default=True, metavar="node|rank", help="Order of the rank file."
)
@json_option("the run's figures and the first K")
@source_options
@click.option(
    "--tmp", metavar="DIR", help="Where a SOURCE is imported to meanwhile.  [default: the system's]"
)
@cluster_options
@click.pass_obj
def rank(
    session: Session,
    /,
    graph: str,
    top_k: int,
    output: str | None,
    sort: str,
    json_path: str | None,
    memory: str | None,
    tmp: str | None,
    **parameters: Any,
) -> int:
    """Rank the nodes of a graph.

    The graph is a store made by `oocpr import`, or any source that it reads; a source is imported to a
    temporary store first. The ranks sum to one. Their L1 distance from the exact ranks is certified, whatever
    --method and --reads are.
    """
    from oocpr import api
    from oocpr.api.arguments import ImportOptions
    from oocpr.engine.executors.dask_client import worker_count
    from oocpr.engine.planning import KERNEL_BYTES
    from oocpr.result.names import names_of
    from oocpr.result.rank_files import check_room, check_sort
    from oocpr.store.atomic import clear_abandoned

    if check_sort(sort) != "node" and (output is None or output.endswith(".zarr")):
        raise UsageError(
            f"--sort {sort} is for files in that order, and {output or 'no file'} "
            f"{'has the order of the store' if output else 'is written'}.",
            "Name an R.parquet or R.csv with -o, or leave --sort out.",
        )
    if output == "-" and json_path == "-":
        raise UsageError("-o - and --json - both want standard output.", "Name a file for one of them.")
    removed = [] if output in (None, "-") else clear_abandoned(Path(output))
    with session.progress() as progress:
        opened = api.as_graph(
            graph,
            memory=memory,
            tmp=tmp,
            progress=progress,
            **{name: parameters.pop(name) for name in ImportOptions.__annotations__},
        )
        # Before hours of work rather than after them.
        texts = int(opened.store.has_labels)
        _require_memory(opened.store.nodes, memory, output, sort, top_k, texts, KERNEL_BYTES)
        if output not in (None, "-"):
            check_room(Path(output), opened.nodes, names_of(opened.store))
        workers = 0 if parameters["client"] is None else worker_count(parameters["client"])
        failures: list[OocprError] = []
        try:
            ranks = api.pagerank(opened, memory=memory, progress=progress, **parameters)
        except OocprError as error:
            if error.ranks is None:
                raise
            ranks = error.ranks
            failures.append(error)
    write_notices([*removed, *opened.notices])
    run = ranks.run
    assert run is not None, "pagerank always says what it did"
    if run.workers < workers:
        idle = f"{workers - run.workers} of {workers} workers had nothing to do"
        write_notices([f"{idle}; {_idle(run, opened)}."])
    # What is computed is not lost with the place where it was to go.
    if output is not None:
        failures += _write(ranks, output, sort)
    if json_path is not None:
        try:
            _emit_report(ranks, top_k, json_path)
        except OocprError as error:
            failures.append(error)
    if "-" not in (output, json_path):
        emit(_ranking(ranks, top_k))
        emit(summary(run))
    else:
        sys.stderr.writelines(_ranking(ranks, top_k) if failures else ())
        sys.stderr.write(summary(run))
    for failure in failures:
        fail(failure.cause, failure.remedy, failure.exit_code)
    return failures[0].exit_code if failures else _exit_code(run)


@click.command(
    cls=Command,
    examples="""
    oocpr top ranks.parquet -k 20
    oocpr top ranks.csv --json -
    """,
)
@click.argument("ranks", metavar="R")
@click.option("-k", type=click.IntRange(0), default=10, show_default=True, metavar="K", help="How many.")
@click.option(
    "--memory", metavar="SIZE", help="Most memory of the process.  [default: what the machine has free]"
)
@json_option("the list")
def top(ranks: str, k: int, memory: str | None, json_path: str | None) -> None:
    """List the nodes of largest rank.

    R is a file of `oocpr rank -o`, or any .parquet or .csv with the columns node and rank. Equal ranks keep
    the order of the file.
    """
    from oocpr.result.rank_files import read_ranks

    found = read_ranks(ranks)
    _require_memory(len(found), memory, None, "node", k, int(found.names.textual))
    if json_path != "-":
        emit(_ranking(found, k))
    if json_path is not None:
        _emit_report(found, k, json_path)


@click.command(
    cls=Command,
    examples="""
    oocpr verify web.zarr ranks.parquet
    oocpr verify web.zarr others.csv --damping 0.9 --tol 1e-9
    """,
)
@click.argument("graph", metavar="G.zarr")
@click.argument("ranks", metavar="R")
@click.option(
    "--damping", type=float, help="Probability of following a link.  [default: as the file says, else 0.85]"
)
@click.option(
    "--dangling",
    metavar="strongly|weakly",
    help="Where the rank of nodes without out-links goes.  [default: as the file says, else strongly]",
)
@click.option("--personalization", metavar="FILE", help="Teleport weights, as given to `oocpr rank`.")
@click.option(
    "--tol",
    type=float,
    help="Bound to ask for; exit code 3 above it.  [default: the bound that the file claims]",
)
@click.option(
    "--memory", metavar="SIZE", help="Most memory of the process.  [default: what the machine has free]"
)
@json_option("residual and bound")
@click.pass_obj
def verify(
    session: Session, /, graph: str, ranks: str, tol: float | None, json_path: str | None, **parameters: Any
) -> int:
    """Bound the error of anybody's ranks, independently.

    In one float64 pass, in plain NumPy, each node pushes its rank to those it links to; what comes out is
    compared with what went in. R is a file of `oocpr rank -o`, or any .parquet or .csv with the columns node
    and rank.
    """
    from oocpr import api
    from oocpr.result.rank_files import read_ranks

    opened = api.open_graph(graph)
    found = read_ranks(ranks)
    with session.progress() as progress:
        outcome = api.verify(opened, ranks, progress=progress, **parameters)
    told = "certified by this pass, rounding included"
    if not outcome.bound < MAX_L1_DISTANCE:
        told = f"no information: no two distributions are farther than {MAX_L1_DISTANCE}"
    if json_path != "-":
        emit(
            pairs(
                [
                    ("residual", f"{outcome.residual:.3g}  (L1 norm of M p - p)"),
                    ("L1 error <=", f"{format_bound(outcome.bound)}  ({told})"),
                    ("sum of ranks", f"{outcome.total:.17g}"),
                    ("damping", f"{outcome.damping:g}, {outcome.dangling} preferential"),
                    ("graph", f"{outcome.identity}{_another_graph(outcome)}"),
                ]
            )
        )
    if json_path is not None:
        emit_json(asdict(outcome), json_path)
    wanted = tol if tol is not None else found.error_bound
    # What rounding in this very pass may have added is not held against the ranks.
    if wanted is None or outcome.residual - outcome.rounding <= wanted * (1 - outcome.damping):
        return 0
    return fail(
        f"{ranks}: an L1 error of {wanted:.3g} is not certified: {format_error_bound(outcome.bound)}"
        f"{_another_graph(outcome)}.",
        "Name the graph, damping and personalization of the run, or rank again.",
        NOT_CONVERGED,
    )


def _another_graph(outcome: Verification) -> str:
    """Say so if ranks are of another graph than the one they were compared with."""
    if outcome.ranks_identity in (None, outcome.identity):
        return ""
    return f"; the ranks are of another graph, {outcome.ranks_identity}"


def _ranking(ranks: Ranks, k: int) -> Iterator[str]:
    """Yield the text of a top list; a table that is drawn is one piece, as it has columns."""
    rest, first = ranks.each_of_top(k), 1
    while top := list(islice(rest, k if sys.stdout.isatty() else _LINES)):
        yield ranking(top, ranks.error_bound, first)
        first += len(top)


def _emit_report(ranks: Ranks, k: int, path: str) -> None:
    """Write what `Ranks.report` gives, the list of nodes one after the other."""
    entries = ({"node": node, "rank": rank} for node, rank in ranks.each_of_top(k))
    emit_json(ranks.report(0), path, entries)


def _idle(run: Report, opened: Graph) -> str:
    """Say why no more workers had a part of a graph."""
    if run.method == "components":
        return "method components ranks on one"
    tiles = opened.store.tiles
    return f"--stripes takes up to {tiles}" if tiles > run.workers else f"the graph has {tiles} tiles"


def _require_memory(
    nodes: int, memory: str | None, output: str | None, sort: str, k: int, texts: int, more: int = 0
) -> None:
    """Refuse memory in which ranks cannot be told, before the work of hours rather than after it."""
    from oocpr.engine.planning import given_memory
    from oocpr.result.rank_files import check_sort, check_writing_memory

    if output is None and k <= _LINES:
        return
    order = "rank" if 4 * k > nodes else check_sort(sort)
    kind = "" if output is None else Path(output).suffix or ".csv"
    check_writing_memory(nodes, given_memory(memory), sort=order, suffix=kind, texts=texts, more=more)


def _write(ranks: Ranks, output: str, sort: str) -> list[OocprError]:
    """Write all ranks, elsewhere if they cannot be written where they should; returns why not."""
    from oocpr.result.rank_files import write_elsewhere, write_ranks

    path = Path("ranks.csv" if output == "-" else output)
    try:
        if output == "-":
            with naming_stdout():
                ranks.to_csv(sys.stdout.buffer, sort=sort)
                sys.stdout.buffer.flush()
        else:
            write_ranks(ranks, path, sort)
    except OocprError as error:
        found = write_elsewhere(ranks, path, sort)
        told = "No other folder takes them either." if found is None else f"All ranks are in {found} instead."
        kept = type(error)(error.cause, f"{told} {error.remedy}")
        return [kept]
    return []


def _exit_code(run: Report) -> int:
    if run.converged:
        return 0
    return fail(
        f"not converged after {run.passes} pass{'es' * (run.passes != 1)}: "
        f"certified {format_error_bound(run.error_bound)}, tol is {run.tol:.3g}.",
        "The ranks and their bound are given nevertheless; allow more with --max-passes.",
        NOT_CONVERGED,
    )
