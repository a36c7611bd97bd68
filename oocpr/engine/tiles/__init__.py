"""Tiles on their way from the store to a backend: what is read, when, and into which buffer."""
