"""The commands that prepare a machine: tuned kernels, and compiled functions."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from oocpr.cli.options import Command, emit, emit_json, json_option
from oocpr.cli.tables import pairs
from oocpr.units import format_seconds

if TYPE_CHECKING:
    from oocpr.cli.options import Session
    from oocpr.engine.cuda.tune_graph import Tuned


@click.command(
    cls=Command,
    examples="""
    oocpr tune web.zarr
    oocpr tune web.zarr --reads float64 --device cuda:1
    oocpr tune web.zarr --kernel binned --json -
    """,
)
@click.argument("graph", metavar="G.zarr")
@click.option(
    "--reads",
    metavar="NAME",
    help="How ranks are gathered in the runs to come: float64, float32, bits16 or bits8.  [default: bits16]",
)
@click.option(
    "--kernel", metavar="NAME", help="What is tuned: balanced or binned.  [default: balanced, the fastest]"
)
@click.option(
    "--device", default="cuda", show_default=True, metavar="cuda[:I]", help="What the runs will be on."
)
@click.option(
    "--memory", metavar="SIZE", help="Most memory of the process.  [default: what the machine has free]"
)
@click.option(
    "--seconds",
    type=float,
    default=8.0,
    show_default=True,
    metavar="S",
    help="How long shapes are tried; reading a few tiles comes on top.",
)
@json_option("everything that was measured")
@click.pass_obj
def tune(session: Session, /, graph: str, json_path: str | None, **parameters: Any) -> None:
    """Find the fastest shape of a kernel on a CUDA device.

    A kernel does the same work in blocks of several sizes and orders. Those are tried on a few tiles of the
    graph, and the fastest is kept in a small file of the device, in OOCPR_CACHE_DIR or ~/.cache/oocpr. Runs
    of `oocpr rank` on that device take it by themselves, for this graph and others of like size, length of
    rows and order; with OOCPR_TUNE=off in the environment or --no-tune they do not. The bits of the ranks
    never change. Graphs with weights take the default shape.
    """
    from oocpr import api

    with session.progress() as progress:
        tuned = api.tune(graph, progress=progress, **parameters)
    if json_path != "-":
        emit(described(tuned))
    if json_path is not None:
        emit_json(tuned.to_json(), json_path)


def described(tuned: Tuned) -> str:
    """List what was tried, fastest first, and say what is kept."""
    found = tuned.found
    trials = sorted(found.trials, key=lambda trial: -(trial.gteps or 0))
    notes = {found.best: "kept"} | {found.usual: "default" + ", kept" * (found.usual == found.best)}
    lines = [
        f"{'   not run' if trial.gteps is None else format(trial.gteps, '10.4g')}  "
        f"{_words(trial.shape):<62}{notes.get(trial.shape, '')}".rstrip()
        for trial in trials
    ]
    less = 1 - found.usual_gteps / found.gteps if found.gteps else 0.0
    ended = "" if found.complete else ", at the end of the time it had"
    rows = [
        ("device", tuned.device),
        ("graphs", tuned.graph_class),
        ("kept", f"{_words(found.best)}: {found.gteps:.4g} GTEPS"),
        ("default", f"{_words(found.usual)}: {found.usual_gteps:.4g} GTEPS, {less:.1%} less"),
        ("took", f"{format_seconds(found.seconds)} for {len(trials)} shapes{ended}"),
        ("in", tuned.path or "no file: the folder cannot be written"),
    ]
    return "     GTEPS  " + f"{found.kernel}\n" + "\n".join(lines) + "\n\n" + pairs(rows)


def _words(shape: Any) -> str:
    return ", ".join(f"{name} {str(value).lower()}" for name, value in asdict(shape).items())


@click.command(
    cls=Command,
    examples="""
    oocpr warmup
    OOCPR_CACHE_DIR=/opt/oocpr oocpr warmup
    """,
)
@click.pass_obj
def warmup(session: Session, /) -> None:
    """Compile ahead what import, rank on processors and top need.

    Such as while the image of a container is made. Compiled functions are kept under OOCPR_CACHE_DIR, else
    beside the package or in the user's cache; what is there already is not compiled again.
    """
    from oocpr.api.warmup import warmup as compile_ahead

    with session.progress() as progress:
        folder, seconds = compile_ahead(progress)
    where = f"kept in {folder}" if folder else "kept nowhere: no folder can be written, set OOCPR_CACHE_DIR"
    done = f"{format_seconds(seconds)} of compiling" if seconds else "nothing was left to compile"
    emit(f"{done}; {where}\n")
