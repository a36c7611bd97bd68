"""Files of jobs: what they may say, and how what they may not is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from oocpr.errors import InputError, UsageError
from oocpr.jobs.job_file import Job, Limits, parse_job, read_job

PATH = Path("/jobs/web.toml")
IMPORT = "[import]\nsource = 'edges.txt'\n"


def job(text: str) -> Job:
    return parse_job(text, PATH)


def test_a_job_of_one_line_has_defaults() -> None:
    made = job(IMPORT)
    assert made == Job(path=PATH, folder=Path("/jobs/web"), sources=("/jobs/edges.txt",), import_options={})
    assert (made.name, made.is_kept, made.limits) == ("web", True, None)


def test_paths_are_relative_to_the_file_and_urls_stay() -> None:
    made = job(
        "folder = 'out'\ntmp = '/scratch'\n"
        "[import]\nsource = ['a.txt', 's3://bucket/b.txt', '/data/c-*.txt']\nlabels = 'names.txt'\n"
        "[rank]\npersonalization = 'teleport.tsv'\n[publish]\nmetrics = 'web.prom'\n"
    )
    assert made.folder == Path("/jobs/out")
    assert made.tmp == "/scratch"
    assert made.sources == ("/jobs/a.txt", "s3://bucket/b.txt", "/data/c-*.txt")
    assert made.import_options == {"labels": "/jobs/names.txt"}
    assert made.rank_options == {"personalization": "/jobs/teleport.tsv"}
    assert made.publication.metrics == Path("/jobs/web.prom")


def test_all_tables_are_taken() -> None:
    made = job(
        "memory = '2GiB'\nworkers = 2\ntime_limit = '4h'\n" + IMPORT + "order = 'keep'\nundirected = true\n"
        "[append]\nsource = 'days/*.txt'\nundirected = true\n"
        "[rank]\ntol = 1e-8\nmethod = 'mixed'\nthreads = 2\n"
        "[compare]\ntop = 50\nmax_distance = 0.25\nmin_overlap = 1\n"
        "[publish]\nranks = 'ranks.csv'\nreport = ''\ntop = 5\nkeep = 3\nkeep_graphs = 2\n"
    )
    assert (made.memory, made.workers, made.time_limit) == ("2GiB", 2, 14400.0)
    assert made.import_options == {"order": "keep", "undirected": True}
    assert made.appended == ("/jobs/days/*.txt",)
    assert made.append_options == {"undirected": True}
    assert made.rank_options == {"tol": 1e-8, "method": "mixed", "threads": 2}
    assert made.limits == Limits(50, 0.25, 1, None)
    assert (made.publication.ranks, made.publication.report) == ("ranks.csv", None)
    assert (made.publication.top, made.publication.keep, made.publication.keep_graphs) == (5, 3, 2)


@pytest.mark.parametrize(
    ("text", "cause", "remedy"),
    [
        ("", "web.toml: [import] has no 'source'.", "Add it"),
        ("source = 'edges.txt'\n", "there is no key 'source'", "It belongs to [import] or [append]."),
        ("memry = '2GiB'\n" + IMPORT, "there is no key 'memry'", "Did you mean 'memory'?"),
        (IMPORT + "[rnk]\n", "there is no key 'rnk'", "Did you mean 'rank'?"),
        (IMPORT + "[rank]\ndampng = 0.9\n", "[rank] has no key 'dampng'", "Did you mean 'damping'?"),
        (IMPORT + "memory = '2GiB'\n", "[import] has no key 'memory'", "It stands before all tables."),
        (IMPORT + "[rank]\nstart = 'r.csv'\n", "[rank] has no key 'start'", "There are damping, tol"),
        (IMPORT + "[rank]\ntop = 3\n", "[rank] has no key 'top'", "stop"),
        (IMPORT + "[append]\nlabels = 'n'\n", "[append] has no key 'labels'", "It belongs to [import]."),
        ("rank = 3\n" + IMPORT, "rank is 3, no table.", "Write [rank]."),
        ("[import]\nsource = []\n", "[import] source is [].", "Give files"),
        ("[import]\nsource = '-'\n", "[import] source is '-'.", "standard input is read once only"),
        ("memory = 4\n" + IMPORT, "memory is 4, 4 bytes, too few for any process.", "Give a unit"),
        ("memory = ['2GiB']\n" + IMPORT, "memory is ['2GiB'].", "Give one value."),
        ("time_limit = 'soon'\n" + IMPORT, "time_limit is 'soon', no time.", "such as 4h"),
        ("workers = 0\n" + IMPORT, "workers is 0.", "at least 1"),
        ("workers = 2\nscheduler = 'tcp://a:1'\n" + IMPORT, "workers and scheduler are both given.", "Leave"),
        (IMPORT + "order = 'random'\n", "[import] order is 'random'.", "Give one of keep, degree"),
        (IMPORT + "undirected = 'yes'\n", "[import] undirected is 'yes'", "Give True or False."),
        (IMPORT + "order = 'degree'\n[append]\nsource = 'd'\n", "[append] cannot add nodes", "order 'keep'"),
        (IMPORT + "undirected = true\n[append]\nsource = 'd'\n", "[import] has undirected, and", "in both"),
        (IMPORT + "[append]\nsource = 'd'\nweight = 3\n", "[append] has weight, and", "in both"),
        (IMPORT + "[rank]\nreproducible = 'no'\n", "[rank] reproducible is 'no'", "Give True or False."),
        (IMPORT + "[compare]\ntop = 1\nmin_kendall_tau = -1\n", "[compare] top is 1", "two nodes"),
        (IMPORT + "[append]\nformat = 'text'\n", "[append] has no 'source'.", "Add it"),
        (IMPORT + "[rank]\nmethod = 'mixd'\n", "[rank] method 'mixd' is not known.", "mixed"),
        (IMPORT + "[rank]\ndamping = 1.5\n", "[rank] damping is 1.5, outside (0, 1).", "0.85"),
        (IMPORT + "[rank]\nthreads = '3'\n", "[rank] threads is '3', no count.", "at least 1"),
        (IMPORT + "[compare]\nmax_distance = -1\n", "[compare] max_distance is -1.", "from 0 to 2"),
        (IMPORT + "[compare]\nmin_overlap = true\n", "[compare] min_overlap is True.", "from 0 to 1"),
        (IMPORT + "[publish]\nranks = 'a/r.csv'\n", "[publish] ranks is 'a/r.csv'.", "without a folder"),
        (IMPORT + "[publish]\nkeep = 0\n", "[publish] keep is 0.", "at least 1"),
        (IMPORT + "[publish]\nmetrics = 'm.txt'\n", "[publish] metrics is 'm.txt'.", ".prom"),
        ("[import\n", "web.toml is no TOML: ", "Correct it there."),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_its_key(text: str, cause: str, remedy: str) -> None:
    with pytest.raises(UsageError) as caught:
        job(text)
    assert cause in caught.value.cause
    assert caught.value.cause.startswith("web.toml")
    assert remedy in caught.value.remedy


def test_a_refusal_shows_nothing_secret() -> None:
    with pytest.raises(UsageError) as caught:
        job(IMPORT + "[rank]\nmethod = 's3://key:hush@host/'\n")
    assert "hush" not in str(caught.value)


def test_a_file_that_is_missing_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_job(tmp_path / "web.toml")
    (tmp_path / "web.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="it is no text"):
        read_job(tmp_path / "web.toml")


def test_a_file_without_an_ending_has_no_folder_of_its_own() -> None:
    text = "[import]\nsource = 'edges.txt'"
    with pytest.raises(UsageError, match="web has no ending") as refused:
        parse_job(text, Path("/jobs/web"))
    assert refused.value.remedy == "Call it web.toml, or set folder."
    assert parse_job(f"folder = 'nights'\n{text}", Path("/jobs/web")).folder == Path("/jobs/nights")
