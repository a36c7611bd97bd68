"""Data of nodes: labels, which are UTF-8 end to end with offsets, and files of ranks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
from numpy.typing import NDArray

from oocpr.errors import DamagedError, InputError, UsageError
from oocpr.store.atomic import NewFolder
from oocpr.store.codec.zarr_codecs import PackedInts
from oocpr.store.format import (
    CHECKSUM_KEY,
    LABEL_BYTES,
    LABEL_OFFSETS,
    RANKS_KEY,
    metadata_checksum,
    own_attributes,
)
from oocpr.store.integrity import check_array
from oocpr.store.zarr_arrays import (
    Appender,
    StoredArray,
    open_zarr_store,
    read_documents,
    write_array,
    write_attributes,
    writing,
)
from oocpr.system import spans

if TYPE_CHECKING:
    TextPiece = tuple[NDArray[np.uint8], NDArray[np.integer[Any]]]


_LABELS_CHUNK = 1 << 16
_BYTES_CHUNK = 1 << 20

PIECE_BYTES = 1 << 21  # max of labels that are read or written at a time, unless one alone has more


def write_labels(group: zarr.Group, labels: Iterable[str] | Iterable[TextPiece]) -> int:
    """Write labels, one by one or in pieces, into a store's root group; returns how many there were."""
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
    r"""Yield labels in pieces: UTF-8 end to end, and the length of each in bytes.

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
            yield _to_piece(held)
            held, size = [], 0
    if held:
        yield _to_piece(held)


def _to_piece(coded: list[bytes]) -> TextPiece:
    return np.frombuffer(b"".join(coded), np.uint8), np.array([len(c) for c in coded], np.uint32)


def spans_of_bytes(offsets: NDArray[np.int64], max_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield first and stop of runs of texts that have at most `max_bytes`, or are one text that has more.

    `offsets`: where each text begins, and the last one ends, shape (texts + 1,).

    >>> list(spans_of_bytes(np.array([0, 3, 5, 30, 31]), 5))
    [(0, 2), (2, 3), (3, 4)]
    """
    first, count = 0, offsets.size - 1
    while first < count:
        stop = int(np.searchsorted(offsets, offsets[first] + max_bytes, side="right")) - 1
        stop = min(max(stop, first + 1), count)
        yield first, stop
        first = stop


class StoredLabels:
    """Labels of an open store; what reads them raises DamagedError if they are not what was written."""

    def __init__(self, offsets: StoredArray, text: StoredArray) -> None:
        self._offsets = offsets
        self._text = text

    def take(self, rows: NDArray[np.integer[Any]]) -> list[str]:
        """Labels of the rows, in the order asked for; those near each other are read together."""
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
        """Yield labels of rows lo to hi - 1 in pieces."""
        for first, last in spans(hi, _LABELS_CHUNK, lo):
            offsets = self._bounds(first, last)
            lengths = np.diff(offsets).astype(np.uint32)
            for start, stop in spans_of_bytes(offsets, PIECE_BYTES):
                text: NDArray[np.uint8] = self._text.read(int(offsets[start]), int(offsets[stop]))
                self._check_text(text, offsets[start:stop] - offsets[start])
                yield text, lengths[start:stop]

    def _bounds(self, lo: int, hi: int) -> NDArray[np.int64]:
        """Where the labels of rows lo to hi - 1 begin, and where the last one ends."""
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


_RANK, _NODE = "rank", "node"
_RANK_NODES = ("", _RANK, _NODE, "labels", LABEL_OFFSETS, LABEL_BYTES)
_RANKS_CHUNK = 1 << 18
_RANK_AGAIN = "Rank the graph again, or restore the file from a copy."


class RankFile:
    """Ranks on disk, in the order of the graph's rows; get one with :func:`open_ranks`.

    What reads them raises DamagedError if the bytes are not what was written.
    """

    def __init__(self, path: str, arrays: Mapping[str, StoredArray], attributes: dict[str, Any]) -> None:
        self.path = path
        self.attributes = attributes
        self._arrays = arrays
        self.size = arrays[_RANK].size
        labeled = LABEL_OFFSETS in arrays
        self._labels = StoredLabels(arrays[LABEL_OFFSETS], arrays[LABEL_BYTES]) if labeled else None

    def read(self, lo: int, hi: int) -> NDArray[np.float64]:
        """Ranks of rows lo to hi - 1."""
        ranks = self._arrays[_RANK].read(lo, hi)
        if not np.isfinite(ranks).all():
            raise DamagedError(f"{self.path}: a rank of rows {lo} to {hi - 1} is not finite.", _RANK_AGAIN)
        return ranks

    def chunks(self) -> Iterator[NDArray[np.float64]]:
        """Yield all ranks in order, in the pieces in which they are stored."""
        for piece in spans(self.size, self._arrays[_RANK].chunk):
            yield self.read(*piece)

    def nodes(self, rows: NDArray[np.integer[Any]]) -> list[int] | list[str]:
        """Name the nodes of some rows: their labels, else their ids, else the rows themselves."""
        if self._labels is not None:
            return self._labels.take(rows)
        if _NODE in self._arrays:
            rows = self._arrays[_NODE].take(rows)
        numbers: list[int] = rows.tolist()
        return numbers

    def names(self, nodes: int) -> Iterator[NDArray[np.int64] | TextPiece]:
        """Yield the names of the first `nodes` nodes in order, ids or labels, in bounded pieces."""
        if self._labels is not None:
            yield from self._labels.pieces(0, nodes)
            return
        for lo, hi in spans(nodes, _RANKS_CHUNK):
            yield self._arrays[_NODE].read(lo, hi) if _NODE in self._arrays else np.arange(lo, hi)


def write_rank_file(
    path: str | os.PathLike[str],
    blocks: Iterable[NDArray[np.float64]],
    n: int,
    attributes: Mapping[str, Any],
    *,
    node_ids: Iterable[NDArray[np.integer[Any]]] | None = None,
    labels: Iterable[str] | Iterable[TextPiece] | None = None,
) -> None:
    """Write `n` ranks, given in pieces, under a temporary name that becomes `path` when they are whole.

    `node_ids`, `labels`: ids in pieces, or labels one by one or in pieces, unless nodes are 0 to n - 1 in
    order. Raises UsageError if something else than ranks is at `path`, or there are not `n` of them;
    DoesNotFitError if the disk is full.
    """
    new = NewFolder(path, overwrite=True, marker=RANKS_KEY)
    try:
        with writing(new.path):
            root = zarr.create_group(str(new.temporary), zarr_format=3)
            counts = {_RANK: write_array(root, _RANK, "float64", blocks, _RANKS_CHUNK)[0]}
            if node_ids is not None:
                counts[_NODE] = write_array(root, _NODE, "int64", node_ids, _RANKS_CHUNK)[0]
            if labels is not None:
                counts["labels"] = write_labels(root, labels)
            for name, count in counts.items():
                if count != n:
                    raise UsageError(f"{count} entries of {name} for {n} nodes.", "Give one for each node.")
            write_attributes(root, RANKS_KEY, dict(attributes), _RANK_NODES)
        new.publish()
    finally:
        new.discard()


def _check_rank_arrays(name: str, documents: Mapping[str, Any]) -> None:
    """Raise DamagedError unless the arrays are such as `write_rank_file` writes."""
    if _RANK not in documents or (LABEL_OFFSETS in documents) != (LABEL_BYTES in documents):
        raise DamagedError(f"{name}: an array is missing.", _RANK_AGAIN)
    check_array(name, _RANK, documents[_RANK], ("float64",), None)
    (size,) = documents[_RANK]["shape"]
    entries = {_NODE: ("int64", size), LABEL_OFFSETS: ("int64", size + 1), LABEL_BYTES: ("uint8", None)}
    for path, (kind, wanted) in entries.items():
        if path in documents:
            check_array(name, path, documents[path], (kind,), wanted)


def open_ranks(path: str | os.PathLike[str]) -> RankFile:
    """Open ranks; InputError if there are none, DamagedError if the metadata are not what was written."""
    name = os.fspath(path)
    remedy = "Name a file that `oocpr rank -o` wrote."
    if "://" not in name and not os.path.isdir(name):  # noqa: PTH112 - Path.is_dir has errors for long names
        raise InputError(f"{name} does not exist or is no folder.", remedy)
    store = open_zarr_store(path)
    try:
        documents = read_documents(store, _RANK_NODES, name)
        own = own_attributes(documents, RANKS_KEY)
        if own is None:
            if _RANK in documents:
                raise DamagedError(f"{name}: the attributes of the root are gone.", _RANK_AGAIN)
            raise InputError(f"{name} is no file of ranks.", remedy)
        checksum = metadata_checksum(documents, RANKS_KEY)
    except RecursionError:
        raise DamagedError(
            f"{name}: the metadata (zarr.json files) are nested too deeply.", _RANK_AGAIN
        ) from None
    if own.pop(CHECKSUM_KEY, None) != checksum:
        raise DamagedError(f"{name}: the metadata (zarr.json files) are not what was written.", _RANK_AGAIN)
    _check_rank_arrays(name, documents)
    arrays = {node: StoredArray(store, node, name) for node in documents if node not in ("", "labels")}
    return RankFile(name, arrays, own)
