"""Edges that are kept with numbers of records become edges between the nodes 0 .. nodes - 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numba
import numpy as np

from oocpr.errors import InputError
from oocpr.ingest.nodes.dictionary import build_dictionary
from oocpr.ingest.nodes.string_file import INT64S, UINT32S
from oocpr.ingest.spill.keys import KEY_BYTES, record_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from oocpr.ingest.nodes.block_dictionary import BlockDictionary
    from oocpr.ingest.nodes.dictionary import Dictionary
    from oocpr.ingest.spill.files import SpillDir, SpillFile
    from oocpr.progress import Progress
    from oocpr.sources.block import Source

_BLOCK_EDGES = 1 << 16


@dataclass(frozen=True)
class Segment:
    """Neighbouring edges whose keys have numbers of neighbouring records, counted from the first of these.

    Parameters
    ----------
    edge, edges
        Place of the first edge in the file, and how many there are; none where nodes are given as such.
    record, records
        The first record, and how many there are; none while the keys still have ids.
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
    workspace: SpillDir,
    memory: int,
    progress: Progress,
    *,
    weighted: bool = False,
) -> Dictionary:
    """Replace the keys of a file by those of nodes.

    Parameters
    ----------
    source
        Where the edges are from.
    file
        Their keys, head << 32 | tail, uint64.
    segments
        How the keys are to be taken.
    records
        What they stand for.
    listed
        How many nodes the source has given as such, repeats included.
    workspace
        Gives temporary files.
    memory
        Most bytes that the process may hold.
    progress
        Told the stages "looking up" and "numbering".
    weighted
        Whether a weight follows each key.

    Raises
    ------
    DoesNotFitError
        Where memory or the disk is too small.
    InputError
        Where there are too many nodes, or one that the source cannot have.
    """
    given = sum(segment.records for segment in segments if not segment.edges)
    size = record_bytes(weighted=weighted)
    segments = list(_recorded(file, size, segments, records))
    unit = "names" if records.named else "ids"
    dictionary = build_dictionary(
        records,
        given,
        workspace,
        memory,
        source.name,
        lambda done, total: progress("looking up", done, total, unit),
    )
    if source.closed is not None:
        _check_closed(source, file, size, segments, dictionary, listed)
    total = segments[-1].edge + segments[-1].edges
    for segment in segments:
        numbers = dictionary.arrow_numbers(segment.record, segment.records)
        for at, words in _blocks(file, size, segment):
            keys = np.ascontiguousarray(words[:, 0])
            _translate(keys, numbers)
            words[:, 0] = keys
            file.write(at * size, words.reshape(-1))
            progress("numbering", at + keys.size, total, "edges")
    dictionary.numbers.close()
    return dictionary


def _blocks(file: SpillFile, size: int, segment: Segment) -> Iterator[tuple[int, NDArray[np.uint64]]]:
    """Yield the edges of a segment, some at a time, with the place of the first of them.

    They are words: keys in the first column and, where there are any, the bits of weights in the second.
    """
    for at in range(segment.edge, segment.edge + segment.edges, _BLOCK_EDGES):
        count = min(_BLOCK_EDGES, segment.edge + segment.edges - at)
        words = np.empty((count, size // KEY_BYTES), np.uint64)
        file.read(at * size, words.reshape(-1))
        yield at, words


def _recorded(
    file: SpillFile, size: int, segments: Sequence[Segment], records: BlockDictionary
) -> Iterator[Segment]:
    """Replace segments whose keys have ids by segments whose keys have numbers of records."""
    for segment in segments:
        if segment.records:
            yield segment
            continue
        for at, words in _blocks(file, size, segment):
            first, keys = records.count, words[:, 0]
            tails, heads = keys & np.uint64(0xFFFFFFFF), keys >> np.uint64(32)
            numbers = records.number_ids(np.concatenate([tails, heads]).view(np.int64))
            words[:, 0] = pack_keys(numbers[: keys.size], numbers[keys.size :])
            file.write(at * size, words.reshape(-1))
            yield Segment(at, keys.size, first, records.count - first)


def pack_keys(tails: NDArray[Any], heads: NDArray[Any]) -> NDArray[np.uint64]:
    """Join ids below 2^32, shape (k,), to keys, head << 32 | tail.

    Examples
    --------
    >>> pack_keys(np.array([1]), np.array([2])).tolist() == [2 << 32 | 1]
    True
    """
    keys = np.empty(len(heads), np.uint64)
    if tails.dtype.type in (np.uint32, np.int64) and tails.dtype == heads.dtype:
        _join(tails, heads, keys)
    else:
        _join(tails.astype(np.int64), heads.astype(np.int64), keys)
    return keys


@numba.njit([(kind, kind, numba.uint64[::1]) for kind in (UINT32S, INT64S)], cache=True, nogil=True)
def _join(tails, heads, keys):  # type: ignore[no-untyped-def]
    for i in range(keys.size):
        keys[i] = np.uint64(heads[i]) << np.uint64(32) | np.uint64(tails[i])


@numba.njit("void(uint64[::1], uint32[::1])", cache=True, nogil=True)
def _translate(keys, numbers):  # type: ignore[no-untyped-def]
    for i in range(keys.size):
        head = np.uint64(numbers[keys[i] >> np.uint64(32)])
        tail = np.uint64(numbers[keys[i] & np.uint64(0xFFFFFFFF)])
        keys[i] = head << np.uint64(32) | tail


def _check_closed(
    source: Source,
    file: SpillFile,
    size: int,
    segments: Sequence[Segment],
    dictionary: Dictionary,
    listed: int,
) -> None:
    """Refuse nodes that are listed twice, and links with nodes that are not listed."""
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
                f"{source.place(at + int(found[0]))}: {name[:60]!r} is not in {source.closed}.",
                "Add the name there, or leave the labels out.",
            )
