"""Parquet files, one or many, read row group by row group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oocpr.errors import InputError
from oocpr.sources.arrow import TableSource
from oocpr.sources.base import FileSource
from oocpr.sources.places import LocalFile, RemoteFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from oocpr.sources.block import Block
    from oocpr.sources.places import AnyPath, Place

_BUFFER_BYTES = 1 << 20


class ParquetFiles(FileSource, TableSource):
    """Links in two columns of Parquet files.

    Parameters
    ----------
    path
        A file, a folder (all files below it that end in .parquet or .pq, ordered by path), or several.
    labels, source, target, weight
        See `oocpr.sources.arrow.TableSource`.

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
        FileSource.__init__(self, path, labels)
        name, title = self.name, self.title
        self.places = [file for place in self.places for file in _files(place)]
        FileSource.__init__(self, self.places, labels)
        self.name, self.title = name, title
        self._take_columns(source, target, weight)

    def identity(self) -> dict[str, Any] | None:
        """Tell the files, when they were changed, and which columns are read."""
        known = super().identity()
        known = None if known is None else {**known, "columns": list(self._columns)}
        return self._with_weight(known, self._weight)

    def _read(self, max_edges: int) -> Iterator[Block]:
        import pyarrow as pa

        yield from self._blocks(self._batches(max_edges), max_edges)
        # Arrow keeps freed memory for columns to come, of which there are none.
        pa.default_memory_pool().release_unused()

    def _batches(self, max_edges: int) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        passed = 0 if self._begun is None else int(self._begun["edges"])
        for place in self.places:
            with place.open() as opened:
                try:
                    file = pq.ParquetFile(_handed(place, opened), buffer_size=_BUFFER_BYTES, pre_buffer=False)
                    names = file.schema_arrow.names
                    columns = self._chosen(names, str(place))
                    groups, done = _groups_behind(file.metadata, passed)
                    for batch in file.iter_batches(max_edges, row_groups=groups, columns=columns):
                        fresh = max(0, passed - done)
                        done += batch.num_rows
                        if done <= passed:
                            continue
                        self.position = self._before + (place.size or 0) * done // file.metadata.num_rows
                        # The file may have them in another order.
                        yield batch.select(columns).slice(fresh)
                    passed = max(0, passed - file.metadata.num_rows)
                except (pa.ArrowException, OSError, EOFError) as error:
                    if isinstance(error, OSError) and error.errno is not None:
                        raise
                    raise InputError(
                        f"{place} is no whole Parquet file: {' '.join(str(error).split())[:200]}",
                        "Fetch or write the file again.",
                    ) from error
            self._before += place.size or 0


def _groups_behind(metadata: Any, rows: int) -> tuple[list[int], int]:
    """Number the row groups of a file that do not end within its first rows; with the rows before these."""
    before = 0
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
