"""Arguments of callers, refused with the parameter's name before anything is done."""

from __future__ import annotations

import difflib
import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, cast

from oocpr.errors import UsageError
from oocpr.plan.memory import SEGMENTED_METHODS
from oocpr.progress import silent
from oocpr.sources.base import SourceOptions
from oocpr.units import parse_bytes, parse_seconds

if TYPE_CHECKING:
    from oocpr.engine.checkpoint import Checkpoints
    from oocpr.progress import Listener, Progress

    P = ParamSpec("P")
    R = TypeVar("R")

_MIN_MEMORY = 1 << 20
"""A size below it is meant otherwise: no process is as small."""

_MAX_THREADS = 1 << 10
_MAX_NAME_BYTES = 255
"""Bytes of a name that file systems hold."""


class ImportOptions(SourceOptions, total=False):
    """How a source is read and stored: `SourceOptions`, and what becomes of duplicate edges.

    Parameters
    ----------
    duplicates
        What an edge that the source repeats becomes: ``"sum"``: its weights are added; ``"merge"``: it counts
        once, with its greatest weight; ``"count"``: its weight is how often it comes. None for ``"sum"``
        if there are weights, as in pandas, SciPy and NetworkX, and ``"merge"`` if there are none.
    """

    duplicates: str | None


if TYPE_CHECKING:

    class SparseMatrix(Protocol):
        """A matrix of SciPy."""

        def tocsr(self) -> Any:
            """Give the matrix by rows."""

    Many = Sequence[Mapping[Any, float]] | SparseMatrix
    """Weights of many seeds as types can tell them apart."""


class RankOptions(ImportOptions, total=False):
    """Parameters of `pagerank` that do not decide what it returns."""

    damping: float
    tol: float
    method: str
    reads: str | None
    stop: str
    max_passes: int | None
    memory: str | int | None
    device_memory: str | int | None
    stripes: int | None
    dangling: str
    top: int | None
    start: Any
    threads: int | None
    client: Any
    device: str
    kernel: str | None
    io: str
    trace: str | os.PathLike[str] | None
    predict: bool
    reproducible: bool
    checkpoint: str | os.PathLike[str] | Checkpoints | None
    resume: bool
    time_limit: str | float | None
    progress: Listener


def _is_a(value: Any, *kinds: type) -> bool:
    return isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))


def _kind(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: _is_a(value, *kinds)


def _names_a_file(value: str | os.PathLike[str]) -> bool:
    name = os.fsencode(value)
    return any(name.split(b"/")) and b"\0" not in name


def _fits_a_file(value: str | os.PathLike[str]) -> bool:
    return all(len(part) <= _MAX_NAME_BYTES for part in os.fsencode(value).split(b"/"))


def _size(value: Any) -> tuple[str, str] | None:
    """What is wrong with a size of memory, and the remedy; None if nothing is."""
    if not _is_a(value, str, Integral):
        return "no size", "Give a number of bytes, or text such as 8GiB or 512MB."
    try:
        size = parse_bytes(str(value))
    except UsageError as error:
        return "no size", error.remedy
    if size < _MIN_MEMORY:
        return f"{size:,} bytes, too few for any process", "Give a unit, such as 8GiB or 512MB."
    return None


def _device_size(value: Any) -> tuple[str, str] | None:
    # A pool may have any number of bytes; text without a unit is a slip of the pen all the same.
    return None if type(value) is int and 0 < value < _MIN_MEMORY else _size(value)


def _time(value: Any) -> tuple[str, str] | None:
    """What is wrong with a time, and the remedy; None if nothing is."""
    try:
        parse_seconds(value if _is_a(value, str, Real) else "")
    except UsageError as error:
        return "no time", error.remedy
    return None


def _keeps_runs(value: Any) -> bool:
    from oocpr.engine.checkpoint import Checkpoints

    return isinstance(value, Checkpoints)


_RULES: list[tuple[str, Callable[[Any], bool], str, str]] = [
    (
        "top",
        lambda value: _is_a(value, Integral) and value >= 0,
        "no count",
        "Give a whole number of at least 0.",
    ),
    ("damping tol seconds alpha beta", _kind(Real), "no number", "Give a number."),
    (
        "max_passes stripes threads",
        lambda value: _is_a(value, Integral) and value >= 1,
        "no count",
        "Give a whole number of at least 1.",
    ),
    (
        "threads",
        lambda value: bool(value <= _MAX_THREADS),
        "more than there are",
        f"Give {_MAX_THREADS} threads at most.",
    ),
    (
        "method reads stop dangling device kernel io order format delimiter duplicates",
        _kind(str),
        "no text",
        "Give text.",
    ),
    (
        "path tmp labels trace seeds",
        _kind(str, os.PathLike),
        "no path",
        "Give a path as text or as pathlib.Path.",
    ),
    (
        "checkpoint",
        lambda value: _is_a(value, str, os.PathLike) or _keeps_runs(value),
        "no path",
        "Give a path or a URL as text, or a pathlib.Path.",
    ),
    (
        "path tmp labels trace seeds checkpoint graph source ranks personalization start",
        lambda value: not isinstance(value, str | os.PathLike) or _names_a_file(value),
        "no path",
        "Give the name of a file or a folder.",
    ),
    (
        "path tmp labels trace seeds checkpoint graph source ranks personalization start",
        lambda value: not isinstance(value, str | os.PathLike) or _fits_a_file(value),
        "too long for the name of a file",
        "Use a shorter one.",
    ),
    (
        "source_column target_column weight",
        _kind(str, Integral),
        "no column",
        "Give the name of a column or, for text, its number.",
    ),
    (
        "undirected reverse header predict personalized overwrite resume reproducible fpga",
        _kind(bool),
        "neither True nor False",
        "Give True or False.",
    ),
    (
        "progress",
        lambda value: isinstance(value, bool) or callable(value),
        "nothing to call",
        "Give True to see progress, None for silence, or a function.",
    ),
    ("on_message", callable, "nothing to call", "Give a function, or leave it out."),
    (
        "client",
        lambda value: hasattr(value, "submit") and hasattr(value, "scheduler_info"),
        "no client of Dask",
        "Give a distributed.Client, or leave the client out.",
    ),
]
"""Parameters, what holds for their values, what else is wrong, and the remedy; in the order of checks."""


def check_argument(name: str, value: Any) -> None:
    """Raise UsageError, with its name, for a value that a parameter cannot have."""
    quantities = {"memory": _size, "device_memory": _device_size, "time_limit": _time}
    found = quantities[name](value) if name in quantities else None
    for names, holds, problem, remedy in _RULES:
        if found is None and name in names.split() and not holds(value):
            found = problem, remedy
    if found is not None:
        raise UsageError(f"{name} is {render_argument(value)}, {found[0]}.", found[1])


def checked(call: Callable[P, R]) -> Callable[P, R]:
    """Let a public function refuse wrong arguments with a UsageError, and take ``progress`` as a `Listener`.

    Its ``**options``, if it has any, are `ImportOptions`. None is checked unless it is the default.

    >>> @checked
    ... def run(*, threads: int | None = None) -> None: ...
    >>> run(threads=-3)
    Traceback (most recent call last):
        ...
    oocpr.errors.UsageError: threads is -3, no count. Give a whole number of at least 1.
    """
    signature = inspect.signature(call)
    parameters = signature.parameters
    own = [name for name, one in parameters.items() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    options = list(ImportOptions.__annotations__) if len(own) < len(parameters) else []
    known = [*own, *options]
    unset = {name for name in own if parameters[name].default is None} | {*options, "progress"}

    @functools.wraps(call)
    def run(*args: P.args, **named: P.kwargs) -> R:
        for name in named:
            if name not in known:
                alike = difflib.get_close_matches(name, known, 1)
                remedy = f"Did you mean {alike[0]}?" if alike else f"There are {', '.join(known)}."
                raise UsageError(f"{call.__name__} has no parameter {name!r}.", remedy)
        given = dict(zip(own, args, strict=False)) | named
        for name, value in given.items():
            if value is not None or name not in unset:
                check_argument(name, value)
        if "progress" not in own:
            return call(*args, **named)
        listener: AbstractContextManager[object] = nullcontext(given.get("progress") or silent)
        if given.get("progress") is True:
            from oocpr.jit import reporting

            listener = reporting()
        with listener as progress:
            return call(*args, **named | {"progress": progress})  # type: ignore[arg-type]

    return run


def as_progress(progress: Listener) -> Progress:
    """Take the ``progress`` that a checked function is called with for the `Progress` that it is by then."""
    return cast("Progress", progress)


def render_argument(value: Any) -> str:
    """Write an argument into a message: short values as they are, others by their type.

    >>> render_argument("4 parsecs"), render_argument(dict.fromkeys(range(99)))
    ("'4 parsecs'", 'a dict')
    """
    text = repr(value)
    return text if len(text) <= 40 and "\n" not in text else f"a {type(value).__name__}"


def check_kernel(kernel: str | None) -> None:
    """Refuse a kernel that is not known."""
    if kernel is not None:
        from oocpr.engine.cuda.baselines import parse_kernel

        parse_kernel(kernel)


def check_used(method: str, device: str, *, stripes: int | None, io: str, kernel: str | None) -> None:
    """Refuse parameters that the method and the device, which is not ``"auto"``, would ignore."""
    from oocpr.engine.cuda.names import check_kernel_device

    if method == "components" and stripes is not None:
        raise UsageError(
            f"{stripes} stripes were asked for and method components has none.",
            "Leave stripes out, or use method mixed.",
        )
    if method == "components" and io != "auto":
        raise UsageError(
            f"io {io} was asked for and method components reads the store once, through the page cache.",
            "Leave io out, or use method mixed.",
        )
    check_kernel_device(kernel, device)


def check_segmented(method: str, device: str, **given: Any) -> None:
    """Refuse what segmented methods do not go with: other devices, and parameters that are not None."""
    if method not in SEGMENTED_METHODS:
        return
    if "," in device:
        raise UsageError(
            f"method {method} does not run on several devices.", "Name one, or use another method."
        )
    check_unused(f"method {method}", "use method power or mixed", **given)


def check_unused(what: str, instead: str, **given: Any) -> None:
    """Refuse parameters that are not None and that `what` does not go with."""
    for name, value in given.items():
        if value is not None:
            takes = "take" if what.startswith("ranks") else "takes"
            raise UsageError(f"{what} {takes} no {name}.", f"Leave {name} out, or {instead}.")


def check_reproducible(device: str, client: Any) -> None:
    """Refuse devices that differ between machines."""
    if client is not None:
        from oocpr.engine.executors.dask import names_workers_devices

        if names_workers_devices(device):
            raise UsageError(
                "a run on CUDA devices of workers is planned by how many there are, so it is not "
                "reproducible.",
                "Leave reproducible out, or use device cpu.",
            )
    if device in ("auto", "cuda:all"):
        raise UsageError(
            f"device {device} means another on another machine, so the run is not reproducible.",
            "Name the devices, such as cpu, cuda or cuda:0,cuda:1.",
        )
