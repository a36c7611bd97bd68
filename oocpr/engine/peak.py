"""How much memory a process has taken."""

from __future__ import annotations

import resource


def own_peak() -> int:
    """Largest resident set of this process so far, in bytes.

    Examples
    --------
    >>> own_peak() > 2**20
    True
    """
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
