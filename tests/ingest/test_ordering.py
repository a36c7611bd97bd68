"""Orders that an import is told, and one that it chooses itself."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest

from oocpr.ingest.budget import SLACK_BYTES
from oocpr.ingest.build import build_store
from oocpr.ingest.nodes.strings import split_strings
from oocpr.ingest.order import find
from oocpr.ingest.order.orders import host_keys
from oocpr.sources import open_source
from oocpr.sources.rmat import Rmat
from oocpr.store.graph import open_store
from oocpr.system import resident

PLENTY = 3 * 2**30
CALLED = {"keep": "as in the source", "degree": "by out-degree", "bfs": "by breadth-first search"}


def graph_for(chosen):
    rng = np.random.default_rng(3)
    if chosen == "degree":
        [block] = Rmat(14).blocks(1 << 30)
        return block.src, block.dst
    # Links inside groups of a hundred, and to the first node of each.
    src, inside = rng.integers(0, 30_000, 200_000), rng.integers(0, 100, 200_000)
    src = np.concatenate([src, np.zeros(300, int)])
    dst = np.concatenate([src[:200_000] // 100 * 100 + inside, np.arange(300) * 100])
    names = rng.permutation(30_000) if chosen == "bfs" else np.arange(30_000)
    return names[src].astype(np.uint32), names[dst].astype(np.uint32)


def assert_one_store(source, folder, contents, chosen):
    """Any budget chooses this order and makes the store of who asks for it; returns the reason."""
    said = []
    facts = build_store(source, folder / "auto.zarr", memory=PLENTY, order="auto", on_reason=said.append)
    assert facts.order == chosen
    build_store(source, folder / "told.zarr", memory=PLENTY, order=chosen, on_reason=said.append)
    build_store(
        source,
        folder / "tight.zarr",
        memory=resident() + (60 << 20),
        order="auto",
        block_edges=5000,
        bucket_edges=9000,
    )
    expected = contents(folder / "told.zarr")
    assert contents(folder / "auto.zarr") == expected
    assert contents(folder / "tight.zarr") == expected
    [reason] = said
    return reason


@pytest.mark.parametrize("chosen", ["keep", "degree", "bfs"])
@pytest.mark.parametrize("kind", ["ids", "gaps", "wide", "names"])
def test_the_store_is_the_one_that_was_chosen(tmp_path, arrays, named, contents, chosen, kind):
    src, dst = graph_for(chosen)
    nodes = int(max(src.max(), dst.max())) + 1
    if kind == "names":
        # In the order of their numbers, as names are numbered as they come.
        names = [f"n{node}" for node in range(nodes)]
        source = named([(names[u], names[v]) for u, v in zip(src, dst, strict=True)], nodes=names)
    elif kind == "ids":
        source = arrays(src, dst, nodes)
    else:
        step = 7 if kind == "gaps" else 2**33 + 1
        source = arrays(*(ends * np.int64(step) for ends in (src, dst)))
    reason = assert_one_store(source, tmp_path, contents, chosen)
    assert reason.startswith(f"order: {CALLED[chosen]}, ")
    assert "by host" not in reason


def pages(rng, hosts=300, links=60_000):
    """Links inside hosts, and their ends in no order."""
    host, pages_of = rng.integers(0, hosts, links), rng.integers(0, 50, (2, links))
    return [
        tuple(f"http://www.h{h}.org/{'a' * (page % 7)}{page}" for page in ends)
        for h, ends in zip(host, pages_of.T, strict=True)
    ]


def test_names_of_pages_are_ordered_by_host(tmp_path, named, contents):
    source = named(pages(np.random.default_rng(1)))
    reason = assert_one_store(source, tmp_path, contents, "host")
    assert reason.startswith("order: by host, ")
    assert "by out-degree" in reason
    store = open_store(tmp_path / "auto.zarr")
    coded = [name.encode() for name in store.labels(range(store.nodes))]
    text = np.frombuffer(b"".join(coded), np.uint8)
    keys = split_strings(host_keys(text, np.array([len(name) for name in coded], np.uint32)))
    assert keys == sorted(keys)
    assert set(coded) == {end.encode() for pair in source.pairs for end in pair}


def test_labels_are_names_too(tmp_path, arrays, contents):
    pairs = pages(np.random.default_rng(1))
    labels = sorted({end for pair in pairs for end in pair}, key=lambda name: name[::-1])
    numbers = {name: number for number, name in enumerate(labels)}
    ends = np.array([[numbers[end] for end in pair] for pair in pairs]).T
    reason = assert_one_store(arrays(*ends, len(labels), labels), tmp_path, contents, "host")
    assert reason.startswith("order: by host, ")


def test_a_graph_that_is_in_the_order_of_degrees_is_kept(tmp_path, arrays):
    said = []
    facts = build_store(
        arrays([0, 0, 1], [1, 2, 2]), tmp_path / "g.zarr", memory=PLENTY, order="auto", on_reason=said.append
    )
    assert facts.order == "keep"
    assert "by out-degree" not in said[0]


@pytest.mark.parametrize("nodes", [1, 7])
@pytest.mark.parametrize(("order", "made"), [("auto", "keep"), ("bfs", "bfs")])
def test_a_graph_without_links_has_an_order(tmp_path, arrays, nodes, order, made):
    facts = build_store(arrays([], [], nodes), tmp_path / "g.zarr", memory=PLENTY, order=order)
    assert (facts.nodes, facts.order) == (nodes, made)


PEAK = """
    import sys
    from pathlib import Path

    import numpy as np

    from oocpr.ingest.order.find import Ordering
    from oocpr.system import resident, resident_after_trim
    from oocpr.ingest.spill.partition import KeyRun
    from oocpr.ingest.spill.files import SpillFile, SpillDir
    from oocpr.ingest.read import SpilledEdges

    class Labels:
        def __init__(self, nodes):
            self.nodes = nodes

        def __iter__(self):
            return (f"http://www.h{k % 1000}.org/{k}" for k in range(self.nodes))

    class Labelled:
        name = "labelled"

    def find(order, nodes, memory):
        source = Labelled()
        source.labels = Labels(nodes) if order == "host" else None
        rng = np.random.default_rng(1)
        with SpillDir(Path(sys.argv[1])) as workspace:
            file = workspace.file()
            for k in range(16):
                src, dst = rng.integers(0, nodes, (2, nodes // 32), np.uint64)
                file.write(8 * k * src.size, dst << np.uint64(32) | src)
            run = KeyRun.of_words(file, 0, 16 * src.size, 0, nodes << 32)
            del src, dst
            before = resident_after_trim()
            Path("/proc/self/clear_refs").write_text("5")
            spilled = SpilledEdges(file, run.count, nodes, None, None, [run], None)
            Ordering(spilled, source, workspace, memory(before), lambda *_: None).find(order)
        return before

    order, nodes, needed = sys.argv[2], *map(int, sys.argv[3:])
    find(order, 1 << 10, lambda _: 1 << 33)
    before = find(order, nodes, lambda before: before + needed)
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    print((int(status["VmHWM"].split()[0]) << 10) - before)
"""


@pytest.mark.parametrize("order", ["degree", "host", "bfs", "auto"])
def test_an_order_takes_the_memory_that_it_asks_for(tmp_path, order):
    nodes = 1 << (20 if order == "host" else 22)
    asked = find._BYTES_PER_NODE[order] * nodes + find._BYTES_BESIDE.get(order, 0)
    words = [tmp_path, order, nodes, asked + SLACK_BYTES + (1 << 20)]
    program = [sys.executable, "-c", textwrap.dedent(PEAK), *map(str, words)]
    taken = int(subprocess.run(program, check=True, capture_output=True, text=True).stdout)
    assert taken <= asked + SLACK_BYTES
    assert taken >= 0.6 * asked


@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("cnr-2000.graph", "keep"),
        ("linux61-calls.txt.xz", "keep"),
        ("debian-bookworm-deps.txt.gz", "keep"),
        ("openjdk17-javadoc.txt.gz", "keep"),
        ("hollins.dat.gz", "host"),
    ],
)
def test_real_graphs_have_an_order_that_takes_few_bytes(tmp_path, graphs, name, chosen):
    facts = {
        order: build_store(open_source(graphs / name), tmp_path / f"{order}.zarr", memory=PLENTY, order=order)
        for order in ("keep", "degree", "bfs", "auto")
    }
    assert facts["auto"].order == chosen
    least = min(made.column_bytes for made in facts.values())
    assert facts["auto"].column_bytes <= 8 / 7 * least
