"""Ranks, their certificate, and how they are kept and shown."""
