"""Labels of the nodes: their UTF-8 bytes end to end, and where each begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.errors import DamagedError
from oocpr.store.codec.zarr_codecs import PackedInts
from oocpr.store.format import LABEL_BYTES, LABEL_OFFSETS
from oocpr.store.zarr_arrays import Appender

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import zarr
    from numpy.typing import NDArray

    from oocpr.store.zarr_arrays import StoredArray

    TextPiece = tuple[NDArray[np.uint8], NDArray[np.integer[Any]]]

_LABELS_CHUNK = 1 << 16
_BYTES_CHUNK = 1 << 20

PIECE_BYTES = 1 << 21
"""Most bytes of labels that are read or written at a time, unless one alone has more."""


def write_labels(group: zarr.Group, labels: Iterable[str] | Iterable[TextPiece]) -> int:
    """Write labels into a store's root group; returns how many there were.

    `labels`: one by one, or some at a time as their bytes end to end and the length of each.
    """
    offsets = Appender(group, LABEL_OFFSETS, "int64", _LABELS_CHUNK, PackedInts())
    offsets.append(np.zeros(1, np.int64))
    utf8 = Appender(group, LABEL_BYTES, "uint8", _BYTES_CHUNK)
    end = 0
    count = 0
    for text, lengths in text_pieces(labels):
        offsets.append(end + np.cumsum(lengths, dtype=np.int64))
        utf8.append(text)
        end += len(text)
        count += len(lengths)
    offsets.close()
    utf8.close()
    return count


def text_pieces(labels: Iterable[str] | Iterable[TextPiece]) -> Iterator[TextPiece]:
    r"""Yield labels some at a time, as their bytes end to end and the length of each.

    >>> [(text.tobytes(), lengths.tolist()) for text, lengths in text_pieces(["home", "é"])]
    [(b'home\xc3\xa9', [4, 2])]
    """
    held: list[bytes] = []
    size = 0
    for label in labels:
        if not isinstance(label, str):
            yield label
            continue
        held.append(label.encode())
        size += len(held[-1])
        if len(held) == _LABELS_CHUNK or size >= PIECE_BYTES:
            yield _joined(held)
            held, size = [], 0
    if held:
        yield _joined(held)


def _joined(coded: list[bytes]) -> TextPiece:
    return np.frombuffer(b"".join(coded), np.uint8), np.array([len(c) for c in coded], np.uint32)


def spans_of_bytes(offsets: NDArray[np.int64], most: int) -> Iterator[tuple[int, int]]:
    """Cut texts into runs of at most `most` bytes, or of one text that has more.

    `offsets`: where each text begins, and the last one ends, shape (texts + 1,). `most`: bytes. Yields first,
    stop: texts `first` to `stop` - 1.

    >>> list(spans_of_bytes(np.array([0, 3, 5, 30, 31]), 5))
    [(0, 2), (2, 3), (3, 4)]
    """
    first, count = 0, offsets.size - 1
    while first < count:
        stop = int(np.searchsorted(offsets, offsets[first] + most, side="right")) - 1
        stop = min(max(stop, first + 1), count)
        yield first, stop
        first = stop


class StoredLabels:
    """Labels of an open store."""

    def __init__(self, offsets: StoredArray, text: StoredArray) -> None:
        self._offsets = offsets
        self._text = text

    def take(self, rows: NDArray[np.integer[Any]]) -> list[str]:
        """Labels of the rows, in the order asked for.

        Labels that lie near each other are read together, up to `PIECE_BYTES` at a time, so a few labels cost
        a few chunks and all labels cost one reading.

        Raises DamagedError if the bytes are not what was written.
        """
        labels = [""] * len(rows)
        for lo, hi, where in self._offsets.spans(rows):
            offsets = self._bounds(lo, hi)
            at = rows[where] - lo
            starts, ends = offsets[at], offsets[at + 1]
            first = 0
            while first < at.size:
                stop = max(first + 1, int(np.searchsorted(ends, starts[first] + PIECE_BYTES, side="right")))
                begin = int(starts[first])
                text = self._text.read(begin, int(ends[stop - 1])).tobytes()
                for k in range(first, stop):
                    labels[int(where[k])] = self._decode(text[int(starts[k]) - begin : int(ends[k]) - begin])
                first = stop
        return labels

    def pieces(self, lo: int, hi: int) -> Iterator[TextPiece]:
        """Yield labels of rows lo to hi - 1, of up to `PIECE_BYTES` at a time unless one alone has more.

        Raises DamagedError if the bytes are not what was written.
        """
        for first in range(lo, hi, _LABELS_CHUNK):
            offsets = self._bounds(first, min(first + _LABELS_CHUNK, hi))
            lengths = np.diff(offsets).astype(np.uint32)
            for start, stop in spans_of_bytes(offsets, PIECE_BYTES):
                text: NDArray[np.uint8] = self._text.read(int(offsets[start]), int(offsets[stop]))
                self._check_text(text, offsets[start:stop] - offsets[start])
                yield text, lengths[start:stop]

    def _bounds(self, lo: int, hi: int) -> NDArray[np.int64]:
        """Where the labels of rows lo to hi - 1 begin, and the last one ends."""
        offsets: NDArray[np.int64] = self._offsets.read(lo, hi + 1)
        if (np.diff(offsets) < 0).any():
            raise DamagedError(f"{self._offsets.origin}: the labels from row {lo} on are out of order.")
        return offsets

    def _check_text(self, text: NDArray[np.uint8], starts: NDArray[np.int64]) -> None:
        self._decode(text.tobytes())
        # A letter of several bytes must not be divided between two labels.
        first = text[starts[starts < text.size]]
        if (first & 0xC0 == 0x80).any():
            raise DamagedError(f"{self._text.origin}: a label begins within a letter.")

    def _decode(self, text: bytes) -> str:
        try:
            return text.decode()
        except UnicodeDecodeError as error:
            raise DamagedError(f"{self._text.origin}: a label is not UTF-8: {error}.") from error
