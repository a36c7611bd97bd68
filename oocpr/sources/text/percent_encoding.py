"""Percent-encoding of names: whether it can be undone for all names of a source, and undoing it.

It can where every name decodes to UTF-8 and every byte is written in one way throughout, as itself or as one
escape: then different names stay different, which two names that decode to the same text would not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numba
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oocpr.sources.block import Names, Strings

_PERCENT, _NEWLINE = np.uint8(ord("%")), np.uint8(ord("\n"))
_PLAIN = np.uint8(1)


@numba.njit(cache=True, nogil=True)
def _digit(char):  # type: ignore[no-untyped-def]
    """Value of a hexadecimal digit, plus 16 for a small letter; 255 for another character."""
    if 48 <= char <= 57:
        return np.uint8(char - 48)
    if 65 <= char <= 70:
        return np.uint8(char - 55)
    if 97 <= char <= 102:
        return np.uint8(char - 87 + 16)
    return np.uint8(255)


@numba.njit(cache=True, nogil=True)
def _decode(text, starts, ends, spellings, out, out_ends):  # type: ignore[no-untyped-def]
    """Decode names, each followed by a newline, and note the spellings; False where a % opens no escape."""
    at = 0
    for k in range(starts.size):
        i = starts[k]
        while i < ends[k]:
            char = text[i]
            spelling = _PLAIN
            if char == _PERCENT:
                if i + 2 >= ends[k]:
                    return False
                high, low = _digit(text[i + 1]), _digit(text[i + 2])
                if high == 255 or low == 255:
                    return False
                char = np.uint8((high & 15) << 4 | low & 15)
                # One bit for each of the four ways to write two digits with small or large letters.
                spelling = np.uint8(2 << ((high >> 4) * 2 + (low >> 4)))
                i += 2
            spellings[char] |= spelling
            out[at] = char
            at += 1
            i += 1
        out[at] = _NEWLINE
        at += 1
        out_ends[k] = at
    return True


class Spelling:
    """Watches all names of a source.

    Parameters
    ----------
    seen
        What another one has seen of them before.

    Examples
    --------
    >>> from oocpr.sources.block import Strings
    >>> text = np.frombuffer(b"B%C3%A9la", np.uint8)
    >>> spelling = Spelling()
    >>> spelling.take(Strings(text, np.array([0]), np.array([9])))
    >>> spelling.encoded
    True
    >>> decoded(text, np.array([9], np.uint32))[0].tobytes().decode()
    'Béla'
    """

    def __init__(self, seen: dict[str, Any] | None = None) -> None:
        spellings = bytes(256) if seen is None else bytes.fromhex(seen["spellings"])
        self._spellings = np.frombuffer(spellings, np.uint8).copy()
        self._fine = seen is None or bool(seen["fine"])

    def take(self, names: Strings) -> None:
        """Look at some more names."""
        if not self._fine:
            return
        out = np.empty(int((names.ends - names.starts).sum()) + names.starts.size, np.uint8)
        ends = np.empty(names.starts.size, np.int64)
        self._fine = _decode(names.text, names.starts, names.ends, self._spellings, out, ends)
        self._fine = self._fine and not (self._spellings & (self._spellings - 1)).any()
        if self._fine and ends.size:
            try:
                str(out[: ends[-1]].data, "utf-8")
            except UnicodeDecodeError:
                self._fine = False

    @property
    def seen(self) -> dict[str, Any]:
        """What is known of the names so far, as JSON."""
        return {"spellings": self._spellings.tobytes().hex(), "fine": bool(self._fine)}

    @property
    def encoded(self) -> bool:
        """Whether there are escapes, and all of them can be undone."""
        return self._fine and bool((self._spellings > _PLAIN).any())


def decoded(text: NDArray[np.uint8], lengths: NDArray[np.uint32]) -> Names:
    """Undo percent-encoding.

    Parameters
    ----------
    text, lengths
        Names end to end, well encoded, and the length of each.
    """
    ends = np.cumsum(lengths, dtype=np.int64)
    out, out_ends = np.empty(text.size + ends.size, np.uint8), np.empty(ends.size, np.int64)
    _decode(text, ends - lengths, ends, np.zeros(256, np.uint8), out, out_ends)
    keep = np.ones(int(out_ends[-1]) if ends.size else 0, np.bool_)
    keep[out_ends - 1] = False
    return out[: keep.size][keep], (np.diff(out_ends, prepend=0) - 1).astype(np.uint32)
