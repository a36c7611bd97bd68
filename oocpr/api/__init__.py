"""The calls that people make: each joins a few rooms and does nothing of its own."""

from oocpr.api.graphs import Graph, as_graph, import_graph, open_graph
from oocpr.api.ranking import pagerank, plan, verify

__all__ = ["Graph", "as_graph", "import_graph", "open_graph", "pagerank", "plan", "verify"]
