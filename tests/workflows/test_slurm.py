"""The job files of workflows/slurm on a SLURM of this machine's own: two nodes, two partitions, one machine.

Needs the Debian packages slurmctld, slurmd, slurm-client and munge. The daemons run as this user, from files
in a scratch folder, and end with the tests.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import oocpr

FILES = Path(__file__).parents[2] / "workflows" / "slurm"
# Where Debian has daemons is not on everybody's path.
SEARCHED = os.pathsep.join([os.environ["PATH"], "/usr/sbin"])
NEEDED = ("slurmctld", "slurmd", "munged", "sbatch", "scontrol")
USER = pwd.getpwuid(os.getuid()).pw_name
MISSING = [name for name in NEEDED if shutil.which(name, path=SEARCHED) is None]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"SLURM is not installed: no {', '.join(MISSING)}"),
]

DAMPING = 0.998
LONG = ("--method", "power", "--damping", str(DAMPING), "--tol", "1e-6", "--stripes", "2", "-vv")
"""Six thousand passes over the packages of Debian: ten seconds or more, to be ended in."""
LONGER = 0.9997
"""Forty thousand passes: SLURM looks at time limits every half minute only."""

CONFIGURATION = """
ClusterName=oocpr
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
SlurmctldPort={ports[0]}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
SchedulerParameters=bf_interval=1,sched_interval=1
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 RealMemory=4000 Gres=gpu:1
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 RealMemory=4000 Gres=gpu:1
PartitionName=low Nodes=n1,n2 Default=YES PriorityTier=1 GraceTime=60 State=UP
PartitionName=high Nodes=n1,n2 PriorityTier=10 PreemptMode=OFF State=UP
"""


class Slurm:
    """A controller and two nodes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with ExitStack() as stack:
            sockets = [stack.enter_context(socket.socket()) for _ in range(3)]
            for each in sockets:
                each.bind(("127.0.0.1", 0))
            ports = [each.getsockname()[1] for each in sockets]
        for name in ("munge", "state"):
            (folder / name).mkdir(mode=0o755)
        (folder / "gres.conf").write_text("Name=gpu File=/dev/zero\n")
        names = {"host": socket.gethostname(), "user": USER, "folder": folder}
        configuration = folder / "slurm.conf"
        configuration.write_text(CONFIGURATION.format(ports=ports, **names))
        # The files call oocpr and dask by name, as those of an environment that is active.
        path = os.pathsep.join([str(Path(sys.executable).parent), SEARCHED])
        self.environment = os.environ | {"SLURM_CONF": str(configuration), "PATH": path}
        self.daemons: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start all daemons, and wait until both nodes take jobs."""
        munge = self.folder / "munge"
        key = munge / "key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        files = {
            "key-file": "key",
            "socket": "socket",
            "log-file": "log",
            "pid-file": "pid",
            "seed-file": "seed",
        }
        self._daemon(
            "munged", "-F", "--force", *(f"--{option}={munge / name}" for option, name in files.items())
        )
        self._daemon("slurmctld", "-D", "-i")
        for node in ("n1", "n2"):
            self._daemon("slurmd", "-D", "-N", node)
        self.until(
            lambda: self("sinfo", "-h", "-p", "low", "-t", "idle", "-o", "%D").strip() == "2", "nodes", 30
        )

    def stop(self) -> None:
        """End all jobs, then the daemons."""
        if any(daemon.poll() is None for daemon in self.daemons[1:]):
            self("scancel", "--signal=KILL", "--full", "-u", USER, check=False)
            time.sleep(1)
        for daemon in reversed(self.daemons):
            daemon.send_signal(signal.SIGTERM)
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def _daemon(self, *words: str) -> None:
        with (self.folder / f"{words[0]}.out").open("ab") as out:
            self.daemons.append(
                subprocess.Popen(words, env=self.environment, stdout=out, stderr=out, start_new_session=True)
            )

    def __call__(self, *words: str, folder: Path | None = None, check: bool = True) -> str:
        """Standard output of a command of SLURM."""
        done = subprocess.run(
            words, env=self.environment, cwd=folder, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0 or not check, f"{words}: {done.stderr}"
        return done.stdout

    def submit(self, folder: Path, *words: str) -> str:
        """Number of a new job that has a folder for its files."""
        return self("sbatch", "--parsable", *words, folder=folder).strip()

    def about(self, job: str) -> dict[str, str]:
        """What the controller says of a job: JobState, Restarts, ExitCode and more."""
        return dict(re.findall(r"(\w+)=(\S*)", self("scontrol", "show", "job", "-o", job)))

    def wait(self, job: str, *states: str) -> dict[str, str]:
        """Wait until a job is in one of some states."""
        self.until(lambda: self.about(job)["JobState"] in states, f"job {job}")
        return self.about(job)

    def start_soon(self, job: str, *changes: str) -> None:
        """Let a job that is requeued start in three seconds; SLURM would let it wait for two minutes.

        A node refuses it in the second in which it has ended: its credential is revoked then.
        """
        self.until(lambda: self.about(job)["JobState"] == "PENDING", "the job waits")
        self("scontrol", "update", f"JobId={job}", "StartTime=now+3", *changes)

    def until(self, reached: object, what: str, seconds: float = 300) -> None:
        """Wait for a condition."""
        assert callable(reached)
        end = time.monotonic() + seconds
        while not reached():
            assert time.monotonic() < end, f"{what}: {self('squeue', '-l', check=False)}"
            time.sleep(0.2)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    cluster = Slurm(tmp_path_factory.mktemp("slurm"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    path = tmp_path_factory.mktemp("graphs") / "debian.zarr"
    oocpr.import_graph(data / "debian-bookworm-deps.txt.gz", path)
    return path


@pytest.fixture(scope="module")
def undisturbed(graph: Path) -> NDArray[np.float64]:
    return undisturbed_ranks(graph, DAMPING)


def undisturbed_ranks(graph: Path, damping: float) -> NDArray[np.float64]:
    return np.array(oocpr.pagerank(graph, method="power", damping=damping, tol=1e-6, stripes=2).to_numpy())


def ranks_of(path: Path) -> NDArray[np.float64]:
    import pyarrow.parquet as pq

    return np.asarray(pq.read_table(path)["rank"])


def log_of(folder: Path, job: str) -> str:
    return (folder / f"oocpr-{job}.log").read_text()


def wait_for_passes(folder: Path, job: str) -> None:
    """Wait until a run is among its passes."""
    end = time.monotonic() + 120
    while not (folder / f"oocpr-{job}.log").exists() or "plan of the run" not in log_of(folder, job):
        assert time.monotonic() < end
        time.sleep(0.1)
    time.sleep(2)


@pytest.mark.parametrize("ended", ["preempted", "out of time", "requeued by others"])
def test_a_job_that_is_ended_is_requeued_and_finishes(
    slurm: Slurm, graph: Path, undisturbed: NDArray[np.float64], tmp_path: Path, ended: str
) -> None:
    # The least limit is a minute, and the signal comes up to a minute early.
    late = ended == "out of time"
    limit = ["--time=1", "--signal=TERM@50"] if late else []
    where = ["-p", "low", "-w", "n1", "-c1", "--mem=1G"]
    job = slurm.submit(
        tmp_path,
        *where,
        *limit,
        str(FILES / "rank.sbatch"),
        str(graph),
        "ranks.parquet",
        *LONG,
        *(["--damping", str(LONGER)] if late else []),
    )
    wait_for_passes(tmp_path, job)
    if ended == "preempted":
        slurm.submit(
            tmp_path, "-p", "high", "-w", "n1", "-c2", "--mem=1G", "-o", "/dev/null", "--wrap", "true"
        )
    if ended == "requeued by others":
        # As an operator does, or the controller if the node is lost.
        slurm("scontrol", "requeue", job)
    slurm.until(lambda: slurm.about(job)["Restarts"] == "1", "the job is requeued")
    slurm.start_soon(job, "TimeLimit=10")
    about = slurm.wait(job, "COMPLETED", "FAILED", "TIMEOUT", "CANCELLED")
    log = log_of(tmp_path, job)
    assert (about["JobState"], about["ExitCode"], about["Restarts"]) == ("COMPLETED", "0:0", "1"), log
    if ended != "requeued by others":
        (kept,) = re.findall(r"remedy: ranks.parquet.kept has the run after pass (\d+): give --resume", log)
        assert int(kept) > 0
    expected = undisturbed_ranks(graph, LONGER) if late else undisturbed
    np.testing.assert_array_equal(ranks_of(tmp_path / "ranks.parquet"), expected)
    assert not (tmp_path / "ranks.parquet.kept").exists()


def test_a_job_that_is_cancelled_is_not_requeued(slurm: Slurm, graph: Path, tmp_path: Path) -> None:
    where = ["-p", "low", "-c1", "--mem=1G"]
    job = slurm.submit(tmp_path, *where, str(FILES / "rank.sbatch"), str(graph), "ranks.parquet", *LONG)
    wait_for_passes(tmp_path, job)
    slurm("scancel", job)
    slurm.until(lambda: job not in slurm("squeue", "-h", "-o", "%i"), "the job is gone")
    assert slurm.about(job)["JobState"] == "CANCELLED"
    assert "has the run after pass" in log_of(tmp_path, job)


def test_two_nodes_rank_to_the_bits_of_one(
    slurm: Slurm, graph: Path, undisturbed: NDArray[np.float64], tmp_path: Path
) -> None:
    words = [str(graph), "ranks.parquet", *LONG, "--json", "run.json"]
    job = slurm.submit(
        tmp_path, "-p", "low", "-N2", "-c1", "--mem=1500M", str(FILES / "cluster.sbatch"), *words
    )
    about = slurm.wait(job, "COMPLETED", "FAILED", "CANCELLED")
    assert (about["JobState"], about["NodeList"]) == ("COMPLETED", "n[1-2]"), log_of(tmp_path, job)
    np.testing.assert_array_equal(ranks_of(tmp_path / "ranks.parquet"), undisturbed)
    assert '"workers": 2' in (tmp_path / "run.json").read_text()


def test_two_nodes_that_are_preempted_go_on(
    slurm: Slurm, graph: Path, undisturbed: NDArray[np.float64], tmp_path: Path
) -> None:
    words = [str(graph), "ranks.parquet", *LONG]
    job = slurm.submit(
        tmp_path, "-p", "low", "-N2", "-c1", "--mem=1500M", str(FILES / "cluster.sbatch"), *words
    )
    wait_for_passes(tmp_path, job)
    slurm.submit(tmp_path, "-p", "high", "-N2", "-c2", "--mem=1G", "-o", "/dev/null", "--wrap", "true")
    slurm.until(lambda: slurm.about(job)["Restarts"] == "1", "the job is requeued")
    slurm.start_soon(job)
    about = slurm.wait(job, "COMPLETED", "FAILED", "CANCELLED")
    assert about["JobState"] == "COMPLETED", log_of(tmp_path, job)
    np.testing.assert_array_equal(ranks_of(tmp_path / "ranks.parquet"), undisturbed)


def test_a_job_sees_what_it_was_given(slurm: Slurm, tmp_path: Path) -> None:
    # These nodes confine nobody: what SLURM tells the job counts.
    words = ["-p", "low", "-c1", "--mem=1500M", "--wrap", "oocpr doctor --json doctor.json"]
    job = slurm.submit(tmp_path, *words)
    assert slurm.wait(job, "COMPLETED", "FAILED")["JobState"] == "COMPLETED"
    machine = json.loads((tmp_path / "doctor.json").read_text())["machine"]
    assert (machine["usable_cores"], machine["usable_memory"]) == (1, 1500 << 20)


def test_an_array_ranks_each_graph_of_a_list(slurm: Slurm, graph: Path, data: Path, tmp_path: Path) -> None:
    site = data / "tiny" / "site.txt"
    (tmp_path / "graphs.txt").write_text(f"{graph} debian.parquet\n{site} site.parquet\n")
    options = ["--array=1-2%2", "-c1", "--mem=1G", "-p", "low"]
    job = slurm.submit(tmp_path, *options, str(FILES / "array.sbatch"), "graphs.txt", "--reads", "bits8")
    slurm.until(lambda: job not in slurm("squeue", "-h", "-o", "%A"), "the array is gone")
    for name, source in (("debian", graph), ("site", site)):
        expected = oocpr.pagerank(source, reads="bits8").to_numpy()
        np.testing.assert_array_equal(ranks_of(tmp_path / f"{name}.parquet"), expected)


def test_a_job_with_a_gpu_asks_for_it_and_ranks_on_it(slurm: Slurm, graph: Path, tmp_path: Path) -> None:
    options = ["--gres=gpu:1", "-c1", "--mem=1G", "-p", "low"]
    words = [str(graph), "ranks.parquet", "--device", "cuda", "--tol", "1e-8"]
    job = slurm.submit(tmp_path, *options, str(FILES / "rank.sbatch"), *words)
    about = slurm.wait(job, "COMPLETED", "FAILED", "CANCELLED")
    assert about["TresPerNode"] == "gres:gpu:1"
    if about["JobState"] == "FAILED":
        # This machine has none: oocpr says so, and its exit code is that of the job.
        assert about["ExitCode"] == "2:0"
        assert re.search(r"error: device cuda.*\nremedy: ", log_of(tmp_path, job))
    else:
        assert oocpr.verify(graph, tmp_path / "ranks.parquet").bound < 2e-8
