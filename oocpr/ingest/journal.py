"""What an import that can be resumed leaves on the disk: a journal of what is finished, and files with names.

Each line of the journal is the CRC-32 of a JSON object in eight digits, a space, and the object. Writing may
stop anywhere, so the first line that is not whole ends the journal, whatever comes after it. The events::

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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oocpr.errors import UsageError
from oocpr.ingest.spill.files import SpillDir, SpillFile, disk_errors, making_files
from oocpr.sources.base import DIRECTIONS

if TYPE_CHECKING:
    from io import FileIO

    Event = dict[str, Any]
    WrittenTile = tuple[int, int, tuple[int, int] | None]


VERSION = 3
"""Changes with the events, with the files, and with the bytes to which tiles are encoded."""

_DIGITS = 8

_flush = getattr(os, "fdatasync", os.fsync)  # macOS has the second only


class DurableSpillFile(SpillFile):
    """A file with a name, none of it in memory; the first `size` bytes of one that is there already count."""

    def __init__(self, folder: Path, name: str, size: int) -> None:
        self.name = name
        self._left = size
        super().__init__(folder)
        self.size = size

    def _open(self) -> FileIO:
        flags = os.O_RDWR | os.O_CREAT | (0 if self._left else os.O_TRUNC)
        return os.fdopen(os.open(self.folder / self.name, flags, 0o600), "r+b", buffering=0)

    def sync(self) -> None:
        """Return when the disk has it."""
        _flush(self._file.fileno())


class DurableSpillDir(SpillDir):
    """Temporary files that another process may continue with; `left` has the bytes of those there are."""

    def __init__(self, folder: Path, left: dict[str, int]) -> None:
        super().__init__(folder)
        self._left = dict(left)
        self._named: dict[str, DurableSpillFile] = {}

    def file(self, memory: int = 0, name: str | None = None) -> SpillFile:
        """Make a file, or open the one that is left; a file without a name goes with the process."""
        if name is None:
            return super().file(memory)
        self._named[name] = DurableSpillFile(self.folder, name, self._left.pop(name, 0))
        self._files.append(self._named[name])
        return self._named[name]

    def drop(self, file: SpillFile) -> None:
        """Close a file that nobody needs any more, and remove it."""
        super().drop(file)
        if isinstance(file, DurableSpillFile):
            del self._named[file.name]
            (self.folder / file.name).unlink()

    def synced(self, names: Iterable[str]) -> dict[str, int]:
        """Bring some files to the disk; returns their bytes."""
        files = {name: self._named[name] for name in names}
        for file in files.values():
            file.sync()
        with making_files(self.folder):
            descriptor = os.open(self.folder, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
        return {name: file.size for name, file in files.items()}


def line_of(event: Event) -> bytes:
    r"""Write an event as a line."""
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
    """The journal in a file, made if there is none, and its `events`; UsageError if it is in use."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            self._lock()
            found = whole_lines(path.read_bytes())
            self.events = [event for event, _ in found]
            self._ends = [0, *(end for _, end in found)]
            self.cut(len(found))
        except BaseException:
            # Nobody has it who could close it: who is interrupted here may go on in the same process.
            os.close(self._file)
            raise

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UsageError(
                f"{self._path.parent} is in use: another process is at this import.",
                "Wait for it, or end it, and try again.",
            ) from error

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
        """Drop all but the first `count` events."""
        del self.events[count:], self._ends[count + 1 :]
        os.ftruncate(self._file, self._ends[-1])

    def close(self) -> None:
        """Let others have it."""
        os.close(self._file)


@dataclass
class ImportState:
    """What the events of a journal amount to.

    Of each tile: bytes and checksum, and both of its weights, None if it has none. `whole` is the checksum of
    the store's root metadata, once all of it was written.
    """

    read: Event | None = None
    partitioned: Event | None = None
    tiles: list[WrittenTile] = field(default_factory=list)
    whole: int | None = None

    @classmethod
    def of(cls, events: Sequence[Event]) -> ImportState:
        """Go through events, the first of which is the import itself."""
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
    source = next((source[name] for name in DIRECTIONS if name in source), source)
    return [*source.get("files", ()), *source.get("labels", ())]
