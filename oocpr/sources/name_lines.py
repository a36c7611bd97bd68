"""Names out of lines of text, in a compiled loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numba
import numpy as np

from oocpr.sources.block import Strings
from oocpr.sources.compressed import ByteStream
from oocpr.sources.lines import LineReader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oocpr.sources.base import AnyPath

_SPACE, _TAB, _RETURN, _NEWLINE, _HASH = (np.uint8(ord(c)) for c in " \t\r\n#")


@numba.njit(cache=True, nogil=True)
def _scan(text, pos, pairs, skip, starts, ends):  # type: ignore[no-untyped-def]
    """Find the names of whole lines until the text ends or the arrays are full.

    Parameters
    ----------
    text
        uint8; its last byte is a newline.
    pos
        Where a line begins.
    pairs
        Whether lines have two names, apart by a tab; otherwise the first column is a name.
    skip
        Whether lines that are blank or begin with ``#`` are skipped.
    starts, ends
        int64, shape (names,), a number of names divisible by two; receive where names begin and end.

    Returns
    -------
    fine, pos, count
        Where the next call goes on, and how many names were found. Where the line at `pos` cannot be read,
        `fine` is False.
    """
    count = 0
    while pos < text.size and count < starts.size:
        begin = pos
        tabs = 0
        tab = -1
        blank = True
        while text[pos] != _NEWLINE:
            char = text[pos]
            if char == _TAB:
                if tabs == 0:
                    tab = pos
                tabs += 1
            elif char != _SPACE and char != _RETURN:
                blank = False
            pos += 1
        end = pos
        pos += 1
        if skip and (blank or text[begin] == _HASH):
            continue
        while end > begin and text[end - 1] == _RETURN:
            end -= 1
        if pairs:
            if tabs != 1 or tab == begin or tab + 1 == end:
                return False, begin, count
            starts[count], ends[count] = begin, tab
            starts[count + 1], ends[count + 1] = tab + 1, end
            count += 2
        else:
            if tab == begin or end == begin:
                return False, begin, count
            starts[count], ends[count] = begin, end if tabs == 0 else tab
            count += 1
    return True, pos, count


def listed_names(path: AnyPath, most: int) -> Iterator[Strings]:
    """Yield the names of a file that has one a line; lines that are blank or begin with ``#`` are skipped.

    Parameters
    ----------
    path
        The file, packed or not.
    most
        Most names at a time, an even number.

    Raises
    ------
    InputError
        A file that cannot be read, or text that is not UTF-8.
    """
    with ByteStream(path) as stream:
        yield from names_of(LineReader(stream), most, pairs=False, skip=True)


def names_of(lines: LineReader, most: int, *, pairs: bool, skip: bool) -> Iterator[Strings]:
    """Yield the names of all remaining lines.

    Parameters
    ----------
    lines
        Where they come from.
    most
        Most names at a time, an even number.
    pairs
        Whether lines have two names, apart by a tab; otherwise the first column is a name.
    skip
        Whether lines that are blank or begin with ``#`` are skipped.

    Raises
    ------
    InputError
        A line without its names, or text that is not UTF-8.
    """
    for piece in lines.pieces():
        text = np.frombuffer(piece, np.uint8)
        pos = 0
        while pos < text.size:
            room = min(most, text.size + text.size % 2)
            starts, ends = np.empty(room, np.int64), np.empty(room, np.int64)
            fine, pos, count = _scan(text, pos, pairs, skip, starts, ends)
            if not fine:
                lines.line += piece.count(b"\n", 0, pos)
                shown = repr(piece[pos : piece.index(b"\n", pos)].decode()[:60])
                if pairs:
                    raise lines.error(
                        f"{shown} is not two names.", "Give two names a line, apart by one tab."
                    )
                raise lines.error("no label.", "Give each node one line that begins with its label.")
            if count:
                yield Strings(text, starts[:count], ends[:count])
