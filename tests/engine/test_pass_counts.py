"""Passes over real graphs: what power iteration is known to take, and the goals of the default method."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from oocpr.sources import open_source
from oocpr.sources.rmat import Rmat

from .running import build, rank

if TYPE_CHECKING:
    from oocpr.store.graph import GraphStore

# Sweeps of textbook power iteration from the uniform vector until the residual is below 1e-10.
POWER = {
    "cit-HepTh.mtx.gz": 109,
    "debian-bookworm-deps.txt.gz": 100,
    "wiki-Vote.txt.gz": 29,
    "hollins.dat.gz": 111,
    "gr0.California.gz": 116,
    "python311-doc.txt.gz": 29,
    "openjdk17-javadoc.txt.gz": 62,
    "p2p-Gnutella31.e.gz": 18,
    "soc-Slashdot0902.mtx.gz": 111,
    "cnr-2000.mtx.xz": 116,
    "linux61-calls.txt.xz": 113,
}
# Most passes of the default method, in one stripe and in four; power iteration on R-MAT 18 takes 24.
MIXED = {
    "cit-HepTh.mtx.gz": (25, 24),
    "debian-bookworm-deps.txt.gz": (23, 29),
    "soc-Slashdot0902.mtx.gz": (20, 29),
    "cnr-2000.mtx.xz": (33, 25),
    "linux61-calls.txt.xz": (21, 20),
    "rmat-18": (12, 13),
}
LARGE = ("soc-Slashdot0902.mtx.gz", "cnr-2000.mtx.xz", "linux61-calls.txt.xz", "rmat-18")


def by_size(names: dict[str, object]) -> list[object]:
    return [pytest.param(name, marks=[pytest.mark.slow] if name in LARGE else []) for name in names]


@pytest.fixture(scope="module")
def real(graphs: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], GraphStore]:
    """Store of a real graph, imported when first asked for."""
    made: dict[str, GraphStore] = {}

    def store(name: str) -> GraphStore:
        if name not in made:
            source = Rmat(18) if name == "rmat-18" else open_source(graphs / name)
            made[name] = build(source, tmp_path_factory.mktemp("real") / "graph.zarr")
        return made[name]

    return store


@pytest.mark.long
@pytest.mark.parametrize("name", by_size(POWER))
def test_power_takes_the_known_number_of_sweeps(real, name):
    run = rank(real(name), method="power", reads="float64", stop="residual", threads=None)
    assert run.converged
    assert run.passes == POWER[name]


@pytest.mark.parametrize("name", by_size(POWER))
@pytest.mark.parametrize("reads", ["bits16", "bits8"])
def test_plain_residual_with_narrow_reads_takes_hardly_more(real, name, reads):
    run = rank(real(name), method="residual", reads=reads, stop="residual", threads=None)
    assert run.converged
    assert run.passes <= max(POWER[name] + 2, 1.05 * POWER[name])


@pytest.mark.long
@pytest.mark.parametrize("name", by_size(MIXED))
@pytest.mark.parametrize("stripes", [1, 4])
def test_the_default_method_meets_its_goals(real, name, stripes):
    goal = MIXED[name][stripes == 4]
    run = rank(real(name), stop="residual", stripes=stripes, threads=None)
    assert run.converged
    assert run.passes <= goal
    assert run.gathers <= POWER.get(name, 24)
    byte = rank(real(name), reads="bits8", stop="residual", stripes=stripes, threads=None)
    assert byte.converged
    assert byte.passes <= 1.15 * goal
