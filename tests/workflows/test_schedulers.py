"""Files for systemd, cron, Kubernetes and Docker, by their own checkers, and their commands."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

import oocpr
from oocpr.cli import main

FILES = Path(__file__).parents[2] / "workflows"
VERSION = "1.37"


def documents(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((FILES / "kubernetes" / name).read_text())
    return loaded


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_takes_its_units() -> None:
    units = sorted(str(unit) for unit in (FILES / "systemd").glob("oocpr.*"))
    assert len(units) == 2
    done = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["job.yaml", "cronjob.yaml"])
def test_kubernetes_takes_its_objects(name: str) -> None:
    kubernetes_validate.validate(documents(name), VERSION, strict=True)


def test_parts_of_a_dask_job_are_what_kubernetes_takes() -> None:
    # Dask's own schema has these objects of Kubernetes at these places.
    spec = documents("daskjob.yaml")["spec"]
    cluster = spec["cluster"]["spec"]
    assert cluster["worker"]["replicas"] >= 1
    metadata = {"apiVersion": "v1", "metadata": {"name": "part"}}
    for part in (spec["job"], cluster["worker"], cluster["scheduler"]):
        kubernetes_validate.validate(metadata | {"kind": "Pod", "spec": part["spec"]}, VERSION, strict=True)
    service = metadata | {"kind": "Service", "spec": cluster["scheduler"]["service"]}
    kubernetes_validate.validate(service, VERSION, strict=True)
    wrong = metadata | {"kind": "Pod", "spec": spec["job"]["spec"] | {"restart": "Never"}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSION, strict=True)


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run(
        [hadolint, FILES / "docker" / "Dockerfile"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


def commands() -> Iterator[tuple[str, list[str]]]:
    """Words after ``oocpr`` of each file that is not a job of SLURM."""
    pods = {
        "job.yaml": documents("job.yaml")["spec"]["template"]["spec"],
        "cronjob.yaml": documents("cronjob.yaml")["spec"]["jobTemplate"]["spec"]["template"]["spec"],
    }
    for name, pod in pods.items():
        yield name, [str(word) for word in pod["containers"][0]["args"]]
    service = (FILES / "systemd" / "oocpr.service").read_text()
    (line,) = (line for line in service.splitlines() if line.startswith("ExecStart="))
    yield "oocpr.service", shlex.split(line.partition(" oocpr ")[2])
    line = (FILES / "systemd" / "crontab").read_text().splitlines()[-1]
    assert "%" not in line
    yield "crontab", shlex.split(line.partition(" oocpr ")[2].partition(" >>")[0])


@pytest.mark.parametrize(
    ("name", "words"), list(commands()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_their_commands_rank(
    name: str, words: list[str], tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    oocpr.import_graph(data / "tiny" / "site.txt", tmp_path / "web.zarr")
    monkeypatch.chdir(tmp_path)
    here = [word.replace("/graphs", str(tmp_path)) for word in words]
    assert "--checkpoint" in here
    assert "--resume" in here
    assert main(here) == 0
    assert (tmp_path / "ranks.parquet").is_file()
