"""BVGraph, the format of the WebGraph framework: a stream of bits and a file of properties beside it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from oocpr.errors import InputError
from oocpr.sources.base import FileSource
from oocpr.sources.block import MAX_NODES, EdgeBlock
from oocpr.sources.io.compression import ByteStream
from oocpr.sources.text.line_reader import LineReader, whole_numbers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oocpr.sources.io.compression import ByteStream as Stream
    from oocpr.sources.io.locations import AnyPath, Place

_CHUNK_BYTES = 1 << 20
_ROOM = 1 << 10
"""Successors of a list for which there is room at first."""

_KEYS = (
    "graphclass", "endianness", "version", "nodes", "arcs", "windowsize", "minintervallength", "zetak",
    "compressionflags",
)  # fmt: skip
_CODES = ("UNARY", "GAMMA", "DELTA", "ZETA", "NIBBLE")
_FLAGS = ("OUTDEGREES", "REFERENCES", "BLOCK_COUNT", "BLOCKS", "RESIDUALS")
_USUAL = ("GAMMA", "UNARY", "GAMMA", "GAMMA", "ZETA")


class BVGraphFile(FileSource):
    """A graph of the WebGraph framework: node x has row x, and its successors are read natively.

    Parameters
    ----------
    path
        ``NAME.graph`` or ``NAME.properties``; the other one lies beside it.
    labels
        A file with one label a node, or None.

    Raises
    ------
    InputError
        While blocks are read: properties that are missing, unknown or untrue, or bits that are cut or cannot
        be a graph.
    """

    def __init__(self, path: AnyPath | Sequence[AnyPath], labels: AnyPath | None = None) -> None:
        super().__init__(path, labels)
        [place] = self.places
        stem = Path(place.name).stem
        self._places = {
            kind: place if place.name.endswith(kind) else _beside(place, stem + kind)
            for kind in (".graph", ".properties")
        }
        self.places = [self._places[".graph"]]
        self.size = self.places[0].size

    def _all_places(self) -> Sequence[Place]:
        return list(self._places.values())

    def _read(self, max_edges: int) -> Iterator[EdgeBlock]:
        yield from self._unread(self._lists(max_edges))

    def _lists(self, max_edges: int) -> Iterator[EdgeBlock]:
        from oocpr.sources.formats.bvgraph_lists import CUT_SHORT, NO_ROOM, WRONG, fill_block

        properties = _properties(self._places[".properties"])
        self.nodes = properties.number("nodes", MAX_NODES)
        arcs, window = properties.number("arcs"), properties.number("windowsize", 1 << 16)
        least_run = properties.number("minintervallength", MAX_NODES)
        zeta = properties.number("zetak", 60, least=1, missing=3)
        codes = properties.codes()
        self._read_labels()
        room = _ROOM
        self.reserve(_list_bytes(room, window), f"A window of {window:,} lists of {self.title}")
        lists, lengths = np.empty((window + 1, room), np.uint32), np.zeros(window + 1, np.int64)
        scratch = np.empty((2, room), np.uint32)
        at, state = np.zeros(1, np.int64), np.array([0, -1], np.int64)
        data, read, total = bytearray(), 0, 0
        with ByteStream(self.places[0]) as stream:
            while state[0] < self.nodes:
                src, dst = np.empty(max_edges, np.uint32), np.empty(max_edges, np.uint32)
                outcome, count = fill_block(
                    np.frombuffer(data, np.uint8), at, 8 * len(data), state, self.nodes, codes, zeta, window,
                    least_run, lists, lengths, scratch, src, dst,
                )  # fmt: skip
                if count:
                    total += count
                    self.position = min(stream.position, self.size or stream.position)
                    yield EdgeBlock(src[:count], dst[:count])
                if outcome == WRONG:
                    raise InputError(
                        f"{self.title}: the list of node {state[0]:,}, near bit {8 * read + int(at[0]):,}, "
                        "cannot be.",
                        "Fetch the file again, with the properties that belong to it.",
                    )
                if outcome == NO_ROOM:
                    # The longest list may be as long as the graph has nodes, but few graphs have any such.
                    wider = min(2 * room, self.nodes)
                    self.reserve(
                        _list_bytes(wider, window),
                        f"{self.title}: node {state[0]:,} with more than {room:,} successors",
                    )
                    lists = np.concatenate([lists, np.empty((window + 1, wider - room), np.uint32)], axis=1)
                    room, scratch = wider, np.empty((2, wider), np.uint32)
                if outcome == CUT_SHORT:
                    done = int(at[0]) // 8
                    data, read = data[done:], read + done
                    at[0] -= 8 * done
                    if not _more(stream, data):
                        raise InputError(
                            f"{self.title} ends in the middle of the list of node {state[0]:,} of "
                            f"{self.nodes:,}.",
                            "Fetch the file again, with the properties that belong to it.",
                        )
        if total != arcs:
            raise InputError(
                f"{self._places['.properties']} states {arcs:,} arcs, {self.title} holds {total:,}.",
                "Fetch the file again, with the properties that belong to it.",
            )


def _list_bytes(room: int, window: int) -> int:
    """Bytes of lists with so many successors each: those of a window, and two for what one is made of."""
    return 4 * room * (window + 3)


def _more(stream: Stream, data: bytearray) -> int:
    """Append some bytes; at least as many as are there, so that a long list is not read over and over."""
    more = bytearray(max(_CHUNK_BYTES, len(data)))
    with memoryview(more) as view:
        count = stream.readinto(view)
    data += more[:count]
    return count


def _beside(place: Place, name: str) -> Place:
    found = place.beside(name)
    if found is None:
        raise InputError(
            f"{place} has no {name} beside it.", "Give a .graph and its .properties in one folder."
        )
    return found


class _properties:  # noqa: N801 - used like a function
    """What a file of properties says.

    Parameters
    ----------
    place
        The file.
    """

    def __init__(self, place: Place) -> None:
        self._title = str(place)
        self._values: dict[str, str] = {}
        with ByteStream(place) as stream:
            lines = LineReader(stream)
            while (line := lines.peek()) is not None:
                key, equals, value = line.partition("=")
                if equals and key.strip() in _KEYS and not line.startswith(("#", "!")):
                    self._values[key.strip()] = value.strip()
                lines.drop()
        kind = self._values.get("graphclass", "")
        if not kind.endswith("webgraph.BVGraph"):
            raise InputError(
                f"{self._title} describes a graph of the class {kind or 'missing'!r}.",
                "Convert it to BVGraph with WebGraph.",
            )
        if self._values.get("endianness", "big") != "big" or self._values.get("version", "0") != "0":
            raise InputError(
                f"{self._title} describes another version of BVGraph.", "Convert it to version 0, big-endian."
            )

    def number(self, key: str, most: int = 2**62, least: int = 0, missing: int | None = None) -> int:
        """Give a whole number from `least` to `most`."""
        value = self._values.get(key, "" if missing is None else str(missing))
        [number] = whole_numbers(value, 1) or [-1]
        if not least <= number <= most:
            raise InputError(
                f"{self._title}: {key} is {value[:40] or 'missing'!r}, "
                f"not a number from {least} to {most:,}.",
                "Fetch the file again.",
            )
        return number

    def codes(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Give the codes of a list's parts, in the order of `_FLAGS`."""
        codes = [_CODES.index(name) for name in _USUAL]
        for flag in self._values.get("compressionflags", "").split("|"):
            part, _, code = flag.strip().rpartition("_")
            if not flag.strip():
                continue
            if part not in _FLAGS or code not in _CODES:
                raise InputError(
                    f"{self._title}: the compression flag {flag.strip()[:40]!r} is not known.",
                    f"Write the graph with codes of: {', '.join(_CODES)}.",
                )
            codes[_FLAGS.index(part)] = _CODES.index(code)
        return np.array(codes, np.int64)
