"""Blocks of edges to a finished store, in bounded memory."""
