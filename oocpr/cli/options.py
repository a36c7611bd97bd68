"""What several commands share: the session, common options, and where answers go."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import re
import shlex
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oocpr.errors import DoesNotFitError, OocprError, UsageError
from oocpr.system import is_disk_full

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from oocpr.progress import Reporter

    Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass
class Session:
    """What the common options said; `verbose` is 0 for warnings, 1 for what is being done, 2 for details."""

    debug: bool = False
    verbose: int = 0

    @contextlib.contextmanager
    def progress(self) -> Iterator[Reporter]:
        """Start reporting on standard error; log lines and a live line would overwrite each other."""
        from oocpr.jit import reporting

        with reporting(live=not self.verbose) as reporter:
            yield reporter


class Command(click.Command):
    """A command with ``--debug`` and ``-v`` and its examples printed as they are written."""

    def __init__(self, *args: Any, examples: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples
        self.params.extend(common_options())

    def invoke(self, ctx: click.Context) -> Any:
        """Run it, unless what it writes would destroy what it reads."""
        from oocpr.sources.files import check_apart

        known = ctx.params
        outputs = [known[name] for name in ("output", "json_path", "trace") if known.get(name) is not None]
        inputs = [known.get(name) for name in ("ranks", "labels", "personalization", "start", "nodes")]
        source = known.get("source", ())
        # Edges may be appended to a graph in its place.
        graph = [] if source else [known.get("graph")]
        check_apart(outputs, [*inputs, *source, *graph])
        return super().invoke(ctx)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the examples."""
        if self.examples:
            with formatter.section("Examples"):
                formatter.write("".join(f"  {line.strip()}\n" for line in self.examples.strip().splitlines()))


def common_options() -> list[click.Option]:
    """Make the options that every command takes."""

    def debug(ctx: click.Context, _: click.Parameter, value: bool) -> None:
        ctx.ensure_object(Session).debug |= value

    def verbose(ctx: click.Context, _: click.Parameter, value: int) -> None:
        session = ctx.ensure_object(Session)
        session.verbose = max(session.verbose, value)
        if session.verbose:
            _log(logging.INFO if session.verbose == 1 else logging.DEBUG)

    return [
        click.Option(
            ["-v", "--verbose"],
            count=True,
            expose_value=False,
            callback=verbose,
            help="Log to stderr; -vv for details.",
        ),
        click.Option(
            ["--debug"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=debug,
            help="Show tracebacks of errors.",
        ),
    ]


def options(*decorators: Decorator) -> Decorator:
    """Join options that several commands take, to be listed in this order."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return add


def cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Let a command take workers of Dask, as the parameter ``client`` that `oocpr.api` takes."""

    @functools.wraps(command)
    def run(*args: Any, scheduler: str | None, workers: int | None, **parameters: Any) -> Any:
        from oocpr.engine.executors.dask_client import joined

        with joined(scheduler, workers) as client:
            return command(*args, client=client, **parameters)

    return options(
        click.option(
            "--scheduler",
            metavar="ADDRESS",
            help="Have the work done by the workers of this Dask scheduler, such as tcp://HOST:8786.  "
            "[default: by this process]",
        ),
        click.option(
            "--workers",
            type=click.IntRange(1),
            metavar="N",
            help="Have the work done by N Dask workers on this machine, which are started for it.  "
            "[default: by this process]",
        ),
    )(run)


def json_option(what: str) -> Decorator:
    """Make ``--json``, which writes `what`."""
    return click.option(
        "--json",
        "json_path",
        metavar="FILE",
        callback=output_file,
        help=f"Write {what} as JSON; - for standard output.",
    )


def emit_json(value: object, target: str, last: Iterable[object] = ()) -> None:
    """Write a value to a file, or to standard output for ``-``.

    `last` has the entries of the empty list with which `value` ends, written one after the other.
    """
    from oocpr.store.atomic import replacing

    # JSON is UTF-8 whatever a terminal shows; halves of pairs, of file names, are escaped as JSON does it.
    data = (piece.encode("utf-8", "backslashreplace") for piece in _json(value, last))
    if target == "-":
        with naming_stdout():
            sys.stdout.flush()
            sys.stdout.buffer.writelines(data)
            sys.stdout.buffer.flush()
    else:
        with replacing(Path(target)) as temporary, temporary.open("wb") as file:
            file.writelines(data)


def _json(value: object, last: Iterable[object]) -> Iterator[str]:
    dump = functools.partial(json.dumps, indent=2, allow_nan=False, ensure_ascii=False)
    end = "]\n}"
    head = dump(value)
    opened = False
    for entry in last:
        yield ",\n" if opened else head.removesuffix(end) + "\n"
        opened = True
        yield "    " + dump(entry).replace("\n", "\n    ")
    yield f"\n  {end}\n" if opened else head + "\n"


def emit(pieces: str | Iterable[str]) -> None:
    """Write text to standard output, all of it or an error."""
    with naming_stdout():
        sys.stdout.writelines([pieces] if isinstance(pieces, str) else pieces)
        sys.stdout.flush()


def write_notices(notices: Iterable[str]) -> None:
    """Write to standard error what a person should know of an import."""
    for notice in notices:
        sys.stderr.write(f"note: {in_flags(notice)}\n")


def notice_writer(reporter: Reporter) -> Callable[[str], None]:
    """Let a reporter write notices as `write_notices` does."""
    return lambda notice: reporter.write_note(in_flags(notice))


@contextlib.contextmanager
def naming_stdout() -> Iterator[None]:
    """Give failures to write to standard output a cause and a remedy."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if isinstance(error, OocprError):
            raise
        cause = f"standard output cannot be written: {error.strerror or error}."
        kind = DoesNotFitError if is_disk_full(error) else UsageError
        raise kind(cause, "Send it somewhere with room.") from error


def check_output(path: str, suffixes: tuple[str, ...] = ()) -> None:
    """Refuse, before any work is done, an output that cannot be written after it; ``-`` is standard output.

    The name must have one of the suffixes, if there are any.
    """
    from oocpr.store.atomic import check_writable
    from oocpr.store.format import ATTRIBUTES_KEY, RANKS_KEY

    if path == "-":
        return
    if suffixes and Path(path).suffix not in suffixes:
        kinds = ", ".join(suffixes)
        raise UsageError(f"{path} does not end in {kinds}.", f"Name a file that ends in {kinds}.")
    # Whether a store that stands there may be replaced is for the import to say.
    graph = suffixes == (".zarr",)
    marker = ATTRIBUTES_KEY if graph else RANKS_KEY if Path(path).suffix in suffixes[-1:] else None
    check_writable(Path(path), marker)


def output_file(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    """Check a file that an option names, as its callback."""
    if value is not None:
        check_output(value)
    return value


def _log(level: int) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s", "%H:%M:%S"))
    logger = logging.getLogger("oocpr")
    logger.handlers[:] = [handler]
    logger.setLevel(level)


def device_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Let a command take a device and its memory."""
    memory = click.option(
        "--device-memory",
        metavar="SIZE",
        help="Most memory of each CUDA device; what does not fit, tiles and then rows, stays in the host's "
        "and passes through it.  [default: what is free]",
    )
    device = click.option(
        "--device",
        default="cpu",
        show_default=True,
        metavar="auto|cpu|cuda[:I]",
        help="What computes; auto is a CUDA device where one can be used. cuda:0,cuda:1 are two side by "
        "side, cuda:all is all there are.",
    )
    return device(memory(command))


io_option = click.option(
    "--io",
    default="auto",
    show_default=True,
    metavar="auto|direct|buffered",
    help="How tiles are read for which --memory has no room: directly from the disk, through the system's "
    "page cache, or directly where they are more than that cache can hold.",
)
kernel_option = click.option(
    "--kernel",
    metavar="NAME",
    help="How a CUDA device multiplies: balanced; or, to compare, csr-scalar, csr-16, csr-vector, binned, "
    "ell, edges, chunked or bcsr. binned:6:96 also says up to how many edges a row has one thread, and up "
    "to how many 16. Weighted graphs want balanced.  [default: balanced, the fastest]",
)
reproducible_option = click.option(
    "--reproducible",
    is_flag=True,
    help="Fix method, stripes, mixing and sweeps by the graph and the settings alone: the same bits of the "
    "ranks for any --memory that holds them and any number of threads, else exit code 4. Otherwise less "
    "memory may mean more passes, and other last bits.",
)

# Not behind what a path, an address or a quoted word may have before it.
_WITH_VALUE = re.compile(r"""(?<![\w.'"/?&=-])([a-z_]+)=("[^"]*"|'[^']*'|[\w+-]+(?:\.\w+)*)""")
_NAME = re.compile(r"""(?<![\w.'"/?&=-])([a-z]+(?:_[a-z]+)+)(?![\w'"/=(-])""")
_SUBJECT = re.compile(r"([a-z_]+)(?= is )")


@cache
def _options() -> dict[str, click.Option]:
    """All options of all commands, by the names of their parameters."""
    from oocpr.cli.commands import cli

    commands: list[click.Command] = [cli]
    found: dict[str, click.Option] = {}
    for command in commands:
        if isinstance(command, click.Group):
            commands += command.commands.values()
        found |= {str(one.name): one for one in command.params if isinstance(one, click.Option)}
    return found


def in_flags(text: str) -> str:
    """Write a remedy or a notice with flags in place of parameters.

    Examples
    --------
    >>> in_flags('weight="net weight" takes them; or leave resume=True and source_column out.')
    "--weight 'net weight' takes them; or leave --resume and --source-column out."
    >>> in_flags("See http://a.org/?weight=3.")
    'See http://a.org/?weight=3.'
    """
    return _NAME.sub(_named, _WITH_VALUE.sub(_valued, text))


def cause_in_flags(text: str) -> str:
    """Write a cause, which may quote anything, with a flag where its first word is a parameter.

    Examples
    --------
    >>> cause_in_flags("max_passes is 0."), cause_in_flags("web.txt: weight=3 is there.")
    ('--max-passes is 0.', 'web.txt: weight=3 is there.')
    """
    return _SUBJECT.sub(_named, text, count=1) if _SUBJECT.match(text) else text


def _named(found: re.Match[str]) -> str:
    option = _options().get(found[1])
    return found[0] if option is None else max(option.opts, key=len)


def _valued(found: re.Match[str]) -> str:
    option = _options().get(found[1])
    if option is None:
        return found[0]
    flag = max(option.opts, key=len)
    if not option.is_flag:
        return f"{flag} {shlex.quote(found[2].strip(chr(34) + chr(39)))}"
    return flag if found[2] == "True" else next(iter(option.secondary_opts), found[0])
