"""The wheel: what is in it, and that it works where nothing else of the repository is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# The CUDA sources stand at the top level for readers and are installed inside the package.
PLACES = {"oocpr": "oocpr", "kernels": "oocpr/kernels"}
INSTALLED = {".py", ".typed", ".cu", ".cuh"}


def files_of_the_tree() -> set[str]:
    """Names that the package's files have in a wheel."""
    return {
        f"{installed}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, installed in PLACES.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix in INSTALLED
    }


def test_every_room_is_listed_as_a_package() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    rooms = {str(Path(name).parent).replace("/", ".") for name in files_of_the_tree()}
    assert sorted(listed) == sorted(rooms)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy, since building leaves folders behind that later builds take files from."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in PLACES:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    run([sys.executable, "-m", "build", "--wheel", "--outdir", str(folder / "dist"), str(folder)], folder)
    (built,) = (folder / "dist").iterdir()
    return built


@pytest.mark.slow
def test_wheel_holds_the_tree(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        notes = {Path(name).name for name in archive.namelist() if ".dist-info/" in name}
    assert names == files_of_the_tree()
    assert {"METADATA", "entry_points.txt", "LICENSE"} <= notes


@pytest.mark.slow
def test_wheel_works_where_it_is_installed(wheel: Path, tmp_path: Path, data: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python, oocpr = (str(tmp_path / "venv" / "bin" / name) for name in ("python", "oocpr"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    run([python, "-m", "pip", "install", "--quiet", "--no-compile", str(wheel)], elsewhere)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    said, where = run(
        [python, "-c", "import oocpr; print(oocpr.__version__, oocpr.__file__)"], elsewhere
    ).split()
    assert said == version
    assert Path(where).is_relative_to(tmp_path / "venv")
    assert run([oocpr, "--version"], elsewhere) == f"oocpr {version}\n"
    # Nothing but what the wheel itself requires is there: no test library and no Dask.
    ranking = run([oocpr, "rank", str(data / "tiny" / "site.txt"), "--top", "5"], elsewhere)
    named = [line.split()[2] for line in ranking.splitlines()[:5]]
    expected = (data / "tiny" / "site.ranks-0.85.csv").read_text().splitlines()[1:]
    by_rank = sorted((line.split(",") for line in expected), key=lambda row: -float(row[2]))
    assert named == [name for _, name, _ in by_rank]


def run(command: list[str], folder: Path) -> str:
    """Standard output of a command that has to succeed."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
    return done.stdout
