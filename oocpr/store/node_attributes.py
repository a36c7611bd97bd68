"""What is known of the nodes beside their names: named columns with one entry for each row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.errors import DamagedError, UsageError
from oocpr.store.format import (
    COLUMNS,
    COLUMNS_KEY,
    REMEDY,
    TEXT_KIND,
)
from oocpr.store.labels import StoredLabels, append_text, text_arrays
from oocpr.store.zarr_arrays import Appender

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import zarr
    from numpy.typing import NDArray

    from oocpr.store.labels import TextPiece
    from oocpr.store.zarr_arrays import StoredArray

Value = int | float | bool | str | None

KINDS = (
    TEXT_KIND, "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float32", "float64",
)  # fmt: skip
"""What an attribute may hold."""

_CHUNK = 1 << 16


def check_name(name: str) -> None:
    """Refuse a name that no array of a store can have; UsageError.

    Examples
    --------
    >>> check_name("founded in")
    """
    if (
        not name
        or name.startswith((".", "__"))
        or any(c in "/\\\0" for c in name)
        or len(name.encode()) > 200
    ):
        raise UsageError(f"An attribute cannot be called {name!r}.", "Rename the column.")


class AttributeWriter:
    """One attribute, written row by row from the first to the last.

    Parameters
    ----------
    root
        The store's root group.
    name, kind
        What it is called and, of `KINDS`, what it holds.
    gaps
        Whether rows of numbers or truth values lack one; floats that lack are NaN, texts empty.

    Attributes
    ----------
    kind
        As given.
    size
        Rows so far.
    """

    def __init__(self, root: zarr.Group, name: str, kind: str, *, gaps: bool) -> None:
        path = f"{COLUMNS}/{name}"
        self._text = text_arrays(root, path, _CHUNK) if kind == TEXT_KIND else None
        self._values = None if self._text else Appender(root, f"{path}/values", kind, _CHUNK)
        self._missing = Appender(root, f"{path}/missing", "bool", _CHUNK) if gaps else None
        self._end = 0
        self.kind = kind
        self.size = 0

    def append(self, values: NDArray[Any] | TextPiece, missing: NDArray[np.bool] | None = None) -> None:
        """Add rows: their values, or UTF-8 end to end with the length of each; and which of them lack one."""
        if isinstance(values, tuple):
            assert self._text is not None
            self._end = append_text(self._text, self._end, *values)
            self.size += len(values[1])
        else:
            assert self._values is not None
            self._values.append(values)
            self.size += len(values)
        if self._missing is not None and missing is not None:
            self._missing.append(missing)

    def close(self) -> None:
        """Write what is left."""
        for array in (*(self._text or ()), self._values, self._missing):
            if array is not None:
                array.close()


def closed(writers: Mapping[str, AttributeWriter], rows: int) -> dict[str, str]:
    """End all attributes; returns the kind of each, or raises UsageError where one has not so many rows."""
    for name, writer in writers.items():
        writer.close()
        if writer.size != rows:
            raise UsageError(f"{writer.size} entries of {name} for {rows} rows.", "Give one for each row.")
    return {name: writer.kind for name, writer in writers.items()}


class StoredAttributes:
    """The attributes of an open store.

    Parameters
    ----------
    open_array
        Opens an array of the store.
    kinds
        What each attribute holds, by name.
    paths
        All arrays that the store has.

    Attributes
    ----------
    kinds
        As given.
    """

    def __init__(
        self, open_array: Callable[[str], StoredArray], kinds: Mapping[str, str], paths: frozenset[str]
    ) -> None:
        self.kinds: Mapping[str, str] = dict(kinds)
        self._array = open_array
        self._paths = paths

    def take(self, name: str, rows: NDArray[np.integer[Any]]) -> list[Value]:
        """Values of some rows, in the order asked for; only the chunks that hold them are read.

        Returns
        -------
        list
            None where a number or truth value lacks, "" where a text does.

        Raises
        ------
        DamagedError
            If the bytes are not what was written.
        """
        path = f"{COLUMNS}/{name}"
        if self.kinds[name] == TEXT_KIND:
            return list(self._texts(name).take(rows))
        values = self._array(f"{path}/values").take(rows)
        missing = np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(rows), bool)
        if f"{path}/missing" in self._paths:
            missing = self._array(f"{path}/missing").take(rows)
        return [
            None if lacks else value for value, lacks in zip(values.tolist(), missing.tolist(), strict=True)
        ]

    def texts(self, name: str, rows: int) -> Iterator[TextPiece]:
        """Yield the first `rows` values of an attribute that holds texts, in bounded pieces.

        Raises
        ------
        DamagedError
            If the bytes are not what was written.
        """
        return self._texts(name).pieces(0, rows)

    def _texts(self, name: str) -> StoredLabels:
        path = f"{COLUMNS}/{name}"
        return StoredLabels(self._array(f"{path}/offsets"), self._array(f"{path}/utf8"))


def stored_kinds(own: Mapping[str, Any], origin: str) -> dict[str, str]:
    """Read which attributes a store has; DamagedError where that cannot be.

    Parameters
    ----------
    own
        Attribute ``oocpr`` of the root.
    origin
        Path of the store, for the message.

    Examples
    --------
    >>> stored_kinds({"columns": {"year": "int64"}}, "g.zarr"), stored_kinds({}, "g.zarr")
    ({'year': 'int64'}, {})
    """
    kinds = own.get(COLUMNS_KEY, {})
    if not isinstance(kinds, dict) or not all(kind in KINDS for kind in kinds.values()):
        raise DamagedError(f"{origin}: the attributes of its nodes are {kinds!r}.", REMEDY)
    return kinds
