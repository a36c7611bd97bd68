"""PageRank for graphs larger than memory, with a certified error bound.

Examples
--------
>>> import numpy as np
>>> import oocpr
>>> ranks = oocpr.pagerank((np.array([0, 1, 2]), np.array([1, 2, 1])))
>>> ranks.converged, [node for node, rank in ranks.top(1)]
(True, [1])
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from oocpr.errors import DamagedError, DoesNotFitError, InputError, NotAStoreError, OocprError, UsageError
from oocpr.version import __version__

if TYPE_CHECKING:
    from oocpr.api import (
        Graph,
        PersonalRanks,
        Ranks,
        append,
        eigenvector_centrality,
        hits,
        import_graph,
        katz_centrality,
        open_graph,
        pagerank,
        plan,
        read_ranks,
        verify,
    )

__all__ = [
    "DamagedError",
    "DoesNotFitError",
    "Graph",
    "InputError",
    "NotAStoreError",
    "OocprError",
    "PersonalRanks",
    "Ranks",
    "UsageError",
    "__version__",
    "append",
    "eigenvector_centrality",
    "hits",
    "import_graph",
    "katz_centrality",
    "open_graph",
    "pagerank",
    "plan",
    "read_ranks",
    "verify",
]


def __getattr__(name: str) -> Any:
    # Loaded on first use: `import oocpr` must not pay for what a program does not touch.
    if name in __all__:
        globals()[name] = found = getattr(importlib.import_module("oocpr.api"), name)
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


class _Package(ModuleType):
    """A package where `oocpr.plan` is the function, although a subpackage has that name too."""

    def __setattr__(self, name: str, value: Any) -> None:
        # The import system hangs each loaded subpackage on its parent; this one name is taken.
        if not (name == "plan" and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
