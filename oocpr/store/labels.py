"""Labels of the nodes: their UTF-8 bytes end to end, and where each begins."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from oocpr.errors import DamagedError
from oocpr.store.arrays import Appender
from oocpr.store.codec import PackedInts
from oocpr.store.format import LABELS, REMEDY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import zarr
    from numpy.typing import NDArray

    from oocpr.store.arrays import StoredArray

    TextPiece = tuple[NDArray[np.uint8], NDArray[np.integer[Any]]]

_LABELS_CHUNK = 1 << 16
_BYTES_CHUNK = 1 << 20


def write_labels(group: zarr.Group, labels: Iterable[str] | Iterable[TextPiece]) -> int:
    """Write labels into a store's root group; returns how many there were.

    Parameters
    ----------
    group
        The root group.
    labels
        One by one, or some at a time as their bytes end to end and the length of each.
    """
    arrays = text_arrays(group, LABELS, _LABELS_CHUNK)
    end = 0
    count = 0
    for text, lengths in text_pieces(labels):
        end = append_text(arrays, end, text, lengths)
        count += len(lengths)
    for array in arrays:
        array.close()
    return count


def text_arrays(group: zarr.Group, path: str, chunk: int) -> tuple[Appender, Appender]:
    """Begin the two arrays of texts below a path: where each begins, and all their bytes."""
    offsets = Appender(group, f"{path}/offsets", "int64", chunk, PackedInts())
    offsets.append(np.zeros(1, np.int64))
    return offsets, Appender(group, f"{path}/utf8", "uint8", _BYTES_CHUNK)


def append_text(
    arrays: tuple[Appender, Appender],
    end: int,
    text: NDArray[np.uint8],
    lengths: NDArray[np.integer[Any]],
) -> int:
    """Add texts to the two arrays, whose bytes end at `end` so far; returns where they end then."""
    ends = end + np.cumsum(lengths, dtype=np.int64)
    arrays[0].append(ends)
    arrays[1].append(text)
    return end + len(text)


def text_pieces(labels: Iterable[str] | Iterable[TextPiece]) -> Iterator[TextPiece]:
    """Yield labels some at a time, as their bytes end to end and the length of each."""
    rest = iter(labels)
    for first in rest:
        if not isinstance(first, str):
            yield cast("TextPiece", first)
            continue
        batch = [first, *itertools.islice(cast("Iterator[str]", rest), _LABELS_CHUNK - 1)]
        coded = [label.encode() for label in batch]
        yield np.frombuffer(b"".join(coded), np.uint8), np.array([len(c) for c in coded], np.uint32)


class StoredLabels:
    """Labels of an open store.

    Parameters
    ----------
    offsets, text
        The two arrays.
    """

    def __init__(self, offsets: StoredArray, text: StoredArray) -> None:
        self._offsets = offsets
        self._text = text

    def take(self, rows: NDArray[np.integer[Any]]) -> list[str]:
        """Labels of the rows, in the order asked for.

        The bytes between the first and the last row asked for of a chunk of offsets are read at once, so a
        few labels cost a few chunks and all labels cost one reading.

        Raises
        ------
        DamagedError
            If the bytes are not what was written.
        """
        labels = [""] * len(rows)
        for lo, hi, where in self._offsets.spans(rows):
            offsets = self._offsets.read(lo, hi + 1)
            text = self._text.read(int(offsets[0]), int(offsets[-1])).tobytes()
            ends = (offsets - offsets[0]).tolist()
            for k in where.tolist():
                i = int(rows[k]) - lo
                labels[k] = self._decode(text[ends[i] : ends[i + 1]])
        return labels

    def text(self, lo: int, hi: int) -> tuple[NDArray[np.uint8], NDArray[np.uint32]]:
        """Labels of rows lo to hi - 1: their bytes end to end, and the length of each.

        Raises
        ------
        DamagedError
            If the bytes are not what was written.
        """
        offsets = self._offsets.read(lo, hi + 1)
        return self._text.read(int(offsets[0]), int(offsets[-1])), np.diff(offsets).astype(np.uint32)

    def _decode(self, text: bytes) -> str:
        try:
            return text.decode()
        except UnicodeDecodeError as error:
            raise DamagedError(f"{self._text.origin}: a label is not UTF-8: {error}.", REMEDY) from error
