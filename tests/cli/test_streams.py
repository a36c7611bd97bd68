"""Standard streams that are closed or know few letters, and folders with hostile files."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

RUN = "import sys\nfrom oocpr.cli import main\nif __name__ == '__main__':\n    sys.exit(main())\n"


@pytest.fixture
def names(tmp_path: Path) -> Path:
    path = tmp_path / "n.tsv"
    path.write_text("café\t漢\n漢\tcafé\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("words", "closed", "code", "told"),
    [
        ("rank {} -o r.csv", ">&-", 2, "standard output is closed."),
        pytest.param("rank - --top 1", "<&-", 2, "standard input is closed.", marks=pytest.mark.long),
        pytest.param("rank {} --top 1", "2>&-", 0, "", marks=pytest.mark.long),
        ("rank {} --top 1", ">&- 2>&- <&-", 2, ""),
    ],
)
def test_closed_streams_end_with_a_documented_code(
    names: Path, environment: dict[str, str], words: str, closed: str, code: int, told: str
) -> None:
    command = f"{sys.executable} -m oocpr {words.format(names)} {closed}"
    done = subprocess.run(
        command, shell=True, capture_output=True, text=True, env=environment, cwd=names.parent, check=False
    )
    assert done.returncode == code
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in names.parent.iterdir()] == ["n.tsv"]


@pytest.mark.parametrize(
    ("words", "full", "code"),
    [
        ("rank nosuch.txt", "2>/dev/full", 2),
        ("rank --nosuch", "2>/dev/full", 2),
        ("--version", ">/dev/full 2>&1", 4),
    ],
)
def test_an_error_that_cannot_be_written_has_its_code(
    tmp_path: Path, environment: dict[str, str], words: str, full: str, code: int
) -> None:
    command = f"{sys.executable} -m oocpr {words} {full}"
    assert subprocess.run(command, shell=True, env=environment, cwd=tmp_path, check=False).returncode == code


@pytest.mark.long
@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_names_that_a_terminal_cannot_show_are_escaped_and_files_are_not(
    names: Path, environment: dict[str, str], encoding: str
) -> None:
    def run(*words: object) -> bytes:
        command = [sys.executable, "-m", "oocpr", "rank", names, *words]
        env = environment | {"PYTHONIOENCODING": encoding}
        return subprocess.run(command, capture_output=True, env=env, check=True).stdout

    shown = run("--top", "2").decode(encoding)
    assert "\\u6f22" in shown
    assert ("caf\\xe9" if encoding == "ascii" else "café") in shown
    assert {one["node"] for one in json.loads(run("--json", "-"))["top"]} == {"café", "漢"}
    rows = csv.DictReader(io.StringIO(run("-o", "-").decode("utf-8")))
    assert {row["node"] for row in rows} == {"café", "漢"}


@pytest.mark.long
def test_workers_run_no_code_of_the_working_folder(tmp_path: Path, environment: dict[str, str]) -> None:
    edges = tmp_path / "edges.txt"
    edges.write_text("1 2\n2 1\n")
    script = tmp_path / "programs" / "run.py"
    script.parent.mkdir()
    script.write_text(RUN)
    hostile = tmp_path / "cwd"
    hostile.mkdir()
    (hostile / "pickle.py").write_text("open('ran', 'w').close()\nraise SystemExit('hostile')\n")
    command = [sys.executable, script, "import", edges, "-o", tmp_path / "g.zarr", "--workers", "1"]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=hostile, check=False, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [path.name for path in hostile.iterdir()] == ["pickle.py"]
