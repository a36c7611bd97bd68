"""Names and labels out of lines of text, without the blanks around them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from oocpr.errors import InputError
from oocpr.jit import entry, inner
from oocpr.sources.block import Strings
from oocpr.sources.files import COMPRESSED, ByteStream, LocalFile, input_file, uncompressed_name
from oocpr.sources.lines import LineReader

if TYPE_CHECKING:
    from oocpr.sources.files import AnyPath, InputFile

_SPACE, _TAB, _RETURN, _NEWLINE, _HASH = (np.uint8(ord(c)) for c in " \t\r\n#")


@inner(inline="always")
def _inside(text, begin, end):  # type: ignore[no-untyped-def]
    """Where a name begins and ends without the blanks around it."""
    while begin < end and (text[begin] == _SPACE or text[begin] == _RETURN):
        begin += 1
    while end > begin and (text[end - 1] == _SPACE or text[end - 1] == _RETURN):
        end -= 1
    return begin, end


@entry()
def _scan(text, pos, pairs, skip, weight, starts, ends, begins, stops):  # type: ignore[no-untyped-def]
    """Find the names of whole lines until the text ends or the arrays are full.

    `text` is uint8 and ends with a newline; a line begins at `pos`; `pairs`, `skip` and `weight` are those of
    `scan_names`. `starts` and `ends`, int64 of an even size, receive where names begin and end; `begins` and
    `stops`, uint32 of half that size, where weights do, empty without weights.

    Returns whether no line is wrong; where the next call goes on, or the wrong line; and the number of names.
    """
    count = 0
    while pos < text.size and count < starts.size:
        begin = pos
        tabs = 0
        tab = -1
        second = -1
        column = -1
        behind = -1
        blank = True
        while text[pos] != _NEWLINE:
            char = text[pos]
            if char == _TAB:
                if tabs == 0:
                    tab = pos
                elif tabs == 1:
                    second = pos
                tabs += 1
                if tabs == weight - 1:
                    column = pos + 1
                elif tabs == weight:
                    behind = pos
            elif char != _SPACE and char != _RETURN:
                blank = False
            pos += 1
        end = pos
        pos += 1
        if blank:
            if skip:
                continue
            return False, begin, count
        if text[begin] == _HASH:
            _, last = _inside(text, begin, end)
            if last == begin + 1 or text[begin + 1] == _SPACE:
                continue
        first, stop = _inside(text, begin, tab if tabs else end)
        if first == stop:
            return False, begin, count
        starts[count], ends[count] = first, stop
        if not pairs:
            count += 1
            continue
        if tabs < weight - 1 or (not weight and tabs != 1):
            return False, begin, count
        first, stop = _inside(text, tab + 1, end if second < 0 else second)
        if first == stop:
            return False, begin, count
        starts[count + 1], ends[count + 1] = first, stop
        if weight:
            first, stop = _inside(text, column, end if behind < 0 else behind)
            if first == stop:
                return False, begin, count
            begins[count // 2], stops[count // 2] = first, stop
        count += 2
    return True, pos, count


def listed_names(path: AnyPath, max_names: int, *, skip: bool = True) -> Iterator[Strings]:
    """Yield the names of a file that has one per line; see `scan_names`."""
    with ByteStream(path) as stream:
        for names, _ in scan_names(LineReader(stream), max_names, pairs=False, skip=skip):
            yield names


def scan_names(
    lines: LineReader, max_names: int, *, pairs: bool, skip: bool, weight: int = 0
) -> Iterator[tuple[Strings, NDArray[np.float64] | None]]:
    """Yield the names of all remaining lines, at most `max_names`, an even number, at once; and weights.

    If `pairs`, lines have two names, tab-separated; otherwise the first column is a name. Comments are
    skipped, and blank lines if `skip`. `weight` is the number of the column of weights beside pairs, counted
    from 1, other columns being skipped; 0 for none.
    """
    for piece in lines.pieces():
        text = np.frombuffer(piece, np.uint8)
        pos = 0
        while pos < text.size:
            room = min(max_names, text.size + text.size % 2)
            starts, ends = np.empty(room, np.int64), np.empty(room, np.int64)
            begins, stops = (np.empty(room // 2 if weight else 0, np.uint32) for _ in range(2))
            fine, pos, count = _scan(text, pos, pairs, skip, weight, starts, ends, begins, stops)
            here = slice(0, count // 2)
            weights = None
            if weight and count:
                weights = lines.weights(piece, begins[here], stops[here], weight, 0, lines.line)
            if not fine:
                lines.line += piece.count(b"\n", 0, pos)
                shown = repr(piece[pos : piece.index(b"\n", pos)].decode()[:60])
                if weight:
                    raise lines.error(
                        f"{shown} is not two names and a weight.",
                        f"Give two tab-separated names a line, and a weight in column {weight}.",
                    )
                if pairs:
                    raise lines.error(
                        f"{shown} is not two names.", "Give two names a line, separated by one tab."
                    )
                raise lines.error("no label.", "Give each node one line that begins with its label.")
            if count:
                yield Strings(text, starts[:count], ends[:count]), weights


_CHUNK = 1 << 16

_LOOKED_AT = 1000
"""Lines that tell whether labels have numbers before them."""


class FileLabels:
    """Labels of nodes in a file, read from its front whenever they are asked for.

    The first of the tab-separated columns of line n, comments not counted, is the label of node n - 1.
    """

    def __init__(self, path: AnyPath) -> None:
        file = input_file(path)
        if not file.reopenable or (isinstance(file, LocalFile) and file.path.is_fifo()):
            raise InputError(f"{file} can be read only once.", "Write the labels to a file and name that.")
        self._path = path
        self._count = sum(names.size for names in listed_names(path, _CHUNK, skip=False))
        if not self._count:
            raise InputError(f"{path} holds no labels.", "Check that it is the file you mean.")
        if self._are_numbered():
            raise InputError(
                f"{path} has numbers of nodes before the labels.",
                "Sort it by them and take them away: the label of node n - 1 begins line n.",
            )

    def _are_numbered(self) -> bool:
        """Whether the first lines begin with a number that a node may have, and have other columns."""
        with ByteStream(self._path) as stream:
            piece = next(iter(LineReader(stream).pieces()), b"")
        lines = [line.split(b"\t") for line in piece.splitlines()[:_LOOKED_AT] if not line.startswith(b"# ")]
        return bool(lines) and all(
            len(line) > 1 and line[0].strip().isdigit() and int(line[0]) <= self._count for line in lines
        )

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        for names in self.strings():
            yield from names

    def strings(self) -> Iterator[Strings]:
        """Yield labels without a Python object for each."""
        return listed_names(self._path, _CHUNK, skip=False)


@entry()
def compare_names(one, starts, ends, two, other_starts, other_ends, differ):  # type: ignore[no-untyped-def]
    """Write whether name k of one text differs from name k of another; bool, shape (names,)."""
    for k in range(starts.size):
        length = ends[k] - starts[k]
        differ[k] = other_ends[k] - other_starts[k] != length
        i = 0
        while not differ[k] and i < length:
            differ[k] = one[starts[k] + i] != two[other_starts[k] + i]
            i += 1


def find_labels(path: AnyPath) -> InputFile | None:
    """Find the labels file beside a graph, if any: of ``web.txt.gz`` ``web.labels.txt`` or ``.tsv.xz``."""
    file = input_file(path)
    stem = Path(uncompressed_name(file)).stem
    names = (f"{stem}.labels.{kind}{suffix}" for kind in ("txt", "tsv") for suffix in ("", *COMPRESSED))
    return next((labels for name in names if (labels := file.sibling(name)) is not None), None)
