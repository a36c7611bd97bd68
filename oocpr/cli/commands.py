"""The root of the command line."""

from __future__ import annotations

import click

from oocpr import __version__
from oocpr.cli import EXIT_CODES
from oocpr.cli.graphs import append, generate, import_, info, plan
from oocpr.cli.options import Session, common_options
from oocpr.cli.ranks import rank, top, verify
from oocpr.cli.warmup import warmup

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


for _command in (import_, append, generate, info, plan, rank, top, verify, warmup):
    cli.add_command(_command)
