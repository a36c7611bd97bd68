"""Anything that holds edges, as an iterator of bounded blocks: one foreign format, one small file."""
