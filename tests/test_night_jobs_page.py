"""The page about jobs: its job is run as it stands, and its transcript is what commands print."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "how-to" / "night-jobs.md"
PLACE = "/srv/jobs"
"""Where the folder of the transcript is said to be."""

COMMANDS = [
    "oocpr run deps.toml --log text > last.json",
    "oocpr run deps.toml --log text > last.json",
    "printf '7 63400\\n63400 7\\n' | gzip > days/monday.txt.gz",
    "oocpr run deps.toml --log text --log-level warning > last.json; echo exit code $?",
    "head -c 500000 whole.txt.gz > debian-bookworm-deps.txt.gz",
    "oocpr run deps.toml --log text --log-level error > last.json; echo exit code $?",
    "oocpr status deps.toml",
    "ls deps deps/latest",
    "grep -E 'exit_code|passes|bound' deps.prom | grep -v '#'",
]


def transcript(folder: Path) -> str:
    """Run the commands in a folder with the job of the page; returns what a terminal would show."""
    (toml,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    # Nodes of the graph are numbers here: names are for graphs that grow by names.
    shutil.copy(ROOT / "data" / "debian-bookworm-deps.txt.gz", folder)
    shutil.copy(ROOT / "data" / "debian-bookworm-deps.txt.gz", folder / "whole.txt.gz")
    (folder / "deps.toml").write_text(toml)
    (folder / "days").mkdir()
    (folder / "bin").mkdir()
    program = folder / "bin" / "oocpr"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m oocpr "$@"\n')
    program.chmod(0o755)
    environment = os.environ | {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    shown = ""
    for command in COMMANDS:
        done = subprocess.run(
            ["bash", "-c", command], cwd=folder, env=environment, text=True, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        shown += f"$ {command}\n{done.stdout}"
    return shown.replace(str(folder), PLACE)


def comparable(text: str) -> list[str]:
    """Lines without numbers, units and what a slow or new machine says more."""
    text = re.sub(r", [\d.]+ \w+ of it loading", "", text)
    text = re.sub(r"[\d][\d.,:]*(e[+-]?\d+)?( ?([kMGT]i?B?|B|ms|s|min)\b)?", "N", text)
    lines = (re.sub(r"  +", " ", line) for line in text.splitlines())
    return [line for line in lines if not re.match(r"compiling, once|\w+ N %|other memory", line)]


@pytest.mark.long
def test_the_transcript_is_what_commands_print(tmp_path: Path) -> None:
    (shown,) = re.findall(r"<!-- transcript:begin -->\n```\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert comparable(shown) == comparable(transcript(tmp_path))
    assert [line[2:] for line in shown.splitlines() if line.startswith("$ ")] == COMMANDS


if __name__ == "__main__":
    # Writes the page anew: python tests/test_night_jobs_page.py FOLDER
    made = transcript(Path(sys.argv[1]))
    begin, end = "<!-- transcript:begin -->\n", "<!-- transcript:end -->"
    before, _, rest = PAGE.read_text().partition(begin)
    PAGE.write_text(f"{before}{begin}```\n{made}```\n{end}{rest.partition(end)[2]}")
