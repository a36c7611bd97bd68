"""Stores that contradict themselves: each is refused with a documented code, or ranked as what it holds."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import zarr

import oocpr
from oocpr.cli import EXIT_CODES, UNEXPECTED, main
from oocpr.errors import DamagedError

from . import hostile

SECONDS = 30
"""Longest that a command may take; sound ones take a tenth of a second once everything is compiled."""

RANKS = [
    "--method components",
    "--method mixed --stripes 1",
    "--method mixed --stripes 4 --reads float64",
    "--method mixed --stripes 3 --reads bits8",
    "--method residual --reads float32",
]
"""How stores are ranked."""


class HangError(BaseException):
    """A command took too long; nothing in between may take this for an error of its own."""


@contextlib.contextmanager
def limited() -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise HangError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="session")
def sound(tmp_path_factory: pytest.TempPathFactory, random_graph: Callable[..., Any]) -> list[Path]:
    """Sound stores: plain, with ids, with labels and weights, of one tile; and ranks of the first."""
    folder = tmp_path_factory.mktemp("sound")
    rng = np.random.default_rng(5)
    graph = random_graph(150, 700, hub=17)
    stores = [graph.write(folder / "plain.zarr", 100)]
    ids = rng.permutation(10**6)[:150]
    stores.append(random_graph(150, 600, 2).write(folder / "ids.zarr", 64, node_ids=ids))
    weighted = random_graph(150, 700, 3, hub=3)
    weighted = weighted._replace(weights=rng.random(len(weighted.columns)))
    labels = [f"page {k}" for k in range(150)]
    stores.append(weighted.write(folder / "weighted.zarr", 90, labels=labels))
    stores.append(random_graph(60, 200, 4).write(folder / "one.zarr", 1000))
    for store in stores:
        weights = "\t0.5" if store.stem == "weighted" else ""
        store.with_suffix(".txt").write_text(f"0\t1{weights}\n77\t3{weights}\n")
        assert main(["rank", str(store), "-o", str(store.with_suffix(".csv"))]) == 0
        for options in _fitting(store):
            # Compiling takes longer than anything that is limited here.
            assert main(["rank", str(store), *options.split()]) == 0
    return stores


def _fitting(store: Path) -> list[str]:
    """Options that a sound store takes."""
    weighted, one = store.stem == "weighted", store.stem == "one"
    return [
        o
        for o in RANKS
        if not (weighted and "components" in o) and not (one and ("stripes 4" in o or "stripes 3" in o))
    ]


class Outcome(NamedTuple):
    """Exit code of a command, and what is wrong with it, if anything is."""

    code: int
    fault: str


def run(*words: object) -> Outcome:
    """Run a command in this process; see Outcome."""
    try:
        with limited():
            code = main([*map(str, words)])
    except HangError:
        return Outcome(-1, f"no end after {SECONDS} s")
    except BaseException:  # noqa: BLE001
        return Outcome(-1, traceback.format_exc())
    if code == UNEXPECTED or code not in EXIT_CODES:
        return Outcome(code, "an undocumented code")
    return Outcome(code, "")


def checked_rank(store: Path, options: str) -> Outcome:
    """Rank a store and compare with SciPy, on the edges that the reference decoder finds."""
    made, told = store.with_name("ranks.zarr"), store.with_name("run.json")
    found = run("rank", store, "-o", made, "--json", told, *options.split())
    if found.code not in (0, 3):
        if made.exists() or told.exists():
            return Outcome(found.code, f"left behind: {[made.exists(), told.exists()]} {found.fault}")
        return found
    ranks = np.asarray(zarr.open_group(str(made), mode="r")["rank"][:])
    bound = json.loads(told.read_text())["error_bound"]
    shutil.rmtree(made)
    told.unlink()
    if not (np.isfinite(ranks).all() and (ranks >= 0).all()):
        return Outcome(found.code, f"{np.sum(~np.isfinite(ranks))} not finite, {np.sum(ranks < 0)} negative")
    try:
        true = hostile.power_ranks(hostile.matrix(store))
        error = float(np.abs(ranks - true).sum())
    except Exception:  # noqa: BLE001
        return Outcome(found.code, f"ranked what nobody can read: {traceback.format_exc()}")
    if not error <= bound + 1e-12:
        return Outcome(found.code, f"L1 error {error:.2g}, certified {bound:.2g}")
    return found


def checked_append(store: Path, links: Path) -> Outcome:
    """Add edges to a store; what comes of it is ranked as what it says."""
    grown = store.with_name("grown.zarr")
    found = run("append", store, links, "-o", grown)
    if found.code:
        return found
    ranked = checked_rank(grown, "")
    shutil.rmtree(grown)
    return Outcome(found.code, ranked.fault)


def attack(
    sound: list[Path], folder: Path, seeds: range, tried: Callable[[str], None]
) -> tuple[collections.Counter[str], list[str]]:
    """Change sound stores and run commands on them; returns counts of the outcomes, and what went wrong."""
    counts: collections.Counter[str] = collections.Counter()
    faults = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        base = sound[rng.integers(len(sound))]
        store = folder / "hostile.zarr"
        shutil.copytree(base, store)
        name = hostile.mutate(store, rng)
        if rng.random() < 0.1 and name != "file_of_another_kind":
            # What is no store any more cannot be changed in every way.
            with contextlib.suppress(Exception):
                name += ", " + hostile.mutate(store, rng)
        ranked = base.with_suffix(".csv")
        commands = [
            *(("rank", options) for options in rng.choice(RANKS, 2, replace=False)),
            (str(rng.choice(["verify", "info", "plan", "append"])), ""),
        ]
        for command, options in commands:
            if command == "rank":
                outcome = checked_rank(store, str(options))
            elif command == "verify":
                outcome = run("verify", store, ranked)
            elif command == "append":
                outcome = checked_append(store, base.with_suffix(".txt"))
            else:
                outcome = run(command, store, "--json", "-")
            counts[f"{command} {outcome.code}"] += 1
            if outcome.fault:
                faults.append(
                    f"seed {seed}, {base.stem}, {name}: {command} {options}: {outcome.code}, {outcome.fault}"
                )
        tried(name)
        shutil.rmtree(store)
        left = [path.name for path in folder.iterdir()]
        if left:
            faults.append(f"seed {seed}, {name}: {left} left behind")
            for path in folder.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    return counts, faults


@pytest.mark.long
def test_sound_stores_are_ranked(sound, tmp_path):
    for store in sound:
        copy = tmp_path / "sound.zarr"
        shutil.copytree(store, copy)
        for options in _fitting(store):
            assert checked_rank(copy, options) == (0, "")
        shutil.rmtree(copy)


@pytest.mark.long
def test_no_contradiction_passes(sound, tmp_path, capfd):
    counts, faults = attack(sound, tmp_path, range(30), lambda _: capfd.readouterr())
    assert not faults, "\n".join(faults)
    assert counts


@pytest.mark.parametrize("method", ["mixed", "residual", "power"])
@pytest.mark.parametrize("name", ["weights_swapped", "edges_moved"])
def test_few_passes_for_one_seed_tell_weights_that_contradict_their_sums(sound, tmp_path, name, method):
    weighted = sound[2]
    store, refused = tmp_path / "hostile.zarr", 0
    for seed in range(8):
        shutil.copytree(weighted, store)
        hostile.MUTATIONS[name](store, np.random.default_rng(seed))
        for row in (3, 77):
            teleport = np.zeros(150)
            teleport[row] = 1.0
            how = {"method": method, "reads": "float64", "personalization": teleport, "max_passes": 9}
            try:
                ranks = oocpr.pagerank(store, **how)
            except DamagedError:
                refused += 1
                continue
            # What stands where nothing of the seed comes changes none of its ranks.
            true = hostile.power_ranks(hostile.matrix(store), teleport)
            assert np.abs(ranks.to_numpy() - true).sum() <= ranks.error_bound
        shutil.rmtree(store)
    assert refused >= 8


TILES = [
    "column_changed",
    "edges_moved",
    "edges_lost",
    "edges_for_nobody",
    "tiles_swapped",
    "tile_bytes_changed",
    "tile_cut",
    "tile_rows_changed",
    "ids_changed",
    "everything_huge",
]
"""Changes of what adding edges goes by."""


@pytest.mark.parametrize("name", TILES)
def test_nothing_is_added_to_tiles_that_contradict_the_store(sound, tmp_path, name):
    store = tmp_path / "hostile.zarr"
    codes = collections.Counter()
    for seed in range(6):
        base = sound[1 if name == "ids_changed" else seed % 2]
        shutil.copytree(base, store)
        hostile.MUTATIONS[name](store, np.random.default_rng(seed))
        # An id before all others is in every tile's way.
        links = tmp_path.parent / "first.txt"
        links.write_text("-1\t0\n0\t-1\n" if base is sound[1] else "0\t1\n1\t0\n149\t0\n")
        outcome = checked_append(store, links)
        assert not outcome.fault, (seed, outcome)
        codes[outcome.code] += 1
        shutil.rmtree(store)
        assert not list(tmp_path.iterdir())
    assert codes[5] > 0


@pytest.mark.long
def test_no_contradiction_of_a_rank_file_passes(sound, tmp_path, capfd):
    store, kept, ranks = sound[2], tmp_path / "kept.zarr", tmp_path / "ranks.zarr"
    assert run("rank", store, "-o", kept, "--method", "mixed", "--stripes", 1) == (0, "")
    done = ["metadata_changed", "metadata_nested", "file_of_another_kind", "labels_changed"]
    codes: collections.Counter[int] = collections.Counter()
    for seed in range(40):
        rng = np.random.default_rng(seed)
        shutil.copytree(kept, ranks)
        if seed % 5:
            hostile.MUTATIONS[done[seed % 5 - 1]](ranks, rng)
        else:
            values = hostile.values(ranks, "rank")
            values[rng.integers(len(values))] = rng.choice([np.nan, np.inf])
            hostile.replace(ranks, "rank", values.astype(rng.choice(["float64", "float32"])))
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            hostile.sign(ranks, "oocpr_ranks")
        for words in (
            ("top", ranks),
            ("verify", store, ranks),
            ("rank", store, "--start", ranks, "--method", "mixed", "--stripes", 1),
        ):
            outcome = run(*words)
            assert not outcome.fault, (seed, words, outcome, capfd.readouterr().err[-500:])
            codes[outcome.code] += 1
        shutil.rmtree(ranks)
        capfd.readouterr()
    assert codes[5] > 20


def test_a_pipe_or_a_device_in_place_of_any_file_is_refused(sound, tmp_path, capfd):
    store = tmp_path / "hostile.zarr"
    for k, file in enumerate(sorted(path for path in sound[0].rglob("*") if path.is_file())):
        shutil.copytree(sound[0], store)
        victim = store / file.relative_to(sound[0])
        victim.unlink()
        os.mkfifo(victim) if k % 2 else victim.symlink_to("/dev/zero")
        assert run("verify", store, sound[0].with_suffix(".csv")) == (5, "")
        shutil.rmtree(store)


@pytest.mark.slow
def test_no_contradiction_passes_in_many_trials(sound, tmp_path, capfd):
    counts, faults = attack(sound, tmp_path, range(1000, 3000), lambda _: capfd.readouterr())
    sys.stdout.write(f"{dict(sorted(counts.items()))}\n")
    assert not faults, "\n".join(faults)
