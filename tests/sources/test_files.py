"""Many files, patterns, URLs and standard input."""

from __future__ import annotations

import bz2
import errno
import gzip
import http.server
import io
import lzma
import sys
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

import oocpr
from oocpr import system
from oocpr.errors import InputError, LostError, SetupError, UsageError, masked
from oocpr.sources import base, open_source
from oocpr.sources.files import ByteStream, LocalFile, PeekableStream, RemoteFile, stamp

from ..serving import Files, serving, serving_files
from .reading import read


@pytest.fixture
def parts(tmp_path):
    (tmp_path / "b.txt").write_text("2 3\n# end")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"0 1\n1 2\n"))
    (tmp_path / "c.txt").write_text("-5 4294967296\n")
    return tmp_path


def test_files_are_read_one_after_the_other(parts):
    source = open_source([parts / "b.txt", parts / "a.txt.gz", parts / "c.txt"])
    assert read(source).edges == [(2, 3), (0, 1), (1, 2), (-5, 2**32)]
    assert source.name == "b and 2 more"
    assert source.position == source.size == sum(path.stat().st_size for path in parts.iterdir())


def test_a_pattern_gives_files_in_the_order_of_their_names(parts):
    assert read(open_source(f"{parts}/[ab].txt*")).edges == [(0, 1), (1, 2), (2, 3)]
    with pytest.raises(InputError, match=r"No file fits .*d\*"):
        open_source(f"{parts}/d*")


def test_a_name_with_the_characters_of_a_pattern_is_a_name(parts):
    (parts / "[a].txt").write_text("7 8")
    assert read(open_source(parts / "[a].txt")).edges == [(7, 8)]


def test_a_bad_line_is_named_with_its_file(parts):
    (parts / "c.txt").write_text("0 1\n1 x\n")
    with pytest.raises(InputError, match=r"c\.txt, line 2"):
        read(open_source(f"{parts}/?.txt*"))


@pytest.mark.parametrize(
    ("first", "further", "header", "expected"),
    [
        # Columns without a header have numbers, which are no header of the next file.
        ("5,6\n7,8\n", "1,2\n2,3\n", None, [(5, 6), (7, 8), (1, 2), (2, 3)]),
        ("5;6\n", "1;2\n", None, [(5, 6), (1, 2)]),
        ("x,y\nann,bob\nbob,eve\n", "ann,eve\n", True, [("ann", "bob"), ("bob", "eve"), ("ann", "eve")]),
        ("x,y\nann,bob\n", "x,y\nbob,eve\n", True, [("ann", "bob"), ("bob", "eve")]),
        ("source,target\n1,2\n", "3,4\n", None, [(1, 2), (3, 4)]),
        ("", "1,2\n", None, [(1, 2)]),
        ("# none yet\n", "source,target\nann,bob\n", None, [("ann", "bob")]),
        ("x y\n1 2\n", "3 1\n3 2\n", True, [(1, 2), (3, 1), (3, 2)]),
        ("x y\n1 2\n", "x y\n3 2\n", True, [(1, 2), (3, 2)]),
        ("", "ann\tbob\n", None, [("ann", "bob")]),
        ("from\tto\nann\tbob\n", "bob\tann\n", True, [("ann", "bob"), ("bob", "ann")]),
        ("", '{"source":1,"target":2}\n', None, [(1, 2)]),
    ],
)
def test_no_edge_of_a_further_file_is_taken_as_a_header(tmp_path, first, further, header, expected):
    for name, text in (("1", first), ("2", further)):
        (tmp_path / name).write_text(text)
    assert read(open_source([tmp_path / "1", tmp_path / "2"], header=header)).edges == expected


def test_parts_know_the_header_of_the_first_file(tmp_path, monkeypatch):
    monkeypatch.setattr(base, "MIN_PART_BYTES", 1)
    (tmp_path / "1").write_text("x y\n1 2\n")
    (tmp_path / "2").write_text("3 1\n3 2\n")
    parts = open_source([tmp_path / "1", tmp_path / "2"], header=True).parts(9)
    assert len(parts) > 1
    assert [edge for part in parts for edge in read(part).edges] == [(1, 2), (3, 1), (3, 2)]


def test_a_further_header_that_may_be_an_edge_is_refused(tmp_path):
    (tmp_path / "1.csv").write_text("x,y\nann,bob\n")
    (tmp_path / "2.csv").write_text("a,b\nbob,eve\n")
    with pytest.raises(InputError, match=r"2\.csv, line 1: 'a,b' may be a header or an edge.*above it"):
        read(open_source([tmp_path / "1.csv", tmp_path / "2.csv"], header=True))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("m.mtx", "%%MatrixMarket matrix coordinate real general\n3 3 1\n1 2 4\n"),
        ("j", '{"source":1,"target":2}\n'),
    ],
)
def test_files_of_two_formats_are_refused(tmp_path, name, text):
    (tmp_path / "w.txt").write_text("1 2 5\n")
    (tmp_path / name).write_text(text)
    for weight in ({}, {"weight": 3}):
        with pytest.raises(InputError, match=rf"{name} has the format .*w\.txt the format text"):
            open_source([tmp_path / "w.txt", tmp_path / name], **weight)


def test_a_header_is_one_whatever_ends_its_line(tmp_path):
    (tmp_path / "n.txt").write_bytes(b"id_1\tid_2\r\nann\tbob\r\nbob\teve\r\neve\tann\r\n")
    with pytest.raises(InputError, match=r"line 1: .*may be a header or an edge"):
        read(open_source(tmp_path / "n.txt"))


def test_columns_say_by_their_numbers_which_comes_first(tmp_path):
    for more in ("", ",note"):
        (tmp_path / "c.csv").write_text(f"id_2,id_1{more}\n7,8{more}\n")
        assert read(open_source(tmp_path / "c.csv")).edges == [(8, 7)]


def test_weights_are_in_a_column_of_their_own(tmp_path):
    (tmp_path / "w.csv").write_text("a,b,c\n1,2,3\n")
    with pytest.raises(UsageError, match="'b' is given for the weights and for an end"):
        read(open_source(tmp_path / "w.csv", source_column="a", target_column="b", weight="b"))


def test_labels_that_are_too_few_are_named(tmp_path):
    (tmp_path / "l.txt").write_text("1 2\n2 3\n")
    (tmp_path / "l.labels.txt").write_text("x\ny\n")
    with pytest.raises(InputError, match=r"above 1\. .*l\.labels\.txt labels 2 nodes: correct that"):
        read(open_source(tmp_path / "l.txt"))


@pytest.mark.parametrize("dictionaries", [False, True])
def test_a_part_without_rows_is_sound(tmp_path, dictionaries):
    table = pa.table({"src": [1, 2], "dst": [2, 3]})
    for name, part in (("0", table[:0]), ("1", table), ("2", table[:0])):
        pq.write_table(part, tmp_path / f"{name}.parquet", use_dictionary=dictionaries)
    assert read(open_source(f"{tmp_path}/*.parquet")).edges == [(1, 2), (2, 3)]


def test_names_of_several_files(tmp_path):
    (tmp_path / "a.tsv").write_text("a\tb\n")
    (tmp_path / "b.tsv").write_text("# more\nb\tc\n")
    source = open_source(f"{tmp_path}/*.tsv")
    assert read(source).edges == [("a", "b"), ("b", "c")]
    assert source.locate(1) == f"{tmp_path}/b.tsv, line 2"


def test_formats_with_a_head_are_one_file(tmp_path, data):
    with pytest.raises(UsageError, match="2 are given"):
        open_source([data / "tiny" / "site.mtx"] * 2)


def given_on_stdin(monkeypatch, text):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(Trickle(text))))


class Trickle(io.RawIOBase):
    """A pipe that gives a few bytes at a time."""

    def __init__(self, text):
        self._stream = io.BytesIO(text)

    def readable(self):
        return True

    def readinto(self, view):
        return self._stream.readinto(memoryview(view)[:3])


@pytest.mark.parametrize("packing", [bytes, gzip.compress])
@pytest.mark.parametrize("suffix", [".txt", ".mtx", ".gr0", ".dat"])
def test_standard_input_is_read_like_a_file(data, monkeypatch, packing, suffix):
    path = data / "tiny" / f"langville-meyer{suffix}"
    given_on_stdin(monkeypatch, packing(path.read_bytes()))
    source = open_source("-")
    assert read(source).edges == read(open_source(path)).edges
    assert source.name == "stdin"


def test_names_on_standard_input(data, monkeypatch):
    path = data / "tiny" / "site.tsv"
    given_on_stdin(monkeypatch, path.read_bytes())
    assert read(open_source("-", format="names")).edges == read(open_source(path)).edges


def test_standard_input_compressed_with_large_blocks(monkeypatch):
    random = np.random.default_rng(1)
    lines = "".join(f"{u} {v}\n" for u, v in random.integers(0, 2**31, (200_000, 2)))
    given_on_stdin(monkeypatch, bz2.compress(lines.encode()))
    assert len(read(open_source("-"), 1000).edges) == 200_000


def test_what_cannot_come_from_standard_input_is_refused(monkeypatch, tmp_path, data):
    given_on_stdin(monkeypatch, b"0 1")
    with pytest.raises(UsageError, match="npz cannot be read from standard input"):
        open_source("-", format="npz")
    with pytest.raises(UsageError, match="Standard input is one source"):
        open_source(["-", str(data / "tiny" / "site.txt")])
    given_on_stdin(monkeypatch, b"0 1\n1 x\n")
    with pytest.raises(InputError, match="standard input, line 2"):
        read(open_source("-"))


def test_a_peekable_stream_gives_every_byte_once():
    front = PeekableStream(io.BytesIO(bytes(range(10))))
    assert front.head(3) == bytes(range(3))
    assert front.read(2) == bytes(range(2))
    assert front.head(30) == bytes(range(2, 10))
    assert front.tell() == 2
    assert front.read() == bytes(range(2, 10))


@pytest.fixture
def server(tmp_path):
    """A web server of a folder."""
    pytest.importorskip("aiohttp")

    with serving_files(tmp_path) as address:
        yield address


def test_files_of_a_web_server(server, parts):
    source = open_source(f"{server}/a.txt.gz")
    assert read(source).edges == [(0, 1), (1, 2)]
    assert source.size == (parts / "a.txt.gz").stat().st_size
    pq.write_table(pa.table({"u": [1, 2], "v": [2, 3]}), parts / "g.parquet")
    assert read(open_source(f"{server}/g.parquet")).edges == [(1, 2), (2, 3)]
    with pytest.raises(InputError, match=r"none\.txt cannot be opened"):
        open_source(f"{server}/none.txt")


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", ""])
@pytest.mark.parametrize("name", ["g.txt.gz", "g.txt"])
@pytest.mark.parametrize("ranges", [False, True])
def test_archives_that_a_server_calls_an_encoding_are_read_whole(tmp_path, encoding, name, ranges):
    pytest.importorskip("aiohttp")
    compressed = gzip.compress(TEXT)
    (tmp_path / name).write_bytes(compressed)

    class Encoding(Files):
        def end_headers(self):
            if encoding:
                self.send_header("Content-Encoding", encoding)
            if not ranges:
                self.send_header("Accept-Ranges", "none")
            super().end_headers()

    with serving_files(tmp_path, Encoding) as address:
        assert drain(f"{address}/{name}")[0] == TEXT
        for cut in (12, 1000, len(compressed) - 1):
            (tmp_path / name).write_bytes(compressed[:cut])
            with pytest.raises(InputError, match="ends in the middle"):
                drain(f"{address}/{name}")
        if name.endswith(".gz"):
            (tmp_path / name).write_bytes(TEXT)
            with pytest.raises(InputError, match="does not begin") as caught:
                drain(f"{address}/{name}")
            assert "Save it under a name without the suffix" in caught.value.remedy


def test_a_server_that_compresses_what_it_sends_is_asked_not_to(tmp_path):
    pytest.importorskip("aiohttp")
    compressed = gzip.compress(TEXT)

    class Compressing(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_HEAD(self):
            self.answer()

        def do_GET(self):
            self.wfile.write(self.answer())

        def answer(self):
            asked = "gzip" in self.headers.get("Accept-Encoding", "")
            data = compressed if self.path.endswith(".gz") else TEXT
            if asked:
                data = gzip.compress(data)
            self.send_response(200)
            if asked:
                self.send_header("Content-Encoding", "gzip")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            return data

    with serving(Compressing) as address:
        for name in ("g.txt", "h.txt.gz"):
            assert drain(f"{address}/{name}")[0] == TEXT


def test_files_behind_urls_and_patterns_of_them():
    fsspec = pytest.importorskip("fsspec")
    system = fsspec.filesystem("memory")
    for k in range(3):
        with system.open(f"/graph/part-{k}.txt", "wb") as file:
            file.write(f"{k} {k + 1}\n".encode())
        with system.open(f"/tables/{k}.parquet", "wb") as file:
            pq.write_table(pa.table({"u": [k], "v": [k + 1]}), file)
    expected = [(0, 1), (1, 2), (2, 3)]
    assert read(open_source("memory://graph/part-*.txt")).edges == expected
    assert read(open_source("memory://tables/", format="parquet")).edges == expected
    with system.open("/graph/labels.txt", "wb") as file:
        file.write(b"a\nb\nc\nd\n")
    source = open_source("memory://graph/part-0.txt", labels="memory://graph/labels.txt")
    assert (read(source).edges, list(source.labels)) == ([(0, 1)], ["a", "b", "c", "d"])


def test_an_address_that_nothing_understands_is_refused():
    pytest.importorskip("fsspec")
    with pytest.raises(InputError, match="nosuch://x cannot be opened"):
        open_source("nosuch://x")


SECRET = "s3cr/3t"


@pytest.mark.parametrize(
    "url",
    [
        f"https://user:{SECRET}@host/web.txt",
        f"s3://KEY:{SECRET}@bucket/web.txt",
        "https://s3cr3t@host/web.txt",
        f"https://host/web.txt?X-Amz-Signature={SECRET}&v=1",
        f"https://host/web.txt?v=1&X-Amz-Credential=a&X-Amz-Security-Token={SECRET}",
        f"https://host.blob.core.windows.net/b/web.txt?sv=2&sig={SECRET}",
        f"https://host/web.txt?access_token={SECRET}#part",
        f"simplecache::s3://KEY:{SECRET}@bucket/web.txt",
        f"https://host/web.txt?api_key={SECRET}",
    ],
)
def test_what_is_secret_in_a_url_is_shown_to_nobody(url):
    place = RemoteFile(url)
    for told in (
        str(place),
        place.name,
        str(InputError(f"{url} is gone.", f"Look at {url}.")),
        masked(repr(url)),
    ):
        assert "s3cr" not in told
        assert "3t" not in told
    assert place.name == "web.txt"
    assert "web.txt" in str(place)


@pytest.mark.parametrize(
    "text", ["https://host/a.txt?version=2", "s3://bucket/a b.txt", "a@b.c and d@e", "web.txt, line 3: 1@2"]
)
def test_what_is_no_secret_stays(text):
    assert masked(text) == text


def test_secrets_do_not_reach_errors_notices_stores_and_journals(tmp_path, monkeypatch):
    import fsspec
    from fsspec.implementations.memory import MemoryFileSystem

    monkeypatch.setattr(
        MemoryFileSystem,
        "_strip_protocol",
        classmethod(lambda _, path: "/" + path.rpartition("/")[2].partition("?")[0]),
    )
    url = "memory://user:s3cr3t@host/secrets.txt?sig=s3cr3t"
    with pytest.raises(InputError) as caught:
        oocpr.import_graph(url, tmp_path / "g.zarr", format="text")
    assert "memory://***@host/secrets.txt?sig=***" in str(caught.value)
    assert "s3cr3t" not in str(caught.value)
    with fsspec.open("memory://secrets.txt", "wb") as file:
        file.write(b"0 1\n1 0\n")
    with fsspec.open("memory://labels.txt", "wb") as file:
        file.write(b"a\nb\n")
    labels = "memory://user:s3cr3t@host/labels.txt"
    graph = oocpr.import_graph(url, tmp_path / "g.zarr", format="text", labels=labels)
    assert any("memory://***@host/labels.txt" in notice for notice in graph.notices)
    assert "s3cr3t" not in f"{graph.notices} {graph.info()} {stamp(RemoteFile(url))}"
    stored = b"".join(file.read_bytes() for file in (tmp_path / "g.zarr").rglob("*") if file.is_file())
    assert b"s3cr3t" not in stored


def test_labels_beside_a_graph_are_found_behind_urls_as_on_disks(server, tmp_path):
    for name, text in (("web.txt", b"0 1\n"), ("web.labels.tsv", b"a\nb\n"), ("bare.txt", b"0 1\n")):
        (tmp_path / name).write_bytes(text)
        with pytest.importorskip("fsspec").filesystem("memory").open(f"/beside/{name}", "wb") as file:
            file.write(text)
    for folder in (tmp_path, server, "memory://beside"):
        labelled, bare = (open_source(f"{folder}/{name}.txt") for name in ("web", "bare"))
        assert read(labelled).edges == read(bare).edges == [(0, 1)]
        assert list(labelled.labels) == ["a", "b"]
        assert bare.labels is None


@pytest.mark.long
def test_a_server_that_goes_away_is_lost_and_one_that_asks_for_credentials_a_wrong_setup(monkeypatch):
    pytest.importorskip("aiohttp")
    size = 40 << 20
    over = threading.Event()

    class Failing(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_HEAD(self):
            self.send_response(200)
            self.send_header("Content-Length", str(size))
            self.send_header("Accept-Ranges", "bytes")
            self.end_headers()

        def do_GET(self):
            if "secret" in self.path:
                self.send_error(401)
                return
            if "silent" in self.path:
                over.wait()
                return
            first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
            if first:
                self.connection.close()
                return
            count = min(last, size - 1) + 1 - first
            self.send_response(206)
            self.send_header("Content-Length", str(count))
            self.send_header("Content-Range", f"bytes {first}-{first + count - 1}/{size}")
            self.end_headers()
            self.wfile.write(b"1 2\n" * (count // 4))

    with serving(Failing) as url:
        try:
            with pytest.raises(LostError, match=rf"{url}/g\.txt cannot be read"):
                read(open_source(f"{url}/g.txt", format="text"))
            with pytest.raises(SetupError, match=rf"{url}/secret\.txt cannot be read"):
                read(open_source(f"{url}/secret.txt", format="text"))
            # Busy machines may take longer to answer than the silent server is waited for.
            monkeypatch.setattr(system, "SERVER_TIMEOUT", 0.2)
            silent = r"cannot be read: its server said nothing for 0\.2 s"
            with pytest.raises(LostError, match=rf"{url}/silent\.txt {silent}"):
                read(open_source(f"{url}/silent.txt", format="text"))
            with pytest.raises(LostError, match=rf"{url}/silent\.zarr.* {silent}"):
                oocpr.open_graph(f"{url}/silent.zarr")
        finally:
            monkeypatch.undo()
            over.set()
    with pytest.raises(LostError, match=url):
        read(open_source(f"{url}/g.txt", format="text"))


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
        assert stream.position == (stream.size or stream.position)  # which not all servers say
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


@pytest.mark.parametrize("suffix", ["", ".zst"])
@pytest.mark.parametrize("kind", [0x50, 0x5F])
@pytest.mark.parametrize("size", [0, 4, 100_000])
def test_frames_of_zstandard_that_are_to_be_skipped_are_skipped(tmp_path, suffix, kind, size):
    # As pzstd writes them before each frame, with its length.
    skipped = bytes((kind, 0x2A, 0x4D, 0x18)) + size.to_bytes(4, "little") + b"7" * size
    frames = [COMPRESS[".zst"](TEXT[:1000]), COMPRESS[".zst"](TEXT[1000:])]
    compressed = skipped + frames[0] + skipped + frames[1]
    assert zstandard.ZstdDecompressor().stream_reader(compressed, read_across_frames=True).read() == TEXT
    path = tmp_path / f"graph.txt{suffix}"
    path.write_bytes(compressed)
    assert drain(path)[0] == TEXT
    for cut in (len(skipped) - 1, len(skipped) + 9, len(compressed) - 1):
        path.write_bytes(compressed[:cut])
        with pytest.raises(InputError, match="ends in the middle"):
            drain(path)


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


def test_a_disk_that_fails_is_named(tmp_path):
    class Failing(io.RawIOBase):
        def readable(self):
            return True

        def readinto(self, _):
            raise OSError(errno.EIO, "Input/output error")

    file = LocalFile(tmp_path / "graph.txt.gz")
    file.open = Failing
    with pytest.raises(InputError, match=r"graph\.txt\.gz cannot be read near byte 0: Input/output error"):
        drain(file)
