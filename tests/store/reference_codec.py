"""A second writer and reader of tiles in plain Python and NumPy, made from the text of format alone.

It is the oracle of the compiled coder and of device decoders, and a thousand times slower.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

_TILE, _RUNS, _VERBATIM = 2, 1 << 8, 1 << 9


class _Stream:
    """Values as the sections of a packed stream; `carries` has one number a directory entry."""

    def __init__(self, values: list[int], carries: list[int]) -> None:
        bits: list[list[int]] = [[] for _ in range(32)]
        entries: list[list[int]] = []
        widths: list[int] = []
        wide: list[int] = []
        narrow: list[int] = []
        for first in range(0, len(values), 32):
            if first % 1024 == 0:
                entries.append([len(bits[0]), len(narrow), len(wide)])
            group = values[first : first + 32]
            group += [0] * (32 - len(group))
            width = min(range(32, -1, -1), key=lambda w: _cost(group, w))
            widths.append(width)
            for lane, value in enumerate(group):
                bits[lane] += [value >> k & 1 for k in range(width)]
                high = value >> width
                if high:
                    (narrow if high < 1 << 6 else wide).append(high << 10 | (first + lane) % 1024)
        total = len(bits[0])
        entries.append([total, len(narrow), len(wide)])
        padded = np.zeros((32, (total // 32 + 1) * 32), np.uint8)
        padded[:, :total] = bits
        self.words = np.packbits(padded, axis=1, bitorder="little").view("<u4").T.ravel()
        self.directory = np.array([[*e, c] for e, c in zip(entries, carries, strict=True)], "<u4").ravel()
        self.wide = np.array(wide, "<u4")
        self.narrow = np.array(narrow, "<u2")
        self.widths = np.array(widths, "u1")
        sections = (self.words, self.directory, self.wide, self.narrow, self.widths)
        self.nbytes = sum(section.nbytes for section in sections)


def _cost(group: list[int], width: int) -> float:
    """Bits of a group and its exceptions at some width."""
    highs = [value >> width for value in group]
    if max(highs) >= 1 << 22:
        return float("inf")
    return 32 * width + sum(16 if high < 1 << 6 else 32 for high in highs if high)


def encode_tile(columns: NDArray[np.uint32], lengths: NDArray[np.uint32], *, runs: bool = False) -> bytes:
    """Encode a tile as :func:`oocpr.store.codec.tiles.encode_tile` does, byte for byte.

    `columns`: uint32, shape (m,): strictly ascending inside a segment. `lengths`: uint32, shape (s,), their
    sum is m. `runs`: the segments are ascending runs, not rows.

    >>> coded = encode_tile(np.array([0, 2, 5, 1], np.uint32), np.array([3, 0, 1], np.uint32))
    >>> [part.tolist() for part in decode_tile(np.frombuffer(coded, np.uint8))]
    [[0, 2, 5, 1], [3, 0, 1]]
    """
    cols, lens = columns.tolist(), lengths.tolist()
    begins = [int(e) for e in (np.cumsum(lengths, dtype=np.int64) - lengths)[lengths > 0]]
    firsts = [cols[e] for e in begins]
    signed = [(b - a + 2**31) % 2**32 - 2**31 for a, b in pairwise([0, *firsts])]
    zigzag = [2 * d if d >= 0 else -2 * d - 1 for d in signed]
    gaps = [0] + [b - a - 1 for a, b in pairwise(cols)]
    for e in begins:
        gaps[e] = 0

    def ends(values: list[int]) -> list[int]:
        return [min(1024 * b, len(values)) for b in range(-(-len(values) // 1024) + 1)]

    carries = [cols[e - 1] if e else 0 for e in ends(cols)]
    coded_columns = _Stream(cols, carries)
    coded_gaps = _Stream(gaps[: len(cols)], carries)
    coded_starts = _Stream(zigzag, [firsts[e - 1] if e else 0 for e in ends(firsts)])
    coded_lengths = _Stream(lens, [sum(lens[:e]) for e in ends(lens)])
    ranks = np.array([sum(n > 0 for n in lens[:e]) for e in ends(lens)], "<u4")
    verbatim = coded_columns.nbytes < coded_gaps.nbytes + coded_starts.nbytes
    streams = [coded_columns, coded_lengths] if verbatim else [coded_gaps, coded_starts, coded_lengths]
    header = np.zeros(16, "<u4")
    header[0] = int.from_bytes(b"oci1", "little")
    header[1] = _TILE | (_RUNS if runs else 0) | (_VERBATIM if verbatim else 0)
    header[2:5] = len(cols), len(lens), len(begins)
    for k, s in enumerate(streams):
        header[5 + 3 * k : 8 + 3 * k] = s.words.size // 32, s.wide.size, s.narrow.size
    parts = [header, *(s.words for s in streams), *(s.directory for s in streams), ranks]
    for name in ("wide", "narrow", "widths"):
        parts += [getattr(s, name) for s in streams]
    coded = b"".join(part.tobytes() for part in parts)
    return coded + bytes(-len(coded) % 4)


def decode_tile(buf: NDArray[np.uint8]) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Decode a tile that nobody damaged.

    `buf`: uint8, shape (bytes,). Returns columns, lengths: uint32, shapes (m,) and (s,).
    """
    data = buf.tobytes()
    header = np.frombuffer(data, "<u4", 16).tolist()
    edges, segments, nonempty = header[2:5]
    verbatim = bool(header[1] & _VERBATIM)
    sizes = [edges, segments] if verbatim else [edges, nonempty, segments]
    counts = [(size, *header[5 + 3 * k : 8 + 3 * k]) for k, size in enumerate(sizes)]
    at = 64

    def take(dtype: str, items: int) -> NDArray[np.int64]:
        nonlocal at
        array = np.frombuffer(data, dtype, items, at).astype(np.int64)
        at += items * np.dtype(dtype).itemsize
        return array

    words = [take("<u4", 32 * rows) for _, rows, _, _ in counts]
    directories = [take("<u4", 4 * (-(-size // 1024) + 1)).reshape(-1, 4) for size, *_ in counts]
    take("<u4", directories[-1].shape[0])
    wide = [take("<u4", w) for _, _, w, _ in counts]
    narrow = [take("<u2", n) for _, _, _, n in counts]
    widths = [take("u1", -(-size // 32)) for size, *_ in counts]
    values = [_unpack(*parts) for parts in zip(sizes, words, directories, wide, narrow, widths, strict=True)]
    lengths = values[-1]
    columns = values[0] if verbatim else _columns(lengths, values[1], values[0])
    return columns.astype(np.uint32), lengths.astype(np.uint32)


def _unpack(
    size: int,
    words: NDArray[np.int64],
    directory: NDArray[np.int64],
    wide: NDArray[np.int64],
    narrow: NDArray[np.int64],
    widths: NDArray[np.int64],
) -> NDArray[np.int64]:
    lanes = words.reshape(-1, 32).T.astype("<u4", order="C")
    bits = np.unpackbits(lanes.view(np.uint8), axis=1, bitorder="little")
    groups = np.zeros((widths.size, 32), np.int64)
    position = 0
    for g, w in enumerate(widths.tolist()):
        groups[g] = bits[:, position : position + w] @ (1 << np.arange(w))
        position += w
    values = groups.ravel()
    for column, exceptions in ((1, narrow), (2, wide)):
        block = np.repeat(np.arange(len(directory) - 1), np.diff(directory[:, column]))
        at = 1024 * block + (exceptions & 1023)
        values[at] |= (exceptions >> 10) << widths[at // 32]
    return values[:size]


def _columns(
    lengths: NDArray[np.int64], zigzag: NDArray[np.int64], gaps: NDArray[np.int64]
) -> NDArray[np.int64]:
    firsts = np.cumsum((zigzag >> 1) ^ -(zigzag & 1)) % 2**32
    columns = np.empty(gaps.size, np.int64)
    ends = np.cumsum(lengths)
    begins = ends - lengths
    filled = np.flatnonzero(lengths)
    for first, begin, end in zip(firsts, begins[filled], ends[filled], strict=True):
        columns[begin:end] = first + np.cumsum(gaps[begin:end] + 1) - 1
    return columns
