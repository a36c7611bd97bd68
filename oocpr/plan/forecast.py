"""How long a pass takes, from measured rates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

MIXED_PASSES = (0.05, 0.23, 0.6)
"""Passes of ``mixed`` per sqrt(1 / (1 - damping)) and per e that the error falls: fewest, as a rule, most.

With tiles that are swept by themselves, crawls, citation, social, call, package and random graphs needed 0.13
to 0.36 of it with damping 0.85 and tolerances of 1e-6 and 1e-10, 0.23 in the middle, and 0.08 to 0.38 with
damping 0.95; with fewer sweeps, up to 0.6."""

TOGETHER_PASSES = 0.165
"""The second of these with tiles that are swept together: in one stripe, fifteen such graphs needed 0.09 to
0.31 with damping 0.85, and 0.06 to 0.32 with 0.95."""

SINGLE_PASSES = (0.12, 0.75, 1.0)
"""Passes of the other methods over those that the damping alone would take, on the same graphs."""

SHORT_MIXING = (1.9, 1.3, 1.1, 1.05, 1.0)
"""Passes of ``mixed`` that remembers 0 to 4 passes over those of one that remembers 5: in the middle of a
crawl, a citation, a social and a call graph, in 16 tiles at damping 0.85, which took 18 to 22."""

SHORT_TOGETHER = (1.45, 1.15, 1.05)
"""The same of tiles that are swept together, of 0 to 2: in the middle of eight graphs."""

UNSWEPT = (6.2, 5.4, 3.0, 2.8)
"""The same that remembers 0 to 3, without sweeps inside tiles and without proposals, over those of one with
four sweeps that remembers 5: in the middle of a crawl, a citation, a social, a call, a package and a
documentation graph. With 3, the crawl and the call graph took 5.1 times as many, the others 2.5 to 3.0."""

RANDOM_PASSES = (0.205, 0.2)
"""Both, as a rule, for graphs with few edges inside tiles: most of them mix fast, as random graphs do."""

PAIRED_PASSES = 0.18
"""The first of these if rows gather what others propose beside their pushes: R-MAT of scales 26, 28 and 30
took 11 to 13 passes then, and without it 13 to 15 as of other scales."""

RANDOM_SHARE = 0.1
"""Share of edges inside tiles below which a graph is taken for one of these."""

MIN_LOCALITY = 0.05
"""Share of edges inside tiles, of those that would not be there at random, from which on sweeps pay: 0.07 of
documentation and a small web, 0.13 of a social graph, 0.17 of citations, 0.9 of a crawl, and 0 of R-MAT."""

COMPONENT_PASSES = 2
"""Passes of ``components``: each takes five to six digits."""

COMPONENT_SWEEPS = 30
"""Visits of each edge in such a pass, on crawls and social graphs; call and citation graphs need fewer."""

DEVICE_MIXING = 3
"""Passes that mixing remembers on a CUDA device, where two more took longer than the passes they saved."""

SMALL_EDGES = 2**23
"""Edges up to which a CUDA device sweeps a graph faster than a host can tell it to."""

MAX_SCC_EDGES = 2**22
"""Edges up to which solving components in memory took less time than passes over tiles on crawls, social,
citation, call and package graphs; random graphs mix so fast that passes are as good from 2**20 on."""

READY_SCC_EDGES = 2**19
"""Edges up to which processors have solved components before a device that is ready has ranked the graph: on
16 cores 353 k took 10 ms and 948 k 27; an H200 12 and 14. One that no run has used yet takes 0.4 s more."""

MAX_SCC_NUMBERED_EDGES = 2**31
"""Edges that 32 bits can number twice over."""

MIN_PASSES_FITTED = 4
"""Passes after which a run says how many it takes."""

LINK_BYTES = 50e9
DEVICE_EDGES = 180e9
"""Bytes per second from pinned memory, edges per second of a product: what an H200 has, and some to spare. A
web-like graph of 2.1 B/edge streamed in 99 ms with three sweeps of a group, and with four, which end as it
comes, in 88."""


@dataclass(frozen=True)
class Rates:
    """What a probe saw a machine do, per second; infinite if nothing of the kind is to be done.

    Of several devices it is what all do together, each with its own stripe, until the last is done. Which one
    that is depends on all that it sweeps: if it has tiles of one kind only, the other kind is infinite.
    """

    store_bytes: float  # encoded, from the store to memory; infinite if devices do that in a first pass only
    resident: float  # edges swept, in a pass after the first, of tiles that stay where they are computed
    streamed: float  # the same of the others, while the next are read; on a device once they are there
    first: float  # edges swept in a first pass, which reads all tiles and prepares those that stay
    rows: float  # pushed and laid out between two passes
    ends: float = math.inf  # rows made ready before the first pass and finished after the last
    loading: float = 0.0  # seconds, once per process: see Forecast
    uploaded: float = math.inf  # streamed edges over the links of devices, each at work without a pause
    alternating: float = math.inf  # the same of the sweeping that waits for a link in turns with what comes
    launched: float = math.inf  # edges of all tiles whose sweeps the host launches


@dataclass(frozen=True)
class Forecast:
    """Seconds of a run: of the first pass, which reads all tiles, of each later one, and at both ends.

    `loading` has those in which a new process loads what is compiled, not those of compiling it.
    """

    first: float
    each: float
    ends: float = 0.0
    loading: float = 0.0

    def seconds(self, passes: int) -> float:
        """Seconds of a run of so many passes."""
        return self.loading + self.ends + self.first + (passes - 1) * self.each


@dataclass(frozen=True)
class Passes:
    """How many passes a run takes; the numbers of a graph do not show how slowly it mixes."""

    fewest: int
    typical: int
    most: int


def predicted_passes(
    damping: float,
    tol: float,
    method: str,
    local_share: float = 1.0,
    *,
    pairs: bool = False,
    mixing: int | None = None,
    swept: bool = True,
    together: bool = False,
) -> Passes:
    """Passes to a certified error of `tol`; see MIXED_PASSES.

    `pairs` says whether rows gather the proposals of others beside their pushes, `mixing` how many passes
    ``mixed`` remembers if memory is short, `swept` whether tiles that have enough of their edges inside are
    swept more than once, `together` whether they are with the ones beside them.

    Examples
    --------
    >>> predicted_passes(0.85, 1e-10, "mixed")
    Passes(fewest=4, typical=16, most=40)
    """
    if method == "components":
        return Passes(COMPONENT_PASSES, COMPONENT_PASSES, COMPONENT_PASSES + 1)
    fall = max(0.0, -math.log(tol * (1 - damping) / 2))
    mixed = method == "mixed"
    unit = fall * math.sqrt(1 / (1 - damping)) if mixed else fall / -math.log(damping)
    fewest, typical, most = MIXED_PASSES if mixed else SINGLE_PASSES
    short: Sequence[float] = SHORT_MIXING
    if mixed and swept and together:
        typical, short = TOGETHER_PASSES, SHORT_TOGETHER
    if local_share < RANDOM_SHARE:
        typical = PAIRED_PASSES if mixed and pairs else RANDOM_PASSES[0 if mixed else 1]
    if mixed and not swept:
        # None took more than the damping alone would: a crawl in random order 92, R-MAT 15.
        most = max(most, fall / -math.log(damping) / unit)
    if mixed and not swept and local_share >= RANDOM_SHARE:
        typical *= UNSWEPT[DEVICE_MIXING if mixing is None else min(mixing, DEVICE_MIXING)]
    elif mixed and mixing is not None and mixing < len(short):
        typical *= short[mixing]
    counts = [max(1, math.ceil(share * unit)) for share in (fewest, typical, most)]
    return Passes(*counts)


def passes_from(bounds: Sequence[float], tol: float, predicted: int) -> int:
    """Passes that a run takes in all, by how its error has fallen so far.

    `bounds` has the certified error after each pass; what was predicted holds for the first passes.
    """
    done = len(bounds)
    # The later half: the first passes fall faster or slower than all that follow.
    middle = done // 2
    if done >= MIN_PASSES_FITTED and 0 < bounds[-1] < bounds[middle]:
        each = math.log(bounds[middle] / bounds[-1]) / (done - 1 - middle)
        return done + max(0, math.ceil(math.log(bounds[-1] / tol) / each - 1e-9))
    return max(predicted, done + 1)


def sweeps_for(local_share: float, tiles: int) -> int:
    """Products inside tiles that pay on processors: several if more of the edges stay there than at random.

    With six, crawls, citation, social, call and package graphs need 10 to 40 % fewer passes than with four,
    and with seven at most a tenth fewer than with six.

    If few do, passes that gather proposals beside pushes take two to four times as long as others once a
    graph is larger than the caches, and save less: two cores ranked R-MAT of 65 million edges, 2 % of them
    inside tiles, with none, two and four in 15, 11 and 11 passes and in 3.3, 6.3 and 6.4 s.
    """
    if local_share < RANDOM_SHARE:
        return 1
    # Of as many tiles of a random graph.
    anyway = 1 / tiles
    if local_share - anyway < MIN_LOCALITY * (1 - anyway):
        return 3
    return 6


def sweeps_on_device(local_share: float, *, small: bool = False) -> int:
    """Products inside a tile that pay on a CUDA device on which all tiles stay.

    A sweep of a tile decodes it again: more than two took longer than the passes they saved, and two if few
    edges stay inside. A graph so small that the host is slower than the device is swept several times between
    two questions of the host: three graphs of 1 to 3 M edges took 5.0, 6.3 and 6.5 ms with six sweeps, 6.0 to
    7.0 with eight and 5.1 to 7.7 with four. `small`: one tile of at most SMALL_EDGES edges.
    """
    if small:
        return 6
    return 2 if local_share >= 0.5 else 1


def streamed_sweeps(bytes_per_edge: float, local_share: float, *, overlap: bool = True) -> int:
    """Products inside a tile that pay on a CUDA device while the next one is on its way.

    Those that end before it has arrived cost nothing. With `overlap`, where a group is swept with its
    neighbours, two pay even if few edges stay inside a tile: R-MAT of 263 M edges in 8 groups streamed in 107
    ms without them and in 91 with them, and 1.06 G edges in 32 groups in 436 and in 418. Without it, the
    latter took 456, so that they pay if some edges stay inside.

    If most do, four pay even if they are not free, and three without `overlap`: a crawl of 0.56 B/edge took
    177 to 187 ms with three, 169 to 174 with four and 188 with five; without it 203, 243 and 263.
    """
    products = bytes_per_edge / LINK_BYTES * DEVICE_EDGES
    # One product delivers; each further sweep is two, as rows of a tile are swept side by side.
    free = max(1, 1 + int((products - 1) / 2))
    if local_share >= 0.5:
        return min(6, max(free, 4 if overlap else 3))
    return min(4 if local_share >= RANDOM_SHARE else 2 if overlap or local_share >= 0.02 else 1, free)
