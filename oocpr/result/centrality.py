"""Centralities other than PageRank: a number for each node, and what is known of how exact it is."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from oocpr.result.ranks import Ranks
from oocpr.units import format_passes

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from oocpr.result.names import Names

_TITLES = {
    "katz": "Katz centrality",
    "eigenvector": "Eigenvector centrality",
    "hubs": "Hubs",
    "authorities": "Authorities",
}


@dataclass(frozen=True, kw_only=True)
class CentralityReport:
    """The facts of a search.

    Parameters
    ----------
    measure
        ``"katz"``, ``"eigenvector"``, ``"hubs"`` or ``"authorities"``.
    nodes, edges, identity
        Of the graph, duplicates merged.
    tol, converged
        What was asked for, and whether it was reached before the passes ran out.
    residual
        Katz: largest difference between the sides of its equation, over beta. Else the L2 norm of
        M x - eigenvalue x, over the eigenvalue, for x of norm 1.
    error_bound
        Katz: certified share of itself by which each number is wrong at most, rounding included; inf if
        nothing is certified. None for the others: a residual does not bound the error of an eigenvector.
    eigenvalue, gap
        Estimates: of the largest eigenvalue of the adjacency matrix A or, of hubs and authorities, of A A^T;
        and of the share of it by which the next one is less. An error of about residual / gap is usual. None
        if the search was too short for one.
    passes, bytes_read, seconds, compile_seconds, peak_memory
        Traversals of the stored graph, bytes that came from the store, time, its part that went into
        compiling, and most bytes of the process.
    alpha, beta
        Of Katz centrality; None for the others.
    """

    measure: str
    nodes: int
    edges: int
    identity: str
    tol: float
    converged: bool
    residual: float
    error_bound: float | None
    eigenvalue: float | None
    gap: float | None
    passes: int
    bytes_read: int
    seconds: float
    compile_seconds: float
    peak_memory: int
    alpha: float | None = None
    beta: float | None = None

    @property
    def quality(self) -> str:
        """How exact the numbers are, in words."""
        if self.error_bound is None:
            gap = "unknown" if self.gap is None else f"about {self.gap:.2g}"
            return f"residual {self.residual:.1e}, gap {gap}, not certified"
        if self.error_bound < 1:
            return f"relative error of each node <= {self.error_bound:.1e}"
        return "no error is certified"


class Centrality(Ranks):
    """A centrality of every node, with the calls of `Ranks`: the column ``rank`` of tables has its numbers.

    Parameters
    ----------
    values, names
        See `Ranks`.
    facts
        How the numbers came about.
    """

    def __init__(self, values: NDArray[np.float64], names: Names, facts: CentralityReport) -> None:
        super().__init__(values, names)
        self.facts = facts

    @property
    def error_bound(self) -> float | None:
        """Certified relative error of each node; None if the measure has no certificate."""
        return self.facts.error_bound

    @property
    def converged(self) -> bool:
        """Whether the tolerance was reached."""
        return self.facts.converged

    @property
    def passes(self) -> int:
        """Traversals of the graph."""
        return self.facts.passes

    @property
    def identity(self) -> str:
        """Identity of the graph."""
        return self.facts.identity

    def to_html(self, path: str | Path, *, top: int = 20, title: str | None = None) -> None:
        """Write a page as `Ranks.to_html` does, by default called what the measure is."""
        super().to_html(path, top=top, title=_TITLES[self.facts.measure] if title is None else title)

    def __repr__(self) -> str:
        facts = self.facts
        state = "converged" if facts.converged else "not converged"
        known = f"{facts.quality}, {state}, {format_passes(facts.passes)}"
        return f"Centrality({facts.measure}, {facts.nodes:,} nodes, {known})"

    def report(self, top: int = 10) -> dict[str, Any]:
        """Collect all of `CentralityReport`, and ``top`` as in `Ranks.report`; a bound of inf is None."""
        found = super().report(top) | asdict(self.facts)
        if self.facts.error_bound == float("inf"):
            found["error_bound"] = None
        # The list ends what is written piece by piece.
        found["top"] = found.pop("top")
        return found


class Hits(NamedTuple):
    """Hubs and authorities, in the order of ``networkx.hits``; the numbers of each sum to 1."""

    hubs: Centrality
    authorities: Centrality
