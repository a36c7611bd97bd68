"""Names of nodes, read from a file with one a line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from oocpr.errors import InputError
from oocpr.sources.compressed import PACKINGS, ByteStream, unpacked_name
from oocpr.sources.lines import LineReader

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

_CHUNK = 1 << 16


class Labels(Sequence[str]):
    """Labels of the nodes 0 .. n - 1, held as an Arrow array: 8 bytes a label beside its text.

    Parameters
    ----------
    array
        pyarrow.LargeStringArray without nulls, shape (n,).

    Examples
    --------
    >>> import pyarrow as pa
    >>> labels = Labels(pa.array(["home", "about"], pa.large_string()))
    >>> labels[1], len(labels)
    ('about', 2)
    """

    def __init__(self, array: Any) -> None:
        self.array = array

    def __len__(self) -> int:
        return len(self.array)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return list(self.array[index].to_pylist())
        return str(self.array[index].as_py())

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), _CHUNK):
            yield from self[start : start + _CHUNK]


def find_labels(path: str | os.PathLike[str]) -> Path | None:
    """Labels file beside a graph, if any: ``web.labels.txt`` or ``.tsv``, packed or not, of ``web.txt.gz``.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     pathlib.Path(folder, "web.labels.tsv.xz").touch()
    ...     find_labels(pathlib.Path(folder, "web.txt.gz")).name
    'web.labels.tsv.xz'
    """
    stem = Path(unpacked_name(path)).stem
    names = (f"{stem}.labels.{kind}{packing}" for kind in ("txt", "tsv") for packing in ("", *PACKINGS))
    return next((beside for name in names if (beside := Path(path).parent / name).is_file()), None)


def read_labels(path: str | os.PathLike[str], *, comments: bool = False) -> Labels:
    r"""Read the first column of a file whose columns are apart by tabs.

    Parameters
    ----------
    path
        The file, packed or not, in UTF-8. Its n-th line belongs to node n - 1.
    comments
        Whether lines that are blank or begin with ``#`` are skipped; otherwise ``#`` may begin a label.

    Raises
    ------
    InputError
        A file that cannot be read, a line without a label.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "web.labels.tsv")
    ...     _ = path.write_text("home\tstart page\nabout\n")
    ...     list(read_labels(path))
    ['home', 'about']
    """
    import pyarrow as pa

    pieces = []
    with ByteStream(path) as stream:
        lines = LineReader(stream)
        for text in lines.texts():
            names = [line.partition("\t")[0].rstrip("\r") for line in text.split("\n")[:-1]]
            if comments:
                names = [name for name in names if name and not name.startswith("#")]
            elif "" in names:
                lines.line += names.index("")
                raise lines.error("no label.", "Give each node one line that begins with its label.")
            pieces.append(pa.array(names, pa.large_string()))
    if not any(map(len, pieces)):
        raise InputError(f"{path} holds no labels.", "Check that it is the file you mean.")
    return Labels(pa.concat_arrays(pieces))
