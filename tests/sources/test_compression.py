"""Compressed files: read as they were, refused if they are cut or damaged."""

from __future__ import annotations

import bz2
import gzip
import lzma

import pytest
import zstandard

from oocpr.errors import InputError
from oocpr.sources import open_source
from oocpr.sources.compression import ByteStream

TEXT = "".join(f"{k * 7919 % 10007} {k * 104729 % 10007}\n" for k in range(20_000)).encode()
COMPRESS = {
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,
}


def drain(path) -> tuple[bytes, list[int]]:
    pieces, positions = [], []
    with ByteStream(path) as stream:
        view = memoryview(bytearray(10_000))
        while read := stream.readinto(view):
            pieces.append(view[:read].tobytes())
            positions.append(stream.position)
        assert stream.position == stream.size
    return b"".join(pieces), positions


@pytest.mark.parametrize("suffix", ["", *COMPRESS])
def test_a_file_reads_as_it_was_and_tells_how_far_it_is(tmp_path, suffix):
    path = tmp_path / f"graph.txt{suffix}"
    path.write_bytes(COMPRESS[suffix](TEXT) if suffix else TEXT)
    text, positions = drain(path)
    assert text == TEXT
    assert positions == sorted(positions)
    assert 0 < positions[-1] <= path.stat().st_size


@pytest.mark.parametrize("suffix", COMPRESS)
def test_members_one_after_the_other_are_one_file(tmp_path, suffix):
    path = tmp_path / f"graph.txt{suffix}"
    path.write_bytes(COMPRESS[suffix](TEXT[:1000]) + COMPRESS[suffix](TEXT[1000:]))
    assert drain(path)[0] == TEXT


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_packing_is_recognised_without_its_suffix(tmp_path, suffix):
    path = tmp_path / "graph.txt"
    path.write_bytes(COMPRESS[suffix](TEXT))
    assert drain(path)[0] == TEXT


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("share", [0.5, 0.9, 1.0])
def test_an_archive_cut_anywhere_ends_in_the_middle(tmp_path, suffix, share):
    compressed = COMPRESS[suffix](TEXT)
    path = tmp_path / f"graph.txt{suffix}"
    path.write_bytes(compressed[: min(int(len(compressed) * share), len(compressed) - 1)])
    with pytest.raises(InputError, match="ends in the middle") as caught:
        drain(path)
    assert str(path) in caught.value.cause
    assert "Fetch" in caught.value.remedy
    with pytest.raises(InputError, match="ends in the middle"):
        list(open_source(path, format="text").blocks(1000))


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_flipped_byte_is_found(tmp_path, suffix):
    compressed = bytearray(COMPRESS[suffix](TEXT))
    compressed[len(compressed) // 2] ^= 0xFF
    path = tmp_path / f"graph.txt{suffix}"
    path.write_bytes(compressed)
    with pytest.raises(InputError, match=r"damaged|ends in the middle"):
        drain(path)


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_suffix_that_lies_is_refused(tmp_path, suffix):
    path = tmp_path / f"graph.txt{suffix}"
    path.write_bytes(TEXT)
    with pytest.raises(InputError, match=f"does not begin as a {suffix} archive"):
        ByteStream(path)


def test_what_cannot_be_opened_is_named(tmp_path):
    for path in (tmp_path / "missing.txt", tmp_path):
        with pytest.raises(InputError, match=path.name):
            ByteStream(path)
