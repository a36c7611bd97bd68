"""How functions are compiled: those that Python calls, and those that only compiled code calls.

Compiled code is cached under NUMBA_CACHE_DIR or OOCPR_CACHE_DIR, else beside the source or in the user's
cache; if none of them can be written, or the disk is full, it stays in memory. The first run waits for
compilation, so functions that only compiled code calls go without the wrappers for Python's objects, which
take a third of the time.

A function is compiled anew when any source has changed that it may be made of: Numba looks only at the file
of the function itself, and not at what that calls or takes constants from.

Processes may compile side by side. Numba numbers the files of a function's versions, and two processes that
add different versions at once give both the same number, so that later one is loaded for the other. Here
each file has a random name; the worst that is lost is an entry of the index, and one more compilation.
"""

# Numba carries no types.
# mypy: allow-untyped-calls=True

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from glob import escape
from hashlib import blake2b
from pathlib import Path
from secrets import randbits
from threading import Lock, get_ident, local
from time import perf_counter
from typing import TYPE_CHECKING, Any

from llvmlite.binding import add_symbol, parse_assembly
from numba import config, njit
from numba.core import environment
from numba.core.caching import CompileResultCacheImpl, FunctionCache, NullCache
from numba.core.codegen import JITCodeLibrary, JITCPUCodegen
from numba.core.environment import Environment
from numba.core.event import Listener, install_listener
from numba.core.runtime._nrt_python import c_helpers

from oocpr.errors import UsageError
from oocpr.progress import Reporter
from oocpr.system import is_disk_full

if TYPE_CHECKING:
    from oocpr.progress import Progress

_CACHED: dict[str, Any] = {"nogil": True, "cache": True, "no_cfunc_wrapper": True}
_UNWRAPPED: dict[str, Any] = {"no_cpython_wrapper": True}

BORROWING: dict[str, Any] = {"_nrt": False}
"""Options of functions that make no arrays and take many: without reference counts, which take some
nanoseconds for each array of a tuple at each call."""


class _Compiling(local):
    """Whether this thread compiles a function that is optimized in its callers alone."""

    late = False


_compiling = _Compiling()


class _Library(JITCodeLibrary):
    """The code of a function, which may wait for that of its callers to be optimized."""

    def _optimize_final_module(self) -> None:
        if not _compiling.late:
            super()._optimize_final_module()


JITCPUCodegen._library_class = _Library

_rebuild_env = environment._rebuild_env


@functools.wraps(_rebuild_env)
def _rebuild_environment(module: str, constants: Any, name: str) -> Any:
    """Rebuild what a loaded function has of its module, without the module if it is one of Numba's.

    Compiled code takes constants from there and names from nowhere, and to import what arrays are compiled
    by takes a thirtieth of the time of a small graph.
    """
    found = environment.lookup_environment(name)
    if found is None and module.startswith("numba.") and module not in sys.modules:
        found = Environment._memo[name] = Environment({"__name__": module})
        found.consts[:] = constants
        found.env_name = name
    return found or _rebuild_env(module, constants, name)


environment._rebuild_env = _rebuild_environment


_UNCOMPILED = ("__pycache__", "api", "cli", "jobs")
"""Folders of the package of which nothing gets into compiled code."""


@functools.cache
def _sources() -> str:
    """What changes with any source that compiled code may be made of; from their times and sizes."""
    found, folders = [], [str(Path(__file__).parent)]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir():
                    folders += [entry.path] * (entry.name not in _UNCOMPILED)
                elif entry.name.endswith(".py"):
                    known = entry.stat()
                    found.append((entry.path, known.st_mtime_ns, known.st_size))
    return blake2b(repr(sorted(found)).encode(), digest_size=16).hexdigest()


_config_lock = Lock()
"""Held while Numba's settings name another folder: threads of a run may call functions first at once."""


@functools.cache
def _name_runtime() -> None:
    """Name the functions of Numba's runtime to LLVM: those that compiled functions call by their names."""
    for name, address in c_helpers.items():
        add_symbol(name if name.startswith("_") else f"NRT_{name}", address)


class _Cache(FunctionCache):
    """Numba's cache of a function, from which one is loaded without what only compiling needs.

    Numba fetches its typing rules and code generators before each load, SciPy's linear algebra with them,
    and compiles its reference counts, of which loaded functions have their own: a quarter of a second for
    each process, and a function that is compiled fetches them by itself.
    """

    def __init__(self, function: Any) -> None:
        own = os.environ.get("OOCPR_CACHE_DIR")
        with _config_lock:
            given = getattr(config, "CACHE_DIR", "")
            folder = given or (f"{own}/compiled" if own else "")
            setattr(config, "CACHE_DIR", folder)  # noqa: B010 - numba's settings carry no types
            try:
                super().__init__(function)
            finally:
                setattr(config, "CACHE_DIR", given)  # noqa: B010
        files: Any = self._cache_file
        numbered = files._data_name
        files._data_name = lambda _: numbered(randbits(64))
        files._source_stamp = files._source_stamp, _sources()

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load the version of a signature; None if it is not compiled yet."""
        _name_runtime()
        return self._load_overload(sig, target_context)

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep the version of a signature, unless the disk has no room: then it stays in memory."""
        try:
            self._remove_outdated()
            super().save_overload(sig, data)
        except OSError as error:
            if not is_disk_full(error):
                raise

    def _remove_outdated(self) -> None:
        """Remove versions that were made of other sources, of which the index knows nothing."""
        files: Any = self._cache_file
        if not files._load_index():
            for version in Path(self._cache_path).glob(f"{escape(self._impl.filename_base)}.*.nbc"):
                # They may be somebody else's.
                with contextlib.suppress(OSError):
                    version.unlink()


class _MachineCode(CompileResultCacheImpl):
    """What is kept of a function that only Python calls: not the code from which others would inline it.

    That is half of a file, and reading it takes half of the time for which a function is loaded.
    """

    def reduce(self, cres: Any) -> Any:
        """Give what the file of a compiled function has."""
        (name, kind, (machine_code, _)), *rest = super().reduce(cres)
        return (name, kind, (machine_code, parse_assembly("").as_bitcode())), *rest

    def rebuild(self, target_context: Any, payload: Any) -> Any:
        """Load a compiled function from what its file has."""
        _, function, *_ = payload
        # Numba finds only symbols that it has listed, and lists those of the code for inlining.
        target_context.codegen()._engine._defined_symbols.update(
            (function.llvm_func_name, function.llvm_cpython_wrapper_name)
        )
        return super().rebuild(target_context, payload)


class _EntryCache(_Cache):
    _impl_class: Any = _MachineCode


def entry(signature: Any = None, *, shared: bool = False, **options: Any) -> Any:
    """Compile a function that Python calls, without the GIL; `options` are more for ``numba.njit``.

    It is compiled for the arguments of each call or, at once, for those of a signature alone. Compiled
    functions can call it only if it is `shared`: others are kept without what that takes.
    """
    return _compiled(_CACHED | options, _Cache if shared else _EntryCache, signature)


def inner(*, late: bool = False, **options: Any) -> Any:
    """Compile a function that only compiled functions call; from Python, a call would end the process.

    One that does little but call others may be optimized `late`, in what calls it alone: once, instead of
    once for each level of calls. Its own loops may then stay without vectors: a sum of eight parts in such a
    function took eight times as long.
    """
    return _compiled(_CACHED | _UNWRAPPED | options, _Cache, late=late)


def _compiled(
    options: dict[str, Any], cache: type[_Cache], signature: Any = None, *, late: bool = False
) -> Any:
    def decorate(function: Any) -> Any:
        dispatcher = njit(**options | {"cache": False})(function)
        if dispatcher is function:
            raise UsageError("NUMBA_DISABLE_JIT is set, and functions have to be compiled.", "Unset it.")
        dispatcher.compile = _noting(dispatcher, cache if options["cache"] else None, late=late)
        # Numba would search all packages for its extensions, which add types: no function here takes any.
        dispatcher._compilation_chain_init_hook = _nothing
        if cache is _EntryCache:
            dispatcher.get_call_template = _refuse
        if signature is not None:
            dispatcher.compile(signature)
            dispatcher.disable_compile()
        return dispatcher

    return decorate


def _nothing() -> None:
    """Do nothing before a version of a function is looked for."""


def _noting(dispatcher: Any, cache: type[_Cache] | None, *, late: bool) -> Callable[[Any], Any]:
    """Note how a function is compiled, whatever is compiled for its sake meanwhile, and find its cache first.

    Of all functions a run calls a quarter, and each cache tries whether its folder can be written to.
    """
    compile_version = dispatcher.compile

    def noted(signature: Any) -> Any:
        if cache and isinstance(dispatcher._cache, NullCache):
            # Numba says by a RuntimeError that it can write nowhere.
            with contextlib.suppress(RuntimeError):
                dispatcher._cache = cache(dispatcher.py_func)
        before, _compiling.late = _compiling.late, late
        try:
            return compile_version(signature)
        finally:
            _compiling.late = before

    return noted


def _refuse(*_: Any) -> Any:
    raise TypeError("compiled functions call only those that are inner, or shared")


def cache_folder() -> str:
    """Folder that has the compiled functions' own folders; empty if they stay in memory."""
    try:
        return str(_Cache(_nothing).cache_path)
    except RuntimeError:
        return ""


class Compilation(Listener):
    """What is compiled while it listens: `seconds` spent so far, and progress after each function."""

    def __init__(self, progress: Progress) -> None:
        self.seconds = 0.0
        self._progress = progress
        self._functions = 0
        self._begun: defaultdict[int, list[float]] = defaultdict(list)

    def on_start(self, event: Any) -> None:  # noqa: ARG002
        """Note when a function begins; numba calls this, and again for those that it calls."""
        self._begun[get_ident()].append(perf_counter())

    def on_end(self, event: Any) -> None:  # noqa: ARG002
        """Count a function, unless another thread began it before anybody listened."""
        begun = self._begun[get_ident()]
        if not begun:
            return
        began = begun.pop()
        if not begun:
            self.seconds += perf_counter() - began
        self._functions += 1
        self._progress("compiling, once on a machine", self._functions, None, "functions")


class MustCompileError(Exception):
    """A function would have to be compiled."""


class _Refusal(Listener):
    """Lets nothing be compiled: numba reports a function once it has not found it compiled."""

    def on_start(self, event: Any) -> None:
        """Refuse."""
        raise MustCompileError(str(event.data))

    def on_end(self, event: Any) -> None:
        """Nothing was begun."""


@contextlib.contextmanager
def without_compiling() -> Iterator[None]:
    """Raise MustCompileError meanwhile if a function would have to be compiled.

    >>> @entry(cache=False)
    ... def thrice(x):
    ...     return 3 * x
    >>> try:
    ...     with without_compiling():
    ...         thrice(2)
    ... except MustCompileError:
    ...     print("not yet;", thrice(2))
    not yet; 6
    """
    with install_listener("numba:compile", _Refusal()):
        yield


@contextlib.contextmanager
def watched(progress: Progress) -> Iterator[Compilation]:
    """Listen to what is compiled in this process meanwhile."""
    with install_listener("numba:compile", Compilation(progress)) as compilation:
        yield compilation


@contextlib.contextmanager
def reporting(*, live: bool = True) -> Iterator[Reporter]:
    """Report progress on standard error meanwhile, compilation included; `live`: one line may be redrawn."""
    with Reporter(sys.stderr, live=live and sys.stderr.isatty()) as reporter, watched(reporter):
        yield reporter
