"""What is drawn is what the ranks, their run and their graph have."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from numpy.testing import assert_allclose

import oocpr
from oocpr.errors import SetupError, UsageError
from oocpr.result.names import ListedNames, RowNames
from oocpr.result.ranks import Ranks


@pytest.fixture(autouse=True)
def without_a_screen(monkeypatch):
    # Not imported with this module, which every process of the tests collects.
    monkeypatch.setenv("MPLBACKEND", "Agg")
    yield
    if plt := sys.modules.get("matplotlib.pyplot"):
        plt.close("all")


def test_the_bound_against_passes_and_seconds(graph):
    ranks = oocpr.pagerank(graph, method="mixed")
    passes, times, _ = ranks.plot()
    numbers, bounds = passes.lines[0].get_data()
    assert list(numbers) == list(range(1, ranks.passes + 1))
    assert list(bounds) == [record.bound for record in ranks.history]
    assert_allclose(times.lines[0].get_xdata(), np.cumsum([record.seconds for record in ranks.history]))
    assert bounds[-1] <= ranks.run.tol == passes.lines[1].get_ydata()[0]
    passes.figure.savefig(graph.path + ".png")


def test_ranks_from_elsewhere_have_their_distribution_drawn():
    values = np.random.default_rng(2).pareto(1.2, 5000)
    values /= values.sum()
    (ax,) = Ranks(values, RowNames()).plot()
    at, counts = ax.lines[0].get_data()
    assert counts[0] == 5000
    for edge, count in zip(at, counts, strict=True):
        assert np.count_nonzero(values >= edge) == count
    assert counts[-1] > 0


def test_degrees_against_ranks(graph):
    ranks = oocpr.pagerank(graph)
    *_, ax = ranks.plot(graph)
    assert ax.collections[0].get_array().sum() == graph.nodes
    other = oocpr.import_graph(([0, 1], [1, 0]), graph.path + "2")
    for wrong in (other, oocpr.import_graph(([0, 299], [299, 0]), graph.path + "3")):
        with pytest.raises(UsageError, match="not of this graph"):
            ranks.plot(wrong)


def test_movers(graph):
    ranks = oocpr.pagerank(graph)
    found = ranks.compare(oocpr.pagerank(graph, damping=0.5))
    ax = found.plot()
    widths = [bar.get_width() for bar in ax.patches]
    assert widths == [mover.rank - mover.other_rank for mover in found.movers[::-1]]
    assert found.plot(ax) is ax


def test_names_are_no_formulas():
    one = Ranks(np.array([0.75, 0.25]), ListedNames(["$x", r"$\bad{"]))
    found = one.compare(Ranks(np.array([0.25, 0.75]), one.names))
    ax = found.plot()
    ax.figure.canvas.draw()


def test_without_matplotlib(graph, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(SetupError, match=r"Matplotlib cannot be imported.*pip install"):
        oocpr.pagerank(graph).plot()


def test_notebooks_show_names_from_strangers_as_reports_do(tmp_path):
    graph = tmp_path / "strange.tsv"
    graph.write_text("a\u202eb\ta\0b\n<b>\ta\0b\n")
    one = oocpr.pagerank(graph)
    many = oocpr.pagerank(graph, personalization=[{"a\u202eb": 1}, {"<b>": 1}], top=3)
    one.to_html(tmp_path / "page.html")
    for shown in (one._repr_html_(), many._repr_html_(), (tmp_path / "page.html").read_text()):
        assert "\0" not in shown
        assert "\u202e" not in shown
        assert r"a\x00b" in shown
        assert "&lt;b&gt;" in shown
        assert r"a\u202eb" in shown


def test_notebooks_show_tables(graph):
    ranks = oocpr.pagerank(graph)
    shown = ranks._repr_html_()
    assert shown.count("<tr>") == 11
    assert f'<caption style="white-space:nowrap">{repr(ranks).replace("<", "&lt;")}' in shown
    assert f"<td>{graph.edges}</td>" in graph._repr_html_()
    plan = oocpr.plan(graph)
    text = str(plan).replace("<", "&lt;")
    assert plan._repr_html_() == f'<pre style="font-family:monospace">{text}</pre>'
