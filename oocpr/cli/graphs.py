"""Commands that make graph stores and look at them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

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
    notice_writer,
    options,
    reproducible_option,
    write_notices,
)
from oocpr.cli.tables import pairs
from oocpr.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from oocpr.api import Graph
    from oocpr.cli.options import Session

FORMATS = "text, csv, csv_names, jsonl, matrixmarket, npz, npy, parquet, bvgraph, gr0, hollins, names"


def _store(_: click.Context, __: click.Parameter, value: str) -> str:
    check_output(value, (".zarr",))
    return value


def source_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say how a source is read."""
    labels = click.option(
        "--labels",
        metavar="FILE",
        help="Names of the nodes: line i (from 0) belongs to node i; may be packed like the source.  "
        "[default: NAME.labels.txt or .tsv beside NAME.txt]",
    )
    return labels(edge_options(function))


def edge_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say how edges are read."""
    return options(
        click.option(
            "--format",
            metavar="NAME",
            help=f"How the source is written: {FORMATS}.  [default: by its name and first lines]",
        ),
        click.option("--undirected", is_flag=True, help="Take each edge in both directions."),
        click.option(
            "--source-column",
            metavar="NAME",
            help="Column that edges run from, by its name or, in CSV, by its number.  [default: src, "
            "source or from; or the first of two]",
        ),
        click.option(
            "--target-column",
            metavar="NAME",
            help="Column that edges run to, by its name or, in CSV, by its number.  [default: dst, "
            "target or to; or the second of two]",
        ),
        click.option(
            "--header/--no-header",
            default=None,
            help="The first line of a text, names or CSV file names its columns, or it is an edge.  "
            "[default: as the lines show]",
        ),
        _WEIGHT,
        _DUPLICATES,
    )(function)


def build_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say how a store is made of a source."""
    return options(
        _OUTPUT,
        _MEMORY,
        click.option(
            "--order",
            default="keep",
            show_default=True,
            metavar="keep|degree|host|bfs|auto",
            help="Order of the nodes: as in the source (right for crawls, where neighbours are near each "
            "other), by out-degree (right for graphs without locality), by name with the host reversed "
            "(right for URLs), as a breadth-first search meets them (right for graphs that were shuffled), "
            "or the best of these, as a sample of the links tells.",
        ),
        _TMP,
        _OVERWRITE,
        click.option(
            "--resume",
            is_flag=True,
            help="Keep what is finished, whatever ends the import, and go on with what the same command has "
            "kept before.",
        ),
    )(function)


_WEIGHT = click.option(
    "--weight",
    metavar="COLUMN",
    help="Where edges have weights: the name of a column of CSV, JSON lines or Parquet, the number of a "
    "column of text (3 as a rule), or `values` for those of a matrix.  [default: nowhere, all count alike]",
)
_DUPLICATES = click.option(
    "--duplicates",
    metavar="sum|merge|count",
    help="What an edge becomes that the source repeats: one edge with the sum of its weights; one with its "
    "greatest weight; or one whose weight is how often it comes.  [default: sum with weights, else merge]",
)
_OUTPUT = click.option(
    "-o",
    "--output",
    required=True,
    metavar="G.zarr",
    callback=_store,
    help="The graph store to make.",
)
_MEMORY = click.option(
    "--memory",
    default="4GiB",
    show_default=True,
    metavar="SIZE",
    help="Most memory of the whole process, such as 512MB or 8GiB.",
)
_TMP = click.option(
    "--tmp",
    metavar="DIR",
    help="Where to sort, with room for 4 to 24 bytes an edge, 8 or 16 more with a weight.  "
    "[default: beside G.zarr]",
)
_OVERWRITE = click.option(
    "--overwrite", is_flag=True, help="Replace an existing store once the new one is whole."
)


@click.command(
    "import",
    cls=Command,
    examples="""
    oocpr import links.txt.gz -o links.zarr
    oocpr import web.mtx.xz -o web.zarr --memory 1GiB --order auto
    oocpr import deps.txt.gz --labels names.txt.gz -o deps.zarr
    oocpr import parts/ --source-column citing --target-column cited -o papers.zarr
    oocpr import from.npy to.npy -o pairs.zarr
    oocpr import trips.txt --weight 3 -o trips.zarr
    oocpr import trips.csv --source-column start --target-column end --weight amount -o trips.zarr
    oocpr import - -o both.zarr < both.txt
    oocpr import 'crawl-*.txt.gz' -o crawl.zarr --resume
    oocpr import parts/ -o web.zarr --scheduler tcp://10.0.0.1:8786
    """,
)
@click.argument("source", metavar="SOURCE...", nargs=-1, required=True)
@build_options
@source_options
@cluster_options
@click.pass_obj
def import_(session: Session, /, source: tuple[str, ...], output: str, **parameters: Any) -> None:
    """Turn a graph in any format into a store.

    SOURCE is an edge list (from, to; tabs or spaces; # and % comments), CSV, JSON lines, Matrix Market, gr0
    or hollins file, plain or compressed as .gz, .xz, .bz2 or .zst; a SciPy .npz, NumPy .npy, Parquet or
    BVGraph file; a folder of Parquet files; a URL such as s3://bucket/links.parquet; or - for standard input.
    Several files, or a pattern in quotes, are read as one graph. A header is found by its words; --header and
    --no-header decide it. A duplicate edge counts once, with the sum of its weights, unless --duplicates says
    otherwise; self-loops are kept. The store appears under its name only when it is whole.

    An import that may be interrupted is given --resume from the start, and again, with the same sources and
    options, to go on. Until it is done, what is finished is in G.zarr.unfinished, in 4 to 8 bytes an edge,
    in up to 16 for named nodes and for orders other than keep, and in 8 or 16 more with weights.
    """
    from oocpr.api import import_graph

    began = time.monotonic()
    with session.progress() as progress:
        graph = import_graph(source, output, progress=progress, tell=notice_writer(progress), **parameters)
    write_notices(graph.notices)
    emit(_imported(graph, time.monotonic() - began))


@click.command(
    cls=Command,
    examples="""
    oocpr append web.zarr monday.txt.gz -o web2.zarr
    oocpr append pages.zarr 'links-*.tsv' -o pages.zarr --overwrite
    oocpr rank web2.zarr --start ranks.parquet -o ranks2.parquet
    """,
)
@click.argument("graph", metavar="G.zarr")
@click.argument("source", metavar="SOURCE...", nargs=-1, required=True)
@options(_OUTPUT, _MEMORY, _TMP, _OVERWRITE)
@edge_options
@cluster_options
@click.pass_obj
def append(session: Session, /, graph: str, source: tuple[str, ...], output: str, **parameters: Any) -> None:
    """Add edges to a graph that was imported with order keep.

    A new store is made, the same as by an import of all sources together, but the old edges are not sorted
    again, and tiles before the first new edge are copied. Nodes are the same where they have the same id or,
    if the graph has names, the same name. To a graph with weights come edges with weights, and duplicates
    become what they became when it was imported; sums may differ in their last digits from those of one
    import.
    """
    from oocpr import api

    began = time.monotonic()
    with session.progress() as progress:
        made = api.append(graph, source, output, progress=progress, **parameters)
    write_notices(made.notices)
    emit(_imported(made, time.monotonic() - began))


@click.group()
def generate() -> None:
    """Make a synthetic graph of any size."""


@generate.command(
    "rmat",
    cls=Command,
    examples="""
    oocpr generate rmat --scale 20 -o rmat20.zarr
    oocpr generate rmat --scale 24 --seed 7 --memory 2GiB -o big.zarr
    """,
)
@click.option("--scale", type=int, required=True, metavar="N", help="The graph has 2^N nodes.")
@click.option(
    "--edge-factor", type=int, default=16, show_default=True, metavar="N", help="Edges drawn for each node."
)
@click.option(
    "--seed", type=int, default=1, show_default=True, metavar="N", help="The same seed gives the same graph."
)
@click.option(
    "--permute/--no-permute",
    default=True,
    show_default=True,
    help="Shuffle the nodes, or leave the high degrees at the low ids.",
)
@build_options
@_DUPLICATES
@cluster_options
@click.pass_obj
def rmat(
    session: Session,
    /,
    scale: int,
    edge_factor: int,
    seed: int,
    permute: bool,
    output: str,
    **parameters: Any,
) -> None:
    """Make an R-MAT graph with the probabilities of Graph500, .57 .19 .19 .05.

    Edges that are drawn twice are counted once, so there are somewhat fewer than edge factor x nodes.
    """
    from oocpr.api import import_graph
    from oocpr.sources.rmat import Rmat

    source = Rmat(scale, edge_factor=edge_factor, seed=seed, permute=permute)
    began = time.monotonic()
    with session.progress() as progress:
        graph = import_graph(source, output, progress=progress, tell=notice_writer(progress), **parameters)
    write_notices(graph.notices)
    emit(_imported(graph, time.monotonic() - began))


@click.command(cls=Command, examples="oocpr info web.zarr\noocpr info web.zarr --json -")
@click.argument("graph", metavar="G.zarr")
@json_option("all of it")
def info(graph: str, json_path: str | None) -> None:
    """Say what a graph store holds, and the bytes of each part."""
    from oocpr.api import open_graph

    facts = open_graph(graph).info()
    if json_path != "-":
        emit(_described(facts))
    if json_path is not None:
        emit_json(facts, json_path)


@click.command(
    cls=Command, examples="oocpr plan web.zarr --memory 2GiB\noocpr plan web.zarr --reads bits8 --json -"
)
@click.argument("graph", metavar="G.zarr")
@click.option(
    "--damping", type=float, default=0.85, show_default=True, help="Probability of following a link."
)
@click.option("--tol", type=float, default=1e-10, show_default=True, help="Certified L1 error to reach.")
@click.option(
    "--method",
    default="auto",
    show_default=True,
    metavar="NAME",
    help="auto, components, mixed, residual or power.",
)
@click.option(
    "--reads", metavar="NAME", help="float64, float32, bits16 or bits8.  [default: what the method wants]"
)
@click.option(
    "--memory", metavar="SIZE", help="Most memory of the process.  [default: what the machine has free]"
)
@click.option("--stripes", type=int, metavar="N", help="Parts of the graph that advance side by side.")
@reproducible_option
@io_option
@device_options
@kernel_option
@json_option("the plan")
@click.pass_obj
def plan(session: Session, /, graph: str, json_path: str | None, **parameters: Any) -> None:
    """Say what a run would need and how long it would take.

    The time of a pass comes from a probe of a second or two on tiles spread over the store, on all devices at
    once where several are named; bytes read and memory follow from the sizes of the graph. How many passes a
    graph needs shows only in a run: the number is the usual one, the range what graphs of all kinds were
    seen to need. Graphs of up to four million links that fit are ranked to be timed. A run that does not fit
    ends with exit code 4, after the plan was printed.
    """
    from oocpr import api

    with session.progress() as progress:
        made = api.plan(graph, progress=progress, **parameters)
    if json_path != "-":
        emit(f"{made}\n")
    if json_path is not None:
        emit_json(made.to_json(), json_path)
    made.validate()


def _became(facts: dict[str, Any]) -> str:
    """Say what became of duplicate edges."""
    return {"sum": "added up", "count": "counted"}.get(facts["duplicate_weights"], "merged")


def _imported(graph: Graph, seconds: float) -> str:
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


def _described(facts: dict[str, Any]) -> str:
    edges = max(facts["edges"], 1)
    weighted = facts["weighted"]
    weights = f"yes, {facts['weight_bytes_per_edge']:.3f} B/edge" if weighted else "no"
    tiles = "columns, weights" if weighted else "columns"
    rows = [
        ("nodes", f"{facts['nodes']:,}"),
        ("edges", f"{facts['edges']:,}"),
        ("weighted", weights),
        ("dangling", f"{facts['dangling']:,} nodes without out-links{' of any weight' * weighted}"),
        ("self-loops", f"{facts['self_loops']:,}"),
        (
            "duplicates",
            f"{facts['duplicates']:,} {_became(facts)} at import",
        ),
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
