"""BVGraph files, written here by a plain encoder that knows nothing of the reader."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oocpr.errors import DoesNotFitError, InputError
from oocpr.sources import open_source
from oocpr.sources.formats import bvgraph

from .reading import read


def unary(n):
    return "0" * n + "1"


def gamma(n):
    digits = f"{n + 1:b}"
    return unary(len(digits) - 1) + digits[1:]


def delta(n):
    digits = f"{n + 1:b}"
    return gamma(len(digits) - 1) + digits[1:]


def zeta(k):
    def code(n):
        h = ((n + 1).bit_length() - 1) // k
        # Minimal binary code of the place in [2^hk, 2^(h + 1)k): the first 2^hk places take a bit less.
        place, few, bits = n + 1 - (1 << h * k), 1 << h * k, (h + 1) * k
        tail = f"{place:0{bits - 1}b}" if place < few else f"{place + few:0{bits}b}"
        return unary(h) + tail[len(tail) - (bits - 1 if place < few else bits) :]

    return code


def nibble(n):
    digits = f"{n:o}"
    return "".join(f"{int(k == len(digits) - 1)}{int(digit):03b}" for k, digit in enumerate(digits))


CODES = {"UNARY": unary, "GAMMA": gamma, "DELTA": delta, "ZETA": zeta(3), "NIBBLE": nibble}
PARTS = {
    "OUTDEGREES": "GAMMA",
    "REFERENCES": "UNARY",
    "BLOCK_COUNT": "GAMMA",
    "BLOCKS": "GAMMA",
    "RESIDUALS": "ZETA",
}


def signed(n):
    return 2 * n if n >= 0 else -2 * n - 1


def encoded(lists, window, least, flags, choose):
    """The bits of lists; `choose` says which earlier list each copies from."""
    code = {part: CODES[flags.get(part, usual)] for part, usual in PARTS.items()}
    bits = []
    for node, successors in enumerate(lists):
        bits.append(code["OUTDEGREES"](len(successors)))
        if not successors:
            continue
        rest = list(successors)
        if window:
            back = choose(min(window, node))
            bits.append(code["REFERENCES"](back))
            if back:
                model = lists[node - back]
                taken = [value in successors for value in model]
                runs = [len(list(group)) for _, group in itertools.groupby([True, *taken])]
                runs[0] -= 1
                if taken and taken[-1]:
                    runs = runs[:-1] if len(runs) > 1 or runs[0] else runs
                if not taken:
                    runs = []
                bits.append(code["BLOCK_COUNT"](len(runs)))
                bits += [code["BLOCKS"](run - (k > 0)) for k, run in enumerate(runs)]
                rest = [value for value in rest if value not in model]
                if not rest:
                    continue
        if least:
            intervals = []
            for _, group in itertools.groupby(enumerate(rest), lambda pair: pair[1] - pair[0]):
                run = [value for _, value in group]
                if len(run) >= least:
                    intervals.append((run[0], len(run)))
            bits.append(gamma(len(intervals)))
            previous = None
            for left, size in intervals:
                bits.append(gamma(signed(left - node) if previous is None else left - previous - 1))
                bits.append(gamma(size - least))
                previous = left + size
            inside = {value for left, size in intervals for value in range(left, left + size)}
            rest = [value for value in rest if value not in inside]
        previous = None
        for value in rest:
            bits.append(code["RESIDUALS"](signed(value - node) if previous is None else value - previous - 1))
            previous = value
    text = "".join(bits)
    return np.packbits(np.array([int(bit) for bit in text], np.uint8)).tobytes()


def write(folder, data, nodes, arcs, window=7, least=4, flags=(), **more):
    values = {
        "graphclass": "it.unimi.dsi.webgraph.BVGraph",
        "nodes": nodes,
        "arcs": arcs,
        "windowsize": window,
        "minintervallength": least,
        "zetak": 3,
        "compressionflags": "|".join(flags),
    } | more
    lines = [f"{key}={value}" for key, value in values.items() if value is not None]
    (folder / "g.properties").write_text("#BVGraph properties\n" + "\n".join(lines) + "\n")
    (folder / "g.graph").write_bytes(data)
    return folder / "g.graph"


def copies_nothing(_):
    return 0


lists_of = st.integers(1, 40).flatmap(
    lambda n: st.lists(
        st.one_of(
            st.sets(st.integers(0, n - 1)), st.sampled_from([set(), set(range(n)), set(range(n // 2))])
        ),
        min_size=n,
        max_size=n,
    )
)
flags_of = st.fixed_dictionaries({}, optional={part: st.sampled_from(sorted(CODES)) for part in PARTS})


@pytest.mark.long
@given(lists_of, st.integers(0, 4), st.integers(0, 4), flags_of, st.randoms(), st.integers(1, 50))
def test_any_lists_in_any_codes(tmp_path_factory, lists, window, least, flags, random, max_edges):
    lists = [sorted(successors) for successors in lists]
    data = encoded(lists, window, least, flags, lambda most: random.randint(0, most))
    named = [f"{part}_{code}" for part, code in flags.items()]
    arcs = sum(map(len, lists))
    path = write(tmp_path_factory.getbasetemp(), data, len(lists), arcs, window, least, named)
    source = open_source(path)
    expected = [(node, value) for node, successors in enumerate(lists) for value in successors]
    assert read(source, max_edges).edges == expected
    assert source.nodes == len(lists)


def test_long_lists_and_little_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(bvgraph, "_CHUNK_BYTES", 3)
    monkeypatch.setattr(bvgraph, "_ROOM", 2)
    lists = [list(range(0, 300, 1 + node % 5)) for node in range(300)]
    data = encoded(lists, 3, 4, {}, lambda most: min(most, 1))
    path = write(tmp_path, data, 300, sum(map(len, lists)), 3)
    expected = [(node, value) for node, successors in enumerate(lists) for value in successors]
    assert read(open_source(path.with_suffix(".properties")), 70).edges == expected


@pytest.mark.parametrize(
    ("window", "what"),
    [(0, "node 0 with more than [0-9,]+ successors"), (60_000, r"A window of 60,000 lists of .*g\.graph")],
)
def test_memory_for_lists_is_asked_for(tmp_path, window, what):
    # A few bytes say that a node has an interval of all nodes as its successors.
    nodes = 300_000
    data = encoded([list(range(nodes))], 0, 4, {}, copies_nothing)
    assert len(data) < 40
    source = open_source(write(tmp_path, data, nodes, nodes, window))

    def reserve(needed: int, what: str) -> None:
        if needed > 2**20:
            raise DoesNotFitError(f"{what} needs {needed} bytes.", "Give more.")

    source.reserve = reserve
    with pytest.raises(DoesNotFitError, match=what):
        read(source)


@pytest.mark.parametrize("keep", [0, 1, 10, -1])
def test_cut_bits_are_named(tmp_path, keep):
    lists = [[0, 5, 9]] * 10
    data = encoded(lists, 0, 0, {}, copies_nothing)
    path = write(tmp_path, data[:keep], 10, 30, 0, 0)
    with pytest.raises(InputError, match=r"g\.graph ends in the middle of the list of node \d"):
        read(open_source(path))


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"nodes": None}, "nodes is 'missing'"),
        ({"nodes": "x"}, "nodes is 'x'"),
        ({"nodes": 2**32}, "nodes is '4294967296'"),
        ({"arcs": 29}, "states 29 arcs, .* holds 30"),
        (
            {"graphclass": "it.unimi.dsi.webgraph.labelling.BitStreamArcLabelledImmutableGraph"},
            "of the class",
        ),
        ({"endianness": "little"}, "another version"),
        ({"compressionflags": "RESIDUALS_GOLOMB"}, "'RESIDUALS_GOLOMB' is not known"),
    ],
)
def test_bad_properties_are_refused(tmp_path, more, match):
    data = encoded([[0, 5, 9]] * 10, 0, 0, {}, copies_nothing)
    path = write(tmp_path, data, **({"nodes": 10, "arcs": 30, "window": 0, "least": 0} | more))
    with pytest.raises(InputError, match=match):
        read(open_source(path))


@given(st.binary(min_size=1, max_size=300), st.integers(1, 50), st.integers(0, 3), st.integers(0, 4))
def test_noise_is_refused_or_read_as_a_graph(tmp_path_factory, noise, nodes, window, least):
    path = write(tmp_path_factory.getbasetemp(), noise, nodes, 10, window, least)
    try:
        edges = read(open_source(path), 100).edges
    except InputError:
        return
    assert len(edges) == 10
    assert edges == sorted(set(edges))
    assert all(0 <= value < nodes for edge in edges for value in edge)


def test_properties_have_to_lie_beside(tmp_path):
    (tmp_path / "g.graph").write_bytes(b"")
    with pytest.raises(InputError, match=r"no g\.properties beside it"):
        open_source(tmp_path / "g.graph")


def test_a_published_graph_is_that_of_its_matrix(graphs):
    one, two = open_source(graphs / "cnr-2000.graph"), open_source(graphs / "cnr-2000.mtx.xz")
    left, right = (
        [np.concatenate([getattr(block, end) for block in blocks]) for end in ("src", "dst")]
        for blocks in (list(source.blocks(100_000)) for source in (one, two))
    )
    np.testing.assert_array_equal(left, right)
    assert (one.name, one.nodes) == (two.name, two.nodes)
