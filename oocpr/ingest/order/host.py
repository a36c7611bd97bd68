"""Nodes in the order of their names with the host reversed: www.example.com/a becomes com.example.www/a.

So the pages of a host are neighbours, and the hosts of a domain, between which most links of a crawl are
(Boldi, Vigna: "The WebGraph framework I: compression techniques", WWW 2004, who sort by URL).
"""

# Numba carries no types.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True
# mypy: allow-untyped-calls=True, check-untyped-defs=False

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from oocpr.ingest.nodes.strings import NumberedStrings, external_argsort, split_strings
from oocpr.ingest.order.permutation import Permutation
from oocpr.jit import entry, inner

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from oocpr.ingest.nodes.strings import Piece, StringFile
    from oocpr.ingest.spill.files import SpillDir

_DOT, _SLASH, _COLON, _AT, _HASH, _QUESTION = (np.uint8(ord(char)) for char in "./:@#?")
_BRACKET, _ZERO, _NINE, _A, _Z, _CASE = (np.uint8(ord(char)) for char in "[09AZ ")


def order_by_host(names: StringFile, workspace: SpillDir, space: int) -> Permutation | None:
    """Order nodes by `host_keys` of their names, then by number; None if nothing changes.

    Names take `space` bytes of memory at once, besides a few pieces.
    """
    keys = NumberedStrings(workspace)
    for text, lengths in names.pieces():
        numbers = np.arange(keys.count, keys.count + lengths.size, dtype=np.uint32)
        keys.add(*host_keys(text, lengths), numbers)
    nodes = np.empty(keys.count, np.uint32)
    filled = 0
    for numbers in external_argsort(keys, workspace, space):
        nodes[filled : filled + numbers.size] = numbers
        filled += numbers.size
    if bool((nodes[1:] > nodes[:-1]).all()):
        return None
    return Permutation.of_nodes(nodes)


def looks_like_urls(names: Iterator[Piece]) -> bool:
    """Whether half of the first names have a scheme, as in https://example.org/.

    Examples
    --------
    >>> looks_like_urls(iter([(np.frombuffer(b"ftp://ab.c", np.uint8), np.array([8, 2], np.uint32))]))
    True
    """
    found = [b"://" in name for piece in islice(names, 1) for name in split_strings(piece)]
    return bool(found) and 2 * sum(found) >= len(found)


def host_keys(text: NDArray[np.uint8], lengths: NDArray[np.uint32]) -> Piece:
    """Turn names, end to end with the length of each, into what they are sorted by.

    A scheme and what stands before an @ are dropped; the host, up to the first / ? or #, is reversed by its
    dots and put in lower case, unless it is an address in numbers. A port follows it, then the rest, which is
    at least a slash. A name without :// begins with its host.

    Examples
    --------
    >>> name = b"https://me@WWW.Example.com:8080/A?b"
    >>> host_keys(np.frombuffer(name, np.uint8), np.array([len(name)], np.uint32))[0].tobytes()
    b'com.example.www:8080/A?b'
    """
    keys = np.empty(text.size + lengths.size, np.uint8)
    key_lengths = np.empty_like(lengths)
    return keys[: _host_keys(text, lengths, keys, key_lengths)], key_lengths


@inner()
def _authority(text, start, end):
    """Find where the host begins, the port and the rest."""
    rest = start
    while rest < end and text[rest] not in (_COLON, _SLASH, _QUESTION, _HASH):
        rest += 1
    if rest + 2 < end and text[rest] == _COLON and text[rest + 1] == _SLASH and text[rest + 2] == _SLASH:
        start = rest + 3
    rest = start
    while rest < end and text[rest] not in (_SLASH, _QUESTION, _HASH):
        rest += 1
        if text[rest - 1] == _AT:
            start = rest
    port = rest
    while port > start and _ZERO <= text[port - 1] <= _NINE:
        port -= 1
    port = port - 1 if port > start and text[port - 1] == _COLON else rest
    return start, port, rest


@inner()
def _is_address(text, start, end):
    """Whether a host is an address in numbers, whose parts are in order already."""
    for i in range(start, end):
        if text[i] != _DOT and not _ZERO <= text[i] <= _NINE:
            return text[start] == _BRACKET
    return True


@inner()
def _copy(text, start, end, keys, at):
    for i in range(start, end):
        keys[at] = text[i]
        at += 1
    return at


@inner()
def _reverse(text, start, end, keys, at):
    """Write a host from its last part to its first, in lower case."""
    low = end
    while low > start:
        low -= 1
        if low > start and text[low] != _DOT:
            continue
        begin = at
        at = _copy(text, low + 1 if text[low] == _DOT else low, end, keys, at)
        for i in range(begin, at):
            if _A <= keys[i] <= _Z:
                keys[i] |= _CASE
        if text[low] == _DOT:
            keys[at] = _DOT
            at += 1
        end = low
    return at


@entry()
def _host_keys(text, lengths, keys, key_lengths):
    at = 0
    end = 0
    for k in range(lengths.size):
        begin = at
        start, end = end, end + np.int64(lengths[k])
        start, port, rest = _authority(text, start, end)
        if _is_address(text, start, port):
            at = _copy(text, start, port, keys, at)
        else:
            at = _reverse(text, start, port - 1 if text[port - 1] == _DOT else port, keys, at)
        at = _copy(text, port, rest, keys, at)
        if rest == end or text[rest] != _SLASH:
            keys[at] = _SLASH
            at += 1
        at = _copy(text, rest, end, keys, at)
        key_lengths[k] = at - begin
    return at
