"""What an earlier import has finished, and how much of it another one may use: events in, facts out.

The events of a journal, in their order::

    {"import": identity}            what the bytes of the store depend on
    {"read": Checkpoint, ...}       as often as worth it; at the end of the source with what is known then
    {"numbered": ...}               keys have numbers of nodes, the dictionary is whole
    {"dealt": ...}                  keys lie in buckets, in the order of the rows
    {"tile": number, ...}           a tile is in the store
    {"whole": checksum}             the store is, and is about to get its name

Events list the files that are needed from there on, as name to generation and bytes; those of checkpoints
list the pieces that were written, too. A file that is rewritten has the next generation.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Event = dict[str, Any]
    Files = dict[str, tuple[int, int]]
    WrittenTile = tuple[int, int, tuple[int, int] | None]

VERSION = 3
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
        Files with all that.
    pieces
        What was written to them since the checkpoint before, by name: first byte, bytes and CRC-32.
    dealt
        Buckets of ids, and blocks that were dealt to them since then, as a dealer has them; None while there
        are none, and once there are records.
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
    pieces: dict[str, list[list[int]]]
    dealt: dict[str, Any] | None
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
        Bytes and checksum of each, and both of its weights, None where it has none.
    whole
        Checksum of the store's root metadata, once all of it was written.
    """

    checkpoints: list[Checkpoint] = field(default_factory=list)
    known: dict[str, Any] | None = None
    numbered: Event | None = None
    dealt: Event | None = None
    tiles: list[WrittenTile] = field(default_factory=list)
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
        return {name: (generation, size) for name, (generation, size) in kept.items()}


def finished(events: Sequence[Event]) -> Finished:
    """Go through events, the first of which is the import itself.

    Examples
    --------
    >>> finished([{"import": {}}, {"tile": 0, "bytes": 9, "crc": 7}]).tiles
    [(9, 7, None)]
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
            size, checksum = event.get("data", (0, 0))
            result.tiles.append((event["bytes"], event["crc"], (size, checksum) if "data" in event else None))
        elif "whole" in event:
            result.whole = event["whole"]
    return result


def usable(checkpoints: Sequence[Checkpoint], sound: Mapping[str, Sequence[bool]]) -> int:
    """Count the checkpoints up to the last of whose files all is what was written.

    Parameters
    ----------
    checkpoints
        In their order.
    sound
        For each file, whether the pieces of each checkpoint are there.

    Examples
    --------
    >>> at = [Checkpoint(1, 0, 1, None, {}, 9, None, None, {"keys": [1, 8]}, {}, None, [])] * 2
    >>> usable(at, {"keys": [True, True]}), usable(at, {"keys": [True, False]})
    (2, 1)
    """
    for count in range(len(checkpoints), 0, -1):
        if all(all(sound[name][:count]) for name in checkpoints[count - 1].files):
            return count
    return 0


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
