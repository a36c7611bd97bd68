"""Sizes, counts, times, bounds and names as people write them: the only place that parses or prints them."""

from __future__ import annotations

import math
import re
from decimal import ROUND_CEILING, Decimal

from oocpr.errors import UsageError

_SIZE = re.compile(r"\s*(\d{1,19}(?:\.\d+)?|\.\d+)\s*([kmgtp]?)(i?)(b?)\s*", re.IGNORECASE)
# With an exponent, as Python writes numbers below 1e-4.
_TIME = re.compile(r"\s*((?:\d{1,12}(?:\.\d+)?|\.\d+)(?:e-\d{1,3})?)\s*(s|min|m|h|d|)\s*", re.IGNORECASE)
_SECONDS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_PREFIXES = "kmgtp"
_EXACT_COUNTS = 100_000
MAX_L1_DISTANCE = 2
"""L1 distance that no two distributions exceed."""


def parse_bytes(text: str | int) -> int:
    """Read a size in bytes; raises UsageError if the text is no size, or less than one byte.

    ``KiB`` to ``PiB`` are powers of 1024, ``kB`` to ``PB`` powers of 1000; a bare letter (``8G``) is a
    power of 1024, as in batch systems; no unit means bytes. Case does not matter.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        size = text
    else:
        match = _SIZE.fullmatch(str(text))
        if match is None or (match[3] and not match[2]):
            raise UsageError(f"{text!r} is no size.", "Write a number and a unit, such as 8GiB or 512MB.")
        number, prefix, binary, byte = match.groups()
        base = 1000 if byte and not binary else 1024
        power = base ** (_PREFIXES.index(prefix.lower()) + 1) if prefix else 1
        # Whole numbers stay whole: a float holds no odd number of bytes past 2^53.
        size = int(number) * power if number.isdigit() else round(float(number) * power)
    if size < 1:
        raise UsageError(f"{text!r} is less than one byte.", "Give a size such as 8GiB or 512MB.")
    return size


def parse_seconds(text: str | float) -> float:
    """Read a time in seconds, which is also the unit that is meant by none.

    Raises UsageError if the text is no time above zero.

    >>> parse_seconds("4h"), parse_seconds("90min"), parse_seconds(1.5)
    (14400.0, 5400.0, 1.5)
    """
    match = _TIME.fullmatch(str(text))
    if match is None or not float(match[1]):
        raise UsageError(f"{text!r} is no time.", "Write a number and a unit, such as 4h, 90min or 30s.")
    return float(match[1]) * _SECONDS[match[2].lower()]


def format_bytes(size: float) -> str:
    """Write a size in bytes with three digits and a power of 1024.

    >>> format_bytes(1.5 * 2**30), format_bytes(512), format_bytes(1048575)
    ('1.5 GiB', '512 B', '1 MiB')
    """
    return _scaled(size, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"))


def format_count(count: float) -> str:
    """Write a number of things: exactly below a hundred thousand, with three digits from there.

    >>> format_count(7115), format_count(67_108_864), format_count(1_200_000_000)
    ('7,115', '67.1 M', '1.2 G')
    """
    if abs(count) < _EXACT_COUNTS and count == int(count):
        return f"{int(count):,}"
    return _scaled(count, 1000, ("", "k", "M", "G", "T", "P", "E"))


def format_passes(passes: int) -> str:
    """Write a number of passes.

    >>> format_passes(1), format_passes(12)
    ('1 pass', '12 passes')
    """
    return f"{passes} pass" if passes == 1 else f"{passes} passes"


def format_seconds(seconds: float) -> str:
    """Write a time with the two units that matter.

    >>> format_seconds(0.00123), format_seconds(1.23), format_seconds(200), format_seconds(7260)
    ('1.23 ms', '1.23 s', '3 min 20 s', '2 h 1 min')
    """
    if seconds < 0.9995:
        return f"{_three_digits(seconds * 1000)} ms"
    if seconds < 59.95:
        return f"{_three_digits(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    days, hours = divmod(round(seconds / 3600), 24)
    return f"{days} d {hours} h"


def format_bound(bound: float) -> str:
    """Write an upper bound with two digits, rounded up so that it stays one.

    >>> format_bound(5.01e-11), format_bound(9.91e-3), format_bound(0)
    ('5.1e-11', '1.0e-02', '0')
    """
    if bound == 0 or not math.isfinite(bound):
        return f"{bound:g}"
    exact = Decimal(bound)
    rounded = exact.quantize(Decimal(1).scaleb(exact.adjusted() - 1), ROUND_CEILING)
    return f"{float(rounded):.1e}"


def format_error_bound(bound: float) -> str:
    """Write an upper bound on an L1 error; from 2 on it says nothing, for no two distributions are farther.

    >>> format_error_bound(3.4)
    'L1 error unknown (a bound of 3.4e+00 is no information)'
    """
    if bound < MAX_L1_DISTANCE:
        return f"L1 error <= {format_bound(bound)}"
    return f"L1 error unknown (a bound of {format_bound(bound)} is no information)"


def printable(name: int | str) -> str:
    r"""Write a name so that it stays in its column: labels come from strangers' files.

    >>> printable("mutex_lock\tkernel/mutex.c"), printable("red \x1b[31m")
    ('mutex_lock  kernel/mutex.c', 'red \\x1b[31m')
    """
    text = str(name).replace("\t", "  ")
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def _scaled(value: float, base: int, units: tuple[str, ...]) -> str:
    step = 0
    # What would print as the base itself, such as 1024 KiB, belongs to the next unit.
    while step + 1 < len(units) and float(_three_digits(abs(value))) >= base:
        value /= base
        step += 1
    return f"{_three_digits(value)} {units[step]}".rstrip()


def _three_digits(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:.0f}"
    text = f"{value:.3g}"
    return text if "e" not in text else f"{float(text):.3f}"
