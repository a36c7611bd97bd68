"""Logs of a job: lines for a person, or a JSON object per line for a program."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from oocpr.errors import masked
from oocpr.jit import reporting, watched
from oocpr.progress import Reporter, describe

if TYPE_CHECKING:
    from oocpr.progress import Progress

_PROGRESS_SECONDS = 10.0
_LOG = logging.getLogger(__name__)


class JsonFormatter(logging.Formatter):
    """Writes a record as a line of JSON: ``time``, ``level``, ``logger``, ``message`` and its ``fields``."""

    def format(self, record: logging.LogRecord) -> str:
        """Write it, without what is secret in URLs."""
        from oocpr.jobs.results import json_text

        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json_text(line)


class _PersonHandler(logging.Handler):
    """Writes a record as a line, or an error as one of cause and one of remedy, past a live line."""

    def __init__(self, reporter: Reporter) -> None:
        super().__init__()
        self._reporter = reporter

    def emit(self, record: logging.LogRecord) -> None:
        """Write it, without what is secret in URLs."""
        fields = getattr(record, "fields", {})
        if record.levelno >= logging.ERROR:
            lines = [f"error: {record.getMessage()}"]
            lines += [f"remedy: {fields['remedy']}"] if "remedy" in fields else []
        else:
            level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
            lines = [
                f"{time.strftime('%H:%M:%S', time.localtime(record.created))} {level}{record.getMessage()}"
            ]
        if record.exc_info:
            lines.insert(0, logging.Formatter().formatException(record.exc_info))
        for line in lines:
            self._reporter.write_line(masked(line))


class _ProgressLog:
    """Logs how far it is, every ten seconds."""

    def __init__(self) -> None:
        self._stage, self._began, self._logged = "", 0.0, 0.0

    def __call__(self, stage: str, done: float, total: int | None, unit: str, note: str = "") -> None:
        now = time.monotonic()
        if stage != self._stage:
            self._stage, self._began, self._logged = stage, now, now
        if now - self._logged < _PROGRESS_SECONDS:
            return
        self._logged = now
        fields = {"stage": stage, "done": done, "total": total, "unit": unit}
        text = describe(stage, done, total, unit, note, now - self._began)
        _LOG.info("%s", text, extra={"fields": fields})


@contextmanager
def logging_to_stderr(form: str, level: str) -> Iterator[Progress]:
    """Log to standard error meanwhile, as ``"text"`` or ``"json"``; gives where progress goes.

    What libraries warn of is logged as well. `level`: debug, info, warning or error.
    """
    root, own = logging.getLogger(), logging.getLogger("oocpr")
    before = root.handlers[:], own.handlers[:], own.level, root.level
    least = logging.getLevelNamesMapping()[level.upper()]
    drawn = form == "text" and least <= logging.INFO
    # What is compiled meanwhile is reported as progress, in one place.
    with reporting() if drawn else Reporter(sys.stderr, live=False) as reporter:
        handler: logging.Handler = _PersonHandler(reporter)
        if form == "json":
            handler = logging.StreamHandler(sys.stderr)
            handler.setFormatter(JsonFormatter())
        root.handlers[:], own.handlers[:] = [handler], []
        own.setLevel(least)
        root.setLevel(max(least, logging.WARNING))
        logging.captureWarnings(form == "json")
        try:
            if drawn:
                yield reporter
            else:
                with watched(progress := _ProgressLog()):
                    yield progress
        finally:
            logging.captureWarnings(False)
            root.handlers[:], own.handlers[:] = before[0], before[1]
            own.setLevel(before[2])
            root.setLevel(before[3])
