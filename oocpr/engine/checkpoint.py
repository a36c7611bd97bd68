"""A run that may end before it is done: what it keeps of itself, when, and how it goes on.

What a pass leaves for the next are the rows of each stripe, as their backend has them, and a few numbers.
Kept and read again, a run goes on to the very bits that it would have had: stripes, mixing and sweeps are
those that it began with, whatever the number of workers.
"""

from __future__ import annotations

import logging
import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from oocpr.engine.method import Memory, PassRecord, State
from oocpr.errors import DamagedError, DoesNotFitError, StoppedError, UsageError
from oocpr.plan.partition import stripe_tiles
from oocpr.signals import handling
from oocpr.store.checkpoint import CheckpointFolder, UnfitCheckpointError, digest
from oocpr.units import format_seconds, parse_seconds

if TYPE_CHECKING:
    import os

    from oocpr.engine.executors.local import Executor
    from oocpr.engine.stripe import Job
    from oocpr.engine.tiles.source import RankedStore

_LOG = logging.getLogger(__name__)

INTERVAL = 60.0
"""Most seconds between two checkpoints, unless a pass takes longer."""


class Resumed(NamedTuple):
    """Where a run goes on."""

    state: State
    history: list[PassRecord]


class KeptRun:
    """What a run of workers keeps of itself for as long as it lives: copies in folders of theirs."""

    path = ""
    """Where checkpoints are, if any."""
    seconds_before: float = 0.0
    """Seconds that the run has taken in processes before this one."""

    def __init__(self) -> None:
        self.number: int | None = None
        """The pass after which the run was kept last; None if it was not."""
        self.unfinished = False
        """Whether the run has ended before it was good enough: what is kept of it stays."""
        self.name = uuid4().hex
        """Tells its copies from those of other runs."""
        self.checksums: tuple[int, ...] = ()
        """Checksums of what was kept of each stripe."""
        self.holders: tuple[tuple[str, ...], ...] = ()
        """Workers that have copies of each stripe."""
        self.copied = False
        """Whether workers may have copies that are to be removed."""
        self._state: Resumed | None = None
        self._kept = time.monotonic()

    def resume(self, job: Job, store: RankedStore) -> Resumed | None:  # noqa: ARG002
        """Where the run goes on; None if it begins."""
        if self._state is not None:
            # There are fewer copies than there were.
            self._kept = -math.inf
        return self._state

    def due(self, seconds: float) -> bool:
        """Whether the run is to be kept now; its last pass took so many seconds."""
        return time.monotonic() - self._kept + seconds >= INTERVAL

    def keep(
        self, job: Job, store: RankedStore, executor: Executor, state: State, history: list[PassRecord]
    ) -> None:
        """Keep the run after a pass."""
        if state.number == self.number:
            return
        self.write(job, store, executor, state, history)
        self._kept = time.monotonic()

    def check_end(self, number: int, seconds: float) -> None:
        """Raise what the run is to end with now, if anything, after a pass that took so many seconds."""

    def write(
        self,
        job: Job,  # noqa: ARG002
        store: RankedStore,  # noqa: ARG002
        executor: Executor,
        state: State,
        history: list[PassRecord],
    ) -> None:
        """Write what a pass has left."""
        self.copied = True
        try:
            self.checksums, self.holders = executor.save(state.number)
        except DoesNotFitError as error:
            _LOG.warning("the workers keep no copy of the run: %s", error.cause)
            return
        self.number, self._state = state.number, Resumed(state, list(history))

    def add_hint(self, error: BaseException) -> None:
        """Have an error say how the run goes on."""

    def forget(self) -> None:
        """Have the run begin again: what was kept of it does not let it go on."""
        self.number, self._state, self.checksums, self.holders = None, None, (), ()

    @contextmanager
    def stopping(self) -> Iterator[None]:
        """Have signals end the run after its pass meanwhile."""
        yield


class Checkpoints(KeptRun):
    """The checkpoints of one run; see `open_checkpoints`."""

    def __init__(
        self, folder: CheckpointFolder, last: dict[str, Any] | None, time_limit: float | None
    ) -> None:
        super().__init__()
        self._folder, self._last, self._limit = folder, last, time_limit
        self._begun = time.monotonic()
        self._asked: signal.Signals | None = None
        self.path = folder.path
        if last is not None:
            self.seconds_before, self.number = last["seconds"], last["pass"]
            self.checksums = tuple(last["checksums"])

    @property
    def stripes(self) -> int | None:
        """Stripes of the run that goes on; None for a new one."""
        return None if self._last is None else len(self._last["run"]["stripes"])

    @property
    def first_tiles(self) -> list[int]:
        """First tile of each of them, if they are not alike."""
        found: list[int] = [] if self._last is None else self._last["run"].get("first tiles", [])
        return found

    def resume(self, job: Job, store: RankedStore) -> Resumed | None:
        """See KeptRun; UnfitCheckpointError says what differs if the last checkpoint is of another run."""
        if self._last is None:
            return None
        kept, own = self._last["run"], _facts(job, store)
        for name, value in own.items():
            if kept.get(name) != value:
                raise UnfitCheckpointError(
                    f"the checkpoint in {self.path} is of a run with {name} {_shown(kept.get(name))}, and "
                    f"this one has {_shown(value)}.",
                    "Give what it was begun with, or name another folder.",
                )
        history = [PassRecord(**record) for record in self._last["history"]]
        return Resumed(_state_of(self._last["state"]), history)

    def due(self, seconds: float) -> bool:
        """See KeptRun; also if the run is to end."""
        return self._asked is not None or self._late(seconds) or super().due(seconds)

    def _late(self, seconds: float) -> bool:
        return self._limit is not None and time.monotonic() - self._begun + seconds > self._limit

    def check_end(self, number: int, seconds: float) -> None:
        """Raise StoppedError if there is no time for another pass, KeyboardInterrupt if a signal has come."""
        if self._asked is not None:
            interrupt = KeyboardInterrupt(self._asked.name)
            self.add_hint(interrupt)
            raise interrupt
        if self._late(seconds):
            assert self._limit is not None
            raise StoppedError(
                f"the run was stopped after pass {number}: its time limit of "
                f"{format_seconds(self._limit)} leaves no room for another.",
                self.hint,
            )

    @property
    def hint(self) -> str:
        """How the run goes on."""
        return f"{self.path} has the run after pass {self.number}: give resume=True to go on."

    def add_hint(self, error: BaseException) -> None:
        """See KeptRun; a checkpoint that is damaged itself lets nothing go on."""
        damaged = isinstance(error, DamagedError) and self.path in error.cause
        if self.number is not None and not damaged:
            error.add_note(self.hint)

    def forget(self) -> None:
        """See KeptRun; a checkpoint is the user's, and stays."""

    def write(
        self, job: Job, store: RankedStore, executor: Executor, state: State, history: list[PassRecord]
    ) -> None:
        """See KeptRun."""
        self.checksums, _ = executor.save(state.number)
        facts = {
            "checksums": self.checksums,
            "run": _facts(job, store),
            "state": {**state._asdict(), "memory": state.memory._asdict()},
            "history": [asdict(record) for record in history],
            "seconds": self.seconds_before + time.monotonic() - self._begun,
            # For those who look at it; a run goes on with others, too.
            "tol": job.settings.tol,
            "stop": job.settings.stop,
            "passes": job.plan.passes,
        }
        self._folder.publish(state.number, facts)
        self.number, self._last = state.number, facts

    @contextmanager
    def stopping(self) -> Iterator[None]:
        """Have signals end the run after its pass meanwhile; a second one ends it at once."""

        def ask(number: int, frame: Any) -> None:
            if self._asked is not None:
                signal.default_int_handler(number, frame)
            self._asked = signal.Signals(number)

        with handling(ask):
            yield


@contextmanager
def open_checkpoints(
    path: str | os.PathLike[str], *, resume: bool, time_limit: float | None = None
) -> Iterator[Checkpoints]:
    """Open the place for the checkpoints of a run; they are removed once the block ends, if the run has, too.

    `resume`: whether the run goes on from a checkpoint that is there; else UsageError is raised for it.
    `time_limit`: seconds after which the run ends.
    """
    folder = CheckpointFolder(path)
    folder.open()
    try:
        last = folder.read()
        if last is not None and not resume:
            raise UsageError(
                f"{folder.path} has the checkpoint of a run after pass {last['pass']}.",
                "Give resume=True to go on, or name another folder.",
            )
        found = Checkpoints(folder, last, time_limit)
        yield found
        if not found.unfinished:
            folder.clear()
    finally:
        folder.close()


@contextmanager
def kept_run(
    checkpoint: str | os.PathLike[str] | Checkpoints | None, *, resume: bool, time_limit: str | float | None
) -> Iterator[Checkpoints | None]:
    """Open what a run is asked to keep; None if that is nothing. What somebody has opened stays open.

    Raises UsageError for a time limit, or a run that is to go on, without a place for checkpoints.
    """
    if isinstance(checkpoint, Checkpoints):
        yield checkpoint
        return
    if checkpoint is None:
        if resume or time_limit is not None:
            asked = "is to go on" if resume else "has a time limit"
            raise UsageError(f"the run {asked} and has no checkpoint.", "Give checkpoint=DIR as well.")
        yield None
        return
    seconds = None if time_limit is None else parse_seconds(time_limit)
    with open_checkpoints(checkpoint, resume=resume, time_limit=seconds) as opened:
        yield opened


def _facts(job: Job, store: RankedStore) -> dict[str, Any]:
    """What the bits of a run depend on, by the names that people have for it."""
    settings, plan = job.settings, job.plan
    rows = [int(store.tile_rows[first]) for first, _ in plan.stripes]
    first = job.backend[0] if isinstance(job.backend, tuple) else job.backend
    kind = first if isinstance(first, str) else first.name
    tiers = [(each.pairs, each.inside) for each in plan.devices]
    # Those of devices follow from the plan.
    alike = bool(plan.devices) or plan.stripes == stripe_tiles(plan.stats.tiles, len(plan.stripes))
    return {
        "graph": store.identity,
        "damping": settings.damping,
        "method": settings.method,
        "reads": settings.reads,
        "dangling": settings.dangling,
        "personalization": digest(job.teleport),
        "start": digest(job.start),
        "device": kind.partition(":")[0],
        "stripes": rows,
        **({} if alike else {"first tiles": [first for first, _ in plan.stripes]}),
        # Runs without an exchange go on from checkpoints that were made before there was any.
        **({"exchanges" if plan.keeps_open else "sections": plan.sections} if plan.exchanges else {}),
        "mixing": settings.mixing,
        "sweeps": settings.sweeps,
        "proposals": plan.proposals,
        "sweeps inside": sorted({f"{inside}{', pairs' * pairs}" for pairs, inside in tiers}),
    }


def _shown(value: Any) -> str:
    return f"{len(value)} ({value[0]} ...)" if isinstance(value, list) and value else str(value)


def _state_of(kept: dict[str, Any]) -> State:
    memory = kept["memory"]
    return State(
        **{
            **kept,
            "residuals": tuple(kept["residuals"]),
            "memory": Memory(tuple(memory["live"]), tuple(map(tuple, memory["gram"]))),
            "mixing_coefficients": tuple((slot, theta) for slot, theta in kept["mixing_coefficients"]),
            "carries": tuple(kept["carries"]),
        }
    )
