"""Buckets sorted into rows, cut into tiles and encoded."""
