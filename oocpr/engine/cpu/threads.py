"""Threads that work on one tile together: handed their work, and held at barriers, in compiled code.

A tile takes a millisecond or less and has several phases. A pool that is handed each phase would cost more
than some of them, and one that is handed each tile still a fifth of it: every thread would wait for Python's
lock and take the arguments apart. So the threads enter compiled code once, through `worker_loop`, which knows
no work; `parallel_region` posts the addresses of a work and of its arguments on a board, and they call it.
Between works they spin for some tenths of a millisecond, then nap, and return to Python after some
milliseconds, or once their team is gone, so that none holds a processor or keeps the process from ending.

Nobody waits for a thread that is not there: a work begins with those that are, and is given their number. So
an error or an interrupt between two works leaves nothing that waits for ever.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any

import numpy as np
from llvmlite import ir
from numba import int64, types, uint32
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic
from numpy.typing import NDArray

from oocpr.jit import entry, inner
from oocpr.system import usable_cores

# A board is int64, in lines of the cache: counters of the work and how often to look before a nap, what is
# posted, how many have done it, how many threads are there, and a line for each thread but the caller's.
_LINE = 8
_COUNTERS = 2
_SPINS = 2
_PART, _GIVEN, _TEAM = range(_LINE, _LINE + 3)
_DONE, _FAILED = 2 * _LINE, 2 * _LINE + 1
PRESENT = 3 * _LINE
"""Where a board says how many threads are there."""
_OTHERS = 4 * _LINE

# The first word of a thread's line is its number in the work that it is called to, or one of these.
_AWAY, _WAITING, _HELD = 0, -1, -2

# A part that ends within some tenths of a millisecond is not worth a nap, which lasts nearly as long; but who
# may be waiting for this very processor is.
_MANY_SPINS, _FEW_SPINS = 500_000, 5_000
_NAP = 20
# A nap takes nearer to a tenth of a millisecond.
_NAPS = 100
_NAPS_TO_COME = 20

_I64 = ir.IntType(64)

_WORKER_TYPES = (types.Array(types.int64, 1, "C"), types.int64)

_TUPLE: Any = types.BaseTuple  # numba does not say that it can be iterated over

_nap = types.ExternalFunction("usleep", types.int32(types.uint32))

MAX_THREADS = 16
"""A pass over R-MAT of 131 M edges, by out-degree, took 176, 100, 59 and 43 ms with 2, 4, 8 and 16 threads on
16 cores; with more nobody has measured it. Sweeps inside a tile have work for TILE_REGIONS of them."""


THREAD_EDGES = 2**15
"""Edges of a graph for each thread. On 16 cores, graphs of 15 to 24 thousand edges took one thread 2.7 to
5.5 ms, and 16 threads 11 to 12, which they take to begin; for one of 172 thousand it was 9 ms with one, 7
with four and 26 with 16."""


CORES_A_READER = 8
"""Cores of which one is left to those that read tiles: who waits at a barrier for a thread that they hold up
waits for milliseconds. Of 16 cores, 16 threads took 110 and 70 ms for a pass over a shuffled crawl and R-MAT
past the page cache, 14 took 75 and 46; through it 100 and 59, and 54 and 27. Of 8, 8 took 140 and 66 and 7
took 110 and 51; of 4, 4 took as long as 3. From memory, 16, 14 and 12 of 16 cores took as long."""


def default_threads(edges: int, *, streams: bool = False, cores: int | None = None) -> int:
    """Threads of a team unless the caller says: one for THREAD_EDGES, but as many as cores or MAX_THREADS.

    `streams`: whether tiles are read in every pass, for which some cores are left.
    `cores`: those of this process, None for all that it may use.

    >>> default_threads(1000)
    1
    """
    cores = usable_cores() if cores is None else min(cores, usable_cores())
    if streams:
        cores -= cores // CORES_A_READER
    return min(1 + edges // THREAD_EDGES, cores, MAX_THREADS)


class Team:
    """A fixed number of threads, the caller's own among them.

    >>> @inner(cache=False)
    ... def _part(me, team, counter, seen):
    ...     seen[me] = team
    >>> @entry(cache=False)
    ... def work(board, *args):
    ...     return parallel_region(board, _part, args)
    >>> seen = np.zeros(2, np.int64)
    >>> Team(2).run(work, seen)
    >>> bool(seen[0] == (seen > 0).sum())
    True
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._lock = Lock()
        self._assemble()

    def _assemble(self) -> None:
        """Make a board, and what threads that come to it are of."""
        size = self.size
        self._board = _make_board(size - 1, _MANY_SPINS if size <= usable_cores() else _FEW_SPINS)
        self._pool = ThreadPoolExecutor(size - 1, thread_name_prefix="oocpr-team") if size > 1 else None
        self._others: list[Future[None] | None] = [None] * (size - 1)
        weakref.finalize(self, _dismiss_workers, self._board)

    def start(self) -> None:
        """Have the others come, who may take milliseconds, while the caller prepares what `run` needs."""
        if self._pool is not None and self._board[PRESENT] < self.size - 1:
            self._start_workers(self._pool)

    def run(self, work: Callable[..., int], *args: Any) -> None:
        """Call ``work(board, *args)``, a compiled function that returns what `parallel_region` does."""
        # A board has room for one work.
        with self._lock:
            self.start()
            if work(self._board, *args):
                raise RuntimeError("a thread could not do its part.")

    def _start_workers(self, pool: ThreadPoolExecutor) -> None:
        """Send the threads to the board that are in Python."""
        # Here, since a failure to compile in another thread would be seen too late.
        load_worker_loop()
        try:
            for number, other in enumerate(self._others):
                if other is None or other.done():
                    if other is not None:
                        other.result()
                    self._others[number] = pool.submit(worker_loop, self._board, number)
        except BaseException:
            # Ctrl-C may come once a thread has begun, before the pool knows of it. Python would wait for it
            # for ever, unless the pool ends; and the next work may not meet it on its board.
            pool.shutdown(wait=False)
            _dismiss_workers(self._board)
            self._assemble()
            raise


def load_worker_loop() -> None:
    """Load what threads of a team enter, or compile it."""
    worker_loop.compile(_WORKER_TYPES)


def _dismiss_workers(board: NDArray[np.int64]) -> None:
    """Let workers leave at once: nothing is posted any more, and the next team wants the processors."""
    board[_SPINS] = -_NAPS


def _make_board(others: int, spins: int) -> NDArray[np.int64]:
    """Make a board for so many workers, aligned to lines of the cache."""
    words = _OTHERS + others * _LINE
    memory = np.zeros(words + _LINE, np.int64)
    first = -(memory.ctypes.data // memory.itemsize) % _LINE
    board = memory[first : first + words]
    board[_SPINS] = spins
    return board


@inner()
def barrier(counter, team, phase):
    """Wait until all `team` threads have come for the time number `phase`, counted from 1.

    Looks for them as often as the board says, then naps: the other may be waiting for this very processor.
    """
    if team == 1:
        return
    _add(counter, int64(1))
    tries = 0
    while _now(counter) < team * phase:
        tries += 1
        if tries > counter[_SPINS]:
            _nap(uint32(_NAP))


@inner()
def next_chunk(counter):
    """Take the next number, from 0 on, that no other thread has taken."""
    return _add(counter, int64(1))


def _address(context: Any, b: Any, signature: Any, args: Any) -> Any:
    return context.make_array(signature.args[0])(context, b, args[0]).data


@intrinsic
def _add(typingctx: Any, counter: Any, amount: Any) -> Any:
    """Add to ``counter[0]`` in one indivisible step; returns what it was."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return b.atomic_rmw("add", _address(context, b, signature, args), args[1], "seq_cst")

    return types.int64(counter, types.int64), codegen


@intrinsic
def _now(typingctx: Any, counter: Any) -> Any:
    """Read ``counter[0]`` as the last writer left it."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return b.load_atomic(_address(context, b, signature, args), "seq_cst", 8, typ=_I64)

    return types.int64(counter), codegen


@intrinsic
def _put(typingctx: Any, word: Any, value: Any) -> Any:
    """Write ``word[0]`` after all that was written before."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        b.store_atomic(args[1], _address(context, b, signature, args), "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(word, types.int64), codegen


@intrinsic
def _compare_and_swap(typingctx: Any, word: Any, before: Any, after: Any) -> Any:
    """Write ``word[0]`` if it is `before`; returns whether it was."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        found = b.cmpxchg(_address(context, b, signature, args), args[1], args[2], "seq_cst", "seq_cst")
        return b.extract_value(found, 1)

    return types.boolean(word, types.int64, types.int64), codegen


@intrinsic
def _call(typingctx: Any, part: Any, me: Any, team: Any, given: Any) -> Any:
    """Call what `parallel_region` posted; returns another number than 0 if it raised an error."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_I64, [_I64] * 3).as_pointer()
        return b.call(b.inttoptr(args[0], kind), args[1:])

    return types.int64(*[types.int64] * 4), codegen


@entry()
def worker_loop(board, other):
    """Do what is posted on a board, as worker number `other`, until nothing has been for a while."""
    word = board[_OTHERS + other * _LINE :]
    _put(word, int64(_WAITING))
    _add(board[PRESENT:], int64(1))
    tries = 0
    while True:
        me = _now(word)
        if me > 0:
            failed = _call(board[_PART], me, board[_TEAM], board[_GIVEN])
            if failed:
                _add(board[_FAILED:], int64(1))
            _put(word, int64(_WAITING))
            _add(board[_DONE:], int64(1))
            tries = 0
        tries += 1
        if tries > board[_SPINS]:
            _nap(uint32(_NAP))
        if tries > board[_SPINS] + _NAPS and _compare_and_swap(word, int64(_WAITING), int64(_AWAY)):
            break
    _add(board[PRESENT:], int64(-1))


@inner()
def _wake_workers(board, part, given):
    """Call the threads that are there to a work; returns how many there are with the caller's own."""
    others = (board.size - _OTHERS) // _LINE
    tries = 0
    while _now(board[PRESENT:]) < others and tries < board[_SPINS] + _NAPS_TO_COME:
        tries += 1
        if tries > board[_SPINS]:
            _nap(uint32(_NAP))
    team = 1
    for k in range(others):
        team += _compare_and_swap(board[_OTHERS + k * _LINE :], int64(_WAITING), int64(_HELD))
    for counter in range(_COUNTERS):
        board[counter] = 0
    board[_PART] = part
    board[_GIVEN] = given
    board[_TEAM] = team
    board[_DONE] = 0
    board[_FAILED] = 0
    number = 1
    for k in range(others):
        word = board[_OTHERS + k * _LINE :]
        if _now(word) == _HELD:
            _put(word, int64(number))
            number += 1
    return int64(team)


@inner()
def _until_done(board, team):
    """Wait until all others have done their parts; returns how many failed."""
    tries = 0
    while _now(board[_DONE:]) < team - 1:
        tries += 1
        if tries > board[_SPINS]:
            _nap(uint32(_NAP))
    return _now(board[_FAILED:])


@intrinsic
def parallel_region(typingctx: Any, board: Any, work: Any, given: Any) -> Any:
    """Call ``work(me, team, board, *given)`` in the caller's thread and in the workers at the board.

    Returns how many of the others failed, once all are done. The first words of the board are zeros, for
    `barrier` and `next_chunk`. Arguments are arrays, numbers, None and tuples of these. Nobody counts
    references to them meanwhile, since threads that did would wait for each other's counters; who called the
    caller holds them.
    """
    kinds = (board, *given.types)
    for kind in kinds:
        _check(kind)
    signature = _signature(typingctx, work.dispatcher, types.int64, types.int64, *kinds)
    wake = _signature(typingctx, _wake_workers, board, types.int64, types.int64)
    until_done = _signature(typingctx, _until_done, board, types.int64)

    def codegen(context: Any, b: Any, _: Any, args: Any) -> Any:
        values = [args[0], *(b.extract_value(args[2], k) for k in range(len(given.types)))]
        bare = [_bare(context, b, kind, value) for kind, value in zip(kinds, values, strict=True)]
        packed = context.make_tuple(b, types.Tuple(kinds), bare)
        # In the caller's frame, which stays until all others are done.
        slot = cgutils.alloca_once_value(b, packed)
        part = _part(context, b, work.dispatcher, signature, slot.type)
        addresses = b.ptrtoint(part, _I64), b.ptrtoint(slot, _I64)
        _, team = _result(context, b, _wake_workers, wake, [args[0], *addresses])
        status, _ = _result(context, b, work.dispatcher, signature, [_I64(0), team, *bare])
        _, failed = _result(context, b, _until_done, until_done, [args[0], team])
        with cgutils.if_unlikely(b, status.is_error):
            context.call_conv.return_status_propagate(b, status)
        return failed

    return types.int64(board, work, given), codegen


def _check(kind: Any) -> None:
    """Refuse what `_bare` does not know how to lend."""
    if isinstance(kind, _TUPLE):
        for part in kind:
            _check(part)
    elif not isinstance(kind, types.Array | types.Number | types.Boolean | types.NoneType):
        raise TypingError(f"threads cannot share a {kind}.")


def _signature(typingctx: Any, dispatcher: Any, *kinds: Any) -> Any:
    """Signature of a compiled function for arguments of these types, compiled if it is not yet."""
    return types.Dispatcher(dispatcher).get_call_type(typingctx, kinds, {})


def _result(context: Any, b: Any, dispatcher: Any, signature: Any, args: Any) -> Any:
    """Call a compiled function; returns its status and its result, and leaves errors to the caller."""
    compiled = dispatcher.get_compile_result(signature)
    context.add_linking_libs([compiled.library])
    function = context.declare_function(b.module, compiled.fndesc)
    # Compiling it twice into its two callers would take time.
    return context.call_conv.call_function(
        b, function, signature.return_type, signature.args, args, attrs=("noinline",)
    )


def _part(context: Any, b: Any, dispatcher: Any, signature: Any, pointer: Any) -> Any:
    """Make the function that workers call: it loads the arguments and does the work."""
    kind = ir.FunctionType(_I64, [_I64] * 3)
    part = ir.Function(b.module, kind, b.module.get_unique_name("part"))
    part.linkage = "internal"
    builder = ir.IRBuilder(part.append_basic_block())
    me, team, address = part.args
    packed = builder.load(builder.inttoptr(address, pointer))
    given = [builder.extract_value(packed, k) for k in range(len(signature.args) - 2)]
    status, _ = _result(context, builder, dispatcher, signature, [me, team, *given])
    builder.ret(builder.zext(status.is_error, _I64))
    return part


def _bare(context: Any, b: Any, kind: Any, value: Any) -> Any:
    """Remove the owners from the arrays of a value."""
    if isinstance(kind, _TUPLE):
        bare = [_bare(context, b, part, b.extract_value(value, k)) for k, part in enumerate(kind)]
        return context.make_tuple(b, kind, bare)
    if isinstance(kind, types.Array):
        array = context.make_array(kind)(context, b, value=value)
        array.meminfo = cgutils.get_null_value(array.meminfo.type)
        return array._getvalue()
    return value
