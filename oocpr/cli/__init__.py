"""The command line: answers go to standard output, everything else to standard error.

Every way to end has one exit code, listed in `EXIT_CODES`; errors of `oocpr.errors` bring their own.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import gc
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from oocpr.cli.interrupts import stopping_like_ctrl_c

if TYPE_CHECKING:
    from oocpr.errors import OocprError

USAGE = 2
NOT_CONVERGED = 3
INTERRUPTED = 130
READER_GONE = 141
UNEXPECTED = 1

COMPLETION = "_OOCPR_COMPLETE"
"""Environment variable with which a shell asks how a word may go on; see the documentation of Click."""

EXIT_CODES = {
    0: "done; of rank: the certified bound is at most --tol",
    UNEXPECTED: "a defect of oocpr itself; --debug shows where",
    USAGE: "wrong usage, or input that cannot be read",
    NOT_CONVERGED: "not converged; the ranks and their bound are still written, but run publishes nothing",
    4: "does not fit the given memory, or the disk",
    5: "a damaged store",
    6: "the store was replaced while it was in use, or workers have another one under its name",
    7: "a worker, the scheduler or an object store was lost; the same command may succeed later",
    8: "a worker or this machine lacks the store, credentials or a package; of doctor: runs would be stopped",
    9: "of run: the job is running already, or may be on another machine; nothing was done",
    10: "of run: the ranks differ from the last by more than the job allows, and are not published",
    INTERRUPTED: "interrupted, or --time-limit is over; what is left is what --resume goes on with",
    READER_GONE: "the program reading standard output went away",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, by default that of the process; returns a key of `EXIT_CODES`.

    >>> main(["--version"])
    oocpr 0.1.0
    0
    """
    if arguments is None:
        # What is imported stays; looking for cycles in it time and again takes a quarter of the time that a
        # small graph takes. With 100,000 it was done once, in 25 ms.
        gc.set_threshold(400_000)
    words = sys.argv[1:] if arguments is None else list(arguments)
    if not _take_streams():
        return fail("standard output is closed.", "Send it to a file, or to /dev/null.", USAGE)
    try:
        with stopping_like_ctrl_c() as asked:
            return _run(words, asked)
    except BrokenPipeError:
        from oocpr.cli.output import discard_output

        discard_output()
        return READER_GONE
    except KeyboardInterrupt as error:
        return fail(
            "interrupted.", _kept(error) or "Nothing half-written is left; run it again.", INTERRUPTED
        )


def run_process() -> NoReturn:
    """Run the command of the process, and end it without taking apart all that was imported.

    That would take a tenth of the time of a small graph, once the libraries of a device are loaded.
    """
    code = main()
    # What is closed or removed in the end still is.
    atexit._run_exitfuncs()
    for stream in filter(None, (sys.stdout, sys.stderr)):
        # A reader that went away was met, or has nothing to come.
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _take_streams() -> bool:
    """Make the standard streams fit for any text; returns whether there is an output."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # Or the next file that is opened would be taken for this stream.
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Names come from strangers' files, and terminals have few letters.
            stream.reconfigure(errors="backslashreplace")
    return sys.stdout is not None


def _run(words: list[str], asked: Sequence[int]) -> int:
    import click

    from oocpr.cli import doctor, jobs  # noqa: F401 - commands with files of their own
    from oocpr.cli.commands import cli
    from oocpr.cli.options import Session

    if asked_by_shell := os.environ.get(COMPLETION):
        from click.shell_completion import shell_complete

        return shell_complete(cli, {}, "oocpr", COMPLETION, asked_by_shell)
    session = Session()
    try:
        # Click's own main would end the process by itself when a pipe breaks.
        with cli.make_context("oocpr", words, obj=session) as context:
            code: int | None = cli.invoke(context)
        _flush_output()
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.ctx.get_help(), file=sys.stderr)  # noqa: T201
        return USAGE
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else "oocpr"
        return fail(error.format_message(), f"See `{path} --help`.", USAGE)
    except (BrokenPipeError, KeyboardInterrupt):
        raise
    except Exception as error:  # noqa: BLE001
        _interrupted(asked)
        _trace(session.debug)
        return fail(*explain(_of_output(error), debug=session.debug))
    return code or 0


def _flush_output() -> None:
    from oocpr.cli.output import naming_stdout

    with naming_stdout():
        sys.stdout.flush()


def _of_output(error: Exception) -> Exception:
    """Say what is wrong with standard output, if it cannot be written; else it is the error that was met."""
    try:
        _flush_output()
    except BrokenPipeError:
        raise
    except Exception as found:  # noqa: BLE001
        return found
    return error


def explain(error: Exception, *, debug: bool) -> tuple[str, str, int]:
    """Give the cause, the remedy and the exit code of an error."""
    from oocpr.errors import DoesNotFitError, OocprError
    from oocpr.system import is_disk_full

    if isinstance(error, OocprError):
        return error.cause, f"{error.remedy} {_kept(error)}", error.exit_code
    if _lacks_memory(error):
        return (
            f"this process may take no more memory: {str(error) or type(error).__name__}.",
            "Raise its limits, such as that of `ulimit -v`, or give less --memory and fewer --threads.",
            DoesNotFitError.exit_code,
        )
    if isinstance(error, OSError) and is_disk_full(error):
        where = f"{error.filename} cannot be written" if error.filename else "what is written has no room"
        cause = f"{where}: {error.strerror or error}."
        return cause, "Make room, or write to another disk.", DoesNotFitError.exit_code
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return f"the name {str(error.filename)[:60]}... is too long for a file.", "Use a shorter one.", USAGE
    remedy = "Please report it with what is above." if debug else "Run it again with --debug and report it."
    return f"{type(error).__name__}: {error}", remedy, UNEXPECTED


def _interrupted(asked: Sequence[int]) -> None:
    """Raise KeyboardInterrupt if one has come: a library that was being loaded makes its own error of it."""
    if asked:
        raise KeyboardInterrupt


def _lacks_memory(error: BaseException | None) -> bool:
    """Whether the system has refused memory: to Python, for a thread's stack, or to load a library."""
    if error is None:
        return False
    refused = ("cannot allocate memory", "can't start new thread", "failed to map segment")
    return (
        isinstance(error, MemoryError)
        or any(words in str(error).lower() for words in refused)
        or _lacks_memory(error.__cause__)
    )


def _kept(error: BaseException) -> str:
    """Notes of an error, which say that something is kept, and where."""
    return " ".join(getattr(error, "__notes__", ()))


def _trace(debug: bool) -> None:
    if debug:
        import traceback

        from oocpr.errors import masked

        sys.stderr.write(masked(traceback.format_exc()))


def fail_for(failures: Sequence[OocprError]) -> int:
    """Write all errors that the answer has outlived; returns the code of the first, 0 without any."""
    codes = [fail(failure.cause, failure.remedy, failure.exit_code) for failure in failures]
    return codes[0] if codes else 0


def fail(cause: str, remedy: str, code: int) -> int:
    """Write the two lines of an error; returns its code, a key of `EXIT_CODES`."""
    from oocpr.cli.options import cause_in_flags, in_flags
    from oocpr.errors import masked

    for word, text in (("error", cause_in_flags(cause)), ("remedy", in_flags(remedy))):
        try:
            print(f"{word}: {masked(' '.join(text.split()))}", file=sys.stderr)  # noqa: T201
        except BrokenPipeError:
            raise
        except OSError:
            break  # the code says it where there is no room for words
    return code
