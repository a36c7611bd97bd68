"""A timeline of a run: which tile was read, sent and computed when, and where.

In the Trace Event Format, which Perfetto and chrome://tracing draw: a track for each buffer that tiles are
read into, one for copies to a device, one for computing, one for the host's thread that launches it.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from oocpr.store.atomic import replacing

if TYPE_CHECKING:
    import os

    from oocpr.engine.cuda.device import Device

COMPUTE, COPY, HOST, READ = "compute", "copy to the device", "host", "read"


class Span(NamedTuple):
    """Something that happened on a track, in seconds of `time.perf_counter`."""

    track: str
    name: str
    begin: float
    end: float
    nbytes: int


class Trace:
    """What happened in a run; any thread adds to its `spans`, which are in no order.

    Examples
    --------
    >>> trace = Trace()
    >>> with trace.span(READ, "tile 3", 1000):
    ...     pass
    >>> [(event["name"], event["ph"]) for event in trace.to_json()["traceEvents"]]
    [('thread_name', 'M'), ('tile 3', 'X')]
    """

    def __init__(self) -> None:
        self._origin = time.perf_counter()
        self._where = ""
        self._paused: set[str] = set()
        self.spans: list[Span] = []

    def part(self, name: str) -> Trace:
        """Return the same timeline with tracks of its own for a part of the run.

        Examples
        --------
        >>> trace = Trace()
        >>> trace.part("device 1").add(COMPUTE, "tile 3", 0.0, 1.0)
        >>> trace.spans[0].track, trace.busy()
        ('compute, device 1', {'compute': 1.0})
        """
        part = copy(self)
        part._where = f", {name}"
        return part

    def add(self, track: str, name: str, begin: float, end: float, nbytes: int = 0) -> None:
        """Add what happened from `begin` to `end`, in seconds of `time.perf_counter`."""
        self.spans.append(Span(track + self._where, name, begin, end, nbytes))

    def pause(self, *tracks: str) -> None:
        """Add nothing that begins from now on to tracks of such kinds, which would take time of its own."""
        self._paused.update(tracks)

    def resume(self, *tracks: str) -> None:
        """Add to them again."""
        self._paused.difference_update(tracks)

    def paused(self, track: str) -> bool:
        """Whether nothing is added to a track of that kind."""
        return track in self._paused

    @contextmanager
    def span(self, track: str, name: str, nbytes: int = 0) -> Iterator[None]:
        """Add the time that the block takes."""
        if self.paused(track):
            yield
            return
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.add(track, name, begin, time.perf_counter(), nbytes)

    def busy(self) -> dict[str, float]:
        """Seconds in which something went on, by kind of track: reading, copying, launching, computing."""
        kinds: dict[str, list[Span]] = defaultdict(list)
        for span in self.spans:
            kinds[span.track.split(",")[0]].append(span)
        return {kind: _covered(spans) for kind, spans in sorted(kinds.items())}

    def to_json(self) -> dict[str, Any]:
        """Convert to the Trace Event Format, times in microseconds."""
        tracks = {track: number for number, track in enumerate(sorted({span.track for span in self.spans}))}
        events: list[dict[str, Any]] = [
            {"ph": "M", "pid": 1, "tid": number, "name": "thread_name", "args": {"name": track}}
            for track, number in tracks.items()
        ]
        for span in sorted(self.spans, key=lambda span: span.begin):
            began, took = 1e6 * (span.begin - self._origin), 1e6 * (span.end - span.begin)
            event: dict[str, Any] = {"ph": "X", "pid": 1, "tid": tracks[span.track], "name": span.name}
            event |= {"ts": round(began, 3), "dur": round(took, 3)}
            if span.nbytes:
                event["args"] = {"bytes": span.nbytes}
            events.append(event)
        return {"traceEvents": events, "displayTimeUnit": "ms"}

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write `to_json` to a file, which appears when it is whole."""
        with replacing(Path(path)) as temporary:
            temporary.write_text(json.dumps(self.to_json()), encoding="utf-8")


class DeviceTrace:
    """The part of a timeline that a device measures by itself."""

    def __init__(self, device: Device, trace: Trace) -> None:
        self._device = device
        self._trace = trace
        self._waiting: deque[tuple[str, str, Any, Any, int]] = deque()
        self._spare: list[Any] = []
        # The first moment of a device may take long, so the second is what both clocks are compared at.
        for _ in range(2):
            self._zero = device.timestamp()
            device.synchronize()
            self._origin = time.perf_counter()

    @contextmanager
    def span(self, track: str, name: str, nbytes: int = 0) -> Iterator[None]:
        """Add the time that the device takes for what the block launches or, on track COPY, sends."""
        if self._trace.paused(track):
            yield
            return
        # Moments are made slowly, so those that have passed serve again.
        while self._waiting and self._device.has_passed(self._waiting[0][3]):
            self._take_over()
        begin = self._moment(track)
        yield
        self._waiting.append((track, name, begin, self._moment(track), nbytes))

    def finish(self) -> None:
        """Take over what was measured; the device has done all of it."""
        while self._waiting:
            self._take_over()

    def _moment(self, track: str) -> Any:
        again = self._spare.pop() if self._spare else None
        return self._device.timestamp(copy_stream=track == COPY, again=again)

    def _take_over(self) -> None:
        track, name, begin, end, nbytes = self._waiting.popleft()
        first, last = (self._origin + self._device.elapsed(self._zero, moment) for moment in (begin, end))
        self._trace.add(track, name, first, last, nbytes)
        self._spare += (begin, end)


def _covered(spans: list[Span]) -> float:
    """Seconds in which at least one of the spans goes on."""
    total, reached = 0.0, float("-inf")
    for span in sorted(spans, key=lambda span: span.begin):
        total += max(0.0, span.end - max(span.begin, reached))
        reached = max(reached, span.end)
    return total
