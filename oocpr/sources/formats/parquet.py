"""Parquet files, one or many, read row group by row group."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

from oocpr.errors import InputError, OocprError
from oocpr.sources.formats.arrow import TEXT_BYTES_PER_EDGE, TableFiles, kinds_of
from oocpr.sources.formats.parquet_metadata import DICTIONARY, pages, row_groups
from oocpr.sources.io.locations import LocalFile, RemoteFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import BinaryIO

    import pyarrow as pa

    from oocpr.sources.block import Block
    from oocpr.sources.formats.parquet_metadata import Chunk
    from oocpr.sources.io.locations import AnyPath, Place

_BUFFER_BYTES = 1 << 20


class ParquetFiles(TableFiles):
    """Links in two columns of Parquet files.

    Parameters
    ----------
    path
        A file, a folder (all files below it that end in .parquet or .pq, ordered by path), or several.
    labels, source, target, weight
        See `oocpr.sources.formats.arrow.TableSource`.

    Raises
    ------
    UsageError
        While blocks are read: columns that there are not.
    InputError
        While blocks are read: no such file, a damaged one, a missing end, or one that is neither a whole
        number nor text; a missing weight, or one that cannot be.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import pyarrow as pa, pyarrow.parquet as pq
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "links.parquet")
    ...     pq.write_table(pa.table({"from": [4, 5], "to": [5, 4]}), path)
    ...     [(block.src.tolist(), block.dst.tolist()) for block in ParquetFiles(path).blocks(10)]
    [([4, 5], [5, 4])]
    """

    def __init__(
        self,
        path: AnyPath | Sequence[AnyPath],
        labels: AnyPath | None = None,
        source: str | None = None,
        target: str | None = None,
        *,
        weight: str | int | None = None,
    ) -> None:
        super().__init__(path, labels, source, target, weight=weight)
        self._take_places([file for place in self.places for file in _files(place)])

    def _read(self, max_edges: int) -> Iterator[Block]:
        import pyarrow as pa

        yield from self._blocks(self._batches(max_edges), max_edges)
        # Arrow keeps freed memory for columns to come, of which there are none.
        pa.default_memory_pool().release_unused()

    def _batches(self, max_edges: int) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        passed = 0 if self._begun is None else int(self._begun["edges"])
        options = {"buffer_size": _BUFFER_BYTES, "pre_buffer": False, "page_checksum_verification": True}
        for place in self.places:
            with place.open() as opened:
                try:
                    source = _handed(place, opened)
                    file = pq.ParquetFile(source, **options)
                    columns = self._chosen(kinds_of(file.schema_arrow), str(place))
                    self._check_columns(file.schema_arrow, columns, str(place))
                    chunks = row_groups(opened, self.reserve, str(place))
                    if len(chunks) != file.metadata.num_row_groups:
                        raise ValueError("its metadata contradict themselves")
                    groups, done = _groups_behind(file.metadata, passed)
                    for group in groups:
                        about = _RowGroup(chunks[group], file.metadata.row_group(group).num_rows, columns)
                        if isinstance(place, LocalFile):
                            about.look_at_pages(opened, self.reserve, str(place))
                        if about.dictionary_bytes > TEXT_BYTES_PER_EDGE:
                            named = pq.ParquetFile(
                                source, read_dictionary=columns, metadata=file.metadata, **options
                            )
                            about.look_at_names(named.iter_batches(1, row_groups=[group], columns=columns))
                        behind = done + about.rows
                        for batch in file.iter_batches(
                            about.rows_at_once(max_edges), row_groups=[group], columns=columns
                        ):
                            fresh = max(0, passed - done)
                            done += batch.num_rows
                            if done <= passed:
                                continue
                            self.position = self._before + (place.size or 0) * done // file.metadata.num_rows
                            # The file may have them in another order.
                            yield batch.select(columns).slice(fresh)
                        if done != behind:
                            raise ValueError(f"it has {done:,} rows of {behind:,}")
                    passed = max(0, passed - file.metadata.num_rows)
                except (pa.ArrowException, OSError, EOFError, ValueError) as error:
                    if isinstance(error, OocprError) or getattr(error, "errno", None) not in (
                        None,
                        errno.EINVAL,  # of places before the file
                    ):
                        raise
                    raise InputError(
                        f"{place} is no whole Parquet file: {' '.join(str(error).split())[:200]}",
                        "Fetch or write the file again.",
                    ) from error
            self._before += place.size or 0


class _RowGroup:
    """How much of a row group is to be read at once.

    Parameters
    ----------
    chunks
        Its columns.
    rows
        How many rows it has.
    columns
        Those that are read.
    """

    def __init__(self, chunks: Sequence[Chunk], rows: int, columns: Sequence[str]) -> None:
        self._chunks = [chunk for chunk in chunks if chunk.name in columns]
        self.rows = rows
        text = [chunk for chunk in self._chunks if chunk.text]
        text_bytes = sum(chunk.bytes for chunk in text)
        self.dictionary_bytes = text_bytes if any(chunk.has_dictionary for chunk in text) else 0
        self._row_bytes = text_bytes // max(1, self.rows)
        self._longest = 0

    def look_at_pages(self, file: BinaryIO, reserve: Callable[[int, str], None], title: str) -> None:
        """Refuse pages that do not fit in memory, and find out how long the strings in them are."""
        needed = 0
        self.dictionary_bytes = self._row_bytes = 0
        for chunk in self._chunks:
            dictionary = widest = most = 0
            for page in pages(file, chunk.start, chunk.values):
                if page.kind == DICTIONARY:
                    # Decoded, and once more where its strings are looked at.
                    dictionary = max(dictionary, 3 * page.memory)
                else:
                    widest = max(widest, page.bytes // max(1, page.values))
                most = max(most, page.memory)
                reserve(needed + dictionary + most, f"A page of {page.bytes:,} bytes in {title}")
            needed += dictionary + most
            if chunk.text:
                self._row_bytes += widest
                self.dictionary_bytes += dictionary

    def look_at_names(self, batches: Iterator[pa.RecordBatch]) -> None:
        """Find out how long the strings of dictionaries are, for which rows have only numbers."""
        import pyarrow as pa
        import pyarrow.compute as pc

        for column in next(batches, ()):
            if pa.types.is_dictionary(column.type):
                self._longest += pc.max(pc.binary_length(column.dictionary)).as_py() or 0

    def rows_at_once(self, max_edges: int) -> int:
        """Rows of a batch whose strings are within bounds, however they are spread."""
        longest: int = self._row_bytes + self._longest
        return max(1, min(max_edges, TEXT_BYTES_PER_EDGE * max_edges // max(1, longest)))


def _groups_behind(metadata: Any, rows: int) -> tuple[list[int], int]:
    """Number the row groups of a file that do not end within its first rows; with the rows before these."""
    before = 0
    if sum(metadata.row_group(k).num_rows for k in range(metadata.num_row_groups)) != metadata.num_rows:
        raise ValueError("its row groups have other numbers of rows than the file")
    for group in range(metadata.num_row_groups):
        after = before + metadata.row_group(group).num_rows
        if after > rows:
            return list(range(group, metadata.num_row_groups)), before
        before = after
    return [], before


def _handed(place: Place, opened: Any) -> Any:
    """What Arrow reads fastest: its own file where there is one on this machine."""
    return str(place) if isinstance(place, LocalFile) else opened


def _files(place: Place) -> list[Place]:
    """The Parquet files of a folder, or the file itself."""
    found: list[Place] = [place]
    if isinstance(place, LocalFile) and place.path.is_dir():
        paths = sorted(path for path in place.path.rglob("*") if path.suffix in (".parquet", ".pq"))
        found = [LocalFile(path) for path in paths if path.is_file() and not path.name.startswith((".", "_"))]
    elif isinstance(place, RemoteFile) and str(place).endswith("/"):
        system, folder = place.found
        names = sorted(name for name in system.find(folder) if name.endswith((".parquet", ".pq")))
        found = [RemoteFile(system.unstrip_protocol(name)) for name in names]
    if not found:
        raise InputError(
            f"{place} is a folder and holds no .parquet files.", "Give the path of a graph's file."
        )
    return found
