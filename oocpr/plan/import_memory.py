"""What who sorts and packs for an import takes of the memory of the process that imports."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Needs:
    """Bytes that sorting and packing take beside what they are given, all calls taken alike.

    Parameters
    ----------
    key_bytes
        For each key that is sorted, beside the keys.
    edge_bytes, row_bytes
        For each edge and each row of a tile that is packed, beside its columns and lengths; its encoded bytes
        count, at most 6 an edge and 5 a row.
    usual_keys
        Neighbouring buckets are sorted in one call until they have so many keys, where memory allows.

    Examples
    --------
    >>> Needs(key_bytes=8, edge_bytes=6, row_bytes=5).usual_keys
    1
    """

    key_bytes: int
    edge_bytes: int
    row_bytes: int
    usual_keys: int = 1
