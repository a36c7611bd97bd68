"""Anything that holds edges, as an iterator of bounded blocks."""

from __future__ import annotations

from oocpr.sources.base import SourceOptions
from oocpr.sources.registry import FORMATS, open_source

__all__ = ["FORMATS", "SourceOptions", "open_source"]
