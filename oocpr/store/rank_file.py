"""Rank vectors on disk: a Zarr group with an array ``rank`` in the order of the graph's rows."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr

from oocpr.errors import DamagedError, InputError, UsageError
from oocpr.store.atomic import NewFolder, naming_failures
from oocpr.store.format import CHECKSUM_KEY, LABEL_BYTES, LABEL_OFFSETS, RANKS_KEY, metadata_checksum
from oocpr.store.labels import StoredLabels, write_labels
from oocpr.store.zarr_arrays import (
    Appender,
    StoredArray,
    check_array,
    open_zarr_store,
    read_documents,
    write_attributes,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from oocpr.store.labels import TextPiece

_RANK, _NODE = "rank", "node"
_NODES = ("", _RANK, _NODE, "labels", LABEL_OFFSETS, LABEL_BYTES)
_CHUNK = 1 << 18
_REMEDY = "Rank the graph again, or restore the file from a copy."


class RankFile:
    """Ranks on disk, read in pieces; get one with :func:`open_ranks`.

    `path`: where they are.
    """

    def __init__(self, path: str, arrays: Mapping[str, StoredArray], attributes: dict[str, Any]) -> None:
        self.path = path
        self.attributes = attributes
        self._arrays = arrays
        self.size = arrays[_RANK].size

    def read(self, lo: int, hi: int) -> NDArray[np.float64]:
        """Ranks of rows lo to hi - 1; raises DamagedError."""
        ranks = self._arrays[_RANK].read(lo, hi)
        if not np.isfinite(ranks).all():
            raise DamagedError(f"{self.path}: a rank of rows {lo} to {hi - 1} is not finite.", _REMEDY)
        return ranks

    def chunks(self) -> Iterator[NDArray[np.float64]]:
        """Yield all ranks in order, in the pieces in which they are stored; raises DamagedError."""
        step = self._arrays[_RANK].chunk
        for lo in range(0, self.size, step):
            yield self.read(lo, min(self.size, lo + step))

    def nodes(self, rows: NDArray[np.integer[Any]]) -> list[int] | list[str]:
        """Name the nodes of some rows: their labels, else their ids, else the rows themselves.

        `rows`: shape (k,). Raises DamagedError if the bytes are not what was written.
        """
        if LABEL_OFFSETS in self._arrays:
            return StoredLabels(self._arrays[LABEL_OFFSETS], self._arrays[LABEL_BYTES]).take(rows)
        if _NODE in self._arrays:
            rows = self._arrays[_NODE].take(rows)
        numbers: list[int] = rows.tolist()
        return numbers

    def names(self, nodes: int) -> Iterator[NDArray[np.int64] | TextPiece]:
        """Yield the names of the first `nodes` nodes in order, ids or labels, in bounded pieces.

        Raises DamagedError if the bytes are not what was written.
        """
        if LABEL_OFFSETS in self._arrays:
            yield from StoredLabels(self._arrays[LABEL_OFFSETS], self._arrays[LABEL_BYTES]).pieces(0, nodes)
            return
        for lo in range(0, nodes, _CHUNK):
            hi = min(nodes, lo + _CHUNK)
            yield self._arrays[_NODE].read(lo, hi) if _NODE in self._arrays else np.arange(lo, hi)


def write_ranks(
    path: str | os.PathLike[str],
    blocks: Iterable[NDArray[np.float64]],
    n: int,
    attributes: Mapping[str, Any],
    *,
    node_ids: Iterable[NDArray[np.integer[Any]]] | None = None,
    labels: Iterable[str] | Iterable[TextPiece] | None = None,
) -> None:
    """Write ranks under a temporary name that becomes `path` when they are whole.

    `blocks`: the ranks in pieces, float64, `n` in all. `node_ids`, `labels`: ids (in pieces, integers) or
    labels of the nodes (one by one, or UTF-8 end to end with lengths), if they are not 0 .. n - 1 in
    order. Raises UsageError if something else than ranks stands at `path`, or there are not `n` of them;
    DoesNotFitError if the disk is full.

    >>> import tempfile
    >>> import numpy as np
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_ranks(f"{folder}/r.zarr", [np.array([0.75, 0.25])], 2, {}, labels=["libc6", "perl"])
    ...     ranks = open_ranks(f"{folder}/r.zarr")
    ...     ranks.read(0, 2).tolist(), ranks.nodes(np.array([1]))
    ([0.75, 0.25], ['perl'])
    """
    new = NewFolder(path, overwrite=True, marker=RANKS_KEY)
    try:
        with naming_failures(new.path):
            root = zarr.create_group(str(new.temporary), zarr_format=3)
            counts = {_RANK: _append(root, _RANK, "float64", blocks)}
            if node_ids is not None:
                counts[_NODE] = _append(root, _NODE, "int64", node_ids)
            if labels is not None:
                counts["labels"] = write_labels(root, labels)
            for name, count in counts.items():
                if count != n:
                    raise UsageError(f"{count} entries of {name} for {n} nodes.", "Give one for each node.")
            write_attributes(root, RANKS_KEY, dict(attributes), _NODES)
        new.publish()
    finally:
        new.discard()


def _append(root: zarr.Group, name: str, dtype: str, pieces: Iterable[NDArray[Any]]) -> int:
    array = Appender(root, name, dtype, _CHUNK)
    for piece in pieces:
        array.append(piece)
    array.close()
    return array.size


def _check_arrays(name: str, documents: Mapping[str, Any]) -> None:
    """Compare types and sizes of all arrays with each other, and with what `write_ranks` writes."""
    if _RANK not in documents or (LABEL_OFFSETS in documents) != (LABEL_BYTES in documents):
        raise DamagedError(f"{name}: an array is missing.", _REMEDY)
    check_array(name, _RANK, documents[_RANK], ("float64",), None)
    (size,) = documents[_RANK]["shape"]
    entries = {_NODE: ("int64", size), LABEL_OFFSETS: ("int64", size + 1), LABEL_BYTES: ("uint8", None)}
    for path, (kind, wanted) in entries.items():
        if path in documents:
            check_array(name, path, documents[path], (kind,), wanted)


def open_ranks(path: str | os.PathLike[str]) -> RankFile:
    """Open ranks that write_ranks wrote.

    Raises InputError if there are no ranks; DamagedError if the metadata are not what was written.
    """
    name = os.fspath(path)
    remedy = "Name a file that `oocpr rank -o` wrote."
    if "://" not in name and not os.path.isdir(name):  # noqa: PTH112 - Path.is_dir has errors for long names
        raise InputError(f"{name} does not exist or is no folder.", remedy)
    store = open_zarr_store(path)
    try:
        documents = read_documents(store, _NODES, name)
        attributes = documents.get("", {}).get("attributes", {})
        if not isinstance(attributes, dict) or not isinstance(attributes.get(RANKS_KEY), dict):
            if _RANK in documents:
                raise DamagedError(f"{name}: the attributes of the root are gone.", _REMEDY)
            raise InputError(f"{name} is no file of ranks.", remedy)
        own = dict(attributes[RANKS_KEY])
        checksum = metadata_checksum(documents, RANKS_KEY)
    except RecursionError:
        raise DamagedError(
            f"{name}: the metadata (zarr.json files) are nested too deeply.", _REMEDY
        ) from None
    if own.pop(CHECKSUM_KEY, None) != checksum:
        raise DamagedError(f"{name}: the metadata (zarr.json files) are not what was written.", _REMEDY)
    _check_arrays(name, documents)
    arrays = {node: StoredArray(store, node, name) for node in documents if node not in ("", "labels")}
    return RankFile(name, arrays, own)
