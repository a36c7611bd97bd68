"""The machine that figures were measured on, without its name or anybody's paths."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("oocpr", "numpy", "scipy", "numba", "zarr", "numcodecs")


def describe() -> dict[str, object]:
    """Processor, caches, memory and versions, ready for JSON.

    Returns
    -------
    dict
        ``cpu`` (model name), ``cores`` (that this process may use), ``caches`` (KiB by level, as the system
        reports them), ``memory_gib``, ``huge_pages``, ``system``, ``python`` and ``packages``.
    """
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "caches": _caches(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "huge_pages": _chosen(Path("/sys/kernel/mm/transparent_hugepage/enabled")),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
    }


def provenance(program: str, machine: str = "") -> dict[str, object]:
    """``command``, ``date``, ``commit``, ``versions`` and ``machine`` of a run, ready for JSON.

    Parameters
    ----------
    program
        Name of the program's file; its options are taken from the command line, folders left out.
    machine
        What to add to the description of the processors, such as the names of devices.
    """
    facts = describe()
    words = [Path(word).name if word.startswith("/") else word for word in sys.argv[1:]]
    cpu = f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gib']} GiB"
    return {
        "command": " ".join(["python", f"workflows/bench/{program}", *words]),
        "date": datetime.now(UTC).date().isoformat(),
        "commit": _commit(),
        "versions": facts["packages"],
        "machine": f"{cpu}, {machine}" if machine else cpu,
    }


def _commit() -> str:
    words = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.machine()


def _caches() -> dict[str, int]:
    sizes = {}
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level = (folder / "level").read_text().strip()
        kind = {"Data": "d", "Instruction": "i"}.get((folder / "type").read_text().strip(), "")
        sizes[f"L{level}{kind}"] = int((folder / "size").read_text().strip().removesuffix("K"))
    return sizes


def _chosen(setting: Path) -> str:
    """Word in brackets of a kernel setting that lists its choices."""
    try:
        return setting.read_text().split("[")[1].split("]")[0]
    except (OSError, IndexError):
        return "unknown"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    print(json.dumps(describe(), indent=2))
