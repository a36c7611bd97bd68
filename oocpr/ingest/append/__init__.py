"""Edges added to a stored graph."""
