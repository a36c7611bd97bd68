"""The order in which all rows of a graph are solved, laid out once for the sweeps that follow.

Between strongly connected components there are no cycles: solved in the order found here, each needs only
what those before it have become. Most rows of a citation, call or dependency graph are components of their
own, and one visit solves them.

Components of one level do not depend on each other. A level with many edges is a stage of its own, shared by
all threads: its single rows and the rows of its large components lie in slices of sixteen rows of about the
same length, its small components in a list from which threads take one after another. Levels with few edges
follow each other in one stage that a single thread walks through, for meeting would cost more than the work.

A large component is swept until it converges. Its rows are cut in parts, whatever the number of threads; a
row reads what the rows of its own part have just become, and of other parts what they were when the sweep
began. So fewer parts take fewer sweeps, and a small graph, which one thread ranks, has one.

Rows with the same edges are summed once for all of them: pages made from one template have in-edges from the
same pages; in a crawl more than a third of all edges repeat those of another row.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import int64, uint32, uint64
from numpy.typing import NDArray

from oocpr.engine.cpu.gather import SLICE_ROWS
from oocpr.jit import entry, inner

EDGES_PER_THREAD = 1 << 18
"""Edges of a graph that are worth a thread. On two cores, graphs of 148 to 353 thousand edges took one thread
2.1 to 4.8 ms and two threads 3.0 to 5.1, or 9 to 16 if the other core had nothing to do before; one of 948
thousand 22 and 14."""

MAX_REGIONS = 4
"""Most parts of a large component that are swept side by side."""

MIN_SHARED_EDGES = 1 << 14
"""Edges of a level that are worth sharing out."""

MIN_REGION_EDGES = 1 << 14
"""Edges for each part inside a component that is swept by all threads together."""

_ROW_COST = 4
"""What a row of a component costs besides its edges, in edges."""

SHARED, LISTED, WALKED, SWEPT = 0, 1, 2, 3
"""Kinds of stages: slices shared out, components taken one by one, components walked by one thread in order,
one large component swept by all."""

MAX_SLICED = 128
"""Edges past which a row is added up on its own rather than in a slice."""

SLICE, COLUMN, LONG_ROW, STAGE, REGION, MEMBER, COMPONENT, DUPLICATE = range(8)
"""Numbers of a cursor: how many of each a LevelSchedule has so far."""

_LARGE = 2
_DONE = 1 << 31
_NOBODY = 2**32 - 1
_FACTOR = 0x9E3779B97F4A7C15


class LevelSchedule(NamedTuple):
    """All edges of a graph in the order in which they are solved."""

    # First edge of each row in `columns`; how many come from other components, which stand first, and from
    # its own, if that has other rows.
    offsets: NDArray[np.uint32]
    outer: NDArray[np.uint32]
    inner: NDArray[np.uint32]
    columns: NDArray[np.uint32]
    # Rows with an edge to themselves and a component of their own.
    loops: NDArray[np.uint32]
    # Rows of the listed and walked components; first member of each, and the end.
    members: NDArray[np.uint32]
    member_ptr: NDArray[np.uint32]
    # First column of each slice; the rows of each; columns. Padding is the number of rows; a row that is read
    # as it has just become is rows + 1 more than its number.
    slice_ptr: NDArray[np.uint32]
    targets: NDArray[np.uint32]
    slice_columns: NDArray[np.uint32]
    # Rows with the edges of a row in a slice: first of each slice; rows; that row's place in `targets`.
    duplicate_ptr: NDArray[np.uint32]
    duplicate_rows: NDArray[np.uint32]
    duplicate_places: NDArray[np.uint32]
    # Rows that are added up on their own, and their first column in `slice_columns`, and the end. A row
    # without columns has those of the next that has some.
    long_rows: NDArray[np.uint32]
    long_ptr: NDArray[np.uint32]
    # Shape (stages, 5): kind; then first slice and end, first long row and end; or first component and end;
    # or first region and end.
    stages: NDArray[np.int64]
    # Shape (regions, 6): first slice and end, first long row and end, first row and the one past the last,
    # between which there may be rows of other components.
    regions: NDArray[np.int64]


def regions_of(edges: int) -> int:
    """Parts of each large component of a graph of so many edges: about as many as threads that rank it.

    >>> [regions_of(edges) for edges in (0, 2**19 - 1, 2**19, 2**20, 2**30)]
    [1, 1, 2, 4, 4]
    """
    threads = max(1, edges // EDGES_PER_THREAD)
    return min(MAX_REGIONS, 1 << threads.bit_length() - 1)


def schedule_rows(offsets: NDArray[np.uint32], columns: NDArray[np.uint32]) -> LevelSchedule:
    """Lay out a graph whose row i has incoming edges from the rows ``columns[offsets[i]:offsets[i + 1]]``.

    The columns of a row are put in another order.
    """
    rows, edges = len(offsets) - 1, len(columns)
    levels, heads, grouped, outer, inner, loops = _by_components(offsets, columns, None)
    regions = regions_of(edges)
    groups = edges // MIN_SHARED_EDGES + edges // MIN_REGION_EDGES + 1
    slots = rows // (SLICE_ROWS // 2) + 2 * groups
    long_slots = edges // MAX_SLICED + groups
    made = LevelSchedule(
        offsets, outer, inner, columns, loops,
        np.empty(rows, np.uint32), np.empty(rows + 1, np.uint32),
        np.empty(slots, np.uint32), np.empty(slots * SLICE_ROWS, np.uint32),
        np.empty(edges + groups * SLICE_ROWS * MAX_SLICED, np.uint32),
        np.empty(slots, np.uint32), np.empty(2 * rows, np.uint32), np.empty(2 * rows, np.uint32),
        np.empty(long_slots, np.uint32), np.empty(long_slots, np.uint32),
        np.empty((3 * groups + 1, 5), np.int64), np.zeros((groups, 6), np.int64),
    )  # fmt: skip
    cursor = np.zeros(8, np.int64)
    _lay_out(levels, heads, grouped, np.uint32(regions), made, cursor)
    slices, used, long_rows, stages, parts, members, listed, duplicates = cursor.tolist()
    lengths = {
        "members": members, "member_ptr": listed + 1, "slice_ptr": slices, "targets": slices * SLICE_ROWS,
        "slice_columns": used, "duplicate_ptr": slices, "duplicate_rows": duplicates,
        "duplicate_places": duplicates, "long_rows": long_rows, "long_ptr": long_rows, "stages": stages,
        "regions": parts,
    }  # fmt: skip
    return made._replace(**{name: getattr(made, name)[:length].copy() for name, length in lengths.items()})


def schedule_blocks(
    offsets: NDArray[np.uint32], columns: NDArray[np.uint32], weights: NDArray[np.float64]
) -> LevelSchedule:
    """Lay out a graph for blocks of vectors, without slices; weights are put in the order of the columns."""
    *_, outer, inner, loops = _by_components(offsets, columns, weights)
    none, stages, regions = np.empty(0, np.uint32), np.empty((0, 5), np.int64), np.empty((0, 6), np.int64)
    return LevelSchedule(offsets, outer, inner, columns, loops, *(none,) * 10, stages, regions)


def _by_components(
    offsets: NDArray[np.uint32], columns: NDArray[np.uint32], weights: NDArray[np.float64] | None
) -> tuple[NDArray[np.uint32], ...]:
    """Put each row's edges in order; returns levels, the rows of each component, and numbers of edges."""
    rows = len(offsets) - 1
    component, levels = np.empty(rows, np.uint32), np.empty(rows, np.uint32)
    found = int(find_components(offsets, columns, component, levels))
    outer, inner, loops = (np.empty(rows, np.uint32) for _ in range(3))
    grouped, heads = np.empty(rows, np.uint32), np.zeros(found + 1, np.uint32)
    _group_rows(component, heads, grouped)
    looped = int(_partition_edges(offsets, columns, weights, component, heads, outer, inner, loops))
    return levels[:found], heads, grouped, outer, inner, loops[:looped].copy()


@entry()
def find_components(offsets, columns, component, levels):
    """Number the strongly connected components so that edges lead from lower numbers to higher ones.

    Row i has incoming edges from the rows ``columns[offsets[i]:offsets[i + 1]]``. `component` receives the
    component of each row, and `levels`, by component, 0 if no other component has edges to it, else one more
    than the highest level among those that do; uint32, shape (rows,). Returns the number of components.

    Tarjan, Depth-first search and linear graph algorithms, SIAM J. Comput. 1 (1972), without recursion.
    """
    rows = uint64(component.size)
    # When a row was reached, counted from 1; once its component is known, the component's level instead.
    reached = np.zeros(rows, np.uint32)
    earliest = np.empty(rows, np.uint32)
    above = np.empty(rows, np.uint32)
    place = np.empty(rows, np.uint32)
    path = np.empty(rows, np.uint32)
    waiting = np.empty(rows, np.uint32)
    done = uint32(_DONE)
    clock = uint32(0)
    found = uint32(0)
    held = uint64(0)
    for root in range(rows):
        if reached[root] != uint32(0):
            continue
        depth = uint64(0)
        row = uint32(root)
        entering = True
        while True:
            if entering:
                clock += uint32(1)
                reached[row] = clock
                earliest[row] = clock
                above[row] = uint32(0)
                place[row] = offsets[row]
                path[depth] = row
                waiting[held] = row
                held += uint64(1)
                entering = False
            low = earliest[row]
            level = above[row]
            at = uint64(place[row])
            end = uint64(offsets[uint64(row) + uint64(1)])
            source = row
            while at < end:
                source = columns[at]
                at += uint64(1)
                seen = reached[source]
                if seen >= done:
                    level = max(level, seen - done + uint32(1))
                elif seen == uint32(0):
                    entering = True
                    break
                else:
                    low = min(low, seen)
            earliest[row] = low
            above[row] = level
            if entering:
                place[row] = uint32(at)
                depth += uint64(1)
                row = source
                continue
            closed = low == reached[row]
            if closed:
                last = held
                while True:
                    held -= uint64(1)
                    level = max(level, above[waiting[held]])
                    if waiting[held] == row:
                        break
                for q in range(held, last):
                    component[waiting[q]] = found
                    reached[waiting[q]] = done + level
                levels[found] = level
                found += uint32(1)
            if depth == uint64(0):
                break
            depth -= uint64(1)
            below = row
            row = path[depth]
            if closed:
                above[row] = max(above[row], level + uint32(1))
            else:
                earliest[row] = min(earliest[row], earliest[below])
    return found


@entry()
def _group_rows(component, heads, grouped):
    """List the rows of each component, in their order, one component after another."""
    for row in range(component.size):
        heads[component[row]] += uint32(1)
    for c in range(1, heads.size):
        heads[c] += heads[c - 1]
    for row in range(component.size - 1, -1, -1):
        c = component[row]
        heads[c] -= uint32(1)
        grouped[heads[c]] = uint32(row)


@entry()
def _partition_edges(offsets, columns, weights, component, heads, outer, inner, loops):
    """Put a row's edges from other components first, then those from its own, and that from itself last.

    In a component of several rows an edge to oneself is one of its own: rows that all have edges to each
    other and to themselves have the same edges. `weights`, None without, go with them.
    """
    looped = uint64(0)
    longest = uint32(0)
    for row in range(component.size):
        longest = max(longest, offsets[row + 1] - offsets[row])
    held = np.empty(longest, np.uint32)
    if weights is not None:
        held_weights = np.empty(longest)
    for row in range(component.size):
        c = uint64(component[row])
        first, end = uint64(offsets[row]), uint64(offsets[row + 1])
        single = heads[c + uint64(1)] - heads[c] == uint32(1)
        to = first
        own = uint64(0)
        itself = False
        for i in range(first, end):
            source = columns[i]
            if single and source == uint32(row):
                itself = True
                if weights is not None:
                    by_itself = weights[i]
            elif single or component[source] != uint32(c):
                columns[to] = source
                if weights is not None:
                    weights[to] = weights[i]
                to += uint64(1)
            else:
                held[own] = source
                if weights is not None:
                    held_weights[own] = weights[i]
                own += uint64(1)
        outer[row] = uint32(to - first)
        inner[row] = uint32(own)
        for i in range(own):
            columns[to + i] = held[i]
            if weights is not None:
                weights[to + i] = held_weights[i]
        if itself:
            columns[end - uint64(1)] = uint32(row)
            if weights is not None:
                weights[end - uint64(1)] = by_itself
            loops[looped] = uint32(row)
            looped += uint64(1)
    return looped


@entry()
def _lay_out(levels, heads, grouped, regions, made, cursor):
    """Make the stages, level by level."""
    count = uint64(levels.size)
    order = np.empty(count, np.uint32)
    kinds = np.empty(count, np.uint32)
    top = uint64(0)
    for c in range(count):
        top = max(top, uint64(levels[c]))
    begins = np.zeros(top + uint64(2), np.uint32)
    edges = np.zeros(top + uint64(1), np.uint64)
    for c in range(count):
        begins[uint64(levels[c]) + uint64(1)] += uint32(1)
        weight = uint32(0)
        inside = uint32(0)
        for q in range(uint64(heads[c]), uint64(heads[c + 1])):
            row = grouped[q]
            weight += made.outer[row] + made.inner[row]
            inside += made.inner[row]
        # Of the components without cycles only those with edges have anything to be done.
        large = inside >= regions * uint32(MIN_REGION_EDGES)
        kinds[c] = uint32(_LARGE) if large else uint32(weight > uint32(0))
        edges[levels[c]] += uint64(weight)
    for level in range(top + uint64(1)):
        begins[level + uint64(1)] += begins[level]
    for c in range(count):
        level = uint64(levels[c])
        order[begins[level]] = uint32(c)
        begins[level] += uint32(1)
    chosen = np.empty(made.outer.size, np.uint32)
    scratch = np.empty((2, made.outer.size), np.uint32)
    made.member_ptr[0] = uint32(0)
    low = uint64(0)
    level = uint64(0)
    while level <= top:
        if edges[level] >= uint64(MIN_SHARED_EDGES):
            here = order[low : uint64(begins[level])]
            _share_level(here, kinds, heads, grouped, regions, made, cursor, chosen, scratch)
        else:
            while level < top and edges[level + uint64(1)] < uint64(MIN_SHARED_EDGES):
                level += uint64(1)
            first = cursor[COMPONENT]
            for c in order[low : uint64(begins[level])]:
                if kinds[c]:
                    _list_component(c, heads, grouped, made.members, made.member_ptr, cursor)
            _add_stage(made.stages, cursor, int64(WALKED), first, cursor[COMPONENT])
        low = uint64(begins[level])
        level += uint64(1)


@inner()
def _add_stage(stages, cursor, kind, first, end, long_first=0, long_end=0):
    if first == end and long_first == long_end:
        return
    stage = stages[cursor[STAGE]]
    stage[0] = kind
    stage[1] = first
    stage[2] = end
    stage[3] = long_first
    stage[4] = long_end
    cursor[STAGE] += 1


@inner()
def _list_component(c, heads, grouped, members, ends, cursor):
    for q in range(uint64(heads[c]), uint64(heads[uint64(c) + uint64(1)])):
        members[cursor[MEMBER]] = grouped[q]
        cursor[MEMBER] += 1
    cursor[COMPONENT] += 1
    ends[cursor[COMPONENT]] = uint32(cursor[MEMBER])


@inner(late=True)
def _share_level(components, kinds, heads, grouped, regions, made, cursor, chosen, scratch):
    """Make the stages of a level that all threads work on."""
    count = uint64(0)
    for c in components:
        first, end = uint64(heads[c]), uint64(heads[uint64(c) + uint64(1)])
        if kinds[c] and (end - first == uint64(1) or kinds[c] == uint32(_LARGE)):
            for q in range(first, end):
                if made.outer[grouped[q]]:
                    chosen[count] = grouped[q]
                    count += uint64(1)
    slices, longs = cursor[SLICE], cursor[LONG_ROW]
    everyone = ~uint32(0)
    slice_group(chosen[:count], made.outer, uint32(0), uint32(0), everyone, made, cursor, scratch)
    _add_stage(made.stages, cursor, int64(SHARED), slices, cursor[SLICE], longs, cursor[LONG_ROW])
    listed = cursor[COMPONENT]
    for c in components:
        if heads[uint64(c) + uint64(1)] - heads[c] > uint32(1) and kinds[c] != uint32(_LARGE):
            _list_component(c, heads, grouped, made.members, made.member_ptr, cursor)
    _add_stage(made.stages, cursor, int64(LISTED), listed, cursor[COMPONENT])
    for c in components:
        if kinds[c] == uint32(_LARGE):
            rows = grouped[uint64(heads[c]) : uint64(heads[uint64(c) + uint64(1)])]
            _cut_component(rows, regions, made, cursor, scratch)


@inner(late=True)
def _cut_component(rows, regions, made, cursor, scratch):
    """Make the stage of a large component: its rows in parts that take about as long to sweep."""
    same_as = scratch[0]
    find_duplicate_rows(rows, made.inner, uint32(1), made, same_as)
    total = uint64(0)
    for row in rows:
        total += uint64(_ROW_COST) + (uint64(made.inner[row]) if same_as[row] == row else uint64(0))
    before = cursor[REGION]
    done = uint64(0)
    q = uint64(0)
    for region in range(regions):
        first = q
        goal = total * uint64(region + 1) // uint64(regions)
        while q < uint64(rows.size) and (done < goal or region == regions - 1):
            row = rows[q]
            done += uint64(_ROW_COST) + (uint64(made.inner[row]) if same_as[row] == row else uint64(0))
            q += uint64(1)
        slices, longs = cursor[SLICE], cursor[LONG_ROW]
        part = made.regions[cursor[REGION]]
        if q > first:
            low, high = rows[first], rows[q - uint64(1)] + uint32(1)
            part[4] = low
            part[5] = high
            slice_group(rows[first:q], made.inner, uint32(1), low, high, made, cursor, scratch)
        part[0] = slices
        part[1] = cursor[SLICE]
        part[2] = longs
        part[3] = cursor[LONG_ROW]
        cursor[REGION] += 1
    _add_stage(made.stages, cursor, int64(SWEPT), before, cursor[REGION])


@inner()
def slice_group(rows, lengths, own, low, high, made, cursor, scratch):
    """Lay edges of some rows out in slices, longest first; rows of more than MAX_SLICED come after them.

    `lengths` and `own` are ``made.inner`` and 1 for edges from a row's own component, ``made.outer`` and 0
    for those from others. Rows low .. high - 1 are read as they have just become. `cursor` says how far the
    arrays of the LevelSchedule `made` are; `scratch` is uint32, shape (2, rows of the graph).
    """
    if rows.size == 0:
        return
    same_as, places_of = scratch[0], scratch[1]
    find_duplicate_rows(rows, lengths, own, made, same_as)
    tally = np.zeros(MAX_SLICED + 1, np.uint32)
    for row in rows:
        if lengths[row] > uint32(MAX_SLICED):
            places_of[row] = uint32(0)
            places_of[same_as[row]] += uint32(1)
        elif same_as[row] == row:
            tally[lengths[row]] += uint32(1)
    places = np.empty(MAX_SLICED + 1, np.uint32)
    few = uint64(0)
    for width in range(MAX_SLICED, 0, -1):
        places[width] = uint32(few)
        few += uint64(tally[width])
    slot = uint64(cursor[SLICE])
    slices = (few + uint64(SLICE_ROWS - 1)) // uint64(SLICE_ROWS)
    nobody = uint32(made.outer.size)
    for i in range(slot * uint64(SLICE_ROWS), (slot + slices) * uint64(SLICE_ROWS)):
        made.targets[i] = nobody
    long_slot = uint64(cursor[LONG_ROW])
    q_long = long_slot
    for row in rows:
        width = lengths[row]
        if width > uint32(MAX_SLICED):
            # A row comes after all those that have its edges.
            if same_as[row] == row:
                count = places_of[row]
                places_of[row] = uint32(q_long)
                q_long += uint64(count)
                made.long_rows[q_long - uint64(1)] = row
            else:
                made.long_rows[places_of[same_as[row]]] = row
                places_of[same_as[row]] += uint32(1)
        elif same_as[row] == row:
            places_of[row] = uint32(slot * uint64(SLICE_ROWS)) + places[width]
            made.targets[places_of[row]] = row
            places[width] += uint32(1)
    base = uint64(cursor[COLUMN])
    for s in range(slot, slot + slices):
        made.slice_ptr[s] = base
        width = uint64(lengths[made.targets[s * uint64(SLICE_ROWS)]])
        for lane in range(uint64(SLICE_ROWS)):
            row = made.targets[s * uint64(SLICE_ROWS) + lane]
            to = base + lane
            if row != nobody:
                to = _copy_edges(row, lengths, own, low, high, made, to, uint64(SLICE_ROWS))
            while to < base + width * uint64(SLICE_ROWS):
                made.slice_columns[to] = nobody
                to += uint64(SLICE_ROWS)
        base += width * uint64(SLICE_ROWS)
    made.slice_ptr[slot + slices] = base
    for i in range((slot + slices) * uint64(SLICE_ROWS), (slot + slices + uint64(1)) * uint64(SLICE_ROWS)):
        made.targets[i] = nobody
    for q in range(long_slot, q_long):
        made.long_ptr[q] = base
        row = made.long_rows[q]
        if same_as[row] == row:
            base = _copy_edges(row, lengths, own, low, high, made, base, uint64(1))
    made.long_ptr[q_long] = base
    made.long_rows[q_long] = nobody
    _list_duplicates(rows, lengths, same_as, places_of, slot, slices, made, cursor)
    cursor[SLICE] += slices + uint64(1)
    cursor[COLUMN] = base
    cursor[LONG_ROW] = q_long + uint64(1)


@inner()
def find_duplicate_rows(rows, lengths, own, made, same_as):
    """Find for each row the first one with the same edges in the same order, often the row itself.

    Always itself if there is one edge, for then there is no sum to share. Arguments are as for `slice_group`.
    """
    size = uint64(16)
    while size < uint64(2) * uint64(rows.size):
        size *= uint64(2)
    table = np.full(size, uint32(_NOBODY), np.uint32)
    hashes = np.empty(size, np.uint64)
    for row in rows:
        same_as[row] = row
        length = uint64(lengths[row])
        if length < uint64(2):
            continue
        first = uint64(made.offsets[row]) + uint64(own * made.outer[row])
        word = _hash(first, first + length, made.columns)
        at = word & (size - uint64(1))
        while table[at] != uint32(_NOBODY):
            other = table[at]
            if hashes[at] == word and uint64(lengths[other]) == length:
                begin = uint64(made.offsets[other]) + uint64(own * made.outer[other])
                k = uint64(0)
                while k < length and made.columns[begin + k] == made.columns[first + k]:
                    k += uint64(1)
                if k == length:
                    same_as[row] = other
                    break
            at = (at + uint64(1)) & (size - uint64(1))
        if same_as[row] == row:
            table[at] = row
            hashes[at] = word


@inner()
def _hash(first, end, columns):
    """64 bits that differ, as a rule, where lists do."""
    word = end - first
    for i in range(first, end):
        word = (word ^ uint64(columns[i])) * uint64(_FACTOR)
        word ^= word >> uint64(29)
    return word


@inner()
def _list_duplicates(rows, lengths, same_as, places_of, slot, slices, made, cursor):
    """List the rows whose edges those in the slices from `slot` on have, slice by slice."""
    ptr = made.duplicate_ptr[slot : slot + slices + uint64(1)]
    for s in range(ptr.size):
        ptr[s] = uint32(0)
    for row in rows:
        if same_as[row] != row and lengths[row] <= uint32(MAX_SLICED):
            ptr[uint64(places_of[same_as[row]]) // uint64(SLICE_ROWS) - slot] += uint32(1)
    ptr[0] += uint32(cursor[DUPLICATE])
    for s in range(1, ptr.size):
        ptr[s] += ptr[s - 1]
    cursor[DUPLICATE] = ptr[ptr.size - 1]
    for k in range(rows.size - 1, -1, -1):
        row = rows[k]
        if same_as[row] != row and lengths[row] <= uint32(MAX_SLICED):
            place = places_of[same_as[row]]
            s = uint64(place) // uint64(SLICE_ROWS) - slot
            ptr[s] -= uint32(1)
            made.duplicate_rows[ptr[s]] = row
            made.duplicate_places[ptr[s]] = place


@inner()
def _copy_edges(row, lengths, own, low, high, made, to, step):
    """Write the columns of a row to every `step`-th place from `to` on; returns where it stopped."""
    live = uint32(made.outer.size + 1)
    first = uint64(made.offsets[row]) + uint64(own * made.outer[row])
    for i in range(first, first + uint64(lengths[row])):
        column = made.columns[i]
        made.slice_columns[to] = column + (live if low <= column < high else uint32(0))
        to += step
    return to
