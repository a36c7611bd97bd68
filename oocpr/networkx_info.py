"""What NetworkX asks of the backend `oocpr` whenever it is imported, so that this loads nothing else."""

from __future__ import annotations

from typing import Any


def get_info() -> dict[str, Any]:
    """Describe the backend, as the entry point ``networkx.backend_info`` has to.

    Examples
    --------
    >>> list(get_info()["functions"])
    ['pagerank']
    """
    return {
        "backend_name": "oocpr",
        "project": "oocpr",
        "package": "oocpr",
        "short_summary": "PageRank for graphs larger than memory, with a certified error bound.",
        "functions": {
            "pagerank": {
                "additional_docs": "The ranks are at least as exact as `tol` asks; also takes an "
                "``oocpr.Graph`` on disk.",
            },
        },
    }
