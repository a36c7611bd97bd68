"""Compiling ahead."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_after_warming_up_nothing_is_compiled(tmp_path: Path, environment: dict[str, str]) -> None:
    kept = tmp_path / "kept"
    bare = {name: value for name, value in environment.items() if name != "NUMBA_CACHE_DIR"}
    source = tmp_path / "links.txt"
    source.write_text("".join(f"{k} {k * k % 97}\n" for k in range(1000)))

    def run(*words: object) -> str:
        command = [sys.executable, "-m", "oocpr", *map(str, words)]
        env = bare | {"OOCPR_CACHE_DIR": str(kept)}
        return subprocess.run(command, capture_output=True, text=True, env=env, check=True).stdout

    assert f"kept in {kept}" in run("warmup")
    files = {path: path.stat().st_mtime_ns for path in kept.rglob("*")}
    assert "nothing was left to compile" in run("warmup")
    run("import", source, "-o", tmp_path / "g.zarr")
    for method in ("components", "mixed"):
        run("rank", tmp_path / "g.zarr", "--method", method, "-o", tmp_path / "r.csv")
    run("top", tmp_path / "r.csv")
    assert {path: path.stat().st_mtime_ns for path in kept.rglob("*")} == files
