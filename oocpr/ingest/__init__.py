"""Blocks of edges to a finished store, in bounded memory.

::

    spill       blocks -> one nameless file of keys, in buckets (ahead, crew, deal, run); the ids (ids)
    settle      ids of 64 bits and names -> numbers, by way of these:
      records     what each block has met, numbered in it (tables, fingerprint)
      dictionary  all records -> the nodes there are (parts, meeting, names)
    order       ids -> store rows: kept or by out-degree
    regroup     keys that have changed -> buckets again
    sort        buckets -> sorted rows without repeats, in threads (merge; partition, where one is too large)
    tiles       sorted rows -> tiles of equal edges with their row lengths
    encode      tiles -> the store, in threads
    called      what the rows are called
    build       drives these, under one memory budget

A key is an edge as the store sees it: row v lists the nodes that link to v, so the row is the head of
the edge and the column its tail. Until the order is known, both are the caller's ids, or numbers for them.
"""
