"""Graphs that are in memory already."""
