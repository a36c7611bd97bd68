"""A source, readable once, spilled to disk."""
