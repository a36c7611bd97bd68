"""What goes wrong ends with its exit code and two lines, and leaves nothing behind."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import zarr

import oocpr
from oocpr.store.format import FORMAT

if TYPE_CHECKING:
    Fails = Callable[..., str]
    Run = Callable[..., Any]

MATRIX = "%%MatrixMarket matrix coordinate pattern general\n"
SOURCES = {
    "empty.txt": (b"", r"empty\.txt"),
    "comments.txt": (b"# from to\n# nothing else\n", r"comments\.txt"),
    "one_column.txt": (b"1 2\n3\n2 1\n", r"one_column\.txt.*line 2|line 2.*one_column\.txt"),
    "letters.txt": (b"1 2\n2 3\nthree 1\n", r"letters\.txt.*line 3|line 3.*letters\.txt"),
    "sign.txt": (b"1 2\n2 -\n", r"sign\.txt.*line 2"),
    "huge.txt": (b"1 2\n2 9223372036854775808\n", r"huge\.txt.*line 2"),
    "half.tsv": (b"a\tb\nb\t\n", r"half\.tsv.*line 2"),
    "enormous.txt": (b"1 2\n99999999999999999999999999 2\n", r"enormous\.txt.*line 2"),
    "half.txt.gz": (gzip.compress(b"1 2\n2 3\n" * 9000)[:60], r"half\.txt\.gz"),
    "no_gzip.txt.gz": (b"1 2\n2 3\n", r"no_gzip\.txt\.gz"),
    "fewer.mtx": (f"{MATRIX}3 3 4\n1 2\n2 3\n".encode(), r"fewer\.mtx"),
    "more.mtx": (f"{MATRIX}3 3 1\n1 2\n2 3\n".encode(), r"more\.mtx"),
    "outside.mtx": (f"{MATRIX}3 3 2\n1 2\n2 4\n".encode(), r"outside\.mtx"),
    "oblong.mtx": (f"{MATRIX}3 4 1\n1 2\n".encode(), r"oblong\.mtx"),
    "headless.mtx": (b"3 3 1\n1 2\n", r"headless\.mtx"),
    "no_zip.npz": (b"PK\x03\x04 and no more", r"no_zip\.npz"),
}


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_that_cannot_be_read_is_named(
    fails: Fails, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, message = SOURCES[name]
    source = tmp_path / name
    source.write_bytes(content)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    assert re.search(message, fails(2, "import", source, "-o", tmp_path / "graph.zarr"))
    assert re.search(message, fails(2, "rank", source))


def test_a_source_that_is_not_there_is_named(fails: Fails, tmp_path: Path) -> None:
    for words in (
        ("import", tmp_path / "no.txt", "-o", tmp_path / "graph.zarr"),
        ("rank", tmp_path / "no.txt"),
    ):
        assert "no.txt" in fails(2, *words)


def test_labels_that_do_not_belong_to_the_graph_are_refused(fails: Fails, tmp_path: Path) -> None:
    (tmp_path / "links.txt").write_text("0 1\n1 2\n")
    (tmp_path / "names.txt").write_text("a\nb\n")
    words = ("import", tmp_path / "links.txt", "--labels", tmp_path / "names.txt", "-o", tmp_path / "g.zarr")
    assert "links.txt, line 2" in fails(2, *words)


class TestStores:
    """Every command that opens a store says what is wrong with it."""

    @pytest.fixture(params=["info", "plan", "rank", "verify"])
    def opening(self, request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Path], tuple[object, ...]]:
        ranks = tmp_path / "ranks.csv"
        ranks.write_text("node,rank\n0,1\n")
        return lambda path: (request.param, path, *([ranks] if request.param == "verify" else []))

    def test_missing(self, fails: Fails, tmp_path: Path, opening: Run) -> None:
        assert "does not exist" in fails(2, *opening(tmp_path / "no.zarr"))

    def test_a_folder_of_something_else(self, fails: Fails, tmp_path: Path, opening: Run) -> None:
        (tmp_path / "folder.zarr").mkdir()
        assert "folder.zarr" in fails(2, *opening(tmp_path / "folder.zarr"))

    def test_a_file(self, fails: Fails, tmp_path: Path, opening: Run) -> None:
        (tmp_path / "file.zarr").write_text("0 1\n")
        assert "file.zarr" in fails(2, *opening(tmp_path / "file.zarr"))

    def test_foreign(self, fails: Fails, tmp_path: Path, opening: Run) -> None:
        zarr.create_array(str(tmp_path / "foreign.zarr"), shape=(3,), dtype="int64")
        assert "foreign.zarr" in fails(2, *opening(tmp_path / "foreign.zarr"))

    def test_ranks_in_place_of_a_graph(self, fails: Fails, store: Path, tmp_path: Path, opening: Run) -> None:
        oocpr.pagerank(store).to_zarr(tmp_path / "other.zarr")
        assert "other.zarr" in fails(2, *opening(tmp_path / "other.zarr"))

    def test_of_a_newer_format(self, fails: Fails, store: Path, opening: Run) -> None:
        root = json.loads((store / "zarr.json").read_text())
        root["attributes"]["oocpr"]["format"] = FORMAT + 1
        (store / "zarr.json").write_text(json.dumps(root))
        assert f"format {FORMAT + 1}" in fails(2, *opening(store))

    def test_half_written(self, fails: Fails, store: Path, opening: Run) -> None:
        root = json.loads((store / "zarr.json").read_text())
        root["attributes"]["oocpr"] = {"unfinished": True}
        (store / "zarr.json").write_text(json.dumps(root))
        assert "interrupted import" in fails(2, *opening(store))


def test_a_flipped_byte_anywhere_never_changes_an_answer(
    oocpr_command: Run, fails: Fails, store: Path, tmp_path: Path
) -> None:
    ranks = tmp_path / "ranks.parquet"
    right = oocpr_command("rank", store, "-o", ranks, "--json", "-")
    answer = json.loads(right.out)["top"]
    files = [path for path in store.rglob("*") if path.is_file()]
    assert len(files) >= 12
    for path in files:
        whole = path.read_bytes()
        for place in {0, len(whole) // 3, len(whole) // 2, len(whole) - 1}:
            broken = bytearray(whole)
            # In a JSON document 0x01 keeps letters letters and digits digits, which a parser cannot notice.
            broken[place] ^= 0x01
            path.write_bytes(bytes(broken))
            outcome = oocpr_command("rank", store, "--json", "-")
            verified = oocpr_command("verify", store, ranks)
            if outcome.code == 0:
                assert json.loads(outcome.out)["top"] == answer
            else:
                assert outcome.code in (2, 5), (path, place)
                assert [line.split()[0] for line in outcome.err.splitlines()] == ["error:", "remedy:"]
            # Verifying reads everything, so nothing but white space in a document can go unnoticed.
            assert verified.code in (2, 5) or path.name == "zarr.json", (path, place, verified)
            if path.name != "zarr.json":
                assert verified.code == 5, (path, place, verified)
        path.write_bytes(whole)
    assert oocpr_command("verify", store, ranks).code == 0


def test_a_chunk_that_is_cut_or_gone_is_damage(fails: Fails, store: Path) -> None:
    tile = store / "in_edges" / "indices" / "c" / "0"
    whole = tile.read_bytes()
    tile.write_bytes(whole[: len(whole) // 2])
    assert "site.zarr" in fails(5, "rank", store)
    tile.unlink()
    assert "site.zarr" in fails(5, "rank", store)


@pytest.mark.parametrize("damping", ["0", "1", "1.5", "-0.1", "-1", "nan"])
def test_a_damping_outside_the_open_interval_is_refused(fails: Fails, store: Path, damping: str) -> None:
    assert "damping" in fails(2, "rank", store, f"--damping={damping}")
    assert "damping" in fails(2, "plan", store, f"--damping={damping}")


@pytest.mark.parametrize("tol", ["1e-16", "0", "-1", "nan"])
def test_a_tol_that_float64_cannot_certify_is_refused(fails: Fails, store: Path, tol: str) -> None:
    assert "tol" in fails(2, "rank", store, f"--tol={tol}")


@pytest.mark.parametrize(("reads", "damping"), [("bits8", 0.9), ("bits8", 0.99), ("bits16", 0.995)])
def test_reads_too_coarse_for_the_damping_are_refused(
    fails: Fails, store: Path, reads: str, damping: float
) -> None:
    assert reads in fails(2, "rank", store, "--reads", reads, "--damping", damping)


@pytest.mark.parametrize("option", ["method", "reads", "stop", "dangling"])
def test_a_word_that_is_no_choice_is_repeated(fails: Fails, store: Path, option: str) -> None:
    assert "'sideways'" in fails(2, "rank", store, f"--{option}", "sideways")


@pytest.mark.parametrize("order", ["sideways", ""])
def test_an_order_that_there_is_not_is_refused(fails: Fails, tmp_path: Path, data: Path, order: str) -> None:
    source = data / "tiny" / "site.txt"
    assert f"'{order}'" in fails(2, "import", source, "-o", tmp_path / "g.zarr", "--order", order)


def test_nodes_without_names_have_no_order_by_host(fails: Fails, tmp_path: Path) -> None:
    (tmp_path / "links.txt").write_text("1 2\n2 1\n")
    words = ("import", tmp_path / "links.txt", "-o", tmp_path / "g.zarr", "--order", "host")
    assert "nodes without names" in fails(2, *words)
    assert not (tmp_path / "g.zarr").exists()


@pytest.mark.parametrize("order", ["degree", "bfs", "auto"])
def test_an_order_that_does_not_fit_is_refused(fails: Fails, tmp_path: Path, order: str) -> None:
    (tmp_path / "wide.mtx").write_text(
        "%%MatrixMarket matrix coordinate pattern general\n400000000 400000000 1\n1 400000000\n"
    )
    words = ("import", tmp_path / "wide.mtx", "-o", tmp_path / "g.zarr", "--order", order, "--memory", "3GiB")
    assert re.search(r"400 M nodes.* needs [\d.]+ GiB of memory in all, 3 GiB", fails(4, *words))
    assert not (tmp_path / "g.zarr").exists()


def test_a_memory_that_cannot_do_is_refused_with_both_numbers(
    fails: Fails, store: Path, tmp_path: Path, data: Path
) -> None:
    site = data / "tiny" / "site.txt"
    for words in (("import", site, "-o", tmp_path / "g.zarr"), ("rank", site), ("rank", store)):
        cause = fails(4, *words, "--memory", "10MiB")
        assert "10 MiB" in cause
        assert len(re.findall(r"[\d.]+ [KMG]iB", cause)) >= 2


@pytest.mark.parametrize("memory", ["lots", "0", "-1GiB", "10 MiB/s"])
def test_a_memory_that_is_no_size_is_refused(fails: Fails, store: Path, memory: str) -> None:
    assert repr(memory) in fails(2, "rank", store, f"--memory={memory}")


@pytest.mark.parametrize(
    "words",
    [
        ("bogus",),
        ("rank",),
        ("rank", "--bogus"),
        ("rank", "x", "y"),
        ("rank", "x", "--top", "ten"),
        ("rank", "x", "--top", "-1"),
        ("rank", "x", "--damping", "high"),
        ("generate",),
        ("generate", "bogus"),
        ("import", "x"),
        ("-o", "x"),
    ],
)
def test_wrong_usage_has_the_two_lines_too(oocpr_command: Run, fails: Fails, words: tuple[str, ...]) -> None:
    if words == ("generate",):
        assert oocpr_command(*words).code == 2
    else:
        fails(2, *words)


def test_where_nothing_can_be_written_is_found_out_before_the_work(
    fails: Fails, store: Path, tmp_path: Path
) -> None:
    for words in (("-o", "ranks.txt"), ("-o", "no/ranks.csv"), ("--json", "no/run.json"), ("-o", "ranks")):
        started = fails(2, "rank", store, words[0], tmp_path / words[1])
        assert words[1].split("/")[-1] in started
    assert "both" in fails(2, "rank", store, "-o", "-", "--json", "-")
    assert ".zarr" in fails(2, "import", store, "-o", tmp_path / "graph")


def test_a_rank_file_of_another_graph_is_refused(
    fails: Fails, oocpr_command: Run, store: Path, tmp_path: Path, data: Path
) -> None:
    ranks = tmp_path / "ranks.parquet"
    oocpr_command("rank", data / "tiny" / "langville-meyer.txt", "-o", ranks)
    assert "6 ranks" in fails(2, "verify", store, ranks)
    assert "ranks.parquet" in fails(2, "verify", store, ranks)


def test_a_rank_file_that_is_none_is_named(fails: Fails, store: Path, tmp_path: Path) -> None:
    (tmp_path / "ranks.csv").write_text("who,what\n1,2\n")
    for words in (("top", tmp_path / "ranks.csv"), ("verify", store, tmp_path / "ranks.csv")):
        assert "ranks.csv" in fails(2, *words)
    assert "site.zarr" in fails(2, "top", store)


def test_a_defect_is_told_as_one_and_debug_shows_where(
    oocpr_command: Run, fails: Fails, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(path: object) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr("oocpr.api.open_graph", broken)
    assert fails(1, "info", store) == "ZeroDivisionError: a defect"
    outcome = oocpr_command("info", store, "--debug")
    assert outcome.code == 1
    assert "Traceback" in outcome.err
    assert outcome.err.splitlines()[-2:] == [
        "error: ZeroDivisionError: a defect",
        "remedy: Please report it with what is above.",
    ]


def test_a_traceback_is_shown_with_debug_only(oocpr_command: Run, tmp_path: Path) -> None:
    outcome = oocpr_command("--debug", "info", tmp_path / "no.zarr")
    assert outcome.code == 2
    assert "NotAStoreError" in outcome.err


def test_an_array_that_is_gone_is_damage(fails: Fails, store: Path) -> None:
    shutil.rmtree(store / "out_degree")
    assert "site.zarr" in fails(5, "rank", store)
