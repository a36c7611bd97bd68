"""An import that keeps what is finished, so that another process can go on from there."""

from __future__ import annotations

import json
import shutil
import time
from contextlib import closing, suppress
from dataclasses import astuple
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np

from oocpr.errors import UsageError
from oocpr.ingest.nodes.dictionary import Dictionary, Segment
from oocpr.ingest.nodes.strings import StringFile
from oocpr.ingest.order.permutation import Order
from oocpr.ingest.read import EDGES, KEYS, SpilledEdges, split_runs
from oocpr.ingest.resume.files import KeptScratch, KeptWorkspace, drop_all_but, sound
from oocpr.ingest.resume.journal import Journal
from oocpr.ingest.resume.leftovers import JOURNAL, STORE, folder_of, partial_of, size_of
from oocpr.ingest.resume.state import VERSION, Checkpoint, difference, finished, usable
from oocpr.ingest.resume.tiles import Taken, take_tiles
from oocpr.ingest.spill.files import making_files
from oocpr.ingest.spill.partition import Partitioner
from oocpr.sources.block import ResumableSource
from oocpr.store.atomic import check_destination, remove_replaced, root_checksum
from oocpr.store.writer import GraphWriter
from oocpr.units import format_bytes

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Generator, Mapping, Sequence
    from pathlib import Path

    from oocpr.ingest.read import EdgeSpiller
    from oocpr.ingest.resume.state import Finished
    from oocpr.ingest.sort.rows import EdgeCounter
    from oocpr.ingest.sort.weights import OutWeights
    from oocpr.ingest.spill.files import SpillDir
    from oocpr.sources.block import Block, Source

EACH_SECONDS = 2.0
"""Time between two notes of how far reading is; for each, blocks that are in work have to be waited for."""


class Kept:
    """An import that another process can go on with, or that goes on with what another has left.

    Leaving it with an error keeps all that is finished, and adds a note to the error that says so.

    Parameters
    ----------
    source
        What is imported.
    path, tmp, overwrite
        As for `NothingKept`.
    options
        What else the bytes of the store depend on, by the names of the options.
    tell
        Told what was found.

    Raises
    ------
    UsageError
        Where the source cannot be read again, what was left is of another import, or in use.
    """

    def __init__(
        self,
        source: Source,
        path: Path,
        tmp: str | os.PathLike[str] | None,
        *,
        overwrite: bool,
        options: Mapping[str, Any],
        tell: Callable[[str], None],
    ) -> None:
        known = source.identity() if isinstance(source, ResumableSource) else None
        if known is None:
            raise UsageError(
                f"An import of {source.name} cannot be resumed: nobody can tell whether it has changed.",
                "Give files, or leave resume=True out.",
            )
        wanted = {"version": VERSION, "output": str(path.absolute()), **options, "source": known}
        self._path = path
        self._overwrite = overwrite
        self._weighted = source.weighted
        self._folder, self._partial = folder_of(path, tmp), partial_of(path, tmp)
        if not (self._folder / JOURNAL).is_file():
            # Whoever ended behind its last step but one has left an empty folder.
            with suppress(OSError):
                self._folder.rmdir()
            check_destination(path, overwrite=overwrite)
        with making_files(self._folder.parent):
            self._folder.mkdir(parents=tmp is None, exist_ok=True)
        self._journal = Journal(self._folder / JOURNAL)
        try:
            self._take_up(json.loads(json.dumps(wanted)), tell)
        except BaseException:
            self._journal.close()
            raise
        self._workspace = KeptWorkspace(self._folder, self._done.files)
        self._noted = time.monotonic() - EACH_SECONDS
        self._blocks = self._segments = 0
        self._names = set(self._done.files)

    def _take_up(self, wanted: dict[str, Any], tell: Callable[[str], None]) -> None:
        """Find out what can be used, and leave no more than that."""
        events = self._journal.events
        reason = difference(events[0]["import"], wanted) if events else None
        if reason is not None:
            raise UsageError(
                f"The import that {self._folder} is left of cannot go on: {reason}.",
                f"Give it what it was given, or begin again: rm -r {self._folder}",
            )
        found = bool(events)
        self._journal.cut(self._sound(finished(events)) if found else 0)
        self._done = finished(self._journal.events)
        self.whole = self._published()
        if len(events) > 1:
            tell(f"Going on with an import that was interrupted: {self._done}.")
        elif found:
            tell("Nothing that was finished is left to resume: the import starts from the beginning.")
        else:
            tell("Nothing to resume: the import starts from the beginning.")
        if not events:
            shutil.rmtree(self._partial, ignore_errors=True)
            self._journal.add({"import": wanted})
        files = {f"{name}.{generation}" for name, (generation, *_) in self._done.files.items()}
        drop_all_but(self._folder, {*files, JOURNAL, STORE})

    def _sound(self, done: Finished) -> int:
        """Count the events that can be relied on."""
        events = self._journal.events
        paths = {name: self._folder / f"{name}.{files[0]}" for name, files in done.files.items()}
        if done.numbered is not None or done.dealt is not None:
            # These were on the disk before their event was written.
            there = all(
                paths[name].is_file() and paths[name].stat().st_size >= size
                for name, (_, size) in done.files.items()
            )
            return len(events) if there else 0
        # Files that the last checkpoint does not need may be gone.
        names = {name for at in done.checkpoints for name in at.files}
        intact = {
            name: [name in paths and sound(paths[name], at.pieces.get(name, ())) for at in done.checkpoints]
            for name in names
        }
        count = usable(done.checkpoints, intact)
        return len(events) if count == len(done.checkpoints) else 1 + count

    def _published(self) -> bool:
        """Find out whether the store had got its name when the process ended."""
        whole = self._done.whole
        if whole is None or self._partial.exists() or root_checksum(self._path) != whole:
            return False
        remove_replaced(self._path)
        return True

    def writer(self) -> GraphWriter:
        """Begin the store, or go on with it."""
        return GraphWriter(self._path, overwrite=self._overwrite, kept=self._partial, note=self._journal.add)

    def workspace(self) -> SpillDir:
        """Begin the temporary files, or go on with them."""
        return self._workspace

    def begin(self, source: Source, reader: EdgeSpiller) -> bool:
        """Take up what was read before; returns whether there is more to read."""
        done = self._done
        if not done.checkpoints:
            return True
        at = done.checkpoints[-1]
        if done.known is None:
            assert isinstance(source, ResumableSource)
            source.skip_to(at.mark)
            source.nodes = at.nodes
        else:
            _settle_again(source, done.known)
        blocks = (block for each in done.checkpoints if each.dealt for block in each.dealt["blocks"])
        segments = [Segment(*segment) for each in done.checkpoints for segment in each.segments]
        self._segments = len(segments)
        reader.restore(at, blocks, segments)
        self._blocks = 0 if reader.dealer is None else reader.dealer.blocks
        if done.known is None:
            return True
        self._workspace.freeze()
        return False

    def took(self, reader: EdgeSpiller, mark: dict[str, Any] | None) -> None:
        """Take note of a block, behind which `mark` leads."""
        if mark is None or time.monotonic() - self._noted < EACH_SECONDS:
            return
        self._noted = time.monotonic()
        checkpoint = self._checkpoint(reader, mark)
        self._journal.add(checkpoint.event())
        if not checkpoint.files.keys() >= self._names:
            self._workspace.drop_others(checkpoint.files, (JOURNAL, STORE))
        self._names = set(checkpoint.files)

    def _checkpoint(self, reader: EdgeSpiller, mark: dict[str, Any]) -> Checkpoint:
        # What is in work is not finished yet.
        reader.finish()
        records, dealer = reader.records, reader.dealer
        dealt = None if dealer is None else dealer.state(self._blocks)
        self._blocks = 0 if dealer is None else dealer.blocks
        segments, self._segments = reader.segments[self._segments :], len(reader.segments)
        return Checkpoint(
            edges=reader.edges,
            listed=reader.listed,
            largest=reader.largest if reader.ids is None else max(reader.largest, reader.ids.largest),
            nodes=reader.nodes,
            mark=mark,
            block_edges=reader.block_edges,
            records=None if records is None else records.count,
            points=list(records.points) if records is not None and records.named else None,
            files=self._workspace.files(),
            pieces=self._workspace.pieces(),
            dealt=dealt,
            segments=[list(astuple(segment)) for segment in segments],
        )

    def read(self, source: Source, reader: EdgeSpiller) -> None:
        """Take note that there is no more to read."""
        known = {
            "closed": source.closed,
            "notices": list(source.notices),
        }
        self._journal.add(self._checkpoint(reader, {}).event(known), durable=True)
        self._workspace.freeze()

    def numbered(self, spilled: SpilledEdges) -> None:
        """Take note that keys have numbers of nodes."""
        about, names = _about(spilled)
        assert isinstance(spilled.file, KeptScratch)
        self._settled({"numbered": about}, [spilled.file.name, *names])

    def dealt(self, spilled: SpilledEdges, order: Order, dealer: Partitioner) -> None:
        """Take note that edges lie in buckets, in the order of the rows."""
        about, names = _about(spilled)
        rows = 0
        if order.node_ids is not None:
            rows = order.node_ids.size
            self._workspace.file(name="rows").write(0, order.node_ids)
            names.append("rows")
        ordered = {"name": order.name, "reason": order.reason}
        event = {"dealt": dealer.state(), "spilled": about, "rows": rows, "order": ordered}
        self._settled(event, ["dealt", *names])

    def _settled(self, event: dict[str, Any], names: Sequence[str]) -> None:
        """Take note of files that are all that is needed from here on."""
        files = self._workspace.settled(names)
        self._journal.add({**event, "files": files}, durable=True)
        self._workspace.drop_others(files, (JOURNAL, STORE))

    def spilled(self, source: Source) -> SpilledEdges | None:
        """Give what was read and numbered before, where nodes were."""
        done = self._done
        if done.dealt is not None:
            about = done.dealt["spilled"]
        elif done.numbered is not None:
            about = done.numbered["numbered"]
        else:
            return None
        assert done.known is not None
        _settle_again(source, done.known)
        space, nodes = self._workspace, about["nodes"]
        dictionary = None
        if about["names"] is not None:
            names = StringFile(space, "nodes", *about["names"])
            dictionary = Dictionary(nodes, space.file(), None, names, nodes, None)
        elif about["ids"]:
            dictionary = Dictionary(nodes, space.file(), space.file(name="ids"), None, nodes, None)
        if done.dealt is None:
            file = space.file(name=KEYS if KEYS in done.files else EDGES)
            runs = split_runs(file, about["edges"], nodes, weighted=self._weighted)
        else:
            file = space.file(name="dealt")
            dealer = Partitioner(file, 1, nodes, weighted=self._weighted)
            dealer.restore(done.dealt["dealt"], done.dealt["dealt"]["blocks"])
            runs = list(dealer.runs())
        space.freeze()
        return SpilledEdges(file, about["edges"], nodes, None, dictionary, runs)

    def ordered(self) -> Order | None:
        """Give the order in which keys were dealt before."""
        if self._done.dealt is None:
            return None
        rows = np.empty(self._done.dealt["rows"], np.uint32)
        if rows.size:
            self._workspace.file(name="rows").read(0, rows)
        ordered = self._done.dealt["order"]
        return Order(ordered["name"], None, rows if rows.size else None, ordered["reason"])

    def take_tiles(self, writer: GraphWriter, tally: EdgeCounter, out_weights: OutWeights | None) -> Taken:
        """Take over the tiles that were written before."""
        taken = take_tiles(writer, self._done.tiles, tally, out_weights)
        others = [event for event in self._journal.events if "tile" not in event and "whole" not in event]
        self._journal.cut(len(others) + taken.tiles)
        return taken

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or len(self._journal.events) < 2:
            drop_all_but(self._folder, {JOURNAL})
            shutil.rmtree(self._partial, ignore_errors=True)
            # The last to go: until then another process knows what it has before it.
            (self._folder / JOURNAL).unlink()
            self._folder.rmdir()
        else:
            size = size_of(self._folder)
            if not self._partial.is_relative_to(self._folder):
                size += size_of(self._partial)
            error.add_note(
                f"What is finished is kept, {format_bytes(size)} in {self._folder}: "
                "the same import with resume=True goes on from there."
            )
        self._journal.close()


def _about(spilled: SpilledEdges) -> tuple[dict[str, Any], list[str]]:
    """Describe what was read, and name the files with its nodes."""
    dictionary = spilled.dictionary
    names = None if dictionary is None else dictionary.names
    ids = dictionary is not None and names is None
    about = {
        "edges": spilled.edges,
        "nodes": spilled.nodes,
        "ids": ids,
        "names": None if names is None else [names.count, names.size],
    }
    return about, ["ids"] if ids else [] if names is None else ["nodes-text", "nodes-lengths"]


def _settle_again(source: Source, known: Mapping[str, Any]) -> None:
    """Let a source say again what it says with its first block, and what was known at its end."""
    with closing(cast("Generator[Block]", source.blocks(1))) as blocks:
        next(blocks, None)
    source.closed = known["closed"]
    source.notices[:] = known["notices"]
