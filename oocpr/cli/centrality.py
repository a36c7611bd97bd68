"""The commands of Katz and eigenvector centrality, hubs and authorities."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from oocpr.cli import NOT_CONVERGED, fail, fail_for, options
from oocpr.cli.options import Group, Session, argument, option, output_option
from oocpr.cli.output import emit, emit_json, ranking, taken_graph, write_answer, write_notices
from oocpr.units import format_bytes, format_count, format_passes, format_seconds

if TYPE_CHECKING:
    from oocpr.errors import OocprError

_PARAMETERS = [
    argument("graph", "G.zarr|SOURCE"),
    option("--max-passes N", "Give up after so many.", default=1000),
    options.RUN_MEMORY,
    options.THREADS,
    option("--device cpu", "What computes: processors only, so far.", default="cpu"),
    option("--top K", "Print the first K.", name="top_k", type=click.IntRange(0), default=10),
    options.json_option("the figures of the search and the first K"),
    *options.LABELED_EDGES,
    option("--tmp DIR", "Where a SOURCE is imported to meanwhile.", implied="the system's"),
]


def _output(declaration: str, what: str) -> click.Option:
    text = f"Write {what}: R.parquet, R.csv, R.zarr or a URL, as `oocpr rank -o` does."
    return output_option(declaration, text, suffixes=(".parquet", ".csv", ".zarr"), stream=False)


_OUTPUT = _output("-o --output R", "all numbers")
_RESIDUAL = option("--tol", "Residual to reach; it certifies nothing.", default=1e-8)


@click.group(cls=Group)
def centrality() -> None:
    """Find Katz centrality, hubs, authorities and the like.

    They are relatives of PageRank, from the same stream of tiles. Edges count by their weights if they have
    some. For edges the other way, or both ways, import with --reverse or --undirected.
    """


@centrality.command(
    params=[
        option(
            "--alpha",
            "What an edge passes on, below 1 over the largest eigenvalue.",
            type=float,
            required=True,
        ),
        option("--beta", "What each node has of itself.", default=1.0),
        option("--tol", "Certified relative error of each node to reach.", default=1e-6),
        _OUTPUT,
        *_PARAMETERS,
    ],
    examples="""
    oocpr centrality katz web.zarr --alpha 0.005 -o katz.parquet
    oocpr centrality katz links.txt.gz --reverse --alpha 0.005
    """,
)
@click.pass_obj
def katz(session: Session, /, output: str | None, **parameters: Any) -> int:
    """Find Katz centrality, with a certified error.

    The relative error of no node exceeds it. A node has beta, and alpha times the number of each node that
    points to it. An alpha that is too large for the graph is refused; `eigenvalue` in the --json of
    `oocpr centrality eigenvector` says where the limit is: at 1 over it.
    """
    return _find(session, "katz_centrality", [output], **parameters)


@centrality.command(
    params=[_RESIDUAL, _OUTPUT, *_PARAMETERS],
    examples="""
    oocpr centrality eigenvector web.zarr --top 20
    oocpr centrality eigenvector friends.csv --undirected -o friends.parquet
    """,
)
@click.pass_obj
def eigenvector(session: Session, /, output: str | None, **parameters: Any) -> int:
    """Find eigenvector centrality, with its residual.

    The number of a node is in proportion to the sum of those of the nodes that point to it.
    """
    return _find(session, "eigenvector_centrality", [output], **parameters)


@centrality.command(
    params=[
        _RESIDUAL,
        _output("--hubs R", "the numbers of all hubs"),
        _output("--authorities R", "the numbers of all authorities"),
        *_PARAMETERS,
    ],
    examples="""
    oocpr centrality hits web.zarr --top 20
    oocpr centrality hits web.zarr --hubs hubs.parquet --authorities authorities.parquet
    """,
)
@click.pass_obj
def hits(session: Session, /, hubs: str | None, authorities: str | None, **parameters: Any) -> int:
    """Find hubs and authorities, with their residual.

    Good hubs point to good authorities, and good authorities are pointed to by good hubs.
    """
    return _find(session, "hits", [hubs, authorities], **parameters)


def _find(
    session: Session,
    measure: str,
    outputs: list[str | None],
    *,
    graph: str,
    memory: str | None,
    tmp: str | None,
    top_k: int,
    json_path: str | None,
    **parameters: Any,
) -> int:
    from oocpr import api
    from oocpr.result.centrality import Centrality
    from oocpr.result.names import names_of
    from oocpr.result.rank_files import check_room

    with session.progress() as progress:
        opened = taken_graph(graph, memory, tmp, progress, parameters)
        for output in filter(None, outputs):
            check_room(output, opened.nodes, names_of(opened.store))
        answer = getattr(api, measure)(opened, memory=memory, progress=progress, **parameters)
    write_notices(opened.notices)
    found: list[Centrality] = [answer] if isinstance(answer, Centrality) else list(answer)
    failures: list[OocprError] = []
    for one, path in zip(found, outputs, strict=True):
        failures += [] if path is None else write_answer(one, path)
    if json_path is not None:
        reports = {one.facts.measure: one.report(top_k) for one in found}
        emit_json(reports if len(found) > 1 else found[0].report(top_k), json_path)
    if json_path != "-":
        for one in found:
            emit(f"{one.facts.measure}\n" if len(found) > 1 else "")
            top = one.top(top_k)
            most = max((number for _, number in top), default=0.0)
            error = one.facts.residual if one.error_bound is None else one.error_bound * most
            emit(ranking(top, min(1.0, error)))
    facts = found[0].facts
    sys.stderr.write(
        f"{facts.quality}; {format_passes(facts.passes)} over {format_count(facts.edges)} edges in "
        f"{format_seconds(facts.seconds - facts.compile_seconds)}, "
        f"peak memory {format_bytes(facts.peak_memory)}\n"
    )
    code = fail_for(failures)
    if code or facts.converged:
        return code
    # A search that ends before has come to what rounding leaves.
    more = "allow more with --max-passes, or" if facts.passes >= parameters["max_passes"] else "allow"
    return fail(
        f"not converged after {format_passes(facts.passes)}: {facts.quality}, tol is {facts.tol:.3g}.",
        f"The numbers are given nevertheless; {more} a larger --tol.",
        NOT_CONVERGED,
    )
