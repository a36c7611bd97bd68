"""What a run says of itself when it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oocpr.units import format_bytes, format_count, format_seconds, tell_error

if TYPE_CHECKING:
    from oocpr.result.report import Report

_WORTH_SAYING = 0.1
"""Seconds of compiling that are told."""


def summary(run: Report) -> str:
    """Return the lines that end a run: its certificate, its size and time, and what bounded it."""
    compiling = ""
    if run.compile_seconds >= _WORTH_SAYING:
        compiling = f" (and {format_seconds(run.compile_seconds)} of compiling, once on a machine)"
    device = f", of the device {format_bytes(run.peak_device_memory)}" if run.peak_device_memory else ""
    return (
        f"certified {tell_error(run.error_bound)}; "
        f"{run.passes} passes ({run.gathers:.1f} gathers) over "
        f"{format_count(run.edges)} edges in {format_seconds(run.seconds - run.compile_seconds)}{compiling}: "
        f"{run.gteps:.3g} GTEPS, "
        f"{run.bytes_per_edge:.2f} B/edge, peak memory {format_bytes(run.peak_memory)}{device}\n"
        f"{_read(run)}{_bound_by(run)}{_predicted(run)}{_start(run)}"
    )


def _read(run: Report) -> str:
    """How much came from the store, where it was more than once through."""
    if run.bytes_read < 1.01 * run.bytes_per_edge * run.edges:
        return ""
    rate = format_bytes(int(run.bytes_read / (run.seconds - run.compile_seconds)))
    how = "directly" if run.direct else "through the page cache"
    return f"read from the store: {format_bytes(run.bytes_read)} {how}, {rate}/s\n"


def _bound_by(run: Report) -> str:
    if not run.busy:
        return ""
    shares = {kind: seconds / run.seconds for kind, seconds in run.busy.items()}
    told = ", ".join(f"{kind} {share:.0%}" for kind, share in sorted(shares.items(), key=lambda of: -of[1]))
    return f"busy, of the time of the run: {told}\n"


def _predicted(run: Report) -> str:
    told = run.predicted or {}
    if "seconds" not in told or run.pass_seconds is None:
        return ""
    pairs = [
        ("a pass", format_seconds(told["pass_seconds"]), format_seconds(run.pass_seconds)),
        ("passes", f"{told['passes']}", f"{run.passes}"),
        ("in all", format_seconds(told["seconds"]), format_seconds(run.seconds - run.compile_seconds)),
        ("read", format_bytes(told["bytes_read"]), format_bytes(run.bytes_read)),
        ("peak memory", format_bytes(told["peak_memory"]), format_bytes(run.peak_memory)),
    ]
    return "predicted / found: " + ", ".join(f"{what} {one} / {other}" for what, one, other in pairs) + "\n"


def _start(run: Report) -> str:
    """That the run began with ranks of another graph, if it did."""
    if run.start_identity in (None, run.identity):
        return ""
    return f"began with ranks of another graph, {run.start_identity}; this one is {run.identity}\n"
