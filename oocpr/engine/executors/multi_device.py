"""Backends of this process and who waits for them: the caller, or a thread for each of several devices."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from oocpr.engine.backend import Streams

if TYPE_CHECKING:
    from collections.abc import Callable

    from oocpr.engine.backend import Backend
    from oocpr.engine.job import Job


Given = ParamSpec("Given")
Result = TypeVar("Result")


SWITCHING = 1e-4
"""Seconds for which a thread may keep Python from the others. Those of several devices launch a little each:
with the usual 5 ms four H200s took 28 ms for a pass of R-MAT with 1.06 G edges, with this 22."""


class Alone:
    """The one backend of a run, which the caller's thread waits for.

    Parameters
    ----------
    job
        The run.
    """

    def __init__(self, job: Job) -> None:
        self.backends: list[Backend] = [job.make_backend(0)]

    def each(self, work: Callable[[int], Result]) -> list[Result]:
        """Work for the backend; see SideBySide."""
        return [work(0)]

    def close(self) -> None:
        """See SideBySide."""
        _close(self.backends)


class SideBySide:
    """A backend for each stripe of a run, and a thread for each.

    Parameters
    ----------
    job
        The run.

    Attributes
    ----------
    backends
        In the order of the stripes.
    """

    def __init__(self, job: Job) -> None:
        self.backends: list[Backend] = []
        self._threads: list[ThreadPoolExecutor] = []
        self._interval = sys.getswitchinterval()
        sys.setswitchinterval(SWITCHING)
        try:
            for stripe in range(len(job.plan.stripes)):
                self.backends.append(job.make_backend(stripe))
            self._threads += [ThreadPoolExecutor(1, "oocpr-device") for _ in self.backends]
        except BaseException:
            # Nobody has these, so nobody can close them.
            self.close()
            raise

    def each(self, work: Callable[[int], Result]) -> list[Result]:
        """Work for each stripe in its thread; an error is raised once all have ended."""
        futures = [thread.submit(work, index) for index, thread in enumerate(self._threads)]
        wait(futures)
        return [future.result() for future in futures]

    def one(
        self, stripe: int, work: Callable[Given, Result], *given: Given.args, **named: Given.kwargs
    ) -> Result:
        """Work for one stripe in its thread."""
        return self._threads[stripe].submit(work, *given, **named).result()

    def stop(self) -> None:
        """Wait until no thread is at work; none takes any more."""
        sys.setswitchinterval(self._interval)
        for thread in self._threads:
            thread.shutdown(cancel_futures=True)

    def close(self) -> None:
        """Let others have what the backends were limited to."""
        self.stop()
        _close(self.backends)


def _close(backends: list[Backend]) -> None:
    for backend in backends:
        if isinstance(backend, Streams):
            backend.close()
