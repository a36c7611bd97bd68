import pytest

from .conftest import printed

MIB = 1 << 20

IMPORT = """
    import sys
    from pathlib import Path

    import numpy as np

    from oocpr.system import resident
    from oocpr.ingest.build import build_store
    from oocpr.sources.block import EdgeBlock
    from oocpr.sources.rmat import Rmat

    class Skewed(Rmat):
        def __init__(self, scale, kind, weighted):
            super().__init__(scale, edge_factor=12)
            self.kind, self.weighted = kind, weighted
            if kind == "ids":
                self.nodes = None

        def blocks(self, max_edges):
            rng = np.random.default_rng(7)
            for block in super().blocks(max_edges):
                src, dst = block.src.copy(), block.dst.copy()
                if self.kind == "hub":
                    dst[::2] = 7
                elif self.kind == "link":
                    src[::2] = dst[::2] = 7
                elif self.kind == "ids":
                    src, dst = (ids * np.int64(2**33 + 1) for ids in (src, dst))
                yield EdgeBlock(src, dst, rng.random(src.size) if self.weighted else None)

    path, scale, spare, order, kind, duplicates = sys.argv[1:]
    weighted = duplicates != "count"
    # What compilers leave behind on the first use of all is no part of a tight budget, nor of its peak.
    for bucket in (None, 3):
        build_store(
            Skewed(5, kind, weighted), path, memory=1 << 33, order=order, duplicates=duplicates,
            bucket_edges=bucket, overwrite=True,
        )
    Path("/proc/self/clear_refs").write_text("5")
    memory = resident() + int(spare)
    facts = build_store(
        Skewed(int(scale), kind, weighted), path, memory=memory, order=order, duplicates=duplicates,
        overwrite=True, tile_edges=1 << 16,
    )
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    peak = int(status["VmHWM"].split()[0]) << 10
    print(memory, peak, facts.edges + facts.duplicates, sep=",")
"""


ADD = (
    IMPORT[: IMPORT.index("    path, scale,")]
    + """
    from oocpr.ingest.append import append_store
    from oocpr.store.graph import open_store

    class Part(Skewed):
        def __init__(self, scale, kind, part):
            super().__init__(scale, kind, True)
            self.part = part

        def blocks(self, max_edges):
            # Nine of ten links are old.
            for number, block in enumerate(super().blocks(max_edges)):
                if (number % 10 == 9) == (self.part == "new"):
                    yield block

    folder, kind, spare = sys.argv[1:]
    ways = {"duplicates": "sum"}
    for scale, path in ((5, "small"), (18, "old")):
        part = Part(scale, kind, "old")
        sizes = {"tile_edges": 1 << 14, "block_edges": 1 << scale - 4}
        build_store(part, f"{folder}/{path}", memory=1 << 33, **sizes, **ways)
    small = open_store(f"{folder}/small")
    append_store(small, Skewed(5, kind, True), f"{folder}/warm", memory=1 << 33, **ways)
    Path("/proc/self/clear_refs").write_text("5")
    memory = resident() + int(spare)
    store, new = open_store(f"{folder}/old"), Part(18, kind, "new")
    facts, _ = append_store(store, new, f"{folder}/new", memory=memory, block_edges=1 << 13, **ways)
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    peak = int(status["VmHWM"].split()[0]) << 10
    print(memory, peak, facts.edges + facts.duplicates, sep=",")
"""
)


@pytest.mark.parametrize("kind", ["hub", pytest.param("ids", marks=pytest.mark.slow)])
def test_peak_memory_stays_in_a_tight_budget_when_edges_are_added(tmp_path, kind):
    memory, peak, edges = map(int, printed(ADD, tmp_path, kind, 52 * MIB).split(","))
    assert edges > 12 << 17
    assert peak <= memory, (peak - memory) >> 20


@pytest.mark.parametrize(
    ("kind", "order", "duplicates"),
    [
        ("rows", "keep", "merge"),
        ("link", "keep", "sum"),
        ("hub", "degree", "merge"),
        ("ids", "keep", "sum"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("link", "keep", "merge"),
                ("link", "degree", "count"),
                ("hub", "keep", "sum"),
                ("hub", "keep", "count"),
                ("ids", "degree", "merge"),
                ("rows", "bfs", "sum"),
            )
        ),
    ],
)
def test_peak_memory_stays_in_a_tight_budget(tmp_path, kind, order, duplicates):
    scale = 18 if kind != "ids" else 17
    words = (tmp_path / "g.zarr", scale, 48 * MIB, order, kind, duplicates)
    memory, peak, edges = map(int, printed(IMPORT, *words).split(","))
    assert edges == 12 << scale
    assert peak <= memory, (peak - memory) >> 20


LOADED = """
    import sys
    from pathlib import Path

    import numpy as np
    from numba.core.dispatcher import Dispatcher

    from oocpr.ingest.build import build_store
    from oocpr.ingest.spill.files import SpillDir
    from oocpr.ingest.jit_warmup import warm_up
    from oocpr.sources.block import EdgeBlock
    from oocpr.sources.rmat import Rmat

    class Weighted(Rmat):
        weighted = True

        def __init__(self, scale):
            super().__init__(scale)
            self.weighted = True

        def blocks(self, max_edges):
            for block in super().blocks(max_edges):
                yield EdgeBlock(block.src, block.dst, np.ones(block.src.size))

    duplicates = sys.argv[2]
    source = Rmat if duplicates == "count" else Weighted
    with SpillDir(Path(sys.argv[1])) as workspace:
        warm_up(workspace, duplicates)

    def loaded():
        rooms = [vars(room) for name, room in sys.modules.items() if name.startswith("oocpr.")]
        found = {value for room in rooms for value in room.values() if isinstance(value, Dispatcher)}
        return {(function.__name__, types) for function in found for types in function.overloads}

    list(source(8).blocks(1 << 20))
    before = loaded()
    assert len(before) > 20
    for order in ("keep", "degree"):
        for edges in (None, 300):
            build_store(
                source(8), sys.argv[1] + "/g.zarr", memory=1 << 33, order=order, duplicates=duplicates,
                overwrite=True, bucket_edges=edges,
            )
    print(*(loaded() - before))
"""


@pytest.mark.long
@pytest.mark.parametrize("duplicates", ["merge", "sum", "count"])
def test_nothing_is_compiled_once_memory_has_been_shared_out(tmp_path, duplicates):
    assert printed(LOADED, tmp_path, duplicates).strip() == ""
