"""A journal of what is finished: lines that are there whole, or count as never written.

Each line is the CRC-32 of a JSON object in eight digits, a space, and the object. Writing may stop anywhere,
so the first line that is not whole ends the journal, whatever stands behind it.
"""

from __future__ import annotations

import fcntl
import json
import os
import zlib
from typing import TYPE_CHECKING, Any, Self

from oocpr.errors import UsageError
from oocpr.ingest.spill.files import disk_errors

if TYPE_CHECKING:
    from pathlib import Path

    Event = dict[str, Any]

_DIGITS = 8


def line_of(event: Event) -> bytes:
    r"""Write an event as a line.

    Examples
    --------
    >>> line_of({"tile": 0})
    b'8bc121fd {"tile":0}\n'
    """
    text = json.dumps(event, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def whole_lines(data: bytes) -> list[tuple[Event, int]]:
    r"""Read events, each with the place where its line ends, up to the first line that is not whole.

    Examples
    --------
    >>> whole_lines(line_of({"tile": 0}) + line_of({"tile": 1})[:-1])
    [({'tile': 0}, 20)]
    """
    events: list[tuple[Event, int]] = []
    start = 0
    while (end := data.find(b"\n", start) + 1) > 0:
        digits, _, text = data[start : end - 1].partition(b" ")
        if len(digits) != _DIGITS or digits != b"%08x" % zlib.crc32(text):
            break
        events.append((json.loads(text), end))
        start = end
    return events


class Journal:
    """The journal in a file, which one process at a time may hold.

    Parameters
    ----------
    path
        The file; it is made where there is none.

    Attributes
    ----------
    events
        All events, those that were found and those that were added.

    Raises
    ------
    UsageError
        Where another process holds it.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with Journal(Path(folder, "journal")) as journal:
    ...         journal.add({"tile": 0})
    ...         journal.add({"tile": 1})
    ...         journal.cut(1)
    ...     with Journal(Path(folder, "journal")) as journal:
    ...         journal.events
    [{'tile': 0}]
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._file)
            raise UsageError(
                f"{path.parent} is in use: another process is at this import.",
                "Wait for it, or end it, and try again.",
            ) from error
        found = whole_lines(path.read_bytes())
        self.events = [event for event, _ in found]
        self._ends = [0, *(end for _, end in found)]
        self.cut(len(found))

    def add(self, event: Event, *, durable: bool = False) -> None:
        """Add an event; a durable one is on the disk when this returns, and so are those before."""
        line = line_of(event)
        end = self._ends[-1]
        with disk_errors(self._path.parent, len(line)):
            written = 0
            while written < len(line):
                written += os.pwrite(self._file, line[written:], end + written)
            if durable:
                os.fsync(self._file)
        self.events.append(event)
        self._ends.append(end + len(line))

    def cut(self, count: int) -> None:
        """Keep the first events only."""
        del self.events[count:], self._ends[count + 1 :]
        os.ftruncate(self._file, self._ends[-1])

    def close(self) -> None:
        """Let others have it."""
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
