from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import zarr

from oocpr.errors import DamagedError, InputError, UsageError
from oocpr.store.node_data import open_ranks, write_rank_file


@pytest.fixture
def ranks() -> np.ndarray:
    return np.random.default_rng(1).random(1000)


def pieces(values: np.ndarray, step: int = 300):
    return (values[k : k + step] for k in range(0, len(values), step))


def test_ranks_come_back_in_pieces(tmp_path, ranks, monkeypatch):
    monkeypatch.setattr("oocpr.store.node_data._RANKS_CHUNK", 128)
    write_rank_file(tmp_path / "r.zarr", pieces(ranks), 1000, {"run": {"passes": 17}})
    file = open_ranks(tmp_path / "r.zarr")
    assert file.size == 1000
    assert file.attributes == {"run": {"passes": 17}}
    assert [len(chunk) for chunk in file.chunks()] == [128] * 7 + [104]
    np.testing.assert_array_equal(np.concatenate(list(file.chunks())), ranks)
    np.testing.assert_array_equal(file.read(100, 300), ranks[100:300])


def test_any_zarr_reader_finds_the_array(tmp_path, ranks):
    write_rank_file(tmp_path / "r.zarr", pieces(ranks), 1000, {})
    np.testing.assert_array_equal(zarr.open_group(tmp_path / "r.zarr", mode="r")["rank"][:], ranks)


def test_nodes_are_named_by_label_id_or_row(tmp_path, ranks):
    rows = np.array([999, 3, 3, 500])
    write_rank_file(tmp_path / "a.zarr", pieces(ranks), 1000, {})
    assert open_ranks(tmp_path / "a.zarr").nodes(rows) == [999, 3, 3, 500]
    write_rank_file(tmp_path / "b.zarr", pieces(ranks), 1000, {}, node_ids=pieces(np.arange(1000) * 7))
    assert open_ranks(tmp_path / "b.zarr").nodes(rows) == [6993, 21, 21, 3500]
    write_rank_file(tmp_path / "c.zarr", pieces(ranks), 1000, {}, labels=(f"é{k}" for k in range(1000)))
    assert open_ranks(tmp_path / "c.zarr").nodes(rows) == ["é999", "é3", "é3", "é500"]


def test_ranks_are_replaced_but_nothing_else_is(tmp_path, ranks):
    path = tmp_path / "r.zarr"
    write_rank_file(path, pieces(ranks), 1000, {})
    write_rank_file(path, pieces(ranks[:500]), 500, {})
    assert open_ranks(path).size == 500
    (tmp_path / "notes").mkdir()
    with pytest.raises(UsageError, match="something else"):
        write_rank_file(tmp_path / "notes", pieces(ranks), 1000, {})
    zarr.create_group(tmp_path / "g.zarr", attributes={"oocpr": {}})
    with pytest.raises(UsageError, match="something else"):
        write_rank_file(tmp_path / "g.zarr", pieces(ranks), 1000, {})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["g.zarr", "notes", "r.zarr"]


def test_a_wrong_number_of_ranks_leaves_nothing(tmp_path, ranks):
    with pytest.raises(UsageError, match="1000 entries of rank for 999 nodes"):
        write_rank_file(tmp_path / "r.zarr", pieces(ranks), 999, {})
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_the_ranks_that_were_there(tmp_path, ranks):
    write_rank_file(tmp_path / "r.zarr", pieces(ranks), 1000, {})
    code = """
import resource, sys, numpy as np
from oocpr.errors import DoesNotFitError
from oocpr.store.node_data import write_rank_file
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    write_rank_file(sys.argv[1], [np.random.default_rng(1).random(50_000)], 50_000, {})
except DoesNotFitError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "r.zarr")], capture_output=True, text=True, check=True
    )
    assert "cannot be written: File too large" in done.stdout
    assert [p.name for p in tmp_path.iterdir()] == ["r.zarr"]
    assert open_ranks(tmp_path / "r.zarr").size == 1000


def test_what_is_no_rank_file_is_refused(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        open_ranks(tmp_path / "missing.zarr")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no file of ranks"):
        open_ranks(tmp_path / "empty")
    zarr.create_group(tmp_path / "g.zarr")
    with pytest.raises(InputError, match="no file of ranks"):
        open_ranks(tmp_path / "g.zarr")


def test_every_flipped_byte_is_found(tmp_path, ranks):
    path = tmp_path / "r.zarr"
    write_rank_file(path, pieces(ranks[:30]), 30, {"a": 1}, labels=(f"n{k}" for k in range(30)))
    for file in sorted(p for p in path.rglob("*") if p.is_file()):
        whole = file.read_bytes()
        for at in range(0, len(whole), max(1, len(whole) // 10)):
            if whole[at : at + 1].isspace():
                continue
            file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            with pytest.raises(DamagedError):
                read_all(path)
        file.write_bytes(whole)
    assert read_all(path)[1][7] == "n7"


def read_all(path):
    file = open_ranks(path)
    return list(file.chunks()), file.nodes(np.arange(file.size))
