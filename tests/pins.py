"""Pin what oocpr does: ranks, stores, plans, errors, outputs and help, as one JSON object.

``python tests/pins.py OUT.json`` runs every case, ``--only SECTION``, which may be repeated, some of them;
``--compare A.json B.json`` tells where two such objects differ. It runs unchanged in two checkouts, so it
uses what README documents and no module inside; what it knows of those is in `with_shim`, the last function.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import inspect
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy import sparse

import oocpr
from oocpr.cli import main

if TYPE_CHECKING:
    Graphs = dict[str, Path]

ROOT = Path(__file__).resolve().parents[1]
TINY = ROOT / "data/tiny"
DEBIAN = ROOT / "data/debian-bookworm-deps.txt.gz"
REAL = Path(os.environ.get("OOCPR_GRAPHS", "no folder"))
TMP = Path(tempfile.gettempdir(), f"pins-{os.getpid():08}")
"""Where everything is made; workers import this file too, and make none."""
LONGEST = 3000
"""Characters of a text that is pinned as it is; of longer ones the hash is."""
SMALL = 2**23
"""Bytes that a plan leaves aside on a device, or nearly."""
READS = ("float64", "float32", "bits16", "bits8")
METHODS = ("power", "residual", "mixed")
WAYS = ("plain", "teleport", "start", "weakly", "all")
MEASURED = (
    "seconds", "compile_seconds", "preparing_seconds", "gteps", "peak_memory", "pass_seconds",
    "predicted_seconds", "predicted_pass_seconds", "predicted_first_pass_seconds",
)  # fmt: skip
"""What JSON has of a run or a plan that differs from run to run."""

MATRIX = "%%MatrixMarket matrix coordinate pattern general\n"
BAD_SOURCES = {
    "empty.txt": "", "comments.txt": "# from to\n", "one_column.txt": "1 2\n3\n2 1\n", "no.json": "[1, 2]\n",
    "letters.txt": "1 2\nthree 1\n", "sign.txt": "1 2\n2 -\n", "huge.txt": "1 2\n2 9999999999999999999\n",
    "half.tsv": "a\tb\nb\t\n", "no_gzip.txt.gz": "1 2\n", "fewer.mtx": MATRIX + "3 3 4\n1 2\n2 3\n",
    "more.mtx": MATRIX + "3 3 1\n1 2\n2 3\n", "outside.mtx": MATRIX + "3 3 2\n1 2\n2 4\n",
    "oblong.mtx": MATRIX + "3 4 1\n1 2\n", "headless.mtx": "3 3 1\n1 2\n", "no_zip.npz": "PK\x03\x04 no more",
    "no.npy": "\x93NUMPY", "no.parquet": "PAR1", "broken.jsonl": '{"from": 1, "to": 2}\n{"from": 1\n',
    "columns.csv": "a,b,c\n1,2,3\n", "quote.csv": 'from,to\n"1,2\n', "short.gr0": "n 0 a\ne 0 5\n",
    "letters.csv": "from,to\na,b\n", "no.graph": "\0\1\2", "bad.edge.yml": "a: b\n",
}  # fmt: skip
BESIDE = {
    "nan.txt": "1 2 nan\n2 1 1\n", "negative.txt": "1 2 -1\n2 1 1\n", "links.txt": "0 1\n1 2\n",
    "names.txt": "a\nb\n",
    "ranks.csv": "node,rank\n0,1\n", "other.csv": "who,what\n1,2\n", "seeds": "home\tmany\n",
}  # fmt: skip
BAD_LINES = {
    "": "bogus | generate | generate bogus | -o x | --version",
    "rank": (
        " | --bogus | x y | {bad}/letters.txt | {bad}/folder.zarr | {bad}/missing.zarr | "
        "{bad}/missing.txt | {bad}/links.txt --json {bad}/links.txt | "
        "{weighted} --device cuda --kernel ell | {weighted} --method components"
    ),
    "import": (
        "x | {bad}/nan.txt {out} --weight 3 | {bad}/negative.txt {out} --weight 3 | "
        "{bad}/links.txt -o {bad}/graph | {bad}/links.txt -o {site} | "
        "{bad}/columns.csv {out} --source-column x | {tiny}/site.npz {out} --header | "
        "{tiny}/site.npz {out} --weight 3 | no://where {out} | '{bad}/none-*.txt' {out} | "
        "- {out} --resume"
    ),
    "info": "{bad}/folder.zarr | {bad}/links.txt",
    "plan": "{bad}/missing.zarr | {site} --memory 2MiB",
    "rank {site}": (
        "--top ten | --top -1 | --damping high | --damping 0 | --damping nan | --tol 1e-16 | --tol 0 | "
        "--method sideways | --reads sideways | --stop sideways | --dangling sideways | --io sideways | "
        "--sort sideways | --threads 0 | --stripes 0 | --stripes 99 | --max-passes 0 | "
        "--max-passes 1 --method mixed --top 0 | --workers 0 | --scheduler nonsense | --memory lots | "
        "--memory 10MiB | --memory 5 | --memory=-1GiB | --reads bits8 --damping 0.9 | "
        "--reads bits16 --damping 0.995 | --method power --reads bits16 | "
        "--method components --stripes 2 | --method components --io direct | "
        "--method components --trace {bad}/t.json | --device tpu | --device cuda:0,cuda:0 | "
        "--device cuda --kernel binned:9:6 | --device cuda --device-memory 1 | --kernel binned | "
        "--device-memory 1GiB | --reproducible --device auto | --personalization {bad}/seeds | "
        "--personalization {bad}/missing | --start {bad}/ranks.csv | --start {bad}/other.csv | "
        "--attributes title | --format text | --tmp {bad} | --sort rank | -o {bad}/r.txt | "
        "-o {bad}/missing/r.csv | -o {bad}/r.zarr --sort rank | -o {site}/r.csv | -o - --json -"
    ),
    "top": (
        "{bad}/missing.csv | {bad}/other.csv | {site} | {bad}/ranks.csv -k -1 | "
        "{bad}/ranks.csv --attributes title"
    ),
    "verify": "{site} {bad}/ranks.csv | {site} {bad}/other.csv | {bad}/missing.zarr {bad}/ranks.csv",
    "import {bad}/links.txt {out}": (
        "--order sideways | --order host | --format sideways | --memory 10MiB | "
        "--labels {bad}/names.txt | --duplicates sideways | --duplicates sum | --weight 3 | "
        "--weight amount | --nodes {bad}/columns.csv | --node-column x | --tmp {bad}/missing | "
        "--device tpu"
    ),
    "generate rmat {out}": " | --scale 0 | --scale 30 --memory 100MiB",
    "append": (
        "{site} {bad}/links.txt {out} | {weighted} {bad}/links.txt {out} | "
        "{bad}/links.txt {bad}/links.txt {out} | {bad}/missing.zarr {bad}/links.txt {out}"
    ),
}
"""Command lines that cannot be, apart by bars, by how they begin."""


class Pins(dict[str, Any]):
    """Values by the names of their cases."""

    def case(self, name: str, work: Callable[..., Any], *given: Any, **how: Any) -> None:
        """Keep what a piece of work gives, or how it is refused."""
        assert name not in self, name
        try:
            self[name] = short(work(*given, **how))
        except Exception as error:  # noqa: BLE001
            self[name] = {"raised": type(error).__name__, "says": clean(str(error))}


def short(value: Any) -> Any:
    """Value as JSON gives it back, and a long text as its hash."""
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()
    if isinstance(value, str):
        return value if len(value) <= LONGEST else f"{len(value)} characters, {short(value.encode())}"
    if isinstance(value, dict):
        return {str(key): short(item) for key, item in value.items()}
    return [short(item) for item in value] if isinstance(value, list | tuple) else value


def clean(text: str) -> str:
    """Text without what differs from run to run: temporary paths, this checkout, times, their shares."""
    text = text.replace(str(TMP), "TMP").replace(str(ROOT), "ROOT")
    text = re.sub(r"[\d.,]+(?:e-?\d+)? ?[kMG]? ?(?:µs|ms|s|min|h|GTEPS|edges/s)\b", "TIME", text)
    text = re.sub(r"\b\d+%", "SHARE", text)
    return re.sub(r"compiling, once on a machine.*\n", "", text)


def command(*words: Any) -> dict[str, Any]:
    """Run a command in this process; returns its exit code and both streams."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="\n") for _ in range(2)]
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        code = main([str(word) for word in words])
    texts = []
    for stream in streams:
        stream.flush()
        text = clean(stream.buffer.getvalue().decode())
        # What this process holds by now counts for what a run needs, and for the peak of its memory.
        peak = r"(?:SIZE|peak memory) [\d.]+ ?[KMG]iB" if code != 4 else r"[\d.]+ ?[KMG]iB"
        texts.append(re.sub(peak, "SIZE", text))
    return {"code": code, "out": texts[0], "err": texts[1]}


def process(*words: Any) -> int:
    """Run a command in a process of its own, which holds little; returns its exit code."""
    asked = [sys.executable, "-m", "oocpr", *(str(word) for word in words)]
    return subprocess.run(asked, cwd=ROOT, capture_output=True, check=False).returncode


def ranked(graph: Any, *more: str, **how: Any) -> dict[str, Any]:
    """Rank a graph within memory that is the same everywhere; returns what the run found, to the last bit."""
    ranks = oocpr.pagerank(graph, **{"memory": "4GiB", "tol": 1e-9, **how})
    run = ranks.run
    assert run is not None
    names = ("method", "reads", "converged", "passes", "gathers", *more)
    return {name: getattr(run, name) for name in names} | {
        "ranks": ranks.to_numpy().tobytes(),
        "bound": run.error_bound.hex(),
        "residuals": repr([record.residual for record in ranks.history]).encode(),
    }


def contents(folder: Path) -> str:
    """Hash of the names and bytes of all files of a folder."""
    found = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        data = path.read_bytes()
        found.update(f"{path.relative_to(folder)}\0{len(data)}\0".encode() + data)
    return found.hexdigest()


# Graphs


def random_links(nodes: int, links: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Ends of links, some twice; a tenth of the nodes link nowhere, and the first are linked to most."""
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, nodes * 9 // 10, links), nodes * rng.random(links) ** 2
    return src, np.minimum(dst, nodes - 1).astype(np.int64)


def weighted_links(nodes: int, links: int) -> sparse.coo_array:
    """Links with weights that take from two to eight bytes."""
    src, dst = random_links(nodes, links, seed=nodes)
    weight = np.random.default_rng(4).integers(1, 4000, links) / np.where(src % 3, 16, 3)
    return sparse.coo_array((weight, (src, dst)), shape=(nodes, nodes))


def make_graphs() -> Graphs:
    """Store the graphs that several sections use."""
    sources: dict[str, tuple[Any, dict[str, Any]]] = {
        "weighted": (weighted_links(3000, 40_000), {"weight": "values"}),
        "small-weighted": (weighted_links(300, 9000), {"weight": "values"}),
        "debian": (DEBIAN, {}),
        "site": (TINY / "site.txt", {}),
    }
    if (REAL / "cnr-2000.graph").exists():
        sources["cnr"] = (REAL / "cnr-2000.graph", {})
    made = {}
    for scale in (8, 10, 12, 14):
        made[f"rmat{scale}"] = TMP / f"rmat{scale}.zarr"
        command("generate", "rmat", "--scale", scale, "--seed", 5, "-o", made[f"rmat{scale}"])
    for name, (source, how) in sources.items():
        made[name] = TMP / f"{name}.zarr"
        oocpr.import_graph(source, made[name], **how)
    return made


# Sections


def ranks_section(pins: Pins, graphs: Graphs) -> None:
    """Ranks on processors, in plain NumPy, on workers and on the shim."""
    ways: dict[str, dict[str, dict[str, Any]]] = {}
    for name, path in graphs.items():
        nodes = oocpr.open_graph(path).nodes
        vector = np.random.default_rng(nodes).random(nodes) ** 4
        every = {"personalization": vector, "start": vector[::-1].copy(), "dangling": "weakly"}
        alone = {"personalization": vector}, {"start": vector}, {"dangling": "weakly"}
        ways[name] = dict(zip(WAYS, ({}, *alone, every), strict=True))
    usual = {"cpu": ("rmat12", "weighted"), "reference": ("rmat10", "small-weighted"), "cuda": ("rmat8",)}
    # Power iteration stalls above what its reads are rounded by, and takes no bytes.
    tol = {("power", "float32"): 1e-6, ("power", "bits16"): 1e-2}
    every_nth = {"cpu": 1, "reference": 2, "cuda": 3}
    for device, names in usual.items():
        whole = product(names, READS, METHODS, (1, 4 if device == "cpu" else 3), WAYS)
        for number, (name, reads, method, stripes, way) in enumerate(whole):
            # The number of ways has no common divisor with two or three, so each pair is met.
            if number % every_nth[device] == 0 and (method, reads) != ("power", "bits8"):
                how = ways[name][way] | {"tol": tol.get((method, reads), 1e-9), "device": device}
                how |= {"reads": reads, "method": method, "stripes": stripes}
                label = f"{device} {name} {reads} {method} {stripes} {way}"
                pins.case(label, ranked, graphs[name], "bytes_read", **how)
    # In memory as a whole, which is what small graphs get where nobody asks for something else.
    for name, way in product(graphs, WAYS):
        pins.case(f"whole {name} {way}", ranked, graphs[name], **ways[name][way])
    kept = oocpr.open_graph(graphs["debian"])
    for number, way in product((1, 2), WAYS):
        pins.case(f"whole, kept, {way}, {number}", ranked, kept, **ways["debian"][way])
    more: dict[str, dict[str, Any]] = {
        **{f"damping {d}": {"method": "mixed", "damping": d, "reads": "float32"} for d in (0.1, 0.5, 0.95)},
        **{f"threads {n}": {"method": "mixed", "threads": n} for n in (1, 2, 3)},
        **{f"io {io}": {"method": "mixed", "io": io} for io in ("auto", "direct", "buffered")},
        "components": {"method": "components", "damping": 0.5},
        "components, one thread": {"method": "components", "threads": 1},
        "residual stop": {"stop": "residual", "method": "mixed"},
        "reproducible": {"reproducible": True},
        "three passes": {"method": "mixed", "max_passes": 3},
        "tolerance": {"method": "mixed", "tol": 1e-12},
        "device auto": {"device": "auto", "method": "mixed"},
    }
    for name, label in product(("debian", "rmat14", "weighted", "cnr"), more):
        if name in graphs:
            pins.case(f"{name} {label}", ranked, graphs[name], **more[label])
    pins.case("names", ranked, graphs["debian"], personalization={"libc6": 3, "python3": 1.5, "dpkg": 1})
    pins.case("set of names", ranked, graphs["debian"], personalization={"libc6", "perl"}, method="mixed")
    pins.case("from a source", ranked, DEBIAN)
    for path, reads in product(sorted((ROOT / "tests/fixtures/format-1").glob("*.zarr")), READS):
        pins.case(f"format 1 {path.name} {reads}", ranked, path, method="mixed", reads=reads)
    short_of_memory(pins, graphs)
    shim_ranks(pins, graphs)
    worker_ranks(pins, graphs)


def short_of_memory(pins: Pins, graphs: Graphs) -> None:
    """Rank within budgets that leave room for no tile, for one, and for fewer remembered passes."""
    names = ("rmat14", "weighted", "debian", "cnr")
    for name, method, reproducible in product(names, METHODS, (False, True)):
        if name not in graphs:
            continue
        how = {"method": method, "reproducible": reproducible}
        least = oocpr.plan(graphs[name], memory="2MiB", **how).to_json()
        tile = 4 * oocpr.open_graph(graphs[name]).info()["tile_edges"]
        for label, more in {"none": 0, "one": tile, "less": -least["tiers"]["history"] // 2}.items():
            how["memory"] = least["needed"] + more
            label = f"short of memory {name} {method} {label}{' reproducible' * reproducible}"
            pins.case(label, ranked, graphs[name], "bytes_read", "predicted", **how)


def shim_ranks(pins: Pins, graphs: Graphs) -> None:
    """Rank on devices of the host: every product, several devices, and memory that is short."""
    for kernel, reads in product(known_kernels(), ("bits16", "float64")):
        how = {"device": "cuda", "kernel": kernel, "reads": reads, "max_passes": 3}
        pins.case(f"kernel {kernel} {reads}", ranked, graphs["rmat8"], **how)
    budgets = (None, *(SMALL + more for more in (50_000, 85_000, 100_000, 150_000, 2**20)))
    for name, device, memory in product(("rmat10", "small-weighted"), ("cuda", "cuda:0,cuda:1"), budgets):
        for how in ({}, {"method": "residual", "reads": "bits8"}, {"reproducible": True}):
            known = {"device": device, "device_memory": memory, "tol": 1e-7, **how}
            label = f"shim {name} {device} {memory} {' '.join(map(str, how.values()))}"
            pins.case(label, ranked, graphs[name], **known)


def known_kernels() -> list[str]:
    """Names of products, as the refusal of another one lists them."""
    refused = command("rank", TINY / "site.txt", "--device", "cuda", "--kernel", "no")["err"]
    listed = re.search(r"Use one of (.*?)\.\n", refused)
    return [*(listed[1].split(", ") if listed else ()), "binned:6:96", "binned:4:64:128"]


def worker_ranks(pins: Pins, graphs: Graphs) -> None:
    """Rank on workers, with what one process gives beside it."""
    from distributed import Client, LocalCluster

    runs: dict[str, dict[str, Any]] = {
        "rmat12 mixed": {"stripes": 4, "method": "mixed"},
        "rmat12 bits8": {"stripes": 3, "method": "mixed", "reads": "bits8"},
        "rmat12 power": {"stripes": 2, "method": "power"},
        "debian auto": {},
        "weighted residual": {"stripes": 2, "method": "residual"},
    }
    for workers in (0, 1, 2):
        with contextlib.ExitStack() as stack:
            client = None
            if workers:
                cluster = LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None)
                client = stack.enter_context(Client(stack.enter_context(cluster)))
            for label, how in runs.items():
                graph = graphs[label.split()[0]]
                pins.case(f"workers {workers} {label}", ranked, graph, client=client, **how)


def stores_section(pins: Pins, graphs: Graphs) -> None:
    """Bytes of stores. Nothing in them differs from run to run, so nothing is left out."""
    for name, path in graphs.items():
        pins.case(f"graph {name}", contents, path)
    files = make_sources()
    src, dst = random_links(2000, 20_000, seed=1)
    links = pa.table({"src": src, "dst": dst, "w": (src % 7 + dst % 3 + 1).astype(float)})
    weighted = weighted_links(500, 9000)
    sources: dict[str, tuple[Any, dict[str, Any]]] = {
        **{f"tiny {path.name}": (path, {}) for path in sorted(TINY.iterdir()) if "ranks" not in path.name},
        **{f"real {name}": (REAL / name, {}) for name in ("gr0.California.gz", "hollins.dat.gz")},
        **{f"file {name}": given for name, given in files.items()},
        **{f"duplicates {how}": ((src, dst), {"duplicates": how}) for how in ("sum", "merge", "count")},
        "weights, sum": (weighted, {"weight": "values", "duplicates": "sum"}),
        "weights, merge": (weighted, {"weight": "values", "duplicates": "merge"}),
        "pair of arrays": ((src, dst), {}),
        "pair of arrays, undirected": ((src, dst), {"undirected": True}),
        "arrow table": (links, {}),
        "arrow table, weights": (links, {"weight": "w"}),
        "matrix, without its weights": (weighted, {}),
        "weights, undirected": (weighted, {"weight": "values", "undirected": True}),
        "undirected": (TINY / "site.txt", {"undirected": True}),
        "labels": (TINY / "langville-meyer.txt", {"labels": TMP / "sources/labels.txt"}),
        "resumable": (TMP / "sources/links.txt", {"resume": True, "tmp": TMP}),
        "shim": ((src, dst), {"device": "cuda"}),
        "shim, weights by degree": (weighted, {"weight": "values", "order": "degree", "device": "cuda"}),
    }
    for order in ("keep", "degree", "host", "bfs", "auto"):
        sources[f"debian {order}"] = DEBIAN, {"order": order}
        sources[f"links {order}"] = (src, dst), {"order": order}
        sources[f"names {order}"] = TMP / "sources/names.tsv", {"order": order}
        sources[f"weights {order}"] = weighted, {"weight": "values", "order": order}
    for number, (name, (source, how)) in enumerate(sources.items()):
        pins.case(name, stored, source, TMP / f"store-{number}.zarr", **how)
    for name, how in {"plain": {}, "counted": {"duplicates": "count"}}.items():
        first = oocpr.import_graph((src[:12_000], dst[:12_000]), TMP / f"half-{name}.zarr", **how)
        both = TMP / f"both-{name}.zarr"
        oocpr.append(first, (src[12_000:], dst[12_000:]), both, **how)
        pins.case(f"append {name}", contents, both)
    rmat = ("generate", "rmat", "--seed", 9, "--scale")
    asked: dict[str, tuple[Any, ...]] = {
        "one worker": ("import", DEBIAN, "--workers", 1),
        "rmat, two workers": (*rmat, 13, "--workers", 2),
        "append": ("append", graphs["site"], TINY / "site.tsv"),
        "append, text": ("append", TMP / "half-plain.zarr", TMP / "sources/links.txt"),
        **{f"rmat {order}": (*rmat, 13, "--order", order) for order in ("keep", "degree", "bfs", "auto")},
        "rmat, not permuted": (*rmat, 13, "--no-permute"),
        "rmat, counted": (*rmat, 13, "--duplicates", "count", "--edge-factor", 40),
        # So little that the links are dealt to several buckets on the disk.
        "little memory": (*rmat, 19, "--memory", "290MiB"),
        "little memory, by degree": (*rmat, 18, "--memory", "270MiB", "--order", "degree"),
        "little memory, counted": (*rmat, 18, "--memory", "290MiB", "--duplicates", "count"),
        "little memory, names": ("import", TMP / "sources/many.tsv", "--memory", "280MiB"),
    }
    for name, words in asked.items():
        path = TMP / "made.zarr"
        pins.case(f"command {name}", process if "little" in name else command, *words, "-o", path)
        pins.case(f"bytes of {name}", contents, path)
        shutil.rmtree(path, ignore_errors=True)


def stored(source: Any, path: Path, **how: Any) -> dict[str, Any]:
    """Import a graph; returns the bytes of its store and what is said of it."""
    graph = oocpr.import_graph(source, path, **how)
    facts = {key: graph.info()[key] for key in ("identity", "nodes", "edges", "duplicates", "order")}
    return {"bytes": contents(path), **facts, "notices": [clean(text) for text in graph.notices]}


def make_sources() -> dict[str, tuple[Any, dict[str, Any]]]:
    """Write sources in formats of which there are none in the repository, with how they are read."""
    folder = TMP / "sources"
    folder.mkdir(exist_ok=True)
    ends = [(int(u), int(v)) for u, v in zip(*random_links(1500, 12_000, seed=2), strict=True)]
    urls = [f"www{n % 37}.site{n % 11}.org/page/{n}" for n in range(1500)]
    texts: dict[str, list[str]] = {
        "links.txt": [f"{u * 3} {v * 3}" for u, v in ends],
        "wide.txt": [f"{u * 2**50} {v * 2**50}" for u, v in ends],
        "weights.txt": [f"{u} {v} {u % 5 + 0.25}" for u, v in ends],
        "names.tsv": [f"{urls[u]}\t{urls[v]}" for u, v in ends],
        "many.tsv": [f"host{k * 7919 % 90001}\thost{k * 104729 % 70001}" for k in range(400_000)],
        "links.csv": ["from,to,amount", *(f"{u},{v},{v % 9}" for u, v in ends)],
        "names.csv": ["a,b", *(f"{urls[u]},{urls[v]}" for u, v in ends)],
        "links.jsonl": [f'{{"from": {u}, "to": {v}}}' for u, v in ends],
        "labels.txt": [f"node {n}" for n in range(7)],
        "nodes.csv": ["node,title,year,score", *(f"{n},t{n},{n + 1990},{n / 8}" for n in range(1, 5))],
    }
    for name, lines in texts.items():
        (folder / name).write_text("\n".join(lines) + "\n")
    table = {"source": [u for u, _ in ends], "target": [v for _, v in ends], "w": [1.5] * len(ends)}
    pq.write_table(pa.table(table), folder / "links.parquet")
    np.save(folder / "pairs.npy", np.array(ends))
    sparse.save_npz(folder / "weights.npz", weighted_links(400, 3000).tocsr())
    ways: dict[str, dict[str, Any]] = {
        "weights.txt": {"weight": 3},
        "links.csv": {"weight": "amount"},
        "names.csv": {"format": "csv_names", "source_column": "b", "target_column": "a"},
        "weights.npz": {"weight": "values"},
    }
    read = [path for path in sorted(folder.iterdir()) if path.name not in ("labels.txt", "nodes.csv")]
    several = [folder / "links.txt", folder / "wide.txt"]
    known = {path.name: (path, ways.get(path.name, {})) for path in read}
    return {**known, "several": (several, {}), "pattern": (str(folder / "[lw]i*.txt"), {})}


def plans_section(pins: Pins, graphs: Graphs) -> None:
    """Plans, but for the seconds that they measure."""
    for name, how in product(("rmat14", "weighted"), plan_ways()):
        label = " ".join(f"{key}={value}" for key, value in how.items())
        pins.case(f"{name} {label}", planned, graphs[name], **{"memory": "4GiB", **how})


def planned(graph: Path, **how: Any) -> dict[str, Any]:
    """Plan a run; returns what programs and people read of it."""
    plan = oocpr.plan(graph, **how)
    facts = {key: value for key, value in plan.to_json().items() if key not in MEASURED}
    lines = [line for line in str(plan).splitlines() if not line.startswith(("a pass", "time"))]
    return {"json": facts, "text": "\n".join(lines)}


def plan_ways() -> Iterator[dict[str, Any]]:
    """What is planned with."""
    for method, memory in product(METHODS, ("2MiB", "235MiB", "243MiB", "245MiB", "4GiB")):
        yield {"method": method, "memory": memory}
    yield from ({"method": "mixed", "reads": reads, "tol": 1e-6} for reads in READS)
    for memory, device in product((0, 150_000, 250_000, 400_000, 2**20, 2**24), ("cuda", "cuda:0,cuda:1")):
        for reproducible in (False, True):
            yield {"device": device, "device_memory": SMALL + memory, "reproducible": reproducible}
    for method, reads in product(METHODS[1:], READS):
        yield {"device": "cuda", "method": method, "reads": reads}
    yield from ({"stripes": stripes} for stripes in (1, 2, 4, 50))
    yield from ({"reproducible": True, "memory": memory} for memory in ("235MiB", "245MiB", "1GiB"))
    yield from ({"io": io, "method": "mixed"} for io in ("direct", "buffered"))
    yield from ({}, {"damping": 0.99, "reads": "float64"}, {"stop": "residual"}, {"personalized": True})
    yield from ({"device": "auto"}, {"device": "cuda:all"}, {"device": "cuda", "kernel": "binned"})
    yield {"device": "cuda", "memory": "215MiB", "device_memory": SMALL + 250_000}
    yield {"device": "cuda", "stripes": 4}


def errors_section(pins: Pins, graphs: Graphs) -> None:
    """Exit codes and messages of what cannot be, at the command line and in Python."""
    bad, made = TMP / "bad", TMP / "e.zarr"
    (bad / "folder.zarr").mkdir(parents=True, exist_ok=True)
    for name, text in (BAD_SOURCES | BESIDE).items():
        (bad / name).write_bytes(text.encode("latin-1"))
    (bad / "cut.txt.gz").write_bytes(DEBIAN.read_bytes()[:5000])
    places = {"bad": bad, "out": f"-o {made}", "tiny": TINY, **graphs}
    lines = [f"import {{bad}}/{name} {{out}}" for name in (*BAD_SOURCES, "cut.txt.gz")]
    lines += [f"{begin} {end}" for begin, ends in BAD_LINES.items() for end in ends.split("|")]
    for line in ("", *lines):
        shutil.rmtree(made, ignore_errors=True)
        pins.case(" ".join(line.split()), command, *shlex.split(line.format(**places)))
    damaged_stores(pins, graphs["site"])
    shutil.rmtree(made, ignore_errors=True)
    site, one, links = graphs["site"], np.ones(1, int), bad / "links.txt"
    calls: dict[str, Callable[[], Any]] = {
        "no source": lambda: oocpr.pagerank(None),
        "shape": lambda: oocpr.pagerank((np.arange(3), np.arange(4))),
        "floats": lambda: oocpr.pagerank((np.ones(2), np.ones(2))),
        "plan of a source": lambda: oocpr.plan(links),
        "k": lambda: oocpr.pagerank(site).top(-1),
        "sort": lambda: oocpr.pagerank(site).to_csv(bad / "s.csv", sort="x"),
        "path": lambda: oocpr.open_graph(3),
        "read_ranks": lambda: oocpr.read_ranks(bad / "no.parquet"),
        "verify": lambda: oocpr.verify(site, [1]),
        "memory": lambda: oocpr.import_graph(links, made, memory="none"),
        "append": lambda: repr(oocpr.append(site, (one, one), made)),
        "replaced": lambda: replaced(links),
    }
    for name, call in calls.items():
        pins.case(f"call {name}", call)
    wrong = {"damping": 2, "reads": 4, "dumping": 0.8, "personalization": {"nobody": 1}, "start": np.ones(4)}
    wrong |= {"client": 3, "threads": 5000, "progress": 3, "tol": "x", "dangling": None, "io": 0}
    for name, value in wrong.items():
        pins.case(f"call pagerank {name}", oocpr.pagerank, site, **{name: value})


def replaced(links: Path) -> None:
    """Go on with a graph whose store was replaced."""
    graph = oocpr.import_graph(links, TMP / "replaced.zarr")
    oocpr.import_graph(TINY / "site.txt", TMP / "replaced.zarr", overwrite=True)
    graph.info()


def damaged_stores(pins: Pins, site: Path) -> None:
    """Flip one bit of each file of a store, halve it, or take it away."""
    (TMP / "damage").mkdir(exist_ok=True)
    ranks, copy = TMP / "damage/ranks.parquet", TMP / "damage/site.zarr"
    oocpr.pagerank(site).to_parquet(ranks)
    files = sorted(path.relative_to(site) for path in site.rglob("*") if path.is_file())
    for file, how in product(files, ("gone", "short", "flipped")):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(site, copy)
        data = bytearray((copy / file).read_bytes())
        data[len(data) // 2] ^= 1
        (copy / file).write_bytes(data if how == "flipped" else data[: len(data) // 2])
        if how == "gone":
            (copy / file).unlink()
        for words in (("info", copy), ("rank", copy), ("verify", copy, ranks)):
            pins.case(f"damaged {file} {how} {words[0]}", command, *words)


def outputs_section(pins: Pins, graphs: Graphs) -> None:
    """Files of ranks, and what commands print, but for times and peaks."""
    folder = TMP / "outputs"
    folder.mkdir(exist_ok=True)
    known = {name: graphs[name] for name in ("site", "debian", "rmat12", "weighted")}
    known["known"] = folder / "known.zarr"
    oocpr.import_graph(TINY / "site.txt", known["known"])
    for name, graph in known.items():
        ranks = oocpr.pagerank(graph, memory="4GiB")
        for sort in ("node", "rank"):
            path, table = folder / f"{name}-{sort}.csv", folder / f"{name}-{sort}.parquet"
            ranks.to_csv(path, sort=sort)
            ranks.to_parquet(table, sort=sort)
            pins.case(f"csv {name} {sort}", path.read_text)
            pins.case(f"parquet {name} {sort}", parquet_of, table)
            pins.case(f"top json {name} {sort}", report_of, "top", table, "-k", 7)
            pins.case(f"top parquet {name} {sort}", command, "top", table, "-k", 2000)
            pins.case(f"top csv {name} {sort}", command, "top", path)
            pins.case(f"verify {name} {sort}", command, "verify", graph, table, "--json", "-")
            pins.case(f"verify text {name} {sort}", command, "verify", graph, path)
        ranks.to_zarr(folder / f"ranks-{name}.zarr")
        pins.case(f"zarr {name}", zarr_of, folder / f"ranks-{name}.zarr")
        pins.case(f"verify zarr {name}", command, "verify", graph, folder / f"ranks-{name}.zarr")
        pins.case(f"info {name}", command, "info", graph, "--json", "-")
        pins.case(f"info text {name}", command, "info", graph)
        pins.case(f"ranks {name}", lambda ranks=ranks: [repr(ranks), repr(ranks.top(12))])
        for method in ("auto", "mixed"):
            asked = ("rank", graph, "--memory", "4GiB", "--method", method)
            pins.case(f"rank {name} {method}", command, *asked, "--top", 12)
            pins.case(f"rank json {name} {method}", report_of, *asked, "--top", 4)
            pins.case(f"rank csv {name} {method}", command, *asked, "-o", "-", "--sort", "rank")
    asked = ("import", DEBIAN, "-o", folder / "debian.zarr", "--order", "auto")
    pins.case("import", command, *asked)
    pins.case("import over it", command, *asked, "--overwrite", "--undirected")
    (folder / "parallel.csv").write_text("from,to,weight\n0,1,2\n0,1,3\n1,0,1\n")
    asked = ("import", folder / "parallel.csv", "-o", folder / "p.zarr")
    pins.case("import, notices", command, *asked)
    pins.case("import, weights", command, *asked, "--weight", "weight", "--overwrite")
    pins.case("rank of a source", command, "rank", TINY / "site.jsonl", "--top", 3)
    trace = folder / "trace.json"
    pins.case("trace", command, "rank", known["known"], "--method", "mixed", "--trace", trace)
    pins.case("events", lambda: sorted({f"{event['ph']} {sorted(event)}" for event in events(trace)}))


def events(path: Path) -> list[dict[str, Any]]:
    """What a timeline shows."""
    made = json.loads(path.read_text())
    return made["traceEvents"] if isinstance(made, dict) else made


def parquet_of(path: Path) -> dict[str, Any]:
    """Columns of a file, and the names of what it says beside them."""
    table = pq.read_table(path)
    facts = sorted(key.decode() for key in table.schema.metadata or {})
    columns = {name: repr(table[name].to_pylist()).encode() for name in table.column_names}
    return {"types": str(table.schema.remove_metadata()), "columns": columns, "metadata": facts}


def zarr_of(path: Path) -> list[str]:
    """Names and hashes of the files of a group; of its own metadata, with the times of the run, the name."""
    files = sorted(file for file in path.rglob("*") if file.is_file() and file != path / "zarr.json")
    return [f"{file.relative_to(path)} {short(file.read_bytes())}" for file in files]


def report_of(*words: Any) -> dict[str, Any]:
    """What a command says of a run as JSON, without what was measured."""
    found = command(*words, "--json", "-")
    facts = json.loads(found["out"])
    return {"code": found["code"]} | {key: "measured" if key in MEASURED else facts[key] for key in facts}


def help_section(pins: Pins, graphs: Graphs) -> None:
    """What commands say of themselves, and what Python sees."""
    names = ("import", "append", "generate", "info", "plan", "rank", "top", "verify", "warmup")
    for name in ("", "generate rmat", "generate wu", "bench papers", *names):
        shown = command(*name.split(), "--help")["out"]
        pins.case(f"--help {name}", shown.splitlines)
        pins[f"flags {name}"] = sorted(set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", shown)))
    pins.case("public names", lambda: sorted(oocpr.__all__))
    for name in oocpr.__all__:
        thing = getattr(oocpr, name)
        if inspect.isclass(thing):
            pins[f"members {name}"] = [member for member in dir(thing) if not member.startswith("_")]
            pins[f"bases {name}"] = [base.__name__ for base in thing.__mro__]
            pins[f"exit code {name}"] = getattr(thing, "exit_code", None)
        elif callable(thing):
            given = inspect.signature(thing).parameters.values()
            pins[f"parameters {name}"] = [f"{one.name}, {one.kind.name}, {one.default!r}" for one in given]


SECTIONS: dict[str, Callable[[Pins, Graphs], None]] = {
    "help": help_section,
    "errors": errors_section,
    "outputs": outputs_section,
    "plans": plans_section,
    "stores": stores_section,
    "ranks": ranks_section,
}


def collect(only: list[str]) -> dict[str, Any]:
    """Run sections."""
    found: dict[str, Any] = {}
    with with_shim():
        begun = time.perf_counter()
        graphs = make_graphs()
        say(f"graphs: {time.perf_counter() - begun:.0f} s")
        for section in only or SECTIONS:
            begun, pins = time.perf_counter(), Pins()
            SECTIONS[section](pins, graphs)
            found |= {f"{section}: {name}": value for name, value in pins.items()}
            raised = sum(isinstance(value, dict) and "raised" in value for value in pins.values())
            say(f"{section}: {len(pins)} cases, {raised} of them raised, {time.perf_counter() - begun:.0f} s")
    return found


def compare(first: Path, second: Path) -> int:
    """Tell where two files differ; returns the exit code."""
    one, other = (json.loads(path.read_text()) for path in (first, second))
    different = 0
    for section in sorted({name.split(": ")[0] for name in one | other}):
        names = [name for name in sorted(one | other) if name.startswith(f"{section}: ")]
        alone = [name for name in names if (name in one) != (name in other)]
        both = [name for name in names if name in one and name in other]
        changed = [name for name in both if one[name] != other[name]]
        counts = f"{len(both) - len(changed)} equal, {len(changed)} different, {len(alone)} only in one"
        say(f"{section}: {counts}")
        for name in changed:
            say(f"  {name}\n    - {json.dumps(one[name])}\n    + {json.dumps(other[name])}")
        for name in alone:
            say(f"  {name}\n    only in {first if name in one else second}")
        different += len(changed) + len(alone)
    return int(different > 0)


def say(text: str) -> None:
    """Write a line of progress, or of a comparison."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def run_program() -> int:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(description="Pin what oocpr does, or compare what was pinned.")
    parser.add_argument("files", nargs="+", type=Path, help="the file to write, or two to compare")
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--only", action="append", default=[], choices=SECTIONS)
    asked = parser.parse_args()
    if len(asked.files) != 1 + asked.compare:
        parser.error("one file is written, or two are compared")
    if asked.compare:
        return compare(*asked.files)
    # Nothing that was tuned on this machine, and lines of one width.
    os.environ |= {"OOCPR_TUNE": "off", "COLUMNS": "110"}
    TMP.mkdir()
    try:
        found = collect(asked.only)
    finally:
        shutil.rmtree(TMP, ignore_errors=True)
    asked.files[0].write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    return 0


# TO ADAPT AFTER MOVES: the only place that knows modules inside.
@contextlib.contextmanager
def with_shim() -> Iterator[None]:
    """Let the host stand for every CUDA device, and let plans begin with a process of one size."""
    from unittest.mock import patch

    sys.path.insert(0, str(ROOT))
    from tests.kernels.shim.host import HostDevice

    devices: dict[str, Any] = {}

    def open_device(name: str) -> Any:
        full = name if ":" in name else f"{name}:0"
        return devices.setdefault(full, HostDevice(ROOT / ".pytest_cache/d/kernels"))

    patches: dict[str, Any] = {
        "oocpr.engine.devices.open_device": open_device,
        "oocpr.engine.cuda.device.open_device": open_device,
        "oocpr.engine.devices.all_devices": lambda: "cuda:0,cuda:1,cuda:2",
        # What this process holds depends on the cases before.
        "oocpr.engine.planning.resident_after_trim": lambda: 200 << 20,
        "oocpr.engine.planning.KERNEL_BYTES": 0,
        # Times are not pinned, so little has to be measured.
        "oocpr.engine.probe.measure.SECONDS": 0,
        "oocpr.engine.probe.sample_run.SECONDS": 0,
    }
    with contextlib.ExitStack() as stack:
        for place, value in patches.items():
            stack.enter_context(patch(place, value))
        yield


if __name__ == "__main__":
    sys.exit(run_program())
