"""The command that prepares a machine: compiled functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from oocpr.cli.options import Command, emit
from oocpr.units import format_seconds

if TYPE_CHECKING:
    from oocpr.cli.options import Session


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
