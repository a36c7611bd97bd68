"""Names of nodes, read from a file with one a line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from oocpr.errors import InputError
from oocpr.sources.io.compression import PACKINGS, ByteStream, unpacked_name
from oocpr.sources.io.locations import place_of
from oocpr.sources.text.line_reader import LineReader
from oocpr.sources.text.name_scanner import names_of

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from oocpr.sources.block import Strings
    from oocpr.sources.io.locations import Place

_CHUNK = 1 << 16


class FileLabels:
    r"""Labels of the nodes 0 .. n - 1 in a file, read from its front whenever they are asked for.

    Parameters
    ----------
    path
        The file, compressed or not, in UTF-8. The first column of its n-th line, columns being separated by
        tabs, belongs to node n - 1; comments, which are ``#`` alone or followed by a space, are not counted.

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
    ...     labels = FileLabels(path)
    ...     len(labels), list(labels)
    (2, ['home', 'about'])
    """

    def __init__(self, path: str | os.PathLike[str] | Place) -> None:
        self._path = path
        self._count = sum(names.starts.size for names in self.strings())
        if not self._count:
            raise InputError(f"{path} holds no labels.", "Check that it is the file you mean.")

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        for names in self.strings():
            text = names.text.tobytes()
            for start, end in zip(names.starts.tolist(), names.ends.tolist(), strict=True):
                yield text[start:end].decode()

    def strings(self) -> Iterator[Strings]:
        """Yield the labels, some at a time."""
        with ByteStream(self._path) as stream:
            for names, _ in names_of(LineReader(stream), _CHUNK, pairs=False, skip=False):
                yield names


def find_labels(path: str | os.PathLike[str] | Place) -> Place | None:
    """Labels file beside a graph, if any: ``web.labels.txt`` or ``.tsv``, packed or not, of ``web.txt.gz``.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     pathlib.Path(folder, "web.labels.tsv.xz").touch()
    ...     find_labels(pathlib.Path(folder, "web.txt.gz")).name
    'web.labels.tsv.xz'
    """
    place = place_of(path)
    stem = Path(unpacked_name(place)).stem
    names = (f"{stem}.labels.{kind}{packing}" for kind in ("txt", "tsv") for packing in ("", *PACKINGS))
    return next((beside for name in names if (beside := place.beside(name)) is not None), None)
