"""How far long work is: one live line on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from typing import Protocol, Self, TextIO

from oocpr.units import format_bytes, format_count, format_seconds

_LIVE_SECONDS = 0.1
_PLAIN_SECONDS = 5.0
_CLEAR = "\r\x1b[2K"


class Progress(Protocol):
    """Receives the state of long work: called often, so it must be cheap, and by several threads."""

    def __call__(self, stage: str, done: float, total: int | None, unit: str, note: str = "") -> None:
        """Take one state: `done` of `total`, None if it is unknown, of a stage such as ``"reading"``.

        A new stage closes the one before. Only of passes a part may be done. `unit` is ``"B"``, ``"edges"``,
        ``"ids"``, ``"names"``, ``"tiles"``, ``"workers"``, ``"passes"`` or ``"seeds"``; `note` is a short
        text to show beside, such as the error bound of the last pass.
        """


def silent(stage: str, done: float, total: int | None, unit: str, note: str = "") -> None:
    """Ignore all progress."""


def under(progress: Progress, what: str) -> Progress:
    """Report stages as parts of `what`.

    >>> under(lambda stage, *_: print(stage), "order dfs")("writing", 3, 7, "edges")
    order dfs, writing
    """

    def part(stage: str, done: float, total: int | None, unit: str, note: str = "") -> None:
        progress(f"{what}, {stage}", done, total, unit, note)

    return part


Listener = Progress | bool | None
"""What callers give as ``progress``: True to see it on standard error, as the command line shows it; a
`Progress`; or False or None for silence."""


class Reporter:
    """Draws progress on a stream; a `Progress` and a context manager that leaves a clean line behind.

    `live`: whether to redraw one line; plain lines otherwise. `clock`: seconds from any start.
    """

    def __init__(self, stream: TextIO, *, live: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._live = live
        self._clock = clock
        self._stage = ""
        self._began = 0.0
        self._drawn = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live and self._stage:
            self._stream.write(_CLEAR)
            self._stream.flush()

    def write_line(self, line: str) -> None:
        """Write a line that stays."""
        self._stream.write(f"{_CLEAR if self._live and self._stage else ''}{line}\n")
        self._stream.flush()

    def __call__(self, stage: str, done: float, total: int | None, unit: str, note: str = "") -> None:
        """Take one state."""
        now = self._clock()
        if stage != self._stage:
            self._stage, self._began = stage, now
            # A live line shows a new stage at once, a plain one only when it lasts.
            self._drawn = -math.inf if self._live else now
        if now - self._drawn < (_LIVE_SECONDS if self._live else _PLAIN_SECONDS):
            return
        self._drawn = now
        line = describe(stage, done, total, unit, note, now - self._began)
        if self._live:
            self._stream.write(_CLEAR + line[: shutil.get_terminal_size().columns - 1])
        else:
            self._stream.write(line + "\n")
        self._stream.flush()


def describe(stage: str, done: float, total: int | None, unit: str, note: str, seconds: float) -> str:
    """Put one state of a `Progress` in words, so many seconds after the stage began."""
    parts = [stage if total is None else f"{stage} {min(100, int(100 * done) // max(total, 1))} %"]
    if total is None:
        parts.append(_amount(done, unit))
    elif unit == "B":
        parts.append(f"{format_bytes(done)} of {format_bytes(total)}")
    else:
        parts.append(f"{format_count(done)} of {_amount(total, unit)}")
    if note:
        parts.append(note)
    elif seconds > 0 and done:
        parts.append(f"{_amount(float(f'{done / seconds:.3g}'), unit)}/s")
    if total is not None and 0 < done < total and seconds >= _LIVE_SECONDS:
        parts.append(f"{format_seconds(seconds * (total - done) / done)} left")
    return ", ".join(parts)


def _amount(number: float, unit: str) -> str:
    return format_bytes(number) if unit == "B" else f"{format_count(number)} {unit}"
