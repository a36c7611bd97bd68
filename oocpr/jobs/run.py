"""A run of a job: what `steps` decides is done, one step after the other, and kept if it is interrupted."""

from __future__ import annotations

import logging
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oocpr import api
from oocpr.errors import (
    DamagedError,
    InputError,
    LimitError,
    NotConvergedError,
    OocprError,
    StoppedError,
    UsageError,
    masked,
)
from oocpr.ingest.budget import require
from oocpr.jobs.lock import hold_lock, read_owner, runs
from oocpr.jobs.results import (
    CHECKPOINT,
    GRAPH,
    IMPORTED,
    LAST_RUN,
    SUMMARY,
    JobFolder,
    read_json,
    write_json,
)
from oocpr.jobs.status import PROGRESS, ProgressFile
from oocpr.jobs.steps import Decision, Record, Stamp, Step, broken_limits, decide, options_of
from oocpr.jobs.time_limit import call_until
from oocpr.sources.files import LocalFile, check_apart, input_file, input_files, stamp
from oocpr.store.atomic import check_writable, naming_failures, remove
from oocpr.system import resident_after_trim
from oocpr.units import format_error_bound, format_passes, format_seconds

if TYPE_CHECKING:
    from oocpr.engine.checkpoint import Checkpoints
    from oocpr.jobs.job_file import Job
    from oocpr.progress import Progress
    from oocpr.result.comparison import Comparison
    from oocpr.result.ranks import Ranks

_LOG = logging.getLogger(__name__)

_AGAIN = "Run the job again: it goes on."

_COMPARED_BYTES = 112
"""Bytes of memory per node that a comparison takes at most, beside names."""


def new_summary(name: str) -> dict[str, Any]:
    """Begin the summary of a run, which `run_job` fills; ``outcome`` is ``"failed"`` until it is known."""
    return {"job": name, "outcome": "failed", "exit_code": 0, "began": time.time(), "steps": {}}


def end_summary(summary: dict[str, Any], code: int, error: tuple[str, str] | None) -> None:
    """Note how a run has ended: its exit code, and the cause and the remedy of an error."""
    summary["exit_code"] = code
    summary["ended"] = time.time()
    summary["seconds"] = summary["ended"] - summary["began"]
    if error is not None:
        summary["error"] = {"cause": masked(error[0]), "remedy": masked(error[1].strip())}


def keep_summary(job: Job, summary: dict[str, Any]) -> list[OocprError]:
    """Write the metrics of a run that has ended, if the job has any, and keep its summary.

    Returns why one or the other cannot be done. The first failure is how a run has ended that had no error.
    """
    try:
        before = read_json(job.folder / LAST_RUN) or {}
    except DamagedError as error:
        _LOG.warning("%s It is written anew.", error.cause)
        before = {}
    failures: list[OocprError] = []

    @contextmanager
    def noting_failure() -> Iterator[None]:
        succeeded = summary["exit_code"] == 0
        summary["last_success"] = summary["ended"] if succeeded else before.get("last_success")
        try:
            yield
        except OocprError as error:
            failures.append(error)
            if succeeded:
                end_summary(summary, error.exit_code, (error.cause, error.remedy))

    if job.publication.metrics is not None:
        from oocpr.jobs.metrics import write_metrics

        figures: dict[str, Any] = {}
        # In this order metrics tell of figures that cannot be read, and the summary of metrics.
        with noting_failure():
            figures = _published_figures(job)
        with noting_failure():
            write_metrics(job.publication.metrics, figures | summary, summary["last_success"])
    with noting_failure():
        if job.folder.is_dir():
            write_json(job.folder / LAST_RUN, summary)
    return failures


def _published_figures(job: Job) -> dict[str, Any]:
    """Figures of the published ranks, which metrics of a run that has made none have."""
    published = JobFolder(job.folder).published
    last = {} if published is None else read_json(published / SUMMARY) or {}
    return {name: last.get(name) for name in ("run", "comparison")}


def preview_job(job: Job, summary: dict[str, Any], progress: Progress) -> None:
    """Say what a run would do, and change nothing: neither files nor the lock.

    Raises what `run_job` raises before its first step.
    """
    _check_metrics(job)
    owner = read_owner(job.folder)
    if owner is not None:
        lives = "lives" if runs(owner) else "does not live any more"
        _LOG.info("the lock is that of %s, which %s", owner.describe(time.time()), lives)
    folder = JobFolder(job.folder)
    decision = _decision(job, folder)
    summary |= {"outcome": "dry run", "reason": decision.reason, "planned": list(decision.steps)}
    _announce(decision)
    published = folder.published
    if published is not None and Step.RANK in decision.steps and not (job.workers or job.scheduler):
        _LOG.info("plan of a run over the graph of %s:\n%s", published.name, _plan(job, published, progress))


def _plan(job: Job, result: Path, progress: Progress) -> Any:
    options = {name: value for name, value in job.rank_options.items() if name not in _NOT_OF_PLANS}
    if job.is_kept and job.method == "auto":
        options["method"] = "mixed"  # as a run with checkpoints has it
    personalized = "personalization" in job.rank_options
    return api.plan(
        result / GRAPH, memory=job.memory, personalized=personalized, progress=progress, **options
    )


_NOT_OF_PLANS = ("dangling", "personalization", "max_passes")


def run_job(job: Job, summary: dict[str, Any], progress: Progress, *, accept: bool) -> None:
    """Do what there is to do for a job, and fill the summary.

    Parameters
    ----------
    job
        What `read_job` gives.
    summary
        What `new_summary` gives.
    progress
        Where to say how far it is; the same goes to a file of the job's folder, for `oocpr status`.
    accept
        Whether ranks that are past the limits of the job are published.

    Raises
    ------
    RunningError
        If another process runs it.
    LimitError
        If the ranks are past the limits; the last ones stay published.
    NotConvergedError
        If the ranks have not reached the tolerance.
    StoppedError
        If the time limit is over; the next run goes on.
    OocprError
        See `oocpr.errors`: what importing, appending and ranking raise.
    """
    began = datetime.now(UTC)
    _check_metrics(job)
    folder = JobFolder(job.folder)
    folder.make()
    with hold_lock(job.folder) as dead:
        if dead is not None:
            _LOG.warning(
                "the lock was taken over from process %d on %s, which has ended", dead.pid, dead.host
            )
        if (late := folder.finish_publication()) is not None:
            _LOG.warning("the result %s, whose process was killed before its last step, is published", late)
        shown = ProgressFile(job.folder / PROGRESS, progress)
        try:
            decision = _decision(job, folder)
            summary["reason"] = decision.reason
            _announce(decision)
            if not decision.steps:
                summary["outcome"] = "unchanged"
                return
            folder.begin(decision)
            shown.begin(decision.steps)
            _Run(job, folder, decision, shown, summary, began).carry_out(accept=accept)
        except (KeyboardInterrupt, StoppedError):
            summary["outcome"] = "interrupted"
            raise
        except (DamagedError, InputError, UsageError):
            folder.note_failure()
            raise
        finally:
            summary["steps"] = shown.seconds
            shown.remove()


def _check_metrics(job: Job) -> None:
    if job.publication.metrics is not None:
        check_writable(job.publication.metrics)


def _announce(decision: Decision) -> None:
    if not decision.steps:
        _LOG.info("nothing to do: %s", decision.reason)
        return
    fields = {"steps": list(decision.steps), "reason": decision.reason}
    _LOG.info("%s: %s", decision.reason, ", ".join(decision.steps), extra={"fields": fields})
    if decision.lost:
        _LOG.warning(
            "the graph will not have the edges of files that were added and are gone: %s",
            ", ".join(decision.lost), extra={"fields": {"lost": list(decision.lost)}},
        )  # fmt: skip
    if decision.waiting:
        _LOG.info("%d files that have come since wait for the next run", decision.waiting)


def _decision(job: Job, folder: JobFolder) -> Decision:
    """Look at the files and results that there are, and decide."""
    check_apart([job.folder], [*job.sources, *job.appended])
    sources = _stamps(job.sources)
    taken = {stamp[0] for stamp in sources}
    # A pattern may fit the sources as well.
    appended = tuple(stamp for stamp in _stamps(job.appended, may_lack=True) if stamp[0] not in taken)
    labels = _labels_beside(job)
    options = {**job.import_options, **job.append_options, **job.rank_options}
    named = [str(options[name]) for name in ("labels", "personalization") if name in options]
    named += [] if labels is None else [labels]
    graph, ranks = options_of(job, {name: _stamp_of(input_file(name)) for name in named}, labels)
    name, base = folder.base()
    now = Record(sources, appended, graph, ranks)
    left = folder.left(job.publication.ranks)
    has_graph = name is not None and (folder.path / name / GRAPH).is_dir()
    return decide(now, base, name, left, limits=job.limits is not None, has_graph=has_graph)


def _labels_beside(job: Job) -> str | None:
    """The file of labels that an import finds beside its source, if it does."""
    from oocpr.sources.names import find_labels

    if "labels" in job.import_options or len(job.sources) > 1:
        return None
    files = input_files(list(job.sources))
    found = find_labels(files[0]) if len(files) == 1 else None
    return None if found is None else str(found)


def _stamps(specs: tuple[str, ...], *, may_lack: bool = False) -> tuple[Stamp, ...]:
    """Tell files from what they were before, each once, however many patterns it fits."""
    found = [_stamp_of(file) for spec in specs for file in _files(spec, may_lack=may_lack)]
    return tuple({stamp[0]: stamp for stamp in found}.values())


def _opened(specs: tuple[str, ...], *, may_lack: bool = False) -> dict[str | int, str]:
    """Files as they are opened, by what their stamps call them: these do not have what is secret in URLs."""
    return {
        _stamp_of(file)[0]: spec if "://" in spec else str(file)
        for spec in specs
        for file in _files(spec, may_lack=may_lack)
    }


def _files(spec: str, *, may_lack: bool) -> list[Any]:
    """Files of a pattern or a name; a pattern for files that come later may fit none."""
    try:
        return list(input_files([spec]))
    except OocprError as error:
        if may_lack and error.cause.startswith("No file fits"):
            return []
        raise


def _stamp_of(file: Any) -> Stamp:
    if isinstance(file, LocalFile):
        file.check(folder=True)
        if file.path.is_dir():
            known = [each.stat() for each in file.path.rglob("*") if each.is_file()]
            newest = max((each.st_mtime_ns for each in known), default=0)
            return str(file.path), sum(each.st_size for each in known), newest, len(known)
    return tuple(stamp(file) or ())


class _Run:
    """The steps of one run."""

    def __init__(
        self,
        job: Job,
        folder: JobFolder,
        decision: Decision,
        shown: ProgressFile,
        summary: dict[str, Any],
        began: datetime,
    ) -> None:
        self._job, self._folder, self._decision = job, folder, decision
        self._shown, self._summary, self._began = shown, summary, began
        self._place = folder.unfinished
        self._deadline = None if job.time_limit is None else time.monotonic() + job.time_limit
        self._ranks: Ranks | None = None

    def carry_out(self, *, accept: bool) -> None:
        """Do all steps."""
        from oocpr.engine.executors.dask_client import open_client

        job = self._job
        asked = job.scheduler, job.workers
        with nullcontext() if asked == (None, None) else open_client(*asked) as client:
            calls: dict[Step, Callable[[], None]] = {
                Step.IMPORT: lambda: self._import(client),
                Step.APPEND: lambda: self._append(client),
                Step.LINK: self._link,
                Step.RANK: lambda: self._rank(client),
                Step.COMPARE: lambda: self._compare(accept=accept),
                Step.PUBLISH: self._publish,
            }
            for step in self._decision.steps:
                alone = step != Step.RANK or not job.is_kept
                with self._shown.step(step), _naming_the_job():
                    self._in_time(calls[step], alone=alone)
                if step in (Step.RANK, Step.COMPARE):
                    continue
                _LOG.info("%s: done in %s", step, format_seconds(self._shown.seconds[step]))

    def _in_time(self, call: Callable[[], None], *, alone: bool) -> None:
        """Call, and end that when the time limit is over; `alone`: nothing inside looks at the clock."""
        if self._deadline is None or not alone or threading.current_thread() is not threading.main_thread():
            call()
            return
        late = StoppedError(
            f"the job was stopped: its time limit of {format_seconds(self._job.time_limit or 0)} is over.",
            _AGAIN,
        )
        call_until(self._deadline, call, late)

    @contextmanager
    def _given(self) -> Iterator[dict[str, Any]]:
        """Parameters that an import and an append have alike."""
        given = {} if self._job.memory is None else {"memory": self._job.memory}
        if self._job.tmp is None:
            yield given
            return
        # Other jobs may use it too.
        own = f"{self._job.name}-{zlib.crc32(os.fsencode(self._job.folder)):08x}"
        tmp = Path(self._job.tmp) / own
        with naming_failures(tmp):
            tmp.mkdir(parents=True, exist_ok=True)
        yield given | {"tmp": str(tmp)}
        with suppress(OSError):
            tmp.rmdir()

    def _import(self, client: Any) -> None:
        name = IMPORTED if Step.APPEND in self._decision.steps else GRAPH
        sources = list(_opened(self._job.sources).values())
        with self._given() as given:
            # Workers import without keeping what is finished.
            graph = api.import_graph(
                sources, self._place / name, resume=client is None, client=client,
                progress=self._shown, on_message=_LOG.info, **given, **self._job.import_options,
            )  # fmt: skip
        _notify(graph)

    def _append(self, client: Any) -> None:
        base = self._place / IMPORTED
        if not base.is_dir():
            published = self._folder.published
            assert published is not None, "edges are added to a graph"
            base = published / GRAPH
        files = self._new_files()
        _LOG.info("adding edges of %s", ", ".join(files))
        with self._given() as given:
            graph = api.append(
                base, files, self._place / GRAPH, client=client, progress=self._shown,
                **given, **self._job.append_options,
            )  # fmt: skip
        _notify(graph)
        self._summary["appended"] = files

    def _new_files(self) -> list[str]:
        """Files to append, as they are opened."""
        files = _opened(self._job.appended, may_lack=True)
        return [files[stamp[0]] for stamp in self._decision.new_files if stamp[0] in files]

    def _link(self) -> None:
        assert self._decision.record.base is not None, "there is a graph"
        self._folder.link_graph(self._decision.record.base)

    def _rank(self, client: Any) -> None:
        from oocpr.store.checkpoint import UnfitCheckpointError

        job, published = self._job, self._folder.published
        graph = api.open_graph(self._place / GRAPH)
        if Step.COMPARE in self._decision.steps:
            self._check_comparison(graph.nodes)
        start = self._published_ranks(published) if published is not None and job.starts_warm else None
        kept: Path | None = self._place / CHECKPOINT
        while True:
            try:
                self._ranks = self._ranked(graph, start, client)
                return
            except (DamagedError, InputError, UsageError) as error:
                # To begin with the last passes, or ranks, saves passes and no more.
                unfit = isinstance(error, DamagedError | UnfitCheckpointError)
                if unfit and kept is not None and str(kept) in error.cause:
                    _LOG.warning("%s The ranking begins anew.", error.cause)
                    remove(kept)
                    kept = None
                elif start is not None and str(start) in error.cause:
                    _LOG.warning("%s The ranking does not begin with them.", error.cause)
                    start = None
                else:
                    raise

    def _ranked(self, graph: Any, start: Path | None, client: Any) -> Ranks:
        from oocpr.engine.checkpoint import kept_run

        job = self._job
        left = None if self._deadline is None else max(1e-3, self._deadline - time.monotonic())
        place = self._place / CHECKPOINT if job.is_kept else None
        with kept_run(place, resume=place is not None, time_limit=left if place else None) as kept:
            if kept is not None and kept.number is not None:
                _LOG.info("going on after pass %d", kept.number)
            try:
                ranks: Ranks = api.pagerank(
                    graph, memory=job.memory, start=start, checkpoint=kept, client=client,
                    predict=client is None, progress=self._shown, **job.rank_options,
                )  # fmt: skip
            except StoppedError as error:
                if kept is None:
                    raise
                # What it names was left of the limit.
                number, limit = kept.number, format_seconds(job.time_limit or 0)
                raise StoppedError(
                    f"the job was stopped after pass {number}: its time limit of {limit} leaves no room.",
                    _AGAIN,
                ) from error
            self._keep_ranks(ranks, kept)
        return ranks

    def _check_comparison(self, nodes: int) -> None:
        from oocpr.engine.planning import given_memory

        needed = resident_after_trim() + _COMPARED_BYTES * nodes
        require(needed, given_memory(self._job.memory), f"Comparing {nodes:,} ranks with the last")

    def _keep_ranks(self, ranks: Ranks, kept: Checkpoints | None) -> None:
        """Write what is published; the ranks come last, for they say that all of it is there."""
        run, publication = ranks.run, self._job.publication
        assert run is not None, "pagerank always says what it did"
        self._summary["run"] = run.to_dict()
        if not run.converged:
            more = "" if kept is None else "; the next run goes on after these passes"
            raise NotConvergedError(
                f"not converged after {format_passes(run.passes)}: "
                f"certified {format_error_bound(run.error_bound)}, tol is {run.tol:.3g}.",
                f"Nothing is published. Raise max_passes or tol in [rank]{more}.",
            )
        _LOG.info(
            "certified %s after %d passes, %s",
            format_error_bound(run.error_bound), run.passes, format_seconds(run.seconds),
            extra={"fields": {"run": run.to_dict()}},
        )  # fmt: skip
        if publication.report is not None:
            title = f"PageRank of {self._job.name}"
            ranks.to_html(self._place / publication.report, top=publication.top, title=title)
        top = [{"node": node, "rank": rank} for node, rank in ranks.top(publication.top)]
        write_json(self._place / SUMMARY, {"run": run.to_dict(), "top": top})
        write = ranks.to_csv if publication.ranks.endswith(".csv") else ranks.to_parquet
        write(self._place / publication.ranks)

    def _published_ranks(self, published: Path) -> Path | None:
        """The file of the last ranks, which may have had another name."""
        names = (self._job.publication.ranks, "ranks.parquet", "ranks.csv")
        others = [file for pattern in ("*.parquet", "*.csv") for file in sorted(published.glob(pattern))]
        return next(
            (file for file in (*(published / name for name in names), *others) if file.is_file()), None
        )

    def _compare(self, *, accept: bool) -> None:
        published, limits = self._folder.published, self._job.limits
        assert published is not None, "there is something to compare with"
        assert limits is not None, "and it is to be compared"
        before = self._published_ranks(published)
        if before is None:
            _LOG.warning("%s has no ranks to compare with", published)
            return
        own = self._ranks or api.read_ranks(self._place / self._job.publication.ranks)
        try:
            found = own.compare(api.read_ranks(before), top=limits.top)
        except (DamagedError, InputError) as error:
            if str(before) in error.cause:
                error.remedy = "Restore it from a copy, or remove it: the next ranks are then not compared."
            raise
        broken = broken_limits(limits, found)
        summary = read_json(self._place / SUMMARY) or {}
        facts = comparison_facts(found, published.name)
        self._summary["comparison"] = facts
        _LOG.info("compared with %s:\n%s", published.name, found, extra={"fields": {"comparison": facts}})
        refused = [] if accept else broken
        write_json(self._place / SUMMARY, summary | {"comparison": facts, "limits": refused})
        if refused:
            self._summary |= {"outcome": "refused", "limits": refused}
            raise LimitError(
                f"the ranks are not published: {'; '.join(refused)}.",
                f"{published.name} stays published. If {self._place} is right, run the job with --accept.",
            )
        if broken:
            _LOG.warning("published all the same: %s", "; ".join(broken))

    def _publish(self) -> None:
        job, place = self._job, self._place
        known = read_json(place / SUMMARY) or {}
        self._summary.setdefault("run", known.get("run"))
        record = self._decision.record
        write_json(place / SUMMARY, {
            "job": job.name,
            "reason": self._decision.reason,
            "base": record.base,
            "appended": [stamp[0] for stamp in self._decision.new_files],
            "steps": self._shown.seconds,
            "run": known.get("run"),
            "comparison": known.get("comparison"),
            "top": known.get("top"),
        })  # fmt: skip
        result = self._folder.publish(self._began)
        for name in self._folder.prune(job.publication.keep, job.publication.keep_graphs):
            _LOG.debug("%s was removed", name)
        self._summary |= {"outcome": "published", "result": str(result)}


def comparison_facts(found: Comparison, name: str) -> dict[str, Any]:
    """Give a comparison with the result of that name as JSON."""
    return {
        "with": name,
        "nodes": found.nodes,
        "nodes_before": found.other_nodes,
        "distance": found.distance,
        "top": found.top,
        "overlap": found.overlap,
        "kendall_tau": found.kendall_tau,
        "movers": [mover._asdict() for mover in found.movers],
    }


@contextmanager
def _naming_the_job() -> Iterator[None]:
    """Have an import or a run whose beginning is kept say how its job goes on."""
    try:
        yield
    except OocprError as error:
        if notes := getattr(error, "__notes__", None):
            notes[:] = [_AGAIN]
        raise


def _notify(graph: Any) -> None:
    for notice in graph.notices:
        _LOG.info("%s", notice)
