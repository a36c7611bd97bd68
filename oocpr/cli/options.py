"""Options of the commands as data, what all commands share, and flags in place of parameters in messages."""

from __future__ import annotations

import logging
import re
import shlex
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from oocpr.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oocpr.progress import Reporter


@dataclass
class Session:
    """What the common options said; `verbose` is 0 for warnings, 1 for what is being done, 2 for details."""

    debug: bool = False
    verbose: int = 0

    def progress(self) -> AbstractContextManager[Reporter]:
        """Start reporting on standard error; log lines and a live line would overwrite each other."""
        from oocpr.jit import reporting

        return reporting(live=not self.verbose)


class Command(click.Command):
    """A command with ``--debug`` and ``-v``, and with examples, which are printed as they are written."""

    def __init__(self, *args: Any, examples: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples
        self.params.extend(COMMON)

    def invoke(self, ctx: click.Context) -> Any:
        """Run it, unless its output would destroy its input; options of Dask become a ``client``.

        CUDA devices begin with their contexts at once.
        """
        from oocpr.engine.cuda.names import begin_contexts, named_devices

        known = ctx.params
        asked = known.get("scheduler"), known.get("workers")
        if asked == (None, None):
            # Devices take as long as all that is imported from here on.
            begin_contexts(named_devices(known.get("device") or "cpu"))

        from oocpr.sources.files import check_apart

        outputs = [
            known[name]
            for name in ("output", "hubs", "authorities", "json_path", "trace", "report_path")
            if known.get(name) is not None
        ]
        inputs = [
            known.get(name) for name in ("ranks", "labels", "personalization", "seeds", "start", "nodes")
        ]
        source = known.get("source", ())
        # Edges may be appended to a graph in its place.
        graph = [] if source else [known.get("graph")]
        check_apart(outputs, [*inputs, *source, *graph])
        if "scheduler" not in known:
            return super().invoke(ctx)
        del known["scheduler"], known["workers"]
        known["client"] = None
        if asked == (None, None):
            return super().invoke(ctx)
        from oocpr.engine.executors.dask_client import open_client

        with open_client(*asked) as known["client"]:
            return super().invoke(ctx)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the examples."""
        if self.examples:
            with formatter.section("Examples"):
                formatter.write("".join(f"  {line.strip()}\n" for line in self.examples.strip().splitlines()))


class Group(click.Group):
    """A group of commands of this kind."""

    command_class = Command


_BY_PARAMETER: dict[str, click.Option] = {}
"""All options by the names of their parameters; those of one name have the same flags in all commands."""


# The engine's own tables load NumPy and compilers; a test compares.
METHODS = ("auto", "components", "mixed", "residual", "power", "cpms2", "cpms4")
READS = ("float64", "float32", "bits16", "bits8")
DEVICES = ("auto", "cpu", "cuda", "cuda:0", "cuda:all")
FORMATS = "text, csv, csv_names, jsonl, matrixmarket, npz, npy, parquet, bvgraph, gr0, hollins, names"
WIKIPEDIA = tuple(f"wikipedia-{day}" for day in (20051105, 20060925, 20061104, 20070206))
SHAPES = ("su", "su+ucb", *WIKIPEDIA, "edu-2001")
KERNELS = (
    "balanced", "csr-scalar", "csr-16", "csr-vector", "binned", "ell", "edges", "exchange", "chunked", "bcsr",
)  # fmt: skip

_NO_FILES = frozenset({"", "ADDRESS", "CHAR", "COLUMN", "K", "N", "NAME", "SCALE", "SIZE", "TIME"})
_VALUES = re.compile(r"[a-z]+(\|[a-z]+)+")


def _either(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


def _completion(kind: str, values: Sequence[str] = ()) -> Callable[..., list[CompletionItem]]:
    """Make what a shell is told of a word that is begun: values that it may become, or to look for files."""
    if _VALUES.fullmatch(kind):
        values = kind.split("|")

    def complete(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
        if values or kind in _NO_FILES:
            return [CompletionItem(value) for value in values if value.startswith(incomplete)]
        return [CompletionItem(incomplete, type="file")]

    return complete


def option(
    declaration: str,
    text: str,
    *,
    implied: str = "",
    name: str = "",
    values: Sequence[str] = (),
    **attributes: Any,
) -> click.Option:
    """Make an option of what declares it, such as ``-o --output FILE``, and its help; a default is shown.

    `implied`: what holds without it, if it has no default. `name`: of its parameter, if it is not the flag's.
    `values`: what a shell completes, where the declaration does not list them.
    """
    words = declaration.split()
    names = [word for word in words if word.startswith("-")]
    kind = " ".join(words[len(names) :])
    made = click.Option(
        [*names, name] if name else names,
        metavar=kind or None,
        shell_complete=_completion(kind, values),
        help=f"{text}  [default: {implied}]" if implied else text,
        show_default=attributes.get("default") is not None,
        **attributes,
    )
    _BY_PARAMETER[str(made.name)] = made
    return made


def flag(name: str, text: str, **attributes: Any) -> click.Option:
    """Make an option without a value."""
    return option(name, text, is_flag=True, **attributes)


def output_option(
    declaration: str, text: str, *, suffixes: tuple[str, ...] = (), stream: bool = True, **attributes: Any
) -> click.Option:
    """Make an option for a file to write, refused before any work if it cannot be.

    Its name must have one of the suffixes, if there are any; with `stream`, ``-`` is standard output.
    """

    def check(_: click.Context, __: click.Parameter, path: str | None) -> str | None:
        from oocpr.store.atomic import check_writable
        from oocpr.store.format import ATTRIBUTES_KEY, RANKS_KEY
        from oocpr.store.remote import check_remote, is_url

        if path is None or (stream and path == "-"):
            return path
        if suffixes and Path(path).suffix not in suffixes:
            kinds = ", ".join(suffixes)
            raise UsageError(f"{path} does not end in {kinds}.", f"Name a file that ends in {kinds}.")
        if is_url(path) and suffixes and Path(path).suffix not in (".zarr", ".json"):
            check_remote(path)
            return path
        # Whether a store that stands there may be replaced is for the import to say.
        graph = suffixes == (".zarr",)
        marker = ATTRIBUTES_KEY if graph else RANKS_KEY if Path(path).suffix == ".zarr" else None
        check_writable(Path(path), marker)
        return path

    return option(declaration, text, callback=check, **attributes)


def json_option(what: str) -> click.Option:
    """Make ``--json``, which writes `what`."""
    return output_option("--json FILE", f"Write {what} as JSON; - for standard output.", name="json_path")


def argument(name: str, metavar: str, **attributes: Any) -> click.Argument:
    """Make an argument, a file or a folder."""
    return click.Argument([name], metavar=metavar, shell_complete=_completion(metavar), **attributes)


def _set_debug(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    ctx.ensure_object(Session).debug |= value


def _set_verbose(ctx: click.Context, _: click.Parameter, value: int) -> None:
    session = ctx.ensure_object(Session)
    session.verbose = max(session.verbose, value)
    if session.verbose:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s", "%H:%M:%S"))
        logger = logging.getLogger("oocpr")
        logger.handlers[:] = [handler]
        logger.setLevel(logging.INFO if session.verbose == 1 else logging.DEBUG)


COMMON = [
    option(
        "-v --verbose",
        "Log to stderr; -vv for details.",
        count=True,
        expose_value=False,
        callback=_set_verbose,
    ),
    flag("--debug", "Show tracebacks of errors.", is_eager=True, expose_value=False, callback=_set_debug),
]

# Arguments, and options of several commands.
GRAPH = argument("graph", "G.zarr")
SOURCE = argument("source", "SOURCE...", nargs=-1, required=True)
RANKS = argument("ranks", "R")
DAMPING = option("--damping", "Probability of following an edge.", default=0.85)
RUN_MEMORY = option("--memory SIZE", "Most memory of the process.", implied="what the machine has free")
THREADS = option(
    "--threads N",
    "Computing threads.",
    implied="as many as the edges feed, one per core, fewer while tiles are read, 16 at most",
    type=int,
)
REPRODUCIBLE = flag(
    "--reproducible",
    "Fix method, stripes, mixing and sweeps by the graph and the settings alone: the same "
    "bits of the ranks for any --memory and --device-memory that hold them and any number "
    "of threads and workers, else exit code 4. Otherwise less memory may mean more passes, "
    "and other last bits.",
)
CLUSTER = [
    option(
        "--scheduler ADDRESS",
        "Have the work done by the workers of this Dask scheduler, such as tcp://HOST:8786.",
        implied="by this process",
    ),
    option(
        "--workers N",
        "Have the work done by N Dask workers on this machine, which are started for it.",
        implied="by this process",
        type=click.IntRange(1),
    ),
]
DEVICE = [
    option(
        "--io auto|direct|buffered",
        "How tiles are read for which --memory has no room: directly from the disk, through the system's "
        "page cache, or directly where they are more than that cache can hold.",
        default="auto",
    ),
    option(
        "--device auto|cpu|cuda[:I]",
        "What computes; auto is a CUDA device where one can be used, and not for graphs that processors have "
        "ranked before it is ready. cuda:0,cuda:1 are two side by side, cuda:all is all there are.",
        default="cpu",
        values=DEVICES,
    ),
    option(
        "--device-memory SIZE",
        "Most memory of each CUDA device; what does not fit, tiles and then rows, stays in the host's and "
        "passes through it.",
        implied="what is free",
    ),
    option(
        "--kernel NAME",
        "How a CUDA device multiplies: balanced; or, to compare, csr-scalar, csr-16, csr-vector, binned, "
        "ell, edges, exchange, chunked or bcsr. binned:6:96 also says up to how many edges a row has one "
        "thread, and up to how many 16. Others than balanced lay tiles out in memory of the device, within "
        "--device-memory; ell, edges, exchange, chunked and bcsr take no weights.",
        implied="balanced, the fastest",
        values=KERNELS,
    ),
]

# Options of sources, and of stores that are made of them.
DUPLICATE_EDGES = option(
    "--duplicates sum|merge|count",
    "What an edge becomes that the source repeats: one edge with the sum of its "
    "weights; one with its greatest weight; or one whose weight is how often it comes.",
    implied="sum with weights, else merge",
)
EDGES = [
    option(
        "--format NAME",
        f"How the source is written: {FORMATS}.",
        implied="by its name and first lines",
        values=FORMATS.split(", "),
    ),
    flag("--undirected", "Take each edge in both directions."),
    flag("--reverse", "Take each edge in the other direction: a node ranks high that points to such nodes."),
    option(
        "--source-column NAME",
        "Column that edges run from, by its name or, in CSV, by its number.",
        implied="src, source, from, caller, citing and the like; or the first of two",
    ),
    option(
        "--target-column NAME",
        "Column that edges run to, by its name or, in CSV, by its number.",
        implied="dst, target, to, callee, cited and the like; or the second of two",
    ),
    option(
        "--delimiter CHAR",
        "What separates the columns of CSV: a character, or tab, comma, semicolon, bar or space.",
        implied="as the lines show",
    ),
    option(
        "--header/--no-header",
        "The first line of a text, names or CSV file names its columns, or it is an edge.",
        implied="as the lines show",
        default=None,
    ),
    option(
        "--weight COLUMN",
        "Where edges have weights: the name of a column of CSV, JSON lines or Parquet, the number of a "
        "column of text (3 as a rule), or `values` for those of a matrix.",
        implied="nowhere, all count alike",
    ),
    DUPLICATE_EDGES,
]
LABELED_EDGES = [
    option(
        "--labels FILE",
        "Names of the nodes: line i (from 0) belongs to node i; may be compressed like the source.",
        implied="NAME.labels.txt or .tsv beside NAME.txt",
    ),
    *EDGES,
]
STORE = output_option("-o --output G.zarr", "The graph store to make.", required=True, suffixes=(".zarr",))
BUILD_MEMORY = option(
    "--memory SIZE", "Most memory of the whole process, such as 512MB or 8GiB.", default="4GiB"
)
TMP = option(
    "--tmp DIR",
    "Where to sort, with room for 4 to 24 bytes an edge, 8 or 16 more with a weight, 4 with order dfs.",
    implied="beside G.zarr",
)
OVERWRITE = flag("--overwrite", "Replace an existing store once the new one is whole.")
BUILD = [
    STORE,
    BUILD_MEMORY,
    option(
        "--order keep|degree|host|bfs|dfs|auto",
        "Order of the nodes: as in the source (right for crawls, where neighbours are near each other), "
        "by out-degree (right for graphs without locality), by name with the host reversed (right for "
        "URLs), as a breadth-first search meets them (right for graphs that were shuffled), as a depth-first "
        "search leaves them (right for calls, citations and dependencies), or the one with the fewest bytes "
        "to an answer: small graphs are ranked in each order, samples of others measured.",
        default="keep",
    ),
    TMP,
    OVERWRITE,
    flag(
        "--resume",
        "Keep what is finished, whatever ends the import, and go on with what the same command has kept "
        "before.",
    ),
]
RMAT = [
    option("--scale N", "The graph has 2^N nodes.", type=int, required=True),
    option("--edge-factor N", "Edges drawn for each node.", default=16),
    option("--seed N", "The same seed gives the same graph.", default=1),
    option(
        "--permute/--no-permute", "Shuffle the nodes, or leave the high degrees at the low ids.", default=True
    ),
]
WU = [
    option("--like NAME", f"{_either(SHAPES)}.", required=True, values=SHAPES),
    option("--scale-down N", "Divide rows and edges by N, up to 1000.", default=1),
]

INFO = [
    flag("--degrees", "Count nodes and edges by in-degree and out-degree, too; reads two numbers a node."),
    json_option("all of it"),
]

# Options of runs and of what looks at ranks.
PLAN = [
    DAMPING,
    option("--tol", "Certified L1 error to reach.", default=1e-10),
    option("--method NAME", f"{_either(METHODS)}.", default="auto", values=METHODS),
    option("--reads NAME", f"{_either(READS)}.", implied="what the method wants", values=READS),
    RUN_MEMORY,
    option("--stripes N", "Parts of the graph that advance side by side.", type=int),
    REPRODUCIBLE,
    flag("--fpga", "Add what a product takes on the FPGA of Shan et al. 2010, by a model of it."),
    *DEVICE,
    json_option("the plan"),
]
RANK = [
    DAMPING,
    option("--tol", "Where to stop: certified bound on the L1 error of the ranks.", default=1e-10),
    option(
        "--stop certified|residual",
        "What --tol bounds: the error, or the L1 norm of the residual, as papers count.",
        default="certified",
    ),
    option(
        "--method NAME",
        "components (in memory, for graphs that fit), mixed (fewest passes over tiles), residual (one "
        "product a pass), power (textbook), cpms2 or cpms4 (power that reads 32 or 16 bits of each number at "
        "first) or auto, which takes one of the first two.",
        default="auto",
        values=METHODS,
    ),
    option(
        "--reads NAME",
        "How ranks are gathered: float64, float32, bits16 or bits8. The answer is as exact with each.",
        implied="bits16; float32 with components, float64 with power and cpms2 or cpms4",
        values=READS,
    ),
    option(
        "--dangling strongly|weakly",
        "Rank of nodes without out-edges follows the teleport vector, or is spread evenly.",
        default="strongly",
    ),
    option(
        "--personalization FILE",
        "Teleport weights: a node, or a node, a tab and a weight, on each line.",
        implied="all nodes alike",
    ),
    option(
        "--seeds FILE",
        "Rank the nodes once for each of many seeds, in memory if the graph has room there, else "
        "one after the other: each line has a seed, a tab and a node, and may have a tab and a weight. "
        "-o gets the first K of each, as R.parquet or R.csv with the columns "
        "seed, rank, node and value.",
    ),
    option(
        "--start R",
        "Ranks to begin from, such as those of an earlier version of the graph: R.parquet, R.csv or "
        "R.zarr. The answer is as exact with any; near ones save passes.",
        implied="the teleport weights",
    ),
    option("--max-passes N", "Give up after so many.", implied="ample", type=int),
    RUN_MEMORY,
    option(
        "--stripes N",
        "Parts of the graph that advance side by side.",
        implied="1; on workers or reproducible by size, one for each worker at least",
        type=int,
    ),
    THREADS,
    REPRODUCIBLE,
    *DEVICE,
    option(
        "--checkpoint DIR|URL",
        "Keep the run there, after a pass, at least every minute; nothing is left once it is done. Ctrl-C, "
        "SIGTERM and SIGHUP end it after its pass, a second one at once.",
        implied="nothing is kept",
    ),
    flag(
        "--resume",
        "Go on from the checkpoint, if there is one, to the ranks of a run that was never stopped; on any "
        "number of workers and threads.",
    ),
    option(
        "--time-limit TIME",
        "End the run, kept, before it takes longer, such as 90min or 4h.",
        implied="none",
    ),
    output_option(
        "--trace FILE.json",
        "Write a timeline of the run, which Perfetto and chrome://tracing draw: when each tile was read, "
        "sent to the device and computed.",
    ),
    output_option(
        "--report FILE.html",
        "Write a page about the run: settings, plan and findings, convergence, the first K (1,000 at most), "
        "distribution.",
        suffixes=(".html",),
        stream=False,
        name="report_path",
    ),
    flag(
        "--predict",
        "Measure for a second first, as `oocpr plan` does, and say what time was predicted beside what it "
        "took.",
    ),
    option(
        "--top K",
        "Print the first K, of each seed if there are --seeds.",
        name="top_k",
        type=click.IntRange(0),
        default=10,
    ),
    output_option(
        "-o --output R",
        "Write all ranks: R.parquet, R.csv, R.zarr, a URL such as s3://bucket/R.parquet, or - for CSV on "
        "standard output.",
        suffixes=(".parquet", ".csv", ".zarr"),
    ),
    option("--sort node|rank", "Order of the rank file.", default="node"),
    json_option("the run's figures and the first K"),
    *LABELED_EDGES,
    option("--tmp DIR", "Where a SOURCE is imported to meanwhile.", implied="the system's"),
    *CLUSTER,
]
TOP = [option("-k K", "How many.", type=click.IntRange(0), default=10), RUN_MEMORY, json_option("the list")]
VERIFY = [
    option(
        "--damping", "Probability of following an edge.", implied="as the file says, else 0.85", type=float
    ),
    option(
        "--dangling strongly|weakly",
        "Where the rank of nodes without out-edges goes.",
        implied="as the file says, else strongly",
    ),
    option("--personalization FILE", "Teleport weights, as given to `oocpr rank`."),
    option(
        "--tol",
        "Bound to ask for; exit code 3 above it.",
        implied="the bound that the file claims",
        type=float,
    ),
    RUN_MEMORY,
    json_option("residual and bound"),
]

BENCH_PAPERS = [
    flag(
        "--quick",
        "Count one run of each, and leave out graphs of more than a million edges and those that are not "
        "there; without a folder, take the graphs that come with the sources.",
    ),
    option("--device cpu|cuda", "What computes; cuda adds the products of the papers.", default="cpu"),
    option("--rmat SCALE", "Take R-MAT of 2^SCALE nodes in place of the graphs.", type=int),
    option("--graphs FOLDER", "Where the graphs are.", implied="OOCPR_GRAPHS"),
    option("--runs N", "Runs of each that count.", implied="5, or 1 with --quick", type=int),
    option("--out FILE.json", "Write all figures as JSON."),
    option("--html FILE.html", "Write the tables as a page."),
]

# Not behind what a path, an address or a quoted word may have before it.
_WITH_VALUE = re.compile(r"""(?<![\w.'"/?&=-])([a-z_]+)=("[^"]*"|'[^']*'|[\w+-]+(?:\.\w+)*)""")
_NAME = re.compile(r"""(?<![\w.'"/?&=-])([a-z]+(?:_[a-z]+)+)(?![\w'"/=(-])""")
_LEFT_OUT = re.compile(r"(?:(?<=[Ll]eave )|\bthe (?=client))([a-z]+)(?= out\b)")
_SUBJECT = re.compile(r"([a-z_]+)(?= is )")
_UNUSED = re.compile(r"(?:(?<= take no )|(?<= takes no ))([a-z_]+)(?=\.$)")


def in_flags(text: str) -> str:
    """Write a remedy or a notice with flags in place of parameters.

    >>> in_flags('weight="net weight" takes them; or leave resume=True and source_column out.')
    "--weight 'net weight' takes them; or leave --resume and --source-column out."
    >>> in_flags("Leave stripes out, or leave the client out.")
    'Leave --stripes out, or leave --workers and --scheduler out.'
    >>> in_flags("See http://a.org/?weight=3.")
    'See http://a.org/?weight=3.'
    """
    return _LEFT_OUT.sub(_named, _NAME.sub(_named, _WITH_VALUE.sub(_valued, text)))


def cause_in_flags(text: str) -> str:
    """Write a cause, which may quote anything, with a flag if it begins with a parameter, or takes no such.

    >>> cause_in_flags("max_passes is 0."), cause_in_flags("web.txt: weight=3 is there.")
    ('--max-passes is 0.', 'web.txt: weight=3 is there.')
    >>> cause_in_flags("method cpms2 takes no client.")
    'method cpms2 takes no --workers and --scheduler.'
    """
    return _UNUSED.sub(_named, _SUBJECT.sub(_named, text, count=1) if _SUBJECT.match(text) else text)


def _named(found: re.Match[str]) -> str:
    if found[1] == "client":  # made of the options `CLUSTER`
        return "--workers and --scheduler"
    option = _BY_PARAMETER.get(found[1])
    return found[0] if option is None else max(option.opts, key=len)


def _valued(found: re.Match[str]) -> str:
    option = _BY_PARAMETER.get(found[1])
    if option is None:
        return found[0]
    flag = max(option.opts, key=len)
    if not option.is_flag:
        return f"{flag} {shlex.quote(found[2].strip(chr(34) + chr(39)))}"
    return flag if found[2] == "True" else next(iter(option.secondary_opts), found[0])
