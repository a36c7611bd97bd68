"""What a run of a job has to do, decided by what there is: results, an unfinished run, and the files now."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from oocpr.errors import masked
from oocpr.units import format_count

if TYPE_CHECKING:
    from oocpr.jobs.job_file import Job, Limits
    from oocpr.result.comparison import Comparison

Stamp = tuple[str | int, ...]
"""What tells a file from what it was before; its name comes first."""


class Step(StrEnum):
    """A part of a run of a job, in the order in which they are done."""

    IMPORT = "import"
    APPEND = "append"
    LINK = "link"
    RANK = "rank"
    COMPARE = "compare"
    PUBLISH = "publish"


@dataclass(frozen=True)
class Record:
    """What a result is made of, or is to be.

    `sources` and `appended` are the files whose edges its graph has; `graph` and `ranks` are the options of
    its import and of its ranking, as text; `base` is the result whose graph and ranks it began with.
    """

    sources: tuple[Stamp, ...]
    appended: tuple[Stamp, ...]
    graph: str
    ranks: str
    base: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Give it as JSON holds it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, known: Mapping[str, Any]) -> Record:
        """Take it from JSON; KeyError or TypeError if it is none."""
        files = {name: tuple(map(tuple, known[name])) for name in ("sources", "appended")}
        return cls(graph=known["graph"], ranks=known["ranks"], base=known["base"], **files)


class Unfinished(NamedTuple):
    """What an earlier run has left: what it was to do, and which parts are whole; see `Decision`.

    `was_refused`: whether its ranks were past limits; `has_failed`: whether none could be made of what there
    was.
    """

    record: Record
    steps: tuple[Step, ...]
    new_files: tuple[Stamp, ...] = ()
    has_import: bool = False
    has_graph: bool = False
    has_ranks: bool = False
    was_refused: bool = False
    has_failed: bool = False


@dataclass(frozen=True)
class Decision:
    """Steps of a run of a job; none if nothing is to be done.

    `record` is what the result will be made of, `new_files` those of `record.appended` that are added to the
    graph. `goes_on` says whether what is unfinished is kept, `ranks_anew` whether all but its graph is
    removed. `lost` are files whose edges the published graph has and the next will not have. `reason` is a
    sentence.
    """

    steps: tuple[Step, ...]
    record: Record
    reason: str
    new_files: tuple[Stamp, ...] = ()
    goes_on: bool = False
    ranks_anew: bool = False
    waiting: int = 0  # files that have come since an unfinished run began
    lost: tuple[str, ...] = ()


_END = (Step.RANK, Step.COMPARE, Step.PUBLISH)


def options_of(job: Job, stamps: Mapping[str, Stamp], labels: str | None = None) -> tuple[str, str]:
    """Write the options of import and ranking as texts to compare, without secrets.

    `stamps` are those of the files that options name, by their paths; `labels` is a file of labels that was
    found beside the source.
    """

    def text(*options: Mapping[str, Any]) -> str:
        known = [
            {name: stamps.get(str(value), masked(str(value))) for name, value in sorted(each.items())}
            for each in options
        ]
        return json.dumps(known)

    found = {} if labels is None else {"labels": labels}
    return text({**found, **job.import_options}, job.append_options), text(job.rank_options)


def decide(
    now: Record,
    base: Record | None,
    name: str | None,
    unfinished: Unfinished | None,
    *,
    limits: bool,
    has_graph: bool = True,
) -> Decision:
    """Decide what to do.

    Parameters
    ----------
    now
        What a result would be made of that is imported now.
    base, name
        What the published result is made of, and what it is called; None if there is none.
    unfinished
        What an earlier run has left; None for nothing.
    limits
        Whether ranks are compared with the last ones.
    has_graph
        Whether the published result still has its graph: of older ones, to which one may go back, it is
        removed.

    Examples
    --------
    >>> now = Record((("edges.txt", 9, 1),), (("monday.txt", 5, 2),), "[]", "[{}]")
    >>> first = decide(now, None, None, None, limits=False)
    >>> [str(step) for step in first.steps], first.reason
    (['import', 'append', 'rank', 'publish'], 'there is no result yet')
    >>> decide(now, first.record, "2026-11-27T030000Z", None, limits=False).reason
    'nothing has changed since the result 2026-11-27T030000Z'
    """
    decision = None if unfinished is None else _go_on(now, unfinished, name, has_graph)
    if decision is None:
        decision = _begin(now, base, name, has_graph)
    if name is None or not limits:
        decision = replace(decision, steps=tuple(step for step in decision.steps if step != Step.COMPARE))
    return decision


def _go_on(now: Record, left: Unfinished, name: str | None, has_graph: bool) -> Decision | None:
    """Go on with what is unfinished; None if that would be of no use."""
    was = left.record
    if was.graph != now.graph or was.base != name:
        return None
    if not (has_graph or left.has_graph or Step.IMPORT in left.steps):
        return None
    waiting = set(now.appended) - set(was.appended) | set(now.sources) - set(was.sources)
    gone = set(left.new_files) - set(now.appended) or now.sources != was.sources
    # A graph that is whole needs its files no more; one that has failed is tried again with better ones.
    if (waiting or gone) and (left.was_refused or left.has_failed or not left.has_graph):
        return None
    anew = _of_passes(was.ranks) != _of_passes(now.ranks)
    done = {Step.IMPORT} if left.has_import else set()
    if left.has_graph:
        done = {Step.IMPORT, Step.APPEND, Step.LINK}
    begin = [step for step in left.steps if step not in (*done, *_END)]
    ranked = left.has_graph and left.has_ranks and was.ranks == now.ranks
    steps = (*begin, *(_END[1:] if ranked else _END))
    return Decision(
        steps, replace(was, ranks=now.ranks), "an unfinished run goes on", left.new_files,
        goes_on=True, ranks_anew=anew, waiting=len(waiting),
    )  # fmt: skip


def _of_passes(options: str) -> str:
    """Options of a ranking without those that another pass does not depend on, such as when it ends."""
    return json.dumps(
        [{name: each[name] for name in each if name not in _OF_ENDS} for each in json.loads(options)]
    )


_OF_ENDS = ("tol", "stop", "max_passes", "threads")


def _begin(now: Record, base: Record | None, name: str | None, has_graph: bool) -> Decision:
    """Begin a run with the published result, or from nothing."""
    record = replace(now, base=name)
    if base is None:
        return _anew(record, "there is no result yet")
    known = {stamp[0]: stamp for stamp in base.appended}
    there = {stamp[0] for stamp in (*now.appended, *now.sources)}
    lost = tuple(str(file) for file in known if file not in there)
    if base.graph != now.graph:
        return _anew(record, "[import] or [append] has changed", lost)
    if base.sources != now.sources:
        return _anew(record, f"{_first_change(base.sources, now.sources)} was replaced", lost)
    for stamp in now.appended:
        if known.get(stamp[0], stamp) != stamp:
            return _anew(record, f"{stamp[0]} has changed since its edges were added", lost)
    new = tuple(stamp for stamp in now.appended if stamp[0] not in known)
    if not has_graph and (new or base.ranks != now.ranks):
        return _anew(record, f"the result {name} has no graph any more", lost)
    record = replace(record, appended=(*base.appended, *new))
    if new:
        files = "file is" if len(new) == 1 else "files are"
        return Decision((Step.APPEND, *_END), record, f"{format_count(len(new))} {files} new", new)
    if base.ranks != now.ranks:
        return Decision((Step.LINK, *_END), record, "[rank] has changed, the graph has not")
    return Decision((), record, f"nothing has changed since the result {name}")


def _anew(record: Record, reason: str, lost: tuple[str, ...] = ()) -> Decision:
    steps = (Step.IMPORT, Step.APPEND) if record.appended else (Step.IMPORT,)
    return Decision((*steps, *_END), record, reason, record.appended, lost=lost)


def _first_change(before: tuple[Stamp, ...], now: tuple[Stamp, ...]) -> str:
    changed = [stamp for stamp in (*now, *before) if stamp not in now or stamp not in before]
    return str(changed[0][0]) if changed else "the order of the sources"


def broken_limits(limits: Limits, found: Comparison) -> list[str]:
    """Say which limits ranks are past, one sentence each; a measure that is not known is past any.

    Examples
    --------
    >>> from oocpr.jobs.job_file import Limits
    >>> from oocpr.result.comparison import Comparison
    >>> found = Comparison(5, 5, 5, 0.4, 2, 0.5, 1.0, ())
    >>> broken_limits(Limits(max_distance=0.5, min_overlap=0.9), found)
    ['the top 100 share 0.5, and min_overlap is 0.9']
    """
    broken = []
    if limits.max_distance is not None and not found.distance <= limits.max_distance:
        broken.append(f"the L1 distance is {found.distance:.3g}, and max_distance is {limits.max_distance:g}")
    if limits.min_overlap is not None and not found.overlap >= limits.min_overlap:
        broken.append(
            f"the top {limits.top} share {found.overlap:.3g}, and min_overlap is {limits.min_overlap:g}"
        )
    if limits.min_kendall_tau is not None and not found.kendall_tau >= limits.min_kendall_tau:
        tau = f"{found.kendall_tau:.3g}"
        if math.isnan(found.kendall_tau):
            tau = f"undefined, as one of the rankings has the same rank for all of the top {limits.top}"
        broken.append(f"Kendall's tau is {tau}, and min_kendall_tau is {limits.min_kendall_tau:g}")
    return broken
