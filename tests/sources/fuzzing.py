"""Damages files, reads them through the package, and compares what comes of it with an independent reader.

``python -m tests.sources.fuzzing FORMAT FIRST COUNT FOLDER`` tries mutations FIRST .. FIRST + COUNT - 1 and
prints how many ended how, as JSON. Each mutation follows from the format and its number alone.
"""

from __future__ import annotations

import bz2
import collections
import csv
import faulthandler
import gc
import gzip
import io
import json
import lzma
import os
import re
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from pathlib import Path

import numpy as np
import zstandard

from oocpr.system import peak_resident

NODES = 30
MEMORY = 640 << 20
SECONDS = 60
"""Longest that one file may take."""

INTERESTING = [0, 1, 2, 3, 7, 8, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32,
               2**62, 2**63 - 1, 2**63, 2**64 - 1, -1]  # fmt: skip
WORDS = [b"0", b"-1", b"1", b"30", b"31", b"4294967295", b"4294967296", b"9223372036854775807", b"1e308",
         b"18446744073709551616", b"9" * 5000, b"nan", b"\xff", b"%", b"#", b"\t", b" ", b"\n",
         b"\0"]  # fmt: skip
ENDS = re.compile(rb"[ \t\r]*(-?\d+)[ \t\r]+(-?\d+)[ \t\r]*([#%].*)?")


def graph():
    """The edges that all files hold: src, dst, int64."""
    rng = np.random.default_rng(7)
    key = np.unique(np.concatenate([rng.integers(0, NODES * NODES, 90), np.arange(5, 15) + 3 * NODES]))
    return key // NODES, key % NODES


# What is written


def text(rng):
    return {"web.txt": b"# a graph\n" + b"".join(b"%d\t%d\n" % pair for pair in zip(*graph(), strict=True))}


def matrixmarket(rng):
    kind = [b"pattern general", b"real general", b"integer symmetric"][rng.integers(3)]
    src, dst = graph()
    if b"symmetric" in kind:
        src, dst = src[src >= dst], dst[src >= dst]
    value = b"" if b"pattern" in kind else b" 1"
    lines = b"".join(b"%d %d%s\n" % (u + 1, v + 1, value) for u, v in zip(src, dst, strict=True))
    head = b"%%%%MatrixMarket matrix coordinate %s\n%% made here\n%d %d %d\n" % (kind, NODES, NODES, len(src))
    return {"web.mtx": head + lines}


def npz(rng):
    import scipy.sparse as sp

    src, dst = graph()
    matrix = sp.coo_array((np.ones(len(src)), (src, dst)), shape=(NODES, NODES))
    file = io.BytesIO()
    sp.save_npz(
        file, matrix.asformat(["csr", "csc", "coo"][rng.integers(3)]), compressed=bool(rng.integers(2))
    )
    return {"web.npz": file.getvalue()}


def npy(rng):
    pairs, file = np.array(graph()), io.BytesIO()
    pairs = pairs.T if rng.integers(2) else pairs
    pairs = np.asfortranarray(pairs) if rng.integers(2) else np.ascontiguousarray(pairs)
    np.save(file, pairs.astype(["<i8", "<u4", ">i4", "<i2"][rng.integers(4)]))
    return {"web.npy": file.getvalue()}


def parquet(rng):
    import pyarrow as pa
    import pyarrow.parquet as pq

    src, dst = (pa.array(ids) for ids in graph())
    if rng.integers(2):
        src, dst = (ids.cast(pa.string()) for ids in (src, dst))
    file = io.BytesIO()
    codec = ["none", "zstd", "snappy", "gzip"][rng.integers(4)]
    options = {"use_dictionary": bool(rng.integers(2)), "data_page_version": ["1.0", "2.0"][rng.integers(2)]}
    table = pa.table({"src": src, "dst": dst})
    pq.write_table(table, file, compression=codec, row_group_size=50, store_schema=False, **options)
    return {"web.parquet": file.getvalue()}


def bvgraph(rng):
    from .test_bvgraph import encoded

    src, dst = graph()
    lists = [dst[src == node].tolist() for node in range(NODES)]
    window = [0, 1, 7][rng.integers(3)]
    data = encoded(lists, window, 3, {}, lambda most: int(rng.integers(most + 1)))
    facts = {"graphclass": "it.unimi.dsi.webgraph.BVGraph", "version": 0, "nodes": NODES, "arcs": len(src),
             "windowsize": window, "minintervallength": 3, "zetak": 3, "compressionflags": ""}  # fmt: skip
    return {"web.graph": data, "web.properties": "".join(f"{k}={v}\n" for k, v in facts.items()).encode()}


def gr0(rng):
    nodes = b"".join(b"n %d page%d.org\n" % (k, k) for k in range(NODES))
    return {"web.gr0": nodes + b"".join(b"e %d %d\n" % pair for pair in zip(*graph(), strict=True))}


def hollins(rng):
    src, dst = graph()
    nodes = b"".join(b"%d page%d.org\n" % (k + 1, k) for k in range(NODES))
    lines = b"".join(b"%d %d\n" % pair for pair in zip(src + 1, dst + 1, strict=True))
    return {"web.dat": b"%d %d\n" % (NODES, len(src)) + nodes + lines}


def names(rng):
    pairs = zip(*graph(), strict=True)
    return {"web.tsv": b"# pages\n" + b"".join(b"page %d\tpage %d\n" % pair for pair in pairs)}


def csv_names(rng):
    pairs = zip(*graph(), strict=True)
    return {"web.csv": b"".join(b'"page, %d",page %d\n' % pair for pair in pairs)}


def csv_ids(rng):
    return {"web.csv": b"".join(b"%d,%d\n" % pair for pair in zip(*graph(), strict=True))}


def jsonl(rng):
    pairs = zip(*graph(), strict=True)
    return {"web.jsonl": b"".join(b'{"source": %d, "target": %d}\n' % pair for pair in pairs)}


# What others read: nodes, None for those that occur, and edges


def lines_of(data):
    return [line.rstrip(b"\r") for line in data.removeprefix(b"\xef\xbb\xbf").split(b"\n")]


def pairs_of(lines, first=0, lead=rb""):
    found = []
    for line in lines:
        if line.strip(b" \t\r")[:1] not in (b"", b"#", b"%"):
            u, v, _ = re.fullmatch(rb"[ \t\r]*" + lead + ENDS.pattern, line, re.DOTALL).groups()
            found.append((int(u) - first, int(v) - first))
    return found


def read_text(folder, data):
    return None, pairs_of(lines_of(data))


def read_matrixmarket(folder, data):
    first, *lines = lines_of(data)
    _, _, _, field, symmetry = first.decode().lower().split()
    lines = [line for line in lines if line.strip(b" \t\r")[:1] not in (b"", b"%", b"#")]
    nodes, columns, entries = map(int, lines[0].split())
    rows = [re.split(rb"[#%]", line)[0].split() for line in lines[1:]]
    assert nodes == columns
    assert len(rows) == entries
    assert all(len(row) == 2 + (field != "pattern") for row in rows)
    values = [field == "pattern" or re.search(rb"[1-9]", re.split(b"[eE]", row[2])[0]) for row in rows]
    pairs = [(int(r[0]) - 1, int(r[1]) - 1) for r, value in zip(rows, values, strict=True) if value]
    assert all(0 <= end < nodes for pair in pairs for end in pair)
    return nodes, pairs + [(v, u) for u, v in pairs if symmetry != "general" and u != v]


def read_npz(folder, data):
    import scipy.sparse as sp

    matrix = sp.load_npz(folder / "web.npz")
    matrix.tocoo()
    matrix = matrix.tocoo()
    here = matrix.data != 0
    return matrix.shape[0], list(zip(matrix.row[here].tolist(), matrix.col[here].tolist(), strict=True))


def read_npy(folder, data):
    pairs = np.load(folder / "web.npy")
    return None, [tuple(pair) for pair in (pairs if pairs.shape[0] == 2 else pairs.T).T.tolist()]


def read_parquet(folder, data):
    import pyarrow.parquet as pq

    table = pq.read_table(folder / "web.parquet", columns=None)
    names = {name.lower(): name for name in table.column_names}
    ends = [names.get(name, table.column_names[k]) for k, name in enumerate(("src", "dst"))]
    return None, list(zip(*(table[name].to_pylist() for name in ends), strict=True))


def read_bvgraph(folder, data):
    facts = dict(line.split(b"=", 1) for line in lines_of((folder / "web.properties").read_bytes())
                 if b"=" in line and line[:1] not in (b"#", b"!"))  # fmt: skip
    facts = {key.strip(): value.strip() for key, value in facts.items()}
    nodes, arcs, window, least, k = (
        int(facts.get(key, 3)) for key in (b"nodes", b"arcs", b"windowsize", b"minintervallength", b"zetak")
    )
    assert not facts.get(b"compressionflags")
    bits = "".join(f"{byte:08b}" for byte in (folder / "web.graph").read_bytes())
    at = 0

    def take(count):
        nonlocal at
        at += count
        assert at <= len(bits)
        return int("0" + bits[at - count : at], 2)

    def unary():
        nonlocal at
        begin, at = at, bits.index("1", at) + 1
        return at - begin - 1

    def gamma():
        width = unary()
        return (1 << width | take(width)) - 1

    def zeta():
        step = unary()
        low, few = take(step * k + k - 1), 1 << step * k
        return low + few - 1 if low < few else (low << 1 | take(1)) - 1

    def signed(number):
        return number // 2 if number % 2 == 0 else -(number + 1) // 2

    lists = []
    for node in range(nodes):
        degree, found = gamma(), []
        back = unary() if degree and window else 0
        if back:
            assert back <= min(window, node)
            model, place, runs = lists[node - back], 0, gamma()
            for run in range(runs):
                count = gamma() + (run > 0)
                assert place + count <= len(model)
                found += model[place : place + count] if run % 2 == 0 else []
                place += count
            found += model[place:] if runs % 2 == 0 else []
        if degree > len(found) and least:
            for run in range(gamma()):
                gap = gamma()
                left = node + signed(gap) if run == 0 else previous + 1 + gap  # noqa: F821
                previous = left + gamma() + least
                found += range(left, previous)
        rest = degree - len(found)
        assert rest >= 0
        for k_th in range(rest):
            gap = zeta()
            value = node + signed(gap) if k_th == 0 else value + 1 + gap  # noqa: F821
            found.append(value)
        assert len(set(found)) == degree
        assert all(0 <= other < nodes for other in found)
        lists.append(sorted(found))
    pairs = [(node, other) for node, successors in enumerate(lists) for other in successors]
    assert len(pairs) == arcs
    return nodes, pairs


def read_gr0(folder, data):
    lines = [line for line in lines_of(data) if line.strip(b" \t\r")[:1] not in (b"", b"#")]
    nodes = [line for line in lines if line.split()[0] == b"n"]
    assert [int(line.split()[1]) for line in nodes] == list(range(len(nodes)))
    return len(nodes), pairs_of(lines[len(nodes) :], lead=rb"e")


def read_hollins(folder, data):
    lines = lines_of(data)
    nodes, edges = map(int, lines[0].split())
    assert [int(line.split()[0]) for line in lines[1 : nodes + 1]] == list(range(1, nodes + 1))
    pairs = pairs_of(lines[nodes + 1 :], first=1)
    assert len(pairs) == edges
    return nodes, pairs


def read_names(folder, data):
    lines = [line.decode() for line in lines_of(data) if line.strip(b" \t\r")]
    rows = [line.split("\t") for line in lines if not line.startswith("# ") and line.rstrip() != "#"]
    assert all(len(row) == 2 for row in rows)
    return None, [(u.strip(" \t\r"), v.strip(" \t\r")) for u, v in rows]


def read_csv(folder, data):
    text = data.decode().removeprefix("\ufeff")
    rows = [row for row in csv.reader(io.StringIO(text, newline=""), skipinitialspace=True) if row]
    assert all(len(row) == 2 for row in rows)
    return None, [(u.strip(" \t\r"), v.strip(" \t\r")) for u, v in rows]


def read_jsonl(folder, data):
    text, found = data.decode().removeprefix("\ufeff").strip(), []
    while text:  # objects end where they end, also within a line
        one, end = json.JSONDecoder().raw_decode(text)
        found.append((one["source"], one["target"]))
        text = text[end:].lstrip()
    return None, found


FORMATS = {
    "text": (text, read_text, "web.txt"),
    "matrixmarket": (matrixmarket, read_matrixmarket, "web.mtx"),
    "npz": (npz, read_npz, "web.npz"),
    "npy": (npy, read_npy, "web.npy"),
    "parquet": (parquet, read_parquet, "web.parquet"),
    "bvgraph": (bvgraph, read_bvgraph, "web.graph"),
    "gr0": (gr0, read_gr0, "web.gr0"),
    "hollins": (hollins, read_hollins, "web.dat"),
    "names": (names, read_names, "web.tsv"),
    "csv_names": (csv_names, read_csv, "web.csv"),
    "csv": (csv_ids, read_csv, "web.csv"),
    "jsonl": (jsonl, read_jsonl, "web.jsonl"),
}
"""By format: what writes its files, what reads them independently, and the file that a graph is opened by."""

COMPRESSED = {
    ".gz": (gzip.compress, gzip.decompress),
    ".xz": (lzma.compress, lzma.decompress),
    ".bz2": (bz2.compress, bz2.decompress),
    ".zst": (
        lambda data: zstandard.ZstdCompressor(write_checksum=True).compress(data),
        lambda data: (
            zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data), read_across_frames=True).read()
        ),
    ),
}
FORMATS |= {f"text{suffix}": (text, read_text, "web.txt") for suffix in COMPRESSED}


# Damage


def mutated(data, rng):
    """Change some bytes, one to three times."""
    for _ in range(rng.integers(1, 4)):
        at = int(rng.integers(len(data) + 1))
        size = int(min(rng.geometric(0.1), 60))
        numbers = list(re.finditer(rb"\d+", data[:100_000]))
        kind = rng.integers(8)
        if kind == 0 and data:
            at = min(at, len(data) - 1)
            data = data[:at] + bytes([data[at] ^ 1 << rng.integers(8)]) + data[at + 1 :]
        elif kind == 1:
            data = data[:at]
        elif kind == 2:
            data = data[:at] + data[at + size :]
        elif kind == 3:
            data = data[: at + size] + data[at:]
        elif kind == 4:
            data = data[:at] + rng.bytes(size) + data[at:]
        elif kind == 5:
            width = int(rng.choice([1, 2, 4, 8]))
            value = INTERESTING[rng.integers(len(INTERESTING))] % (1 << 8 * width)
            data = data[:at] + value.to_bytes(width, ["little", "big"][rng.integers(2)]) + data[at + width :]
        elif kind == 6 and numbers:
            match = numbers[rng.integers(min(len(numbers), 12 if rng.integers(2) else len(numbers)))]
            data = data[: match.start()] + WORDS[rng.integers(len(WORDS))] + data[match.end() :]
        else:
            data = data[:at] + WORDS[rng.integers(len(WORDS))] + data[at:]
    return data


def archived(data, rng):
    """Damage one member of a ZIP archive, or leave it out, with all checksums right."""
    file = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(data)) as old,
        zipfile.ZipFile(file, "w", rng.choice([0, 8, 12, 14])) as new,
    ):
        chosen = old.namelist()[rng.integers(len(old.namelist()))]
        for name in old.namelist():
            member = old.read(name)
            if name == chosen:
                if rng.integers(8) == 0:
                    continue
                array = np.load(io.BytesIO(member))
                changed = io.BytesIO()
                if array.ndim and rng.integers(2):  # a whole array of another length, value or type
                    array = array[: rng.integers(len(array) + 1)] if rng.integers(2) else array.astype(
                        rng.choice(["f8", "i1", "u8", "S3", "?", ">i4", "c16", "V4"])
                    )  # fmt: skip
                    if array.size and array.dtype.kind in "iu" and rng.integers(2):
                        value = INTERESTING[rng.integers(len(INTERESTING))]
                        array.flat[rng.integers(array.size)] = np.array(value % 2**64, np.uint64).astype(
                            array.dtype
                        )
                    np.save(changed, array if rng.integers(3) else array.reshape(1, -1))
                    member = changed.getvalue()
                else:
                    member = mutated(member, rng)
            new.writestr(name, member)
    return file.getvalue()


def damage(name, rng):
    """Files of a format, by name, of which one is damaged."""
    write, _, opened = FORMATS[name]
    files = write(rng)
    suffix = Path(name).suffix
    victim = list(files)[rng.integers(len(files))]
    inside = suffix and rng.integers(3) == 0
    if suffix:
        pack = COMPRESSED[suffix][0]
        data = files.pop(victim)
        victim += suffix
        # Several streams, as programs with many threads write them.
        files[victim] = pack(mutated(data, rng)) if inside else pack(data[:200]) + pack(data[200:])
    if name == "npz" and rng.integers(3):
        files[victim] = archived(files[victim], rng)
    elif not inside:
        files[victim] = mutated(files[victim], rng)
    return files, opened + suffix


# Outcomes


def expected(nodes, edges):
    """PageRank with damping 0.85 by plain iteration, ascending."""
    if nodes is None:
        number = {node: k for k, node in enumerate(dict.fromkeys(end for edge in edges for end in edge))}
        nodes, edges = len(number), [(number[u], number[v]) for u, v in edges]
    src, dst = np.array(sorted(set(edges)), np.int64).reshape(-1, 2).T
    degree = np.bincount(src, minlength=nodes)
    ranks = np.full(nodes, 1 / nodes)
    for _ in range(250):
        lost = ranks[degree == 0].sum()
        moved = np.bincount(dst, ranks[src] / degree[src], minlength=nodes)
        ranks = 0.15 / nodes + 0.85 * (moved + lost / nodes)
    return np.sort(ranks)


def reserve(needed, what):
    """Stand in for the memory that an import has."""
    from oocpr.errors import DoesNotFitError

    if needed > MEMORY // 2:
        raise DoesNotFitError(f"{what} needs {needed} bytes.", "Give more memory.")


def documented(error):
    if error.exit_code not in (2, 4) or not (error.cause and error.remedy):
        raise error
    return error.exit_code


def outcome(name, folder, files, opened):
    """Read a file; gives 0, or the exit code of a documented error. Anything else is an error here."""
    import oocpr
    from oocpr.errors import OocprError
    from oocpr.sources import FORMATS as FORMAT_OPTIONS
    from oocpr.sources import open_source

    for file, data in files.items():
        (folder / file).write_bytes(data)
    options = {"format": Path(name).stem}
    if FORMAT_OPTIONS[options["format"]].header:
        # What a damaged first line says of the others is none of the other readers' business.
        options["header"] = False
    try:
        found = []
        source = open_source(folder / opened, **options)
        source.reserve = reserve
        for block in source.blocks(50):
            ends = [end if hasattr(end, "text") else end.tolist() for end in (block.src, block.dst)]
            found += zip(*ends, strict=True)
            assert len(found) < 10**6, "more edges than a damaged file can hold"
        if (source.nodes or 0) > 10**6:
            return 4
    except OocprError as error:
        return documented(error)
    data = files.get(opened, b"")
    suffix = Path(name).suffix
    data = COMPRESSED[suffix][1](data) if suffix else data
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nodes, edges = FORMATS[name][1](folder, data)
    if name == "csv" and found and isinstance(found[0][0], int):
        edges = [tuple(map(int, pair)) for pair in edges]
    assert collections.Counter(found) == collections.Counter(edges), (
        "other edges than those of another reader"
    )
    if "NUMBA_BOUNDSCHECK" in os.environ:
        # Ranking would compile for half a minute what reads no files.
        return 0
    try:
        ranks = oocpr.pagerank(folder / opened, tol=1e-9, memory=MEMORY, threads=1, **options).to_numpy()
    except OocprError as error:
        # Ids that cannot be may turn up later than the block that they are in.
        return documented(error)
    np.testing.assert_allclose(np.sort(ranks), expected(nodes, edges), atol=1e-8)
    return 0


def main(name, first, count, folder):
    counts, slowest, wrong = collections.Counter(), 0.0, 0
    faulthandler.enable()
    for number in range(first, first + count):
        for file in folder.iterdir():
            file.unlink()
        rng = np.random.default_rng([number, *name.encode()])
        files, opened = damage(name, rng)
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        begun = time.monotonic()
        (folder / "number").write_text(str(number))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                end = str(outcome(name, folder, files, opened))
        except Exception:  # noqa: BLE001 - whatever is no documented error is a failure
            traceback.print_exc()
            end = "failed"
        faulthandler.cancel_dump_traceback_later()
        slowest = max(slowest, time.monotonic() - begun)
        gc.collect()
        left = [file for file in folder.iterdir() if file.name not in {*files, "number"}]
        left += Path(tempfile.gettempdir()).iterdir()
        if left or end == "failed":
            sys.stderr.write(f"{name}, mutation {number}: {end}; left behind: {left}\n")
            wrong += 1
        counts[end] += 1
    peak = peak_resident()
    facts = {"outcomes": counts, "wrong": wrong, "slowest": round(slowest, 1), "peak": peak}
    sys.stdout.write(f"{json.dumps(facts)}\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
