"""What a run has to do, checked once before anything is opened."""

from __future__ import annotations

import math
from dataclasses import dataclass

from oocpr.engine.number_formats import READS
from oocpr.errors import UsageError
from oocpr.plan.memory import SEGMENTED_METHODS
from oocpr.units import format_bound

METHODS = {
    "components": "a graph in memory: strongly connected components solved one after another, in their order",
    "mixed": "proposals inside a pass, tile-local sweeps and mixing of the last passes",
    "residual": "exact residual with narrow pushes, one product a pass",
    "power": "textbook power iteration, restarted from the last iterate in every pass",
    "cpms2": "power iteration that reads 32 and at last 64 bits of each number (Gruetzmacher et al. 2018)",
    "cpms4": "the same with 16, 32, 48 and 64 bits",
}
DANGLING = ("strongly", "weakly")
STOPS = ("certified", "residual")

ROUNDING = 3e-14
"""L1 rounding error of the kept residual, relative to the sum of p, unless that was much larger before.

The residual is updated, never recomputed, so it keeps the rounding of all passes, each in proportion to what
p summed to then. Against a product of 64-bit mantissas it differed by up to 4e-16 of the largest sum on nine
real graphs, and 9e-16 on a thousand small ones, with dampings up to 0.99999; each bound includes it.
"""

GROWN = 8
"""How much larger the sum of p may have been for that, with a margin of four at the least."""


LEAST_SOLVED_DAMPING = 1e-30
"""Least damping of method ``components``, which divides float32 by it."""


@dataclass(frozen=True)
class Settings:
    """Parameters of a run; raises UsageError for values that cannot be.

    Parameters
    ----------
    damping
        Probability of following an edge, in (0, 1).
    tol
        Certified bound on the L1 error of the ranks at which to stop (or on the residual, see `stop`).
    method, reads, stop, dangling
        One of METHODS, READS, STOPS, DANGLING.
    max_passes
        Passes after which to give up; None for twice what power iteration needs at worst.
    mixing
        Passes that mixing remembers; used by ``mixed`` only.
    sweeps
        Products inside a resident tile per pass, the delivering one included; used by ``mixed`` only.
    """

    damping: float = 0.85
    tol: float = 1e-10
    method: str = "mixed"
    reads: str = "bits16"
    stop: str = "certified"
    dangling: str = "strongly"
    max_passes: int | None = None
    mixing: int = 5
    sweeps: int = 4

    def __post_init__(self) -> None:
        _one_of("method", self.method, METHODS)
        _one_of("reads", self.reads, READS)
        _one_of("stop", self.stop, STOPS)
        _one_of("dangling", self.dangling, DANGLING)
        # Numbers of NumPy would round what is computed with them, and no file takes them.
        for name in ("damping", "tol"):
            object.__setattr__(self, name, float(getattr(self, name)))
        _check_damping(self.damping)
        if not 0 < self.tol < math.inf:
            raise UsageError(f"tol is {self.tol}, no number above 0.", "Use a value such as 1e-10.")
        if self.max_passes is not None and self.max_passes < 1:
            raise UsageError(f"max_passes is {self.max_passes}.", "Allow at least one pass.")
        if self.mixing < 0 or self.sweeps < 1:
            raise UsageError(
                f"mixing is {self.mixing} and sweeps is {self.sweeps}.",
                "Use mixing >= 0 and sweeps >= 1.",
            )
        floor = self.smallest_tol
        if self.tol < floor:
            raise UsageError(
                f"tol is {self.tol:g}; float64 sums can certify no less than {format_bound(floor)} "
                f"with {self.stop} stop at damping {self.damping:g}.",
                f"Use tol >= {format_bound(floor)}.",
            )
        if self.method == "components" and self.reads != "float32":
            raise UsageError(
                f"method components reads float32, not {self.reads}.",
                "Leave reads out, or use method mixed.",
            )
        if self.method == "components" and not self.solvable:
            raise UsageError(
                f"method components divides by damping, and {self.damping:g} is too small for float32.",
                "Use method mixed.",
            )
        if self.method in SEGMENTED_METHODS and self.reads != "float64":
            raise UsageError(
                f"method {self.method} reads parts of float64, not {self.reads}.",
                "Leave reads out, or use method power.",
            )
        limit = coarsest_rounding(self.damping)
        unit = READS[self.reads].unit_rounding
        if self.method != "power" and unit >= limit:
            wider = [r.name for r in READS.values() if r.unit_rounding < limit]
            raise UsageError(
                f"reads {self.reads} round by up to {unit:.3g}, too coarse for damping {self.damping:g}: "
                f"convergence needs less than {limit:.3g}.",
                f"Use reads {' or '.join(wider)}.",
            )

    @property
    def smallest_tol(self) -> float:
        """Smallest tolerance that float64 rounding lets a run certify."""
        return 2 * ROUNDING / (1 - self.damping) if self.stop == "certified" else 2 * ROUNDING

    @property
    def mixed(self) -> bool:
        """Whether proposals, tile-local sweeps and mixing are on."""
        return self.method == "mixed"

    @property
    def solvable(self) -> bool:
        """Whether method ``components`` takes the damping."""
        return self.damping >= LEAST_SOLVED_DAMPING

    @property
    def pass_limit(self) -> int:
        """Passes after which the run gives up."""
        if self.max_passes is not None:
            return self.max_passes
        return 2 * power_passes(self.damping, self.tol) + 20

    def bound(self, residual: float, growth: float = 1.0) -> float:
        """Certified L1 error of the ranks after a pass that left `residual`, relative to the sum of p.

        With M column-stochastic, p + r is one exact product past p, so its distance from the solution is at
        most damping / (1 - damping) times the L1 norm of r. `growth`: how much larger the sum of p has been.
        """
        return (self.damping * residual + _rounding(growth)) / (1 - self.damping)

    def satisfied(self, residual: float, growth: float = 1.0) -> bool:
        """Whether a pass that left `residual` may be the last."""
        if self.stop == "residual":
            return residual < self.tol
        return self.bound(residual, growth) <= self.tol

    def has_shrunk(self, growth: float) -> bool:
        """Whether p has become so small that rounding would keep a run from its tolerance."""
        allowed = self.tol / 2 * (1 - self.damping if self.stop == "certified" else 1)
        return _rounding(growth) > max(ROUNDING, allowed)


def _rounding(growth: float) -> float:
    return ROUNDING * max(1.0, growth / GROWN)


def coarsest_rounding(damping: float) -> float:
    """Below which reads must round for the residual to shrink in each pass."""
    return (1 - damping) / (1 + damping)


def usual_reads(damping: float) -> str:
    """Format of the fewest bits from 16 on with which a run converges; UsageError if none does."""
    _check_damping(damping)
    limit = coarsest_rounding(damping)
    wide = ("bits16", "float32", "float64")
    return next((name for name in wide if READS[name].unit_rounding < limit), wide[0])


def power_passes(damping: float, tol: float) -> int:
    """Passes that power iteration needs at worst for a certified error of `tol`."""
    return max(1, math.ceil(math.log(tol * (1 - damping) / 2) / math.log(damping)))


def _check_damping(damping: float) -> None:
    if not 0 < damping < 1:
        raise UsageError(f"damping is {damping}, outside (0, 1).", "Use a value such as 0.85.")


def _one_of(name: str, value: str, known: object) -> None:
    names = list(known)  # type: ignore[call-overload]
    if value not in names:
        raise UsageError(f"{name} {value!r} is not known.", f"Use one of {', '.join(names)}.")
