"""All records become one dictionary: which nodes there are, and the number of the node behind each record.

Ids are numbered in their order, names as they first occur in the source. Different words are found by the
external sort that edges use; then records pass once for every part of the list that fits in memory, mostly
once. Names whose words are equal and whose second words are not make the words be drawn again, from both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from oocpr.errors import InputError
from oocpr.ingest.budget import SLACK_BYTES, require
from oocpr.ingest.nodes.block_dictionary import WORD_BYTES, words_to_ids
from oocpr.ingest.nodes.dictionary_parts import Parts, chunks, write_found
from oocpr.ingest.nodes.first_seen import names_in_source_order, number_by_first_seen, redraw_words
from oocpr.ingest.sort.rows import sorted_pieces, unique_sorted
from oocpr.ingest.spill.files import require_disk
from oocpr.ingest.spill.keys import KeyRun
from oocpr.sources.block import MAX_NODES
from oocpr.system import resident, resident_after_trim

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from oocpr.ingest.nodes.block_dictionary import BlockDictionary
    from oocpr.ingest.nodes.string_file import StringFile
    from oocpr.ingest.spill.files import SpillDir, SpillFile

_LEAST_SPACE = 1 << 20


@dataclass(frozen=True)
class Dictionary:
    """The nodes behind records.

    Parameters
    ----------
    nodes
        How many there are.
    numbers
        Number of the node of each record, uint32.
    words
        Of ids the word of each node, ascending, uint64; None for names.
    names
        The name of each node; None for ids.
    given
        How many of the nodes the records given as such name.
    stranger
        The first record that names another node, None where there is none.
    """

    nodes: int
    numbers: SpillFile
    words: SpillFile | None
    names: StringFile | None
    given: int
    stranger: int | None

    def arrow_numbers(self, first: int, count: int) -> NDArray[np.uint32]:
        """Numbers of the nodes of `count` records from record `first` on."""
        numbers = np.empty(count, np.uint32)
        self.numbers.read(4 * first, numbers)
        return numbers

    def ids(self, first: int, count: int) -> NDArray[np.int64]:
        """Ids of `count` nodes from node `first` on."""
        assert self.words is not None
        words = np.empty(count, np.uint64)
        self.words.read(WORD_BYTES * first, words)
        return words_to_ids(words)

    def name_of(self, node: int) -> str:
        """Name of a node, found by reading those before it."""
        assert self.names is not None
        for text, lengths in self.names.pieces():
            if node < lengths.size:
                start = int(lengths[:node].sum(dtype=np.int64))
                return text[start : start + int(lengths[node])].tobytes().decode(errors="replace")
            node -= lengths.size
        raise IndexError(node)


def build_dictionary(
    records: BlockDictionary,
    given: int,
    workspace: SpillDir,
    memory: int,
    title: str,
    told: Callable[[int, int], None],
) -> Dictionary:
    """Find the nodes behind records, and give the disk space of these back.

    Parameters
    ----------
    records
        At least one.
    given
        How many of the first records were given as nodes, not as ends of links.
    workspace
        Gives temporary files.
    memory
        Most bytes that the process may hold.
    title
        What the source is called.
    told
        Called with what has been looked up so far, and with all there is to look up.

    Raises
    ------
    DoesNotFitError
        Where memory or the disk is too small.
    InputError
        Where there are too many nodes.
    """
    what = f"Looking up the nodes of {title}"
    numbers = workspace.file()
    require_disk(workspace.folder, (4 + 2 * WORD_BYTES) * records.count)
    while True:
        known, nodes = _different(records, workspace, _space(memory, what))
        if nodes > MAX_NODES:
            raise InputError(
                f"{title} has {nodes:,} nodes, more than {MAX_NODES:,}.",
                "Split the graph, or drop nodes without links.",
            )
        parts = Parts(known, nodes, records, _space(memory, what))
        if records.names is None:
            _number_ids(records, parts, numbers, told)
            records.close()
            return Dictionary(nodes, numbers, known, None, nodes, None)
        firsts = workspace.file()
        if number_by_first_seen(records, parts, numbers, firsts, told):
            break
        redraw_words(records)
        known.close()
        firsts.close()
    known.close()
    require(resident() + 4 * nodes + SLACK_BYTES, memory, what)
    names, rows, stranger = names_in_source_order(
        records.names, firsts, parts.starts, nodes, given, workspace
    )
    if rows is not None:
        for first, old in chunks(numbers, records.count, np.dtype(np.uint32)):
            numbers.write(4 * first, rows[old])
    firsts.close()
    records.close()
    known_given = nodes if stranger is None else int(stranger[0])
    return Dictionary(nodes, numbers, None, names, known_given, None if stranger is None else stranger[1])


def _space(memory: int, what: str) -> int:
    held = resident_after_trim() + SLACK_BYTES
    require(held + _LEAST_SPACE, memory, what)
    return memory - held


def _different(records: BlockDictionary, workspace: SpillDir, space: int) -> tuple[SpillFile, int]:
    """Write the different words in ascending order; returns the file and how many there are."""
    run = KeyRun.of_words(records.words, 0, records.count, 0, 1 << 64)
    buffer = np.empty(max(2, min(space // WORD_BYTES, records.count)), np.uint64)
    known, count = workspace.file(name=None if records.named else "ids"), 0
    for words, _ in sorted_pieces(run, buffer):
        different = words[: unique_sorted(words)]
        known.write(WORD_BYTES * count, different)
        count += different.size
    return known, count


def _number_ids(
    records: BlockDictionary, parts: Parts, numbers: SpillFile, told: Callable[[int, int], None]
) -> None:
    for first, places in parts:
        for start, words in chunks(records.words, records.count, np.dtype(np.uint64)):
            write_found(numbers, start, first, places.of(words))
            told(*parts.progress(first, start + words.size))
