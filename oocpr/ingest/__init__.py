"""Blocks of edges to a finished store, in bounded memory.

A key is an edge as the store sees it, row << 32 | column: row v lists the nodes with an edge to v, so the row
is the destination of the edge and the column its source. Until the order is known, both are the caller's ids,
or numbers for them. The modules and folders, in the order in which data passes through them::

    read      blocks -> one file of keys, in buckets of rows; or, for ids of 64 bits and names, in words
    nodes     ids of 64 bits and names -> the numbers of their nodes
    orders    nodes -> rows of the store: by out-degree, host or a search, or the cheapest (`orders.choice`)
    spill     temporary files, keys in them, their partitioning into buckets of rows
    rows      buckets -> sorted rows without duplicates
    tiles     rows -> tiles of equal edges -> the encoded tiles
    resume    where an import keeps its files, and what another process finds of it (`journal`)

`build` drives these stages for a source, `append` for a source that is added to a stored graph, both under
one memory `budget`.
"""
