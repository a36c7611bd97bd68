"""Blocks of edges to a finished store, in bounded memory.

::

    spill       blocks -> one nameless file of keys, row << 32 | column; which ids occur
    order       ids -> store rows: kept or by out-degree
    partition   keys -> buckets, each a range of keys that fits in memory
    merge       bucket -> sorted keys without repeats, degrees
    tiles       sorted keys -> tiles of equal edges with their row lengths
    build       drives these, under one memory budget

A key is an edge as the store sees it: row v lists the nodes that link to v, so the row is the head of
the edge and the column its tail. Until the order is known, both are the caller's ids.
"""
