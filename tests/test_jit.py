"""Compiled functions are kept so that processes may compile side by side."""

from __future__ import annotations

import importlib.util
import os
import resource
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

import oocpr
from oocpr import jit

SOURCE = """
from oocpr.jit import entry

@entry()
def half(x):
    return x / 2
"""


def loaded(path: Path) -> Any:
    """The function anew, as another process has it."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.half


def test_versions_that_two_processes_compile_at_once_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "halves.py"
    path.write_text(SOURCE)
    one, two = loaded(path), loaded(path)
    assert one(True) == two(True) == 0.5
    files = one._cache._cache_file
    save_data, index = files._save_data, files._load_index()

    def overtaken(name: str, data: Any) -> None:
        assert two(3.5) == 1.75
        save_data(name, data)

    # Both read the same index; the second then writes all of its own before the first is done.
    monkeypatch.setattr(two._cache._cache_file, "_load_index", index.copy)
    monkeypatch.setattr(files, "_save_data", overtaken)
    assert one(3) == 1.5
    assert loaded(path)(3.5) == 1.75
    assert loaded(path)(3) == 1.5


def test_threads_that_look_for_the_cache_at_once_find_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OOCPR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            folders = set(pool.map(lambda _: jit.cache_folder(), range(500)))
    finally:
        sys.setswitchinterval(interval)
    [folder] = folders
    assert Path(folder).is_relative_to(tmp_path / "compiled")
    assert numba.config.CACHE_DIR == ""


def test_what_one_process_compiles_another_loads(tmp_path: Path) -> None:
    path = tmp_path / "halves.py"
    path.write_text(SOURCE)
    for argument in (3, 3.0):
        for compiled in (1, 0):
            function = loaded(path)
            assert function(argument) == 1.5
            assert sum(function.stats.cache_misses.values()) == compiled


def test_what_was_made_of_other_sources_is_compiled_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "halves.py"
    path.write_text(SOURCE)
    for sources, argument, compiled in [("a", 3, 1), ("a", 3.0, 1), ("a", 3, 0), ("b", 3, 1), ("b", 3, 0)]:
        monkeypatch.setattr("oocpr.jit._sources", lambda sources=sources: sources)
        function = loaded(path)
        assert function(argument) == 1.5
        assert sum(function.stats.cache_misses.values()) == compiled
    # Of what was made of the others nothing is left.
    assert len([*Path(function._cache.cache_path).glob("halves.half-*.nbc")]) == 1


def test_any_source_of_compiled_code_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("", "engine/cpu", "cli", "engine/__pycache__"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "some.py").write_text("A = 1\n")
    monkeypatch.setattr("oocpr.jit.__file__", str(tmp_path / "jit.py"))
    find = jit._sources.__wrapped__
    for folder, counts in (("", True), ("engine/cpu", True), ("cli", False), ("engine/__pycache__", False)):
        before = find()
        assert find() == before
        (tmp_path / folder / "some.py").write_text("A = 20\n")
        assert (find() != before) == counts


def test_a_disk_without_room_costs_no_call(tmp_path: Path) -> None:
    path = tmp_path / "halves.py"
    path.write_text(SOURCE)
    function = loaded(path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400, before[1]))
    try:
        assert function(3) == 1.5
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    # What was half kept is compiled anew, and kept.
    for compiled in (1, 0):
        function = loaded(path)
        assert function(3) == 1.5
        assert sum(function.stats.cache_misses.values()) == compiled


@pytest.mark.long
def test_compiled_functions_go_where_they_can(tmp_path):
    module = tmp_path / "readonly" / "doubled.py"
    module.parent.mkdir()
    module.write_text(
        "from oocpr.jit import entry\n\n@entry()\ndef double(x):\n    return 2 * x\n\nprint(double(21))\n"
    )
    # What cannot be made into a folder cannot be written to, by whomever.
    (module.parent / "__pycache__").write_text("")
    home = tmp_path / "home"
    home.write_text("")
    kept = tmp_path / "kept"
    bare = {key: value for key, value in os.environ.items() if "CACHE" not in key}
    bare |= {"HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    for environment in (bare, bare | {"OOCPR_CACHE_DIR": str(kept)}):
        done = subprocess.run(
            [sys.executable, "-c", "import runpy, sys; runpy.run_path(sys.argv[1])", module],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.stdout, done.stderr) == ("42\n", "")
    assert list(kept.rglob("*.nbc"))


PROGRAM = """
import sys
import numba, numpy as np
from halves import half

assert half(3.0) == 1.5
print(sum(half.stats.cache_misses.values()), "numba.np.arraymath" in sys.modules)

@numba.njit
def quarter(values):
    return half(half(np.sort(values)[0]))

print(quarter(np.array([5.0, 4.0])), half(5), "numba.np.arraymath" in sys.modules)
"""


@pytest.mark.long
def test_what_is_loaded_brings_no_compiler_and_is_called_by_what_is_compiled_next(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    (tmp_path / "halves.py").write_text(SOURCE.replace("entry()", "entry(shared=True)"))
    for first in ("1 True", "0 False"):
        done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)
        assert (done.stdout, done.stderr) == (f"{first}\n1.0 2.5 True\n", "")


@pytest.mark.parametrize("shared", [False, True])
def test_what_only_python_calls_is_kept_without_what_inlines_it(tmp_path: Path, shared: bool) -> None:
    path = tmp_path / "halves.py"
    path.write_text(SOURCE.replace("entry()", f"entry({shared=})"))
    assert loaded(path)(3.0) == 1.5
    function = loaded(path)
    assert function(3.0) == 1.5
    assert not function.stats.cache_misses
    [kept] = function.overloads.values()
    kept_for_others = [part.name for part in kept.library._shared_module.functions]
    assert bool(kept_for_others) == shared

    @numba.njit
    def quarter(x: Any) -> Any:
        return function(x) / 2

    if shared:
        assert quarter(3.0) == 0.75
    else:
        with pytest.raises(TypeError, match="compiled functions call only"):
            quarter(3.0)


CALLED = """
from oocpr.jit import entry, inner

@inner(late=True)
def add(out, values):
    for i in range(values.size):
        out[i] += 2.0 * values[i]

@entry()
def half(out, values):
    add(out, values)
"""


def test_what_is_optimized_late_is_so_where_it_is_called(tmp_path: Path) -> None:
    path = tmp_path / "sums.py"
    path.write_text(CALLED)
    half, out = loaded(path), np.ones(1000)
    half(out, out.copy())
    assert (out == 3).all()
    (code,) = half.inspect_llvm().values()
    (alone,) = half.py_func.__globals__["add"].inspect_llvm().values()
    vectors = "x double>"
    assert vectors in code
    assert vectors not in alone


@pytest.mark.parametrize(("command", "code"), [("info graph.zarr", 2), ("doctor", 8)])
def test_where_nothing_may_be_compiled_nothing_runs(tmp_path: Path, command: str, code: int) -> None:
    words = [sys.executable, "-m", "oocpr", *command.split()]
    oocpr.import_graph(np.array([[0, 1]]), tmp_path / "graph.zarr")
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert "NUMBA_DISABLE_JIT is set" in done.stderr
    assert "\nremedy: Unset it." in done.stderr
