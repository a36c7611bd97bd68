"""The pool of the shim, held to what it says and to CuPy's."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from .shim.pool import UNIT, Pool, PooledNumpy, PoolError

STEPS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9000)), max_size=60)
"""Arrays are made (0, 1), of so many bytes, or one of them goes (2), or all free memory is given back (3)."""


class Made:
    """Arrays that are made and go in an order."""

    def __init__(self, xp: Any, pool: Any) -> None:
        self._xp, self._pool = xp, pool
        self.arrays: list[Any] = []

    def do(self, kind: int, size: int) -> bool:
        """Take a step; tells whether there was room for it."""
        if kind < 2:
            try:
                self.arrays.append(self._xp.empty(size, np.uint8))
            except MemoryError:
                return False
        elif kind == 3:
            self._pool.free_all_blocks()
        elif self.arrays:
            del self.arrays[size % len(self.arrays)]
        return True


@given(steps=STEPS)
def test_what_is_used_is_what_is_there(steps: list[tuple[int, int]]) -> None:
    pool = Pool()
    pool.limit = 100 * UNIT
    made = Made(PooledNumpy(pool), pool)
    for step in steps:
        before = pool.total
        made.do(*step)
        used = sum(-(-array.nbytes // UNIT) * UNIT for array in made.arrays)
        assert pool.used == used <= pool.total <= pool.limit
        assert pool.total >= before or step[0] == 3
    made.arrays.clear()
    pool.free_all_blocks()
    assert (pool.used, pool.total) == (0, 0)


def test_views_have_their_array_and_copies_are_the_hosts() -> None:
    pool = Pool()
    array = PooledNumpy(pool).zeros(1000, np.uint8)
    view, copy = array[5:500].view(np.uint8).reshape(5, 99), array.get()
    assert pool.used == 2 * UNIT
    del array
    assert pool.used == 2 * UNIT
    del view
    assert pool.used == 0
    assert type(copy) is np.ndarray


def test_what_is_split_is_not_given_back() -> None:
    pool = Pool()
    xp = PooledNumpy(pool)
    large = xp.empty(10 * UNIT, np.uint8)
    del large
    small = xp.empty(UNIT, np.uint8)
    pool.free_all_blocks()
    assert (pool.used, pool.total) == (UNIT, 10 * UNIT)
    pool.limit = 10 * UNIT
    with pytest.raises(PoolError):
        xp.empty(10 * UNIT, np.uint8)
    del small
    assert xp.empty(10 * UNIT, np.uint8).size == 10 * UNIT


@pytest.mark.device
@pytest.mark.parametrize("seed", range(16))
def test_the_pool_is_that_of_cupy(seed: int) -> None:
    import cupy

    gc.collect()
    theirs, ours = cupy.cuda.MemoryPool(), Pool()
    rng = np.random.default_rng(seed)
    with cupy.cuda.using_allocator(theirs.malloc):
        # Of two free pieces of one size CuPy takes either; of sizes as many as these no two are alike.
        theirs.set_limit(size=2**28)
        ours.limit = 2**28
        both = Made(cupy, theirs), Made(PooledNumpy(ours), ours)
        for kind, size in zip(rng.integers(0, 4, 300), rng.integers(1, 2**24, 300), strict=True):
            assert both[0].do(kind, size) == both[1].do(kind, size)
            assert (ours.used, ours.total) == (theirs.used_bytes(), theirs.total_bytes())
        both[0].arrays.clear()


@pytest.mark.device
def test_there_is_memory_past_a_full_pool() -> None:
    import cupy

    from oocpr.engine.cuda.device import open_device

    gc.collect()
    device = open_device("cuda")
    # Others of the process may have some of it.
    held = cupy.get_default_memory_pool()
    before = device.limit(0)
    device.limit(held.total_bytes() + 2**20)
    device.reset_allocated()
    try:
        full = cupy.empty(2**20, np.uint8)
        with pytest.raises(cupy.cuda.memory.OutOfMemoryError):
            cupy.empty(2**20, np.uint8)
        with device.past_pool():
            more = cupy.zeros(2**20, np.uint8)
        # Whatever is computed of it on the device would need more of the pool.
        assert not more.get().any()
        assert held.total_bytes() == held.get_limit()
        del full, more
    finally:
        device.limit(before)


@pytest.mark.device
def test_arrays_are_made_of_what_was_reserved() -> None:
    import cupy

    from oocpr.engine.cuda.device import open_device

    gc.collect()
    device = open_device("cuda")
    pool = cupy.get_default_memory_pool()
    before = device.limit(0)
    try:
        held = pool.total_bytes()
        device.reserve(2**26)
        arrays = [cupy.empty(2**22, np.uint8) for _ in range(2**4)]
        assert pool.total_bytes() == held + 2**26
        del arrays
        device.limit(0)
        assert pool.total_bytes() == held
    finally:
        device.limit(before)
