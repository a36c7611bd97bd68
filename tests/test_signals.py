"""Who handles signals that end a process, and where they may raise: not where that would be lost."""

from __future__ import annotations

import asyncio
import concurrent.futures._base as futures
import importlib
import logging
import signal
import sys
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numba
import pytest
import zarr
from numba.core.codegen import JITCPUCodegen

from oocpr.signals import ENDING, handling, loses_exceptions

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


def handlers() -> list[object]:
    return [signal.getsignal(number) for number in ENDING]


def test_signals_are_handled_meanwhile_but_those_that_are_ignored() -> None:
    # Tests in the background, or under nohup, ignore some themselves.
    kept = {number: signal.signal(number, signal.SIG_DFL) for number in ENDING}
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        before, asked = handlers(), list[int]()
        with handling(lambda number, _: asked.append(number)):
            for number in ENDING:
                signal.raise_signal(number)
        assert asked == [signal.SIGINT, signal.SIGTERM]
        assert handlers() == before
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def test_another_thread_than_the_main_one_handles_no_signals() -> None:
    def change() -> list[object]:
        with handling(lambda *_: None):
            return handlers()

    before = handlers()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(change).result() == before
