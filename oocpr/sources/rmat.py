"""Graphs that are drawn while they are read, edge e from its number alone; among them R-MAT of any size.

Chakrabarti, Zhan, Faloutsos: "R-MAT: A Recursive Model for Graph Mining", SDM 2004, with the probabilities
of the Graph500 benchmark. Draws come from a counter (SplitMix64 of Steele, Lea and Flood, OOPSLA 2014), so
edge e is a function of the seed and of e alone: 30 to 38 million permuted edges per second of CPU time.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oocpr.errors import UsageError
from oocpr.jit import entry
from oocpr.sources.base import BaseSource
from oocpr.sources.block import EdgeBlock
from oocpr.system import shares, usable_cores

GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S16, _ONE = (np.uint64(k) for k in (30, 27, 31, 16, 1))
_LOW_16 = np.uint64(0xFFFF)

# Quadrants a, b, c, d have .57, .19, .19, .05 of the edges, to 2^-16: a draw of 16 bits decides a level.
_A, _AB, _ABC = (np.uint64(round(share * 2**16)) for share in (0.57, 0.76, 0.95))
_ROUNDS = 3


@entry(shared=True)
def mix(word):  # type: ignore[no-untyped-def]
    """Mix 64 bits, as SplitMix64 does."""
    word = (word ^ (word >> _S30)) * _MIX_1
    word = (word ^ (word >> _S27)) * _MIX_2
    return word ^ (word >> _S31)


@entry(shared=True)
def relabel(node, keys, half, mask):  # type: ignore[no-untyped-def]
    """Bijection on 0 .. mask: products with odd numbers carry bits up, shifts carry them down."""
    for k in range(_ROUNDS):
        node = (node * keys[k, 0] + keys[k, 1]) & mask
        node ^= node >> half
    return node


@entry()
def fill_edges(first, key, scale, keys, src, dst):  # type: ignore[no-untyped-def]
    """Write the edges from number `first` on to `src` and `dst`, uint32; without `keys`, nodes stay."""
    words = np.uint64((scale + 3) // 4)
    mask = (_ONE << np.uint64(scale)) - _ONE
    half = np.uint64((scale + 1) // 2)
    for k in range(len(src)):
        counter = key + (first + np.uint64(k)) * words * GAMMA
        row = np.uint64(0)
        column = np.uint64(0)
        left = scale
        while left > 0:
            counter += GAMMA
            bits = mix(counter)
            for _ in range(min(left, 4)):
                draw = bits & _LOW_16
                bits >>= _S16
                lower = np.uint64(draw >= _AB)
                right = np.uint64(draw >= _A) - lower + np.uint64(draw >= _ABC)
                row = (row << _ONE) | lower
                column = (column << _ONE) | right
            left -= 4
        if len(keys):
            row = relabel(row, keys, half, mask)
            column = relabel(column, keys, half, mask)
        src[k] = np.uint32(row)
        dst[k] = np.uint32(column)


class DrawnSource(BaseSource):
    """A graph between nodes 0 .. nodes - 1 whose edge e depends on e alone; subclasses have ``_draw``."""

    def __init__(self, name: str, nodes: int, edges: int, parameters: Mapping[str, Any]) -> None:
        super().__init__(name, name)
        self._parameters = parameters
        self.nodes = nodes
        self.edges = edges
        self._first = 0
        self.size = 8 * edges  # two ids of 4 bytes per edge

    def identity(self) -> dict[str, Any]:
        """See `oocpr.sources.block.ResumableSource`."""
        return {"reader": type(self).__name__, **self._parameters}

    @abstractmethod
    def _draw(self, first: int, src: NDArray[np.uint32], dst: NDArray[np.uint32]) -> None:
        """Write the edges from number `first` on; called by several threads."""

    def parts(self, count: int) -> list[BaseSource]:
        """See BaseSource."""
        made: list[BaseSource] = []
        for low, high in shares(self.edges, count):
            part = copy(self)
            part._first, part.edges, part.size = low, high - low, 8 * (high - low)
            made.append(part)
        return made

    def blocks(self, max_edges: int) -> Iterator[EdgeBlock]:
        """Yield the edges in blocks of at most `max_edges`, each made by all cores."""
        cores = usable_cores()
        with ThreadPoolExecutor(cores, thread_name_prefix="oocpr-drawn") as pool:
            for first in range(0, self.edges, max_edges):
                count = min(max_edges, self.edges - first)
                src, dst = np.empty(count, np.uint32), np.empty(count, np.uint32)
                made = [
                    pool.submit(self._draw, self._first + first + low, src[low:high], dst[low:high])
                    for low, high in shares(count, max(1, min(cores, count >> 16)))
                ]
                for piece in made:
                    piece.result()
                self.position = 8 * (first + count)
                yield EdgeBlock(src, dst)

    _read = blocks


def draw_keys(seed: int, bijections: int) -> tuple[np.uint64, NDArray[np.uint64]]:
    """Draw where counters begin, and keys of so many bijections of `relabel`.

    Returns uint64, and uint64 of shape (bijections, 3, 2).
    """
    count = 2 * _ROUNDS * bijections
    draws = np.arange(1, 2 + count, dtype=np.uint64) * GAMMA + np.uint64(seed)
    draws = np.array([mix(draw) for draw in draws], np.uint64)
    return draws[0], draws[1:].reshape(bijections, _ROUNDS, 2) | np.array([1, 0], np.uint64)


class Rmat(DrawnSource):
    """An R-MAT graph of 2^scale nodes and `edge_factor` edges per node, self-loops and duplicates among them.

    If `permute`, nodes are renumbered by a pseudo-random bijection; otherwise small ids have most edges.
    """

    def __init__(self, scale: int, edge_factor: int = 16, seed: int = 1, permute: bool = True) -> None:
        for name, value, low, high in (
            ("scale", scale, 1, 31),
            ("edge_factor", edge_factor, 1, 2**20),
            ("seed", seed, 0, 2**64 - 1),
        ):
            if not low <= value <= high:
                raise UsageError(f"{name} is {value}.", f"Give a number from {low} to {high}.")
        name = f"rmat{scale}-{edge_factor}-seed{seed}" + ("" if permute else "-unpermuted")
        parameters = {"scale": scale, "edge_factor": edge_factor, "seed": seed, "permute": permute}
        super().__init__(name, 1 << scale, edge_factor << scale, parameters)
        self._scale = scale
        self._key, (keys,) = draw_keys(seed, 1)
        self._keys = keys if permute else np.empty((0, 2), np.uint64)

    def _draw(self, first: int, src: NDArray[np.uint32], dst: NDArray[np.uint32]) -> None:
        fill_edges(np.uint64(first), self._key, self._scale, self._keys, src, dst)
