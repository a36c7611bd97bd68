"""Orders of the nodes: by degree, by host, by searches, and the choice among them."""

ORDERS = ("keep", "degree", "host", "bfs", "dfs", "auto")
