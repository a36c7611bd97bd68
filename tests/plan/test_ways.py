"""The ways to divide a graph that a plan tells of: the one it takes, and from which bytes on each is."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from oocpr.engine.planning import plan_for_devices, plan_request
from oocpr.engine.settings import Settings
from oocpr.plan.memory import tile_edges
from oocpr.plan.request import GraphStats

from .test_device_plan import GIB, LARGE, WEIGHTED, rows_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oocpr.plan.plan import Plan
    from oocpr.plan.ways import Way
    from oocpr.store.graph import GraphStore

SMALL = replace(LARGE, nodes=2**20, edges=12 * 2**20, tiles=12, tile_edges=2**20, max_tile_rows=2**18)
NAMES = ["whole", "whole, less history", "streamed", "less history", "rows in host", "columns"]


def names_of(method: str, *, reproducible: bool, columns: bool) -> list[str]:
    """Names of the ways that there are: only mixing remembers, and not less of a reproducible run."""
    less = method == "mixed" and not reproducible
    return [name for name in NAMES[: 6 if columns else 5] if less or "less history" not in name]


def planned(
    given: tuple[int, ...],
    *,
    stats: GraphStats = LARGE,
    rows: NDArray[np.int64] | None = None,
    memory: int = 2**50,
    explain: bool = True,
    kernel: str = "balanced",
    stripes: int | None = None,
    **how: Any,
) -> Plan:
    """Plan as `oocpr.plan` does, from integers."""
    rows = rows_of(stats) if rows is None else rows
    sizes = stats.column_bytes * tile_edges(stats, rows) // max(1, stats.edges)
    known = dict.fromkeys(("path", "nodes", "edges", "dangling", "encoded", "weights"))
    store = SimpleNamespace(tile_rows=rows, tile_sizes=lambda: sizes, **known)
    reproducible = how.pop("reproducible", False)
    request = plan_request(
        Settings(**how), memory=memory, device_memory=given, kernel=kernel, stripes=stripes,
        reproducible=reproducible,
    )  # fmt: skip
    devices = [f"cuda:{number}" for number in range(len(given))]
    return plan_for_devices(cast("GraphStore", store), stats, request, devices, explain=explain)[0]


def taken(plan: Plan) -> str | None:
    """Name of the way that is marked; there is one if the plan fits."""
    names = [way.name for way in plan.ways if way.taken]
    assert len(names) == plan.fits
    return names[0] if names else None


def within_reach(ways: tuple[Way, ...]) -> list[Way]:
    """Ways that fit within some memory of the devices in which none before does."""
    return [
        way for number, way in enumerate(ways)
        if all(before.device_memory > way.device_memory for before in ways[:number])
    ]  # fmt: skip


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("stats", [LARGE, WEIGHTED, SMALL], ids=["large", "weighted", "small"])
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"method": "power", "reads": "float64"},
        {"reproducible": True},
        {"kernel": "csr-scalar"},
        {"kernel": "bcsr", "reads": "bits8"},
        {"stripes": 6},
    ],
    ids=str,
)
def test_each_way_fits_from_the_bytes_on_that_are_told(
    devices: int, stats: GraphStats, how: dict[str, Any]
) -> None:
    ways = planned((GIB,) * devices, stats=stats, **how).ways
    few = devices > 1 or "reproducible" in how or "stripes" in how
    method, reproducible = how.get("method", "mixed"), "reproducible" in how
    assert [way.name for way in ways] == names_of(method, reproducible=reproducible, columns=not few)
    reached = within_reach(ways)
    assert reached[0].name == "whole"
    for way, before in zip(reached, [None, *reached], strict=False):
        exact = planned((way.device_memory,) * devices, stats=stats, **how)
        # What streams may just fit and be slower than what has more memory left for tiles.
        other = taken(exact)
        assert other == way.name or NAMES.index(other) > NAMES.index(way.name) > 0
        assert [each.device_memory for each in exact.ways] == [each.device_memory for each in ways]
        less = planned((way.device_memory - 1,) * devices, stats=stats, **how)
        assert taken(less) not in (way.name, before and before.name)


@given(
    given=st.lists(st.integers(0, 2**33), min_size=1, max_size=2),
    memory=st.integers(0, 2**36),
    tiles=st.integers(1, 600),
    method=st.sampled_from(["mixed", "power"]),
    reproducible=st.booleans(),
)
def test_the_way_that_is_marked_is_the_plans_own(
    given: list[int], memory: int, tiles: int, method: str, reproducible: bool
) -> None:
    how: dict[str, Any] = {"method": method, "reproducible": reproducible, "reads": "float64"}
    stats = replace(LARGE, tiles=tiles)
    plan = planned(tuple(given), stats=stats, memory=memory, **how)
    assert replace(plan, ways=()) == planned(tuple(given), stats=stats, memory=memory, explain=False, **how)
    name = taken(plan)
    marked = [way.why for way in plan.ways if way.taken]
    assert marked == ["taken"] * plan.fits
    # What stays where is what the plan says.
    assert plan.rows_in_host == (name in NAMES[4:]) or not plan.fits
    if name == "streamed":
        assert method == "power" or (plan.mixing == 3 and plan.proposals != reproducible)
    if name == "less history":
        assert (method, reproducible, plan.proposals, plan.sweeps) == ("mixed", False, False, 1)
    assert plan.partitions == 1 or name == "columns" or not plan.fits
    if name in NAMES[:2]:
        assert sum(tiers.on_device for tiers in plan.devices) == plan.stats.tiles
        assert (plan.mixing < (3 if method == "mixed" else 0)) == (name == NAMES[1])
    refused = plan.ways[: [way.taken for way in plan.ways].index(True) if plan.fits else None]
    if len(given) == 1:
        for way in refused:
            short = given[0] < way.device_memory
            fits = "slower" if name and way.name not in NAMES[:2] else "too little memory of the host"
            assert way.why == ("more than is given" if short else fits)
    assert all(way.why == "" for way in plan.ways[len(refused) + 1 :])


@given(
    kernel=st.sampled_from(["balanced", "csr-scalar", "binned", "ell", "exchange", "chunked", "bcsr"]),
    rows=st.lists(st.integers(1, 10**6), min_size=1, max_size=4),
    last=st.integers(1, 2**28),
)
@example("csr-scalar", [100, 10**6], 5)
@example("ell", [100, 10**6], 5)
def test_what_the_whole_graph_takes_is_exact_for_groups_of_all_shapes(kernel, rows, last):
    bounds = np.cumsum([0, *rows])
    each, tiles = 2**28, len(rows)
    edges = (tiles - 1) * each + last
    stats = GraphStats(int(bounds[-1]), edges, tiles, each, 2 * edges, 2**30, max(rows), 0.25)
    whole = planned((0,), stats=stats, rows=bounds, kernel=kernel).ways[0].device_memory
    exact, less = (
        planned((memory,), stats=stats, rows=bounds, kernel=kernel) for memory in (whole, whole - 1)
    )
    assert taken(exact) == "whole"
    assert taken(less) != "whole"


def test_too_little_memory_of_the_host_is_told_apart() -> None:
    less = planned((GIB,)).ways[NAMES.index("less history")]
    # Ranks and out-degrees of all rows fit; what else rows have does not.
    plan = planned((less.device_memory - 1,), memory=GIB)
    assert not plan.fits
    assert [way.why for way in plan.ways] == [
        *("more than is given",) * 4,
        *("too little memory of the host",) * 2,
    ]


def test_the_table_is_printed_and_written() -> None:
    plan = planned((2 * GIB, 2 * GIB))
    text = str(plan)
    lines = text[text.index("divided") :].splitlines()[:6]
    assert [re.split("  +", line)[0] for line in lines] == ["divided", *NAMES[:5]]
    (line,) = (line for line in lines if "taken" in line)
    name = taken(plan)
    assert line.startswith(f"{name} ")
    (way,) = (way for way in plan.ways if way.taken)
    told = re.search(r"from (\d+)MiB", line)
    assert told is not None
    assert 0 <= int(told[1]) * 2**20 - way.device_memory < 2**20
    assert plan.to_json()["ways"] == json.loads(json.dumps([asdict(way) for way in plan.ways]))
    # Of several devices each has rows of its own; one has all of them.
    assert plan.ways[0].partition == "rows"
    assert planned((GIB,)).ways[0].partition == "none"
    bare = planned((2 * GIB, 2 * GIB), explain=False)
    assert (bare.ways, "divided" in str(bare)) == ((), False)
