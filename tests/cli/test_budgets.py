"""Memory budgets of whole commands, measured by the system."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

MIB = 2**20


def measured(*words: object) -> tuple[int, str]:
    """Run a command in a process of its own; returns its peak of resident bytes and what it printed."""
    command = [sys.executable, "-m", "oocpr", *(str(word) for word in words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        out = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss * 1024, out


def ranked(store: Path, memory: int) -> dict[str, Any]:
    """Report of a run within so many mebibytes, which it kept to."""
    peak, out = measured("rank", store, "--memory", f"{memory}MiB", "--top", 1, "--json", "-")
    assert peak <= memory * MIB
    report = json.loads(out)
    assert report["converged"]
    assert report["error_bound"] <= 1e-10
    assert isinstance(report, dict)
    return report


@pytest.mark.slow
def test_sixty_seven_million_edges_are_imported_and_ranked_in_one_gibibyte_and_in_half(
    tmp_path: Path,
) -> None:
    store = tmp_path / "graph.zarr"
    peak, _ = measured("generate", "rmat", "--scale", 22, "--memory", "1GiB", "-o", store)
    assert peak <= 1024 * MIB
    plenty = ranked(store, 1024)
    encoded = plenty["bytes_per_edge"] * plenty["edges"]
    # Once, and then from memory.
    assert plenty["bytes_read"] <= 1.01 * encoded
    scarce = ranked(store, 560)
    # Most tiles find no room and are read in every pass.
    assert scarce["bytes_read"] >= 0.75 * encoded * scarce["passes"]


@pytest.mark.slow
def test_the_first_run_on_a_machine_keeps_to_its_memory_while_it_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "graph.zarr"
    measured("generate", "rmat", "--scale", 21, "--memory", "1GiB", "-o", store)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "compiled"))
    first = ranked(store, 400)
    assert first["compile_seconds"] > 1
    assert ranked(store, 400)["compile_seconds"] == 0
