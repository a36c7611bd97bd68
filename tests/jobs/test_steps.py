"""What a run decides to do: single cases, and a model of nights on which anything may happen."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oocpr.jobs.job_file import Limits, parse_job
from oocpr.jobs.steps import Decision, Record, Stamp, Step, Unfinished, broken_limits, decide, options_of
from oocpr.result.comparison import Comparison

SOURCE: Stamp = ("edges.txt", 9, 1)
MONDAY: Stamp = ("monday.txt", 5, 2)
TUESDAY: Stamp = ("tuesday.txt", 6, 3)
MIXED, POWER = '[{"method": "mixed", "tol": 1e-8}]', '[{"method": "power", "tol": 1e-8}]'
BASE = Record((SOURCE,), (MONDAY,), "keep", MIXED)
NAME = "2026-11-26T030000Z"
END = ["rank", "compare", "publish"]


def steps(now: Record, base: Record | None = BASE, left: Unfinished | None = None) -> list[str]:
    name = None if base is None else NAME
    return [str(step) for step in decide(now, base, name, left, limits=True).steps]


def test_a_first_run_has_nothing_to_compare_with() -> None:
    assert steps(BASE, None) == ["import", "append", "rank", "publish"]
    assert steps(replace(BASE, appended=()), None) == ["import", "rank", "publish"]


def test_without_limits_nothing_is_compared() -> None:
    made = decide(replace(BASE, graph="degree"), BASE, NAME, None, limits=False)
    assert Step.COMPARE not in made.steps


@pytest.mark.parametrize(
    ("now", "expected", "reason"),
    [
        (BASE, [], "nothing has changed"),
        (replace(BASE, appended=()), [], "nothing has changed"),
        (replace(BASE, appended=(MONDAY, TUESDAY)), ["append", *END], "1 file is new"),
        (replace(BASE, appended=(TUESDAY,)), ["append", *END], "1 file is new"),
        (replace(BASE, sources=(("edges.txt", 9, 2),)), ["import", "append", *END], "edges.txt was replaced"),
        (replace(BASE, appended=((MONDAY[0], 5, 9),)), ["import", "append", *END], "monday.txt has changed"),
        (replace(BASE, graph="degree"), ["import", "append", *END], "[import] or [append] has changed"),
        (replace(BASE, ranks=POWER), ["link", *END], "[rank] has changed, the graph has not"),
    ],
)  # fmt: skip
def test_what_is_done_follows_from_what_has_changed(now: Record, expected: list[str], reason: str) -> None:
    made = decide(now, BASE, NAME, None, limits=True)
    assert [str(step) for step in made.steps] == expected
    assert reason in made.reason


def test_files_that_have_gone_stay_in_the_record_and_are_not_added_again() -> None:
    made = decide(replace(BASE, appended=(TUESDAY,)), BASE, NAME, None, limits=True)
    assert made.record.appended == (MONDAY, TUESDAY)
    assert made.new_files == (TUESDAY,)
    assert steps(replace(BASE, appended=(MONDAY,)), made.record) == []


GROWN = replace(BASE, appended=(MONDAY, TUESDAY), base=NAME)
NOW = replace(GROWN, base=None)
APPEND = (Step.APPEND, Step.RANK, Step.COMPARE, Step.PUBLISH)


@pytest.mark.parametrize(
    ("left", "expected"),
    [
        (Unfinished(GROWN, APPEND, (TUESDAY,)), ["append", *END]),
        (Unfinished(GROWN, APPEND, (TUESDAY,), has_graph=True), END),
        (Unfinished(GROWN, APPEND, (TUESDAY,), has_graph=True, has_ranks=True), END[1:]),
        (Unfinished(GROWN, (Step.IMPORT, *APPEND), (MONDAY, TUESDAY)), ["import", "append", *END]),
        (Unfinished(GROWN, (Step.IMPORT, *APPEND), (MONDAY, TUESDAY), has_import=True), ["append", *END]),
    ],
)
def test_an_unfinished_run_goes_on_with_what_is_left_of_it(left: Unfinished, expected: list[str]) -> None:
    made = decide(NOW, BASE, NAME, left, limits=True)
    assert ([str(step) for step in made.steps], made.goes_on) == (expected, True)
    assert made.record == GROWN


WHOLE = Unfinished(GROWN, APPEND, (TUESDAY,), has_graph=True)
NEWER = replace(NOW, appended=(*NOW.appended, ("wednesday.txt", 1, 1)))


def test_a_graph_that_is_whole_is_ranked_before_newer_files_are_looked_at() -> None:
    made = decide(NEWER, BASE, NAME, WHOLE, limits=True)
    assert ([str(step) for step in made.steps], made.waiting) == (END, 1)
    assert steps(NEWER, made.record) == ["append", *END]


@pytest.mark.parametrize(
    ("now", "name", "left"),
    [
        (NEWER, NAME, WHOLE._replace(has_graph=False)),  # nothing of value is lost
        (replace(NOW, appended=(MONDAY,)), NAME, WHOLE._replace(has_graph=False)),  # a file to add has gone
        (NEWER, NAME, WHOLE._replace(has_ranks=True, was_refused=True)),  # refused, and newer files are there
        (replace(NOW, graph="degree"), NAME, WHOLE),
        (NOW, "2026-11-27T030000Z", WHOLE),  # another result was published meanwhile
    ],
)
def test_what_is_of_no_use_any_more_is_begun_anew(now: Record, name: str, left: Unfinished) -> None:
    assert not decide(now, BASE, name, left, limits=True).goes_on


def test_other_settings_of_the_ranking_keep_the_graph_alone() -> None:
    made = decide(replace(NOW, ranks=POWER), BASE, NAME, WHOLE._replace(has_ranks=True), limits=True)
    assert ([str(step) for step in made.steps], made.goes_on, made.ranks_anew) == (END, True, True)
    assert made.record.ranks == POWER


@pytest.mark.parametrize("has_ranks", [False, True])
def test_another_tolerance_keeps_the_passes_and_ranks_again(has_ranks: bool) -> None:
    closer = MIXED.replace("1e-8", "1e-9")
    made = decide(replace(NOW, ranks=closer), BASE, NAME, WHOLE._replace(has_ranks=has_ranks), limits=True)
    assert ([str(step) for step in made.steps], made.goes_on, made.ranks_anew) == (END, True, False)
    assert made.record.ranks == closer


FILES = st.integers(0, 3).map("day-{}.txt".format)
EVENTS = st.one_of(
    st.tuples(st.just("add"), FILES),
    st.tuples(st.just("change"), FILES),
    st.tuples(st.just("remove"), FILES),
    st.just(("replace", "")),
    st.just(("options", "")),
    st.tuples(st.just("run"), st.sampled_from([0, 1, 2, 9])),  # with so many steps before it is killed
)


@settings(max_examples=300)
@given(st.lists(EVENTS, max_size=25))
def test_graphs_have_the_edges_that_there_are_whatever_happens(events: list[tuple[str, str | int]]) -> None:
    # A graph is the set of the files that were imported or added to it.
    source, days, options, clock = ("edges.txt", 0), dict[str, int](), 0, 0
    name: str | None = None
    published: tuple[Record, frozenset[Stamp]] | None = None
    left: Unfinished | None = None
    held: dict[str, frozenset[Stamp]] = {}

    def run(most: int) -> Decision:
        nonlocal left, published, name
        now = Record((source,), tuple(sorted(days.items())), "keep", json.dumps([{"damping": options}]))
        base = None if published is None else published[0]
        made = decide(now, base, name, left, limits=True)
        if not made.steps:
            return made
        if not made.goes_on:
            held.clear()
            left = Unfinished(made.record, made.steps, made.new_files)
        assert left is not None
        left = left._replace(record=made.record, has_ranks=left.has_ranks and not made.ranks_anew)
        for step in made.steps[:most]:
            if step == Step.IMPORT:
                # Its files have to be as they were when it was begun.
                assert now.sources == made.record.sources
                held["imported"] = frozenset(now.sources)
                if Step.APPEND in made.steps:
                    left = left._replace(has_import=True)
                else:
                    held["graph"], left = held["imported"], left._replace(has_graph=True)
            elif step == Step.APPEND:
                assert set(made.new_files) <= set(now.appended)
                start = held.get("imported") or (published[1] if published else frozenset())
                assert not start & set(made.new_files)
                held["graph"], left = start | set(made.new_files), left._replace(has_graph=True)
            elif step == Step.LINK:
                assert published is not None
                held["graph"], left = published[1], left._replace(has_graph=True)
            elif step == Step.RANK:
                assert "graph" in held
                left = left._replace(has_ranks=True)
            elif step == Step.PUBLISH:
                assert left.has_ranks
                published, name = (made.record, held["graph"]), f"result {clock}"
                held.clear()
                left = None
        return made

    for kind, what in events:
        clock += 1
        if kind in ("add", "change"):
            days[str(what)] = clock if kind == "change" else days.get(str(what), clock)
        elif kind == "remove":
            days.pop(str(what), None)
        elif kind == "replace":
            source = ("edges.txt", clock)
        elif kind == "options":
            options = clock
        else:
            run(int(what))
    # Two runs that nobody kills: the first may have to finish what was begun before.
    run(9)
    run(9)
    assert run(9).steps == ()
    assert published is not None
    record, graph = published
    assert graph == {*record.sources, *record.appended}
    assert graph >= {source, *days.items()}
    assert {stamp for stamp in graph if stamp[0] in (*days, "edges.txt")} == {source, *days.items()}
    assert record.ranks == json.dumps([{"damping": options}])


def test_options_are_compared_as_texts_without_secrets() -> None:
    text = (
        "[import]\nsource = 'a'\nlabels = 's3://key:hush@host/names.txt'\n[rank]\npersonalization = 't.tsv'"
    )
    job = parse_job(text, Path("/jobs/web.toml"))
    graph, ranks = options_of(job, {"/jobs/t.tsv": ("/jobs/t.tsv", 3, 4)})
    assert "hush" not in graph
    assert "s3://***@host/names.txt" in graph
    assert ranks != options_of(job, {"/jobs/t.tsv": ("/jobs/t.tsv", 3, 5)})[1]


def test_limits_that_are_kept_and_broken() -> None:
    found = Comparison(5, 5, 5, 0.25, 100, 0.75, 0.5, ())
    assert broken_limits(Limits(100, 0.25, 0.75, 0.5), found) == []
    assert broken_limits(Limits(), found) == []
    broken = broken_limits(Limits(100, 0.2, 0.8, 0.6), found)
    assert [text.split(" is ")[-1] for text in broken] == ["0.2", "0.8", "0.6"]
    assert broken_limits(Limits(min_kendall_tau=-1), replace(found, kendall_tau=float("nan")))
