"""Ids and names that are no row numbers: what each block has, and the nodes of all blocks together.

In each block, ids and names are numbered as they first occur, and the block's edges are written with these
numbers. What each number stands for is a record; records of all blocks lie one after the other. Ids are
64-bit words whose order is that of the ids, names are fingerprints with their text.

In the end all records become one dictionary. Ids are numbered in their order, names as they first occur in
the source. Different words are found by the external sort that edges use; then records pass once for every
part of the list that fits in memory, mostly once. Names whose words are equal and whose second words are not
make the words be drawn again, from both. At last the keys of edges get numbers of nodes.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numba import types
from numpy.typing import NDArray

from oocpr.errors import InputError
from oocpr.ingest.budget import SLACK_BYTES, require
from oocpr.ingest.nodes.hashing import NOT_FOUND, Fingerprints, HashIndex, factorize, slots_for
from oocpr.ingest.nodes.strings import INT64S, TEXT, StringFile
from oocpr.ingest.rows import sorted_pieces, unique_sorted
from oocpr.ingest.spill.files import SpillDir, SpillFile, require_disk
from oocpr.ingest.spill.partition import KEY_BYTES, KeyRun, record_bytes, relabel_keys
from oocpr.jit import entry
from oocpr.sources.block import MAX_NODES, Source, Strings
from oocpr.system import resident_after_trim, spans

if TYPE_CHECKING:
    from oocpr.progress import Progress

WORD_BYTES = 8

_SIGN = np.uint64(2**63)
"""What turns ids into words of the same order, and back."""


def words_of(ids: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Turn ids into words of the same order."""
    return ids.view(np.uint64) ^ _SIGN


def ids_of(words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Turn words into ids again."""
    return (words ^ _SIGN).view(np.int64)


@entry((TEXT, TEXT, types.boolean[::1], INT64S, INT64S, types.uint8[::1]))
def _copy(one, two, of_two, starts, ends, out):  # type: ignore[no-untyped-def]
    at = 0
    for k in range(starts.size):
        for i in range(starts[k], ends[k]):
            out[at] = two[i] if of_two[k] else one[i]
            at += 1


class BlockDictionary:
    """Records of all blocks, on disk: a word each, and of names a second word and the text.

    `key` is secret, for tables of the words; `points` are those of the fingerprints.
    """

    def __init__(self, spill_dir: SpillDir, *, named: bool, points: tuple[int, int] | None = None) -> None:
        self.count = 0
        self.key = secrets.randbits(64)
        self.words = spill_dir.file()
        self.checks = spill_dir.file() if named else None
        self.names = StringFile(spill_dir) if named else None
        self._fingerprints = Fingerprints(points)

    @property
    def named(self) -> bool:
        """Whether nodes have names."""
        return self.names is not None

    def number_ids(self, ids: NDArray[np.int64]) -> NDArray[np.uint32]:
        """Number the ids of a block, uint32, adding a record for each different one."""
        words = words_of(ids)
        numbers, firsts = factorize(words, None, self.key)
        self._append(words[firsts], None)
        return numbers

    def number_names(self, src: Strings, dst: Strings | None = None) -> NDArray[np.uint32]:
        """Number the names of a block, adding a record for each different one.

        They are of both ends of its edges, numbered in turn; or one list of names alone.
        """
        assert self.checks is not None
        assert self.names is not None
        sides = [src] if dst is None else [src, dst]
        words, checks = (np.empty(len(sides) * src.starts.size, np.uint64) for _ in range(2))
        for k, side in enumerate(sides):
            self._fingerprints.of(side, words[k :: len(sides)], checks[k :: len(sides)])
        numbers, firsts = factorize(words, checks, self.key)
        self._append(words[firsts], checks[firsts])

        places, of_two = firsts // len(sides), firsts % len(sides) == 1
        starts, ends = src.starts[places], src.ends[places]
        if dst is not None:
            starts = np.where(of_two, dst.starts[places], starts)
            ends = np.where(of_two, dst.ends[places], ends)
        text = np.empty(int((ends - starts).sum()), np.uint8)
        _copy(src.text, sides[-1].text, of_two, starts, ends, text)
        self.names.append(text, (ends - starts).astype(np.uint32))
        return numbers

    def _append(self, words: NDArray[np.uint64], checks: NDArray[np.uint64] | None) -> None:
        self.words.write(WORD_BYTES * self.count, words)
        if self.checks is not None and checks is not None:
            self.checks.write(WORD_BYTES * self.count, checks)
        self.count += words.size

    def close(self) -> None:
        """Give the disk space back."""
        for file in (self.words, self.checks, self.names):
            if file is not None:
                file.close()


_CHUNK = 1 << 16
_NAME_BYTES = 9
"""Beside its place, a name in memory has a second word, and whether it was seen."""


class _Parts:
    """The ascending different words of records, in parts that fit in `space` bytes.

    Each part has `largest` words, the last one excepted; `starts` has the number of the first of each.
    """

    def __init__(self, known: SpillFile, nodes: int, records: BlockDictionary, space: int) -> None:
        per_word = HashIndex.BYTES_PER_WORD + (_NAME_BYTES if records.named else 0)
        self._known = known
        self._records = records.count
        self._key = records.key
        self._nodes = nodes
        self.largest = min(nodes, max(1, space // per_word))
        self.starts = range(0, nodes, self.largest)

    def __iter__(self) -> Iterator[tuple[int, HashIndex]]:
        """Yield the number of the first word of each part, and where its words are."""
        words, slots = np.empty(self.largest, np.uint64), np.empty(slots_for(self.largest), np.uint32)
        for first in self.starts:
            here = words[: self._nodes - first]
            self._known.read(WORD_BYTES * first, here)
            yield first, HashIndex(here, self._key, slots)

    def progress(self, first: int, done: int) -> tuple[int, int]:
        """Records looked up in all, and to look up, when the part of word `first` has done `done`."""
        return first // self.largest * self._records + done, len(self.starts) * self._records


def _chunks(records: BlockDictionary) -> Iterator[tuple[int, NDArray[np.uint64]]]:
    """Yield the words of records, some at a time, with the number of the first of them."""
    for first, stop in spans(records.count, _CHUNK):
        yield first, records.words.read_array(np.uint64, first, stop - first)


def _find_places(
    records: BlockDictionary, parts: _Parts, numbers: SpillFile, on_progress: Callable[[int, int], None]
) -> bool:
    """Write the place of each record's word in the list; False if two names have the same word."""
    checks_of = np.empty(parts.largest if records.named else 0, np.uint64)
    seen = np.empty(checks_of.size, np.bool_)
    for first, places in parts:
        seen[:] = False
        for start, words in _chunks(records):
            found = places.of(words)
            if records.checks is not None:
                checks = records.checks.read_array(np.uint64, start, words.size)
                if not _agree(found, checks, seen, checks_of):
                    return False
            elsewhere = found == NOT_FOUND
            found += np.uint32(first)
            if first and elsewhere.any():
                found[elsewhere] = numbers.read_array(np.uint32, start, words.size)[elsewhere]
            numbers.write(4 * start, found)
            on_progress(*parts.progress(first, start + words.size))
    return True


@entry("boolean(uint32[::1], uint64[::1], boolean[::1], uint64[::1])")
def _agree(found, checks, seen, checks_of):  # type: ignore[no-untyped-def]
    """Whether names at the same place have the same second word."""
    for i in range(found.size):
        place = found[i]
        if place == NOT_FOUND:
            continue
        if not seen[place]:
            seen[place] = True
            checks_of[place] = checks[i]
        elif checks_of[place] != checks[i]:
            return False
    return True


def _redraw_words(records: BlockDictionary) -> None:
    """Make new words out of both words of each name."""
    assert records.checks is not None
    one, two = (np.uint64(secrets.randbits(64) | 1) for _ in range(2))
    for first, words in _chunks(records):
        checks = records.checks.read_array(np.uint64, first, words.size)
        mixed = words * one ^ checks * two
        records.words.write(WORD_BYTES * first, mixed ^ (mixed >> np.uint64(32)))


def _names_in_source_order(
    records: BlockDictionary, numbers: SpillFile, nodes: int, given: int, spill_dir: SpillDir
) -> tuple[StringFile, tuple[int, int] | None]:
    """Write each name where it first occurs, and replace places in `numbers` by numbers in that order.

    Gives one name per node, and number and record of the first node whose name was not `given`.
    """
    assert records.names is not None
    names = StringFile(spill_dir, "nodes")
    number_of = np.full(nodes, NOT_FOUND)
    stranger = None
    record = 0
    for text, lengths in records.names.pieces():
        found, fresh = numbers.read_array(np.uint32, record, lengths.size), np.zeros(lengths.size, np.bool_)
        _number_by_first_seen(found, number_of, names.count, fresh)
        numbers.write(4 * record, found)
        skipped = max(0, given - record)
        if stranger is None and fresh[skipped:].any():
            place = skipped + int(fresh[skipped:].argmax())
            stranger = names.count + int(fresh[:place].sum()), record + place
        names.append(text[np.repeat(fresh, lengths)], lengths[fresh])
        record += lengths.size
    return names, stranger


@entry("void(uint32[::1], uint32[::1], int64, boolean[::1])")
def _number_by_first_seen(found, number_of, count, fresh):  # type: ignore[no-untyped-def]
    """Replace places by numbers, `count` and on for those that are new, which are marked as `fresh`."""
    for i in range(found.size):
        place = found[i]
        if number_of[place] == NOT_FOUND:
            number_of[place] = count
            count += 1
            fresh[i] = True
        found[i] = number_of[place]


_MIN_SPACE = 1 << 20


@dataclass(frozen=True)
class Dictionary:
    """The nodes behind records.

    `numbers` has the node of each record, uint32. Of ids, `words` has the word of each node, ascending; else
    `names` has its name. The records gave the first `given` nodes as such; `stranger` is the first record to
    name another node, None if there is none.
    """

    nodes: int
    numbers: SpillFile
    words: SpillFile | None
    names: StringFile | None
    given: int
    stranger: int | None

    def ids(self, first: int, count: int) -> NDArray[np.int64]:
        """Ids of `count` nodes from node `first` on."""
        assert self.words is not None
        return ids_of(self.words.read_array(np.uint64, first, count))

    def name_of(self, node: int) -> str:
        """Name of a node, found by reading those before it."""
        assert self.names is not None
        for text, lengths in self.names.pieces():
            if node < lengths.size:
                start = int(lengths[:node].sum(dtype=np.int64))
                return text[start : start + int(lengths[node])].tobytes().decode(errors="replace")
            node -= lengths.size
        raise IndexError(node)


def too_many_nodes(title: str, nodes: int) -> InputError:
    """Build the error for a graph that is too large."""
    return InputError(
        f"{title} has {nodes:,} nodes, more than {MAX_NODES:,}.",
        "Split the graph, or drop nodes without edges.",
    )


def build_dictionary(
    records: BlockDictionary,
    given: int,
    spill_dir: SpillDir,
    memory: int,
    title: str,
    on_progress: Callable[[int, int], None],
) -> Dictionary:
    """Find the nodes behind records, one at least, and give the disk space of these back.

    The first `given` records were given as nodes, not as ends of edges. `on_progress` gets what has been
    looked up, and all there is. Raises DoesNotFitError if `memory` or the disk is too small, InputError if
    there are too many nodes.
    """
    what = f"Looking up the nodes of {title}"
    numbers = spill_dir.file()
    require_disk(spill_dir.folder, (4 + WORD_BYTES) * records.count)
    while True:
        known, nodes = _different(records, spill_dir, _space(memory, what))
        if nodes > MAX_NODES:
            raise too_many_nodes(title, nodes)
        if _find_places(records, _Parts(known, nodes, records, _space(memory, what)), numbers, on_progress):
            break
        _redraw_words(records)
        known.close()
    if records.names is None:
        records.close()
        return Dictionary(nodes, numbers, known, None, nodes, None)
    known.close()
    require(resident_after_trim() + 4 * nodes + SLACK_BYTES, memory, what)
    names, stranger = _names_in_source_order(records, numbers, nodes, given, spill_dir)
    records.close()
    return Dictionary(nodes, numbers, None, names, *((nodes, None) if stranger is None else stranger))


def _space(memory: int, what: str) -> int:
    held = resident_after_trim() + SLACK_BYTES
    require(held + _MIN_SPACE, memory, what)
    return memory - held


def _different(records: BlockDictionary, spill_dir: SpillDir, space: int) -> tuple[SpillFile, int]:
    """Write the different words in ascending order; returns the file and how many there are."""
    run = KeyRun.of_words(records.words, 0, records.count, 0, 1 << 64)
    buffer = np.empty(max(2, min(space // WORD_BYTES, records.count)), np.uint64)
    known, count = spill_dir.file(name=None if records.named else "ids"), 0
    for words, _ in sorted_pieces(run, buffer):
        different = words[: unique_sorted(words)]
        known.write(WORD_BYTES * count, different)
        count += different.size
    return known, count


_BLOCK_EDGES = 1 << 16


@dataclass(frozen=True)
class Segment:
    """Neighbouring edges whose keys have numbers of neighbouring records, counted from the first of these.

    `edge` is the place of the first edge in the file; there are no edges if nodes are given as such, and no
    records while the keys still have ids.
    """

    edge: int
    edges: int
    record: int
    records: int


def resolve_edges(
    source: Source,
    file: SpillFile,
    segments: Sequence[Segment],
    records: BlockDictionary,
    listed: int,
    spill_dir: SpillDir,
    memory: int,
    progress: Progress,
) -> Dictionary:
    """Replace the keys of a file, of records or ids as segments say, by keys of nodes.

    `listed` nodes were given by the source as such, duplicates included. Raises DoesNotFitError if memory or
    the disk is too small, InputError if there are too many nodes, or one that the source cannot have.
    """
    given = sum(segment.records for segment in segments if not segment.edges)
    size = record_bytes(weighted=source.weighted)
    segments = list(recorded(file, size, segments, records))
    unit = "names" if records.named else "ids"
    dictionary = build_dictionary(
        records,
        given,
        spill_dir,
        memory,
        source.name,
        lambda done, total: progress("looking up", done, total, unit),
    )
    if source.closed is not None:
        _check_closed(source, file, size, segments, dictionary, listed)
    total = segments[-1].edge + segments[-1].edges
    for done, _ in numbered(file, size, segments, dictionary.numbers):
        progress("numbering", done, total, "edges")
    dictionary.numbers.close()
    return dictionary


def numbered(
    file: SpillFile, size: int, segments: Sequence[Segment], numbers: SpillFile
) -> Iterator[tuple[int, NDArray[np.uint64]]]:
    """Replace keys of records by keys of nodes, whose `numbers` each record has; yields edges done, and keys.

    Edges have `size` bytes in the file.
    """
    for segment in segments:
        here = numbers.read_array(np.uint32, segment.record, segment.records)
        for at, words in _blocks(file, size, segment):
            keys = np.ascontiguousarray(words[:, 0])
            relabel_keys(keys, here)
            words[:, 0] = keys
            file.write(at * size, words.reshape(-1))
            yield at + keys.size, keys


def _blocks(file: SpillFile, size: int, segment: Segment) -> Iterator[tuple[int, NDArray[np.uint64]]]:
    """Yield the edges of a segment, some at a time, with the place of the first of them.

    They are words: keys in the first column and the bits of weights, if there are any, in the second.
    """
    for at in range(segment.edge, segment.edge + segment.edges, _BLOCK_EDGES):
        count = min(_BLOCK_EDGES, segment.edge + segment.edges - at)
        words = np.empty((count, size // KEY_BYTES), np.uint64)
        file.read(at * size, words.reshape(-1))
        yield at, words


def recorded(
    file: SpillFile, size: int, segments: Sequence[Segment], records: BlockDictionary
) -> Iterator[Segment]:
    """Replace segments whose keys have ids by segments whose keys have numbers of records.

    Edges have `size` bytes in the file.
    """
    for segment in segments:
        if segment.records:
            yield segment
            continue
        for at, words in _blocks(file, size, segment):
            first, keys = records.count, words[:, 0]
            sources, destinations = keys & np.uint64(0xFFFFFFFF), keys >> np.uint64(32)
            numbers = records.number_ids(np.concatenate([sources, destinations]).view(np.int64))
            words[:, 0] = pack_keys(numbers[: keys.size], numbers[keys.size :])
            file.write(at * size, words.reshape(-1))
            yield Segment(at, keys.size, first, records.count - first)


def list_given(given: SpillFile, records: BlockDictionary, edge: int) -> Iterator[Segment]:
    """Add records of ids, uint32, that were given as such behind so many edges; yields their segments."""
    for start in range(0, given.size // 4, _BLOCK_EDGES):
        first, count = records.count, min(_BLOCK_EDGES, given.size // 4 - start)
        records.number_ids(given.read_array(np.uint32, start, count).astype(np.int64))
        yield Segment(edge, 0, first, records.count - first)


def pack_keys(sources: NDArray[np.uint32], destinations: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """Make keys, destination << 32 | source."""
    keys = destinations.astype(np.uint64)
    keys <<= np.uint64(32)
    keys |= sources
    return keys


def _check_closed(
    source: Source,
    file: SpillFile,
    size: int,
    segments: Sequence[Segment],
    dictionary: Dictionary,
    listed: int,
) -> None:
    """Refuse nodes that are listed twice, and edges with nodes that are not listed."""
    if dictionary.given < listed:
        raise InputError(
            f"{source.closed} holds {listed - dictionary.given:,} names twice.",
            "Give each node a name of its own.",
        )
    if dictionary.stranger is None:
        return
    [segment] = [s for s in segments if s.record <= dictionary.stranger < s.record + s.records]
    number = np.uint64(dictionary.stranger - segment.record)
    for at, words in _blocks(file, size, segment):
        keys = words[:, 0]
        found = np.flatnonzero((keys >> np.uint64(32) == number) | (keys & np.uint64(0xFFFFFFFF) == number))
        if found.size:
            name = dictionary.name_of(dictionary.given)
            raise InputError(
                f"{source.locate(at + int(found[0]))}: {name[:60]!r} is not in {source.closed}.",
                "Add the name there, or leave the labels out.",
            )
