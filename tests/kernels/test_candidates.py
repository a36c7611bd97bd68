"""What tuning decides, from numbers that stand for times."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oocpr.engine.cuda.papers.products import Cut, Gather
from oocpr.engine.cuda.spmv import Shape
from oocpr.engine.cuda.tuning_candidates import (
    MARGIN,
    SPACES,
    Case,
    Descent,
    faster,
    graph_class,
    sample,
)
from oocpr.engine.number_formats import READS

if TYPE_CHECKING:
    from oocpr.engine.cuda.tuning_candidates import Tunable

SHARED = 227 << 10
CASES = [
    Case(Gather(reads, paired), hubs, SHARED)
    for reads in READS
    for paired in (False, True)
    for hubs in (False, True)
]
USUAL = Case(Gather("bits16"), False, SHARED)


@pytest.mark.parametrize("kernel", SPACES)
@given(case=st.sampled_from(CASES), seed=st.integers(0, 2**32), spread=st.sampled_from([3, 1000]))
def test_no_change_along_an_axis_would_help(kernel: str, case: Case, seed: int, spread: int) -> None:
    space = SPACES[kernel]
    rng = np.random.default_rng(seed)
    times: dict[Tunable, int] = {}

    def time(shape: Tunable) -> int:
        return times.setdefault(shape, int(rng.integers(100, 100 + spread)))

    descent = Descent(space, case)
    seen = {descent.best}
    while shapes := descent.next():
        best, *others = shapes
        assert best == descent.best
        assert others
        assert seen.isdisjoint(others)
        assert all(space.fits(shape, case) for shape in others)
        seen.update(others)
        descent.take({shape: time(shape) for shape in shapes})
    for axis in space.axes(case):
        for change in axis:
            other = replace(descent.best, **change)
            if space.fits(other, case):
                assert time(other) >= time(descent.best) * (1 - MARGIN)
    assert not descent.next()


def test_shapes_that_cannot_run_are_passed_by() -> None:
    descent = Descent(SPACES["balanced"], USUAL)
    while shapes := descent.next():
        descent.take({shapes[0]: 1.0})
    assert descent.best == Shape()


def test_what_saves_less_than_noise_is_not_kept() -> None:
    assert faster(Cut(), {Cut(): 1000, Cut(block=64): 991}) == Cut()
    assert faster(Cut(), {Cut(): 1000, Cut(block=64): 989}) == Cut(block=64)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_shapes_that_fit(case: Case) -> None:
    space = SPACES["balanced"]
    fits, start = space.fits, space.start(case)
    assert isinstance(start, Shape)
    assert fits(start, case)
    assert (start.hubs > 0) == case.hubs
    narrow = READS[case.gather.reads].bytes * (1 + case.gather.paired) <= 4
    assert fits(replace(start, edge_order=True), case) == narrow
    far = replace(start, teams=4, resident=5, hubs=0)
    assert fits(far, case)
    assert not fits(replace(far, resident=17), case)
    # Lanes decode in 4608 bytes of shared memory a team.
    room = (SHARED - 4 * 4608) // case.word
    assert fits(replace(far, each=1, hubs=room), case)
    assert not fits(replace(far, each=1, hubs=room + 1), case)
    assert not fits(replace(far, each=4, hubs=32), case)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_hubs_are_tried_near_where_there_are_enough(case: Case) -> None:
    changes = [change for axis in SPACES["balanced"].axes(case) for change in axis]
    hubs = {change["hubs"] for change in changes if "hubs" in change}
    assert 0 in hubs
    assert (len(hubs) > 1) == case.hubs
    assert all(count % 32 == 0 for count in hubs)


@pytest.mark.parametrize("kernel", SPACES)
@pytest.mark.parametrize("case", [USUAL, replace(USUAL, hubs=True)], ids=str)
def test_a_shape_is_read_back_and_no_other_is(kernel: str, case: Case) -> None:
    space = SPACES[kernel]
    start = space.start(case)
    values = dict(vars(start))
    assert space.read(values, case) == start
    for name, value in values.items():
        for wrong in (10**6, -1, float(value), str(value), None, [value], not value):
            assert space.read({**values, name: wrong}, case) in (None, replace(start, **{name: not value}))
    name = next(iter(values))
    assert space.read({**values, name: True}, case) is None
    assert space.read({**values, "more": 1}, case) is None
    assert space.read({k: v for k, v in values.items() if k != name}, case) is None
    for nothing in (None, [], "shape", 3):
        assert space.read(nothing, case) is None


def test_a_shape_is_read_for_its_own_case_only() -> None:
    space = SPACES["balanced"]
    assert space.read(vars(Shape()), USUAL) == Shape()
    assert space.read(vars(Shape()), replace(USUAL, gather=Gather("float64"))) is None
    near = replace(USUAL, hubs=True)
    assert space.read(vars(space.start(near)), near) == space.start(near)
    assert space.read(vars(space.start(near)), USUAL) is None
    assert space.read(vars(space.start(near)), replace(near, shared_bytes=99 << 10)) is None


def class_of(nodes: int, edges: int, local_share: float = 0.1, **of_case: object) -> str:
    return graph_class(nodes, edges, local_share, replace(USUAL, **of_case))  # type: ignore[arg-type]


def test_like_graphs_share_a_class_and_others_do_not() -> None:
    usual = class_of(2**24, 2**28 - 1)
    assert usual == class_of(2**27, 2**30)
    others = [
        class_of(2**23, 2**27 - 1),
        class_of(2**28, 2**32 - 1),
        class_of(2**24, 2**28),
        class_of(2**24, 2**26 - 1),
        class_of(2**24, 2**28 - 1, hubs=True),
        class_of(2**24, 2**28 - 1, 0.5),
        class_of(2**24, 2**28 - 1, gather=Gather("float32")),
        class_of(2**24, 2**28 - 1, gather=Gather("bits16", paired=True)),
        class_of(2**24, 2**28 - 1, gather=Gather("bits16", paired=True, striped=True)),
    ]
    assert len({usual, *others}) == len(others) + 1


def test_every_graph_has_a_class() -> None:
    assert class_of(0, 0) == class_of(1, 0) == class_of(1, 1)
    class_of(2**32 - 1, 2**62)


@given(tiles=st.integers(1, 10**6), most=st.integers(1, 9))
def test_sampled_tiles_are_spread_evenly(tiles: int, most: int) -> None:
    found = list(sample(tiles, most))
    assert len(found) == min(tiles, most)
    assert found[0] == 0
    if len(found) > 1:
        assert found[-1] == tiles - 1
        gaps = [b - a for a, b in pairwise(found)]
        assert min(gaps) >= 1
        assert max(gaps) - min(gaps) <= 1
