"""The journal of an import that can be resumed: what is finished, and what another process may use of it.

Each line is the CRC-32 of a JSON object in eight digits, a space, and the object. Writing may stop anywhere,
so the first line that is not whole ends the journal, whatever comes after it. The events, in their order::

    {"import": identity}            what the bytes of the store depend on
    {"read": ...}                   all edges were read, and have numbers of nodes
    {"partitioned": ...}            edges lie in buckets, in the order of the rows
    {"tile": number, ...}           a tile is in the store
    {"whole": checksum}             the store is, and is about to get its name

Events list the files that are needed from there on with their bytes, and are written when the disk has these.
"""

from __future__ import annotations

import fcntl
import json
import os
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from oocpr.errors import UsageError
from oocpr.ingest.spill.files import disk_errors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    Event = dict[str, Any]
    WrittenTile = tuple[int, int, tuple[int, int] | None]

VERSION = 3
"""Changes with the events, with the files, and with the bytes to which tiles are encoded."""

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
    """Read events, each with the place where its line ends, up to the first line that is not whole."""
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
    """The journal in a file, made if there is none; UsageError if another process holds it.

    Attributes
    ----------
    events
        All events, those that were found and those that were added.
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
        """Keep the first `count` events only."""
        del self.events[count:], self._ends[count + 1 :]
        os.ftruncate(self._file, self._ends[-1])

    def close(self) -> None:
        """Let others have it."""
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass
class ImportState:
    """What the events of a journal come to.

    Attributes
    ----------
    read, partitioned
        The events of these names, if any.
    tiles
        Bytes and checksum of each, and both of its weights, None if it has none.
    whole
        Checksum of the store's root metadata, once all of it was written.
    """

    read: Event | None = None
    partitioned: Event | None = None
    tiles: list[WrittenTile] = field(default_factory=list)
    whole: int | None = None

    @classmethod
    def of(cls, events: Sequence[Event]) -> ImportState:
        """Go through events, the first of which is the import itself.

        Examples
        --------
        >>> ImportState.of([{"import": {}}, {"tile": 0, "bytes": 9, "crc": 7}]).tiles
        [(9, 7, None)]
        """
        state = cls()
        for event in events[1:]:
            if "read" in event:
                state.read = event
            elif "partitioned" in event:
                state.partitioned = event
            elif "tile" in event:
                data = tuple(event["data"]) if "data" in event else None
                state.tiles.append((event["bytes"], event["crc"], data))
            elif "whole" in event:
                state.whole = event["whole"]
        return state

    def __str__(self) -> str:
        """Say it in words that go after a colon."""
        assert self.read is not None
        edges, numbered = self.read["read"]["edges"], self.read["read"]["dictionary"] is not None
        how = "read and numbered" if numbered else "read"
        if self.partitioned is not None:
            how += ", and sorted into buckets" if numbered else " and sorted into buckets"
        return f"all {edges:,} edges were {how}, {len(self.tiles):,} tiles were written"

    @property
    def files(self) -> dict[str, int]:
        """The files that are still needed, with their bytes."""
        event = self.partitioned or self.read
        return {} if event is None else dict(event["files"])


def difference(then: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Say why what one import has finished is of no use to another; None if it is.

    Identities have "version", "source", and options by their names.

    Examples
    --------
    >>> then = {"version": 1, "order": "keep", "source": {"files": [["/a.txt", 10, 1]]}}
    >>> difference(then, then | {"order": "degree"})
    'order was keep and is degree'
    >>> difference(then, then | {"source": {"files": [["/a.txt", 12, 3]]}})
    '/a.txt was changed'
    """
    if then == now:
        return None
    if then["version"] != now["version"]:
        return "it was begun by another version of oocpr"
    if then["source"] != now["source"]:
        old, new = (_files(identity["source"]) for identity in (then, now))
        if not old or [name for name, *_ in old] != [name for name, *_ in new]:
            return "it is of another source"
        changed = [name for (name, *was), (_, *is_) in zip(old, new, strict=True) if was != is_]
        return f"{changed[0]} was changed" if changed else "the source is read in another way"
    options = [name for name in now if then.get(name) != now[name]]
    return f"{options[0]} was {then.get(options[0])} and is {now[options[0]]}"


def _files(source: Mapping[str, Any]) -> list[list[Any]]:
    source = source.get("undirected", source)
    return [*source.get("files", ()), *source.get("labels", ())]
