"""The commands of jobs that run at night: one file, one command, any scheduler."""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path

import click

from oocpr.cli import INTERRUPTED, UNEXPECTED, explain
from oocpr.cli.commands import cli
from oocpr.cli.options import Session, argument, flag, json_option, option
from oocpr.cli.output import answer, emit
from oocpr.errors import RunningError

_LOG = logging.getLogger(__name__)
_LEVELS = "debug|info|warning|error"


@cli.command(
    params=[
        argument("job", "JOB.toml"),
        flag("--dry-run", "Say what would be done, with the plan of the ranking, and change nothing."),
        flag("--accept", "Publish ranks also if they are past the limits of [compare]."),
        option(
            "--log text|json",
            "How standard error is written: for a person, with progress, or as a JSON object per line.",
            implied="text on a terminal, else json",
            type=click.Choice(["text", "json"]),
        ),
        option(
            f"--log-level {_LEVELS}",
            "The least of what is logged; -v is debug.",
            default="info",
            type=click.Choice(_LEVELS.split("|")),
        ),
    ],
    examples="""
    oocpr run web.toml
    oocpr run web.toml --dry-run
    oocpr run web.toml --log json --log-level warning
    """,
)
@click.pass_obj
def run(session: Session, /, job: str, dry_run: bool, accept: bool, log: str | None, log_level: str) -> int:
    """Run a job: import or append, rank, compare, publish.

    JOB.toml names sources, memory, method, limits and outputs. What is to be done follows from what there is:
    new files are appended to the graph, a source that was replaced is imported anew, an interrupted run goes
    on, and nothing is done if nothing has changed. A result appears in the job's folder when it is whole, and
    the link `latest` goes to it in one step; whatever goes wrong before, the last result stays published.

    Standard output gets one line, a JSON object that says what has become of it, and standard error the log.
    A job that is running already is not run a second time: exit code 9. If its process was killed, the next
    run takes over, says so, and goes on.
    """
    from oocpr.cli.logs import logging_to_stderr
    from oocpr.jobs.results import json_text
    from oocpr.jobs.run import end_summary, keep_summary, new_summary

    form = log or ("text" if sys.stderr.isatty() else "json")
    summary = new_summary(Path(job).stem)
    with logging_to_stderr(form, "debug" if session.verbose else log_level) as progress:
        from oocpr.jobs.job_file import read_job
        from oocpr.jobs.run import preview_job, run_job

        found = None
        code, error, trace = 0, None, None
        try:
            found = read_job(Path(job))
            if dry_run:
                preview_job(found, summary, progress)
            else:
                run_job(found, summary, progress, accept=accept)
        except BrokenPipeError:
            raise
        except KeyboardInterrupt:
            cause, remedy, code = "interrupted.", "Run the job again: it goes on.", INTERRUPTED
            error = cause, remedy
        except Exception as raised:  # noqa: BLE001
            cause, remedy, code = explain(raised, debug=session.debug)
            error = cause, remedy
            trace = raised if session.debug or code == UNEXPECTED else None
            if isinstance(raised, RunningError):
                summary["outcome"] = "running"
        if error is not None:
            _LOG.error("%s", error[0], extra={"fields": {"remedy": error[1].strip()}}, exc_info=trace)
        end_summary(summary, code, error)
        if found is not None and not dry_run and summary["outcome"] != "running":
            for failure in keep_summary(found, summary):
                _LOG.error("%s", failure.cause, extra={"fields": {"remedy": failure.remedy}})
    emit(f"{json_text(summary)}\n")
    exit_code: int = summary["exit_code"]
    return exit_code


@cli.command(
    params=[argument("job", "JOB.toml|CHECKPOINT"), json_option("all of it")],
    examples="""
    oocpr status web.toml
    oocpr status kept --json -
    """,
)
def status(job: str, json_path: str | None) -> None:
    """Say how far a job is, and when it will end.

    A job that runs says which step it is in and how long it takes still: the ranking by how its error falls,
    other steps as long as they took the last time. Of a job that does not run it is said whether the next run
    goes on with something, and which result is published. CHECKPOINT is the place that a run was given as
    --checkpoint.
    """
    from oocpr.jobs.job_file import read_job
    from oocpr.jobs.status import status_of

    known, text = status_of(job, time.time(), read_job)
    answer(text, known, json_path)
