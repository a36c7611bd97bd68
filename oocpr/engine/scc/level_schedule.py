"""The order in which all rows of a graph are solved, laid out once for the sweeps that follow.

Components of one level do not depend on each other. A level with many edges is a stage of its own, shared by
all threads: its single rows and the rows of its large components lie in slices of sixteen, its small
components in a list from which threads take one after another. Levels with few edges follow each other in
one stage that a single thread walks through, for meeting would cost more than the work.

In a large component, which is swept until it settles, rows are cut in REGIONS parts, whatever the number of
threads; a row reads what the rows of its own part have just become, and of other parts what they were when
the sweep began.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numba import int64, uint32, uint64

from oocpr.engine.cpu.gather import SLICE_ROWS
from oocpr.engine.scc.components import find_components
from oocpr.engine.scc.layout import (
    COMPONENT,
    LONG_ROW,
    MAX_SLICED,
    MEMBER,
    REGION,
    SLICE,
    STAGE,
    find_duplicate_rows,
    slice_group,
)
from oocpr.jit import entry, inner

if TYPE_CHECKING:
    from numpy.typing import NDArray

REGIONS = 4
"""Parts of a large component that are swept side by side."""

MIN_SHARED_EDGES = 1 << 14
"""Edges of a level that are worth sharing out."""

MIN_PARALLEL_EDGES = 1 << 16
"""Edges inside a component that is swept by all threads together."""

_ROW_COST = 4
"""What a row of a component costs besides its edges, in edges."""

SHARED, LISTED, WALKED, SWEPT = 0, 1, 2, 3
"""Kinds of stages: slices shared out, components taken one by one, components walked by one thread in order,
one large component swept by all."""


class LevelSchedule(NamedTuple):
    """All edges of a graph in the order in which they are solved.

    Attributes
    ----------
    offsets
        Shape (rows + 1,): first edge of each row in `columns`.
    outer, inner
        Shape (rows,): edges of a row that come from other components, which stand first, and from its own,
        if that has other rows.
    loops
        Rows with an edge to themselves and a component of their own.
    members, member_ptr
        Rows of the listed and walked components; first member of each, and the end.
    slice_ptr, targets, slice_columns
        First column of each slice; the rows of each; columns. Padding is the number of rows; a row that is
        read as it has just become is rows + 1 more than its number.
    duplicate_ptr, duplicate_rows, duplicate_places
        Rows with the edges of a row in a slice: the first of each slice; the rows; whose edges they have, as
        the place in `targets`.
    long_rows, long_ptr
        Rows that are added up on their own, and their first column in `slice_columns`, and the end. A row
        without columns has those of the next that has some.
    stages
        Shape (stages, 5): kind; then first slice and end, first long row and end; or first component and end;
        or first region and end.
    regions
        Shape (regions, 6): first slice and end, first long row and end, first row and the one past the last,
        between which there may be rows of other components.
    """

    offsets: NDArray[np.uint32]
    outer: NDArray[np.uint32]
    inner: NDArray[np.uint32]
    columns: NDArray[np.uint32]
    loops: NDArray[np.uint32]
    members: NDArray[np.uint32]
    member_ptr: NDArray[np.uint32]
    slice_ptr: NDArray[np.uint32]
    targets: NDArray[np.uint32]
    slice_columns: NDArray[np.uint32]
    duplicate_ptr: NDArray[np.uint32]
    duplicate_rows: NDArray[np.uint32]
    duplicate_places: NDArray[np.uint32]
    long_rows: NDArray[np.uint32]
    long_ptr: NDArray[np.uint32]
    stages: NDArray[np.int64]
    regions: NDArray[np.int64]


def schedule_rows(offsets: NDArray[np.uint32], columns: NDArray[np.uint32]) -> LevelSchedule:
    """Lay out a graph whose row i has incoming edges from the rows ``columns[offsets[i]:offsets[i + 1]]``.

    The columns of a row are put in another order.
    """
    rows, edges = len(offsets) - 1, len(columns)
    component, levels = np.empty(rows, np.uint32), np.empty(rows, np.uint32)
    found = int(find_components(offsets, columns, component, levels))
    outer, inner, loops = (np.empty(rows, np.uint32) for _ in range(3))
    grouped, heads = np.empty(rows, np.uint32), np.zeros(found + 1, np.uint32)
    _group_rows(component, heads, grouped)
    looped = int(_partition_edges(offsets, columns, component, heads, outer, inner, loops))
    groups = edges // MIN_SHARED_EDGES + REGIONS * (edges // MIN_PARALLEL_EDGES) + 1
    slots = rows // (SLICE_ROWS // 2) + 2 * groups
    long_slots = edges // MAX_SLICED + groups
    made = LevelSchedule(
        offsets, outer, inner, columns, loops[:looped].copy(),
        np.empty(rows, np.uint32), np.empty(rows + 1, np.uint32),
        np.empty(slots, np.uint32), np.empty(slots * SLICE_ROWS, np.uint32),
        np.empty(edges + groups * SLICE_ROWS * MAX_SLICED, np.uint32),
        np.empty(slots, np.uint32), np.empty(2 * rows, np.uint32), np.empty(2 * rows, np.uint32),
        np.empty(long_slots, np.uint32), np.empty(long_slots, np.uint32),
        np.empty((3 * groups + 1, 5), np.int64), np.zeros((groups, 6), np.int64),
    )  # fmt: skip
    cursor = np.zeros(8, np.int64)
    _lay_out(
        levels[:found], heads, grouped, made, cursor, np.empty(rows, np.uint32), np.empty(rows, np.uint32)
    )
    slices, used, long_rows, stages, regions, members, listed, duplicates = cursor.tolist()
    lengths = {
        "members": members, "member_ptr": listed + 1, "slice_ptr": slices, "targets": slices * SLICE_ROWS,
        "slice_columns": used, "duplicate_ptr": slices, "duplicate_rows": duplicates,
        "duplicate_places": duplicates, "long_rows": long_rows, "long_ptr": long_rows, "stages": stages,
        "regions": regions,
    }  # fmt: skip
    return made._replace(**{name: getattr(made, name)[:length].copy() for name, length in lengths.items()})


@entry()
def _group_rows(component, heads, grouped):
    """List the rows of each component, in their order, one component after another."""
    for row in range(component.size):
        heads[component[row]] += uint32(1)
    total = uint32(0)
    for c in range(heads.size):
        size = heads[c]
        heads[c] = total
        total += size
    for row in range(component.size):
        c = component[row]
        grouped[heads[c]] = uint32(row)
        heads[c] += uint32(1)
    for c in range(heads.size - 1, 0, -1):
        heads[c] = heads[c - 1]
    heads[0] = uint32(0)


@entry()
def _partition_edges(offsets, columns, component, heads, outer, inner, loops):
    """Put a row's edges from other components first, then those from its own, and that from itself last.

    In a component of several rows an edge to oneself is one of its own: rows that all have edges to each
    other and to themselves have the same edges.
    """
    looped = uint64(0)
    longest = uint32(0)
    for row in range(component.size):
        longest = max(longest, offsets[row + 1] - offsets[row])
    held = np.empty(longest, np.uint32)
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
            elif single or component[source] != uint32(c):
                columns[to] = source
                to += uint64(1)
            else:
                held[own] = source
                own += uint64(1)
        outer[row] = uint32(to - first)
        inner[row] = uint32(own)
        for i in range(own):
            columns[to + i] = held[i]
        if itself:
            columns[end - uint64(1)] = uint32(row)
            loops[looped] = uint32(row)
            looped += uint64(1)
    return looped


@entry()
def _lay_out(levels, heads, grouped, made, cursor, order, weights):
    """Make the stages; `order` and `weights` are scratch of a number per row."""
    count = uint64(levels.size)
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
        weights[c] = (
            uint32(MIN_PARALLEL_EDGES) if inside >= uint32(MIN_PARALLEL_EDGES) else uint32(weight > uint32(0))
        )
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
            _share_level(
                order[low : uint64(begins[level])], weights, heads, grouped, made, cursor, chosen, scratch
            )
        else:
            while level < top and edges[level + uint64(1)] < uint64(MIN_SHARED_EDGES):
                level += uint64(1)
            first = cursor[COMPONENT]
            for c in order[low : uint64(begins[level])]:
                if weights[c]:
                    _list_component(c, heads, grouped, made.members, made.member_ptr, cursor)
            _add_stage(
                made.stages,
                cursor,
                int64(WALKED),
                first,
                cursor[COMPONENT],
                cursor[LONG_ROW],
                cursor[LONG_ROW],
            )
        low = uint64(begins[level])
        level += uint64(1)


@inner()
def _add_stage(stages, cursor, kind, first, end, long_first, long_end):
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


@inner()
def _share_level(components, weights, heads, grouped, made, cursor, chosen, scratch):
    """Make the stages of a level that all threads work on."""
    count = uint64(0)
    for c in components:
        first, end = uint64(heads[c]), uint64(heads[uint64(c) + uint64(1)])
        if weights[c] and (end - first == uint64(1) or weights[c] == uint32(MIN_PARALLEL_EDGES)):
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
        if heads[uint64(c) + uint64(1)] - heads[c] > uint32(1) and weights[c] != uint32(MIN_PARALLEL_EDGES):
            _list_component(c, heads, grouped, made.members, made.member_ptr, cursor)
    _add_stage(
        made.stages, cursor, int64(LISTED), listed, cursor[COMPONENT], cursor[LONG_ROW], cursor[LONG_ROW]
    )
    for c in components:
        if weights[c] == uint32(MIN_PARALLEL_EDGES):
            _cut_component(
                grouped[uint64(heads[c]) : uint64(heads[uint64(c) + uint64(1)])], made, cursor, scratch
            )


@inner()
def _cut_component(rows, made, cursor, scratch):
    """Make the stage of a large component: its rows in parts that take about as long to sweep."""
    same_as = scratch[0]
    find_duplicate_rows(rows, made.inner, uint32(1), made, same_as)
    total = uint64(0)
    for row in rows:
        total += uint64(_ROW_COST) + (uint64(made.inner[row]) if same_as[row] == row else uint64(0))
    before = cursor[REGION]
    done = uint64(0)
    q = uint64(0)
    for region in range(REGIONS):
        first = q
        goal = total * uint64(region + 1) // uint64(REGIONS)
        while q < uint64(rows.size) and (done < goal or region == REGIONS - 1):
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
    _add_stage(made.stages, cursor, int64(SWEPT), before, cursor[REGION], cursor[LONG_ROW], cursor[LONG_ROW])
