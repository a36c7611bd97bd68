"""How far a run is: what it writes of itself meanwhile, and what that, or a checkpoint, says of its end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oocpr.errors import InputError
from oocpr.jobs.lock import read_owner, runs
from oocpr.jobs.results import (
    CHECKPOINT,
    INPUTS,
    LAST_RUN,
    SUMMARY,
    UNFINISHED,
    JobFolder,
    read_json,
    write_json,
)
from oocpr.jobs.steps import Step
from oocpr.plan.forecast import passes_from
from oocpr.progress import describe
from oocpr.store.atomic import remove
from oocpr.store.checkpoint import CheckpointFolder
from oocpr.units import format_bound, format_error_bound, format_seconds

if TYPE_CHECKING:
    from oocpr.jobs.job_file import Job
    from oocpr.progress import Progress

PROGRESS = "progress.json"
_WRITE_SECONDS = 2.0
"""Seconds between two writes; a new stage is written at once."""


@dataclass(frozen=True)
class Position:
    """Where a run is, in Unix time: its step, a stage of it as a `Progress` says it, and where that began."""

    steps: tuple[str, ...] = ()
    step: str = ""
    step_began: float = 0.0
    stage: str = ""
    done: float = 0
    total: int | None = None
    unit: str = ""
    note: str = ""
    stage_began: float = 0.0
    stage_done: float = 0
    updated: float = 0.0

    def stage_left(self) -> float | None:
        """Seconds from `updated` to the end of the stage, if it goes on as fast; None if nobody knows."""
        gone = self.done - self.stage_done
        if self.total is None or gone <= 0:
            return None
        return max(0.0, (self.updated - self.stage_began) * (self.total - self.done) / gone)

    def seconds_left(self, before: Mapping[str, float], now: float) -> float | None:
        """Seconds to the end of the run; None if nobody knows.

        `before` has the seconds of steps of the last run.

        Examples
        --------
        >>> at = Position(("append", "rank"), "rank", 0.0, "ranking", 4, 10, stage_began=0.0, updated=8.0)
        >>> at.seconds_left({}, now=9.0)
        11.0
        """
        left = self.stage_left()
        if left is not None:
            left -= now - self.updated
        # A step has several stages; the passes of a ranking are its last.
        if self.stage != "ranking":
            known = before.get(self.step)
            left = None if known is None else max(left or 0.0, known - (now - self.step_began))
        later = [step for step in self.steps[self.steps.index(self.step) + 1 :] if step != Step.PUBLISH]
        if left is None or any(step not in before for step in later if step != Step.COMPARE):
            return None
        return max(0.0, left) + sum(before.get(step, 0.0) for step in later)


class ProgressFile:
    """Writes where a run is to a file, and passes on what it is told; a `Progress`."""

    def __init__(self, path: Path, passed_on: Progress, clock: Callable[[], float] = time.time) -> None:
        self._path, self._passed_on, self._clock = path, passed_on, clock
        self._position = Position()
        self._written = 0.0
        self._lock = threading.Lock()
        self.seconds: dict[str, float] = {}
        """Seconds of each step that is done."""

    def begin(self, steps: Sequence[str]) -> None:
        """Say which steps there are."""
        self._position = replace(self._position, steps=tuple(steps))

    @contextmanager
    def step(self, step: str) -> Iterator[None]:
        """Do a step meanwhile."""
        began = self._clock()
        self._position = Position(self._position.steps, step, began, updated=began)
        self._write(began)
        yield
        self.seconds[step] = self._clock() - began

    def remove(self) -> None:
        """Remove the file: the run is over."""
        remove(self._path)

    def __call__(self, stage: str, done: float, total: int | None, unit: str, note: str = "") -> None:
        """Take one state, and pass it on."""
        self._passed_on(stage, done, total, unit, note)
        now, before = self._clock(), self._position
        if stage == before.stage and now - self._written < _WRITE_SECONDS:
            return
        with self._lock:
            begun = (before.stage_began, before.stage_done) if stage == before.stage else (now, done)
            self._position = replace(
                before, stage=stage, done=done, total=total, unit=unit, note=note,
                stage_began=begun[0], stage_done=begun[1], updated=now,
            )  # fmt: skip
            self._write(now)

    def _write(self, now: float) -> None:
        self._written = now
        write_json(self._path, asdict(self._position))


_ENDED = ("outcome", "exit_code", "ended", "error")


def job_status(job: Job, now: float) -> dict[str, Any]:
    """Say how far a job is at a time, as JSON.

    ``state`` is ``"running"``, ``"unfinished"`` (the next run goes on), ``"refused"`` (past its limits) or
    ``"idle"``; ``last_run`` is how the last run has ended; ``seconds_left`` and ``ends`` (Unix time) are None
    if nobody knows them.
    """
    folder = JobFolder(job.folder)
    owner = read_owner(job.folder)
    published = folder.published
    last = {} if published is None else read_json(published / SUMMARY) or {}
    ended = read_json(job.folder / LAST_RUN)
    known: dict[str, Any] = {
        "job": job.name,
        "state": "idle",
        "published": None if published is None else published.name,
        "published_bound": last.get("run", {}).get("error_bound"),
        "last_run": None if ended is None else {name: ended.get(name) for name in _ENDED},
        "owner": None,
        "position": None,
        "checkpoint": None,
        "seconds_left": None,
        "ends": None,
    }
    if runs(owner):
        assert owner is not None, "somebody runs it"
        known |= {"state": "running", "owner": owner._asdict()}
        if (found := read_json(job.folder / PROGRESS)) is not None:
            position = Position(**{**found, "steps": tuple(found["steps"])})
            left = position.seconds_left(last.get("steps", {}), now)
            known |= {"position": found, "seconds_left": left, "ends": None if left is None else now + left}
    elif (left_over := folder.left(job.publication.ranks)) is not None:
        # Of an import that could not read its source nothing is left.
        begun = [found.name for found in folder.unfinished.iterdir() if found.name != INPUTS]
        known["state"] = "refused" if left_over.was_refused else "unfinished" if begun else "idle"
    if (job.folder / UNFINISHED / CHECKPOINT).is_dir():
        known["checkpoint"] = checkpoint_status(str(job.folder / UNFINISHED / CHECKPOINT))
    return known


def checkpoint_status(path: str) -> dict[str, Any] | None:
    """Say how far the run of a checkpoint is, as JSON; None if there is no checkpoint.

    ``passes`` is how many it takes in all, by how its error has fallen, and ``seconds_left`` how long those
    that are left take. Raises DamagedError if it is not what was written.
    """
    known = CheckpointFolder(path).read()
    if known is None:
        return None
    history = known["history"]
    certified = known.get("stop") != "residual"
    errors = [each["bound" if certified else "residual"] for each in history]
    tol, predicted = known.get("tol"), known.get("passes", 0)
    total = None if tol is None else passes_from(errors, tol, predicted)
    latest = [each["seconds"] for each in history[-5:]]
    left = None if total is None else (total - known["pass"]) * sum(latest) / max(1, len(latest))
    return {
        "graph": known["run"]["graph"],
        "method": known["run"]["method"],
        "pass": known["pass"],
        "passes": total,
        "error_bound": history[-1]["bound"] if history else None,
        "tol": tol,
        "seconds": known["seconds"],
        "seconds_left": left,
    }


def status_of(path: str, now: float, read: Callable[[Path], Job]) -> tuple[dict[str, Any], str]:
    """Say how far a job, or the run of a checkpoint, is: as JSON, and as lines for a person.

    `read` reads the file of a job. Raises InputError if `path` is neither.
    """
    if path.endswith(".toml"):
        known = job_status(read(Path(path)), now)
        return known, "".join(f"{line}\n" for line in _job_lines(known, now))
    found = checkpoint_status(path) if "://" in path or Path(path).is_dir() else None
    if found is None:
        raise InputError(
            f"{path} is no job and has no checkpoint.", "Name a JOB.toml, or the place of a checkpoint."
        )
    return found, f"{_checkpoint_line(found)}\n"


def _job_lines(known: dict[str, Any], now: float) -> Iterator[str]:
    owner, at, kept = known["owner"], known["position"], known["checkpoint"]
    states = {
        "idle": "not running",
        "unfinished": "not running; the next run goes on with what is unfinished",
        "refused": "not running; the last ranks are past the limits and were not published",
    }
    if owner is None:
        yield f"{known['job']}: {states[known['state']]}"
    else:
        age = format_seconds(max(0.0, now - owner["since"]))
        yield f"{known['job']}: running for {age}, process {owner['pid']} on {owner['host']}"
    if at is not None and at["step"]:
        number = at["steps"].index(at["step"]) + 1
        where = f"step {number} of {len(at['steps'])}, {at['step']}"
        if at["stage"]:
            stage = at["stage"], at["done"], at["total"], at["unit"], at["note"]
            where += f": {describe(*stage, seconds=0.0)}"
        yield where
        left = known["seconds_left"]
        if left is None:
            yield "when it ends is not known: no published result has taken its steps"
        else:
            at_time = time.strftime("%H:%M:%S", time.localtime(now + left))
            yield f"ends in about {format_seconds(left)}, {at_time}"
    if kept is not None:
        yield f"checkpoint: {_checkpoint_line(kept)}"
    if (ended := known["last_run"]) is not None:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ended["ended"]))
        cause = f": {ended['error']['cause']}" if ended["error"] else ""
        yield f"last run: {ended['outcome']}, exit code {ended['exit_code']}, {when}{cause}"
    bound = known["published_bound"]
    certified = "" if bound is None else f", certified {format_error_bound(bound)}"
    yield f"published: {known['published'] or 'nothing yet'}{certified}"


def _checkpoint_line(known: dict[str, Any]) -> str:
    total = "" if known["passes"] is None else f" of about {known['passes']}"
    bound = "" if known["error_bound"] is None else f", bound {format_bound(known['error_bound'])}"
    left = known["seconds_left"]
    rest = "" if left is None else f", about {format_seconds(left)} left"
    return f"after pass {known['pass']}{total}{bound}, {format_seconds(known['seconds'])} so far{rest}"
