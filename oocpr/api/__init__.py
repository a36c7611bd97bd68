"""The calls that people make: each joins a few rooms and does nothing of its own."""

from oocpr.api.arguments import checked
from oocpr.api.centrality import eigenvector_centrality, hits, katz_centrality
from oocpr.api.graphs import Graph, append, as_graph, import_graph, open_graph
from oocpr.api.ranking import pagerank, plan, verify
from oocpr.result import rank_files
from oocpr.result.personal_ranks import PersonalRanks
from oocpr.result.ranks import Ranks

read_ranks = checked(rank_files.read_ranks)

__all__ = [
    "Graph",
    "PersonalRanks",
    "Ranks",
    "append",
    "as_graph",
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
