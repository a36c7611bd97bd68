"""What a time limit raises, and what comes of it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

import pytest

from oocpr.errors import StoppedError
from oocpr.jobs.time_limit import call_until, is_handled


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
    except BaseException:  # noqa: BLE001
        raise RuntimeError("release unlocked lock") from None


def go_on_after_failures() -> None:
    with contextlib.suppress(Exception):
        threading.Event().wait()


@pytest.mark.parametrize("call", [wait_for_ever, go_on_after_failures])
def test_whatever_comes_of_the_time_limit_is_its_error(call: Callable[[], None]) -> None:
    with pytest.raises(StoppedError, match="too late"):
        call_until(time.monotonic(), call, StoppedError("too late", ""))


def fail() -> None:
    raise KeyError


def test_errors_of_the_call_stay_what_they_are() -> None:
    with pytest.raises(KeyError):
        call_until(time.monotonic() + 600, fail, StoppedError("too late", ""))
