"""Graphs that fit in memory whole: their rows solved in an order found once, by all cores of one process."""
