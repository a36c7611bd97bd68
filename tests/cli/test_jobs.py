"""Jobs as a scheduler runs them: night after night, interrupted, with broken files, and watched."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from crc32c import crc32c
from numpy.typing import NDArray
from prometheus_client.parser import text_string_to_metric_families

import oocpr
from oocpr.errors import DoesNotFitError
from oocpr.sources.rmat import Rmat
from oocpr.units import format_seconds

from ..serving import serving_files

if TYPE_CHECKING:
    Run = Callable[..., Any]

NODES = 120
JOB = """
[import]
source = "edges.txt"
[append]
source = "days/*.txt"
[rank]
method = "mixed"
[compare]
top = 10
[publish]
metrics = "web.prom"
"""


def exact(*parts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Ranks of the edges of all parts by a direct solve, by node."""
    src, dst = np.unique(np.concatenate(parts), axis=0).T
    out = np.bincount(src, minlength=NODES)
    walk = np.zeros((NODES, NODES))
    walk[dst, src] = 1 / out[src]
    walk[:, out == 0] = 1 / NODES
    ranks = np.linalg.solve(np.eye(NODES) - 0.85 * walk, np.full(NODES, 0.15 / NODES))
    return ranks / ranks.sum()


class Night:
    """A folder with a job, and what its runs say."""

    def __init__(self, folder: Path, command: Run) -> None:
        self.folder, self._command = folder, command
        self.results = folder / "web"
        self.err = ""
        (folder / "days").mkdir()
        self._random = np.random.default_rng(3)
        ring = np.stack((np.arange(NODES), np.roll(np.arange(NODES), 1)), axis=1)
        self.parts = [self.write("edges.txt", np.concatenate((ring, self.draw(600))))]
        self.job(JOB)

    def draw(self, count: int) -> NDArray[np.int64]:
        """Random edges, more to nodes of small numbers."""
        ends = self._random.integers(0, NODES, (count, 2))
        ends[:, 1] = ends[:, 1] ** 2 // NODES
        return ends

    def write(self, name: str, edges: NDArray[np.int64]) -> NDArray[np.int64]:
        np.savetxt(self.folder / name, edges, "%d")
        return edges

    def day(self, name: str, count: int = 30) -> None:
        """Have a file of new edges come."""
        self.parts.append(self.write(f"days/{name}.txt", self.draw(count)))

    def job(self, text: str) -> None:
        (self.folder / "web.toml").write_text(text)

    def run(self, code: int, *words: str) -> dict[str, Any]:
        """Run the job, and return its one line of summary."""
        done = self._command("run", self.folder / "web.toml", *words)
        assert done.code == code, done.err
        self.err = done.err
        (line,) = done.out.splitlines()
        summary: dict[str, Any] = json.loads(line)
        assert summary["exit_code"] == code
        return summary

    @property
    def latest(self) -> str:
        return os.readlink(self.results / "latest")  # noqa: PTH115 - a name, not a path

    def check_ranks(self) -> None:
        """Compare the published ranks with a direct solve over all edges."""
        ranks = oocpr.read_ranks(self.results / "latest" / "ranks.parquet")
        found = np.zeros(NODES)
        for node, rank in ranks.top(NODES):
            found[int(node)] = rank
        assert ranks.error_bound is not None
        assert ranks.error_bound <= 1e-10
        assert np.abs(found - exact(*self.parts)).sum() <= ranks.error_bound + 1e-13

    def metrics(self) -> dict[str, float]:
        families = text_string_to_metric_families((self.folder / "web.prom").read_text())
        return {sample.name: sample.value for family in families for sample in family.samples}


@pytest.fixture
def night(tmp_path: Path, oocpr_command: Run) -> Night:
    return Night(tmp_path, oocpr_command)


def log_lines(err: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in err.splitlines()]


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Times and bytes of every file of a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def test_nights_import_append_and_do_nothing(night: Night) -> None:
    night.day("monday")
    first = night.run(0)
    assert (first["outcome"], list(first["steps"])) == ("published", ["import", "append", "rank", "publish"])
    assert first["run"]["converged"]
    night.check_ranks()
    before = contents(night.results / night.latest)
    assert night.run(0)["outcome"] == "unchanged"
    assert contents(night.results / night.latest) == before

    night.day("tuesday")
    second = night.run(0)
    assert list(second["steps"]) == ["append", "rank", "compare", "publish"]
    assert second["appended"] == [str(night.folder / "days" / "tuesday.txt")]
    night.check_ranks()
    gap = np.abs(exact(*night.parts) - exact(*night.parts[:-1])).sum()
    assert second["comparison"]["distance"] == pytest.approx(gap, abs=3e-10)
    mover = second["comparison"]["movers"][0]
    change = exact(*night.parts) - exact(*night.parts[:-1])
    assert int(mover["node"]) == np.abs(change).argmax()
    assert mover["rank"] - mover["other_rank"] == pytest.approx(change[int(mover["node"])], abs=3e-10)
    metrics = night.metrics()
    assert metrics["oocpr_comparison_l1_distance"] == second["comparison"]["distance"]
    assert metrics["oocpr_rank_passes"] == second["run"]["passes"]

    # A file may go once its edges are in the graph.
    (night.folder / "days" / "monday.txt").unlink()
    assert night.run(0)["outcome"] == "unchanged"
    assert night.metrics()["oocpr_rank_passes"] == second["run"]["passes"]


def test_a_replaced_source_is_imported_anew(night: Night) -> None:
    night.day("monday")
    night.run(0)
    night.parts[0] = night.write("edges.txt", night.draw(900))
    summary = night.run(0)
    assert "edges.txt was replaced" in summary["reason"]
    assert list(summary["steps"]) == ["import", "append", "rank", "compare", "publish"]
    night.check_ranks()


def test_rankings_without_an_order_are_the_same(night: Night) -> None:
    night.job(
        '[import]\nsource = "edges.txt"\n[compare]\nmin_kendall_tau = 0.9\n[publish]\nmetrics = "web.prom"'
    )
    ring = np.array([[1, 2], [2, 3], [3, 1]])
    night.write("edges.txt", ring)
    night.run(0)
    night.write("edges.txt", ring[:, ::-1])
    assert night.run(0)["comparison"]["kendall_tau"] == 1
    assert night.metrics()["oocpr_comparison_kendall_tau"] == 1
    night.write("edges.txt", np.append(ring, [[1, 3]], axis=0))
    refused = night.run(10)
    assert "Kendall's tau is undefined, as one of the rankings has the same rank" in refused["error"]["cause"]
    assert refused["comparison"]["kendall_tau"] is None
    # JSON has no NaN, and Prometheus has.
    assert "NaN" not in (night.results / "last-run.json").read_text()
    assert np.isnan(night.metrics()["oocpr_comparison_kendall_tau"])


def test_other_settings_rank_the_same_graph(night: Night) -> None:
    night.run(0)
    tile = next((night.results / "latest" / "graph.zarr" / "in_edges" / "indices").rglob("0"))
    inode = tile.stat().st_ino
    night.job(JOB.replace('"mixed"', '"residual"'))
    summary = night.run(0)
    assert list(summary["steps"]) == ["link", "rank", "compare", "publish"]
    assert summary["run"]["method"] == "residual"
    tile = next((night.results / "latest" / "graph.zarr" / "in_edges" / "indices").rglob("0"))
    assert tile.stat().st_ino == inode
    night.check_ranks()


@pytest.mark.parametrize("name", ["edges.txt", "days/monday.txt"])
def test_a_broken_file_leaves_the_last_result_published(night: Night, name: str) -> None:
    night.run(0)
    before, at = contents(night.results / night.latest), night.latest
    good = (night.folder / name).read_text() if (night.folder / name).exists() else "5 7\n"
    (night.folder / name).write_text(good + "this is no edge at all\n")
    summary = night.run(2)
    assert summary["outcome"] == "failed"
    assert name.rpartition("/")[2] in summary["error"]["cause"]
    (error,) = (line for line in log_lines(night.err) if line["level"] == "error")
    assert (error["message"], error["remedy"]) == (summary["error"]["cause"], summary["error"]["remedy"])
    assert (night.latest, contents(night.results / at)) == (at, before)
    metrics = night.metrics()
    assert (metrics["oocpr_job_exit_code"], metrics["oocpr_job_published"]) == (2, 0)
    assert metrics["oocpr_job_last_success_timestamp_seconds"] < metrics["oocpr_job_ended_timestamp_seconds"]
    assert not (night.results / "lock").exists()
    (night.folder / name).write_text(good)
    assert night.run(0)["outcome"] == "published"


def test_an_import_that_is_kept_goes_on_with_the_job(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise DoesNotFitError("the disk is full.", "Make room.")

    with monkeypatch.context() as patched:
        patched.setattr("oocpr.ingest.build.Pipeline.write_tiles", full)
        error = night.run(4)["error"]
    assert error["remedy"] == "Make room. Run the job again: it goes on."
    assert night.run(0)["outcome"] == "published"


def test_metrics_that_cannot_be_written_are_how_a_run_has_ended(night: Night) -> None:
    night.run(0)
    (night.folder / "web.prom").unlink()
    (night.folder / "web.prom").symlink_to("/dev/full")
    summary = night.run(4)
    assert "web.prom cannot be written" in summary["error"]["cause"]
    assert summary["last_success"] < summary["ended"]
    assert json.loads((night.results / "last-run.json").read_text()) == summary


def test_metrics_tell_of_a_run_whose_folder_is_full(night: Night) -> None:
    night.run(0)
    (night.results / "last-run.json").unlink()
    (night.results / "last-run.json").mkdir()
    (night.folder / "edges.txt").write_text("no edge at all\n")
    assert "edges.txt" in night.run(2)["error"]["cause"]
    assert night.metrics()["oocpr_job_exit_code"] == 2
    assert any("last-run.json cannot be written" in line["message"] for line in log_lines(night.err))


def test_metrics_tell_of_a_result_whose_figures_are_damaged(night: Night) -> None:
    good = night.run(0)
    (night.results / "latest" / "summary.json").write_text("{")
    for code in (5, 2):
        summary = night.run(code)
        metrics = night.metrics()
        assert metrics["oocpr_job_exit_code"] == code
        assert metrics["oocpr_job_last_success_timestamp_seconds"] == summary["last_success"] == good["ended"]
        assert any("summary.json is not what was" in line["message"] for line in log_lines(night.err))
        (night.folder / "edges.txt").write_text("no edge at all\n")


def test_a_source_that_is_missing_leaves_the_last_result_published(night: Night) -> None:
    night.run(0)
    at = night.latest
    (night.folder / "edges.txt").rename(night.folder / "moved.txt")
    assert "edges.txt does not exist" in night.run(2)["error"]["cause"]
    assert night.latest == at
    (night.folder / "moved.txt").rename(night.folder / "edges.txt")
    assert night.run(0)["outcome"] == "unchanged"


def test_ranks_past_the_limits_are_not_published_until_they_are_accepted(night: Night) -> None:
    night.job(JOB.replace("top = 10", "top = 10\nmax_distance = 0.001\nmin_overlap = 0.99"))
    night.run(0)
    at = night.latest
    night.day("monday", 200)
    refused = night.run(10)
    assert refused["outcome"] == "refused"
    assert len(refused["limits"]) >= 1
    assert "max_distance is 0.001" in refused["error"]["cause"]
    assert night.latest == at
    assert night.metrics()["oocpr_job_exit_code"] == 10
    # The same again is refused without being ranked again.
    again = night.run(10)
    assert list(again["steps"]) == []
    assert again["comparison"] == refused["comparison"]
    accepted = night.run(0, "--accept")
    assert list(accepted["steps"]) == ["compare", "publish"]
    assert any(
        line["level"] == "warning" and "max_distance" in line["message"] for line in log_lines(night.err)
    )
    assert night.latest > at
    night.check_ranks()


def test_a_refused_night_makes_way_for_better_files(night: Night) -> None:
    night.job(JOB.replace("top = 10", "top = 10\nmax_distance = 0.05"))
    night.run(0)
    night.day("monday", 600)
    night.run(10)
    night.parts.pop()
    night.day("monday", 2)
    assert list(night.run(0)["steps"]) == ["append", "rank", "compare", "publish"]
    night.check_ranks()


def test_ranks_that_do_not_converge_are_not_published_and_go_on(night: Night) -> None:
    night.job(JOB.replace("[rank]", "[rank]\nmax_passes = 2"))
    summary = night.run(3)
    assert (summary["outcome"], summary["run"]["passes"]) == ("failed", 2)
    assert night.results.is_dir()
    assert not (night.results / "latest").exists()
    night.job(JOB.replace("[rank]", "[rank]\nmax_passes = 900"))
    assert night.run(0)["outcome"] == "published"
    assert night.metrics()["oocpr_job_last_success_timestamp_seconds"] > 0


def test_a_dry_run_names_metrics_that_could_not_be_written(night: Night) -> None:
    night.job(JOB.replace('"web.prom"', '"away/web.prom"'))
    for words in ((), ("--dry-run",)):
        assert "away/web.prom lies in a folder that does not exist" in night.run(2, *words)["error"]["cause"]


def test_a_dry_run_changes_nothing(night: Night) -> None:
    before = contents(night.folder)
    summary = night.run(0, "--dry-run")
    assert (summary["outcome"], summary["planned"]) == ("dry run", ["import", "rank", "publish"])
    assert contents(night.folder) == before
    assert not night.results.exists()
    night.run(0)
    night.day("monday")
    before = contents(night.folder)
    summary = night.run(0, "--dry-run")
    assert summary["planned"] == ["append", "rank", "compare", "publish"]
    assert any("needed / given" in line["message"] for line in log_lines(night.err))
    assert contents(night.folder) == before


def test_a_plan_that_does_not_fit_ends_before_the_ranking(night: Night) -> None:
    night.job('memory = "20MiB"' + JOB)
    summary = night.run(4)
    assert "memory" in summary["error"]["cause"]


def test_a_graph_that_cannot_be_ranked_makes_room_for_better_files(night: Night) -> None:
    (night.folder / "p.tsv").write_text("5\n")
    night.job(JOB.replace("[rank]\n", '[rank]\npersonalization = "p.tsv"\n'))
    night.run(0)
    whole = (night.folder / "edges.txt").read_text()
    (night.folder / "edges.txt").write_text("1 2\n2 1\n")
    for _ in range(2):
        assert "node 5" in night.run(2)["error"]["cause"]
    (night.folder / "edges.txt").write_text(whole)
    assert night.run(0)["outcome"] == "published"


def test_ranks_of_other_nodes_are_no_start_and_no_error(night: Night) -> None:
    night.job(JOB.replace("[compare]\ntop = 10\n", ""))
    night.run(0)
    (night.folder / "edges.txt").write_text("1000 1001\n1001 1000\n")
    night.run(0)
    assert "has no rank of any node of the graph. The ranking does not begin with them." in night.err
    (night.results / "latest" / "ranks.parquet").write_bytes(b"PAR1 and no more")
    night.write("edges.txt", night.parts[0])
    night.run(0)
    assert "ranks.parquet cannot be read" in night.err
    night.check_ranks()


def test_damaged_ranks_that_are_to_be_compared_with_may_be_removed(night: Night) -> None:
    night.run(0)
    ranks = night.results / "latest" / "ranks.parquet"
    ranks.write_bytes(b"PAR1 and no more")
    night.day("monday")
    error = night.run(2)["error"]
    assert "ranks.parquet cannot be read" in error["cause"]
    assert "remove it" in error["remedy"]
    ranks.unlink()
    assert night.run(0)["outcome"] == "published"
    night.check_ranks()


@pytest.mark.parametrize("form", ["text", "json"])
def test_debug_shows_where_a_run_has_failed(night: Night, form: str) -> None:
    (night.folder / "edges.txt").unlink()
    night.run(2, "--log", form)
    assert "Traceback" not in night.err
    night.run(2, "--log", form, "--debug")
    assert "Traceback" in night.err
    assert "oocpr.errors.InputError: " in night.err
    assert "NoneType" not in night.err


def test_files_that_have_gone_before_an_import_anew_are_named(night: Night) -> None:
    night.day("monday")
    night.run(0)
    (night.folder / "days/monday.txt").unlink()
    night.parts = [night.write("edges.txt", night.parts[0][::-1])]
    night.run(0)
    assert "will not have the edges of files that were added and are gone" in night.err
    assert "days/monday.txt" in night.err
    night.check_ranks()


def test_a_refused_file_that_is_taken_away_is_forgotten(night: Night) -> None:
    night.job(JOB.replace("top = 10", "top = 10\nmax_distance = 0.001"))
    night.run(0)
    night.day("bad", 300)
    night.run(10)
    night.run(10)
    (night.folder / "days/bad.txt").unlink()
    night.parts.pop()
    assert night.run(0)["outcome"] == "unchanged"
    night.check_ranks()


def test_labels_beside_the_source_are_watched(night: Night) -> None:
    night.job('[import]\nsource = "edges.txt"\n')
    for letter in "ab":
        labels = "".join(f"{letter}{node}\n" for node in range(NODES))
        (night.folder / "edges.labels.txt").write_text(labels)
        night.run(0)
        (top,) = oocpr.read_ranks(night.results / "latest" / "ranks.parquet").top(1)
        assert str(top[0]).startswith(letter)
    assert night.run(0)["outcome"] == "unchanged"


def test_a_pattern_that_fits_the_source_adds_it_once(night: Night) -> None:
    night.job('[import]\nsource = "edges.txt"\n[append]\nsource = "*.txt"\n[rank]\nmethod = "mixed"\n')
    night.run(0)
    assert night.run(0)["outcome"] == "unchanged"
    night.parts.append(night.write("more.txt", night.draw(20)))
    assert night.run(0)["appended"] == [str(night.folder / "more.txt")]
    night.check_ranks()


def test_jobs_with_one_folder_for_what_is_temporary_do_not_meet(night: Night) -> None:
    night.job('tmp = "scratch"\n' + JOB)
    night.run(0)
    assert list((night.folder / "scratch").iterdir()) == []
    left = night.folder / "scratch" / "graph.zarr.unfinished"
    left.mkdir()
    (left / "of another job").touch()
    night.day("monday")
    night.run(0)
    night.check_ranks()
    assert list(left.iterdir()) == [left / "of another job"]


def test_more_passes_go_on_after_those_that_were_too_few(night: Night) -> None:
    few = JOB.replace("[rank]\n", "[rank]\nmax_passes = 3\n")
    night.job(few)
    assert night.run(3)["run"]["passes"] == 3
    night.job(few.replace("max_passes = 3", "max_passes = 100\ntol = 1e-11"))
    night.run(0, "-v")
    assert "going on after pass 3" in night.err
    night.check_ranks()


def zeros_in_ranks(checkpoint: Path) -> None:
    (chunk,) = checkpoint.glob("pass-*/stripe-0/ranks/c/0")
    chunk.write_bytes(bytes(chunk.stat().st_size))


def of_another_version(checkpoint: Path) -> None:
    document = checkpoint / "checkpoint.json"
    facts = json.loads(json.loads(document.read_text())["facts"]) | {"format": 1}
    text = json.dumps(facts)
    document.write_text(json.dumps({"facts": text, "crc32c": crc32c(text.encode())}))


@pytest.mark.parametrize("change", [zeros_in_ranks, of_another_version])
def test_a_checkpoint_that_cannot_be_read_makes_a_ranking_begin_anew(
    night: Night, change: Callable[[Path], None]
) -> None:
    few = JOB.replace("[rank]\n", "[rank]\nmax_passes = 3\n")
    night.job(few)
    night.run(3)
    change(night.results / "unfinished" / "checkpoint")
    night.job(few.replace("max_passes = 3", "max_passes = 100"))
    night.run(0)
    assert "The ranking begins anew." in night.err
    night.check_ranks()


@pytest.mark.parametrize("left", [None, b"PAR1 and no more"])
def test_ranks_that_have_gone_since_a_ranking_began_with_them_make_it_begin_anew(
    night: Night, left: bytes | None
) -> None:
    night.run(0)
    ranks = night.results / "latest" / "ranks.parquet"
    night.day("monday")
    night.job(JOB.replace("[rank]\n", "[rank]\nmax_passes = 2\n").replace("[compare]\ntop = 10\n", ""))
    night.run(3)
    if left is None:
        ranks.unlink()
    else:
        ranks.write_bytes(left)
    night.job(JOB.replace("[compare]\ntop = 10\n", ""))
    night.run(0)
    assert "is of a run with start" in night.err
    assert "The ranking begins anew." in night.err
    night.check_ranks()


def test_patterns_may_fit_no_file_or_the_same_ones(night: Night) -> None:
    night.job(JOB.replace('"days/*.txt"', '["days/*.txt", "more*.txt", "days/m*.txt"]'))
    night.day("monday")
    night.run(0)
    night.check_ranks()
    night.parts.append(night.write("more1.txt", night.draw(20)))
    night.run(0)
    (night.folder / "more1.txt").unlink()
    night.day("martes")
    assert night.run(0)["appended"] == [str(night.folder / "days" / "martes.txt")]
    night.check_ranks()


def test_a_file_that_fits_two_patterns_counts_once(night: Night) -> None:
    edges = np.column_stack((night.parts[0], np.arange(len(night.parts[0])) % 7 + 1))
    np.savetxt(night.folder / "edges.txt", edges, "%d")
    found = []
    for source in ('"edges.txt"', '["edges.txt", "e*.txt"]'):
        night.job(f"folder = 'f{len(found)}'\n[import]\nsource = {source}\nweight = '3'\n")
        night.run(0)
        found.append(oocpr.read_ranks(night.folder / f"f{len(found)}" / "latest" / "ranks.parquet").top(9))
    assert found[0] == found[1]


def test_old_results_go(night: Night) -> None:
    night.job(JOB + "keep = 2\n")
    for name in ("a", "b", "c"):
        night.day(name)
        night.run(0)
    kept = sorted(path.name for path in night.results.iterdir() if path.is_dir() and not path.is_symlink())
    assert len(kept) == 2
    assert kept[-1] == night.latest
    assert [(night.results / name / "graph.zarr").exists() for name in kept] == [False, True]
    assert sorted(path.name for path in (night.results / kept[0]).iterdir()) == [
        ".published", "inputs.json", "ranks.parquet", "report.html", "summary.json",
    ]  # fmt: skip


@pytest.mark.parametrize("change", ["day", "rank"])
def test_a_job_that_goes_back_to_a_result_without_its_graph_imports_anew(night: Night, change: str) -> None:
    night.run(0)
    first = night.latest
    night.day("1-monday")
    night.run(0)
    (night.results / "latest").unlink()
    (night.results / "latest").symlink_to(first)
    assert not (night.results / first / "graph.zarr").exists()
    (night.folder / "days" / "1-monday.txt").unlink()
    night.parts.pop()
    if change == "rank":
        night.job(JOB.replace('"mixed"', '"residual"'))
    else:
        night.day("2-tuesday")
    assert "has no graph any more" in night.run(0)["reason"]
    night.check_ranks()


def test_a_copy_of_a_job_that_has_followed_links_is_named(night: Night) -> None:
    night.run(0)
    shutil.copytree(night.results, night.folder / "copy")
    shutil.rmtree(night.results)
    (night.folder / "copy").rename(night.results)
    error = night.run(2)["error"]
    assert "latest is a folder and no link" in error["cause"]
    shutil.rmtree(night.results / "latest")
    assert night.run(0)["outcome"] == "unchanged"
    night.check_ranks()


def test_an_unfinished_run_whose_graph_was_removed_imports_anew(night: Night) -> None:
    night.run(0)
    night.day("1-monday")
    night.job('tmp = "edges.txt"' + JOB)
    assert "edges.txt" in night.run(2)["error"]["cause"]
    assert (night.results / "unfinished" / "inputs.json").exists()
    shutil.rmtree(night.results / "latest" / "graph.zarr")
    night.job(JOB)
    assert "has no graph any more" in night.run(0)["reason"]
    night.check_ranks()


def test_ranks_are_csv_without_a_report_if_asked_for(night: Night) -> None:
    night.job(JOB + 'ranks = "all.csv"\nreport = ""\ntop = 3\n')
    night.run(0)
    night.day("monday")
    night.run(0)
    with (night.results / "latest" / "all.csv").open() as file:
        found = {int(row["node"]): float(row["rank"]) for row in csv.DictReader(file)}
    wanted = exact(*night.parts)
    assert sum(abs(found[node] - wanted[node]) for node in range(NODES)) <= 1e-10
    assert not (night.results / "latest" / "report.html").exists()
    summary = json.loads((night.results / "latest" / "summary.json").read_text())
    assert [entry["node"] for entry in summary["top"]] == np.argsort(-wanted)[:3].tolist()


def test_a_job_that_cannot_be_read_says_its_key_in_the_log_and_the_summary(night: Night) -> None:
    night.job(JOB.replace("method", "metod"))
    summary = night.run(2)
    assert summary["error"]["cause"] == "web.toml: [rank] has no key 'metod'."
    assert summary["error"]["remedy"] == "Did you mean 'method'?"
    (line,) = log_lines(night.err)
    assert (line["level"], line["message"]) == ("error", summary["error"]["cause"])


def test_a_person_reads_lines_and_levels_leave_some_out(night: Night) -> None:
    night.run(0, "--log", "text")
    assert re.search(
        r"^\d\d:\d\d:\d\d there is no result yet: import, rank, publish$", night.err, re.MULTILINE
    )
    assert re.search(r"^\d\d:\d\d:\d\d plan of the run:$", night.err, re.MULTILINE)
    night.day("monday")
    night.run(0, "--log", "text", "--log-level", "warning")
    assert night.err == ""
    (night.folder / "edges.txt").unlink()
    night.run(2, "--log", "text", "--log-level", "error")
    cause, remedy = night.err.splitlines()
    assert cause.startswith("error: ")
    assert remedy.startswith("remedy: ")


def test_json_lines_have_levels_times_and_figures(night: Night) -> None:
    night.run(0)
    lines = log_lines(night.err)
    assert {line["level"] for line in lines} == {"info"}
    assert all(re.fullmatch(r"[\d-]+T[\d:.]+\+00:00", line["time"]) for line in lines)
    assert [line["time"] for line in lines] == sorted(line["time"] for line in lines)
    (certified,) = (line for line in lines if line["message"].startswith("certified"))
    assert certified["run"]["error_bound"] <= 1e-10


def test_status_of_a_job_that_does_not_run(night: Night, oocpr_command: Run) -> None:
    path = night.folder / "web.toml"
    assert oocpr_command("status", path).out == "web: not running\npublished: nothing yet\n"
    night.run(0)
    (night.folder / "edges.txt").write_text("x\n")
    night.run(2)
    known = json.loads(oocpr_command("status", path, "--json", "-").out)
    assert (known["state"], known["published"], known["last_run"]["exit_code"]) == ("idle", night.latest, 2)
    assert "last run: failed, exit code 2, " in oocpr_command("status", path).out


SECRET = "hush-hush"


def test_secrets_of_urls_are_nowhere(night: Night, oocpr_command: Run) -> None:
    with serving_files(night.folder) as address:
        url = f"{address}/edges.txt?token={SECRET}&X-Amz-Signature={SECRET}"
        night.job(JOB.replace('"edges.txt"', f'"{url}"'))
        said = [json.dumps(night.run(0, "-v")), night.err]
        night.job(JOB.replace('"edges.txt"', f'"{url}"').replace('"mixed"', '"residual"\nmax_passes = 2'))
        # A checkpoint is left.
        said += [json.dumps(night.run(3, "--log", "text", "-v")), night.err]
        said += [json.dumps(night.run(0, "--dry-run")), night.err]
        said.append(oocpr_command("status", night.folder / "web.toml").out)
        (night.folder / "edges.txt").unlink()
        said += [json.dumps(night.run(2)), night.err]
    assert any("token=***" in text for text in said)
    files = {str(path): path.read_bytes() for path in night.folder.rglob("*") if path.is_file()}
    assert any("checkpoint.json" in name for name in files)
    del files[str(night.folder / "web.toml")]
    assert [name for name, text in files.items() if SECRET.encode() in text] == []
    assert [text for text in said if SECRET in text] == []


BIG = """
[import]
source = "edges.npy"
[rank]
method = "residual"
tol = 1e-12
[compare]
"""


@pytest.fixture
def big(tmp_path: Path) -> Path:
    """A job over an R-MAT graph whose import and ranking take some tenths of a second."""
    blocks = [np.stack((block.src, block.dst), axis=1) for block in Rmat(16).blocks(1 << 22)]
    np.save(tmp_path / "edges.npy", np.concatenate(blocks))
    (tmp_path / "web.toml").write_text(BIG)
    return tmp_path / "web.toml"


def wait_until(holds: Callable[[dict[str, Any]], bool], job: Path, done: subprocess.Popen[bytes]) -> None:
    """Wait until what a job writes of itself is so."""
    end = time.monotonic() + 60
    while True:
        try:
            position = json.loads((job.with_suffix("") / "progress.json").read_text())
        except (OSError, ValueError):
            position = {}
        if position and holds(position):
            return
        assert done.poll() is None
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.mark.long
def test_a_job_that_is_killed_anywhere_goes_on_to_the_same_ranks(
    process: Run, oocpr_command: Run, big: Path, tmp_path: Path
) -> None:
    undisturbed = oocpr.pagerank(tmp_path / "edges.npy", method="residual", tol=1e-12, stripes=None)
    for step in ("import", "rank"):
        done = process("run", big, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(lambda at, step=step: at["step"] == step and bool(at["stage"]), big, done)
        done.send_signal(signal.SIGSTOP)
        status = oocpr_command("status", big).out
        assert "web: running for" in status
        assert f"{step}: " in status
        done.kill()
        done.wait()
        assert (tmp_path / "web" / "lock").exists()
        assert "not running" in oocpr_command("status", big).out
    outcome = oocpr_command("run", big)
    assert outcome.code == 0
    taken = [line for line in log_lines(outcome.err) if "was taken over" in line["message"]]
    assert (len(taken), taken[0]["level"]) == (1, "warning")
    ranks = oocpr.read_ranks(tmp_path / "web" / "latest" / "ranks.parquet")
    assert np.abs(ranks.to_numpy() - undisturbed.to_numpy()).sum() <= 2e-12
    left = sorted(path.name for path in (tmp_path / "web").iterdir())
    assert left[1:] == ["last-run.json", "latest"]


@pytest.mark.long
def test_a_job_that_runs_is_not_run_twice(process: Run, oocpr_command: Run, big: Path) -> None:
    done = process("run", big, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    wait_until(lambda at: at["step"] == "rank", big, done)
    done.send_signal(signal.SIGSTOP)
    outcome = oocpr_command("run", big)
    assert outcome.code == 9
    assert json.loads(outcome.out)["outcome"] == "running"
    assert f"process {done.pid} on " in log_lines(outcome.err)[-1]["message"]
    assert not (big.with_suffix("") / "last-run.json").exists()
    done.send_signal(signal.SIGCONT)
    out, _ = done.communicate(timeout=60)
    assert (done.returncode, json.loads(out)["outcome"]) == (0, "published")


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_job_that_is_interrupted_ends_with_130_and_goes_on(
    process: Run, oocpr_command: Run, big: Path, number: signal.Signals
) -> None:
    done = process("run", big, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_until(lambda at: at["stage"] == "ranking" and at["done"] > 0, big, done)
    done.send_signal(number)
    out, err = done.communicate(timeout=60)
    assert (done.returncode, json.loads(out)["outcome"]) == (130, "interrupted")
    assert log_lines(err.decode())[-1]["remedy"] == "Run the job again: it goes on."
    assert "the next run goes on" in oocpr_command("status", big).out
    outcome = oocpr_command("run", big)
    assert outcome.code == 0
    assert "going on after pass" in outcome.err


@pytest.mark.long
def test_a_time_limit_ends_imports_and_rankings_and_nights_add_up(oocpr_command: Run, big: Path) -> None:
    codes, steps = [], []
    for limit in ("5ms", "300ms", *["1s"] * 30):
        seconds = float(limit.removesuffix("ms")) / 1000 if limit.endswith("ms") else 1.0
        big.write_text(f"time_limit = {seconds}\n{BIG}")
        outcome = oocpr_command("run", big)
        codes.append(outcome.code)
        steps.append(list(json.loads(outcome.out)["steps"]))
        if outcome.code == 0:
            break
        assert outcome.code == 130
        assert f"time limit of {format_seconds(seconds)} " in log_lines(outcome.err)[-1]["message"]
    assert codes[0] == 130
    assert codes[-1] == 0
    assert steps[0] == []


@pytest.mark.slow
def test_workers_run_a_job(night: Night) -> None:
    night.job("workers = 1\n" + JOB)
    assert night.run(0)["run"]["workers"] == 1
    night.day("monday")
    night.run(0)
    night.check_ranks()


@pytest.mark.slow
def test_a_log_of_json_has_nothing_else_while_functions_are_compiled(
    process: Run, environment: dict[str, str], night: Night, tmp_path: Path
) -> None:
    # Numba compiles one function after another for some seconds, where nothing is compiled yet.
    environment["NUMBA_CACHE_DIR"] = str(tmp_path / "cache")
    environment["OOCPR_CACHE_DIR"] = str(tmp_path / "cache")
    done = process("run", night.folder / "web.toml", stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _, err = done.communicate(timeout=300)
    assert done.returncode == 0
    assert log_lines(err.decode())[-1]["message"].startswith("publish: done")
