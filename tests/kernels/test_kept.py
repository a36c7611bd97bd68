"""Files of tuned shapes: what is kept is found again, and nothing that is wrong with a file is an error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oocpr.engine.cuda.papers.products import Cut, Gather
from oocpr.engine.cuda.spmv import Shape
from oocpr.engine.cuda.tuning_cache import FORMAT, Kept, cache_folder
from oocpr.engine.cuda.tuning_candidates import Case
from oocpr.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

DEVICE = {"name": "Some Card 9", "capability": "9.0", "driver": "13000"}
CASE = Case(Gather("bits16"), False, 227 << 10)
SHAPE = Shape(teams=4, resident=5, each=16)


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    """A file with one shape."""
    kept = Kept(tmp_path, DEVICE)
    assert kept.keep("balanced", "some graphs", SHAPE, {"gteps": 2.5})
    return kept


def found(kept: Kept) -> object:
    return kept.find("balanced", "some graphs", CASE)


def test_what_is_kept_is_found_again(kept: Kept, tmp_path: Path) -> None:
    assert found(Kept(tmp_path, DEVICE)) == SHAPE
    assert kept.find("balanced", "other graphs", CASE) is None
    assert kept.find("binned", "some graphs", CASE) is None
    assert kept.keep("binned", "some graphs", Cut(tiny=2), {})
    assert kept.keep("balanced", "other graphs", Shape(), {})
    assert kept.keep("balanced", "some graphs", Shape(each=4), {})
    assert found(kept) == Shape(each=4)
    assert kept.find("balanced", "other graphs", CASE) == Shape()
    assert kept.find("binned", "some graphs", CASE) == Cut(tiny=2)
    assert [path.name for path in tmp_path.iterdir()] == [kept.path.name]


def test_the_file_says_whose_it_is(kept: Kept) -> None:
    document = json.loads(kept.path.read_text())
    assert document["format"] == FORMAT
    assert document["device"] == {**DEVICE, "oocpr": __version__}
    assert document["kept"]["balanced"]["some graphs"]["gteps"] == 2.5
    assert kept.path.name.startswith("some-card-9-")


@pytest.mark.parametrize("changed", [{"driver": "13010"}, {"capability": "8.0"}, {"name": "Other"}])
def test_others_do_not_find_it(kept: Kept, tmp_path: Path, changed: Mapping[str, str]) -> None:
    assert found(Kept(tmp_path, {**DEVICE, **changed})) is None


def test_another_version_does_not_find_it(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oocpr.engine.cuda.tuning_cache.__version__", "9.9")
    assert found(Kept(tmp_path, DEVICE)) is None


def test_a_file_that_was_carried_here_is_ignored(
    kept: Kept, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = Kept(tmp_path, {**DEVICE, "driver": "13010"})
    kept.path.rename(other.path)
    assert found(other) is None
    assert "is not of this device and version" in caplog.text
    assert other.keep("balanced", "some graphs", Shape(), {})
    assert found(other) == Shape()


WRONG = {
    "no JSON": b"{",
    "no text": b"\xff\xfe\x00",
    "empty": b"",
    "deep": b"[" * 100_000,
    "a list": b"[1]",
    "nothing kept": b"{}",
}


@pytest.mark.parametrize("name", WRONG)
def test_a_file_that_is_none_is_ignored(kept: Kept, name: str, caplog: pytest.LogCaptureFixture) -> None:
    kept.path.write_bytes(WRONG[name])
    assert found(kept) is None
    assert str(kept.path) in caplog.text
    assert kept.keep("balanced", "some graphs", SHAPE, {})
    assert found(kept) == SHAPE


@pytest.mark.parametrize(
    "entries",
    [
        [],
        {"balanced": []},
        {"balanced": {"some graphs": 7}},
        {"balanced": {"some graphs": {"shape": {"teams": 4}}}},
        {"balanced": {"some graphs": {"shape": {**vars(SHAPE), "resident": 10**9}}}},
        {"balanced": {"some graphs": {"shape": {**vars(SHAPE), "edge_order": 1}}}},
    ],
)
def test_entries_that_tuning_does_not_write_are_ignored(
    kept: Kept, entries: object, caplog: pytest.LogCaptureFixture
) -> None:
    document = json.loads(kept.path.read_text())
    kept.path.write_text(json.dumps({**document, "kept": entries}))
    assert found(kept) is None
    assert "ignored" in caplog.text


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_is_never_an_error(kept: Kept, data: st.DataObject) -> None:
    # What an example before has left in the file would be kept beside.
    kept.path.unlink()
    kept.keep("balanced", "some graphs", SHAPE, {"gteps": 2.5})
    text = bytearray(kept.path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=9))
        if not text:
            break
    kept.path.write_bytes(bytes(text))
    assert isinstance(found(kept), Shape | None)


def test_a_folder_that_cannot_be_written_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    kept = Kept(file / "tuned", DEVICE)
    assert not kept.keep("balanced", "some graphs", SHAPE, {})
    assert "is not kept" in caplog.text
    assert found(kept) is None


def test_nothing_half_written_is_left(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    before = kept.path.read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    assert not kept.keep("balanced", "some graphs", Shape(), {})
    assert kept.path.read_bytes() == before
    assert list(kept.path.parent.iterdir()) == [kept.path]


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"OOCPR_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b"}, Path("/a")),
        ({"XDG_CACHE_HOME": "/b"}, Path("/b/oocpr")),
        ({"XDG_CACHE_HOME": "b"}, Path.home() / ".cache" / "oocpr"),
        ({"XDG_CACHE_HOME": "", "OOCPR_CACHE_DIR": ""}, Path.home() / ".cache" / "oocpr"),
        ({}, Path.home() / ".cache" / "oocpr"),
    ],
)
def test_where_files_are(environment: Mapping[str, str], folder: Path) -> None:
    assert cache_folder(environment) == folder
