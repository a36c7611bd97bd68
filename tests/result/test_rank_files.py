"""Rank files come back as they were written, and are there whole or not at all."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import oocpr
from oocpr.api import as_graph
from oocpr.errors import InputError, UsageError
from oocpr.result import rank_files
from oocpr.result.names import ListedNames, Names, RowNames
from oocpr.result.rank_files import read_ranks
from oocpr.result.ranks import Ranks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oocpr.result.names import Block
    from oocpr.result.ranks import Report

VALUES = np.array([0.1, 1 / 3, 5e-324, 1 / 3, 0.2333333333333333])
LABELS = ["plain", 'comma, and "quotes"', "tab\there", "ünï©ode", "12"]
NAMES: dict[str, Names] = {
    "rows": RowNames(),
    "ids": ListedNames(np.array([4_000_000_000, 7, 0, 3, 9], np.uint32)),
    "labels": ListedNames(LABELS),
}


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("sort", ["node", "rank"])
def test_names_and_every_bit_of_the_ranks_come_back(
    tmp_path: Path, kind: str, suffix: str, sort: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_files, "_ROWS", 2)
    ranks = Ranks(VALUES, NAMES[kind])
    path = tmp_path / f"ranks.{suffix}"
    getattr(ranks, f"to_{suffix}")(path, sort=sort)
    order = np.arange(5) if sort == "node" else np.array([1, 3, 4, 0, 2])
    again = read_ranks(path)
    assert again.to_numpy().tobytes() == VALUES[order].tobytes()
    assert list(again.names.take(np.arange(5))) == list(NAMES[kind].take(order))
    assert again.top(3) == ranks.top(3)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_parquet_is_what_other_readers_expect(
    tmp_path: Path, run: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_files, "_ROWS", 2)
    path = tmp_path / "ranks.parquet"
    Ranks(VALUES, NAMES["labels"], run=run).to_parquet(path)
    table = pq.read_table(path)
    assert table.schema.names == ["node", "rank"]
    assert table["node"].to_pylist() == LABELS
    assert table["rank"].to_pylist() == VALUES.tolist()
    assert pq.ParquetFile(path).num_row_groups == 3


def test_the_certificate_travels_with_a_parquet_file(tmp_path: Path, run: Report) -> None:
    path = tmp_path / "ranks.parquet"
    Ranks(VALUES, RowNames(), run=run).to_parquet(path)
    again = read_ranks(path)
    assert again.run == run
    assert again.error_bound == 3e-10
    assert again.converged is True


def test_csv_is_what_other_readers_expect() -> None:
    stream = io.BytesIO()
    Ranks(VALUES, NAMES["labels"]).to_csv(stream)
    lines = list(csv.reader(io.StringIO(stream.getvalue().decode())))
    assert lines[0] == ["node", "rank"]
    assert [line[0] for line in lines[1:]] == LABELS
    assert [float(line[1]) for line in lines[1:]] == VALUES.tolist()


def test_labels_that_look_like_numbers_stay_labels_in_parquet(tmp_path: Path) -> None:
    Ranks(np.array([1.0]), ListedNames(["12"])).to_parquet(tmp_path / "ranks.parquet")
    assert read_ranks(tmp_path / "ranks.parquet").top(1) == [("12", 1.0)]


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_a_graph_of_no_nodes_has_an_empty_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"ranks.{suffix}"
    getattr(Ranks(np.empty(0), RowNames()), f"to_{suffix}")(path)
    assert len(read_ranks(path)) == 0
    assert read_ranks(path).top(3) == []


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_an_existing_file_is_replaced(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"ranks.{suffix}"
    path.write_text("what stood here")
    getattr(Ranks(VALUES, RowNames()), f"to_{suffix}")(path)
    assert len(read_ranks(path)) == 5


FULL_DISK = """
import resource, sys
import numpy as np
from oocpr.errors import DoesNotFitError
from oocpr.result.names import RowNames
from oocpr.result.ranks import Ranks
ranks = Ranks(np.random.default_rng(1).random(100_000), RowNames())
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    getattr(ranks, "to_" + sys.argv[2])(sys.argv[1])
except DoesNotFitError as error:
    print(error.cause)
"""


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, suffix: str, environment: dict[str, str]
) -> None:
    path = tmp_path / f"ranks.{suffix}"
    path.write_text("what stood here")
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, path, suffix],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    assert done.stdout.startswith(f"{path} cannot be written: File too large (")
    assert done.stderr == ""
    assert path.read_text() == "what stood here"
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "ranks.csv"
    os.mkfifo(path)
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(path.read_bytes)
        Ranks(VALUES, RowNames()).to_csv(path)
    assert read.result().splitlines()[0] == b"node,rank"
    assert len(read.result().splitlines()) == 6
    assert path.is_fifo()
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_a_link_stays_a_link_to_the_file_that_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "today.csv").write_text("what stood here")
    link = tmp_path / "ranks.csv"
    link.symlink_to(tmp_path / "disk" / "today.csv")
    Ranks(VALUES, RowNames()).to_csv(link)
    assert link.is_symlink()
    assert len(read_ranks(tmp_path / "disk" / "today.csv")) == 5
    assert sorted(entry.name for entry in tmp_path.rglob("*")) == ["disk", "ranks.csv", "today.csv"]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere"):
        Ranks(VALUES, RowNames()).to_parquet(tmp_path / "nowhere" / "ranks.parquet")


def test_an_unknown_order_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'size'"):
        Ranks(VALUES, RowNames()).to_csv(tmp_path / "ranks.csv", sort="size")
    assert list(tmp_path.iterdir()) == []


def test_an_interruption_leaves_nothing(tmp_path: Path) -> None:
    class Interrupting(RowNames):
        def blocks(self, nodes: int) -> Iterator[Block]:  # noqa: ARG002
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Ranks(VALUES, Interrupting()).to_parquet(tmp_path / "ranks.parquet")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("ranks.txt", b"", "no file of ranks"),
        ("ranks.parquet", None, "does not exist"),
        ("ranks.parquet", b"PAR1 and then nothing", "cannot be read"),
        ("ranks.csv", b"", "cannot be read"),
        ("ranks.csv", b"id,score\n1,0.5\n", "no column 'node', only id, score"),
        ("ranks.csv", b"node,rank\n1,half\n", "half"),
        ("ranks.csv", b"node,rank\n1,0.5\n2\n", "cannot be read"),
        ("ranks.csv", b"node,rank\n1,0.5\n2,\n", "row 2 has no finite rank"),
        ("ranks.csv", b"node,rank\n1,0.5\n2,inf\n", "row 2 has no finite rank"),
    ],
)
def test_what_is_no_rank_file_is_named_with_the_reason(
    tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_ranks(path).to_numpy()
    assert message in caught.value.cause
    assert str(path) in caught.value.cause
    assert caught.value.remedy
    assert "\n" not in caught.value.cause


def test_a_parquet_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ranks.parquet"
    Ranks(np.arange(1000) / 499500, RowNames()).to_parquet(path)
    whole = path.read_bytes()
    for size in (0, 3, 12, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(InputError, match="cannot be read"):
            read_ranks(path).to_numpy()


def test_a_parquet_file_with_a_bit_that_is_another_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ranks.parquet"
    ranks = Ranks(np.random.default_rng(1).random(5000), ListedNames([f"node {k}" for k in range(5000)]))
    ranks.to_parquet(path)
    whole = path.read_bytes()
    columns = [pq.ParquetFile(path).metadata.row_group(0).column(k) for k in (0, 1)]
    for column in columns:
        end = (column.dictionary_page_offset or column.data_page_offset) + column.total_compressed_size
        for place in range(end - 3000, end, 100):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            with pytest.raises(InputError, match="cannot be read"):
                read_ranks(path).top(5000)


@pytest.mark.parametrize("bit", [1, 64])
def test_any_other_bit_of_a_parquet_file_is_refused_or_changes_nothing(
    tmp_path: Path, run: Report, bit: int
) -> None:
    path = tmp_path / "ranks.parquet"
    Ranks(VALUES, NAMES["labels"], run=run).to_parquet(path)
    whole = path.read_bytes()
    size = int.from_bytes(whole[-8:-4], "little")
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :])
        try:
            again = read_ranks(path)
            found = again.to_arrow().to_pydict()
        except InputError:
            continue
        # Marks that nobody reads, and pages' facts that readers pass over.
        assert place < len(whole) - 8 - size
        assert found == {"node": LABELS, "rank": VALUES.tolist()}
        assert again.run == run


def test_a_parquet_file_with_a_gap_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ranks.parquet"
    pq.write_table(pa.table({"node": [1, 2, 3], "rank": [0.5, None, 0.5]}), path)
    with pytest.raises(InputError, match="row 2 has no finite rank"):
        read_ranks(path).to_numpy()


@pytest.mark.parametrize(
    ("nodes", "names"),
    [
        (["12", "7"], [12, 7]),
        (["12", "007"], ["12", "007"]),
        (["2020-01-01", "true"], ["2020-01-01", "true"]),
        (["1.5", "NA"], ["1.5", "NA"]),
    ],
)
def test_csv_names_are_whole_numbers_or_left_as_they_are(
    tmp_path: Path, nodes: list[str], names: list[int | str]
) -> None:
    path = tmp_path / "ranks.csv"
    path.write_text("node,rank\n" + "".join(f"{node},0.5\n" for node in nodes))
    assert [name for name, _ in read_ranks(path).top(2)] == names


def test_csv_names_with_line_ends_are_read_wherever_a_piece_of_the_file_ends(tmp_path: Path) -> None:
    labels = [f"first line of {k}\n,second" for k in range(50_000)]  # in two pieces
    ranks = Ranks(np.arange(50_000.0), ListedNames(labels))
    ranks.to_csv(tmp_path / "ranks.csv")
    again = read_ranks(tmp_path / "ranks.csv").to_arrow()
    assert again.equals(ranks.to_arrow())


def test_a_parquet_file_whose_nodes_are_neither_numbers_nor_strings_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ranks.parquet"
    pq.write_table(pa.table({"node": [1.5], "rank": [1.0]}), path)
    with pytest.raises(InputError, match="'node' holds double"):
        read_ranks(path)


def test_a_parquet_file_with_a_node_of_more_than_63_bits_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ranks.parquet"
    nodes = pa.array([0, 2**63 + 5], pa.uint64())
    pq.write_table(pa.table({"node": nodes, "rank": [0.5, 0.5]}), path)
    with pytest.raises(InputError, match=rf"{path}: .*{2**63 + 5}"):
        oocpr.verify(as_graph((np.array([0, 1]), np.array([1, 0]))), path)


@pytest.mark.parametrize(
    ("key", "value"),
    [("damping", "0.8"), ("damping", None), ("error_bound", math.nan), ("passes", 1.5), ("personalized", 0)],
)
def test_a_note_about_a_run_with_a_fact_of_another_kind_is_refused(
    tmp_path: Path, run: Report, key: str, value: object
) -> None:
    path = tmp_path / "ranks.parquet"
    note = json.dumps(run.to_dict() | {key: value})
    table = pa.table({"node": [0, 1], "rank": [0.5, 0.5]}).replace_schema_metadata({"oocpr": note})
    pq.write_table(table, path)
    with pytest.raises(InputError, match=f"cannot be read .*{key}") as caught:
        read_ranks(path)
    assert caught.value.cause.count(str(path)) == 1


def test_float32_ranks_of_other_programs_are_read(tmp_path: Path) -> None:
    path = tmp_path / "ranks.parquet"
    pq.write_table(pa.table({"node": ["a", "b"], "rank": pa.array([0.25, 0.75], pa.float32())}), path)
    assert read_ranks(path).top(1) == [("b", 0.75)]


def test_any_name_of_a_file_is_written(tmp_path: Path) -> None:
    ranks = Ranks(np.array([0.75, 0.25]), RowNames())
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.parquet"))
    ranks.to_parquet(path)
    assert pq.read_table(io.BytesIO(path.read_bytes())).to_pydict() == {"node": [0, 1], "rank": [0.75, 0.25]}
    # Arrow opens no such file.
    with pytest.raises(InputError):
        read_ranks(path).top(1)
