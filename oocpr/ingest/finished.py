"""What an earlier import has finished, and how much of it another one may use: events in, facts out.

The events of a journal, in their order::

    {"import": identity}            what the bytes of the store depend on
    {"read": Checkpoint, ...}       as often as worth it; at the end of the source with what is known then
    {"numbered": ...}               keys have numbers of nodes, the dictionary is whole
    {"dealt": ...}                  keys lie in buckets, in the order of the rows
    {"tile": number, ...}           a tile is in the store
    {"whole": checksum}             the store is, and is about to get its name

Events that keep something list its files, as name to generation, bytes and CRC-32, the last for files that
are only appended to. A file that is rewritten in place of an older one has the next generation.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Event = dict[str, Any]
    Files = dict[str, tuple[int, int, int]]

VERSION = 1
"""Changes with the events, with the files, and with the bytes to which tiles are encoded."""


@dataclass(frozen=True)
class Checkpoint:
    """How far a source was read.

    Parameters
    ----------
    edges, listed, largest
        Edges, nodes that were given as such, and the largest id of 32 bits.
    nodes
        How many nodes the source says there are, None where it does not.
    mark
        Behind which the source is to be read on.
    block_edges
        Most edges of a block when reading began.
    records, points
        Records, None while there are none; and what their fingerprints depend on.
    files
        All files.
    sizes
        Edges of the blocks since the checkpoint before, as pairs of a size and how often it comes in a row.
    segments
        Segments since then: edge, edges, record, records.
    """

    edges: int
    listed: int
    largest: int
    nodes: int | None
    mark: dict[str, Any]
    block_edges: int
    records: int | None
    points: list[int] | None
    files: dict[str, list[int]]
    sizes: list[list[int]]
    segments: list[list[int]]

    def event(self, known: Mapping[str, Any] | None = None) -> Event:
        """Make an event; with what is `known` of a source that is at its end."""
        return {"read": asdict(self), **({} if known is None else {"known": dict(known)})}


@dataclass
class Finished:
    """What the events of a journal come to.

    Attributes
    ----------
    checkpoints
        Each with all that was read until then.
    known
        What is known of the source, once it was read to its end.
    numbered, dealt
        The events of these names, if any.
    tiles
        Bytes and checksum of each.
    whole
        Checksum of the store's root metadata, once all of it was written.
    """

    checkpoints: list[Checkpoint] = field(default_factory=list)
    known: dict[str, Any] | None = None
    numbered: Event | None = None
    dealt: Event | None = None
    tiles: list[tuple[int, int]] = field(default_factory=list)
    whole: int | None = None

    def __str__(self) -> str:
        """Say it in words that go behind a colon."""
        edges = self.checkpoints[-1].edges if self.checkpoints else 0
        if self.known is None:
            return f"{edges:,} edges were read"
        how = "read"
        if self.numbered is not None:
            how = "read and numbered"
        if self.dealt is not None:
            how += " and sorted into buckets" if self.numbered is None else ", and sorted into buckets"
        return f"all {edges:,} edges were {how}, {len(self.tiles):,} tiles were written"

    @property
    def files(self) -> Files:
        """The files that are still needed."""
        kept: dict[str, list[int]] = {}
        for event in (self.dealt, self.numbered):
            if event is not None:
                kept = event["files"]
                break
        else:
            kept = self.checkpoints[-1].files if self.checkpoints else {}
        return {name: (generation, size, crc) for name, (generation, size, crc) in kept.items()}


def finished(events: Sequence[Event]) -> Finished:
    """Go through events, the first of which is the import itself.

    Examples
    --------
    >>> finished([{"import": {}}, {"tile": 0, "bytes": 9, "crc": 7}]).tiles
    [(9, 7)]
    """
    result = Finished()
    for event in events[1:]:
        if "read" in event:
            result.checkpoints.append(Checkpoint(**event["read"]))
            result.known = event.get("known")
        elif "numbered" in event:
            result.numbered = event
        elif "dealt" in event:
            result.dealt = event
        elif "tile" in event:
            result.tiles.append((event["bytes"], event["crc"]))
        elif "whole" in event:
            result.whole = event["whole"]
    return result


def usable(checkpoints: Sequence[Checkpoint], found: Mapping[str, Sequence[tuple[int, int]]]) -> int:
    """Count the checkpoints up to which every file is what was written.

    Parameters
    ----------
    checkpoints
        In their order.
    found
        For each file, bytes and CRC-32 of its front at every checkpoint at which there was the file, as far
        as it goes now.

    Examples
    --------
    >>> files = [{"keys": [1, size, size]} for size in (8, 16)]
    >>> at = [Checkpoint(1, 0, 1, None, {}, 9, None, None, each, [], []) for each in files]
    >>> usable(at, {"keys": [(8, 8), (16, 16)]}), usable(at, {"keys": [(8, 8), (16, 0)]}), usable(at, {})
    (2, 1, 0)
    """
    met = dict.fromkeys(found, 0)
    for count, checkpoint in enumerate(checkpoints):
        for name, (_, size, crc) in checkpoint.files.items():
            fronts = found.get(name, ())
            number = met.get(name, 0)
            if number >= len(fronts) or fronts[number] != (size, crc):
                return count
            met[name] = number + 1
    return len(checkpoints)


def difference(then: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Say why what one import has finished is of no use to another; None where it is.

    Parameters
    ----------
    then, now
        Identities: "version" and "source" of each, and options by their names.

    Examples
    --------
    >>> then = {"version": 1, "order": "keep", "source": {"files": [["/a.txt", 10, 1]]}}
    >>> difference(then, then | {"order": "degree"})
    'order was keep and is degree'
    >>> difference(then, then | {"source": {"files": [["/a.txt", 12, 3]]}})
    '/a.txt was changed'
    >>> difference(then, then) is None
    True
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
