"""What NetworkX asks of the backend `oocpr` whenever it is imported, so that this loads nothing else."""

from __future__ import annotations

from typing import Any


def get_info() -> dict[str, Any]:
    """Describe the backend, as the entry point ``networkx.backend_info`` has to.

    Examples
    --------
    >>> list(get_info()["functions"])
    ['pagerank', 'katz_centrality', 'eigenvector_centrality', 'hits']
    """
    stored = "Also takes an ``oocpr.Graph`` on disk; no `nstart`."
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
            "katz_centrality": {
                "additional_docs": f"Each number has a relative error of `tol` at most. {stored}",
            },
            "eigenvector_centrality": {"additional_docs": stored},
            "hits": {"additional_docs": stored},
        },
    }
