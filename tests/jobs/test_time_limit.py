"""What a time limit raises, and what comes of it."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest

from oocpr.jobs.time_limit import ended_at, is_handled


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
