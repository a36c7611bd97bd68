"""The command that looks at the machine, on this machine."""

from __future__ import annotations

import json
import os
import resource
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil


def test_facts_are_those_of_this_machine(oocpr_command: Callable[..., Any], tmp_path: Path) -> None:
    outcome = oocpr_command("doctor", "--folder", tmp_path, "--json", "-")
    assert outcome.code == 0
    machine = json.loads(outcome.out)["machine"]
    assert machine["cores"] == psutil.cpu_count()
    assert 1 <= machine["usable_cores"] <= len(psutil.Process().cpu_affinity() or [])
    assert machine["memory"] == psutil.virtual_memory().total
    assert 0 < machine["usable_memory"] <= machine["memory"]
    assert machine["packages"]["numpy"] == np.__version__
    assert machine["unmet"] == []
    assert machine["open_files"] == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    flags = Path("/proc/cpuinfo").read_text()
    assert ("avx2" in machine["simd"]) == (" avx2 " in flags)
    words = ["findmnt", "--noheadings", "--output", "FSTYPE", "--target", str(tmp_path)]
    found = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert machine["file_system"] == found.strip()
    # Faster than any network, slower than memory: it was read, and nothing is left of it.
    assert 1e6 < machine["read_rate"] < 1e12
    assert list(tmp_path.iterdir()) == []


def test_what_is_missing_ends_it_with_its_exit_code(
    process: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    words = ("doctor", "--folder", tmp_path)
    with process(*words, preexec_fn=limit, **pipes) as done:
        out, err = done.communicate()
    assert done.returncode == 8
    assert b"stops: no file may be larger than 1 MiB.\nremedy: Lift it" in out
    cause, remedy = err.decode().splitlines()
    assert cause.startswith("error: runs would be stopped here: ")
    assert remedy.startswith("remedy: ")
    assert os.listdir(tmp_path) == []  # noqa: PTH208


def test_a_folder_that_is_none_is_refused(fails: Callable[..., str], tmp_path: Path) -> None:
    assert "is no folder" in fails(2, "doctor", "--folder", tmp_path / "nowhere")
