"""The file of a job: parameters of the commands as TOML, each key known and each value possible."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oocpr.api.arguments import ImportOptions, check_argument, render_argument
from oocpr.errors import InputError, OocprError, UsageError
from oocpr.ingest.orders import ORDERS
from oocpr.plan.memory import SEGMENTED_METHODS
from oocpr.store.remote import is_url
from oocpr.units import MAX_L1_DISTANCE, parse_seconds

_IMPORT_KEYS = tuple(ImportOptions.__annotations__)
_KEYS: dict[str, tuple[str, ...]] = {
    "": ("folder", "memory", "tmp", "workers", "scheduler", "time_limit"),
    "import": ("source", "order", *_IMPORT_KEYS),
    "append": ("source", *(name for name in _IMPORT_KEYS if name != "labels")),
    "rank": (
        "damping", "tol", "stop", "method", "reads", "dangling", "personalization", "max_passes", "stripes",
        "threads", "device", "device_memory", "kernel", "io", "reproducible",
    ),
    "compare": ("top", "max_distance", "min_overlap", "min_kendall_tau"),
    "publish": ("ranks", "report", "top", "metrics", "keep", "keep_graphs"),
}  # fmt: skip
"""Keys of the file, of no table and of each."""

_PATHS = ("folder", "tmp", "labels", "personalization", "metrics", "source")
"""Keys whose values, if they are no URLs, are relative to the folder of the file."""


@dataclass(frozen=True)
class Limits:
    """What ranks may differ from the last ones by; None for any.

    `max_distance`: L1 distance; `min_overlap`: share of the `top` largest that is the same;
    `min_kendall_tau`: Kendall's tau of their order.
    """

    top: int = 100
    max_distance: float | None = None
    min_overlap: float | None = None
    min_kendall_tau: float | None = None


@dataclass(frozen=True)
class Publication:
    """What a result is made of, and how many are kept; `keep` counts the published one."""

    ranks: str = "ranks.parquet"
    report: str | None = "report.html"
    top: int = 100
    metrics: Path | None = None
    keep: int = 7
    keep_graphs: int = 1


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job as its file says it; paths are absolute, or URLs.

    `import_options` and `append_options` are parameters of `oocpr.import_graph` and `oocpr.append`,
    `rank_options` of `oocpr.pagerank`; `time_limit` is in seconds.
    """

    path: Path
    folder: Path
    sources: tuple[str, ...]
    import_options: Mapping[str, Any]
    appended: tuple[str, ...] = ()
    append_options: Mapping[str, Any] = field(default_factory=dict)
    rank_options: Mapping[str, Any] = field(default_factory=dict)
    memory: str | int | None = None
    tmp: str | None = None
    workers: int | None = None
    scheduler: str | None = None
    time_limit: float | None = None
    limits: Limits | None = None
    publication: Publication = Publication()

    @property
    def name(self) -> str:
        """What logs and metrics call the job: the name of its file."""
        return self.path.stem

    @property
    def method(self) -> str:
        """The method of its runs."""
        return str(self.rank_options.get("method", "auto"))

    @property
    def is_kept(self) -> bool:
        """Whether its runs have checkpoints; those of the other methods take seconds or cannot have any."""
        return self.method != "components" and self.method not in SEGMENTED_METHODS

    @property
    def starts_warm(self) -> bool:
        """Whether its runs begin with the last ranks."""
        return self.method not in SEGMENTED_METHODS


def read_job(path: Path) -> Job:
    """Read the file of a job.

    Raises InputError if it cannot be read, and UsageError, with the key, for what no job can have.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise InputError(f"{path} cannot be read: {reason}.", "Name the file of a job.") from error
    return parse_job(text, path.absolute())


def parse_job(text: str, path: Path) -> Job:
    r"""Take a job from the text of its file, which lies, or would lie, at an absolute `path`.

    Raises UsageError, with the key and its nearest known name, for what no job can have.

    Examples
    --------
    >>> job = parse_job("memory = '2GiB'\n[import]\nsource = 'edges.txt'", Path("/jobs/web.toml"))
    >>> job.folder.as_posix(), job.sources, job.memory
    ('/jobs/web', ('/jobs/edges.txt',), '2GiB')
    >>> parse_job("[import]\nsorce = 'edges.txt'", Path("/jobs/web.toml"))
    Traceback (most recent call last):
        ...
    oocpr.errors.UsageError: web.toml: [import] has no key 'sorce'. Did you mean 'source'?
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path.name} is no TOML: {error}.", "Correct it there.") from error
    tables = _tables(document, path.name)
    for table, values in tables.items():
        for key, value in values.items():
            with _naming(path.name, table):
                _check(table, key, value)
                values[key] = _resolved(key, value, path.parent)
    _check_together(tables, path.name)
    own, imports, appends = tables[""], tables["import"], tables["append"]
    limit = own.get("time_limit")
    if "folder" not in own and not path.suffix:
        raise UsageError(
            f"{path.name} has no ending, so the folder of the job would have its name.",
            f"Call it {path.name}.toml, or set folder.",
        )
    return Job(
        path=path,
        folder=Path(own.get("folder", path.with_suffix(""))),
        sources=imports.pop("source"),
        import_options=imports,
        appended=appends.pop("source", ()),
        append_options=appends,
        rank_options=tables["rank"],
        **{name: own[name] for name in ("memory", "tmp", "workers", "scheduler") if name in own},
        time_limit=None if limit is None else parse_seconds(limit),
        limits=Limits(**tables["compare"]) if "compare" in document else None,
        publication=Publication(**_publication(tables["publish"])),
    )


def _tables(document: dict[str, Any], file: str) -> dict[str, dict[str, Any]]:
    """Sort keys into tables; each is known."""
    tables: dict[str, dict[str, Any]] = {table: {} for table in _KEYS}
    for key, value in document.items():
        if key in _KEYS and key:
            if not isinstance(value, dict):
                raise UsageError(f"{file}: {key} is {render_argument(value)}, no table.", f"Write [{key}].")
            tables[key] = dict(value)
        else:
            tables[""][key] = value
    for table, values in tables.items():
        known = [*_KEYS[table], *(filter(None, _KEYS) if not table else ())]
        for key in values:
            if key not in known:
                where = f"[{table}] has" if table else "there is"
                alike = difflib.get_close_matches(key, known, 1)
                elsewhere = [f"[{other}]" for other, keys in _KEYS.items() if other and key in keys]
                remedy = f"There are {', '.join(known)}."
                if alike:
                    remedy = f"Did you mean {alike[0]!r}?"
                elif elsewhere:
                    remedy = f"It belongs to {' or '.join(elsewhere)}."
                elif key in _KEYS[""]:
                    remedy = "It stands before all tables."
                raise UsageError(f"{file}: {where} no key {key!r}.", remedy)
    return tables


@contextmanager
def _naming(file: str, table: str) -> Iterator[None]:
    """Have errors of a block name the file and the table."""
    try:
        yield
    except OocprError as error:
        where = f"{file}: [{table}]" if table else f"{file}:"
        raise UsageError(f"{where} {error.cause}", error.remedy) from error


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 1


def _is_share(most: float) -> Callable[[Any], bool]:
    return lambda value: type(value) in (int, float) and -most <= value <= most


def _is_name(*suffixes: str) -> Callable[[Any], bool]:
    return lambda value: (
        type(value) is str
        and Path(value).name == value
        and Path(value).suffix in suffixes
        and value[0] != "."
    )


def _are_sources(value: Any) -> bool:
    files = value if isinstance(value, list) else [value]
    return bool(files) and all(type(file) is str and file not in ("", "-") for file in files)


_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "source": (
        _are_sources,
        "Give files, patterns or URLs: a text or a list; standard input is read once only.",
    ),
    "folder": (lambda value: type(value) is str and bool(value), "Give the name of a folder."),
    "scheduler": (lambda value: type(value) is str and "://" in value, "Give tcp://HOST:8786."),
    "workers": (_is_count, "Give a whole number of at least 1."),
    "order": (lambda value: value in ORDERS, f"Give one of {', '.join(ORDERS)}."),
    "max_distance": (
        lambda value: _is_share(MAX_L1_DISTANCE)(value) and value >= 0,
        f"Give a number from 0 to {MAX_L1_DISTANCE}.",
    ),
    "min_overlap": (lambda value: _is_share(1)(value) and value >= 0, "Give a share from 0 to 1."),
    "min_kendall_tau": (_is_share(1), "Give a number from -1 to 1."),
    "ranks": (_is_name(".parquet", ".csv"), "Give a name, without a folder, that ends in .parquet or .csv."),
    "report": (_is_name(".html"), "Give a name, without a folder, that ends in .html."),
    "metrics": (
        lambda value: type(value) is str and value.endswith(".prom") and not is_url(value),
        "Give a file that ends in .prom, in the folder that the textfile collector reads.",
    ),
    "keep": (_is_count, "Give a whole number of at least 1."),
    "keep_graphs": (_is_count, "Give a whole number of at least 1: the next night needs the last graph."),
}
"""What holds for keys that no command has, and how to write them."""


def _check(table: str, key: str, value: Any) -> None:
    """Raise UsageError, with the key, for a value that it cannot have."""
    if table == "publish" and key == "report" and value == "":
        return
    holds, remedy = _RULES.get(key, (lambda value: not isinstance(value, dict | list), "Give one value."))
    if not holds(value):
        raise UsageError(f"{key} is {render_argument(value)}.", remedy)
    if key not in _RULES:
        check_argument(key, value)


def _resolved(key: str, value: Any, folder: Path) -> Any:
    if key not in _PATHS:
        return value
    if key == "source":
        return tuple(
            _resolved("tmp", file, folder) for file in ([value] if isinstance(value, str) else value)
        )
    return value if is_url(value) else str(folder / value)


def _publication(values: dict[str, Any]) -> dict[str, Any]:
    if "metrics" in values:
        values["metrics"] = Path(values["metrics"])
    if values.get("report") == "":
        values["report"] = None
    return values


def _check_together(tables: dict[str, dict[str, Any]], file: str) -> None:
    """Refuse tables and keys that do not go with each other."""
    from oocpr.engine.planning import asked_settings

    _require(file, "import", tables["import"], "Add it: what the graph is imported from.")
    if tables["append"]:
        _require(file, "append", tables["append"], "Add it: a pattern of the files that come each day.")
        order = tables["import"].get("order", "keep")
        if order != "keep":
            raise UsageError(
                f"{file}: [import] order is {order!r}, to which [append] cannot add nodes.",
                "Use order 'keep', or leave [append] out.",
            )
        for name in ("undirected", "reverse", "weight"):
            given, added = (bool(tables[table].get(name)) for table in ("import", "append"))
            if given != added:
                raise UsageError(
                    f"{file}: [{'import' if given else 'append'}] has {name}, and the other one has not.",
                    "Give it in both, or in none.",
                )
    limits = tables["compare"]
    if "min_kendall_tau" in limits and limits.get("top", 2) < 2:
        raise UsageError(
            f"{file}: [compare] top is {limits['top']}, whose order is none.",
            "Compare two nodes at least, or leave min_kendall_tau out.",
        )
    if {"workers", "scheduler"} <= tables[""].keys():
        raise UsageError(f"{file}: workers and scheduler are both given.", "Leave one of them out.")
    names = ("damping", "tol", "stop", "dangling", "max_passes")
    ranking = tables["rank"]
    with _naming(file, "rank"):
        asked_settings(
            ranking.get("method", "auto"),
            ranking.get("reads"),
            **{name: ranking[name] for name in names if name in ranking},
        )


def _require(file: str, table: str, values: Iterable[str], remedy: str) -> None:
    if "source" not in values:
        raise UsageError(f"{file}: [{table}] has no 'source'.", remedy)
