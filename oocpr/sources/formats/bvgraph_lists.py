"""Lists of successors out of the bits of a BVGraph.

Boldi and Vigna, "The WebGraph framework I: compression techniques", WWW 2004. A list is written as its
length; how far back the list is that it copies from; blocks of that list which it takes and leaves in turn;
runs of neighbouring numbers; and the rest as gaps.
"""

from __future__ import annotations

from oocpr.jit import entry, inner
from oocpr.sources.formats.bvgraph_codes import CUT, GAMMA, read_code

READ, CUT_SHORT, NO_ROOM, WRONG = range(4)
"""What became of a list: it was read; it goes on behind the bits; it has more entries than there is room for;
it cannot be."""


@inner()
def _signed(number):  # type: ignore[no-untyped-def]
    return number >> 1 if number & 1 == 0 else -((number + 1) >> 1)


@inner()
def read_lists(data, at, stop, node, nodes, codes, k, window, least_run, lists, lengths, scratch):  # type: ignore[no-untyped-def]
    """Read the list of one node into its place in the window.

    Parameters
    ----------
    data, at, stop
        See `oocpr.sources.formats.bvgraph_codes.read_code`; `at` is left behind the list where it could be
        read.
    node, nodes
        The node, and how many there are.
    codes
        int64, shape (5,): codes of out-degrees, references, numbers of blocks, blocks and gaps.
    k
        Parameter of zeta.
    window, least_run
        How far back a reference may go, and the shortest run; 0 for no references, and no runs.
    lists
        uint32, shape (window + 1, room): the lists of the last nodes, node x in row x mod (window + 1).
    lengths
        int64, shape (window + 1,): their lengths.
    scratch
        uint32, shape (2, room): receives copied entries and those of runs.

    Returns
    -------
    int
        `READ`, or why not.
    """
    begin = at[0]
    row = node % (window + 1)
    lengths[row] = 0
    degree = read_code(codes[0], k, data, at, stop)
    if degree == CUT:
        at[0] = begin
        return CUT_SHORT
    if degree > nodes:
        return WRONG
    if degree > lists.shape[1]:
        at[0] = begin
        return NO_ROOM
    if degree == 0:
        return READ
    out = lists[row]
    copied = 0
    back = 0
    if window > 0:
        back = read_code(codes[1], k, data, at, stop)
        if back == CUT:
            at[0] = begin
            return CUT_SHORT
        if back > window or back > node:
            return WRONG
    if back > 0:
        model = (node - back) % (window + 1)
        size = lengths[model]
        blocks = read_code(codes[2], k, data, at, stop)
        if blocks == CUT:
            at[0] = begin
            return CUT_SHORT
        place = 0
        for block in range(blocks):
            count = read_code(codes[3], k, data, at, stop)
            if count == CUT:
                at[0] = begin
                return CUT_SHORT
            if block > 0:
                count += 1
            if count > size - place:
                return WRONG
            if block & 1 == 0:
                if copied + count > degree:
                    return WRONG
                for i in range(place, place + count):
                    scratch[0, copied] = lists[model, i]
                    copied += 1
            place += count
        if blocks & 1 == 0:
            if copied + size - place > degree:
                return WRONG
            for i in range(place, size):
                scratch[0, copied] = lists[model, i]
                copied += 1
    in_runs = 0
    if copied < degree and least_run > 0:
        runs = read_code(GAMMA, k, data, at, stop)
        if runs == CUT:
            at[0] = begin
            return CUT_SHORT
        previous = 0
        for run in range(runs):
            gap = read_code(GAMMA, k, data, at, stop)
            extra = read_code(GAMMA, k, data, at, stop) if gap != CUT else CUT
            if extra == CUT:
                at[0] = begin
                return CUT_SHORT
            left = node + _signed(gap) if run == 0 else previous + 1 + gap
            size = extra + least_run
            if left < 0 or left + size > nodes or copied + in_runs + size > degree:
                return WRONG
            for i in range(size):
                scratch[1, in_runs] = left + i
                in_runs += 1
            previous = left + size
    # The rest goes to the end of the row, from where it is merged with the others.
    first_gap = copied + in_runs
    previous = -1
    for place in range(first_gap, degree):
        gap = read_code(codes[4], k, data, at, stop)
        if gap == CUT:
            at[0] = begin
            return CUT_SHORT
        value = node + _signed(gap) if place == first_gap else previous + 1 + gap
        if value < 0 or value >= nodes:
            return WRONG
        out[place] = value
        previous = value
    one, two, three = 0, 0, first_gap
    last = -1
    for place in range(degree):
        value = nodes
        if one < copied:
            value = scratch[0, one]
        if two < in_runs and scratch[1, two] < value:
            value = scratch[1, two]
        if three < degree and out[three] < value:
            value = out[three]
        if one < copied and scratch[0, one] == value:
            one += 1
        elif two < in_runs and scratch[1, two] == value:
            two += 1
        else:
            three += 1
        if value <= last or value >= nodes:
            return WRONG
        out[place] = value
        last = value
    lengths[row] = degree
    return READ


@entry()
def fill_block(data, at, stop, state, nodes, codes, k, window, least_run, lists, lengths, scratch, src, dst):  # type: ignore[no-untyped-def]
    """Write links to two arrays until these are full, the bits end, or all nodes have been read.

    Parameters
    ----------
    data, at, stop, nodes, codes, k, window, least_run, lists, lengths, scratch
        See `read_lists`.
    state
        int64, shape (2,): the node whose list comes next or is being written, and how many of its links have
        been written, -1 where it has not been read.
    src, dst
        uint32, shape (links,).

    Returns
    -------
    outcome, count
        `READ` where the arrays are full or all is read, else why it stopped; and how many links were written.
    """
    count = 0
    while state[0] < nodes:
        row = state[0] % (window + 1)
        if state[1] < 0:
            outcome = read_lists(
                data, at, stop, state[0], nodes, codes, k, window, least_run, lists, lengths, scratch
            )
            if outcome != READ:
                return outcome, count
            state[1] = 0
        taken = min(lengths[row] - state[1], src.size - count)
        for i in range(taken):
            src[count + i] = state[0]
            dst[count + i] = lists[row, state[1] + i]
        count += taken
        state[1] += taken
        if state[1] < lengths[row]:
            break
        state[0] += 1
        state[1] = -1
    return READ, count
