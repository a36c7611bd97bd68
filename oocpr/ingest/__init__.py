"""Blocks of edges to a finished store, in bounded memory.

::

    spill       blocks -> one file of keys, in buckets (ahead, reader, crew, deal, run); which ids occur (ids)
    settle      ids of 64 bits and names -> numbers, by way of these:
      records     what each block has met, numbered in it (tables, fingerprint)
      dictionary  all records -> the nodes there are (parts, meeting, names)
    ordering    ids -> store rows: kept, by out-degree (order), by host (host, name_sort), by a search (bfs),
                or the cheapest of these (scan, sample, worth, choice)
    stages      keys that have changed -> buckets again (regroup)
    sort        buckets -> sorted rows without repeats, in threads (merge; partition, where one is too large)
    weigh       of links with weights also: weights sorted, too (pair_sort), and made one for each link
    tiles       sorted rows -> tiles of equal edges with their row lengths
    encode      tiles -> the store, in threads
    called      what the rows are called
    build       drives these, under one memory budget

An import that can be resumed does the same with other files::

    resume      keeps what each stage has finished, or takes up what was kept (nothing_kept: does not)
    journal     what is finished, as lines that are there whole or not at all
    finished    what these lines come to, and whether it is of any use
    kept        temporary files with names
    rest        tiles that are written already, and the keys that are still to come
    leftovers   what imports that were interrupted have left

Edges are added to a stored graph without sorting its own again::

    append      drives these, and the stages above for the new edges
    joined      the nodes of the graph, then what a source has
    old         its tiles, those that stay and those that are cut anew
    blend       old edges and new ones in one order

A key is an edge as the store sees it: row v lists the nodes that link to v, so the row is the head of
the edge and the column its tail. Until the order is known, both are the caller's ids, or numbers for them.
"""
