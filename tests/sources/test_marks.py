"""From every mark that a source gives, another one reads exactly what is left."""

from __future__ import annotations

import bz2
import csv
import gzip
import json
import lzma
import os
from functools import partial
from typing import TYPE_CHECKING, Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import coo_array, save_npz

from oocpr.errors import InputError
from oocpr.sources import open_source
from oocpr.sources.base import FileSource
from oocpr.sources.block import EdgeBlock, NodeBlock, ResumableSource, Strings
from oocpr.sources.locations import Front
from oocpr.sources.rmat import Rmat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from oocpr.sources.block import Block

IDS = np.random.default_rng(3).integers(0, 30, (2, 57))
WIDE = np.where(np.arange(57) < 40, IDS, IDS + 2**40)
NAMES = [[f"né{i}" for i in ids] for ids in IDS.tolist()]
LABELS = "".join(f"{name}\n" for name in sorted({*NAMES[0], *NAMES[1]}))


def ends(block: Block) -> list[Any]:
    """Edges, or nodes, of a block as Python values."""
    if isinstance(block, NodeBlock):
        return [("node", node) for node in strings(block.nodes)]
    return list(zip(strings(block.src), strings(block.dst), strict=True))


def strings(nodes: Any) -> list[Any]:
    if isinstance(nodes, Strings):
        text = nodes.text.tobytes()
        bounds = zip(nodes.starts.tolist(), nodes.ends.tolist(), strict=True)
        return [text[start:end].decode() for start, end in bounds]
    return list(nodes.tolist())


def lines(first: list[Any], second: list[Any], between: str = " ") -> str:
    return "".join(f"{u}{between}{v}\n" for u, v in zip(first, second, strict=True))


def text(folder: Path, ids: Any = IDS) -> Path:
    path = folder / "edges.txt"
    body = lines(*ids.tolist())
    path.write_text("\ufeff# a comment\n" + body[:100] + body[100:].replace("\n", "\r\n\n").rstrip())
    return path


def packed(folder: Path, suffix: str, pack: Callable[[bytes], bytes]) -> Path:
    plain = text(folder)
    path = folder / f"edges.txt{suffix}"
    path.write_bytes(pack(plain.read_bytes()))
    return path


def several(folder: Path) -> list[Path]:
    paths = [folder / f"part-{k}.txt" for k in range(3)]
    for k, path in enumerate(paths):
        path.write_text(lines(*IDS[:, k * 19 : (k + 1) * 19].tolist()))
    return paths


def named(folder: Path) -> Path:
    path = folder / "links.tsv"
    path.write_text("# names\n\n" + lines(*NAMES, between="\t"))
    return path


def matrix(folder: Path, symmetry: str) -> Path:
    path = folder / "matrix.mtx"
    body = "".join(f"{u + 1} {v + 1} {(u + v) % 3}\n" for u, v in IDS.T.tolist())
    path.write_text(f"%%MatrixMarket matrix coordinate integer {symmetry}\n30 30 57\n{body}")
    return path


def npz(folder: Path) -> Path:
    path = folder / "matrix.npz"
    save_npz(path, coo_array(((IDS[0] + IDS[1]) % 3, IDS), shape=(30, 30)))
    return path


def arrays(folder: Path, shape: str) -> list[Path]:
    if shape == "two":
        paths = [folder / "from.npy", folder / "to.npy"]
        for path, ids in zip(paths, IDS, strict=True):
            np.save(path, ids)
        return paths
    paths = [folder / f"{k}.npy" for k in range(3)]
    for k, path in enumerate(paths):
        part = IDS[:, k * 19 : (k + 1) * 19]
        np.save(path, part if shape == "rows" else part.T)
    return paths


def parquet(folder: Path, kind: str) -> Path:
    path = folder / "parts"
    path.mkdir()
    columns = NAMES if kind == "named" else IDS.tolist()
    for k in range(3):
        part = [column[k * 19 : (k + 1) * 19] for column in columns]
        pq.write_table(pa.table(part, names=["from", "to"]), path / f"{k}.parquet", row_group_size=7)
    return path


def table(folder: Path, kind: str) -> list[Path]:
    names = [[f'a "{node}",\n{node}' for node in ids] for ids in NAMES] if kind == "named" else IDS.tolist()
    paths = [folder / f"{k}.{'jsonl' if kind == 'json' else 'csv'}" for k in range(2)]
    for k, path in enumerate(paths):
        rows = list(zip(*(column[k * 29 : (k + 1) * 29] for column in names), strict=True))
        with path.open("w", newline="", encoding="utf-8-sig" if kind == "ids" else "utf-8") as file:
            if kind == "json":
                file.writelines(json.dumps({"from": u, "to": v}) + "\n" for u, v in rows)
            else:
                csv.writer(file).writerows([("from", "to")] * (kind == "named") + rows)
    return paths


def headed(folder: Path) -> list[Path]:
    paths = several(folder)
    for path in paths:
        path.write_text("# more\nsrc dst\n" + path.read_text())
    return paths


def pages(folder: Path, kind: str) -> Path:
    path = folder / f"pages.{kind}"
    if kind == "gr0":
        path.write_text(
            "".join(f"n {k} page{k}\n" for k in range(30))
            + "".join(f"e {u} {v}\n" for u, v in IDS.T.tolist())
        )
    else:
        path.write_text(
            "30 57\n" + "".join(f"{k} page{k}\n" for k in range(1, 31)) + lines(*(IDS + 1).tolist())
        )
    return path


SOURCES: dict[str, tuple[Callable[[Path], Any], dict[str, Any]]] = {
    "text": (text, {}),
    "text, ids of 64 bits": (partial(text, ids=WIDE), {}),
    "text.gz": (partial(packed, suffix=".gz", pack=gzip.compress), {}),
    "text.xz": (partial(packed, suffix=".xz", pack=lzma.compress), {}),
    "text.bz2": (partial(packed, suffix=".bz2", pack=bz2.compress), {}),
    "several": (several, {}),
    "text, headers": (headed, {}),
    "csv": (partial(table, kind="ids"), {}),
    "csv, names": (partial(table, kind="named"), {}),
    "jsonl": (partial(table, kind="json"), {}),
    "undirected": (several, {"undirected": True}),
    "names": (named, {}),
    "names, listed": (named, {"labels": "all"}),
    "matrixmarket": (partial(matrix, symmetry="general"), {}),
    "symmetric": (partial(matrix, symmetry="symmetric"), {}),
    "npz": (npz, {}),
    "npy, two": (partial(arrays, shape="two"), {}),
    "npy, rows": (partial(arrays, shape="rows"), {}),
    "npy, columns": (partial(arrays, shape="columns"), {}),
    "parquet": (partial(parquet, kind="ids"), {}),
    "parquet, names": (partial(parquet, kind="named"), {}),
    "parquet, listed": (partial(parquet, kind="named"), {"labels": "all"}),
    "gr0": (partial(pages, kind="gr0"), {"format": "gr0"}),
    "hollins": (partial(pages, kind="hollins"), {"format": "hollins"}),
}


def opener(kind: str, folder: Path) -> Callable[[], Any]:
    """Make the files of a kind, and what opens them."""
    if kind == "rmat":
        return lambda: Rmat(4, edge_factor=3)
    make, ways = SOURCES[kind]
    made = make(folder)
    if "labels" in ways:
        (folder / "all").write_text(LABELS)
        ways = {"labels": folder / "all"}
    return lambda: open_source(made, **ways)


def facts(source: Any) -> tuple[Any, ...]:
    labels = None if source.labels is None else list(source.labels)
    return source.nodes, labels, source.notices, source.closed


def marked(source: Any, max_edges: int) -> Iterator[tuple[Block, Any]]:
    for block in source.blocks(max_edges):
        yield block, json.loads(json.dumps(source.mark))


@pytest.mark.parametrize("kind", [*SOURCES, "rmat"])
@pytest.mark.parametrize(("before", "after"), [(5, 5), (4, 9), (9, 2), (1, 100)])
def test_reading_goes_on_behind_any_mark(
    tmp_path: Path, kind: str, before: int, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SHOWN_BYTES", "_LEAST_BYTES", "_MOST_BYTES"):
        monkeypatch.setattr(f"oocpr.sources.formats.csv_json.{name}", 64)
    opened = opener(kind, tmp_path)
    whole = opened()
    read = list(marked(whole, before))
    marks = [number for number, (_, mark) in enumerate(read, 1) if mark is not None]
    assert len(marks) > 2 or before == 100
    assert marks[-1] == len(read)
    for number in marks:
        rest = opened()
        assert isinstance(rest, ResumableSource)
        assert rest.identity() == whole.identity()
        rest.skip_to(read[number - 1][1])
        left = [edge for block in rest.blocks(after) for edge in ends(block)]
        expected = [edge for block, _ in read[number:] for edge in ends(block)]
        # Both directions of an edge follow each other block by block, whatever the blocks.
        assert left == expected or (kind in ("undirected", "symmetric") and sorted(left) == sorted(expected))
        assert facts(rest) == facts(whole)


@pytest.mark.parametrize("kind", ["text", "names"])
def test_what_was_read_is_not_read_again(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oocpr.sources.formats.edge_list._MOST_BYTES", 64)
    opened = opener(kind, tmp_path)
    source = opened()
    *_, (_, mark) = marked(source, 5)
    rest = opened()
    rest.skip_to(mark)
    read = 0

    def counted(*arguments: Any) -> int:
        nonlocal read
        read += (got := readinto(*arguments))
        return got

    readinto = Front.readinto
    monkeypatch.setattr(Front, "readinto", counted)
    assert list(rest.blocks(5)) == []
    assert read < 100 < source.size / 2


def test_a_line_that_cannot_be_read_keeps_its_number(tmp_path: Path) -> None:
    path = tmp_path / "edges.txt"
    path.write_text("# first\n" + "1 2\n" * 20 + "three 4\n")
    source = open_source(path)
    _, mark = next(marked(source, 5))
    rest = open_source(path)
    rest.skip_to(mark)  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="line 22: 'three 4'"):
        list(rest.blocks(5))


@given(st.lists(st.integers(1, 9), min_size=1), st.integers(0, 60), st.integers(1, 9))
def test_edges_before_a_mark_are_dropped_whatever_the_blocks(
    sizes: list[int], passed: int, again: int
) -> None:
    total = sum(sizes)
    ids = np.arange(total, dtype=np.uint32)
    source = FileSource("nowhere.txt")
    source.skip_to({"edges": passed})
    pieces = (EdgeBlock(ids[at : at + again], ids[at : at + again]) for at in range(0, total, again))
    left = [edge for block in source._unread(pieces) for edge in block.src.tolist()]
    assert left == list(range(passed, total))


class TestIdentity:
    def test_it_changes_with_the_file_and_with_how_it_is_read(self, tmp_path: Path) -> None:
        path = text(tmp_path)
        known = [open_source(path).identity(), open_source(path, undirected=True).identity()]  # type: ignore[attr-defined]
        (tmp_path / "edges.labels.txt").write_text(LABELS)
        known.append(open_source(path).identity())  # type: ignore[attr-defined]
        os.utime(path, ns=(0, 7))
        known.append(open_source(path).identity())  # type: ignore[attr-defined]
        path.write_text("1 2\n")
        known.append(open_source(path).identity())  # type: ignore[attr-defined]
        assert len({json.dumps(one) for one in known}) == len(known)

    def test_it_does_not_depend_on_the_way_to_the_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = text(tmp_path)
        monkeypatch.chdir(tmp_path)
        assert open_source("edges.txt").identity() == open_source(path).identity()  # type: ignore[attr-defined]

    def test_of_an_address_it_tells_when_the_file_is_another(self) -> None:
        known = []
        for body in (b"1 2\n", b"1 2\n2 3\n"):
            with fsspec.open("memory://marks/web.txt", "wb") as file:
                file.write(body)
            known.append(open_source("memory://marks/web.txt").identity())  # type: ignore[attr-defined]
        assert None not in known
        assert known[0] != known[1]

    @pytest.mark.parametrize("spec", ["-", (IDS[0], IDS[1])])
    def test_what_cannot_be_read_again_has_none(self, spec: Any) -> None:
        source = open_source(spec, format="text") if spec == "-" else open_source(spec)
        assert source.identity() is None  # type: ignore[attr-defined]
