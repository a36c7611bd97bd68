"""What the first lines of delimited text show: the separator, a header, and the columns of both ends.

All of it depends on these lines and on what the caller says. What may be read in two ways is refused, so that
a wrong guess is an error and no wrong graph.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, islice

from oocpr.errors import UsageError

BLANKS = " \t\r"  # what does not count around a name
SEPARATORS = {"\t": "tabs", ";": "semicolons", "|": "bars", ",": "commas", " ": "blanks"}
"""Separators that are found, the least likely in names first, blanks only if nothing else separates."""

_WORDS = {
    "tab": "\t", "\\t": "\t", "semicolon": ";", "bar": "|", "pipe": "|", "comma": ",", "space": " ",
    "blank": " ", "colon": ":",
}  # fmt: skip
_SHOWN_ROWS = 20
_COMPARED_ROWS = 1000
_MIN_COMPARED = 10
_MIN_ALIKE = 2
"""Rows behind the first by which an edge is told from a header of unusual words."""

_ENDS = (
    ("from|src|source", "to|dst|dest|target|destination"),
    ("u", "v"),
    ("caller", "callee"),
    ("citing", "cited"),
    ("follower", "followee|followed"),
    ("sender", "receiver|recipient"),
    ("origin", "destination|dest"),
    ("start", "end"),
    ("subject", "object"),
)
"""What columns of sources and of targets are called."""

_NODE = "(node|vertex|page|user|article|paper)s?"
_EXACT = "({})"
_AROUND = f"[:_~]?({_NODE}[ _.-]?)?({{}})[ _.-]?({_NODE})?[ _.-]?(id|name|title|url|label|key)?"
_COUNTED = re.compile(r"(.*[^\W\d_])[ _.-]?1(\D*)")
_ANY_END = re.compile(_AROUND.format("|".join(end for pair in _ENDS for end in pair)))
_MAX_NAME = 100
_MAX_SHOWN = 20
_COLUMN = re.compile(
    f"({_NODE}|id|name|head|tail|parent|child|item|url|link|row|col(umn)?|in|out|[abijxy])[ _.-]?[12]?"
)
"""What else columns are called, of which the words do not say which has the sources."""

ROW_NUMBERS = ("", "unnamed: 0", "__index_level_0__")
"""What pandas calls the row numbers that it writes."""

_WORD = re.compile(r"[#\"']?\s*[^\W\d]")
_NUMBER = re.compile(r"[+-]?(\d[\d.,]*|\.\d+)([eE][+-]?\d+)?")


@dataclass(frozen=True)
class Dialect:
    """How a file of delimited text is written.

    `lines` come before the first edge, the last of them a header if there is one. `names` are those of the
    columns, their numbers from 1 without a header.
    """

    separator: str
    lines: int
    header: bool
    names: list[str]
    rows: list[list[str]]  # the first ones


class UnclearError(ValueError):
    """A line can be read in two ways: its number from 1, and why and how it is told."""

    def __init__(self, line: int, cause: str, remedy: str) -> None:
        super().__init__(line, cause, remedy)
        self.line, self.cause, self.remedy = line, cause, remedy


def separator_named(text: str) -> str:
    r"""Take what a caller calls a separator; UsageError if it is none.

    Examples
    --------
    >>> separator_named("tab"), separator_named("\\t"), separator_named(":")
    ('\t', '\t', ':')
    """
    found = _WORDS.get(text.lower(), text)
    if len(found) != 1 or not found.isascii() or found in '"\r\n\0':
        raise UsageError(
            f"delimiter is {text[:40]!r}, which separates no columns.",
            "Give one ASCII character, or tab, comma, semicolon, bar or space.",
        )
    return found


def is_comment(line: str) -> bool:
    """Tell whether a line of names is a comment: ``#`` alone, or followed by a space.

    Examples
    --------
    >>> is_comment("# a comment"), is_comment("#"), is_comment("#cats")
    (True, True, False)
    """
    return line.startswith("# ") or line.rstrip(" \r\n") == "#"


def usual_ends(
    names: Sequence[str], source: str | None = None, target: str | None = None
) -> tuple[str, str] | None:
    """Find a column of sources and one of targets by their usual names; None unless one of each is obvious.

    `source` or `target` is one that the caller has named.

    Examples
    --------
    >>> usual_ends(["weight", "To", "From"]), usual_ends(["callee_id", "caller_id"])
    (('From', 'To'), ('caller_id', 'callee_id'))
    >>> usual_ends(["id", "src", "source", "to"]), usual_ends(["a", "to"], source="a")
    (None, ('a', 'to'))
    """
    stripped = ((name, name.strip(BLANKS + "#\"'").casefold()) for name in names if len(name) <= _MAX_NAME)
    words = [(name, word) for name, word in stripped if _ANY_END.fullmatch(word)]
    for form in (_EXACT, _AROUND):
        for pair in _ENDS:
            found = [
                [name for name, word in words if re.fullmatch(form.format(end), word)]
                if named is None
                else [named]
                for named, end in zip((source, target), pair, strict=True)
            ]
            if all(len(end) == 1 for end in found):
                return found[0][0], found[1][0]
            if any(len(end) > 1 for end in found):
                return None
    return None


def _are_two_ends(names: Sequence[str]) -> bool:
    """Tell whether names are two of which none says that targets come first."""
    return len(names) == 2 and usual_ends(names[:1], "") is None and usual_ends(names[1:], None, "") is None


def _counted_ends(names: Sequence[str]) -> tuple[str, str] | None:
    """Find the one pair of columns such as ``id_1`` and ``id_2``, of which there is no third."""
    known, pairs = set(names), []
    for name in names:
        match = _COUNTED.fullmatch(name) if len(name) <= _MAX_NAME else None
        if match is not None:
            before, after = name[: match.start(2) - 1], name[match.start(2) :]
            second, third = (f"{before}{number}{after}" for number in (2, 3))
            if second in known and third not in known:
                pairs.append((name, second))
    return pairs[0] if len(pairs) == 1 else None


def chosen_columns(
    names: Sequence[str], source: str | None, target: str | None, title: str, weight: str | None = None
) -> list[str]:
    """Find the columns of both ends of the edges, and of weights if there are some.

    `source` and `target` are what the caller calls them; None for usual names, in small or capital letters,
    or for the first and second of two columns beside that of weights. Raises UsageError for columns that are
    not there, or not obvious.

    Examples
    --------
    >>> chosen_columns(["weight", "To", "From"], None, None, "the table")
    ['From', 'To']
    >>> chosen_columns(["a", "b", "kg"], None, None, "the table", "kg")
    ['a', 'b', 'kg']
    """
    others = [name for name in names if name != weight]
    more = f" and {len(others) - _MAX_SHOWN:,} more" if len(others) > _MAX_SHOWN else ""
    shown = (", ".join(repr(name[:_MAX_NAME]) for name in others[:_MAX_SHOWN]) or "none") + more
    if weight is not None and weight not in names:
        raise UsageError(
            f"{title} has no column {weight!r}; its columns are {shown}.",
            "Name the column of weights with weight, or leave it out.",
        )
    for name in (source, target):
        if name is not None and name not in names:
            raise UsageError(
                f"{title} has no column {name!r}; its columns are {shown}.",
                "Give the columns of both ends: source_column and target_column.",
            )
    left = [name for name in others if name.casefold() not in ROW_NUMBERS]
    found = usual_ends(left, source, target)
    if found is None and source is None and target is None:
        found = _counted_ends(left) or ((left[0], left[1]) if _are_two_ends(left) else None)
    if found is None or left.count(found[0]) > 1 or left.count(found[1]) > 1:
        raise UsageError(
            f"{title} has no obvious {'target' if source or len(left) < 2 else 'source'} column; "
            f"its columns are {shown}.",
            "Give the columns of both ends: source_column and target_column.",
        )
    if found[0] == found[1]:
        raise UsageError(f"{found[0]!r} is given for both ends of the edges.", "Name two columns.")
    if weight in found:
        raise UsageError(
            f"{weight!r} is given for the weights and for an end of the edges.", "Name three columns."
        )
    return [*found] if weight is None else [*found, weight]


def are_words(fields: Sequence[str]) -> bool:
    """Tell whether all fields begin with letters, as no whole number does."""
    return all(map(_WORD.match, fields))


def is_header(rows: Sequence[Sequence[str]]) -> bool | None:
    """Tell whether a first row names columns; None if it may as well be an edge.

    It does by usual names, or without numbers above a column of them. It may be an edge if its usual names
    are those of nodes further down. Other words may be a header if they are no nodes further down, and are
    such as ``parent`` and ``child``, or each other row shares a node with another one; or if they lack what
    all nodes below have, such as a digit.

    Examples
    --------
    >>> is_header([["citing", "paper"], ["7", "9"]]), is_header([["ann", "bob"], ["bob", "eve"]])
    (True, False)
    >>> is_header([["from", "to"], ["to", "by"]])
    """
    if not rows or _number_in(rows[0]):
        return False
    first = rows[0]
    rows = [row for row in rows if len(row) == len(first)]  # others are refused when they are read
    numbers = (
        all(_number_in([field]) for field in column)
        for column in zip(*rows[1 : _SHOWN_ROWS + 1], strict=True)
    )
    if any(numbers):
        return True
    # Usual names of which there are more than two are refused, as they name no column, and are no edge.
    known = [name for name in dict.fromkeys(first) if usual_ends([name], "") or usual_ends([name], None, "")]
    pairs_of_names = combinations(known[:_MAX_SHOWN], 2)
    ends = usual_ends(known) or next(filter(None, map(usual_ends, pairs_of_names)), None)
    places = [0, 1] if ends is None else [first.index(end) for end in ends]
    pairs = [{row[place] for place in places if place < len(first)} for row in rows]
    counts = Counter(node for pair in pairs for node in pair)
    lone = [all(counts[node] == 1 for node in pair) for pair in pairs]
    if ends is not None:
        return True if lone[0] else None
    usual = len({*first[:2]}) == 2 and all(_COLUMN.fullmatch(field.casefold()) for field in first[:2])
    alone = lone[0] and len(lone) > 1 and (usual or (len(lone) > _MIN_COMPARED and not any(lone[1:])))
    return None if are_words(first) and (alone or _is_unlike(rows)) else False


def _is_unlike(rows: Sequence[Sequence[str]]) -> bool:
    """Tell whether the first row lacks in both ends what all others have: a digit, or a sign of some kind."""
    ends = list(zip(*rows, strict=True))[:2] if len(rows) > _MIN_ALIKE else []
    return bool(ends) and all(set.intersection(*map(_marks, below)) - _marks(first) for first, *below in ends)


def _marks(field: str) -> set[str]:
    """Characters that are no letters, all digits as one."""
    return {"0" if char.isdigit() else char for char in field if not char.isalpha()}


def _number_in(fields: Sequence[str]) -> bool:
    return any(_NUMBER.fullmatch(field.strip()) for field in fields)


def rows_of(text: str, separator: str, count: int = _SHOWN_ROWS, *, strict: bool = False) -> list[list[str]]:
    """Split the first lines of a text into columns, without blank lines and blanks around fields.

    If `strict`, there are none if quotes end before the separator.
    """
    if separator == " ":
        text = "\n".join(" ".join(line.split()) for line in text.split("\n"))
    lines = io.StringIO(text, newline="")
    reader = csv.reader(lines, delimiter=separator, skipinitialspace=True, strict=strict)
    rows: list[list[str]] = []
    try:
        rows.extend(islice((row for row in reader if row), count))
    except csv.Error:  # also of longer fields than Python takes
        if strict and lines.read(1):
            return []
    return [[field.strip(BLANKS) for field in row] for row in rows]


def raw_rows(text: str, separator: str) -> list[list[str]]:
    """Split the first lines of a text into columns, quotes being letters like others."""
    lines = [line.removesuffix("\r") for line in text.split("\n") if line.strip()][:_SHOWN_ROWS]
    return [line.split(separator) for line in lines]


def _is_even(rows: Sequence[Sequence[str]]) -> bool:
    return bool(rows) and len(rows[0]) > 1 and all(len(row) == len(rows[0]) for row in rows)


def separators_of(text: str) -> list[str]:
    r"""Find what splits all first lines of a text into as many columns, or the first line into most.

    Tabs go before others. Commas do not count beside others if all of them are in numbers, and blanks not
    unless the first two words of lines have another separator inside. Between others the usual names
    of a header decide; if they do not, there are several.

    Examples
    --------
    >>> separators_of("a;b;1,5\nb;c;2,5\n"), separators_of("1,2\n3,4\n"), separators_of("1 2\n")
    ([';'], [','], [' '])
    >>> separators_of("a;b,c\nb;c,a\n"), separators_of("source,target\na;b,c\n"), separators_of("a|b c|d")
    ([';', ','], [','], ['|', ' '])
    """
    found = {separator: rows_of(text, separator, strict=True) for separator in SEPARATORS}
    even = [separator for separator, rows in found.items() if _is_even(rows)]
    if _is_even(raw_rows(text, "\t")) or "\t" in even:
        return ["\t"]
    words = [word for row in found[" "] for word in row[:2]] if " " in even else []
    inside = any(words and all(one in word.strip(one) for word in words) for one in even)
    even = [separator for separator in even if separator != " " or inside] or even
    if not even:
        found = {separator: rows_of(text, separator) for separator in SEPARATORS}
        widths = {separator: len(rows[0]) for separator, rows in found.items() if rows and separator != " "}
        widest = max(widths, key=lambda separator: widths[separator], default="")
        return [widest] if widths.get(widest, 0) > 1 else []
    shown = "\n".join(islice(text.split("\n"), _SHOWN_ROWS))
    if len(even) > 1 and "," in even and not re.search(r"(?<!\d),|,(?!\d)", shown):
        even.remove(",")
    named = [separator for separator in even if usual_ends(found[separator][0]) is not None]
    return named if len(named) == 1 else even


def is_quoted(text: str, separator: str) -> bool:
    r"""Tell whether fields of first lines are in quotes as CSV has them, rather than names with quotes.

    Examples
    --------
    >>> is_quoted('"a"\t"b"\n"b"\t"c"\n', "\t"), is_quoted('"Heroes"\tBowie\n', "\t")
    (True, False)
    """
    rows = raw_rows(text, separator)
    fields = [field.strip(BLANKS) for row in rows for field in row]
    words = [field for field in fields if not _number_in([field])]
    enclosed = [field for field in fields if len(field) > 1 and field[0] == field[-1] == '"']
    inside = any('""' in field[1:-1] for field in enclosed)
    every = bool(words) and len(enclosed) >= len(words)
    return inside or every or (not _is_even(rows) and _is_even(rows_of(text, separator)))


def dialect_of(
    text: str, delimiter: str | None, header: bool | None, *, named: bool = False, known: Sequence[str] = ()
) -> Dialect:
    r"""Find how a CSV file is written whose first lines are `text`.

    `delimiter` and `header` are what the caller says, None for what the lines show; if `named`, a column is
    called by its name. `known` are the columns of a header of an earlier file: then `header` says that this
    file has one only if it is the same. Raises UnclearError for what may be read in two ways.

    Examples
    --------
    >>> found = dialect_of("# by hand\nto;from\n7;8\n", None, None)
    >>> found.separator, found.lines, found.header, found.names
    (';', 2, True, ['to', 'from'])
    """
    if "\r" in text.rstrip() and "\n" not in text.rstrip():
        raise UnclearError(1, "lines end in carriage returns alone.", "Convert it: tr '\\r' '\\n'.")
    lines = text.split("\n")
    passed, comment = 0, ""
    for line in lines:
        if passed == 0 and line.startswith("sep=") and len(line) > 4:  # written for spreadsheets
            delimiter = delimiter or line[4]
        elif is_comment(line) or line.startswith("% "):
            comment = line
        elif line.strip():
            break
        passed += 1
    text = "\n".join(lines[passed:])
    separators = [delimiter] if delimiter else separators_of(text) or [","]
    if len(separators) > 1:
        raise UnclearError(
            passed + 1,
            f"{' and '.join(SEPARATORS[one] for one in separators)} split the lines alike.",
            f"Say which: {' or '.join(f'delimiter={one!r}' for one in separators)}.".replace("'", '"'),
        )
    separator = separators[0]
    rows = rows_of(text, separator, _COMPARED_ROWS)
    if not rows:
        if text.strip():
            raise UnclearError(passed + 1, "no columns are found.", "Check that the file is CSV.")
        return Dialect(separator, passed, False, list(known), [])
    above = (rows_of(comment.lstrip("#% "), separator) or [[]])[0]
    commented = header is None and len(above) == len(rows[0]) and usual_ends(above) is not None
    first = above if commented else [rows[0][0].lstrip("# "), *rows[0][1:]]
    if commented or (list(known) == unique(first) and header is not False):
        header = True
    elif known or header is None:
        header = header is not False and (is_header(rows) if known or not named else True)
    if header is None:
        raise UnclearError(
            passed + 1,
            f"{separator.join(rows[0])[:60]!r} may be a header or an edge.",
            "Write the header of the first file above it if it is an edge, or in its place if it is a header."
            if known
            else "Say header=True if it names the columns, header=False if it is an edge.",
        )
    if header and not commented:
        pieces = io.StringIO(text, newline="").readlines()  # which end in carriage returns as well
        reader = csv.reader(pieces, delimiter=separator, skipinitialspace=True)
        next(row for row in reader if row)
        passed += "".join(pieces[: reader.line_num]).count("\n")
    if header:
        names = unique(first)
    else:
        kept = len(known) == len(first)
        names = list(known) if kept else [str(number) for number in range(1, len(first) + 1)]
    return Dialect(separator, passed, bool(header), names, rows if commented else rows[bool(header) :])


def unique(names: Sequence[str]) -> list[str]:
    """Give columns of one name their numbers, from 1.

    Examples
    --------
    >>> unique(["id", "name", "name"])
    ['id', 'name (2)', 'name (3)']
    """
    counts = Counter(names)
    return [f"{name} ({number})" if counts[name] > 1 else name for number, name in enumerate(names, start=1)]
