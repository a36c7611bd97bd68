"""Metrics of jobs, read by Prometheus' own parser."""

from __future__ import annotations

import math
import stat
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from oocpr.jobs.metrics import Gauge, job_gauges, prometheus_text, write_metrics

RUN: dict[str, Any] = {
    "nodes": 5, "edges": 10, "passes": 4, "error_bound": 5e-11, "seconds": 2.5, "compile_seconds": 0.5,
    "gteps": 0.25, "bytes_read": 20, "bytes_per_edge": 2.0, "peak_memory": 1 << 20, "pass_seconds": 0.5,
    "predicted": {"passes": 6, "seconds": 3.0},
}  # fmt: skip
SUMMARY: dict[str, Any] = {
    "job": "web", "outcome": "published", "exit_code": 0, "ended": 1.8e9, "seconds": 9.5,
    "steps": {"import": 4.0, "rank": 5.0}, "run": RUN,
    "comparison": {"distance": 0.125, "overlap": 0.5, "kendall_tau": math.nan},
}  # fmt: skip


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Values by name and labels, the job left out."""
    return {
        (sample.name, *(value for key, value in sorted(sample.labels.items()) if key != "job")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_all_figures_of_a_run_are_there() -> None:
    text = prometheus_text(job_gauges(SUMMARY, 1.8e9), job="web")
    found = samples(text)
    assert found["oocpr_job_exit_code",] == 0
    assert found["oocpr_job_published",] == 1
    assert found["oocpr_job_last_success_timestamp_seconds",] == 1.8e9
    assert found["oocpr_job_step_seconds", "rank"] == 5
    assert found["oocpr_rank_error_bound",] == 5e-11
    assert found["oocpr_rank_cached_share",] == 0.75
    assert found["oocpr_rank_plan", "passes", "predicted"] == 6
    assert found["oocpr_rank_plan", "passes", "found"] == 4
    assert found["oocpr_rank_plan", "seconds", "found"] == 2.0
    assert found["oocpr_comparison_l1_distance",] == 0.125
    assert math.isnan(found["oocpr_comparison_kendall_tau",])
    families = list(text_string_to_metric_families(text))
    assert all(family.type == "gauge" and family.documentation for family in families)
    assert len({family.name for family in families}) == len(families)


def test_what_a_run_has_not_found_is_left_out() -> None:
    failed = {"job": "web", "outcome": "failed", "exit_code": 2, "ended": 1.8e9, "seconds": 1.0, "run": None}
    found = samples(prometheus_text(job_gauges(failed, None), job="web"))
    assert {name for name, *_ in found} == {
        "oocpr_job_exit_code", "oocpr_job_published", "oocpr_job_ended_timestamp_seconds",
        "oocpr_job_duration_seconds",
    }  # fmt: skip
    assert found["oocpr_job_published",] == 0


@given(st.text(), st.floats())
def test_any_label_and_number_come_back(label: str, value: float) -> None:
    text = prometheus_text([Gauge("oocpr_x", "X.", {(("step", label),): value})], job="a")
    (family,) = text_string_to_metric_families(text)
    (sample,) = family.samples
    assert sample.labels == {"job": "a", "step": label}
    assert sample.value == value or (math.isnan(value) and math.isnan(sample.value))


def test_the_file_can_be_read_by_other_users(tmp_path: Path) -> None:
    path = tmp_path / "web.prom"
    path.write_text("old")
    write_metrics(path, SUMMARY, None)
    assert samples(path.read_text())["oocpr_rank_passes",] == 4
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert list(tmp_path.iterdir()) == [path]
