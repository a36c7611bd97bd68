"""The notebooks run from top to bottom, and what they show was made so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "workflows" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


SLOW = {"out-of-core"}
"""Notebooks of graphs so large that they take a minute."""


@pytest.mark.parametrize(
    "notebook",
    [
        pytest.param(path, id=path.stem, marks=pytest.mark.slow if path.stem in SLOW else pytest.mark.long)
        for path in NOTEBOOKS
    ],
)
def test_a_notebook_runs(notebook: Path) -> None:
    cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    assert cells
    program = "\n".join("".join(cell["source"]) for cell in cells)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=FOLDER, env=os.environ | {"MPLBACKEND": "Agg"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_a_notebook_shows_is_of_one_run_without_errors(notebook: Path) -> None:
    cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    kinds = {output["output_type"] for cell in cells for output in cell["outputs"]}
    assert "execute_result" in kinds
    assert kinds <= {"execute_result", "display_data"}
