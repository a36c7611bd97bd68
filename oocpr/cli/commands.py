"""The commands: each reads its options, calls `oocpr.api` and prints the answer."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oocpr import __version__
from oocpr.cli import EXIT_CODES, NOT_CONVERGED, UNEXPECTED, fail, fail_for, options
from oocpr.cli.centrality import centrality
from oocpr.cli.options import Group, Session, argument
from oocpr.cli.output import (
    LINES,
    answer,
    check_memory,
    degree_table,
    described,
    emit,
    emit_json,
    emit_report,
    imported,
    notice_writer,
    pairs,
    ranking,
    seed_rankings,
    seed_summary,
    summary,
    taken_graph,
    write_answer,
    write_notices,
)
from oocpr.errors import DoesNotFitError, OocprError, UsageError, masked
from oocpr.units import MAX_L1_DISTANCE, format_bound, format_error_bound, format_passes, format_seconds

if TYPE_CHECKING:
    from oocpr.api import Graph, Ranks
    from oocpr.engine.checkpoint import Checkpoints
    from oocpr.result.ranks import Report
    from oocpr.result.verify import Verification

_BENCH = Path(__file__).parents[2] / "workflows" / "bench"
"""Programs of the benchmarks, which a checkout has and an installed package has not."""


class _Root(Group):
    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), text) for code, text in sorted(EXIT_CODES.items())])


@click.group(cls=_Root, params=[*options.COMMON], context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="oocpr", message="%(prog)s %(version)s")
def cli() -> None:
    """PageRank for graphs larger than memory, with a certified error bound.

    Try `oocpr rank links.txt.gz --top 10`, or keep the graph for later with `oocpr import`. Each command's
    --help has examples.
    """


@cli.command(
    "import",
    params=[options.SOURCE, *options.BUILD, *options.LABELED_EDGES, *options.CLUSTER],
    examples="""
    oocpr import links.txt.gz -o links.zarr
    oocpr import web.mtx.xz -o web.zarr --memory 1GiB --order auto
    oocpr import deps.txt.gz --labels names.txt.gz -o deps.zarr
    oocpr import parts/ --source-column citing --target-column cited -o papers.zarr
    oocpr import from.npy to.npy -o pairs.zarr
    oocpr import trips.txt --weight 3 -o trips.zarr
    oocpr import trips.csv --source-column home --target-column work --weight amount -o trips.zarr
    oocpr import links.txt --delimiter ':' --source-column 3 --target-column 1 -o links.zarr
    oocpr import - -o both.zarr < both.txt
    oocpr import 'crawl-*.txt.gz' -o crawl.zarr --resume
    oocpr import parts/ -o web.zarr --scheduler tcp://10.0.0.1:8786
    """,
)
@click.pass_obj
def import_(session: Session, /, source: tuple[str, ...], output: str, **parameters: Any) -> None:
    """Turn a graph in any format into a store.

    SOURCE is an edge list (from, to; tabs or spaces; # and % comments), CSV, JSON lines, Matrix Market, gr0
    or hollins file, plain or compressed as .gz, .xz, .bz2 or .zst; a SciPy .npz, NumPy .npy, Parquet or
    BVGraph file; a folder of Parquet files; a URL such as s3://bucket/links.parquet; or - for standard input.
    Several files, or a pattern in quotes, are read as one graph. Delimiter, header and columns are found by
    the first lines, and a note says what was found; --delimiter, --header, --no-header, --source-column and
    --target-column decide it. A duplicate edge counts once, with the sum of its weights, unless --duplicates
    says otherwise; self-loops are kept. The store appears under its name only when it is whole.

    An import that may be interrupted is given --resume from the start, and again, with the same sources and
    options, to go on. Until it is done, what is finished is in G.zarr.unfinished, in 4 to 8 bytes an edge,
    in up to 16 for named nodes and for orders other than keep, and in 8 or 16 more with weights.
    """
    _import(session, source, output, parameters)


def _import(session: Session, source: Any, output: str, parameters: dict[str, Any]) -> None:
    from oocpr import api

    began = time.monotonic()
    with session.progress() as progress:
        graph = api.import_graph(
            source, output, progress=progress, on_message=notice_writer(progress), **parameters
        )
    write_notices(graph.notices)
    emit(imported(graph, time.monotonic() - began))


@cli.command(
    params=[
        options.GRAPH, options.SOURCE, options.STORE, options.BUILD_MEMORY, options.TMP, options.OVERWRITE,
        *options.EDGES, *options.CLUSTER,
    ],
    examples="""
    oocpr append web.zarr monday.txt.gz -o web2.zarr
    oocpr append pages.zarr 'links-*.tsv' -o pages.zarr --overwrite
    oocpr append web.zarr monday.txt -o web2.zarr --scheduler tcp://10.0.0.1:8786
    oocpr rank web2.zarr --start ranks.parquet -o ranks2.parquet
    """,
)  # fmt: skip
@click.pass_obj
def append(session: Session, /, graph: str, source: tuple[str, ...], output: str, **parameters: Any) -> None:
    """Add edges to a graph that was imported with order keep.

    A new store is made, the same as by an import of all sources together, but the old edges are not sorted
    again, and tiles before the first new edge are copied. Nodes are the same where they have the same id or,
    if the graph has names, the same name. To a graph with weights come edges with weights, and duplicates
    become what they became when it was imported; sums may differ in their last digits from those of one
    import. Dask workers make all tiles anew, to the same store; to a graph with names this process adds edges
    alone.
    """
    from oocpr import api

    began = time.monotonic()
    with session.progress() as progress:
        made = api.append(graph, source, output, progress=progress, **parameters)
    write_notices(made.notices)
    emit(imported(made, time.monotonic() - began))


@cli.group(cls=Group)
def generate() -> None:
    """Make a synthetic graph of any size."""


@generate.command(
    params=[*options.RMAT, *options.BUILD, options.DUPLICATE_EDGES, *options.CLUSTER],
    examples="""
    oocpr generate rmat --scale 20 -o rmat20.zarr
    oocpr generate rmat --scale 24 --seed 7 --memory 2GiB -o big.zarr
    """,
)
@click.pass_obj
def rmat(session: Session, /, scale: int, output: str, **parameters: Any) -> None:
    """Make an R-MAT graph with the probabilities of Graph500, .57 .19 .19 .05.

    Edges that are drawn twice are counted once, so there are somewhat fewer than edge factor x nodes.
    """
    from oocpr.sources.rmat import Rmat

    drawn = {name: parameters.pop(name) for name in ("edge_factor", "seed", "permute")}
    _import(session, Rmat(scale, **drawn), output, parameters)


@generate.command(
    params=[*options.WU, *options.BUILD, *options.CLUSTER],
    examples="""
    oocpr generate wu --like su -o su-like.zarr
    oocpr generate wu --like edu-2001 --scale-down 8 -o small.zarr
    """,
)
@click.pass_obj
def wu(session: Session, /, like: str, scale_down: int, output: str, **parameters: Any) -> None:
    """Make a graph of the same shape as one of Wu et al. 2010, not the graph itself.

    Nodes and distinct edges are as many as rows and non-zeros in the paper. Its full distributions are not
    at hand: here in-degrees follow a truncated power law that meets the number of edges, out-degrees are
    skewed too, and nodes are shuffled. Three in ten nodes of Wikipedia's have no in-edges, which explains the
    times that Shan et al. 2010 give for an FPGA.
    """
    from oocpr.sources.wu import Wu

    _import(session, Wu(like, scale_down), output, parameters)


@cli.command(
    params=[options.GRAPH, *options.INFO],
    examples="""
    oocpr info web.zarr
    oocpr info web.zarr --degrees
    oocpr info web.zarr --json -
    """,
)
def info(graph: str, degrees: bool, json_path: str | None) -> None:
    """Say what a graph store holds, and the bytes of each part."""
    from oocpr import api

    opened = api.open_graph(graph)
    facts = opened.info()
    text = described(facts)
    if degrees:
        classes = opened.degrees()
        facts["degrees"] = [each._asdict() for each in classes]
        text += degree_table(classes)
    answer(text, facts, json_path)


@cli.command(
    params=[options.GRAPH, *options.PLAN],
    examples="""
    oocpr plan web.zarr --memory 2GiB
    oocpr plan web.zarr --reads bits8 --json -
    """,
)
@click.pass_obj
def plan(session: Session, /, graph: str, json_path: str | None, **parameters: Any) -> None:
    """Say what a run would need and how long it would take.

    The time of a pass comes from a probe of a second or two on tiles spread over the store, on all devices at
    once where several are named; bytes read and memory follow from the sizes of the graph. How many passes a
    graph needs shows only in a run: the number is the usual one, the range what graphs of all kinds were
    seen to need. Graphs of up to four million edges that fit are ranked to be timed. A run that does not fit
    ends with exit code 4, after the plan was printed.
    """
    from oocpr import api
    from oocpr.engine.planning import KERNEL_BYTES, given_memory

    with session.progress() as progress:
        made = api.plan(graph, progress=progress, **parameters)
    answer(f"{made}\n", made.to_json(), json_path)
    if parameters["memory"] is not None:
        opened = api.open_graph(graph)
        # Who is told what the run needs gives that much.
        most = max(given_memory(parameters["memory"]), made.need.total)
        try:
            check_memory(
                opened.nodes, most, "ranks.parquet", "node", 0,
                texts=opened.store.has_labels, more=KERNEL_BYTES,
            )  # fmt: skip
        except DoesNotFitError as error:
            write_notices([f"what writes ranks to a file does not fit: {error.remedy}"])
    made.validate()


@cli.command(
    params=[argument("graph", "G.zarr|SOURCE"), *options.RANK],
    examples="""
    oocpr rank links.txt.gz --top 10
    oocpr rank web.zarr -o ranks.parquet --json run.json
    oocpr rank web.zarr --damping 0.99 --reads float32 --tol 1e-8 --memory 2GiB
    oocpr rank web.zarr -o - --sort rank | head
    oocpr rank web2.zarr --start ranks.parquet -o ranks2.parquet
    oocpr rank web.zarr --seeds seeds.tsv --top 100 -o personal.parquet
    oocpr rank web.zarr --device cuda:all --device-memory 40GiB
    oocpr rank web.zarr -o ranks.parquet --checkpoint kept --resume --time-limit 4h
    """,
)
@click.pass_obj
def rank(
    session: Session,
    /,
    checkpoint: str | None,
    resume: bool,
    time_limit: str | None,
    report_path: str | None,
    **parameters: Any,
) -> int:
    """Rank the nodes of a graph.

    The graph is a store made by `oocpr import`, or any source that it reads; a source is imported to a
    temporary store first. The ranks sum to one. Their L1 distance from the exact ranks is certified, whatever
    --method and --reads are.
    """
    from oocpr.engine.checkpoint import kept_run

    if parameters["seeds"] is not None:
        if report_path is not None:
            raise UsageError("a report is of one run, not of many seeds.", "Use --json for their figures.")
        parameters |= {"checkpoint": checkpoint, "resume": resume, "time_limit": time_limit}
        return _rank_seeds(session, **parameters)
    with kept_run(checkpoint, resume=resume, time_limit=time_limit) as kept:
        return _rank(session, kept, report_path=report_path, **parameters)


def _rank_seeds(
    session: Session,
    *,
    graph: str,
    top_k: int,
    output: str | None,
    sort: str,
    json_path: str | None,
    tmp: str | None,
    **parameters: Any,
) -> int:
    """Rank once for each seed; the first of each are written, or printed if no file is named."""
    from oocpr import api

    if sort != "node" or (output is not None and output.endswith(".zarr")):
        raise UsageError(
            "ranks of many seeds are written by seed and rank, as Parquet or CSV.",
            "Name an R.parquet or R.csv with -o, and leave --sort out.",
        )
    _check_streams(output, json_path)
    with session.progress() as progress:
        opened = taken_graph(graph, parameters["memory"], tmp, progress, parameters)
        ranks = api.pagerank(opened, top=top_k, progress=progress, **parameters)
    write_notices(opened.notices)
    failures = [] if output is None else write_answer(ranks, output)
    if json_path is not None:
        emit_json(ranks.report(), json_path)
    if output is None and json_path != "-":
        emit(seed_rankings(ranks, top_k))
    sys.stderr.write(seed_summary(ranks))
    if code := fail_for(failures):
        return code
    left = len(ranks) - int(ranks.converged.sum())
    return _exit_code(ranks.run, f"{left:,} of {len(ranks):,} seeds have " * (left > 0))


def _check_streams(output: str | None, json_path: str | None) -> None:
    if output == "-" and json_path == "-":
        raise UsageError("-o - and --json - both want standard output.", "Name a file for one of them.")


def _rank(
    session: Session,
    kept: Checkpoints | None,
    *,
    graph: str,
    top_k: int,
    output: str | None,
    sort: str,
    json_path: str | None,
    report_path: str | None,
    memory: str | None,
    tmp: str | None,
    **parameters: Any,
) -> int:
    from oocpr import api
    from oocpr.engine.planning import KERNEL_BYTES
    from oocpr.result.names import names_of
    from oocpr.result.page import MAX_LISTED
    from oocpr.result.rank_files import check_room, check_sort
    from oocpr.store.atomic import clear_abandoned
    from oocpr.store.remote import is_url

    if check_sort(sort) != "node" and (output is None or output.endswith(".zarr")):
        raise UsageError(
            f"--sort {sort} is for files in that order, and {output or 'no file'} "
            f"{'has the order of the store' if output else 'is written'}.",
            "Name an R.parquet or R.csv with -o, or leave --sort out.",
        )
    _check_streams(output, json_path)
    removed = [] if output is None or output == "-" or is_url(output) else clear_abandoned(Path(output))
    with session.progress() as progress:
        opened = taken_graph(graph, memory, tmp, progress, parameters)
        # Before hours of work rather than after them.
        texts = opened.store.has_labels
        check_memory(opened.nodes, memory, output, sort, top_k, texts=texts, more=KERNEL_BYTES)
        if output not in (None, "-"):
            check_room(output, opened.nodes, names_of(opened.store))
        workers = 0
        if parameters["client"] is not None:
            from oocpr.engine.executors.dask_client import worker_count

            workers = worker_count(parameters["client"])
        failures: list[OocprError] = []
        try:
            ranks = api.pagerank(opened, memory=memory, checkpoint=kept, progress=progress, **parameters)
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
        failures += write_answer(ranks, output, sort=sort)
    title = f"PageRank of {Path(masked(graph)).name}"
    for path, write in (
        (json_path, partial(emit_report, ranks, top_k)),
        (report_path, partial(ranks.to_html, top=min(top_k, MAX_LISTED), title=title)),
    ):
        try:
            if path is not None:
                write(path)
        except OocprError as error:
            failures.append(error)
    if "-" not in (output, json_path):
        emit(_ranking(ranks, top_k))
        emit(summary(run))
    else:
        sys.stderr.writelines(_ranking(ranks, top_k) if failures else ())
        sys.stderr.write(summary(run))
    if kept is not None:
        # Ranks that could not be written are a few passes away.
        kept.unfinished |= bool(failures) and kept.number is not None
        write_notices([kept.hint] if kept.unfinished else [])
    return fail_for(failures) or _exit_code(run)


cli.add_command(centrality)


@cli.command(
    params=[options.RANKS, *options.TOP],
    examples="""
    oocpr top ranks.parquet -k 20
    oocpr top ranks.csv --json -
    """,
)
def top(ranks: str, k: int, memory: str | None, json_path: str | None) -> None:
    """List the nodes of largest rank.

    R is a file of `oocpr rank -o`, or any .parquet or .csv with the columns node and rank. Equal ranks keep
    the order of the file.
    """
    from oocpr.result.rank_files import read_ranks

    found = read_ranks(ranks)
    check_memory(len(found), memory, None, "node", k, texts=found.names.textual)
    if json_path != "-":
        emit(_ranking(found, k))
    if json_path is not None:
        emit_report(found, k, json_path)


@cli.command(
    params=[options.GRAPH, options.RANKS, *options.VERIFY],
    examples="""
    oocpr verify web.zarr ranks.parquet
    oocpr verify web.zarr others.csv --damping 0.9 --tol 1e-9
    """,
)
@click.pass_obj
def verify(
    session: Session, /, graph: str, ranks: str, tol: float | None, json_path: str | None, **parameters: Any
) -> int:
    """Bound the error of anybody's ranks, independently.

    In one float64 pass, in plain NumPy, each node pushes its rank along its edges; what comes out is
    compared with what went in. R is a file of `oocpr rank -o`, or any .parquet or .csv with the columns node
    and rank.
    """
    from oocpr import api
    from oocpr.result.rank_files import read_ranks

    if tol is not None and not 0 < tol < math.inf:
        raise UsageError(f"tol is {tol}, no number above 0.", "Use a value such as 1e-10.")
    opened = api.open_graph(graph)
    found = read_ranks(ranks)
    with session.progress() as progress:
        outcome = api.verify(opened, ranks, progress=progress, **parameters)
    meaning = "certified by this pass, rounding included"
    if not outcome.bound < MAX_L1_DISTANCE:
        meaning = f"no information: no two distributions are farther than {MAX_L1_DISTANCE}"
    rows = [
        ("residual", f"{outcome.residual:.3g}  (L1 norm of M p - p)"),
        ("L1 error <=", f"{format_bound(outcome.bound)}  ({meaning})"),
        ("sum of ranks", f"{outcome.total:.17g}"),
        ("damping", f"{outcome.damping:g}, {outcome.dangling} preferential"),
        ("graph", f"{outcome.identity}{_another_graph(outcome)}"),
    ]
    answer(pairs(rows), asdict(outcome), json_path)
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


@cli.command(
    examples="""
    oocpr warmup
    OOCPR_CACHE_DIR=/opt/oocpr oocpr warmup
    """
)
@click.pass_obj
def warmup(session: Session, /) -> None:
    """Compile ahead what import, rank on processors and top need.

    Such as while the image of a container is made. Compiled functions are kept under OOCPR_CACHE_DIR, else
    beside the package or in the user's cache; what is there already is not compiled again.
    """
    from oocpr.api.ranking import warmup as compile_ahead

    with session.progress() as progress:
        folder, seconds = compile_ahead(progress)
    where = f"kept in {folder}" if folder else "kept nowhere: no folder can be written, set OOCPR_CACHE_DIR"
    done = f"{format_seconds(seconds)} of compiling" if seconds else "nothing was left to compile"
    emit(f"{done}; {where}\n")


@cli.group(cls=Group)
def bench() -> None:
    """Run a program of the benchmarks, in a checkout of the sources."""


@bench.command(
    params=options.BENCH_PAPERS,
    examples="""
    oocpr bench papers --quick
    oocpr bench papers --graphs FOLDER --out papers.json --html papers.html
    oocpr bench papers --device cuda --rmat 24
    """,
)
def papers(**parameters: Any) -> int:
    """Compare the default with the systems of earlier papers.

    Each system ranks each graph, in turns, until an L1 error of 1e-10 is certified, and until the L1 change
    of a pass is below 1e-10. A table of each graph has median seconds, passes and the true error. The program
    is workflows/bench/papers.py of the checkout that oocpr runs from.
    """
    import subprocess

    program = _BENCH / "papers.py"
    if not program.exists():
        raise UsageError(
            "The benchmarks come with the sources of oocpr, not with the installed package.",
            "Run the command in a clone of the repository: uv run oocpr bench papers --quick.",
        )
    words = []
    for name, value in parameters.items():
        if value is not None and value is not False:
            words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    code = subprocess.run([sys.executable, program, *words], check=False).returncode
    return code if code in EXIT_CODES else UNEXPECTED


def _another_graph(outcome: Verification) -> str:
    """Say so if ranks are of another graph than the one they were compared with."""
    if outcome.ranks_identity in (None, outcome.identity):
        return ""
    return f"; the ranks are of another graph, {outcome.ranks_identity}"


def _ranking(ranks: Ranks, k: int) -> Iterator[str]:
    """Yield the text of a top list; a table that is drawn is one piece, as it has columns."""
    rest, first = ranks.each_of_top(k), 1
    while top := list(islice(rest, k if sys.stdout.isatty() else LINES)):
        yield ranking(top, ranks.error_bound, first)
        first += len(top)


def _idle(run: Report, opened: Graph) -> str:
    """Say why no more workers had a part of a graph."""
    if run.method == "components":
        return "method components ranks on one"
    tiles = opened.store.tiles
    return f"--stripes takes up to {tiles}" if tiles > run.workers else f"the graph has {tiles} tiles"


def _exit_code(run: Report, who: str = "") -> int:
    if run.converged:
        return 0
    return fail(
        f"{who}not converged after {format_passes(run.passes)}: "
        f"certified {format_error_bound(run.error_bound)}, tol is {run.tol:.3g}.",
        "The ranks and their bound are given nevertheless; allow more with --max-passes.",
        NOT_CONVERGED,
    )
