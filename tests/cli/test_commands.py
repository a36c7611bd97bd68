"""What the commands answer: on standard output, as JSON, in files."""

from __future__ import annotations

import csv
import io
import json
import logging
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
import pytest
from scipy.sparse import csr_array, load_npz

import oocpr
from oocpr.cli import EXIT_CODES, main
from oocpr.cli.commands import cli
from oocpr.engine.cuda.baselines import KERNELS
from oocpr.engine.number_formats import READS
from oocpr.engine.settings import DANGLING, METHODS, STOPS
from oocpr.ingest.build import ORDERS
from oocpr.sources import FORMATS

if TYPE_CHECKING:
    Run = Callable[..., Any]

COMMANDS = [
    "import",
    "append",
    "generate rmat",
    "generate wu",
    "info",
    "plan",
    "rank",
    "run",
    "status",
    "top",
    "verify",
    "bench papers",
]
RANK_KEYS = {
    "nodes", "edges", "method", "reads", "damping", "tol", "converged", "error_bound", "passes", "gathers",
    "seconds", "compile_seconds", "gteps", "bytes_per_edge", "peak_memory", "top",
}  # fmt: skip
INFO_KEYS = {
    "nodes", "edges", "dangling", "self_loops", "weighted", "order", "tiles", "bytes_per_edge", "store_bytes",
}  # fmt: skip


def expected(path: Path) -> list[tuple[str, float]]:
    with path.open(newline="") as file:
        rows = [(row["name"], float(row["rank"])) for row in csv.DictReader(file)]
    return sorted(rows, key=lambda row: -row[1])


def test_rank_prints_the_names_of_a_source_with_its_certificate(oocpr_command: Run, data: Path) -> None:
    outcome = oocpr_command("rank", data / "tiny" / "site.txt", "--top", 3)
    *table, summary = outcome.out.splitlines()
    assert outcome.code == 0
    assert re.fullmatch(r"note: Labels of 5 nodes come from .*site\.labels\.txt\.\n", outcome.err)
    for place, (line, (name, rank)) in enumerate(
        zip(table, expected(data / "tiny" / "site.ranks-0.85.csv")[:3], strict=True), 1
    ):
        words = line.split()
        assert words[0] == str(place)
        assert words[2] == name
        # Every digit that is printed is right, to one of the last.
        assert abs(float(words[1]) - rank) <= 1.5 * 10 ** -len(words[1].split(".")[1])
    bound = re.match(r"certified L1 error <= (\S+); (\d+) passes", summary)
    assert bound
    assert float(bound[1]) <= 1e-10


def test_the_first_command_of_the_readme_ranks_what_everybody_knows(oocpr_command: Run, data: Path) -> None:
    outcome = oocpr_command("rank", data / "debian-bookworm-deps.txt.gz", "--top", 10)
    names = [line.split()[2] for line in outcome.out.splitlines()[:-1]]
    assert names[:5] == ["libc6", "libgcc-s1", "libidn2-0", "gcc-12-base", "libunistring2"]
    assert len(names) == 10


def test_json_of_rank_has_every_promised_key_and_leaves_standard_output_to_it(
    oocpr_command: Run, store: Path
) -> None:
    outcome = oocpr_command("rank", store, "--json", "-", "--top", 2, "--method", "residual", "--tol", 1e-9)
    report = json.loads(outcome.out)
    assert set(report) >= RANK_KEYS
    assert (report["nodes"], report["edges"], report["method"], report["tol"]) == (5, 6, "residual", 1e-9)
    assert report["converged"] is True
    assert report["error_bound"] <= 1e-9
    seconds = report["seconds"] - report["compile_seconds"]
    assert report["gteps"] == pytest.approx(6 * report["passes"] / seconds / 1e9)
    assert [sorted(entry) for entry in report["top"]] == [["node", "rank"]] * 2
    # Lines before it tell how far compiling is, on a machine that has not done it yet.
    assert outcome.err.splitlines()[-1].startswith("certified L1 error <= ")


def test_a_timeline_is_drawn_and_summed_up(oocpr_command: Run, store: Path, tmp_path: Path) -> None:
    timeline, facts = tmp_path / "run.json", tmp_path / "r.json"
    outcome = oocpr_command("rank", store, "--method", "mixed", "--trace", timeline, "--json", facts)
    assert outcome.code == 0
    report = json.loads(facts.read_text())
    assert set(report["busy"]) == {"compute", "read"}
    # The busiest comes first, and which that is depends on the machine.
    busy = re.search(r"busy, of the time of the run: (\w+) \d+%, (\w+) \d+%", outcome.out)
    assert busy is not None
    assert sorted(busy.groups()) == ["compute", "read"]
    events = json.loads(timeline.read_text())["traceEvents"]
    tiles = json.loads(oocpr_command("info", store, "--json", "-").out)["tiles"]
    assert len([event for event in events if event["tid"] == 0 and event["ph"] == "X"]) == (
        report["passes"] * tiles
    )


def test_json_of_rank_in_a_file_says_what_standard_output_says(
    oocpr_command: Run, store: Path, tmp_path: Path
) -> None:
    outcome = oocpr_command("rank", store, "--json", tmp_path / "run.json")
    report = json.loads((tmp_path / "run.json").read_text())
    names = [line.split()[2] for line in outcome.out.splitlines()[:-1]]
    assert [entry["node"] for entry in report["top"]] == names


def test_csv_on_standard_output_is_all_there_is(oocpr_command: Run, store: Path, data: Path) -> None:
    outcome = oocpr_command("rank", store, "-o", "-", "--sort", "rank")
    rows = list(csv.DictReader(io.StringIO(outcome.out)))
    assert [(row["node"], float(row["rank"])) for row in rows] == [
        (name, pytest.approx(rank, abs=1e-10))
        for name, rank in expected(data / "tiny" / "site.ranks-0.85.csv")
    ]


@pytest.mark.parametrize("suffix", ["parquet", "csv", "zarr"])
def test_ranks_go_through_a_file_to_top_and_verify(
    oocpr_command: Run, store: Path, tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"ranks.{suffix}"
    ranked = oocpr_command("rank", store, "-o", path, "--top", 4)
    listed = oocpr_command("top", path, "-k", 4)
    names = [line.split()[2] for line in listed.out.splitlines()]
    assert names == [line.split()[2] for line in ranked.out.splitlines()[:-1]]
    assert (listed.code, listed.err) == (0, "")
    verified = oocpr_command("verify", store, path, "--json", "-")
    assert verified.code == 0
    assert json.loads(verified.out)["bound"] <= 1e-10
    report = json.loads(oocpr_command("top", path, "--json", "-").out)
    assert len(report["top"]) == 5
    assert (set(report) >= RANK_KEYS) is (suffix != "csv")


def test_verify_finds_ranks_that_are_not_those_of_the_graph(
    oocpr_command: Run, store: Path, tmp_path: Path
) -> None:
    path = tmp_path / "ranks.csv"
    oocpr_command("rank", store, "-o", path)
    assert oocpr_command("verify", store, path, "--tol", 1e-9).code == 0
    swapped = {"home": "about", "about": "home"}
    path.write_text(re.sub("home|about", lambda match: swapped[match[0]], path.read_text()))
    outcome = oocpr_command("verify", store, path, "--tol", 1e-9)
    assert outcome.code == 3
    assert "an L1 error of 1e-09 is not certified" in outcome.err
    bound = re.search(r"L1 error <= +(\S+)", outcome.out)
    assert bound
    assert float(bound[1]) > 0.01


def test_verify_holds_a_file_to_the_bound_it_claims(oocpr_command: Run, store: Path, tmp_path: Path) -> None:
    path = tmp_path / "ranks.parquet"
    ranks = oocpr.pagerank(store)
    wrong = ranks.to_numpy().copy()
    wrong[[0, 1]] += 1e-8, -1e-8
    type(ranks)(wrong, ranks.names, run=ranks.run).to_parquet(path)
    assert oocpr_command("verify", store, path).code == 3


def test_not_converging_ends_with_3_and_still_answers(
    oocpr_command: Run, store: Path, tmp_path: Path
) -> None:
    path = tmp_path / "ranks.parquet"
    outcome = oocpr_command("rank", store, "--max-passes", 1, "-o", path, "--json", tmp_path / "run.json")
    assert outcome.code == 3
    assert len(outcome.out.splitlines()) == 6
    cause, remedy = outcome.err.splitlines()
    assert cause.startswith("error: not converged after 1 pass:")
    assert remedy.startswith("remedy: ")
    report = json.loads((tmp_path / "run.json").read_text())
    assert report["converged"] is False
    assert report["error_bound"] == oocpr.read_ranks(path).error_bound > 1e-10
    assert len(oocpr.read_ranks(path)) == 5


@pytest.mark.parametrize("name", ["langville-meyer", "graphalytics-directed", "site"])
@pytest.mark.parametrize("suffix", ["txt", "mtx", "npz", "gr0", "dat", "tsv"])
def test_import_reads_every_format(
    oocpr_command: Run, data: Path, tmp_path: Path, name: str, suffix: str
) -> None:
    path = tmp_path / "graph.zarr"
    outcome = oocpr_command("import", data / "tiny" / f"{name}.{suffix}", "-o", path)
    assert outcome.code == 0
    assert outcome.err == "" or outcome.err.startswith("note: ")
    assert outcome.out.startswith(f"{path}: ")
    matrix = csr_array(load_npz(data / "tiny" / f"{name}.npz"))
    info = json.loads(oocpr_command("info", path, "--json", "-").out)
    assert set(info) >= INFO_KEYS
    assert info["edges"] == matrix.nnz
    assert info["dangling"] == (np.diff(matrix.indptr) == 0).sum()
    ranks = [row[1] for row in expected(data / "tiny" / f"{name}.ranks-0.85.csv")]
    found = json.loads(oocpr_command("rank", path, "--json", "-", "--tol", 1e-12).out)
    assert [entry["rank"] for entry in found["top"]] == pytest.approx(ranks, abs=1e-12)


@pytest.mark.long
def test_an_order_that_was_chosen_is_said_and_kept(oocpr_command: Run, data: Path, tmp_path: Path) -> None:
    path = tmp_path / "graph.zarr"
    made = oocpr_command("generate", "rmat", "--scale", 15, "-o", path, "--order", "auto")
    cost = r"([\d.]+) B/edge and (\d+) passes"
    told = re.search(rf"; order: by out-degree, {cost}; as in the source {cost}; by depth-first", made.out)
    assert told is not None
    assert float(told[1]) * int(told[2]) < float(told[3]) * int(told[4])
    assert re.search(r"^order +degree$", oocpr_command("info", path).out, re.MULTILINE)
    site = data / "tiny" / "site.txt"
    kept = oocpr_command("import", site, "-o", path, "--order", "auto", "--overwrite").out
    assert "; order: as in the source, " in kept
    assert json.loads(oocpr_command("info", path, "--json", "-").out)["order"] == "keep"
    assert "order: " not in oocpr_command("import", site, "-o", path, "--overwrite").out


@pytest.mark.long
def test_pages_are_ordered_by_host(oocpr_command: Run, tmp_path: Path) -> None:
    source, graph = tmp_path / "links.tsv", tmp_path / "graph.zarr"
    source.write_text("http://www.b.org/\thttps://a.org/x\nhttps://a.org/x\thttp://b.org/\n")
    assert oocpr_command("import", source, "-o", graph, "--order", "host").code == 0
    assert json.loads(oocpr_command("info", graph, "--json", "-").out)["order"] == "host"
    ranked = oocpr_command("rank", graph, "-o", "-").out
    nodes = [row["node"] for row in csv.DictReader(io.StringIO(ranked))]
    assert nodes == ["https://a.org/x", "http://www.b.org/", "http://b.org/"]


def test_info_for_people_has_the_same_numbers(oocpr_command: Run, store: Path) -> None:
    text = oocpr_command("info", store).out
    facts = json.loads(oocpr_command("info", store, "--json", "-").out)
    said = dict(re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in text.splitlines())
    assert said["nodes"] == "5"
    assert said["edges"] == "6"
    assert said["columns"].startswith(f"{facts['bytes_per_edge']:.3f} B/edge")
    assert said["names"] == "labels"
    assert set(facts["arrays"]) <= set(said)


def test_plan_is_printed_and_given_as_json(oocpr_command: Run, store: Path) -> None:
    outcome = oocpr_command("plan", store)
    assert outcome.code == 0
    assert "5 nodes, 6 edges" in outcome.out
    plan = json.loads(oocpr_command("plan", store, "--json", "-").out)
    assert set(plan) >= {"tiers", "passes", "predicted_seconds", "fits"}
    assert plan["fits"] is True
    assert plan["predicted_seconds"] > 0
    assert all(isinstance(size, int) for size in plan["tiers"].values())


def test_a_run_says_what_was_predicted_beside_what_was_found(oocpr_command: Run, store: Path) -> None:
    run = json.loads(oocpr_command("rank", store, "--method", "mixed", "--json", "-").out)
    assert set(run["predicted"]) == {"passes", "bytes_read", "peak_memory"}
    assert run["predicted"]["bytes_read"] == run["bytes_read"]
    assert run["pass_seconds"] > 0
    asked = oocpr_command("rank", store, "--method", "mixed", "--predict", "--json", "-")
    told = json.loads(asked.out)["predicted"]
    assert 0 < told["pass_seconds"] < told["seconds"]
    assert "predicted / found: a pass " in asked.err
    plan = oocpr_command("plan", store, "--method", "mixed").out
    assert re.search(r"^passes +about \d+; \d+ to \d+, by how slowly", plan, re.MULTILINE)
    assert re.search(r"^a pass +about .*, the first ", plan, re.MULTILINE)


def test_a_plan_that_does_not_fit_is_printed_and_refused(oocpr_command: Run, store: Path) -> None:
    outcome = oocpr_command("plan", store, "--memory", "10MiB", "--json", "-")
    assert outcome.code == 4
    assert json.loads(outcome.out)["fits"] is False
    assert "10 MiB" in outcome.err.splitlines()[-2]


def test_a_plan_says_if_ranks_could_not_be_written(store: Path) -> None:
    def planned(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "oocpr", "plan", str(store), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    outcome = planned("--json", "-")
    assert "what writes" not in outcome.stderr
    # Libraries that write files are loaded for that alone.
    outcome = planned("--memory", f"{(json.loads(outcome.stdout)['needed'] >> 20) + 8}MiB")
    assert "what writes ranks to a file does not fit: Give at least" in outcome.stderr
    assert outcome.returncode == 0
    # More than the run itself needs, which is less than what is written afterwards.
    outcome = planned("--memory", "200MiB")
    assert "what writes ranks to a file does not fit: Give at least" in outcome.stderr
    assert outcome.returncode == 4


def test_generated_graphs_depend_on_the_seed_alone(oocpr_command: Run, tmp_path: Path) -> None:
    words = ("generate", "rmat", "--scale", 8, "--edge-factor", 4)
    stores = [tmp_path / f"{k}.zarr" for k in range(4)]
    for path, more in zip(stores, [(), ("--memory", "2GiB"), ("--seed", 2), ("--no-permute",)], strict=True):
        assert oocpr_command(*words, *more, "-o", path).code == 0
    tiles = [(path / "in_edges" / "indices" / "c" / "0").read_bytes() for path in stores]
    assert tiles[0] == tiles[1]
    assert len(set(tiles)) == 3


def test_an_existing_store_is_replaced_only_when_asked(
    oocpr_command: Run, fails: Run, store: Path, data: Path
) -> None:
    source = data / "tiny" / "langville-meyer.txt"
    assert "exists" in fails(2, "import", source, "-o", store)
    assert oocpr_command("import", source, "-o", store, "--overwrite").code == 0
    assert json.loads(oocpr_command("info", store, "--json", "-").out)["nodes"] == 6


def test_a_run_begins_from_earlier_ranks(oocpr_command: Run, store: Path, tmp_path: Path) -> None:
    ranks = tmp_path / "ranks.csv"
    tiles = ("rank", store, "--method", "mixed", "--json", "-")
    cold = json.loads(oocpr_command(*tiles, "-o", ranks).out)
    warm = json.loads(oocpr_command(*tiles, "--start", ranks).out)
    assert warm["passes"] < cold["passes"]
    assert warm["error_bound"] <= 1e-10
    ranks.write_text("node,rank\nhome,-1\n")
    refused = oocpr_command(*tiles, "--start", ranks)
    assert refused.code == 2
    assert "the least is -1.0" in refused.err


def test_personalization_from_a_file_of_names(oocpr_command: Run, store: Path, tmp_path: Path) -> None:
    seeds = tmp_path / "seeds.txt"
    seeds.write_text("contact\n")
    plain = json.loads(oocpr_command("rank", store, "--json", "-").out)["top"]
    turned = json.loads(oocpr_command("rank", store, "--json", "-", "--personalization", seeds).out)["top"]
    rank = {entry["node"]: entry["rank"] for entry in turned}
    assert rank["contact"] > {entry["node"]: entry["rank"] for entry in plain}["contact"]
    assert sum(rank.values()) == pytest.approx(1, abs=1e-12)


IDS = ("-9223372036854775808", "-5", "7", "9223372036854775807")


@pytest.mark.parametrize("suffix", ["parquet", "csv", "zarr"])
def test_ids_of_64_bits_are_used_in_every_answer(oocpr_command: Run, tmp_path: Path, suffix: str) -> None:
    low, minus, seven, high = IDS
    source, graph, ranks = tmp_path / "links.txt", tmp_path / "graph.zarr", tmp_path / f"ranks.{suffix}"
    source.write_text(f"{low} {high}\n{minus} {high}\n{high} {seven}\n{seven} {high}\n")
    (tmp_path / "seeds.txt").write_text(f"{low} 1\n{high} 3\n")
    assert oocpr_command("import", source, "-o", graph, "--order", "degree").code == 0
    info = json.loads(oocpr_command("info", graph, "--json", "-").out)
    assert (info["nodes"], info["names"]) == (4, "ids of the source")
    answer = oocpr_command("rank", graph, "-o", ranks, "--personalization", tmp_path / "seeds.txt")
    assert [line.split()[2] for line in answer.out.splitlines()[:3]] == [high, seven, low]
    nodes = [entry["node"] for entry in json.loads(oocpr_command("top", ranks, "--json", "-").out)["top"]]
    assert sorted(nodes) == [int(node) for node in IDS]
    seeds = ("--personalization", tmp_path / "seeds.txt")
    assert oocpr_command("verify", graph, ranks, *seeds).code == 0


def test_names_are_used_in_every_answer(oocpr_command: Run, tmp_path: Path) -> None:
    source, graph, ranks = tmp_path / "links.tsv", tmp_path / "graph.zarr", tmp_path / "ranks.parquet"
    source.write_text("http://a.org/\thttp://b.org/é\nhttp://b.org/é\thttp://a.org/\n")
    (tmp_path / "seeds.txt").write_text("http://b.org/é\n")
    assert oocpr_command("import", source, "-o", graph, "--order", "degree").code == 0
    answer = oocpr_command("rank", graph, "-o", ranks, "--personalization", tmp_path / "seeds.txt")
    assert [line.split()[2] for line in answer.out.splitlines()[:2]] == ["http://b.org/é", "http://a.org/"]
    assert oocpr.read_ranks(ranks).top(1)[0][0] == "http://b.org/é"
    assert oocpr_command("verify", graph, ranks, "--personalization", tmp_path / "seeds.txt").code == 0


def test_columns_of_a_parquet_file_are_chosen(oocpr_command: Run, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"cites": ["b", "c"], "by": ["a", "a"], "year": [1, 2]}), tmp_path / "g.parquet")
    columns = ("--source-column", "by", "--target-column", "cites")
    ranked = oocpr_command("rank", tmp_path, *columns, "-o", "-").out
    assert [row["node"] for row in csv.DictReader(io.StringIO(ranked))] == ["a", "b", "c"]
    made = oocpr_command("import", tmp_path / "g.parquet", *columns, "-o", tmp_path / "g.zarr")
    assert made.out.startswith(f"{tmp_path}/g.zarr: 3 nodes, 2 edges")


def test_several_files_are_imported_as_one(oocpr_command: Run, tmp_path: Path) -> None:
    for k in range(3):
        (tmp_path / f"part-{k}.txt").write_text(f"{k} {k + 1}\n")
    output = ("-o", tmp_path / "g.zarr", "--overwrite")
    for words in ([f"{tmp_path}/part-*.txt"], sorted(tmp_path.glob("*.txt"))):
        assert oocpr_command("import", *words, *output).out.startswith(f"{tmp_path}/g.zarr: 4 nodes, 3 edges")


def test_a_pipe_is_imported(process: Run, tmp_path: Path) -> None:
    started = process("import", "-", "-o", tmp_path / "g.zarr", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    out, _ = started.communicate(b"0 1\n1 2\n")
    assert started.returncode == 0
    assert b"3 nodes, 2 edges" in out


def test_names_that_the_labels_lack_are_refused_with_their_line(fails: Run, tmp_path: Path) -> None:
    (tmp_path / "links.tsv").write_text("# from to\na\tb\n\nb\tx\n")
    (tmp_path / "all.txt").write_text("a\nb\n")
    words = ("import", tmp_path / "links.tsv", "--labels", tmp_path / "all.txt", "-o", tmp_path / "g.zarr")
    assert fails(2, *words).endswith(f"links.tsv, line 4: 'x' is not in {tmp_path / 'all.txt'}.")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_worth_reading(oocpr_command: Run, command: str) -> None:
    outcome = oocpr_command(*command.split(), "--help")
    assert (outcome.code, outcome.err) == (0, "")
    assert "Examples:" in outcome.out
    assert f"  oocpr {command} " in outcome.out
    assert "--debug" in outcome.out
    assert "-v, --verbose" in outcome.out
    assert all(len(line) <= 110 for line in outcome.out.splitlines())


def named(words: list[str]) -> tuple[Any, list[str]]:
    """The command that the words of a shell name, and the words behind it."""
    found: Any = cli
    while isinstance(found, click.Group):
        found, words = found.commands[words[0]], words[1:]
    return found, words


def test_every_example_of_the_help_parses() -> None:
    for command in COMMANDS:
        expected, _ = named(command.split())
        examples = [line.strip() for line in expected.examples.strip().splitlines()]
        assert f"oocpr {command} " in examples[0]
        for example in examples:
            program, *words = example.split("|")[0].split("<")[0].split()
            assert program == "oocpr"
            found, rest = named(words)
            found.make_context(found.name, rest)


def test_every_option_says_its_default_or_that_it_has_none(oocpr_command: Run) -> None:
    text = " ".join(oocpr_command("rank", "--help").out.split())
    for default in (
        "0.85",
        "1e-10",
        "certified",
        "auto",
        "bits16",
        "strongly",
        "all nodes alike",
        "ample",
        "10",
    ):
        assert f"[default: {default}" in text


def test_help_names_all_that_the_library_knows(oocpr_command: Run) -> None:
    rank, load = (" ".join(oocpr_command(command, "--help").out.split()) for command in ("rank", "import"))
    for word in (*METHODS, *READS, *DANGLING, *STOPS, *FORMATS):
        assert re.search(rf"\b{word}\b", rank), word
    for word in (*ORDERS, *FORMATS):
        assert re.search(rf"\b{word}\b", load), word


def test_main_help_lists_the_exit_codes_and_commands(oocpr_command: Run) -> None:
    text = oocpr_command("--help").out
    for code in EXIT_CODES:
        assert re.search(rf"^  {code} ", text, re.MULTILINE)
    for command in COMMANDS:
        assert re.search(rf"^  {command.split()[0]} ", text, re.MULTILINE)
    # A first sentence that does not fit in the list would end in dots.
    assert "..." not in text.partition("Commands:")[2]


def test_without_a_command_there_is_help_and_exit_code_2(oocpr_command: Run) -> None:
    outcome = oocpr_command()
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("Usage: oocpr")


@pytest.mark.parametrize("words", [("rank", "-v"), ("-v", "rank")])
def test_verbose_logs_the_plan_to_standard_error(
    oocpr_command: Run, store: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logging.getLogger("oocpr")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "level", logging.WARNING)
    outcome = oocpr_command(*words, store, "--json", "-")
    assert json.loads(outcome.out)["converged"]
    assert "oocpr.api.ranking: plan of the run:" in outcome.err


def test_what_a_source_leaves_out_is_told(oocpr_command: Run, tmp_path: Path) -> None:
    head = "%%MatrixMarket matrix coordinate real general\n"
    (tmp_path / "weighted.mtx").write_text(f"{head}2 2 2\n1 2 0.5\n2 1 3\n")
    words = [("import", "-o", tmp_path / "graph.zarr"), ("rank",)]
    for command, *more in words:
        outcome = oocpr_command(command, tmp_path / "weighted.mtx", *more)
        assert outcome.code == 0
        assert re.search(r"^note: .*values", outcome.err, re.MULTILINE)


def test_a_tie_or_a_control_character_cannot_forge_the_table(oocpr_command: Run, tmp_path: Path) -> None:
    (tmp_path / "links.txt").write_text("0 1\n1 0\n")
    (tmp_path / "names.txt").write_text("red \x1b[31m\nmutex_lock\tkernel/mutex.c\n", newline="")
    out = oocpr_command("rank", tmp_path / "links.txt", "--labels", tmp_path / "names.txt").out
    assert "\x1b" not in out
    assert len(out.splitlines()) == 3


@pytest.mark.parametrize("command", ["rank", "plan"])
def test_help_lists_the_kernels(oocpr_command: Run, command: str) -> None:
    # Lines may end behind the hyphens of names.
    out = "".join(oocpr_command(command, "--help").out.split())
    assert all(name in out for name in KERNELS)


def test_main_is_what_python_m_runs(process: Run, store: Path) -> None:
    done = process("info", store, "--json", "-", stdout=-1)
    out, _ = done.communicate()
    assert done.returncode == 0
    assert json.loads(out)["nodes"] == 5


def test_the_program_takes_its_words_from_the_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["oocpr", "--version"])
    assert main() == 0
    assert capsys.readouterr().out == f"oocpr {oocpr.__version__}\n"
