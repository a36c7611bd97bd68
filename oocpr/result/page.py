"""A run as a page of HTML in one file, to be kept and sent: what was asked for, what was found, on what.

The page asks for nothing from anywhere else, and follows the width and the colours of the reader's screen.
"""

from __future__ import annotations

import math
import platform
from datetime import UTC, datetime
from html import escape
from importlib.metadata import version
from typing import TYPE_CHECKING

from oocpr.html import html_table
from oocpr.result.centrality import Centrality
from oocpr.result.plots import distribution
from oocpr.system import usable_cores, whole_memory
from oocpr.units import (
    format_bound,
    format_bytes,
    format_count,
    format_error_bound,
    format_seconds,
    printable,
)
from oocpr.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oocpr.result.ranks import Ranks, Report

_STYLE = """
:root { color-scheme: light dark; --line: #1f77b4; --faint: #8888; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 1rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; overflow-wrap: anywhere; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
td, th { padding: .15rem .8rem .15rem 0; text-align: right; font-variant-numeric: tabular-nums; }
tr + tr { border-top: 1px solid var(--faint); }
.charts { display: flex; flex-wrap: wrap; gap: 1rem; } .charts svg { flex: 1 1 20rem; max-width: 30rem; }
svg text { font-size: 11px; fill: currentColor; } svg .axis { stroke: var(--faint); fill: none; }
svg .line { stroke: var(--line); stroke-width: 2; fill: none; } svg .dashed { stroke-dasharray: 4 3; }
.lost { color: #c22; font-weight: bold; }
@media (max-width: 40rem) { td, th { padding-right: .45rem; max-width: 12rem; overflow-wrap: break-word; } }
"""
MAX_LISTED = 1000
"""Most ranks on the page of a command: it is made in memory, and a file of ranks has them all."""

_WIDTH, _HEIGHT = 420, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 12, 26, 40


def page(ranks: Ranks, top: int, title: str) -> str:
    """Make the page of ranks and the `top` largest of them; see `Ranks.to_html`."""
    run, parts = ranks.run, [f"<h1>{escape(title)}</h1>"]
    if isinstance(ranks, Centrality):
        state = "Converged" if ranks.converged else "Not converged"
        parts.append(f"<p>{state}: {escape(ranks.facts.quality)}.</p>")
    elif run is None:
        parts.append("<p>No run is known that made these ranks, so nothing certifies them.</p>")
    else:
        parts += [_outcome(run), "<h2>What was found</h2>", html_table(_found(run))]
        if run.predicted:
            header = ("", "predicted", "found")
            parts += ["<h2>Plan and run</h2>", html_table(predicted_rows(run), header=header)]
    parts += ["<h2>Convergence and distribution</h2>", '<div class="charts">', *_charts(ranks), "</div>"]
    largest = [
        (place, printable(node), f"{rank:.6g}")
        for place, (node, rank) in enumerate(ranks.each_of_top(top), 1)
    ]
    parts += [f"<h2>The {len(largest)} largest ranks</h2>", html_table(largest, header=("", "node", "rank"))]
    if ranks.history:
        names = ("pass", "certified error", "seconds", "gathers", "read")
        passes = [
            (
                of.number, format_bound(of.bound), f"{of.seconds:.4g}", f"{of.gathers:.2f}",
                format_bytes(of.bytes_read),
            )
            for of in ranks.history
        ]  # fmt: skip
        parts += ["<h2>Passes</h2>", html_table(passes, header=names)]
    if run is not None:
        parts += ["<h2>What was asked for</h2>", html_table(_asked(run))]
    parts += ["<h2>Environment</h2>", html_table(_environment())]
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}"><style>{_STYLE}</style></head>\n'
        f"<body>{chr(10).join(parts)}</body></html>\n"
    )


def _outcome(run: Report) -> str:
    bound = escape(format_error_bound(run.error_bound))
    if run.converged:
        return f"<p>Certified: {bound}.</p>"
    return f'<p class="lost">Not converged: {bound}; {run.tol:g} was asked for.</p>'


def _found(run: Report) -> list[tuple[str, str]]:
    rows = [
        ("nodes", f"{run.nodes:,}"),
        ("edges", f"{run.edges:,}"),
        ("passes", f"{run.passes}"),
        ("gathers of all edges", f"{run.gathers:.1f}"),
        ("time", format_seconds(run.seconds)),
        *([("of it compiling", format_seconds(run.compile_seconds))] if run.compile_seconds else []),
        ("edges per second", format_count(run.gteps * 1e9)),
        ("bytes per edge", f"{run.bytes_per_edge:.2f}"),
        ("read from the store", format_bytes(run.bytes_read)),
        ("peak memory", format_bytes(run.peak_memory)),
    ]
    if run.peak_device_memory:
        rows.append(("peak memory of a device", format_bytes(run.peak_device_memory)))
    if run.busy:
        rows += [(f"busy, {kind}", f"{seconds / run.seconds:.0%}") for kind, seconds in run.busy.items()]
    return rows


def predicted_rows(run: Report) -> list[tuple[str, str, str]]:
    """What the plan of a run said, and what was found, as far as either is known."""
    forms: list[tuple[str, str, Callable[[float], str], float | None]] = [
        ("pass_seconds", "a pass", format_seconds, run.pass_seconds),
        ("passes", "passes", "{:.0f}".format, run.passes),
        ("seconds", "in all", format_seconds, run.seconds - run.compile_seconds),
        ("bytes_read", "read", format_bytes, run.bytes_read),
        ("peak_memory", "peak memory", format_bytes, run.peak_memory),
        ("peak_device_memory", "peak memory of a device", format_bytes, run.peak_device_memory),
    ]
    predicted = run.predicted or {}
    return [
        (words, form(predicted[name]), form(found))
        for name, words, form, found in forms
        if name in predicted and found is not None
    ]


def _asked(run: Report) -> list[tuple[str, str]]:
    yes = {True: "yes", False: "no"}
    return [
        ("method", run.method),
        ("reads", run.reads),
        ("damping", f"{run.damping:g}"),
        ("tolerance", f"{run.tol:g}"),
        ("dangling nodes", run.dangling),
        ("personalized", yes[run.personalized]),
        ("workers", f"{run.workers}"),
        ("graph", run.identity or "not known"),
        ("began with ranks of", run.start_identity or "none"),
    ]


def _environment() -> list[tuple[str, str]]:
    return [
        ("written", f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"),
        ("oocpr", __version__),
        ("Python", platform.python_version()),
        *((name, version(name)) for name in ("numpy", "numba", "zarr", "dask")),
        ("system", f"{platform.system()} {platform.release()}, {platform.machine()}"),
        ("cores", f"{usable_cores()}"),
        ("memory", format_bytes(whole_memory())),
    ]


def _charts(ranks: Ranks) -> list[str]:
    charts = []
    if ranks.history:
        numbers = [float(of.number) for of in ranks.history]
        tol = None if ranks.run is None else ranks.run.tol
        bounds = [of.bound for of in ranks.history]
        charts.append(_chart("Certified L1 error by passes, logarithmic", numbers, bounds, limit=tol))
        charts.append(
            _chart("Seconds of each pass", numbers, [of.seconds for of in ranks.history], log_y=False)
        )
    edges, above = distribution(ranks)
    title = "Nodes of a rank or more, both logarithmic"
    charts.append(_chart(title, edges.tolist(), [float(count) for count in above], log_x=True))
    return charts


def _short(value: float) -> str:
    return f"{value:,.0f}" if 1000 <= value < 1e9 else f"{value:.3g}"


def _axis(
    values: Sequence[float], log: bool, begin: float, end: float
) -> tuple[Callable[[float], float], float, float]:
    """Where a value is drawn between two places, and the values that are drawn at them."""
    low, high = min(values), max(values)
    scale = math.log10 if log else float
    span = scale(high) - scale(low) or 1.0
    return lambda value: begin + (scale(value) - scale(low)) / span * (end - begin), low, high


def _chart(
    title: str,
    xs: Sequence[float],
    ys: Sequence[float],
    *,
    log_x: bool = False,
    log_y: bool = True,
    limit: float | None = None,
) -> str:
    """Draw a line as SVG, with numbers at the ends of its axes; what is not above 0 has no logarithm."""
    points = [
        (x, y)
        for x, y in zip(xs, ys, strict=True)
        if math.isfinite(y) and (y > 0 or not log_y) and (x > 0 or not log_x)
    ]
    if not points:
        return ""
    heights = [y for _, y in points] + ([limit] if limit else []) + ([] if log_y else [0.0])
    across, left, right = _axis([x for x, _ in points], log_x, _LEFT, _WIDTH - _RIGHT)
    up, low, high = _axis(heights, log_y, _HEIGHT - _BOTTOM, _TOP)
    line = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in points)
    foot = _HEIGHT - _BOTTOM
    drawn = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">',
        f'<text x="{_LEFT}" y="14">{escape(title)}</text>',
        f'<path class="axis" d="M{_LEFT},{_TOP} V{foot} H{_WIDTH - _RIGHT}"/>',
        f'<polyline class="line" points="{line}"/>',
        f'<text x="{_LEFT - 4}" y="{_TOP + 8}" text-anchor="end">{_short(high)}</text>',
        f'<text x="{_LEFT - 4}" y="{foot}" text-anchor="end">{_short(low)}</text>',
        f'<text x="{_LEFT}" y="{foot + 16}">{_short(left)}</text>',
        f'<text x="{_WIDTH - _RIGHT}" y="{foot + 16}" text-anchor="end">{_short(right)}</text>',
    ]
    if limit:
        drawn.append(f'<path class="axis dashed" d="M{_LEFT},{up(limit):.1f} H{_WIDTH - _RIGHT}"/>')
    return "".join((*drawn, "</svg>"))
