"""Answers reach their place or another that is named, and never destroy what they come from."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import oocpr
from oocpr.cli.output import ranking
from oocpr.errors import DoesNotFitError, UsageError
from oocpr.result.names import RowNames
from oocpr.result.rank_files import check_room, min_file_bytes
from oocpr.sources.files import check_apart
from tests.store.test_atomic import mounted


@pytest.fixture
def web(tmp_path):
    path = tmp_path / "web.parquet"
    pq.write_table(pa.table({"src": [0, 1, 2, 2], "dst": [1, 2, 0, 1]}), path)
    return path


@pytest.fixture
def beside(tmp_path, web):
    """Files that a run reads beside its source, and other names of the source."""
    (tmp_path / "seeds.csv").write_text("0\t1\n")
    (tmp_path / "names.csv").write_text("a\nb\nc\n")
    oocpr.pagerank(web).to_csv(str(tmp_path / "start.csv"))
    os.link(web, tmp_path / "hard.parquet")
    (tmp_path / "soft.parquet").symlink_to(web)
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ("-o", "web.parquet"),
        ("-o", "hard.parquet"),
        ("-o", "soft.parquet"),
        ("--json", "web.parquet"),
        ("--json", "soft.parquet"),
        ("--trace", "web.parquet"),
        ("--personalization", "seeds.csv", "-o", "seeds.csv"),
        ("--start", "start.csv", "-o", "start.csv"),
        ("--labels", "names.csv", "--json", "names.csv"),
        ("-o", "both.csv", "--json", "both.csv"),
        ("-o", "both.csv", "--trace", "./both.csv"),
        ("--json", "both.html", "--report", "./both.html"),
    ],
)
def test_what_is_read_is_not_replaced(fails, beside, monkeypatch, words):
    monkeypatch.chdir(beside)
    told = fails(2, "rank", "web.parquet", *words)
    assert "which is read" in told or "one file" in told


def test_nothing_is_written_into_a_store_or_a_folder_that_is_read(fails, store, web, tmp_path):
    assert "inside" in fails(2, "rank", store, "-o", store / "ranks.csv")
    assert "inside" in fails(2, "info", store, "--json", store / "zarr.json")
    (tmp_path / "parts").mkdir()
    web.rename(tmp_path / "parts" / "web.parquet")
    assert "inside" in fails(2, "rank", tmp_path / "parts", "-o", tmp_path / "parts" / "ranks.parquet")
    assert "web.parquet" in fails(
        2, "rank", tmp_path / "parts/*.parquet", "--json", tmp_path / "parts/web.parquet"
    )


def test_other_commands_do_not_replace_what_they_read(fails, oocpr_command, store, tmp_path):
    ranks = tmp_path / "r.csv"
    assert oocpr_command("rank", store, "-o", ranks).code == 0
    assert "which is read" in fails(2, "top", ranks, "--json", ranks)
    assert "which is read" in fails(2, "verify", store, ranks, "--json", ranks)
    (tmp_path / "edges.zarr").write_text("0 1\n")
    edges = tmp_path / "edges.zarr"
    fails(2, "import", edges, "--format", "text", "-o", edges, "--overwrite")
    with pytest.raises(UsageError, match="which is read"):
        oocpr.import_graph(edges, edges, overwrite=True)


def test_edges_may_be_appended_to_a_graph_in_its_place(oocpr_command, tmp_path):
    (tmp_path / "a.txt").write_text("0 1\n1 0\n")
    graph = tmp_path / "a.zarr"
    assert oocpr_command("import", tmp_path / "a.txt", "-o", graph).code == 0
    assert oocpr_command("append", graph, tmp_path / "a.txt", "-o", graph, "--overwrite").code == 0


def test_devices_and_other_outputs_are_no_inputs(tmp_path):
    check_apart(["/dev/null", "/dev/null", "-", "-"], ["/dev/null", None, 3, "s3://bucket/web.txt"])
    check_apart([tmp_path / "r.csv", tmp_path / "r.json"], [tmp_path / "web.txt", str(tmp_path / "*.txt")])


@pytest.mark.parametrize("option", ["-o", "--json", "--trace"])
def test_what_cannot_be_written_is_found_before_the_source_is_read(fails, tmp_path, option):
    # There is no such source: it is the output that is told.
    (tmp_path / "folder.csv").mkdir()
    assert "is a folder" in fails(2, "rank", "no.txt", option, tmp_path / "folder.csv")
    assert "File name too long" in fails(2, "rank", "no.txt", option, tmp_path / ("r" * 300 + ".csv"))
    assert "does not exist" in fails(2, "rank", "no.txt", option, tmp_path / "no" / "r.csv")
    with mounted(tmp_path / "small", "size=64k,ro") as small:
        assert "Read-only file system" in fails(2, "rank", "no.txt", option, small / "r.csv")


def test_what_is_no_store_of_ranks_is_not_replaced_by_one(fails, store, tmp_path):
    (tmp_path / "other.zarr").mkdir()
    assert "something else" in fails(2, "rank", store, "-o", tmp_path / "other.zarr")
    assert "something else" in fails(2, "import", "no.txt", "-o", tmp_path / "other.zarr", "--overwrite")


def ring(path, nodes):
    path.write_text("".join(f"{node} {(node * 7 + 1) % nodes}\n" for node in range(nodes)))
    return path


def test_a_disk_without_room_is_found_before_the_run(oocpr_command, tmp_path):
    source = ring(tmp_path / "ring.txt", 20_000)
    with mounted(tmp_path / "small", "size=128k") as small:
        for name in ("r.csv", "r.parquet"):
            # The larger of both is known not to fit.
            outcome = oocpr_command("rank", source, "-o", small / name, "--max-passes", 1)
            assert (outcome.code == 4) == (name == "r.csv")
        assert "takes at least about" in oocpr_command("rank", source, "-o", small / "r.csv").err


def test_predicted_sizes_are_not_above_those_of_files(tmp_path, data):
    ranks = oocpr.pagerank(data / "debian-bookworm-deps.txt.gz")
    names = ranks.names.take(np.arange(ranks.nodes))
    width = sum(map(len, names)) / len(names)
    for suffix, write in ((".csv", ranks.to_csv), (".parquet", ranks.to_parquet)):
        path = tmp_path / f"r{suffix}"
        write(path)
        size = path.stat().st_size
        assert 0.4 * size < min_file_bytes(suffix, ranks.nodes, width) < size
        check_room(path, ranks.nodes, ranks.names)
    with pytest.raises(DoesNotFitError, match="are free there"):
        check_room(path, 2**50, RowNames())


@pytest.mark.parametrize("name", ["r.csv", "r.parquet", "r.zarr"])
def test_ranks_that_cannot_be_written_after_all_are_elsewhere(oocpr_command, tmp_path, monkeypatch, name):
    source = ring(tmp_path / "ring.txt", 20_000)
    right = oocpr.pagerank(source)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    found = oocpr.pagerank

    with mounted(tmp_path / "small", "size=1m") as small:

        def ranked(*graph, **how):
            ranks = found(*graph, **how)
            status = os.statvfs(small)
            (small / "filler").write_bytes(bytes(status.f_bavail * status.f_frsize))
            return ranks

        monkeypatch.setattr("oocpr.api.pagerank", ranked)
        outcome = oocpr_command("rank", source, "-o", small / name, "--top", 3)
        assert outcome.code == 4
        assert len(outcome.out.splitlines()) >= 4
        cause, remedy = outcome.err.splitlines()[-2:]
        assert "No space left on device" in cause
        written = Path(remedy.split("All ranks are in ")[1].split(" instead")[0])
        assert (written.parent, written.suffix) == (tmp_path / "tmp", Path(name).suffix)
        assert oocpr.read_ranks(written).top(5) == right.top(5)
        assert [file.name for file in small.iterdir()] == ["filler"]


def test_a_folder_that_vanished_and_a_timeline_without_room_lose_no_ranks(
    oocpr_command, store, tmp_path, monkeypatch
):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    found = oocpr.pagerank
    (tmp_path / "gone").mkdir()

    def ranked(*graph, **how):
        (tmp_path / "gone").rmdir()
        return found(*graph, **how)

    monkeypatch.setattr("oocpr.api.pagerank", ranked)
    outcome = oocpr_command("rank", store, "-o", tmp_path / "gone" / "r.csv", "--top", 2)
    assert outcome.code == 2
    assert "No such file or directory" in outcome.err
    assert f"All ranks are in {tmp_path}/tmp/r-" in outcome.err
    assert len(list((tmp_path / "tmp").iterdir())) == 1
    monkeypatch.undo()
    method = ("--method", "mixed")
    outcome = oocpr_command(
        "rank", store, *method, "--trace", "/dev/full", "-o", tmp_path / "r.csv", "--top", 2
    )
    assert outcome.code == 4
    assert "/dev/full cannot be written: No space left on device." in outcome.err
    assert "certified L1 error" in outcome.out
    assert (tmp_path / "r.csv").is_file()
    with pytest.raises(DoesNotFitError) as caught:
        oocpr.pagerank(store, method="mixed", trace="/dev/full")
    assert caught.value.ranks.nodes == 5


def test_full_devices_have_the_code_of_a_full_disk(oocpr_command, store):
    outcome = oocpr_command("rank", store, "--json", "/dev/full", "--top", 2)
    assert outcome.code == 4
    assert len(outcome.out.splitlines()) == 3


@pytest.mark.parametrize(
    "words", [["info"], ["plan"], ["rank"], ["rank", "--json", "-"], ["info", "--json", "-"], ["--version"]]
)
def test_standard_output_without_room_has_the_code_of_a_full_disk_and_is_told_once(store, environment, words):
    named = [] if words == ["--version"] else [str(store)]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "oocpr", *words, *named],
            env=environment, stdout=full, stderr=subprocess.PIPE, check=False,
        )  # fmt: skip
    assert done.returncode == 4
    told = [line for line in done.stderr.decode().splitlines() if not line.startswith("certified")]
    assert told[-2:] == [
        "error: standard output cannot be written: No space left on device.",
        "remedy: Send it somewhere with room.",
    ]
    assert b"Exception ignored" not in done.stderr


def test_output_that_is_not_buffered_has_the_code_of_a_full_disk_too(environment):
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-u", "-m", "oocpr", "rank", "--help"],
            env=environment, stdout=full, stderr=subprocess.PIPE, check=False,
        )  # fmt: skip
    assert done.returncode == 4
    assert b"error: what is written has no room: No space left on device." in done.stderr


def test_ranks_for_standard_output_without_room_are_elsewhere(store, environment, tmp_path):
    command = [sys.executable, "-m", "oocpr", "rank", str(store), "-o", "-", "--top", "2"]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            command,
            env=environment | {"TMPDIR": str(tmp_path)},
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert done.returncode == 4
    assert b"certified L1 error" in done.stderr
    (written,) = tmp_path.glob("ranks-*.csv")
    assert str(written).encode() in done.stderr
    assert len(written.read_text().splitlines()) == 6


def test_a_temporary_store_without_room_is_told_with_its_cause(oocpr_command, tmp_path):
    source = ring(tmp_path / "ring.txt", 50_000)
    with mounted(tmp_path / "small", "size=128k") as small:
        outcome = oocpr_command("rank", source, "--tmp", small)
        assert outcome.code == 4
        assert str(small) in outcome.err
        assert list(small.iterdir()) == []


def test_a_temporary_store_that_a_killed_run_left_is_removed(store, oocpr_command, data, tmp_path):
    program = (
        "import os, signal, sys, oocpr.api as api\n"
        "graph = api.as_graph(sys.argv[1], tmp=sys.argv[2])\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    site = data / "tiny" / "site.txt"
    (tmp_path / "tmp").mkdir()
    environment = os.environ | {"PYTHONPATH": str(Path(oocpr.__file__).parents[1])}
    command = [sys.executable, "-c", program, str(site), str(tmp_path / "tmp")]
    assert subprocess.run(command, env=environment, check=False).returncode == -9
    (left,) = (tmp_path / "tmp").iterdir()
    outcome = oocpr_command("rank", site, "--tmp", tmp_path / "tmp")
    assert outcome.code == 0
    assert f"note: {left}, which a process that was killed had left, was removed." in outcome.err
    assert not left.exists()


def test_an_output_that_a_killed_run_left_is_removed_and_told(oocpr_command, store, tmp_path):
    left = tmp_path / f"r.csv.partial-{os.getpid()}-0123abcd"
    left.write_text("node,ra")
    outcome = oocpr_command("rank", store, "-o", tmp_path / "r.csv")
    assert f"note: {left}, which a process that was killed had left, was removed." in outcome.err
    assert not left.exists()


@pytest.mark.parametrize("memory", ["2GiB", "3GiB"])
def test_reproducible_ranks_are_the_same_file_for_any_memory(oocpr_command, data, tmp_path, memory):
    source = data / "debian-bookworm-deps.txt.gz"
    written = []
    for given, threads in ((memory, 1), ("8GiB", 2)):
        path = tmp_path / f"{given}.csv"
        outcome = oocpr_command(
            "rank", source, "--reproducible", "--memory", given, "--threads", threads, "-o", path
        )
        assert outcome.code == 0
        written.append(path.read_bytes())
    assert written[0] == written[1]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--method", "components", "--stripes", 1), "components has none"),
        (("--method", "components", "--io", "direct"), "reads the store once"),
        (("--method", "components", "--trace", "t.json"), "no timeline"),
        (("--kernel", "binned"), "for CUDA devices and the device is cpu"),
        (("--kernel", "nonsense"), "kernel 'nonsense' is not known"),
        (("--kernel", "nonsense", "--method", "components"), "kernel 'nonsense' is not known"),
        (("--kernel", "nonsense", "--device", "auto"), "kernel 'nonsense' is not known"),
        (("--kernel", "nonsense", "--workers", 1), "kernel 'nonsense' is not known"),
        (("--device-memory", "1GiB"), "device is cpu"),
        (("--sort", "rank"), "no file is written"),
        (("--sort", "rank", "-o", "r.zarr"), "has the order of the store"),
        (("--sort", "size", "-o", "r.csv"), "no order of ranks"),
        (("--tmp", "."), "where a source would be imported"),
    ],
)
def test_options_that_would_be_ignored_are_refused(fails, store, tmp_path, monkeypatch, words, told):
    monkeypatch.chdir(tmp_path)
    assert told in fails(2, "rank", store, *words)
    if {"--io", "--stripes", "--kernel"} & set(words) and "--workers" not in words:
        assert told in fails(2, "plan", store, *words)


def test_a_report_is_a_page_of_the_run(oocpr_command, fails, web, tmp_path):
    outcome = oocpr_command("rank", web, "--top", 2, "--report", tmp_path / "r.html")
    assert outcome.code == 0
    text = (tmp_path / "r.html").read_text()
    assert "<h1>PageRank of web.parquet</h1>" in text
    assert "The 2 largest ranks" in text
    (tmp_path / "seeds.tsv").write_text("first\t0\n")
    for words, cause in (
        (("--report", "-"), "does not end in .html"),
        (("--report", tmp_path / "no" / "r.html"), "no"),
        (("--seeds", tmp_path / "seeds.tsv", "--report", tmp_path / "s.html"), "not of many seeds"),
    ):
        assert cause in str(fails(2, "rank", web, *words))
    assert not (tmp_path / "s.html").exists()


def test_a_narrow_terminal_cuts_off_no_rank_and_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    names = [f"https://example.org/{'x' * 70}/{page}.html" for page in "ab"]
    drawn = ranking([(name, 0.25) for name in names], 1e-10).splitlines()
    rows = [line for line in drawn if line.startswith("│")]
    assert {len(row) for row in rows} == {60}
    cells = [[cell.strip() for cell in row.split("│")[1:-1]] for row in rows]
    assert "".join(name for _, _, name in cells) == "".join(names)
    assert [rank for _, rank, _ in cells if rank] == ["0.2500000000"] * 2
