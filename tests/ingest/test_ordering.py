"""An order that an import chooses itself."""

import numpy as np
import pytest

from oocpr.ingest.budget import resident
from oocpr.ingest.build import build_store
from oocpr.sources import open_source
from oocpr.sources.rmat import Rmat

PLENTY = 3 * 2**30


def near(rng, nodes=30_000, edges=200_000):
    """Links between neighbours, and ids with gaps."""
    src = rng.integers(0, nodes, edges)
    dst = np.clip(src + rng.integers(-20, 20, edges), 0, nodes - 1)
    return [(3 * ends).astype(np.uint32) for ends in (src, dst)]


def graphs_to_order(rng):
    [block] = Rmat(14).blocks(1 << 30)
    return {
        "keep": near(rng),
        "degree": (block.src, block.dst),
    }


@pytest.mark.parametrize("chosen", ["keep", "degree"])
@pytest.mark.parametrize("kind", ["ids", "gaps", "wide", "names"])
def test_the_store_is_the_one_that_was_chosen(tmp_path, arrays, named, contents, chosen, kind):
    src, dst = graphs_to_order(np.random.default_rng(3))[chosen]
    if kind == "names":
        # In the order of their numbers, as names are numbered as they come.
        nodes = [f"n{node}" for node in range(int(max(src.max(), dst.max())) + 1)]
        source = named([(nodes[u], nodes[v]) for u, v in zip(src, dst, strict=True)], nodes=nodes)
    elif kind == "ids":
        source = arrays(src, dst, int(max(src.max(), dst.max())) + 1)
    else:
        step = 7 if kind == "gaps" else 2**33 + 1
        source = arrays(*(ends * np.int64(step) for ends in (src, dst)))
    said = []
    facts = build_store(source, tmp_path / "auto.zarr", memory=PLENTY, order="auto", tell=said.append)
    assert facts.order == chosen
    [reason] = said
    assert reason.startswith(f"order: {'as in the source' if chosen == 'keep' else 'by out-degree'}, ")
    build_store(source, tmp_path / "told.zarr", memory=PLENTY, order=chosen, tell=said.append)
    assert len(said) == 1
    assert contents(tmp_path / "auto.zarr") == contents(tmp_path / "told.zarr")
    build_store(
        source,
        tmp_path / "tight.zarr",
        memory=resident() + (60 << 20),
        order="auto",
        block_edges=5000,
        bucket_edges=9000,
    )
    assert contents(tmp_path / "tight.zarr") == contents(tmp_path / "told.zarr")


def test_a_graph_that_is_in_the_order_of_degrees_is_kept(tmp_path, arrays):
    said = []
    facts = build_store(
        arrays([0, 0, 1], [1, 2, 2]), tmp_path / "g.zarr", memory=PLENTY, order="auto", tell=said.append
    )
    assert facts.order == "keep"
    assert "by out-degree" not in said[0]


@pytest.mark.parametrize("nodes", [1, 7])
def test_a_graph_without_links_has_an_order(tmp_path, arrays, nodes):
    facts = build_store(arrays([], [], nodes), tmp_path / "g.zarr", memory=PLENTY, order="auto")
    assert (facts.nodes, facts.order) == (nodes, "keep")


@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("cnr-2000.graph", "keep"),
        ("linux61-calls.txt.xz", "keep"),
        ("debian-bookworm-deps.txt.gz", "keep"),
        ("openjdk17-javadoc.txt.gz", "keep"),
    ],
)
def test_real_graphs_have_the_order_that_takes_fewer_bytes(tmp_path, graphs, name, chosen):
    facts = {
        order: build_store(open_source(graphs / name), tmp_path / f"{order}.zarr", memory=PLENTY, order=order)
        for order in ("keep", "degree", "auto")
    }
    assert facts["auto"].order == chosen
    assert facts["auto"] == facts[chosen]
    assert facts["auto"].column_bytes == min(made.column_bytes for made in facts.values())
