"""How workers number nodes that have names, or ids that 32 bits do not hold.

Each part of the source has records, see `oocpr.ingest.nodes.dictionary`, and all records are divided into
ranges of words. A worker gets the records of a range from all parts, and finds the nodes among them. Ids are
numbered in their order, so it knows their numbers once it is known how many nodes the ranges before have.
Names are numbered as they first occur in the source: their parts count those that are in no part before, and
tell the ranges their numbers. In the end each part gets numbers for all its records::

    sort_records --words--> find_nodes --counts----------------------------------------> number_nodes
                                |                                                             |
                                +--first records--> count_names --numbers--> number_names ----+
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from oocpr.ingest.budget import SLACK_BYTES, require
from oocpr.ingest.nodes.dictionary import (
    WORD_BYTES,
    BlockDictionary,
    Segment,
    ids_of,
    list_given,
    numbered,
    recorded,
)
from oocpr.ingest.nodes.strings import MAX_PIECE_NAMES, StringFile
from oocpr.ingest.read import prefetch, split_runs, write_words
from oocpr.ingest.rows import sort_pairs
from oocpr.ingest.spill.files import SpillDir, SpillFile
from oocpr.ingest.spill.partition import KeyRun, record_bytes
from oocpr.ingest.worker import Holder, part_name, row_spans, sent_pieces
from oocpr.system import resident

if TYPE_CHECKING:
    from oocpr.ingest.nodes.strings import Piece
    from oocpr.ingest.worker import Worker

_SORTED_RECORDS = 1 << 20
"""Records of a part that are sorted at a time."""

FINDING_BYTES = 64
"""Bytes of a record of a range while nodes are found: words, places, and what sorting them takes."""


def recorded_name(part: int) -> str:
    """Name under which a worker keeps a `RecordedPart`."""
    return f"records {part}"


def _range(number: int) -> str:
    return f"nodes {number}"


def _numbers(number: int) -> str:
    return f"numbers {number}"


def _names(part: int) -> str:
    return f"names {part}"


class Held(NamedTuple):
    """Records that a part has in a range: who holds one or the other, its number, and how many they are."""

    holder: Holder
    number: int
    records: int
    before: int = 0  # nodes with lower numbers than all of the other, or all that it names first


class RecordedPart:
    """The edges of a part as keys of records, or of ids, and these; see `oocpr.ingest.read.EdgeSpiller`."""

    def __init__(
        self,
        file: SpillFile,
        edges: int,
        segments: Sequence[Segment],
        records: BlockDictionary,
        *,
        weighted: bool,
    ) -> None:
        self.file, self.edges, self.segments, self.records = file, edges, segments, records
        self.record_bytes, self.weighted = record_bytes(weighted=weighted), weighted

    @classmethod
    def of_runs(cls, runs: Sequence[KeyRun], given: SpillFile | None, folder: SpillDir) -> RecordedPart:
        """Take a part whose edges were partitioned by ids of 32 bits, and of which some were `given`."""
        weighted = any(run.extents.weighted for run in runs)
        edges, file = sum(run.count for run in runs), folder.file()
        write_words(runs, file, weighted=weighted)
        records = BlockDictionary(folder, named=False)
        segments = [Segment(0, edges, 0, 0)]
        if given is not None:
            segments += list_given(given, records, edges)
        return cls(file, edges, segments, records, weighted=weighted)

    def words(self, count: int) -> NDArray[np.uint64]:
        """Give words of about `count` records, so far as edges have any."""
        step = max(1, self.records.count // count)
        firsts = range(0, self.records.count, step)
        return np.concatenate(
            [np.empty(0, np.uint64), *(self.records.words.read_array(np.uint64, k, 1) for k in firsts)]
        )


class SortedRecords:
    """The records of a part in pieces, each sorted by their words and divided into ranges from `lows` on."""

    def __init__(self, part: RecordedPart, lows: NDArray[np.uint64], folder: SpillDir) -> None:
        self._file, self._named = folder.file(), part.records.named
        self._pieces: list[tuple[int, int, NDArray[np.int64]]] = []  # place in the file, records, cuts
        self.checksum = 0
        # Ids that were read before the first that 32 bits do not hold are keys still.
        part.segments = list(recorded(part.file, part.record_bytes, part.segments, part.records))
        records = part.records
        for first in range(0, records.count, _SORTED_RECORDS):
            count = min(_SORTED_RECORDS, records.count - first)
            words = records.words.read_array(np.uint64, first, count)
            places = np.arange(count, dtype=np.uint64)
            sort_pairs(words, places)
            order, at = places.astype(np.int64), self._file.size
            cuts = np.append(np.searchsorted(words, lows), count)
            self._pieces.append((at, count, cuts))
            self.checksum = crc32(order.data, crc32(words.data, self.checksum))
            self._file.write(at, words)
            self._file.write(at + WORD_BYTES * count, (order + first).astype(np.uint32))
            if records.checks is not None:
                checks = records.checks.read_array(np.uint64, first, count)
                self._file.write(self._file.size, checks[order])

    @property
    def counts(self) -> NDArray[np.int64]:
        """Records of each range."""
        counts: NDArray[np.int64] = np.sum([np.diff(cuts) for _, _, cuts in self._pieces], axis=0)
        return counts

    def _slices(self, number: int, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
        before = 0
        for at, count, cuts in self._pieces:
            low, high = int(cuts[number]), int(cuts[number + 1])
            first, end = max(low, low + start - before), min(high, low + stop - before)
            before += high - low
            if first < end:
                yield at, count, first, end - first

    def _read(self, number: int, start: int, stop: int, dtype: Any, ahead: int) -> NDArray[Any]:
        parts = [np.empty(0, dtype)]
        for at, count, first, size in self._slices(number, start, stop):
            parts.append(np.empty(size, dtype))
            self._file.read(at + ahead * count + parts[-1].itemsize * first, parts[-1])
        return np.concatenate(parts)

    def words_of(self, number: int, start: int, stop: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Give words, and second words of names, of records `start` to `stop` - 1 of a range."""
        words = self._read(number, start, stop, np.uint64, 0)
        if not self._named:
            return words, np.empty(0, np.uint64)
        return words, self._read(number, start, stop, np.uint64, WORD_BYTES + 4)

    def numbers_of(self, number: int, start: int, stop: int) -> NDArray[np.uint32]:
        """Give the numbers, in their part, of records `start` to `stop` - 1 of a range."""
        return self._read(number, start, stop, np.uint32, WORD_BYTES)


def _sorted(part: int) -> str:
    return f"sorted records {part}"


class SortedPart(NamedTuple):
    """How many records of a part are in each range, and a checksum of all in their order."""

    counts: NDArray[np.int64]
    checksum: int


def sort_records(here: Worker, part: int, lows: NDArray[np.uint64]) -> SortedPart:
    """Sort the records of a part into ranges, which begin with `lows`."""

    def make() -> SortedRecords:
        folder = SpillDir(here.folder)
        found = here.kept.get(recorded_name(part))
        if found is None:
            read = here.kept[part_name(part)]
            found = RecordedPart.of_runs(read.runs, read.given, folder)
            here.kept[recorded_name(part)] = found
        return SortedRecords(found, lows, folder)

    made = here.shared(_sorted(part), make)
    return SortedPart(made.counts, made.checksum)


class NodeRange:
    """The nodes of a range of words, and which of them each record of it is.

    `starts` says where the records of each part begin. Of names, a record may be the first of its node.
    """

    def __init__(self, folder: SpillDir, starts: dict[int, int]) -> None:
        self.starts, self.nodes = starts, 0
        self.words, self.members, self.firsts = (folder.file() for _ in range(3))

    def first_of(self, part: int, start: int, stop: int) -> NDArray[np.bool_]:
        """Whether records `start` to `stop` - 1 of a part are the first of their nodes."""
        return self.firsts.read_array(np.bool_, self.starts[part] + start, stop - start)

    def words_of(self, first: int, stop: int) -> NDArray[np.uint64]:
        """Give the words of nodes `first` to `stop` - 1."""
        return self.words.read_array(np.uint64, first, stop - first)

    def members_of(self, part: int, start: int, stop: int) -> NDArray[np.uint32]:
        """Give the nodes, counted in this range, of records `start` to `stop` - 1 of a part."""
        return self.members.read_array(np.uint32, self.starts[part] + start, stop - start)


def find_nodes(here: Worker, number: int, parts: Sequence[Held]) -> int:
    """Find the nodes among the records of a range, which `parts` have; returns how many there are."""
    return here.shared(_range(number), lambda: _find_nodes(here, number, parts)).nodes


def _find_nodes(here: Worker, number: int, parts: Sequence[Held]) -> NodeRange:
    total = sum(part.records for part in parts)
    require(resident() + FINDING_BYTES * total + SLACK_BYTES, here.memory, "Numbering nodes")
    words, checks = np.empty(total, np.uint64), np.empty(total, np.uint64)
    named, starts = False, dict[int, int]()

    def pieces() -> Iterator[tuple[NDArray[np.uint64], NDArray[np.uint64]]]:
        for holder, part, count, _ in parts:
            for wanted in sent_pieces(0, count):
                yield here.fetch(holder, _sorted(part), "words_of", number, *wanted)

    at = 0
    for part in parts:
        starts[part.number] = at
        at += part.records
    at = 0
    with prefetch(pieces()) as fetched:
        for some, more in fetched:
            words[at : at + some.size] = some
            checks[at : at + more.size] = more
            named, at = more.size > 0, at + some.size
    # Equal ones stay as they come, in the order of the source.
    if named:
        order = np.lexsort((checks, words))
        words, checks = words[order], checks[order]
    else:
        places = np.arange(total, dtype=np.uint64)
        sort_pairs(words, places)
        order = places.view(np.int64)
    fresh = np.ones(total, np.bool_)
    fresh[1:] = words[1:] != words[:-1]
    if named:
        fresh[1:] |= checks[1:] != checks[:-1]
    found = NodeRange(SpillDir(here.folder), starts)
    found.nodes = int(fresh.sum())
    members, first = np.empty(total, np.uint32), np.zeros(total, np.bool_)
    members[order] = np.cumsum(fresh, dtype=np.uint32) - np.uint32(1)
    first[order[fresh]] = True
    found.words.write(0, words[fresh])
    found.members.write(0, members)
    found.firsts.write(0, first)
    return found


class PartNames:
    """The names that a part has and no part before it, in the order of the source.

    Of each range there are the numbers, among these, of the records that are the first of their nodes.
    """

    def __init__(self, folder: SpillDir) -> None:
        self.names, self._ranks = StringFile(folder), folder.file()
        self._begins: dict[int, int] = {}
        self._starts: list[int] = []

    def add(self, text: NDArray[np.uint8], lengths: NDArray[np.uint32], first: NDArray[np.bool_]) -> None:
        """Add those names of records that come `first`."""
        self.names.append(text[np.repeat(first, lengths)], lengths[first])

    def finish(self, ranks: Iterator[tuple[int, NDArray[np.uint32]]]) -> None:
        """Take the numbers of each range, once all names are there."""
        for number, some in ranks:
            self._begins[number] = self._ranks.size // 4
            self._ranks.write(self._ranks.size, some)
        self._starts = self.names.starts()

    def ranks_of(self, number: int, start: int, stop: int) -> NDArray[np.uint32]:
        """Give the numbers `start` to `stop` - 1 of a range."""
        return self._ranks.read_array(np.uint32, self._begins[number] + start, stop - start)

    def piece(self, number: int) -> Piece:
        """Give names from name `number` times MAX_PIECE_NAMES on, as many."""
        first = number * MAX_PIECE_NAMES
        count = min(MAX_PIECE_NAMES, self.names.count - first)
        return self.names.some(first, count, self._starts[number])


class NameCount(NamedTuple):
    """Names that a part has and no part before it, and their bytes."""

    names: int
    size: int


def count_names(here: Worker, part: int, ranges: Sequence[Held]) -> NameCount:
    """Take the names that a part has and no part before it; `ranges` have its records."""

    def make() -> PartNames:
        folder = SpillDir(here.folder)
        records, ordered = here.kept[recorded_name(part)].records, here.kept[_sorted(part)]
        require(resident() + 9 * records.count + SLACK_BYTES, here.memory, "Numbering names")
        first = np.empty(records.count, np.bool_)
        for _, numbers, some in _of_ranges(here, part, ranges, _range, "first_of"):
            first[numbers] = some
        found, done = PartNames(folder), 0
        for text, lengths in records.names.pieces():
            found.add(text, lengths, first[done : done + lengths.size])
            done += lengths.size
        ranks = np.cumsum(first, dtype=np.uint32) - np.uint32(1)

        def ranks_of_ranges() -> Iterator[tuple[int, NDArray[np.uint32]]]:
            for held in ranges:
                of_range = ordered.numbers_of(held.number, 0, held.records)
                yield held.number, ranks[of_range[first[of_range]]]

        found.finish(ranks_of_ranges())
        return found

    names = here.shared(_names(part), make).names
    return NameCount(names.count, names.size)


def _of_ranges(
    here: Worker, part: int, ranges: Sequence[Held], name: Callable[[int], str], method: str
) -> Iterator[tuple[Held, NDArray[np.uint32], NDArray[Any]]]:
    """Yield of each range numbers of records of a part, and what a method of what is kept says of them."""
    ordered = here.kept[_sorted(part)]
    for held in ranges:
        for start, stop in sent_pieces(0, held.records):
            got = here.fetch(held.holder, name(held.number), method, part, start, stop)
            yield held, ordered.numbers_of(held.number, start, stop), got


def number_names(here: Worker, number: int, parts: Sequence[Held]) -> None:
    """Number the nodes of a range, whose names `parts` have counted."""

    def make() -> NodeNumbers:
        found: NodeRange = here.kept[_range(number)]
        require(resident() + 4 * found.nodes + SLACK_BYTES, here.memory, "Numbering names")
        numbers = np.empty(found.nodes, np.uint32)
        for holder, part, count, before in parts:
            done = 0
            for start, stop in sent_pieces(0, count):
                members = found.members_of(part, start, stop)[found.first_of(part, start, stop)]
                wanted = (done, done + members.size)
                ranks = here.fetch(holder, _names(part), "ranks_of", number, *wanted)
                numbers[members] = ranks + np.uint32(before)
                done += members.size
        return NodeNumbers(found, numbers, SpillDir(here.folder).file())

    here.shared(_numbers(number), make)


class NodeNumbers:
    """The numbers of the nodes of a range that have names."""

    def __init__(self, nodes: NodeRange, numbers: NDArray[np.uint32], file: SpillFile) -> None:
        self._nodes, self._file, self._count = nodes, file, numbers.size
        file.write(0, numbers)

    def numbers_of(self, part: int, start: int, stop: int) -> NDArray[np.uint32]:
        """Give the numbers of the nodes of records `start` to `stop` - 1 of a part."""
        members = self._nodes.members_of(part, start, stop)
        found: NDArray[np.uint32] = self._file.read_array(np.uint32, 0, self._count)[members]
        return found


def number_nodes(
    here: Worker, part: int, ranges: Sequence[Held], nodes: int, sampled: int
) -> tuple[list[KeyRun], NDArray[np.uint32]]:
    """Number the nodes of a part's edges; returns runs of their keys, and about `sampled` rows."""
    return here.shared(f"numbered {part}", lambda: _number_nodes(here, part, ranges, nodes, sampled))


def _number_nodes(
    here: Worker, part: int, ranges: Sequence[Held], nodes: int, sampled: int
) -> tuple[list[KeyRun], NDArray[np.uint32]]:
    found: RecordedPart = here.kept[recorded_name(part)]
    require(resident() + 4 * found.records.count + SLACK_BYTES, here.memory, "Numbering nodes")
    numbers = np.empty(found.records.count, np.uint32)
    kept, method = (_numbers, "numbers_of") if found.records.named else (_range, "members_of")
    for held, records, some in _of_ranges(here, part, ranges, kept, method):
        numbers[records] = some + np.uint32(held.before)
    file = SpillDir(here.folder).file()
    file.write(0, numbers)
    rows, step = [np.empty(0, np.uint32)], max(1, found.edges // sampled)
    for _, keys in numbered(found.file, found.record_bytes, found.segments, file):
        rows.append((keys[::step] >> np.uint64(32)).astype(np.uint32))
    file.close()
    return split_runs(found.file, found.edges, nodes, weighted=found.weighted), np.concatenate(rows)


@dataclass(frozen=True)
class NodeHoldings:
    """The nodes of a graph that were numbered: who has their words by ranges, or their names by parts."""

    nodes: int
    words: tuple[Held, ...] = ()
    named: tuple[tuple[Held, NameCount], ...] = ()

    def opened(self, here: Worker) -> FetchedNodes:
        """Give the nodes, fetched by a worker when they are asked for."""
        return FetchedNodes(here, self)


class FetchedNodes:
    """The nodes of a graph that workers have numbered; see `oocpr.ingest.nodes.row_names.NodeList`."""

    def __init__(self, here: Worker, holdings: NodeHoldings) -> None:
        self.nodes, self._here, self._holdings = holdings.nodes, here, holdings

    @cached_property
    def names(self) -> FetchedNames | None:
        """Names, if there are any."""
        named = self._holdings.named
        return FetchedNames(self._here, named) if named else None

    def ids(self, first: int, count: int) -> NDArray[np.int64]:
        """Give the ids of `count` nodes from node `first` on."""
        out = np.empty(count, np.uint64)
        for held in self._holdings.words:
            start, stop = max(first, held.before), min(first + count, held.before + held.records)
            for piece in row_spans(max(0, stop - start)):
                wanted = (start + piece.start - held.before, start + piece.stop - held.before)
                got = self._here.fetch(held.holder, _range(held.number), "words_of", *wanted)
                out[start + piece.start - first : start + piece.stop - first] = got
        return ids_of(out)


class FetchedNames:
    """The names of nodes that workers have."""

    def __init__(self, here: Worker, named: Sequence[tuple[Held, NameCount]]) -> None:
        self._here, self._named = here, named
        self.count = sum(count.names for _, count in named)
        self.size = sum(count.size for _, count in named)

    def pieces(self) -> Iterator[Piece]:
        """Yield all in order, some at a time: their bytes, and the length of each."""
        for held, count in self._named:
            for number in range(-(-count.names // MAX_PIECE_NAMES)):
                yield self._here.fetch(held.holder, _names(held.number), "piece", number)
