"""The root of the command line."""

from __future__ import annotations

import click

from oocpr import __version__
from oocpr.cli import EXIT_CODES
from oocpr.cli.graphs import append, generate, import_, info, plan
from oocpr.cli.options import Command, Session, common_options, emit
from oocpr.cli.ranks import rank, top, verify
from oocpr.units import format_seconds

__all__ = ["Session", "cli"]


class _Root(click.Group):
    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), text) for code, text in sorted(EXIT_CODES.items())])


@click.group(cls=_Root, params=common_options(), context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="oocpr", message="%(prog)s %(version)s")
def cli() -> None:
    """PageRank for graphs larger than memory, with a certified error bound.

    Try `oocpr rank links.txt.gz --top 10`, or keep the graph for later with `oocpr import`. Each command's
    --help has examples.
    """


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
    from oocpr.api.ranking import warmup as compile_ahead

    with session.progress() as progress:
        folder, seconds = compile_ahead(progress)
    where = f"kept in {folder}" if folder else "kept nowhere: no folder can be written, set OOCPR_CACHE_DIR"
    done = f"{format_seconds(seconds)} of compiling" if seconds else "nothing was left to compile"
    emit(f"{done}; {where}\n")


for _command in (import_, append, generate, info, plan, rank, top, verify, warmup):
    cli.add_command(_command)
