"""Graphs that fit in memory whole, solved by strongly connected components."""
