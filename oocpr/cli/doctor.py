"""The command that looks at the machine."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from oocpr.cli.commands import cli
from oocpr.cli.options import json_option, option
from oocpr.cli.output import answer, pairs
from oocpr.errors import SetupError, UsageError
from oocpr.units import format_bytes

if TYPE_CHECKING:
    from oocpr.diagnosis import Machine


@cli.command(
    params=[
        option("--folder DIR", "Where stores are, or will be: its disk is measured.", default="."),
        json_option("facts and findings"),
    ],
    examples="""
    oocpr doctor
    oocpr doctor --folder /scratch --json -
    srun --cpus-per-task=16 --mem=32G oocpr doctor
    """,
)
def doctor(folder: str, json_path: str | None) -> None:
    """Say what this machine has, and what would stop runs.

    What counts is what this process may use: limits of the shell, of groups (cgroups) and of a SLURM job
    included. The disk of the folder is measured with a file of 64 MiB, which is removed. Exit code 0 if runs
    can be done, though they may be slower than they could be; 8 if something would stop them.
    """
    from pathlib import Path

    from oocpr.api.machine import read_machine
    from oocpr.diagnosis import diagnose

    if not Path(folder).is_dir():
        raise UsageError(f"{folder} is no folder.", "Name one that exists.")
    machine = read_machine(folder)
    findings = diagnose(machine)
    text = pairs(_rows(machine))
    for each in findings:
        text += f"\n{'stops' if each.stops else 'slower'}: {each.cause}\nremedy: {each.remedy}\n"
    answer(text, {"machine": asdict(machine), "findings": [asdict(each) for each in findings]}, json_path)
    stopping = [each for each in findings if each.stops]
    if stopping:
        raise SetupError(f"runs would be stopped here: {stopping[0].cause}", stopping[0].remedy)


def _rows(machine: Machine) -> list[tuple[str, str]]:
    rate = "not measured"
    if machine.read_rate is not None:
        way = "directly" if machine.direct else "through the page cache"
        rate = f"{format_bytes(machine.read_rate)}/s {way}"
    limits = {
        "open files": None if machine.open_files is None else str(machine.open_files),
        "address space": None if machine.address_space is None else format_bytes(machine.address_space),
        "file size": None if machine.file_size is None else format_bytes(machine.file_size),
    }
    rows = [
        ("system", f"{machine.system}, Python {machine.python}"),
        ("processor", machine.processor),
        ("cores", f"{machine.usable_cores} of {machine.cores} usable, load {machine.load:.1f}"),
        ("vector instructions", ", ".join(machine.simd) or "none"),
        ("compiled functions", machine.cache or "kept nowhere"),
        ("memory", f"{format_bytes(machine.usable_memory)} of {format_bytes(machine.memory)} usable"),
        (f"disk of {machine.folder}", f"{machine.file_system}, {format_bytes(machine.free)} free, {rate}"),
        ("temporary files", f"{machine.temporary} ({machine.temporary_file_system})"),
        ("/dev/shm", f"{format_bytes(machine.shared_memory)} free"),
        ("limits", ", ".join(f"{name} {limit or 'unlimited'}" for name, limit in limits.items())),
        ("NVIDIA driver", machine.driver or "none"),
    ]
    for number, device in enumerate(machine.devices):
        size, free = (format_bytes(int(device[name])) for name in ("memory", "free"))
        about = f"{device['name']}, compute capability {device['capability']}, {free} of {size} free"
        rows.append((f"device cuda:{number}", about))
    if machine.device_problem is not None:
        rows.append(("devices", machine.device_problem[0]))
    rows.append(("packages", ", ".join(f"{name} {found}" for name, found in machine.packages.items())))
    return rows
