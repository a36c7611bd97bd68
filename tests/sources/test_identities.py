"""What the blocks of a source depend on, by which an import knows whether it can be resumed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from oocpr.sources import open_source


def text(folder: Path) -> Path:
    path = folder / "edges.txt"
    path.write_text("1 2\n2 3\n")
    return path


def identity(spec: Any, **options: Any) -> Any:
    return open_source(spec, **options).identity()  # type: ignore[attr-defined]


def test_it_changes_with_the_file_and_with_how_it_is_read(tmp_path: Path) -> None:
    path = text(tmp_path)
    ways = [
        {},
        {"undirected": True},
        {"weight": 3},
        {"header": False},
        {"format": "csv", "source_column": "2"},
    ]
    known = [identity(path, **way) for way in ways]
    assert identity(path, weight="3") == known[2]
    (tmp_path / "edges.labels.txt").write_text("a\nb\nc\nd\n")
    known.append(identity(path))
    os.utime(path, ns=(0, 7))
    known.append(identity(path))
    path.write_text("1 2\n")
    known.append(identity(path))
    assert len({json.dumps(one) for one in known}) == len(known)


def test_it_does_not_depend_on_the_way_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = text(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert identity("edges.txt") == identity(path)


def test_of_an_address_it_tells_when_the_file_is_another() -> None:
    known = []
    for body in (b"1 2\n", b"1 2\n2 3\n"):
        with fsspec.open("memory://marks/web.txt", "wb") as file:
            file.write(body)
        known.append(identity("memory://marks/web.txt"))
    assert None not in known
    assert known[0] != known[1]


@pytest.mark.parametrize("spec", ["-", (np.arange(2), np.arange(2))])
def test_what_cannot_be_read_again_has_none(spec: Any) -> None:
    assert identity(spec, format="text" if spec == "-" else None) is None
