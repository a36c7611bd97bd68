"""How a thread in compiled code hands a work to others that wait there.

The others enter compiled code through `follow`, which knows no work. Who calls `by_all` posts the addresses
of a work and of its arguments on a board that all know, and the others call it, without Python and its lock.
Between works they spin for some tenths of a millisecond, then nap, and go back to Python after some
milliseconds, so that none holds a processor or keeps the process from ending.

Nobody waits for a thread that is not there: a work is begun with those that are, and is told how many. So an
error or an interrupt between two works leaves nothing that waits for ever.
"""

# Compiled functions carry no types: numba infers them.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True
# mypy: allow-untyped-calls=True, check-untyped-defs=False

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from llvmlite import ir
from numba import int64, types, uint32
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic

from oocpr.jit import entry, inner

if TYPE_CHECKING:
    from numpy.typing import NDArray

# A board is int64, in lines of the cache: counters of the work and how often to look before a nap, what is
# posted, how many have done it, how many threads are there, and a line for each thread but the caller's.
_LINE = 8
_COUNTERS = 2
PATIENCE = 2
"""Where a board says how often a thread looks for the others before it naps."""
_PART, _GIVEN, _TEAM = range(_LINE, _LINE + 3)
_DONE, _FAILED = 2 * _LINE, 2 * _LINE + 1
PRESENT = 3 * _LINE
"""Where a board says how many threads are there."""
_OTHERS = 4 * _LINE

# The first word of a thread's line is its number in the work that it is called to, or one of these.
_AWAY, _WAITING, _HELD = 0, -1, -2

_NAP = 20
# A nap takes nearer to a tenth of a millisecond.
_NAPS = 100
_NAPS_TO_COME = 20

_I32, _I64 = ir.IntType(32), ir.IntType(64)

nap = types.ExternalFunction("usleep", types.int32(types.uint32))


def make_board(others: int, patience: int) -> NDArray[np.int64]:
    """Board for so many threads that follow, which begins with a line of the cache."""
    words = _OTHERS + others * _LINE
    room = np.zeros(words + _LINE, np.int64)
    first = -(room.ctypes.data // room.itemsize) % _LINE
    board = room[first : first + words]
    board[PATIENCE] = patience
    return board


@intrinsic
def add(typingctx: Any, counter: Any, amount: Any) -> Any:  # noqa: ARG001
    """Add to ``counter[0]`` in one indivisible step; returns what it was."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, b, args[0])
        return b.atomic_rmw("add", array.data, args[1], "seq_cst")

    return types.int64(counter, types.int64), codegen


@intrinsic
def now(typingctx: Any, counter: Any) -> Any:  # noqa: ARG001
    """Read ``counter[0]`` as the last writer left it."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, b, args[0])
        return b.load_atomic(array.data, "seq_cst", 8, typ=_I64)

    return types.int64(counter), codegen


@intrinsic
def _put(typingctx: Any, word: Any, value: Any) -> Any:  # noqa: ARG001
    """Write ``word[0]`` after all that was written before."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, b, args[0])
        b.store_atomic(args[1], array.data, "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(word, types.int64), codegen


@intrinsic
def _turn(typingctx: Any, word: Any, before: Any, after: Any) -> Any:  # noqa: ARG001
    """Write ``word[0]`` if it is `before`; tells whether it was."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, b, args[0])
        found = b.cmpxchg(array.data, args[1], args[2], "seq_cst", "seq_cst")
        return b.extract_value(found, 1)

    return types.boolean(word, types.int64, types.int64), codegen


@intrinsic
def _call(typingctx: Any, part: Any, me: Any, team: Any, given: Any) -> Any:  # noqa: ARG001
    """Call what `by_all` posted; returns a number other than 0 where it raised an error."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
        kind = ir.FunctionType(_I64, [_I64] * 3).as_pointer()
        return b.call(b.inttoptr(args[0], kind), args[1:])

    return types.int64(*[types.int64] * 4), codegen


FOLLOWING = (types.Array(types.int64, 1, "C"), types.int64)
"""Types of what `follow` takes."""


@entry()
def follow(board, other):
    """Do what is posted on a board as the other thread of a number, until nothing has been for a while."""
    word = board[_OTHERS + other * _LINE :]
    _put(word, int64(_WAITING))
    add(board[PRESENT:], int64(1))
    tries = 0
    while True:
        me = now(word)
        if me > 0:
            failed = _call(board[_PART], me, board[_TEAM], board[_GIVEN])
            if failed:
                add(board[_FAILED:], int64(1))
            _put(word, int64(_WAITING))
            add(board[_DONE:], int64(1))
            tries = 0
        tries += 1
        if tries > board[PATIENCE]:
            nap(uint32(_NAP))
        if tries > board[PATIENCE] + _NAPS and _turn(word, int64(_WAITING), int64(_AWAY)):
            break
    add(board[PRESENT:], int64(-1))


@inner()
def _summon(board, part, given):
    """Call the threads that are there to a work; returns how many there are with the caller's own."""
    others = (board.size - _OTHERS) // _LINE
    tries = 0
    while now(board[PRESENT:]) < others and tries < board[PATIENCE] + _NAPS_TO_COME:
        tries += 1
        if tries > board[PATIENCE]:
            nap(uint32(_NAP))
    team = 1
    for k in range(others):
        team += _turn(board[_OTHERS + k * _LINE :], int64(_WAITING), int64(_HELD))
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
        if now(word) == _HELD:
            _put(word, int64(number))
            number += 1
    return int64(team)


@inner()
def _until_done(board, team):
    """Wait until all others have done their parts; returns how many failed."""
    tries = 0
    while now(board[_DONE:]) < team - 1:
        tries += 1
        if tries > board[PATIENCE]:
            nap(uint32(_NAP))
    return now(board[_FAILED:])


@intrinsic
def by_all(typingctx: Any, board: Any, work: Any, given: Any) -> Any:
    """Call ``work(me, team, board, *given)`` in the caller's thread and in those that follow the board.

    Returns how many of the others failed, once all are done. The first words of the board are zeros, for
    `meet` and `claim`. Arguments are arrays, numbers, None and tuples of these. Nobody counts references to
    them meanwhile, since threads that did would wait for each other's counters; who called the caller holds
    them.
    """
    kinds = (board, *given.types)
    for kind in kinds:
        _check(kind)
    signature = _kept(typingctx, work.dispatcher, types.int64, types.int64, *kinds)
    summon = _kept(typingctx, _summon, board, types.int64, types.int64)
    until_done = _kept(typingctx, _until_done, board, types.int64)

    def codegen(context: Any, b: Any, _: Any, args: Any) -> Any:
        values = [args[0], *(b.extract_value(args[2], k) for k in range(len(given.types)))]
        bare = [_bare(context, b, kind, value) for kind, value in zip(kinds, values, strict=True)]
        packed = context.make_tuple(b, types.Tuple(kinds), bare)
        # In the caller's frame, which stays until all others are done.
        slot = cgutils.alloca_once_value(b, packed)
        part = _part(context, b, work.dispatcher, signature, slot.type)
        addresses = b.ptrtoint(part, _I64), b.ptrtoint(slot, _I64)
        _, team = _result(context, b, _summon, summon, [args[0], *addresses])
        status, _ = _result(context, b, work.dispatcher, signature, [_I64(0), team, *bare])
        _, failed = _result(context, b, _until_done, until_done, [args[0], team])
        with cgutils.if_unlikely(b, status.is_error):
            context.call_conv.return_status_propagate(b, status)
        return failed

    return types.int64(board, work, given), codegen


def _parts(kind: Any) -> Any:
    return iter(kind)


def _check(kind: Any) -> None:
    """Refuse what `_bare` does not know how to lend."""
    if isinstance(kind, types.BaseTuple):
        for part in _parts(kind):
            _check(part)
    elif not isinstance(kind, types.Array | types.Number | types.Boolean | types.NoneType):
        raise TypingError(f"threads cannot share a {kind}.")


def _kept(typingctx: Any, dispatcher: Any, *kinds: Any) -> Any:
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
    """Make the function that others call: it takes the arguments from where they lie and does the work."""
    kind = ir.FunctionType(_I64, [_I64] * 3)
    part = ir.Function(b.module, kind, b.module.get_unique_name("part"))
    part.linkage = "internal"
    inside = ir.IRBuilder(part.append_basic_block())
    me, team, address = part.args
    packed = inside.load(inside.inttoptr(address, pointer))
    given = [inside.extract_value(packed, k) for k in range(len(signature.args) - 2)]
    status, _ = _result(context, inside, dispatcher, signature, [me, team, *given])
    inside.ret(inside.zext(status.is_error, _I64))
    return part


def _bare(context: Any, b: Any, kind: Any, value: Any) -> Any:
    """Take the owners off the arrays of a value."""
    if isinstance(kind, types.BaseTuple):
        bare = [_bare(context, b, part, b.extract_value(value, k)) for k, part in enumerate(_parts(kind))]
        return context.make_tuple(b, kind, bare)
    if isinstance(kind, types.Array):
        array = context.make_array(kind)(context, b, value=value)
        array.meminfo = cgutils.get_null_value(array.meminfo.type)
        return array._getvalue()
    return value
