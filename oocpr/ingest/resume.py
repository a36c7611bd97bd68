"""Where an import keeps its files: one that ends with its process, and one that can be resumed.

What is resumed are whole stages: all edges read and their nodes numbered; edges partitioned by rows; tiles.
An import that ends while it reads has finished nothing. The last key of the last tile tells which edges are
still to come, for tiles hold the keys in their order; what has to be counted over all tiles is counted from
the tiles themselves.
"""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from oocpr.errors import UsageError
from oocpr.ingest import journal
from oocpr.ingest.budget import SLACK_BYTES, require
from oocpr.ingest.nodes.dictionary import Dictionary
from oocpr.ingest.nodes.strings import StringFile
from oocpr.ingest.orders.permutation import Order
from oocpr.ingest.read import SpilledEdges, split_runs
from oocpr.ingest.rows import NO_RANKS, EdgeCounter, Rows
from oocpr.ingest.spill.files import SpillDir, making_files
from oocpr.ingest.spill.id_bitmap import IdBitmap
from oocpr.ingest.spill.partition import Partitioner
from oocpr.sources.block import Block, ResumableSource, Source
from oocpr.store.atomic import refuse_existing, remove, replaced_name, root_checksum
from oocpr.store.format import ATTRIBUTES_KEY
from oocpr.store.writer import GraphWriter, drop_all_but
from oocpr.system import resident
from oocpr.units import format_bytes

if TYPE_CHECKING:
    import os


JOURNAL, STORE = "journal", "store.zarr"


def folder_of(path: Path, tmp: str | os.PathLike[str] | None) -> Path:
    """Folder of an import to the store `path` that can be resumed.

    Examples
    --------
    >>> folder_of(Path("graphs/web.zarr"), None).as_posix(), folder_of(Path("web.zarr"), "/tmp").as_posix()
    ('graphs/web.zarr.unfinished', '/tmp/web.zarr.unfinished')
    """
    return (path.parent if tmp is None else Path(tmp)) / f"{path.name}.unfinished"


def partial_of(path: Path, tmp: str | os.PathLike[str] | None) -> Path:
    """Folder of its store until that is whole, on the disk where it is going to be."""
    return folder_of(path, None) / STORE if tmp is None else path.with_name(f"{path.name}.partial.zarr")


def disk_bytes(path: Path) -> int:
    """Bytes of a file, or of all files below a folder; what vanishes meanwhile has none."""
    total = 0
    for file in [path, *path.rglob("*")]:
        try:
            total += file.lstat().st_size if not file.is_dir() else 0
        except FileNotFoundError:
            continue
    return total


def interrupted_import(path: Path, tmp: str | os.PathLike[str] | None) -> str | None:
    """Say what an import to the store `path` has left that is not under way any more; None for nothing."""
    folder, partial = folder_of(path, tmp), partial_of(path, tmp)
    if not (folder / JOURNAL).is_file():
        return None
    with (folder / JOURNAL).open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return None
    paths = (folder,) if partial.is_relative_to(folder) or not partial.exists() else (folder, partial)
    size = format_bytes(sum(map(disk_bytes, paths)))
    return (
        f"An interrupted import has left {size}; continue it with resume=True, "
        f"or remove it with: rm -r {' '.join(map(str, paths))}"
    )


@dataclass(frozen=True)
class ResumedTiles:
    """Tiles of an earlier process; `key` is their last one, the next tile begins with `row`."""

    count: int = 0
    key: int | None = None
    row: int = 0
    local_edges: int = 0


def in_ids(key: int, node_ids: NDArray[np.uint32] | None) -> int:
    """Turn a key of rows into one of their ids, which are the rows themselves if `node_ids` is None."""
    if node_ids is None:
        return key
    return int(node_ids[key >> 32]) << 32 | int(node_ids[key & 0xFFFFFFFF])


def rows_after(pieces: Iterable[Rows], key: int, counter: EdgeCounter) -> Iterator[Rows]:
    """Leave out the edges up to the one of `key`, and uncount them.

    The counter has counted all of them, and those of the resumed tiles.
    """
    pieces = iter(pieces)
    for edges in pieces:
        place = edges.place_after(key)
        if place:
            counter.uncount(edges.part(0, place))
        if place < edges.columns.size:
            yield edges.part(place, edges.columns.size)
            break
    yield from pieces


class OneShotImport:
    """An import to the store `path` whose temporary files, in `tmp` or beside it, go with its process."""

    whole = False
    """Whether the store has its name already."""

    has_tiles = False
    """Whether tiles are written already."""

    def __init__(self, path: Path, tmp: str | os.PathLike[str] | None, *, overwrite: bool) -> None:
        self._path = path
        self._overwrite = overwrite
        self._folder = path.absolute().parent if tmp is None else Path(tmp)

    def writer(self) -> GraphWriter:
        """Begin the store, or continue it."""
        return GraphWriter(self._path, overwrite=self._overwrite)

    def spill_dir(self) -> SpillDir:
        """Begin the temporary files, or continue with them."""
        return SpillDir(self._folder)

    def resumed_edges(self, source: Source, memory: int) -> SpilledEdges | None:  # noqa: ARG002
        """Give the edges as an earlier process has read them, partitioned or not; None if none has."""
        return None

    def resumed_order(self) -> Order | None:
        """Give the order of the rows by which `resumed_edges` are partitioned; None if they are not."""
        return None

    def resumed_tiles(self, writer: GraphWriter, counter: EdgeCounter) -> ResumedTiles:  # noqa: ARG002
        """Continue after the tiles that an earlier process has written."""
        return ResumedTiles()

    def finish_reading(self, source: Source, edges: SpilledEdges) -> None:
        """Note that all edges are read."""

    def finish_partitioning(self, edges: SpilledEdges, order: Order) -> None:
        """Note that edges lie in buckets, in the order of the rows."""


class ResumableImport(OneShotImport):
    """An import that another process can continue, or that continues what another has left.

    Leaving it with an error keeps all that is finished, and adds a note to the error that says so. `options`
    are what else the bytes of the store depend on, by their names. UsageError if the source cannot be read
    again, or what was left is of another import, or in use.
    """

    def __init__(
        self,
        source: Source,
        path: Path,
        tmp: str | os.PathLike[str] | None,
        *,
        overwrite: bool,
        options: Mapping[str, Any],
        on_message: Callable[[str], None],
    ) -> None:
        super().__init__(path, tmp, overwrite=overwrite)
        known = source.identity() if isinstance(source, ResumableSource) else None
        if known is None:
            raise UsageError(
                f"An import of {source.name} cannot be resumed: nobody can tell whether it has changed.",
                "Give files, or leave resume=True out.",
            )
        wanted = {"version": journal.VERSION, "output": str(path.absolute()), **options, "source": known}
        self._weighted = source.weighted
        self._folder, self._partial = folder_of(path, tmp), partial_of(path, tmp)
        if not (self._folder / JOURNAL).is_file():
            # A process that ended just before its last step has left an empty folder.
            with suppress(OSError):
                self._folder.rmdir()
            refuse_existing(path, overwrite=overwrite, marker=ATTRIBUTES_KEY)
        with making_files(self._folder.parent):
            self._folder.mkdir(parents=tmp is None, exist_ok=True)
        self._journal = journal.Journal(self._folder / JOURNAL)
        try:
            self._take_up(json.loads(json.dumps(wanted)), on_message)
        except BaseException:
            self._journal.close()
            raise
        self._files = journal.DurableSpillDir(self._folder, self._state.files)

    def _take_up(self, wanted: dict[str, Any], on_message: Callable[[str], None]) -> None:
        """Find out what can be used, and leave no more than that."""
        events = self._journal.events
        reason = journal.difference(events[0]["import"], wanted) if events else None
        if reason is not None:
            raise UsageError(
                f"The import that {self._folder} is left of cannot go on: {reason}.",
                f"Give it what it was given, or begin again: rm -r {self._folder}",
            )
        found = bool(events)
        paths = {self._folder / name: size for name, size in journal.ImportState.of(events).files.items()}
        # Files were on the disk before the event that lists them was written.
        if not all(path.is_file() and path.stat().st_size >= size for path, size in paths.items()):
            self._journal.cut(0)
        self._state = journal.ImportState.of(events)
        self.has_tiles = bool(self._state.tiles)
        # Whether the store had got its name when the process ended.
        whole = self._state.whole
        self.whole = whole is not None and not self._partial.exists() and root_checksum(self._path) == whole
        if self.whole:
            remove(replaced_name(self._path, resumable=True))
        if self._state.read is not None:
            on_message(f"Going on with an import that was interrupted: {self._state}.")
        elif found:
            on_message("Nothing that was finished is left to resume: the import starts from the beginning.")
        else:
            on_message("Nothing to resume: the import starts from the beginning.")
        if not events:
            shutil.rmtree(self._partial, ignore_errors=True)
            self._journal.add({"import": wanted})
        self._drop_all_but(*self._state.files, JOURNAL, STORE)

    def writer(self) -> GraphWriter:
        """Begin the store, or continue it."""
        return GraphWriter(
            self._path, overwrite=self._overwrite, resumable=self._partial, on_written=self._journal.add
        )

    def spill_dir(self) -> SpillDir:
        """Begin the temporary files, or continue with them."""
        return self._files

    def finish_reading(self, source: Source, edges: SpilledEdges) -> None:
        """Note that all edges are read, and what the source has said meanwhile."""
        said = {"closed": source.closed, "notices": list(source.notices)}
        event, names = self._describe(edges)
        largest = None
        if edges.ids is not None:
            largest = edges.ids.largest
            self._files.file(name="bitmap").write(0, edges.ids.ranks.words)
            names.append("bitmap")
        self._finish({"read": event, "largest_id": largest, "said": said}, names)

    def finish_partitioning(self, edges: SpilledEdges, order: Order) -> None:
        """Note that edges lie in buckets, in the order of the rows."""
        event, names = self._describe(edges)
        rows = 0
        if order.node_ids is not None:
            rows = order.node_ids.size
            self._files.file(name="rows").write(0, order.node_ids)
            names.append("rows")
        ordered = {"name": order.name, "reason": order.reason, "rows": rows}
        self._finish({"partitioned": event, "order": ordered}, names)

    def _describe(self, edges: SpilledEdges) -> tuple[dict[str, Any], list[str]]:
        """Describe edges and their nodes, and name the files that hold them."""
        assert isinstance(edges.file, journal.DurableSpillFile)
        found, names, dictionary = edges.dictionary, [edges.file.name], None
        if found is not None and found.names is not None:
            dictionary = {"count": found.names.count, "size": found.names.size}
            names += ["nodes-text", "nodes-lengths"]
        elif found is not None:
            dictionary = {}
            names.append("ids")
        event = {
            "file": edges.file.name,
            "edges": edges.edges,
            "nodes": edges.nodes,
            "dictionary": dictionary,
            "buckets": None if edges.partitioner is None else edges.partitioner.state(),
        }
        return event, names

    def _finish(self, event: dict[str, Any], names: list[str]) -> None:
        """Note a stage, and the files that are all that is needed from here on."""
        files = self._files.synced(names)
        self._journal.add({**event, "files": files}, durable=True)
        self._drop_all_but(*files, JOURNAL, STORE)

    def resumed_edges(self, source: Source, memory: int) -> SpilledEdges | None:
        """Give the edges as an earlier process has read them, partitioned or not; None if none has."""
        read, partitioned = self._state.read, self._state.partitioned
        if read is None:
            return None
        # What a source says with its first block, it says again; what it said at its end is noted.
        with closing(cast("Generator[Block]", source.blocks(1))) as blocks:
            next(blocks, None)
        source.closed = read["said"]["closed"]
        source.notices[:] = read["said"]["notices"]
        event = read["read"] if partitioned is None else partitioned["partitioned"]
        file, nodes = self._files.file(name=event["file"]), event["nodes"]
        dictionary, ids = None, None
        if event["dictionary"]:
            names = StringFile(self._files, "nodes", **event["dictionary"])
            dictionary = Dictionary(nodes, self._files.file(), None, names, nodes, None)
        elif event["dictionary"] is not None:
            words = self._files.file(name="ids")
            dictionary = Dictionary(nodes, self._files.file(), words, None, nodes, None)
        if partitioned is None and read["largest_id"] is not None:
            ids, largest = IdBitmap(), read["largest_id"]
            require(resident() + ids.growth(largest) + SLACK_BYTES, memory, f"Going on with {source.name}")
            ids.reach(largest)
            self._files.file(name="bitmap").read(0, ids.ranks.words)
            ids.reach(largest)
        partitioner, runs = None, split_runs(file, event["edges"], nodes, weighted=self._weighted)
        if event["buckets"] is not None:
            partitioner = Partitioner(file, 1, nodes, weighted=self._weighted)
            partitioner.restore(event["buckets"])
            runs = list(partitioner.runs())
        return SpilledEdges(file, event["edges"], nodes, ids, dictionary, runs, partitioner)

    def resumed_order(self) -> Order | None:
        """Give the order of the rows by which `resumed_edges` are partitioned; None if they are not."""
        if self._state.partitioned is None:
            return None
        ordered = self._state.partitioned["order"]
        rows = None
        if ordered["rows"]:
            rows = self._files.file(name="rows").read_array(np.uint32, 0, ordered["rows"])
        return Order(ordered["name"], None, rows, ordered["reason"])

    def resumed_tiles(self, writer: GraphWriter, counter: EdgeCounter) -> ResumedTiles:
        """Count the tiles that an earlier process has written, up to the first that is not what it wrote."""
        done = ResumedTiles()
        for size, checksum, data in self._state.tiles:
            found = writer.take_tile(size, checksum, data)
            if found is None:
                break
            columns, lengths, weights = found
            counter.add_weights(columns, weights)
            rows = np.arange(done.row, done.row + lengths.size, dtype=np.uint64)
            keys = np.repeat(rows << np.uint64(32), lengths)
            np.bitwise_or(keys, columns, out=keys)
            owned = lengths.size - 1
            local = int(np.count_nonzero(columns - np.uint32(done.row) < owned))
            last = int(keys[-1]) if keys.size else done.key
            memory = np.empty(keys.size, np.uint32), np.empty(keys.size + 1, np.uint32)
            counter.to_rows(keys, keys.size, NO_RANKS, *memory)
            done = ResumedTiles(done.count + 1, last, done.row + owned, done.local_edges + local)
        others = [event for event in self._journal.events if "tile" not in event and "whole" not in event]
        self._journal.cut(len(others) + done.count)
        return done

    def _drop_all_but(self, *names: str) -> None:
        drop_all_but(self._folder, [self._folder / name for name in names])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or len(self._journal.events) < 2:
            self._drop_all_but(JOURNAL)
            shutil.rmtree(self._partial, ignore_errors=True)
            # The last to go: until then another process knows what it has before it.
            (self._folder / JOURNAL).unlink()
            self._folder.rmdir()
        else:
            size = disk_bytes(self._folder)
            if not self._partial.is_relative_to(self._folder):
                size += disk_bytes(self._partial)
            error.add_note(
                f"What is finished is kept, {format_bytes(size)} in {self._folder}: "
                "the same import with resume=True goes on from there."
            )
        self._journal.close()
