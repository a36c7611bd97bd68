"""Two hundred files that are no graphs, made by rules: each is refused in two lines, and nothing is left."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

import oocpr
from oocpr.system import resident

if TYPE_CHECKING:
    Run = Callable[..., Any]

TEXT = "".join(f"{u} {u * 7 % 100}\n" for u in range(100)).encode()
MTX = (
    b"%%MatrixMarket matrix coordinate pattern general\n100 100 100\n"
    + "".join(f"{u + 1} {u * 7 % 100 + 1}\n" for u in range(100)).encode()
)
GR0 = b"".join(b"n %d p%d\n" % (u, u) for u in range(50)) + b"".join(b"e %d 0\n" % u for u in range(50))
DAT = b"50 50\n" + b"".join(b"%d p%d\n" % (u, u) for u in range(1, 51))
DAT += b"".join(b"%d 1\n" % u for u in range(1, 51))
TSV = b"".join(b"a%d\tb%d\n" % (u, u) for u in range(100))
PACKERS = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}


def table() -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"from": range(500), "to": range(500)}), file, row_group_size=100)
    return file.getvalue()


def array() -> bytes:
    file = io.BytesIO()
    np.save(file, np.arange(200).reshape(100, 2))
    return file.getvalue()


def matrix() -> bytes:
    from scipy.sparse import csr_array, save_npz

    file = io.BytesIO()
    save_npz(file, csr_array(np.eye(20)))
    return file.getvalue()


def with_line(text: bytes, number: int, line: bytes) -> bytes:
    lines = text.splitlines(keepends=True)
    lines[number] = line + b"\n"
    return b"".join(lines)


BAD_LINES = [
    b"1", b"1 x", b"x 1", b"1 2 3 4", b"1.5 2", b"0x10 2", b"1,2", b"1;2", b"\x00\x01 2", b"9" * 40 + b" 1",
    b"-" + b"9" * 30 + b" 1", b"\xff\xfe1 2", b"nan 1", b"1 inf", b"1e3 2", b"+1 2", b"1 --2",
    "\uff11 \uff12".encode(), b"1 2 x # fine", b"1 2\r3 4",
    b"1\x0b2", b"\"1\" \"2\"", b"[1, 2]", b"{\"from\": 1}", b"<a href=1>",
]  # fmt: skip


def cases() -> Iterator[tuple[str, bytes]]:
    """Name and contents of each file."""
    random = np.random.default_rng(7)
    for line in BAD_LINES:
        for number in (0, 50, -1):
            yield "web.txt", with_line(TEXT, number, line)
        yield "web.mtx", with_line(MTX, 60, line)
    for suffix, pack in PACKERS.items():
        packed = pack(TEXT)
        for keep in (1, 5, len(packed) // 2, -1):
            yield f"web.txt{suffix}", packed[:keep]
        flipped = bytearray(packed)
        flipped[len(flipped) // 2] ^= 0xFF
        yield f"web.txt{suffix}", bytes(flipped)
        yield f"web.txt{suffix}", TEXT
    yield from (("web.txt", TEXT.decode().encode(code)) for code in ("utf-16", "utf-32", "utf-16-be"))
    yield "web.txt", b""
    yield "web.txt", b"# nothing\n"
    yield "web.txt", b"\n" * 1000
    for kind, whole in (("parquet", table()), ("npy", array()), ("npz", matrix())):
        for keep in (0, 4, 8, 100, len(whole) // 2, -1, -8):
            yield f"web.{kind}", whole[:keep]
    for head in (
        b"100 100 99", b"100 100 101", b"100 99 100", b"10 10 100", b"x y z", b"", b"-1 -1 100", b"100 100",
        b"5000000000 5000000000 1", b"100 100 99999999999999999999",
    ):  # fmt: skip
        yield "web.mtx", with_line(MTX, 1, head)
    for head in (
        b"%%MatrixMarket matrix array real general",
        b"%%MatrixMarket matrix coordinate complex general",
        b"%%MatrixMarket matrix coordinate pattern hermitian",
        b"%%MatrixMarket",
        b"% none",
    ):
        yield "web.mtx", with_line(MTX, 0, head)
    for number, line in ((10, b"n 11 x"), (10, b"n 10"), (60, b"e 0"), (60, b"e 0 77"), (60, b"f 0 1")):
        yield "web.gr0", with_line(GR0, number, line)
    for number, line in ((0, b"50"), (0, b"50 51"), (0, b"51 50"), (9, b"10 x"), (60, b"0 1"), (60, b"1 51")):
        yield "web.dat", with_line(DAT, number, line)
    for line in (b"one", b"a\tb\tc", b"\tb", b"a\t", b"a\xff\tb", b"\xc3\tb"):
        yield "web.tsv", with_line(TSV, 50, line)
    for number in range(18):
        noise = random.integers(0, 256, 2000).astype(np.uint8).tobytes()
        yield ("web.txt", "web.mtx", "web.dat", "web.parquet", "web.npy", "web.npz")[number % 6], noise
    for pack in (gzip.compress, bz2.compress, lzma.compress):
        bomb = pack(bytes(50 << 20))
        yield "web.txt" + {gzip.compress: ".gz", bz2.compress: ".bz2", lzma.compress: ".xz"}[pack], bomb


CASES = list(cases())


def test_there_are_two_hundred() -> None:
    assert len(CASES) >= 200
    assert len(set(CASES)) > 195


@pytest.mark.long
def test_each_is_refused_and_nothing_is_left(fails: Run, tmp_path: Path) -> None:
    # What is compiled to read whole files stays.
    whole = {"txt": TEXT, "mtx": MTX, "gr0": GR0, "dat": DAT, "tsv": TSV, "parquet": table(), "npy": array()}
    for kind, data in (whole | {"npz": matrix()}).items():
        (tmp_path / f"good.{kind}").write_bytes(data)
        oocpr.import_graph(tmp_path / f"good.{kind}", tmp_path / f"{kind}.zarr")
    before = resident()
    for number, (name, data) in enumerate(CASES):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        (folder / name).write_bytes(data)
        began = time.monotonic()
        try:
            cause = fails(2, "import", folder / name, "-o", tmp_path / "g.zarr")
        except (AssertionError, ValueError) as error:
            pytest.fail(f"case {number}, {name}, {data[:80]!r}: {error}")
        assert time.monotonic() - began < 10
        assert name.split(".")[0] in cause or re.search("no nodes|no edges", cause), (number, cause)
    assert resident() - before < 100 << 20
