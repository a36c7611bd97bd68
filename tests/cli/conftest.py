"""The real command line, in this process where that is enough and in one of its own where it is not."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import oocpr
from oocpr.cli import main


@dataclass
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str


_LOGGER = logging.getLogger("oocpr")


@pytest.fixture
def oocpr_command(capfd: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run a command in this process."""

    def run(*words: object) -> Outcome:
        capfd.readouterr()
        before = _LOGGER.handlers[:], _LOGGER.level
        code = main([str(word) for word in words])
        # A command leaves the logs of its process as --verbose wants them.
        _LOGGER.handlers[:] = before[0]
        _LOGGER.setLevel(before[1])
        out, err = capfd.readouterr()
        # Said only where nothing was compiled before, on a slow machine.
        told = [line for line in err.splitlines(True) if not line.startswith("compiling, once on a machine")]
        if code:
            # For the report of a test that did not expect it.
            sys.stdout.write(f"exit code {code}: {err}")
        return Outcome(code, out, "".join(told))

    return run


@pytest.fixture
def fails(oocpr_command: Callable[..., Outcome], tmp_path: Path) -> Callable[..., str]:
    """Run a command that has to fail with two lines on standard error, and leave the folder as it was."""

    def run(code: int, *words: object) -> str:
        before = contents(tmp_path)
        outcome = oocpr_command(*words)
        cause, remedy = outcome.err.splitlines()
        assert cause.startswith("error: ")
        assert remedy.startswith("remedy: ")
        assert len(cause) > len("error: ")
        assert len(remedy) > len("remedy: ")
        assert (outcome.code, outcome.out) == (code, "")
        assert contents(tmp_path) == before
        return cause.removeprefix("error: ")

    return run


@pytest.fixture
def environment() -> dict[str, str]:
    """Give a child process the package under test, installed or not."""
    given = os.environ | {"PYTHONPATH": str(Path(oocpr.__file__).parents[1])}
    # Few people have Python write each line at once, and what is left when it ends is written then.
    given.pop("PYTHONUNBUFFERED", None)
    return given


@pytest.fixture
def process(environment: dict[str, str]) -> Callable[..., subprocess.Popen[bytes]]:
    """Start a command in a process of its own."""

    def start(*words: object, **options: Any) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "oocpr", *(str(word) for word in words)]
        # A parent that runs in the background may ignore Ctrl-C, and children would take that over.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return subprocess.Popen(command, env=environment, **options)
        finally:
            signal.signal(signal.SIGINT, before)

    return start


@pytest.fixture
def store(tmp_path: Path, data: Path) -> Path:
    """A store of five labelled pages."""
    path = tmp_path / "site.zarr"
    oocpr.import_graph(data / "tiny" / "site.txt", path)
    return path


def contents(folder: Path) -> dict[str, bytes]:
    """Bytes of every file of a folder, and the names of its folders."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in sorted(folder.rglob("*"))
    }
