"""An import by workers: its steps, which worker does what, and what is done again if one is lost.

This process sees counts and sizes only; see `oocpr.ingest.shuffle` for the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import numpy as np

from oocpr.errors import DoesNotFitError, LostError
from oocpr.ingest import budget
from oocpr.ingest.nodes.dictionary import too_many_nodes, words_of
from oocpr.ingest.nodes.hashing import draw_points
from oocpr.ingest.numbering import (
    FINDING_BYTES,
    Held,
    NodeHoldings,
    count_names,
    find_nodes,
    number_names,
    sort_records,
)
from oocpr.ingest.shuffle import (
    Buckets,
    Cut,
    Graph,
    NodeIds,
    ReadPart,
    RowRange,
    Span,
    add_weights,
    count_ids,
    count_out_degrees,
    describe,
    number_part,
    order_part,
    read_part,
    sample_part,
    sort_range,
    write_range,
    write_rows,
)
from oocpr.ingest.spill.partition import plan_buckets
from oocpr.sources.base import BaseSource
from oocpr.sources.block import MAX_NODES
from oocpr.store.atomic import NewFolder
from oocpr.store.format import ATTRIBUTES_KEY
from oocpr.units import format_count

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from oocpr.ingest.numbering import NameCount, SortedPart
    from oocpr.ingest.worker import Holder
    from oocpr.progress import Progress
    from oocpr.sources.block import Source
    from oocpr.store.format import Attributes
    from oocpr.store.writer import WrittenTile

_AGAIN = "Give workers a higher memory limit, or fewer threads."

_SORTING_BYTES = 32
"""Bytes of an edge of a range: as it came, and as it is sorted."""

_ALL_KEYS = 2**64 - 1
"""Above the first key of every bucket."""

SAMPLE_ROWS = 2048
"""Rows that all parts together show before they are read, and from which buckets follow."""

RANGES_PER_THREAD, MIN_RANGES = 4, 64
"""Ranges of rows, or of words, for each thread of a worker, and at least of rows, unless very small."""

PARTS_PER_THREAD = 4
"""Parts of the source for each thread of a worker: a worker that is lost costs one of them per thread."""


class Call(NamedTuple):
    """A step: what to call with a `Worker` and arguments, on one worker, or on any for None."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    holder: Holder | None = None


class Workers(Protocol):
    """Processes that carry out steps of an import."""

    def living(self) -> Sequence[Holder]:
        """Give the workers there are, one at least; LostError if there are none."""

    def run(
        self, calls: Mapping[int, Call], on_done: Callable[[int], None] = lambda _: None
    ) -> Mapping[int, tuple[Holder, Any]]:
        """Carry out steps; returns where, and what they returned. Those that were lost are missing.

        `on_done` gets the number of each that ends. Raises what a step raises, and LostError if steps were
        lost too often.
        """


class OneProcessError(Exception):
    """One process has to import a source; the reason is the predicate of a sentence."""


class Numbering:
    """How workers number the nodes of a source; see `oocpr.ingest.numbering` for the steps.

    `found` are the nodes, once they are numbered, and `parts` has samples of their rows.
    """

    def __init__(self, workers: Workers, carry_out: Callable[..., bool]) -> None:
        self._workers, self._carry_out = workers, carry_out
        self.found: NodeHoldings | None = None
        self._lows = np.zeros(1, np.uint64)
        self._assigned: dict[int, Holder] = {}
        self._sorted: dict[int, tuple[Holder, SortedPart]] = {}
        self._checksums: dict[int, int] = {}
        self._nodes: dict[int, tuple[Holder, int]] = {}
        self._names: dict[int, tuple[Holder, NameCount]] = {}
        self._named: dict[int, tuple[Holder, None]] = {}
        self.parts: dict[int, tuple[Holder, NDArray[np.uint32]]] = {}

    @property
    def done(self) -> tuple[dict[int, tuple[Holder, Any]], ...]:
        """What was done, by part or range, and who has it."""
        return self._sorted, self._nodes, self._names, self._named, self.parts

    def run(
        self,
        read: Mapping[int, tuple[Holder, ReadPart]],
        sample: NDArray[np.uint32],
        room: int,
        threads: int,
        title: str,
    ) -> bool:
        """Number the nodes of all parts; returns whether all steps are done.

        `sample` are ids of nodes, and each of the `threads` of all workers may take `room` bytes. Raises
        OneProcessError if some have names and others numbers, and InputError if there are too many.
        """
        parts = {number: (has, part) for number, (has, part) in read.items() if part.edges or part.listed}
        kinds = {bool(part.named) for _, part in parts.values()}
        if len(kinds) > 1:
            raise OneProcessError("has nodes with numbers and nodes with names")
        (named,) = kinds
        if not self._sorted:
            words = [part.words for _, part in parts.values() if part.words is not None]
            seen = np.unique(np.concatenate([*words, words_of(sample.astype(np.int64))]))
            records = 2 * sum(part.edges for _, part in parts.values())
            # Half of the room: ranges are as large as each other by a sample only.
            needed = 2 * FINDING_BYTES * records // room
            wanted = min(max(RANGES_PER_THREAD * threads, needed), seen.size)
            self._lows = seen[np.arange(wanted) * seen.size // wanted]
            self._lows[0] = 0
        edges = {number: part.edges for number, (_, part) in parts.items()}
        calls = {
            number: Call(sort_records, (number, self._lows), holder)
            for number, (holder, _) in parts.items()
            if number not in self._sorted
        }
        if not self._carry_out(self._sorted, calls, "looking up", edges, "edges"):
            return False
        self._check_records()
        if not self._find_nodes(named=named):
            return False
        counted = [count for _, (_, count) in sorted(self._nodes.items())]
        nodes = sum(counted)
        if nodes > MAX_NODES:
            raise too_many_nodes(title, nodes)
        befores = [0] * len(counted) if named else list(accumulate(counted, initial=0))
        if named and not self._count_names():
            return False
        sampled = max(1, SAMPLE_ROWS // len(parts))
        calls = {
            number: Call(number_part, (number, self._ranges_of(number, befores), nodes, sampled), holder)
            for number, (holder, _) in parts.items()
            if number not in self.parts
        }
        if not self._carry_out(self.parts, calls, "numbering", edges, "edges"):
            return False
        held = [
            Held(holder, number, count, before)
            for (number, (holder, count)), before in zip(sorted(self._nodes.items()), befores, strict=False)
        ]
        names = tuple((Held(has, number, 0), count) for number, (has, count) in sorted(self._names.items()))
        self.found = NodeHoldings(nodes, () if named else tuple(held), names)
        return True

    def _check_records(self) -> None:
        """Raise LostError for a part whose records are not those that it had before its worker was lost.

        What others know of these says only where they were; and which they are depends on the memory there.
        """
        for number, (_, part) in self._sorted.items():
            if self._checksums.setdefault(number, part.checksum) != part.checksum:
                raise LostError(
                    "a worker was lost, and what it had read came otherwise when it was read again.",
                    "Start the import again.",
                )

    def _counts(self) -> NDArray[np.int64]:
        """Records of each range, by parts."""
        return np.array([part.counts for _, (_, part) in sorted(self._sorted.items())])

    def _ranges_of(self, part: int, befores: Sequence[int]) -> list[Held]:
        """Where the records of a part are."""
        counts = self._sorted[part][1].counts
        return [
            Held(self._nodes[number][0], number, count, befores[number])
            for number, count in enumerate(counts.tolist())
            if count
        ]

    def _parts_of(self, number: int, befores: Mapping[int, int]) -> list[Held]:
        """Which parts have records of a range."""
        return [
            Held(holder, part, int(found.counts[number]), befores.get(part, 0))
            for part, (holder, found) in sorted(self._sorted.items())
            if found.counts[number]
        ]

    def _find_nodes(self, *, named: bool) -> bool:
        totals = self._counts().sum(axis=0).tolist()
        living = self._workers.living()
        calls = {}
        for number, end in enumerate(accumulate(totals)):
            if self._assigned.get(number) not in living:
                place = (2 * end - totals[number]) * len(living) // (2 * sum(totals))
                self._assigned[number] = living[min(place, len(living) - 1)]
            if number not in self._nodes:
                about = (number, self._parts_of(number, {}))
                calls[number] = Call(find_nodes, about, self._assigned[number])
        sizes = dict(enumerate(totals))
        return self._carry_out(self._nodes, calls, "looking up", sizes, "names" if named else "ids")

    def _count_names(self) -> bool:
        none = [0] * self._lows.size
        calls = {
            number: Call(count_names, (number, self._ranges_of(number, none)), holder)
            for number, (holder, _) in self._sorted.items()
            if number not in self._names
        }
        sizes = {number: int(part.counts.sum()) for number, (_, part) in self._sorted.items()}
        if not self._carry_out(self._names, calls, "numbering", sizes, "names"):
            return False
        numbers = sorted(self._names)
        befores = dict(
            zip(numbers, accumulate((self._names[k][1].names for k in numbers), initial=0), strict=False)
        )
        calls = {
            number: Call(number_names, (number, self._parts_of(number, befores)), holder)
            for number, (holder, _) in self._nodes.items()
            if number not in self._named
        }
        totals = dict(enumerate(self._counts().sum(axis=0).tolist()))
        return self._carry_out(self._named, calls, "numbering", totals, "names")


@dataclass
class ClusterImport:
    """An import by `workers` to a store at `path`; see `oocpr.ingest.build.build_store`.

    Nothing of `source` itself is read. Duplicate edges become `how`, see `duplicate_policy`; `merged` have
    become so before, and count as well. `check` is called before the store gets its name.
    """

    source: Source
    path: Path
    workers: Workers
    how: str | None
    order: str
    tile_edges: int | None
    overwrite: bool
    progress: Progress
    merged: int = 0
    check: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self._read: dict[int, tuple[Holder, ReadPart]] = {}
        self._ordered: dict[int, tuple[Holder, Buckets | None]] = {}
        self._assigned: dict[int, Holder] = {}
        self._sorted: dict[int, tuple[Holder, int]] = {}
        self._written: dict[int, tuple[Holder, tuple[list[WrittenTile], int]]] = {}
        self._nodes = self.source.nodes
        self._points = draw_points()
        self._numbering = Numbering(self.workers, self._carry_out)

    def run(self) -> Attributes:
        """Write the store, and remove what was written if that fails.

        Raises OneProcessError if workers cannot import the source, and LostError if too many are lost.
        """
        if self.order not in ("keep", "degree"):
            raise OneProcessError(f"is to be ordered by {self.order}")
        new = NewFolder(self.path, overwrite=self.overwrite, marker=ATTRIBUTES_KEY)
        self._folder = new.temporary.absolute()
        try:
            self._prepare()
            while (made := self._attempt()) is None:
                continue
            self.check()
            new.publish()
        finally:
            new.discard()
        return made

    def _attempt(self) -> Attributes | None:
        """Carry out the steps that are left; None if workers were lost."""
        living = set(self.workers.living())
        kept: Sequence[dict[int, tuple[Holder, Any]]]
        kept = (self._read, *self._numbering.done, self._ordered, self._sorted, self._written)
        for done in kept:
            for number in [number for number, (holder, _) in done.items() if holder not in living]:
                del done[number]
        numbered = (self._read_all, self._number_nodes, self._count_nodes)
        steps = (*numbered, self._order_all, self._sort_all, self._write_all)
        return self._finish() if all(step() for step in steps) else None

    def _all(self, calls: dict[int, Call]) -> list[Any]:
        """Carry out steps that keep nothing, whoever is lost meanwhile."""
        done: dict[int, Any] = {}
        while len(done) < len(calls):
            left = {number: call for number, call in calls.items() if number not in done}
            done.update(self.workers.run(left))
        return [done[number][1] for number in calls]

    def _prepare(self) -> None:
        """Divide the source, and look at the first edges of each part."""
        facts: list[tuple[int, int]] = []
        while not facts:
            asked = {k: Call(describe, (), holder) for k, holder in enumerate(self.workers.living())}
            facts = [about for _, about in self.workers.run(asked).values()]
        self._room, self._threads = min(room for room, _ in facts), sum(threads for _, threads in facts)
        source = self.source
        count = PARTS_PER_THREAD * self._threads
        self._parts = source.parts(count) if isinstance(source, BaseSource) else []
        if not self._parts:
            raise OneProcessError("cannot be divided among workers")
        self._block_edges = budget.block_edges(self._room, weighted=self.source.weighted)
        each = -(-SAMPLE_ROWS // len(self._parts))
        samples = self._all({k: Call(sample_part, (part, each)) for k, part in enumerate(self._parts)})
        self._sample = np.concatenate(samples)

    def _carry_out(
        self, done: dict[int, Any], calls: dict[int, Call], stage: str, sizes: Mapping[int, int], unit: str
    ) -> bool:
        """Carry out the steps that are not `done`; returns whether all are now."""
        finished, total = sum(sizes[number] for number in done), sum(sizes.values())

        def note(number: int) -> None:
            nonlocal finished
            finished += sizes[number]
            self.progress(stage, finished, total, unit)

        self.progress(stage, finished, total, unit)
        done.update(self.workers.run(calls, note))
        return len(done) == len(sizes)

    def _read_all(self) -> bool:
        todo = [number for number in range(len(self._parts)) if number not in self._read]
        about = (self._sample, self._block_edges, self._points)
        calls = {number: Call(read_part, (number, self._parts[number], *about)) for number in todo}
        sizes = {number: part.size or 1 for number, part in enumerate(self._parts)}
        return self._carry_out(self._read, calls, "reading", sizes, "B")

    def _holders(self) -> tuple[Holder, ...]:
        """Who has read some part."""
        return tuple({holder: None for holder, _ in self._read.values()})

    def _number_nodes(self) -> bool:
        """Number the nodes, if they have names or ids that 32 bits do not hold."""
        self._given = sum(part.edges for _, part in self._read.values())
        if not self._given:
            raise OneProcessError("has no edges")
        self._tile_edges = self.tile_edges or budget.tile_edges_for(self._given + self.merged)
        if not any(part.words is not None for _, part in self._read.values()):
            return True
        return self._numbering.run(self._read, self._sample, self._room, self._threads, self.source.name)

    def _count_nodes(self) -> bool:
        """Count nodes and edges, and find out what all steps from here on have to know."""
        largest = max(part.largest for _, part in self._read.values())
        ids = NodeIds(self._holders(), largest)
        numbered = self._numbering.found
        if numbered is not None:
            self._nodes = numbered.nodes
        if self._nodes is None:
            got = self.workers.run({0: Call(count_ids, (ids,))})
            if not got:
                return False
            self._nodes = int(got[0][1])
        weighted = self.how is not None
        room = self._room - 2 * self._nodes - 4 * self._nodes // self._threads
        space = room // (_SORTING_BYTES + 2 * budget.WEIGHT_BYTES * weighted)
        if space < budget.MIN_BUCKET_EDGES:
            raise DoesNotFitError(
                f"a thread of a worker has room for {format_count(max(0, space))} edges beside "
                f"{format_count(self._nodes)} nodes, {format_count(budget.MIN_BUCKET_EDGES)} are needed.",
                _AGAIN,
            )
        gaps = numbered is None and self.source.nodes is None and largest >= self._nodes
        self._graph = Graph(
            self._nodes, self.how, self.source.weighted, ids if gaps else None, space, self.order, numbered
        )
        self._buckets = {number: (holder, part.buckets) for number, (holder, part) in self._read.items()}
        return True

    def _order_all(self) -> bool:
        """Partition the parts by their rows in the order, if they are not yet."""
        if self.order == "keep" and self._graph.numbered is None:
            return True
        parts = {number: (has, part) for number, (has, part) in self._read.items() if part.edges}
        if self.order != "keep":
            of = {holder: [k for k, (has, _) in parts.items() if has == holder] for holder in self._holders()}
            counts = {
                k: Call(count_out_degrees, (self._graph, some), holder)
                for k, (holder, some) in enumerate(of.items())
            }
            if len(self.workers.run(counts)) < len(counts):
                return False
            self._graph = replace(self._graph, counted=tuple(of))
        graph, sample = self._graph, self._sample
        if graph.numbered is not None:
            sample = np.concatenate([rows for _, (_, rows) in sorted(self._numbering.parts.items())])
        calls = {
            number: Call(order_part, (graph, number, sample, self._block_edges), holder)
            for number, (holder, _) in parts.items()
            if number not in self._ordered
        }
        sizes = {number: part.edges for number, (_, part) in parts.items()}
        if not self._carry_out(self._ordered, calls, "partitioning", sizes, "edges"):
            return False
        made = {number: (has, found) for number, (has, found) in self._ordered.items() if found is not None}
        if made:
            self._buckets, self._graph = made, replace(graph, relabelled=True)
        return True

    def _ranges(self) -> list[RowRange]:
        """Divide the buckets into ranges that a thread can sort, some for each thread."""
        counts: dict[int, int] = {}
        for _, buckets in self._buckets.values():
            for low, count in zip(buckets.lows.tolist(), buckets.counts.tolist(), strict=True):
                counts[low] = counts.get(low, 0) + count
        lows = sorted(counts)
        wanted = max(
            budget.MIN_BUCKET_EDGES, self._given // max(RANGES_PER_THREAD * self._threads, MIN_RANGES)
        )
        starts = plan_buckets([counts[low] for low in lows], min(wanted, self._graph.space))
        return [
            RowRange(
                number,
                lows[first],
                lows[stop] if stop < len(lows) else _ALL_KEYS,
                sum(counts[low] for low in lows[first:stop]),
            )
            for number, (first, stop) in enumerate(pairwise([*starts, len(lows)]))
        ]

    def _sort_all(self) -> bool:
        ranges, living = self._ranges(), self.workers.living()
        calls = {}
        for each, end in zip(ranges, accumulate(each.given for each in ranges), strict=True):
            if self._assigned.get(each.number) not in living:
                # Neighbours together, so that few edges of tiles have to be sent.
                place = (2 * end - each.given) * len(living) // (2 * self._given)
                self._assigned[each.number] = living[place]
            if each.number in self._sorted:
                continue
            parts = []
            for number, (has, buckets) in sorted(self._buckets.items()):
                here = (buckets.lows >= np.uint64(each.low)) & (buckets.lows < np.uint64(each.high))
                if count := int(buckets.counts[here].sum()):
                    parts.append((has, number, count))
            calls[each.number] = Call(sort_range, (self._graph, each, parts), self._assigned[each.number])
        sizes = {each.number: each.given for each in ranges}
        return self._carry_out(self._sorted, calls, "sorting", sizes, "edges")

    def _write_all(self) -> bool:
        counts = [self._sorted[number][1] for number in range(len(self._sorted))]
        bounds = pairwise(accumulate(counts, initial=0))
        self._spans = [Span(k, self._sorted[k][0], *bound) for k, bound in enumerate(bounds)]
        cuts = [
            Cut.of(self._spans, k, self._tile_edges) for k in range(len(counts)) if k not in self._written
        ]
        calls = {
            cut.number: Call(write_range, (self._graph, cut, self._folder), self._spans[cut.number].holder)
            for cut in cuts
        }
        return self._carry_out(self._written, calls, "writing", dict(enumerate(counts)), "edges")

    def _finish(self) -> Attributes | None:
        """Add up weights and write what belongs to the rows; None if a worker was lost."""
        sums: Holder | None = None
        if self.how is not None:
            for holder, spans in groupby(self._spans, lambda span: span.holder):
                numbers = [span.number for span in spans]
                if not self.workers.run({0: Call(add_weights, (self._graph, numbers, sums), holder)}):
                    return None
                sums = holder
        written = [self._written[number] for number in range(len(self._written))]
        facts = {
            "source": self.source.name,
            "direction": getattr(self.source, "direction", None),
            "tile_edges": self._tile_edges,
            "duplicates": self._given + self.merged - self._spans[-1].stop,
            "local_edges": sum(local_edges for _, (_, local_edges) in written),
        }
        place = (self.path.absolute(), self._folder, self.overwrite)
        ranges = [(holder, tiles) for holder, (tiles, _) in written]
        got = self.workers.run({0: Call(write_rows, (self._graph, place, ranges, sums, facts))})
        if not got:
            return None
        parts = [self._read[number][1] for number in range(len(self._read))]
        # As where one process reads: the first of a kind of notice stands for all.
        self.source.notices += next((part.notices for part in parts if part.notices), [])
        if isinstance(self.source, BaseSource):
            self.source.unused_columns += dict.fromkeys(
                name for part in parts for name in part.unused_columns
            )
        return cast("Attributes", got[0][1])
