"""Results of a job: published in one step, kept and removed, and read back as they were written."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

import oocpr
from oocpr.errors import DamagedError
from oocpr.jobs.results import GRAPH, INPUTS, WAS_LATEST, JobFolder, json_text, read_json
from oocpr.jobs.steps import Decision, Record, Step

RECORD = Record((("edges.txt", 9, 1),), (), "[]", "[{}]")
STEPS = (Step.IMPORT, Step.RANK, Step.PUBLISH)
BEGAN = datetime(2026, 11, 27, 3, tzinfo=UTC)


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    made = JobFolder(tmp_path / "web")
    made.make()
    return made


def finish(folder: JobFolder, began: datetime = BEGAN) -> Path:
    """Make a result with a graph of one file."""
    folder.begin(Decision(STEPS, RECORD, ""))
    (folder.unfinished / GRAPH).mkdir()
    (folder.unfinished / GRAPH / "tile").write_bytes(b"edges")
    return folder.publish(began)


def test_a_result_is_published_by_its_name_and_a_link(folder: JobFolder) -> None:
    assert (folder.published, folder.base(), folder.results()) == (None, (None, None), [])
    made = finish(folder)
    assert made == folder.path / "2026-11-27T030000Z"
    assert folder.published == made
    assert (folder.path / "latest").readlink() == Path(made.name)
    assert folder.base() == (made.name, RECORD)
    assert folder.left("ranks.parquet") is None


def test_names_grow_also_if_the_clock_is_set_back(folder: JobFolder) -> None:
    finish(folder)
    assert finish(folder).name == "2026-11-27T030001Z"
    assert finish(folder, datetime(2025, 1, 1, tzinfo=UTC)).name == "2026-11-27T030002Z"
    assert folder.finish_publication() is None
    assert folder.published == folder.path / "2026-11-27T030002Z"


def test_a_publication_that_was_cut_short_is_finished(folder: JobFolder) -> None:
    first, second = finish(folder), finish(folder)
    # As if the process had been killed between its last two steps.
    (folder.path / "latest").unlink()
    (folder.path / "latest").symlink_to(first.name)
    (second / WAS_LATEST).unlink()
    assert folder.finish_publication() == second.name
    assert folder.published == second
    (folder.path / "latest").unlink()
    assert folder.finish_publication() == second.name


def test_who_goes_back_to_an_earlier_result_keeps_it(folder: JobFolder) -> None:
    first, _ = finish(folder), finish(folder)
    (folder.path / "latest").unlink()
    (folder.path / "latest").symlink_to(first.name)
    assert folder.finish_publication() is None
    assert folder.base() == (first.name, RECORD)
    third = finish(folder)
    assert folder.published == third


def test_a_published_result_that_somebody_has_removed_is_none(folder: JobFolder) -> None:
    first, second = finish(folder), finish(folder)
    shutil.rmtree(second)
    assert folder.published is None
    assert folder.finish_publication() == first.name
    shutil.rmtree(first)
    assert (folder.finish_publication(), folder.base()) == (None, (None, None))


def test_old_results_and_graphs_are_removed(folder: JobFolder) -> None:
    names = [finish(folder).name for _ in range(5)]
    assert folder.prune(3, 2) == [names[1], names[0], f"{names[2]}/{GRAPH}"]
    assert folder.results() == names[2:]
    assert [(folder.path / name / GRAPH).exists() for name in names[2:]] == [False, True, True]
    assert folder.published == folder.path / names[4]
    assert folder.prune(3, 2) == []


def test_what_is_left_says_which_parts_are_whole(folder: JobFolder) -> None:
    folder.begin(Decision(STEPS, RECORD, "", (("monday.txt", 1, 2),)))
    left = folder.left("ranks.parquet")
    assert left is not None
    assert (left.record, left.steps, left.new_files) == (RECORD, STEPS, (("monday.txt", 1, 2),))
    assert (left.has_import, left.has_graph, left.has_ranks, left.was_refused) == (False,) * 4
    for name in (GRAPH, "imported.zarr"):
        (folder.unfinished / name).mkdir()
    (folder.unfinished / "ranks.parquet").touch()
    (folder.unfinished / "summary.json").write_text('{"limits": ["too far"]}')
    left = folder.left("ranks.parquet")
    assert left is not None
    assert (left.has_import, left.has_graph, left.has_ranks, left.was_refused) == (True,) * 4


def test_a_run_that_goes_on_remembers_all_its_steps(folder: JobFolder) -> None:
    folder.begin(Decision(STEPS, RECORD, ""))
    (folder.unfinished / GRAPH).mkdir()
    (folder.unfinished / "checkpoint").mkdir()
    (folder.unfinished / "ranks.parquet").touch()
    folder.begin(Decision((Step.PUBLISH,), RECORD, "", goes_on=True))
    left = folder.left("ranks.parquet")
    assert left is not None
    assert (left.steps, left.has_ranks) == (STEPS, True)
    folder.begin(Decision(STEPS[1:], RECORD, "", goes_on=True, ranks_anew=True))
    assert sorted(path.name for path in folder.unfinished.iterdir()) == [GRAPH, INPUTS]
    folder.begin(Decision(STEPS, RECORD, ""))
    assert [path.name for path in folder.unfinished.iterdir()] == [INPUTS]


def test_a_graph_is_taken_over_without_its_bytes(folder: JobFolder, data: Path) -> None:
    folder.begin(Decision(STEPS, RECORD, ""))
    graph = oocpr.import_graph(data / "tiny" / "site.txt", folder.unfinished / GRAPH)
    first = folder.publish(BEGAN)
    folder.begin(Decision((Step.LINK, Step.RANK, Step.PUBLISH), RECORD, ""))
    folder.link_graph(first.name)
    second = folder.publish(BEGAN)
    files = [path.relative_to(first) for path in (first / GRAPH).rglob("*") if path.is_file()]
    assert len(files) > 5
    assert all((first / name).samefile(second / name) for name in files)
    identity = graph.store.identity
    folder.prune(1, 1)
    assert oocpr.open_graph(second / GRAPH).info()["identity"] == identity


@pytest.mark.parametrize("text", ["{", "[]", '{"record": {}}', "{}"])
def test_damaged_notes_are_refused_with_the_file(folder: JobFolder, text: str) -> None:
    made = finish(folder)
    (made / INPUTS).write_text(text)
    with pytest.raises(DamagedError) as caught:
        folder.base()
    assert str(made / INPUTS) in caught.value.cause


@pytest.mark.parametrize(
    "other", [{"steps": ["polish"]}, {"steps": None}, {"new_files": 3}, {"record": None}], ids=str
)
def test_notes_about_what_is_unfinished_of_another_kind_are_refused(
    folder: JobFolder, other: dict[str, object]
) -> None:
    folder.begin(Decision(STEPS, RECORD, "", (("monday.txt", 1, 2),)))
    notes = folder.unfinished / INPUTS
    notes.write_text(json.dumps(json.loads(notes.read_text()) | other))
    with pytest.raises(DamagedError, match="not what was written") as caught:
        folder.left("ranks.parquet")
    assert caught.value.remedy == f"Remove {folder.unfinished}, and run the job again."


def test_json_has_no_secrets_and_is_json(tmp_path: Path) -> None:
    value = {"a": [float("inf"), 1.5, None], "b": ("https://x:hush@host/?sig=hush2",), "c": Path("/x")}
    text = json_text(value)
    assert "hush" not in text
    assert json.loads(text)["a"] == [None, 1.5, None]
    assert read_json(tmp_path / "missing.json") is None
