"""Which order of the nodes: integers in, a name and a sentence out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

MISS_BYTES = 16
"""Stored bytes that cost as much as a gather from outside the cache.

A line of 64 bytes comes for it, but several are under way at a time, and of a graph that is read from a disk
or over a link the stored bytes are what takes long.
"""

_SHARE = 8
"""An order has to save this part of what the source's costs: it takes 4 bytes a node of the store for ids,
and tears apart what the source may have put together for reasons that a sample does not show."""

_SEARCHED_EDGES = 1 << 24
"""Most links of a graph that is searched unasked: each level of a search goes over all of them."""

_CALLED = {
    "keep": "as in the source",
    "degree": "by out-degree",
    "host": "by host",
    "bfs": "by breadth-first search",
}


@dataclass(frozen=True)
class Worth:
    """What a sample of the rows of an order costs.

    Parameters
    ----------
    edges
        Links of the sample.
    stored
        Bytes that they take in a store.
    missed
        How many of them gather what the cache does not hold.

    Examples
    --------
    >>> print(Worth(1000, 1990, 620))
    1.99 B/edge and 38 % of gathers in cache
    """

    edges: int
    stored: int
    missed: int

    @property
    def cost(self) -> int:
        """Bytes, and what counts as bytes."""
        return self.stored + MISS_BYTES * self.missed

    def cheaper(self, other: Worth) -> bool:
        """Whether a link costs less than one of another."""
        return self.cost * other.edges < other.cost * self.edges

    @property
    def per_edge(self) -> str:
        """Bytes a link, in words."""
        return f"{self.stored / max(self.edges, 1):.2f}"

    @property
    def hits(self) -> str:
        """Percentage of gathers in the cache, in words."""
        return f"{100 - 100 * self.missed / max(self.edges, 1):.0f}"

    def __str__(self) -> str:
        return f"{self.per_edge} B/edge and {self.hits} % of gathers in cache"


def choose(worths: Mapping[str, Worth]) -> str:
    """Choose an order: the cheapest, but the source's unless another saves an eighth.

    Parameters
    ----------
    worths
        Of each order, "keep" among them; the first of equals is taken.

    Examples
    --------
    >>> choose({"keep": Worth(100, 160, 10), "degree": Worth(100, 240, 0)})
    'degree'
    >>> choose({"keep": Worth(100, 160, 0), "degree": Worth(100, 141, 0)})
    'keep'
    """
    best, keep = "keep", worths["keep"]
    for name, worth in worths.items():
        saves = _SHARE * worth.cost * keep.edges <= (_SHARE - 1) * keep.cost * worth.edges
        if saves and worth.cheaper(worths[best]):
            best = name
    return best


def worth_a_search(worths: Mapping[str, Worth], edges: int) -> bool:
    """Say whether a breadth-first search is worth its time, as on a small graph of a byte a link or more.

    Parameters
    ----------
    worths
        Of the orders that were looked at.
    edges
        Links of the graph, repeats included.

    Examples
    --------
    >>> worth_a_search({"keep": Worth(100, 160, 10)}, 1000), worth_a_search({"keep": Worth(100, 60, 0)}, 1000)
    (True, False)
    """
    best = worths[choose(worths)]
    return edges <= _SEARCHED_EDGES and best.stored >= best.edges > 0


def explain(chosen: str, worths: Mapping[str, Worth]) -> str:
    """Say why an order was chosen.

    Parameters
    ----------
    chosen
        What `choose` chose.
    worths
        Of each order.

    Examples
    --------
    >>> keep, degree = Worth(1000, 1990, 620), Worth(1000, 1490, 290)
    >>> explain("degree", {"keep": keep, "degree": degree})
    'order: by out-degree, 1.49 instead of 1.99 B/edge and 71 instead of 38 % of gathers in cache'
    >>> explain("keep", {"keep": degree, "degree": keep})
    'order: as in the source, 1.49 B/edge and 71 % of gathers in cache; by out-degree 1.99 and 38 %'
    """
    worth, keep = worths[chosen], worths["keep"]
    said = f"order: {_CALLED[chosen]}, {worth}"
    if chosen != "keep":
        hits = worth.hits if worth.hits == keep.hits else f"{worth.hits} instead of {keep.hits}"
        said = (
            f"order: {_CALLED[chosen]}, {worth.per_edge} instead of {keep.per_edge} B/edge "
            f"and {hits} % of gathers in cache"
        )
    others = (name for name in worths if name not in (chosen, "keep"))
    return said + "".join(
        f"; {_CALLED[name]} {worths[name].per_edge} and {worths[name].hits} %" for name in others
    )
