"""Where a time limit may raise: not where Python writes an exception and goes on."""

from __future__ import annotations

import logging
import sys
import weakref
from collections.abc import Callable

import pytest

from oocpr.jobs.run import loses_exceptions

found: list[bool] = []


def look(*_: object) -> None:
    found.append(loses_exceptions(sys._getframe()))


class Destroyed:
    def __del__(self) -> None:
        look()


class Kept:
    pass


def finalized() -> None:
    kept = Kept()
    weakref.finalize(kept, look)
    del kept


def logged() -> None:
    logger = logging.Logger("a logger of this test")
    handler = logging.Handler()
    handler.emit = look  # type: ignore[method-assign]
    logger.addHandler(handler)
    logger.warning("late")


@pytest.mark.parametrize(
    ("where", "lost"),
    [(look, False), (Destroyed, True), (finalized, True), (logged, True)],
    ids=["anywhere else", "destructor", "weak reference", "handler of logs"],
)
def test_destructors_weak_references_and_logs_lose_what_is_raised(
    where: Callable[[], object], lost: bool
) -> None:
    found.clear()
    where()
    assert found == [lost]
