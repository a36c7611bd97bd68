"""Stores that contradict themselves, made of sound ones, with all checksums repaired."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import google_crc32c
import numpy as np
import scipy.sparse
import zarr
from numpy.typing import NDArray
from zarr.codecs import Crc32cCodec, ZstdCodec

from oocpr.store.codec.tiles import encode_tile
from oocpr.store.codec.zarr_codecs import MantissaSegments, PackedInts
from oocpr.store.format import CHECKSUM_KEY, metadata_checksum
from tests.store import reference_codec as reference

if TYPE_CHECKING:
    from numpy.random import Generator

INDICES, DATA, INDPTR = "in_edges/indices", "in_edges/data", "in_edges/indptr"


class Tile(NamedTuple):
    """Columns of a tile and lengths of its segments."""

    columns: NDArray[np.uint32]
    lengths: NDArray[np.int64]


def document(path: Path, node: str) -> dict[str, Any]:
    """Metadata of a group or array."""
    found: dict[str, Any] = json.loads((path / node / "zarr.json").read_text())
    return found


def write_document(path: Path, node: str, found: Any) -> None:
    """Write metadata back, the checksum left as it is."""
    (path / node / "zarr.json").write_text(json.dumps(found))


def sign(path: Path, key: str = "oocpr") -> None:
    """Give the metadata of a store the checksum that they should have."""
    files = [file for file in path.rglob("zarr.json") if file.is_file()]
    nodes = [str(file.parent.relative_to(path)) for file in files]
    documents = {node.removeprefix("."): document(path, node) for node in nodes}
    root = documents[""]
    root["attributes"][key][CHECKSUM_KEY] = metadata_checksum(documents, key)
    write_document(path, "", root)


def attributes(path: Path) -> dict[str, Any]:
    """What a store says of its graph."""
    found: dict[str, Any] = document(path, "")["attributes"]["oocpr"]
    return found


def set_attribute(path: Path, name: str, value: Any) -> None:
    """Have a store say something else of its graph."""
    root = document(path, "")
    root["attributes"]["oocpr"][name] = value
    write_document(path, "", root)


def values(path: Path, name: str) -> NDArray[Any]:
    """All entries of an array."""
    return np.asarray(zarr.open_array(str(path / name), mode="r")[:])


def replace(path: Path, name: str, entries: NDArray[Any]) -> None:
    """Write an array anew, as the project does, of whatever type and size."""
    chunk = document(path, name)["chunk_grid"]["configuration"]["chunk_shape"]
    own = {INDPTR: PackedInts, "labels/offsets": PackedInts, DATA: MantissaSegments}.get(name)
    own = None if own is MantissaSegments and entries.dtype != np.float64 else own
    shutil.rmtree(path / name)
    array = zarr.open_group(str(path), mode="r+").create_array(
        name,
        shape=entries.shape,
        dtype=entries.dtype,
        chunks=tuple(chunk),
        serializer=own() if own else "auto",
        compressors=[Crc32cCodec()] if own else [ZstdCodec(level=3), Crc32cCodec()],
        fill_value=0,
        config={"write_empty_chunks": True},
    )
    array[:] = entries


def tile(path: Path, number: int) -> Tile:
    """Decode a tile with the reference decoder, which shares nothing with the compiled one."""
    coded = (path / INDICES / "c" / str(number)).read_bytes()[:-4]
    columns, lengths = reference.decode_tile(np.frombuffer(coded, np.uint8))
    return Tile(columns, lengths.astype(np.int64))


def write_tile(path: Path, number: int, made: Tile) -> None:
    """Write a tile, its checksum behind it."""
    write_chunk(path, f"{INDICES}/c/{number}", encode_tile(made.columns, made.lengths))


def write_chunk(path: Path, key: str, coded: bytes) -> None:
    """Write a chunk, its checksum behind it."""
    (path / key).write_bytes(coded + google_crc32c.value(coded).to_bytes(4, "little"))


def matrix(path: Path) -> scipy.sparse.csr_array:
    """The in-edges of a store by the reference decoder: entry (v, u) has the weight of the edge u to v."""
    rows = values(path, "tile_rows")
    nodes = int(rows[-1])
    found = [tile(path, number) for number in range(len(rows) - 1)]
    columns = np.concatenate([part.columns for part in found])
    of_row = [
        np.repeat(np.arange(first, first + len(part.lengths)), part.lengths)
        for first, part in zip(rows, found, strict=False)
    ]
    weights = values(path, DATA) if attributes(path)["weighted"] else np.ones(len(columns))
    return scipy.sparse.csr_array((weights, (np.concatenate(of_row), columns)), shape=(nodes, nodes))


def power_ranks(
    edges: scipy.sparse.csr_array, teleport: NDArray[np.float64] | None = None, damping: float = 0.85
) -> NDArray[np.float64]:
    """Ranks by textbook power iteration, until float64 knows no better."""
    nodes = edges.shape[0]
    sent = np.full(nodes, 1 / nodes) if teleport is None else teleport
    leaving = edges.sum(axis=0)
    linking = leaving > 0
    ranks = np.full(nodes, 1 / nodes)
    for _ in range(300):
        share = np.divide(ranks, leaving, out=np.zeros(nodes), where=linking)
        ranks = damping * (edges @ share) + (damping * ranks[~linking].sum() + 1 - damping) * sent
    return ranks


# What is done to a store: each takes its path and a generator, and leaves another store there.


def _degrees_swapped(path: Path, rng: Generator) -> None:
    degree = values(path, "out_degree")
    one = int(rng.integers(len(degree)))
    other = int(rng.choice(np.flatnonzero(degree != degree[one])))
    degree[[one, other]] = degree[[other, one]]
    replace(path, "out_degree", degree)


def _degrees_shifted(path: Path, rng: Generator) -> None:
    degree = values(path, "out_degree")
    one, other = rng.choice(np.flatnonzero(degree), 2, replace=False)
    degree[one] -= 1
    degree[other] += 1
    replace(path, "out_degree", degree)


def _degrees_permuted(path: Path, rng: Generator) -> None:
    replace(path, "out_degree", rng.permutation(values(path, "out_degree")))


def _degree_changed(path: Path, rng: Generator) -> None:
    degree = values(path, "out_degree")
    degree[rng.integers(len(degree))] = rng.choice([0, 1, 7, 2**16, 2**32 - 1])
    replace(path, "out_degree", degree)


def _degrees_all_alike(path: Path, rng: Generator) -> None:
    replace(path, "out_degree", np.full_like(values(path, "out_degree"), rng.integers(0, 5)))


def _degrees_of_another_type(path: Path, rng: Generator) -> None:
    degree = values(path, "out_degree").astype(rng.choice(["int8", "int64", "float64", "float32", "uint8"]))
    if degree.dtype.kind != "u":
        degree[rng.integers(len(degree), size=3)] = -1
    if degree.dtype.kind == "f":
        degree[rng.integers(len(degree))] = np.nan
    replace(path, "out_degree", degree)


def _column_changed(path: Path, rng: Generator) -> None:
    number = int(rng.integers(_last_tile(path) + 1))
    made = tile(path, number)
    nodes = attributes(path)["nodes"]
    begins = np.concatenate([[0], np.cumsum(made.lengths)])
    row = int(rng.choice(np.flatnonzero(made.lengths)))
    old = made.columns[begins[row] : begins[row + 1]]
    free = np.setdiff1d(np.arange(nodes + (rng.random() < 0.2) * 5), old)
    old[rng.integers(len(old))] = rng.choice(free)
    old.sort()
    write_tile(path, number, made)


def _last_tile(path: Path) -> int:
    return len(values(path, "tile_rows")) - 2


def _edges_moved(path: Path, rng: Generator) -> None:
    """One edge of a tile begins in another row; the columns stay, so the degrees fit."""
    number = int(rng.integers(_last_tile(path) + 1))
    columns, lengths = tile(path, number)
    row = int(rng.choice(np.flatnonzero(lengths)))
    to = row + 1 if row + 1 < len(lengths) else row - 1
    moved = lengths.copy()
    moved[row] -= 1
    moved[to] += 1
    # Columns ascend in every segment, whatever begins where.
    for end, length in zip(np.cumsum(moved).tolist(), moved.tolist(), strict=True):
        part = columns[end - length : end]
        part.sort()
        if len(np.unique(part)) < length:
            return _edges_lost(path, rng)
    return write_tile(path, number, Tile(columns, moved))


def _edges_lost(path: Path, rng: Generator) -> None:
    number = int(rng.integers(_last_tile(path) + 1))
    columns, lengths = tile(path, number)
    row = int(rng.choice(np.flatnonzero(lengths)))
    at = int(np.cumsum(lengths)[row]) - 1
    lengths[row] -= 1
    write_tile(path, number, Tile(np.delete(columns, at), lengths))


def _edges_for_nobody(path: Path, rng: Generator) -> None:
    """The last edges of the graph belong to the row behind the last one."""
    number = _last_tile(path)
    columns, lengths = tile(path, number)
    row = int(np.flatnonzero(lengths)[-1])
    lengths[-1], lengths[row] = lengths[row], 0
    write_tile(path, number, Tile(columns, lengths))


def _tiles_swapped(path: Path, rng: Generator) -> None:
    first = int(rng.integers(_last_tile(path) + 1))
    second = int(rng.integers(_last_tile(path) + 1))
    one, other = tile(path, first), tile(path, second)
    write_tile(path, first, other)
    write_tile(path, second, one)


def _tile_bytes_changed(path: Path, rng: Generator) -> None:
    key = f"{INDICES}/c/{rng.integers(_last_tile(path) + 1)}"
    coded = bytearray((path / key).read_bytes()[:-4])
    for _ in range(rng.integers(1, 4)):
        coded[rng.integers(len(coded)) if rng.random() < 0.5 else rng.integers(64)] = rng.integers(256)
    write_chunk(path, key, bytes(coded))


def _tile_cut(path: Path, rng: Generator) -> None:
    key = f"{INDICES}/c/{rng.integers(_last_tile(path) + 1)}"
    coded = (path / key).read_bytes()[:-4]
    write_chunk(path, key, coded[: rng.integers(len(coded))])


def _tile_rows_changed(path: Path, rng: Generator) -> None:
    rows = values(path, "tile_rows")
    rows[rng.integers(len(rows))] += rng.choice([-1, 1, -(10**6), 2**40])
    replace(path, "tile_rows", rows)


def _offsets_changed(path: Path, rng: Generator) -> None:
    offsets = values(path, INDPTR)
    offsets[rng.choice([0, -1, rng.integers(len(offsets))])] += rng.choice([-1, 1, -(2**40), 2**40])
    replace(path, INDPTR, offsets)


def _weights_changed(path: Path, rng: Generator) -> None:
    weights = values(path, DATA)
    weights[rng.integers(len(weights), size=2)] *= rng.choice([0, 2, -1, np.nan, np.inf, 1e300])
    replace(path, DATA, weights)


def _weights_swapped(path: Path, rng: Generator) -> None:
    weights = values(path, DATA)
    one, other = rng.integers(len(weights), size=2)
    weights[[one, other]] = weights[[other, one]]
    replace(path, DATA, weights)


def _weights_of_another_type(path: Path, rng: Generator) -> None:
    replace(path, DATA, values(path, DATA).astype(rng.choice(["float32", "int64", "float16"])))


def _sums_changed(path: Path, rng: Generator) -> None:
    sums = values(path, "out_weight")
    sums[rng.integers(len(sums))] = rng.choice([0, -1, 1, 1e-300, 1e300, np.nan, np.inf])
    replace(path, "out_weight", sums)


def _sums_permuted(path: Path, rng: Generator) -> None:
    replace(path, "out_weight", rng.permutation(values(path, "out_weight")))


def _sums_of_another_type(path: Path, rng: Generator) -> None:
    replace(path, "out_weight", values(path, "out_weight").astype(rng.choice(["float32", "int64", "uint8"])))


def _ids_changed(path: Path, rng: Generator) -> None:
    ids = values(path, "node_ids").astype(rng.choice(["int64", "int8", "float64", "uint32"]))
    ids[rng.integers(len(ids))] = rng.choice([0, 1, 5])
    replace(path, "node_ids", ids)


def _labels_changed(path: Path, rng: Generator) -> None:
    if rng.random() < 0.5:
        text = values(path, "labels/utf8")
        text[rng.integers(len(text))] = rng.choice([0xFF, 0, 10, 0xC3])
        replace(path, "labels/utf8", text)
    else:
        offsets = values(path, "labels/offsets")
        offsets[rng.integers(len(offsets))] += rng.choice([-1, 1, -(2**40), 2**40])
        replace(path, "labels/offsets", offsets)


def _attribute_changed(path: Path, rng: Generator) -> None:
    own = attributes(path)
    name = str(rng.choice([key for key, value in own.items() if isinstance(value, (int, bool))]))
    if name == CHECKSUM_KEY:
        name = "nodes"
    number = int(own[name])
    wrong = [0, 1, number + 1, max(0, number - 1), -1, 2**31, 2**40, 2**62, 2**70, True, 1.5, "7", None, [1]]
    set_attribute(path, name, wrong[rng.integers(len(wrong))])


def _everything_huge(path: Path, rng: Generator) -> None:
    """Counts and shapes of a graph that nobody has room for, all in accord."""
    nodes = int(rng.choice([2**31, 2**32 - 1, 2**40, 2**62]))
    set_attribute(path, "nodes", nodes)
    for name in ("out_degree", "out_weight", "node_ids", INDPTR, "labels/offsets"):
        if (path / name).exists():
            found = document(path, name)
            found["shape"] = [nodes + name.endswith(("indptr", "offsets"))]
            if rng.random() < 0.5:
                found["chunk_grid"]["configuration"]["chunk_shape"] = found["shape"]
            write_document(path, name, found)
    rows = values(path, "tile_rows")
    rows[-1] = nodes
    replace(path, "tile_rows", rows)


def _arrays(path: Path) -> list[str]:
    nodes = [str(file.parent.relative_to(path)) for file in path.rglob("zarr.json")]
    return sorted(node for node in nodes if document(path, node)["node_type"] == "array")


def _metadata_changed(path: Path, rng: Generator) -> None:
    name = str(rng.choice(_arrays(path)))
    found = document(path, name)
    size = found["shape"][0]
    what = int(rng.integers(6))
    if what == 0:
        shapes = [[size + 1], [size - 1], [0], [size, 1], [], [2**62], [-1], ["x"], [2**70]]
        found["shape"] = shapes[rng.integers(len(shapes))]
    elif what == 1:
        chunk = found["chunk_grid"]["configuration"]["chunk_shape"][0]
        chunks = [[1], [0], [-1], [chunk + 1], [2 * chunk], [2**31], [2**62], [chunk, 1], [], ["x"], None]
        found["chunk_grid"]["configuration"]["chunk_shape"] = chunks[rng.integers(len(chunks))]
    elif what == 2:
        types = ["int8", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64", "bool", "r8"]
        found["data_type"] = str(rng.choice(types))
    elif what == 3:
        fills = [7, -1, "NaN", 1.5, None, True, 2**70, [0]]
        found["fill_value"] = fills[rng.integers(len(fills))]
    elif what == 4:
        codecs = found["codecs"]
        more = [codecs[::-1], codecs[:1], [], codecs[:-1], [{"name": "unknown"}], codecs * 2, None, "x", [1]]
        found["codecs"] = more[rng.integers(len(more))]
    else:
        key = str(rng.choice(list(found)))
        odd = [None, 0, "x", [], {}, {"name": "default"}, {"name": "v2", "configuration": {"separator": "."}}]
        found[key] = odd[rng.integers(len(odd))]
    write_document(path, name, found)


def nested(depth: int) -> str:
    """JSON that is nested so deeply."""
    return '{"a":' * depth + "0" + "}" * depth


def _metadata_nested(path: Path, rng: Generator) -> None:
    name = str(rng.choice(["", *_arrays(path)]))
    (path / name / "zarr.json").write_text(nested(int(rng.choice([100, 900, 5_000, 100_000]))))


def _file_of_another_kind(path: Path, rng: Generator) -> None:
    files = sorted(file for file in path.rglob("*") if file.is_file())
    file = files[rng.integers(len(files))]
    file.unlink()
    what = rng.integers(8)
    if what == 0:
        file.mkdir()
    elif what == 1:
        os.mkfifo(file)
    elif what == 2:
        file.symlink_to(file.name)
    elif what == 3:
        file.symlink_to("/nonexistent")
    elif what == 4:
        file.symlink_to("/dev/zero")
    elif what == 5:
        file.touch()
    elif what == 6:
        file.write_bytes(bytes(100))


MUTATIONS: dict[str, Callable[[Path, Generator], None]] = {
    name.removeprefix("_"): function
    for name, function in list(globals().items())
    if name.startswith("_") and not name.startswith(("__", "_last", "_arrays")) and callable(function)
}
"""What can be done to a store, by name."""

_NEEDS = {"weights": DATA, "sums": "out_weight", "ids": "node_ids", "labels": "labels"}


def mutate(path: Path, rng: Generator) -> str:
    """Do something to a store, checksums repaired; returns what."""
    fitting = [
        name
        for name in MUTATIONS
        if name.split("_")[0] not in _NEEDS or (path / _NEEDS[name.split("_")[0]]).exists()
    ]
    name = str(rng.choice(fitting))
    MUTATIONS[name](path, rng)
    # Metadata that cannot be read have no checksum to be repaired.
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        sign(path)
    return name
