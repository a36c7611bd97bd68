"""Figures of a job for Prometheus, as a file that the textfile collector of its node exporter reads.

The format is a few lines of text, so that no library is needed for it; tests read it with Prometheus' own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from oocpr.store.atomic import replacing

if TYPE_CHECKING:
    from pathlib import Path


Values = Mapping[tuple[tuple[str, str], ...], float | None]


class Gauge(NamedTuple):
    """A figure, its meaning, and its values by labels; values that are None are left out."""

    name: str
    help: str
    values: Values


def prometheus_text(gauges: Iterable[Gauge], **labels: str) -> str:
    """Write gauges in the text format of Prometheus, each with these labels as well.

    Examples
    --------
    >>> print(prometheus_text([Gauge("oocpr_passes", "Passes.", {(): 17.0})], job="web"), end="")
    # HELP oocpr_passes Passes.
    # TYPE oocpr_passes gauge
    oocpr_passes{job="web"} 17.0
    """
    lines = []
    for name, meaning, values in gauges:
        known = [(each, value) for each, value in values.items() if value is not None]
        if known:
            lines += [f"# HELP {name} {meaning}", f"# TYPE {name} gauge"]
        for own, value in known:
            pairs = ",".join(f'{label}="{_escaped(text)}"' for label, text in (*labels.items(), *own))
            lines.append(f"{name}{{{pairs}}} {_number(float(value))}")
    return "".join(f"{line}\n" for line in lines)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def job_gauges(summary: Mapping[str, Any], last_success: float | None) -> Iterator[Gauge]:
    """Take the figures out of the summary of a run; those that it does not have are left out.

    `last_success` is when a run last ended with exit code 0, in Unix time.
    """
    one = _single(summary)
    yield one("oocpr_job_exit_code", "Exit code of the last run.", "exit_code")
    yield Gauge(
        "oocpr_job_published",
        "Whether the last run has published ranks.",
        {(): float(summary["outcome"] == "published")},
    )
    yield one("oocpr_job_ended_timestamp_seconds", "When the last run ended.", "ended")
    yield Gauge(
        "oocpr_job_last_success_timestamp_seconds",
        "When a run last ended with exit code 0.",
        {(): last_success},
    )
    yield one("oocpr_job_duration_seconds", "Seconds of the last run.", "seconds")
    steps: Values = {(("step", step),): seconds for step, seconds in summary.get("steps", {}).items()}
    yield Gauge("oocpr_job_step_seconds", "Seconds of each step of the last run.", steps)
    if (run := summary.get("run")) is not None:
        yield from _run_gauges(run)
    if (comparison := summary.get("comparison")) is not None:
        found = _single(comparison)
        yield found("oocpr_comparison_l1_distance", "L1 distance from the ranks before.", "distance")
        yield found("oocpr_comparison_overlap", "Share of the largest ranks that is the same.", "overlap")
        yield found(
            "oocpr_comparison_kendall_tau", "Kendall's tau of the order of the largest.", "kendall_tau"
        )


def _run_gauges(run: Mapping[str, Any]) -> Iterator[Gauge]:
    one = _single(run)
    yield one("oocpr_graph_nodes", "Nodes of the graph.", "nodes")
    yield one("oocpr_graph_edges", "Edges of the graph, duplicates merged.", "edges")
    yield one("oocpr_rank_passes", "Passes over the graph.", "passes")
    yield one("oocpr_rank_error_bound", "Certified bound on the L1 error of the ranks.", "error_bound")
    yield one("oocpr_rank_seconds", "Seconds of the ranking.", "seconds")
    yield one("oocpr_rank_gteps", "Edges times passes per second, in 10^9.", "gteps")
    yield one("oocpr_rank_bytes_read", "Encoded bytes read from the store.", "bytes_read")
    yield one("oocpr_rank_bytes_per_edge", "Encoded bytes of an edge.", "bytes_per_edge")
    yield one("oocpr_rank_peak_memory_bytes", "Most memory of the process.", "peak_memory")
    yield Gauge(
        "oocpr_rank_cached_share",
        "Share of the encoded bytes of all passes that memory had, and the store was not read for.",
        {(): cached_share(run)},
    )
    predicted = run.get("predicted") or {}
    sides = {"predicted": predicted, "found": {name: found_value(run, name) for name in predicted}}
    values: Values = {
        (("figure", name), ("side", side)): value
        for side, figures in sides.items()
        for name, value in figures.items()
    }
    yield Gauge("oocpr_rank_plan", "What the plan predicted of the ranking, and what was found.", values)


def cached_share(run: Mapping[str, Any]) -> float | None:
    """Share of the bytes of all passes that did not come from the store.

    >>> cached_share({"edges": 10, "bytes_per_edge": 2.0, "passes": 4, "bytes_read": 20})
    0.75
    """
    needed = run["edges"] * run["bytes_per_edge"] * run["passes"]
    return max(0.0, 1 - run["bytes_read"] / needed) if needed else None


def found_value(run: Mapping[str, Any], name: str) -> float | None:
    """What a run has found of a figure that its plan predicts; seconds are those without compiling."""
    value: float | None = run.get(name)
    return value - run["compile_seconds"] if name == "seconds" and value is not None else value


def _single(facts: Mapping[str, Any]) -> Any:
    return lambda name, meaning, key: Gauge(name, meaning, {(): facts.get(key)})


def write_metrics(path: Path, summary: Mapping[str, Any], last_success: float | None) -> None:
    """Write the metrics of a run, at once; DoesNotFitError or UsageError if they cannot be written."""
    text = prometheus_text(job_gauges(summary, last_success), job=str(summary["job"]))
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
        # The collector is another user.
        temporary.chmod(0o644)
