"""The folder of a job: results, each a folder of its own, and a link to the one that is published.

What is unfinished lies beside them, and becomes a result by being renamed. The link is replaced by another in
one step, so graph, ranks and report that are read through it are always of one run.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from oocpr.errors import DamagedError, UsageError, masked
from oocpr.jobs.steps import Decision, Record, Step, Unfinished
from oocpr.store.atomic import naming_failures, remove, replacing

LATEST, UNFINISHED = "latest", "unfinished"
GRAPH, IMPORTED, CHECKPOINT = "graph.zarr", "imported.zarr", "checkpoint"
SUMMARY, INPUTS = "summary.json", "inputs.json"
FAILED = "failed"
"""File beside what is unfinished that says that ranks could not be made of it."""
WAS_LATEST = ".published"
"""File in a result that has been the published one."""
LAST_RUN = "last-run.json"
"""Summary of the last run of a job, whatever became of it."""

_NAME = re.compile(r"\d{4}-\d\d-\d\dT\d{6}Z")
_FORMAT = "%Y-%m-%dT%H%M%SZ"


def json_text(value: Any, indent: int | None = None) -> str:
    """Write a value as JSON, without what is secret in URLs; numbers that JSON has not are null.

    >>> json_text({"source": "https://me:secret@host/web.txt", "kendall_tau": math.nan})
    '{"source": "https://***@host/web.txt", "kendall_tau": null}'
    """
    return json.dumps(_plain(value), indent=indent, allow_nan=False, default=str)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, str):
        return masked(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file that is there whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(json_text(value, indent=2) + "\n", encoding="utf-8")


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a JSON object; None if there is no file. Raises DamagedError for anything else."""
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _damaged(path) from error
    if not isinstance(known, dict):
        raise _damaged(path)
    return known


def _damaged(path: Path) -> DamagedError:
    # Beside results there are many things that are sound.
    whole = path.parent if path.name in (SUMMARY, INPUTS) else path
    return DamagedError(f"{path} is not what was written.", f"Remove {whole}, and run the job again.")


class JobFolder:
    """The folder of a job, which need not be there yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.unfinished = path / UNFINISHED

    def make(self) -> None:
        """Make it if need be; UsageError or DoesNotFitError if that cannot be."""
        with naming_failures(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        latest = self.path / LATEST
        if latest.is_dir() and not latest.is_symlink():
            raise UsageError(
                f"{latest} is a folder and no link to a result, as in a copy that has followed links.",
                "Remove it if the results are beside it, and run the job again.",
            )

    def results(self) -> list[str]:
        """Names of all results, the newest last."""
        if not self.path.is_dir():
            return []
        return sorted(found.name for found in self.path.iterdir() if _NAME.fullmatch(found.name))

    @property
    def published(self) -> Path | None:
        """The result that is published; None if there is none, or somebody has removed it."""
        link = self.path / LATEST
        return self.path / link.readlink() if link.is_symlink() and link.is_dir() else None

    def base(self) -> tuple[str, Record] | tuple[None, None]:
        """Name of the published result, and what it is made of."""
        folder = self.published
        if folder is None:
            return None, None
        record, _ = _read_inputs(folder)
        return folder.name, record

    def left(self, ranks: str) -> Unfinished | None:
        """Say what is unfinished; `ranks` is the name of the file of ranks."""
        folder = self.unfinished
        if not (folder / INPUTS).exists():
            return None
        record, known = _read_inputs(folder)
        try:
            steps, new_files = tuple(map(Step, known["steps"])), tuple(map(tuple, known["new_files"]))
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(folder / INPUTS) from error
        summary = read_json(folder / SUMMARY) or {}
        return Unfinished(
            record,
            steps,
            new_files,
            (folder / IMPORTED).is_dir(),
            (folder / GRAPH).is_dir(),
            (folder / ranks).is_file(),
            bool(summary.get("limits")),
            (folder / FAILED).exists(),
        )

    def note_failure(self) -> None:
        """Note that ranks could not be made of the graph that is unfinished."""
        if (self.unfinished / GRAPH).is_dir():
            with contextlib.suppress(OSError):
                (self.unfinished / FAILED).touch()

    def begin(self, decision: Decision) -> None:
        """Make room for what is decided, and note what it is; nothing of another run is left."""
        with naming_failures(self.unfinished):
            if not decision.goes_on:
                remove(self.unfinished)
            self.unfinished.mkdir(exist_ok=True)
            remove(self.unfinished / FAILED)
            if decision.ranks_anew:
                self.drop_ranks()
            inputs = {
                "record": decision.record.to_dict(),
                "steps": list(decision.steps),
                "new_files": [list(stamp) for stamp in decision.new_files],
            }
            if decision.goes_on:
                # Steps are those of the whole run, whatever of them is done.
                inputs["steps"] = (read_json(self.unfinished / INPUTS) or inputs)["steps"]
            write_json(self.unfinished / INPUTS, inputs)

    def drop_ranks(self) -> None:
        """Remove all that is unfinished but the graph, and what it is made of."""
        for found in self.unfinished.iterdir():
            if not found.name.startswith((GRAPH, IMPORTED, INPUTS)):
                remove(found)

    def link_graph(self, name: str) -> None:
        """Take over the graph of a result: its files, under a second name if the file system has such."""
        target = self.unfinished / GRAPH
        partial = target.with_name(f"{GRAPH}.linked")
        with naming_failures(target):
            remove(partial)
            shutil.copytree(self.path / name / GRAPH, partial, copy_function=_link)
            partial.rename(target)

    def publish(self, began: datetime) -> Path:
        """Make what is unfinished a result, named by the time when its run began, and the published one."""
        for part in (IMPORTED, CHECKPOINT):
            remove(self.unfinished / part)
        name = began.astimezone(UTC).strftime(_FORMAT)
        last = max(self.results(), default="")
        if name <= last:
            # A clock that was set back, or two runs in a second: the newest is still the last by name.
            name = (datetime.strptime(last, _FORMAT) + timedelta(seconds=1)).strftime(_FORMAT)
        folder = self.path / name
        with naming_failures(folder):
            self.unfinished.rename(folder)
            self._point_to(folder.name)
        return folder

    def finish_publication(self) -> str | None:
        """Publish a result whose process was killed before its last step; returns its name, None for none."""
        last, published = max(self.results(), default=None), self.published
        if last is None or (published is not None and published.name >= last):
            return None
        # Somebody may have gone back to an earlier one.
        if published is not None and (self.path / last / WAS_LATEST).exists():
            return None
        with naming_failures(self.path / last):
            self._point_to(last)
        return last

    def _point_to(self, name: str) -> None:
        link = self.path / f"{LATEST}.new"
        link.unlink(missing_ok=True)
        link.symlink_to(name)
        link.replace(self.path / LATEST)
        (self.path / name / WAS_LATEST).touch()

    def prune(self, keep: int, keep_graphs: int) -> list[str]:
        """Remove results that are older than the last `keep`, and graphs of all but the last `keep_graphs`.

        Returns the names of what was removed.
        """
        newest = self.results()[::-1]
        graphs = [
            f"{name}/{GRAPH}" for name in newest[keep_graphs:keep] if (self.path / name / GRAPH).exists()
        ]
        removed = [*newest[keep:], *graphs]
        for name in removed:
            remove(self.path / name)
        return removed


def _read_inputs(folder: Path) -> tuple[Record, dict[str, Any]]:
    known = read_json(folder / INPUTS) or {}
    try:
        return Record.from_dict(known["record"]), known
    except (KeyError, TypeError) as error:
        raise _damaged(folder / INPUTS) from error


def _link(source: str, target: str) -> None:
    with contextlib.suppress(OSError):
        os.link(source, target)
        return
    shutil.copy2(source, target)
