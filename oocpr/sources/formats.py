"""Which formats there are, and how a file shows its own."""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from oocpr.errors import InputError, UsageError
from oocpr.sources.compressed import ByteStream, unpacked_name

if TYPE_CHECKING:
    from oocpr.sources.block import Source

_HEAD_BYTES = 1 << 16


@dataclass(frozen=True)
class Format:
    """One format of files.

    Parameters
    ----------
    summary
        One line for the help text.
    reader
        ``module:class`` inside `oocpr.sources`; loaded on first use.
    own_labels
        Whether the files hold their labels themselves, so that a labels file makes no sense.
    labels_beside
        Whether a labels file that lies beside the graph is used without being asked for.
    """

    summary: str
    reader: str
    own_labels: bool = False
    labels_beside: bool = False

    def open(self, path: Path, labels: Path | None) -> Source:
        """Source of a file of this format."""
        module, name = self.reader.split(":")
        reader = getattr(importlib.import_module(f"oocpr.sources.{module}"), name)
        return cast("Source", reader(path) if self.own_labels else reader(path, labels))


FORMATS = {
    "text": Format(
        "SNAP text: a line `from to` an edge, # and % comments", "text:TextFile", labels_beside=True
    ),
    "matrixmarket": Format(
        "Matrix Market coordinates (.mtx), ids from 1", "matrixmarket:MatrixMarketFile", labels_beside=True
    ),
    "npz": Format("SciPy sparse matrix of save_npz (.npz)", "npz:NpzFile", labels_beside=True),
    "gr0": Format("lines `n id label`, then lines `e from to`", "gr0:Gr0File", own_labels=True),
    "hollins": Format(
        "`nodes edges`, then `id label`, then `from to`", "hollins:HollinsFile", own_labels=True
    ),
    "names": Format("two names a line, apart by a tab (.tsv)", "names:NamesFile"),
}
"""Formats by name; each file is guessed to be one of them where the caller names none."""


def guess_format(path: Path) -> str:
    r"""Name of the format of a file, from its suffix and its first lines.

    Text that looks like nothing else counts as SNAP text, whose reader then names the line it cannot read.

    Raises
    ------
    InputError
        A file that cannot be opened or unpacked.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "pages")
    ...     _ = path.write_text("n 0 a.org\nn 1 b.org\ne 1 0\n")
    ...     guess_format(path)
    'gr0'
    """
    with ByteStream(path) as stream:
        head = memoryview(bytearray(_HEAD_BYTES))
        first = bytes(head[: stream.readinto(head)])
    suffix = Path(unpacked_name(path)).suffix.lower()
    if first.startswith(b"PK\x03\x04") or suffix == ".npz":
        return "npz"
    if suffix == ".mtx" or first[:14].lower() == b"%%matrixmarket":
        return "matrixmarket"
    # Lines beginning with % are left in: such a line may be a percent-encoded name.
    lines = [line for line in first.decode(errors="replace").splitlines() if line.strip() and line[0] != "#"]
    if not lines:
        return "text"
    if re.match(r"n\s+0\s+\S", lines[0]):
        return "gr0"
    if re.fullmatch(r"\d+\s+\d+\s*", lines[0]) and len(lines) > 1 and re.match(r"1\s+[^\s\d]", lines[1]):
        return "hollins"
    names = lines[0].split("\t")
    if suffix == ".tsv" and len(names) == 2 and not any(re.fullmatch(r"\s*-?\d+\s*", name) for name in names):
        return "names"
    return "text"


def open_file(path: Path, format: str | None, labels: Path | None) -> Source:  # noqa: A002
    """Source of a file, of the named format or of the one it shows.

    Raises
    ------
    UsageError
        No such format, or a labels file for a format that has its own labels.
    InputError
        A file that cannot be opened or unpacked.
    """
    if format is not None and format not in FORMATS:
        raise UsageError(f"There is no format {format!r}.", f"Give one of: {', '.join(FORMATS)}.")
    if not path.is_file():
        found = "is a folder" if path.is_dir() else "does not exist"
        raise InputError(f"{path} {found}.", "Give the path of a graph's file.")
    name = format or guess_format(path)
    chosen = FORMATS[name]
    if chosen.own_labels and labels is not None:
        raise UsageError(f"Files of the format {name} hold their own labels.", "Leave the labels file out.")
    if chosen.labels_beside and labels is None:
        from oocpr.sources.labels import find_labels

        labels = find_labels(path)
    return chosen.open(path, labels)
