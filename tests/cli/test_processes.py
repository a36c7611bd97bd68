"""Full disks, broken pipes, interruptions and terminals: what only a process of its own can show."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import oocpr
from oocpr.cli.interrupts import stopping_like_ctrl_c

if TYPE_CHECKING:
    Start = Callable[..., subprocess.Popen[bytes]]

TWO_LINES = re.compile(r"error: .+\nremedy: .+\n")

NEVER = ("--method", "power", "--reads", "float64", "--damping", 0.99999, "--tol", 1e-8)
"""Settings of a run that takes minutes on the `endless` graph."""

# Compiled functions are loaded, and kept for later runs, before files may not grow any more.
LIMITED = """
import pathlib, resource, sys, tempfile
import oocpr
from oocpr.cli import main
from oocpr.sources.rmat import Rmat
with tempfile.TemporaryDirectory() as folder:
    edges = pathlib.Path(folder, "edges.txt")
    edges.write_text("1 2\\n2 4\\n")
    for source in (edges, Rmat(5)):
        oocpr.pagerank(oocpr.import_graph(source, edges.with_suffix(".zarr"), overwrite=True))
limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
sys.exit(main(sys.argv[2:]))
"""


def limited(environment: dict[str, str], limit: int, *words: object) -> subprocess.CompletedProcess[str]:
    """Run a command that may write no file larger than `limit` bytes."""
    command = [sys.executable, "-c", LIMITED, str(limit), *(str(word) for word in words)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph of four thousand nodes that takes some passes to rank."""
    from oocpr.sources.rmat import Rmat

    path = tmp_path_factory.mktemp("processes") / "graph.zarr"
    oocpr.import_graph(Rmat(12), path)
    return path


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A star whose ranks swing to its middle and back, and so come to rest by the damping alone."""
    path = tmp_path_factory.mktemp("processes") / "graph.zarr"
    ends = np.arange(1, 4000)
    middle = np.zeros_like(ends)
    oocpr.import_graph(np.concatenate([np.stack([ends, middle], 1), np.stack([middle, ends], 1)]), path)
    return path


@pytest.mark.long
def test_an_import_on_a_full_disk_leaves_nothing(tmp_path: Path, environment: dict[str, str]) -> None:
    done = limited(environment, 5_000, "generate", "rmat", "--scale", 12, "-o", tmp_path / "graph.zarr")
    assert done.returncode == 4
    assert TWO_LINES.fullmatch(done.stderr)
    assert "File too large" in done.stderr
    assert (done.stdout, list(tmp_path.iterdir())) == ("", [])


@pytest.mark.long
@pytest.mark.parametrize("name", ["ranks.parquet", "ranks.zarr"])
def test_ranks_on_a_full_disk_leave_what_was_there(
    tmp_path: Path, graph: Path, environment: dict[str, str], name: str
) -> None:
    path = tmp_path / name
    if name.endswith(".zarr"):
        oocpr.pagerank(graph, tol=0.1).to_zarr(path)
    else:
        path.write_text("what stood here")
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    done = limited(environment, 400, "rank", graph, "-o", path)
    assert done.returncode == 4
    assert TWO_LINES.fullmatch(done.stderr)
    assert str(path) in done.stderr
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before


@pytest.mark.long
def test_a_source_on_a_full_disk_leaves_no_temporary_store(
    tmp_path: Path, data: Path, environment: dict[str, str]
) -> None:
    source = data / "debian-bookworm-deps.txt.gz"
    done = limited(environment, 50_000, "rank", source, "--tmp", tmp_path)
    assert done.returncode == 4
    assert TWO_LINES.fullmatch(done.stderr)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
@pytest.mark.parametrize("words", [("rank", "-o", "-"), ("info",)])
def test_a_full_standard_output_is_an_error(process: Start, graph: Path, words: tuple[str, ...]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = process(words[0], graph, *words[1:], stdout=full, stderr=subprocess.PIPE)
        _, err = done.communicate()
    assert done.returncode == 4
    assert re.search(TWO_LINES, err.decode())
    assert "standard output" in err.decode()
    assert "Traceback" not in err.decode()


@pytest.mark.long
@pytest.mark.parametrize("words", [("top", "-k", "4000"), ("rank", "-o", "-")])
def test_a_reader_that_goes_away_is_no_error(
    process: Start, graph: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    path = graph
    if words[0] == "top":
        path = tmp_path / "ranks.csv"
        oocpr.pagerank(graph, tol=1e-3).to_csv(path)
    reading, writing = os.pipe()
    done = process(words[0], path, *words[1:], stdout=writing, stderr=subprocess.PIPE)
    os.close(reading)
    os.close(writing)
    _, err = done.communicate()
    assert (done.returncode, err) == (141, b"")


class Terminal:
    """A pseudo-terminal that a process takes for its standard error."""

    def __init__(self) -> None:
        self.reading, self.writing = os.openpty()
        self.text = ""

    def wait_for(self, word: str, seconds: float = 60) -> None:
        """Read until the word has been written."""
        end = time.monotonic() + seconds
        while word not in self.text:
            assert time.monotonic() < end, self.text
            self.text += os.read(self.reading, 4096).decode()

    def rest(self) -> str:
        """Everything that was written, once the process is gone."""
        os.close(self.writing)
        while True:
            try:
                more = os.read(self.reading, 4096)
            except OSError:
                break
            if not more:
                break
            self.text += more.decode()
        os.close(self.reading)
        return self.text.replace("\r\n", "\n")


@pytest.mark.parametrize(
    ("stage", "number"),
    [
        ("reading", signal.SIGINT),
        ("reading", signal.SIGTERM),
        pytest.param("writing", signal.SIGINT, marks=pytest.mark.slow),
        pytest.param("writing", signal.SIGHUP, marks=pytest.mark.slow),
    ],
)
def test_an_interrupted_import_leaves_nothing(
    process: Start, tmp_path: Path, stage: str, number: signal.Signals
) -> None:
    terminal = Terminal()
    words = ("generate", "rmat", "--scale", 19, "-o", tmp_path / "graph.zarr")
    done = process(*words, stdout=subprocess.PIPE, stderr=terminal.writing)
    terminal.wait_for(stage)
    assert list(tmp_path.iterdir()) != []
    interrupted(done, terminal, number)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_that_a_library_makes_another_error_of_has_the_documented_exit_code(
    tmp_path: Path,
) -> None:
    program = """
import signal, sys
import oocpr.cli
import oocpr.cli.options

def load(*_, **__):
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        pass
    raise ImportError("numba._devicearray failed to import")

signal.signal(signal.SIGINT, signal.default_int_handler)
import oocpr.cli.commands
oocpr.cli.commands.cli.make_context = load
oocpr.cli.run_process()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert done.stderr.startswith("error: interrupted.")


def test_an_interrupt_while_a_class_is_made_of_text_has_the_documented_exit_code(tmp_path: Path) -> None:
    program = """
import signal, sys
import oocpr.cli
import oocpr.cli.options  # or it would be imported later, which runs such code

# What is started in the background ignores it.
signal.signal(signal.SIGINT, signal.default_int_handler)
oocpr.cli._run = lambda *_: exec("signal.raise_signal(signal.SIGINT)")
oocpr.cli.run_process()
"""
    (tmp_path / "interrupted.py").write_text(program)
    words = [sys.executable, "-m", "interrupted"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert TWO_LINES.fullmatch(done.stderr), done.stderr


LOSING = """
import asyncio, atexit, ctypes, os, signal, sys, time
import numba.core.codegen
import oocpr.api
import oocpr.cli
import zarr.core.sync

place, number = sys.argv[1], int(sys.argv[2])
came = []

def come(*_):
    if not came:
        came.append(number)
        signal.raise_signal(number)
    return 0

class Destroyed:
    def __del__(self):
        come()

def callback():
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    ctypes.CDLL(None).qsort((ctypes.c_int * 2)(2, 1), 2, 4, kind(come))

def before(do, function):
    def both(*words, **options):
        do()
        return function(*words, **options)
    return both

def after_exclusive(path, flags, *mode, open=os.open, **how):
    descriptor = open(path, flags, *mode, **how)
    if flags & os.O_EXCL and "ranks.csv" in str(path):
        come()
    return descriptor

def delay():
    if not came and zarr.core.sync.loop[0] is not None:
        zarr.core.sync.loop[0].call_soon_threadsafe(time.sleep, 0.3)

def broken_off(*futures, wait=zarr.core.sync.wait, **how):
    if not came:
        come()
        raise KeyboardInterrupt
    return wait(*futures, **how)

if place == "making":
    os.open = after_exclusive
elif place == "waiting":
    zarr.core.sync.wait = broken_off
    asyncio.run_coroutine_threadsafe = before(delay, asyncio.run_coroutine_threadsafe)
elif place == "loading":
    library = numba.core.codegen.JITCodeLibrary
    library._object_getbuffer_hook = before(come, library._object_getbuffer_hook)
    library._object_compiled_hook = before(come, library._object_compiled_hook)
else:
    oocpr.api.pagerank = before({"callback": callback, "destruction": Destroyed}[place], oocpr.api.pagerank)

# What is started in the background, or by nohup, ignores some.
signal.signal(number, signal.default_int_handler)
sys.argv[1:3] = []
atexit.register(lambda: print("came" * bool(came)))
oocpr.cli.run_process()
"""


@pytest.mark.parametrize(
    ("place", "number"),
    [
        ("loading", signal.SIGINT),
        ("callback", signal.SIGTERM),
        ("destruction", signal.SIGHUP),
        ("making", signal.SIGINT),
        ("waiting", signal.SIGINT),
    ],
)
def test_an_interrupt_that_python_would_show_and_forget_ends_the_run(
    environment: dict[str, str], endless: Path, tmp_path: Path, place: str, number: signal.Signals
) -> None:
    output = tmp_path / "ranks.csv"
    output.write_text("what stood here")
    words = [sys.executable, "-c", LOSING, place, str(int(number)), "rank", endless, *NEVER, "-o", output]
    done = subprocess.run(
        list(map(str, words)), env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stdout) == (130, "came\n")
    assert TWO_LINES.fullmatch(done.stderr), done.stderr
    assert output.read_text() == "what stood here"
    assert list(tmp_path.iterdir()) == [output]


def test_a_second_interrupt_while_the_first_is_put_off_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def come_again(_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("threading.Timer.start", come_again)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), stopping_like_ctrl_c():
            exec("signal.raise_signal(signal.SIGINT)", {"__name__": "logging", "signal": signal})
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.long
def test_an_interrupted_run_leaves_nothing(process: Start, endless: Path, tmp_path: Path) -> None:
    terminal = Terminal()
    words = ("rank", endless, *NEVER, "-o", tmp_path / "ranks.parquet")
    done = process(*words, stdout=subprocess.PIPE, stderr=terminal.writing)
    terminal.wait_for("ranking")
    interrupted(done, terminal)
    assert list(tmp_path.iterdir()) == []


def interrupted(
    done: subprocess.Popen[bytes], terminal: Terminal, number: signal.Signals = signal.SIGINT
) -> None:
    done.send_signal(number)
    out, _ = done.communicate(timeout=60)
    last = terminal.rest().rpartition("\x1b[2K")[2]
    assert (done.returncode, out) == (130, b"")
    assert TWO_LINES.fullmatch(last), last


@pytest.mark.long
def test_a_terminal_gets_one_live_line_and_a_drawn_table(process: Start, data: Path) -> None:
    terminal = Terminal()
    words: tuple[Any, ...] = ("rank", data / "tiny" / "site.txt", "--top", 3)
    done = process(*words, stdout=terminal.writing, stderr=terminal.writing)
    terminal.wait_for("peak memory")
    assert done.wait() == 0
    live, _, answer = terminal.rest().rpartition("\x1b[2K")
    assert {"reading", "writing", "ranking"} <= set(re.findall(r"\x1b\[2K(\w+)", live))
    # A line of its own is only what a person should read; everything else is overwritten.
    assert "\n" not in live
    assert "│ 1 │" in answer
    assert "home" in answer


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "unit", "stages"),
    [
        (("plan", "--method", "mixed"), "tiles", ["measuring"]),
        (("plan",), "passes", ["measuring"]),
        (("rank", "--method", "mixed", "--predict"), "tiles", ["measuring", "ranking"]),
    ],
    ids=["tiles", "in memory", "before a run"],
)
def test_measuring_is_shown_on_the_live_line(
    process: Start, graph: Path, words: tuple[str, ...], unit: str, stages: list[str]
) -> None:
    terminal = Terminal()
    done = process(words[0], graph, *words[1:], stdout=subprocess.PIPE, stderr=terminal.writing)
    out, _ = done.communicate()
    assert done.returncode == 0
    assert b"measuring" not in out
    live, _, answer = terminal.rest().rpartition("\x1b[2K")
    assert answer == ""
    assert "\n" not in live
    drawn = [line for line in live.split("\r\x1b[2K") if line and not line.startswith("compiling")]
    assert list(dict.fromkeys(re.match(r"\w+", line)[0] for line in drawn)) == stages
    assert unit in next(line for line in drawn if line.startswith("measuring"))


def test_nothing_is_drawn_where_nobody_looks(process: Start, graph: Path) -> None:
    done = process("rank", graph, "--top", 1, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = done.communicate()
    assert (done.returncode, err) == (0, b"")
    assert b"\x1b" not in out
    assert len(out.splitlines()) == 2
