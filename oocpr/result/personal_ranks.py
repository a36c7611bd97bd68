"""Personalized ranks of many seeds: whole vectors, or the largest ranks of each, and the bound of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from oocpr.engine.top_k import largest
from oocpr.errors import UsageError
from oocpr.html import html_table
from oocpr.result.names import in_memory
from oocpr.result.rank_files import check_csv, write_csv_tables, write_parquet_tables
from oocpr.result.ranks import (
    MemoryVector,
    Ranks,
    check_count,
    check_installed,
    checked_path,
)
from oocpr.store.remote import local_file
from oocpr.units import printable

if TYPE_CHECKING:
    import pyarrow as pa

    from oocpr.engine.scc.personal import Outcomes
    from oocpr.result.names import Name, Names
    from oocpr.result.ranks import Report

    Largest = tuple[NDArray[np.int64], NDArray[np.float64]]

_SHOWN = 10
"""Seeds that a notebook shows."""

_ROWS = 1 << 16
"""Rows of a table, if no seed has more."""


class PersonalRanks:
    """Personalized PageRank for each of many seeds.

    Parameters
    ----------
    kept
        Of each seed the ranks in store order, float64, shape (nodes,), or the rows and the values of the
        largest, largest first.
    seeds
        What the seeds are called: their numbers, or as a file has them.
    names
        What the caller calls the nodes.
    outcomes
        Bound, passes and whether it converged, of each seed.
    run
        Facts of the run; its bound and passes are the largest of all seeds.

    Examples
    --------
    >>> import oocpr
    >>> edges = np.array([0, 1, 2]), np.array([1, 0, 0])
    >>> ranks = oocpr.pagerank(edges, personalization=[{1: 1}, {1: 1, 2: 3}])
    >>> len(ranks), [[node for node, value in top] for top in ranks.top(2)]
    (2, [[1, 0], [0, 1]])
    """

    def __init__(
        self,
        kept: Sequence[NDArray[np.float64] | Largest],
        seeds: Sequence[Name],
        names: Names,
        outcomes: Outcomes,
        run: Report,
    ) -> None:
        self.kept: list[NDArray[np.float64] | Largest] = list(kept)
        self.seeds = list(seeds)
        self.names = names
        self.run = run
        self.error_bound: NDArray[np.float64] = outcomes.error_bound
        """Certified bound on the L1 distance of each vector from the exact one: float64, shape (seeds,)."""
        self.passes: NDArray[np.int64] = outcomes.passes
        """Passes that each vector took: int64, shape (seeds,)."""
        self.converged: NDArray[np.bool] = outcomes.converged
        """Whether each vector met the stopping rule: bool, shape (seeds,)."""

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"names": in_memory(self.names, self.run.nodes)}

    def __len__(self) -> int:
        return len(self.kept)

    def __repr__(self) -> str:
        return (
            f"PersonalRanks({len(self):,} seeds, {self.run.nodes:,} nodes, "
            f"{int(self.converged.sum()):,} converged)"
        )

    def _repr_html_(self) -> str:
        shown = min(len(self), _SHOWN)
        numbers, counts, rows, values = next(self._batches(min(3, self._count(None)), shown))
        named = iter(zip(self._names_of(rows), values.tolist(), strict=True))
        table = [
            (
                printable(self.seeds[number]),
                ", ".join(f"{printable(node)} {value:.4g}" for node, value in islice(named, count)),
            )
            for number, count in zip(numbers, counts, strict=True)
        ]
        return html_table(table, header=("seed", "largest ranks"), caption=repr(self))

    def __getitem__(self, number: int) -> Ranks:
        """Give the ranks of one seed, by its number; UsageError if only the largest are kept."""
        if isinstance(number, bool) or not isinstance(number, int | np.integer):
            raise UsageError(f"{number!r} is no number of a seed.", f"Give one from 0 to {len(self) - 1}.")
        values = self.kept[number]
        if isinstance(values, tuple):
            raise UsageError(
                f"of each seed the {len(values[0])} largest ranks are kept, not all.",
                "Use top, or rank again without top.",
            )
        run = replace(
            self.run,
            error_bound=float(self.error_bound[number]),
            passes=int(self.passes[number]),
            converged=bool(self.converged[number]),
        )
        return Ranks(values, self.names, run=run)

    def top(self, k: int = 10) -> list[list[tuple[Name, float]]]:
        """List, for each seed, the `k` nodes of largest rank and their ranks; equal ones in store order.

        Raises UsageError if `k` is not a whole number from 0, or more than was kept.
        """
        lists: list[list[tuple[Name, float]]] = []
        for numbers, counts, rows, values in self._batches(self._count(k)):
            named = iter(zip(self._names_of(rows), values.tolist(), strict=True))
            lists += [[next(named) for _ in range(count)] for _, count in zip(numbers, counts, strict=True)]
        return lists

    def to_arrow(self, k: int | None = None) -> pa.Table:
        """Give a table of Arrow: columns ``seed``, ``rank`` (a position, from 1), ``node`` and ``value``.

        `k`: how many nodes of each seed, largest first; None for all that are kept.
        """
        import pyarrow as pa

        schema = self._schema()
        return pa.concat_tables([schema.empty_table(), *self._tables(schema, self._count(k))])

    def to_pandas(self, k: int | None = None) -> Any:
        """Give what `to_arrow` does as a DataFrame of pandas."""
        return self.to_arrow(k).to_pandas()

    def to_polars(self, k: int | None = None) -> Any:
        """Give what `to_arrow` does as a DataFrame of Polars; SetupError if Polars is not installed."""
        return check_installed("polars").DataFrame(self.to_arrow(k))

    def to_parquet(self, path: str | Path) -> None:
        """Write what `to_arrow` gives as a Parquet file; see `oocpr.Ranks.to_parquet`."""
        schema = self._schema()
        with local_file(checked_path(path)) as file:
            write_parquet_tables(file, schema, self._tables(schema, self._count(None)), self.run)

    def to_csv(self, target: str | Path | BinaryIO) -> None:
        """Write what `to_arrow` gives as a CSV file or to an open binary stream; see `oocpr.Ranks.to_csv`."""
        check_csv(target)
        schema = self._schema()
        tables = self._tables(schema, self._count(None))
        if hasattr(target, "write"):
            write_csv_tables(cast("BinaryIO", target), schema, tables)
            return
        with local_file(checked_path(target)) as file:
            write_csv_tables(file, schema, tables)

    def report(self) -> dict[str, Any]:
        """Collect what the run did, ready for JSON: all of `Report`, and a list with each of the seeds."""
        columns = (self.seeds, self.error_bound.tolist(), self.passes.tolist(), self.converged.tolist())
        keys = ("seed", "error_bound", "passes", "converged")
        each = [dict(zip(keys, of, strict=True)) for of in zip(*columns, strict=True)]
        return self.run.to_dict() | {"seeds": each}

    def _count(self, k: int | None) -> int:
        """How many nodes of each seed are asked for, within those that there are."""
        first = self.kept[0]
        most = len(first[0] if isinstance(first, tuple) else first)
        if k is None:
            return most
        check_count(k)
        if most < k <= self.run.nodes:
            raise UsageError(
                f"k is {k} and the {most} largest ranks of each seed are kept.",
                f"Rank again with top={k}, or without top.",
            )
        return min(int(k), most)

    def _batches(
        self, k: int, seeds: int | None = None
    ) -> Iterator[tuple[list[int], list[int], NDArray[np.int64], NDArray[np.float64]]]:
        """Yield the numbers of some seeds, how many nodes each has, and the rows and values of all these."""
        step = seeds or max(1, _ROWS // max(1, k))
        for first in range(0, len(self), step):
            found = [
                (of[0][:k], of[1][:k]) if isinstance(of, tuple) else largest(MemoryVector(of).chunks(), k)
                for of in self.kept[first : first + step]
            ]
            rows, values = (np.concatenate(column) for column in zip(*found, strict=True))
            numbers = range(first, first + len(found))
            yield [*numbers], [len(of) for of, _ in found], rows, values

    def _names_of(self, rows: NDArray[np.int64]) -> Sequence[Name]:
        """Names of rows, each read once."""
        unique, places = np.unique(rows, return_inverse=True)
        names = self.names.take(unique)
        return [names[place] for place in places.tolist()]

    def _schema(self) -> pa.Schema:
        import pyarrow as pa

        seed = pa.string() if any(isinstance(seed, str) for seed in self.seeds) else pa.int64()
        node = pa.string() if self.names.textual else pa.int64()
        return pa.schema([("seed", seed), ("rank", pa.int64()), ("node", node), ("value", pa.float64())])

    def _tables(self, schema: pa.Schema, k: int) -> Iterator[pa.Table]:
        """Yield the rows of some seeds at a time."""
        import pyarrow as pa

        for numbers, counts, rows, values in self._batches(k):
            seeds = pa.array([self.seeds[number] for number in numbers], schema.field("seed").type)
            places = [np.arange(1, count + 1) for count in counts]
            yield pa.table(
                [
                    seeds.take(pa.array(np.repeat(np.arange(len(counts)), counts))),
                    pa.array(np.concatenate(places)),
                    pa.array(self._names_of(rows), schema.field("node").type),
                    pa.array(values),
                ],
                schema=schema,
            )
