"""Where a time limit may raise: not where Python writes an exception and goes on."""

from __future__ import annotations

import asyncio
import concurrent.futures._base as futures
import contextlib
import importlib
import logging
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import pytest
import zarr
from numba.core.codegen import JITCPUCodegen

from oocpr.jobs.time_limit import ended_at, is_handled, loses_exceptions

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


def called_back() -> None:
    def gone(_: weakref.ref[Kept]) -> None:
        look()

    kept = Kept()
    reference = weakref.ref(kept, gone)
    del kept
    assert reference() is None


def given() -> None:
    kept = Kept()
    look(weakref.ref(kept))


def logged() -> None:
    logger = logging.Logger("a logger of this test")
    handler = logging.Handler()
    handler.emit = look  # type: ignore[method-assign]
    logger.addHandler(handler)
    logger.warning("late")


@pytest.mark.parametrize(
    ("where", "lost"),
    [
        (look, False),
        (given, False),
        (Destroyed, True),
        (finalized, True),
        (called_back, True),
        (logged, True),
    ],
    ids=[
        "anywhere else",
        "given a reference",
        "destructor",
        "finalizer",
        "weak reference",
        "handler of logs",
    ],
)
def test_destructors_weak_references_and_logs_lose_what_is_raised(
    where: Callable[[], object], lost: bool
) -> None:
    found.clear()
    where()
    assert found == [lost]


def test_no_import_is_broken_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "looks_around.py").write_text("import sys\n\nsys.looks()\n")
    monkeypatch.setattr(sys, "looks", look, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    found.clear()
    importlib.import_module("looks_around")
    assert found == [True]


def test_no_code_is_lost_on_its_way_to_llvm(monkeypatch: pytest.MonkeyPatch) -> None:
    add_module = JITCPUCodegen._add_module

    def add(self: JITCPUCodegen, module: object) -> object:
        look()
        return add_module(self, module)

    monkeypatch.setattr(JITCPUCodegen, "_add_module", add)
    found.clear()
    assert numba.njit(lambda x: x + 1)(1) == 2
    assert found
    assert all(found)


def test_a_call_is_handed_to_the_thread_of_zarr_whole_and_waited_for_no_longer_than_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = zarr.open_group(tmp_path / "store")
    hand_over = asyncio.run_coroutine_threadsafe

    def handing(*given: Any) -> Any:
        look()
        return hand_over(*given)

    class Waiting(futures._AcquireFutures):
        def __enter__(self) -> None:
            look()
            super().__enter__()

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", handing)
    monkeypatch.setattr(futures, "_AcquireFutures", Waiting)
    found.clear()
    group.attrs["nodes"] = 3
    assert found[:2] == [True, False]


def test_an_error_is_handled_until_it_is_let_go() -> None:
    late, other = ValueError("late"), KeyError("other")
    assert not is_handled(late)
    try:
        try:
            raise late
        finally:
            assert is_handled(late)
            with contextlib.suppress(KeyError):
                try:
                    raise other
                except KeyError:
                    assert is_handled(late)
                    raise
            assert is_handled(late)
    except ValueError as error:
        assert is_handled(late)
        try:
            raise RuntimeError from error
        except RuntimeError:
            assert is_handled(late)
    assert not is_handled(late)
    try:
        raise other
    except KeyError:
        assert not is_handled(ValueError("late"))


def wait_for_ever() -> None:
    try:
        threading.Event().wait()
    except TimeoutError:
        raise RuntimeError("release unlocked lock") from None


def test_what_comes_of_the_error_is_that_error() -> None:
    with pytest.raises(TimeoutError), ended_at(time.monotonic(), TimeoutError()):
        wait_for_ever()


def test_errors_of_the_block_stay_what_they_are() -> None:
    with pytest.raises(KeyError), ended_at(time.monotonic() + 600, TimeoutError()):
        raise KeyError
