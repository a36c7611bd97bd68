"""An error that leaves a run holds nothing of it, and everything of who had called it."""

from __future__ import annotations

import gc
import weakref
from contextlib import nullcontext
from typing import TYPE_CHECKING

import numpy as np
import pytest

from oocpr.engine.process import release_frames

if TYPE_CHECKING:
    from collections.abc import Callable

Made = list[weakref.ref[np.ndarray]]


def fail(made: Made) -> None:
    large = np.zeros(1000)
    made.append(weakref.ref(large))
    raise KeyError("within")


def fail_because(made: Made) -> None:
    large = np.zeros(1000)
    made.append(weakref.ref(large))
    try:
        fail(made)
    except KeyError as error:
        raise ValueError("because of it") from error


def fail_meanwhile(made: Made) -> None:
    large = np.zeros(1000)
    made.append(weakref.ref(large))
    try:
        fail(made)
    finally:
        fail(made)


@pytest.mark.parametrize("work", [fail, fail_because, fail_meanwhile])
@pytest.mark.parametrize("guarded", [True, False])
def test_what_functions_worked_with_goes_with_them(work: Callable[[Made], None], guarded: bool) -> None:
    made: Made = []
    gc.disable()
    try:
        with (
            pytest.raises((KeyError, ValueError)) as raised,
            release_frames() if guarded else nullcontext(),
        ):
            work(made)
        assert raised.value.__traceback__ is not None
        assert [there() is None for there in made] == [guarded] * len(made)
    finally:
        gc.enable()


def test_what_the_caller_was_dealing_with_stays() -> None:
    made: Made = []
    within: Made = []
    try:
        fail(made)
    except KeyError:
        with pytest.raises(KeyError) as raised, release_frames():
            fail(within)
    assert raised.value.__context__ is not None
    assert within[0]() is None
    assert made[0]() is not None
