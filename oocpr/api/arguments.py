"""What callers give, checked where it comes in: refused with the parameter's name before anything is done."""

from __future__ import annotations

import difflib
import functools
import inspect
import os
from contextlib import nullcontext
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from oocpr.errors import UsageError
from oocpr.progress import silent
from oocpr.sources.base import SourceOptions
from oocpr.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from oocpr.progress import Listener, Progress

    P = ParamSpec("P")
    R = TypeVar("R")

MIN_MEMORY = 1 << 20
"""A size below it is meant otherwise: no process is as small."""

MAX_THREADS = 1 << 10

MAX_NAME_BYTES = 255
"""Bytes of a name that file systems hold."""


class ImportOptions(SourceOptions, total=False):
    """How a source is read and stored: `SourceOptions`, and what becomes of duplicate edges.

    Parameters
    ----------
    duplicates
        What an edge that the source repeats becomes: ``"sum"``: its weights are added; ``"merge"``: it counts
        once, with its greatest weight; ``"count"``: its weight is how often it comes. None for ``"sum"``
        where there are weights, as in pandas, SciPy and NetworkX, and ``"merge"`` where there are none.
    """

    duplicates: str | None


def _number(value: Any) -> tuple[str, str] | None:
    if isinstance(value, bool) or not isinstance(value, Real):
        return "no number", "Give a number."
    return None


def _count(value: Any) -> tuple[str, str] | None:
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < 1:
        return "no count", "Give a whole number of at least 1."
    return None


def _threads(value: Any) -> tuple[str, str] | None:
    found = _count(value)
    if found is None and value > MAX_THREADS:
        return "more than there are", f"Give {MAX_THREADS} threads at most."
    return found


def _size(value: Any) -> tuple[str, str] | None:
    if isinstance(value, bool) or not isinstance(value, str | Integral):
        return "no size", "Give a number of bytes, or text such as 8GiB or 512MB."
    try:
        size = parse_bytes(str(value))
    except UsageError as error:
        return "no size", error.remedy
    if size < MIN_MEMORY:
        return f"{size:,} bytes, too few for any process", "Give a unit, such as 8GiB or 512MB."
    return None


def _device_size(value: Any) -> tuple[str, str] | None:
    # A pool may have any number of bytes; text without a unit is a slip of the pen all the same.
    if type(value) is int and 0 < value < MIN_MEMORY:
        return None
    return _size(value)


def _text(value: Any) -> tuple[str, str] | None:
    return None if isinstance(value, str) else ("no text", "Give text.")


def _path(value: Any) -> tuple[str, str] | None:
    if not isinstance(value, str | os.PathLike):
        return "no path", "Give a path as text or as pathlib.Path."
    parts = os.fsencode(value).split(b"/")
    if not any(parts) or any(b"\0" in part or len(part) > MAX_NAME_BYTES for part in parts):
        return "no path", "Give the name of a file or a folder."
    return None


def _path_or_else(value: Any) -> tuple[str, str] | None:
    return _path(value) if isinstance(value, str | os.PathLike) else None


def _column(value: Any) -> tuple[str, str] | None:
    if isinstance(value, bool) or not isinstance(value, str | Integral):
        return "no column", "Give the name of a column or, for text, its number."
    return None


def _truth(value: Any) -> tuple[str, str] | None:
    return None if isinstance(value, bool) else ("neither True nor False", "Give True or False.")


def _callable(value: Any) -> tuple[str, str] | None:
    return None if callable(value) else ("nothing to call", "Give a function, or leave it out.")


def _progress(value: Any) -> tuple[str, str] | None:
    if isinstance(value, bool) or callable(value):
        return None
    return "nothing to call", "Give True to see progress, None for silence, or a function."


def _client(value: Any) -> tuple[str, str] | None:
    if hasattr(value, "submit") and hasattr(value, "scheduler_info"):
        return None
    return "no client of Dask", "Give a distributed.Client, or leave the client out."


_CHECKS: dict[str, Callable[[Any], tuple[str, str] | None]] = {
    **dict.fromkeys(("damping", "tol", "seconds"), _number),
    **dict.fromkeys(("max_passes", "stripes"), _count),
    "threads": _threads,
    "memory": _size,
    "device_memory": _device_size,
    **dict.fromkeys(
        ("method", "reads", "stop", "dangling", "device", "kernel", "io", "order", "format"), _text
    ),
    **dict.fromkeys(("source_column", "target_column", "duplicates"), _text),
    **dict.fromkeys(("path", "tmp", "labels", "trace"), _path),
    **dict.fromkeys(("graph", "source", "ranks", "personalization", "start"), _path_or_else),
    "weight": _column,
    **dict.fromkeys(("undirected", "header", "predict", "personalized"), _truth),
    **dict.fromkeys(("overwrite", "resume"), _truth),
    "progress": _progress,
    "tell": _callable,
    "client": _client,
}
"""What is wrong with an argument and the way out, or None, by the parameter's name; None is checked nowhere
where it is the default."""


def checked(call: Callable[P, R]) -> Callable[P, R]:
    """Let a public function refuse what cannot be, and take ``progress`` as `Listener` has it.

    Parameters
    ----------
    call
        The function; its ``**options``, if it has any, are `ImportOptions`.

    Returns
    -------
    Callable
        It raises UsageError where an argument cannot be, or there is no such parameter.

    Examples
    --------
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
            if value is None and name in unset:
                continue
            found = _CHECKS[name](value) if name in _CHECKS else None
            if found is not None:
                raise UsageError(f"{name} is {render_argument(value)}, {found[0]}.", found[1])
        if "progress" not in own:
            return call(*args, **named)
        with _listening(given.get("progress")) as progress:
            return call(*args, **named | {"progress": progress})  # type: ignore[arg-type]

    return run


def _listening(progress: Any) -> AbstractContextManager[Progress]:
    if progress is True:
        from oocpr.jit import reporting

        return reporting()
    return nullcontext(progress or silent)


def as_progress(progress: Listener) -> Progress:
    """Take the ``progress`` that a checked function is called with for what it is by then.

    Examples
    --------
    >>> as_progress(silent) is silent
    True
    """
    return cast("Progress", progress)


def render_argument(value: Any) -> str:
    """Write an argument into a message: short values as they are, others by their type.

    Examples
    --------
    >>> render_argument("4 parsecs"), render_argument(dict.fromkeys(range(99)))
    ("'4 parsecs'", 'a dict')
    """
    text = repr(value)
    return text if len(text) <= 40 and "\n" not in text else f"a {type(value).__name__}"
