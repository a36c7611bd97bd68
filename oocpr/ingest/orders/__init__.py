"""Orders of the nodes: by degree, by host, by searches, and the choice among them."""
