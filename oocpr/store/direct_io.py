"""Files read whole into a caller's memory: through the system's page cache, or directly, past it.

A direct read (O_DIRECT) spares a copy, and leaves in the page cache what is there. Address, offset and length
have to be multiples of a page, so the last bytes of a file pass through pages of their own.
"""

from __future__ import annotations

import errno
import mmap
import os

import numpy as np
from numpy.typing import NDArray

from oocpr.errors import UsageError

PAGE = 4096  # what addresses, offsets and lengths are multiples of: as large as any disk's blocks
_HUGE_PAGE = 2 << 20
_FLAG = getattr(os, "O_DIRECT", 0)  # 0 on systems that have no such reads


def aligned(nbytes: int) -> NDArray[np.uint8]:
    """Make memory that can be read into directly: its address is a multiple of PAGE.

    As much as possible is in huge pages: the system cuts a direct read into pieces by the number of pages.
    """
    if _in_huge_pages(nbytes):
        return zeros_in_huge_pages(nbytes)
    room = np.empty(nbytes + PAGE, np.uint8)
    begin = -room.ctypes.data % PAGE
    return room[begin : begin + nbytes]


def zeros_in_huge_pages(nbytes: int, *, whole: bool = False) -> NDArray[np.uint8]:
    """Make memory that is zero; as much as possible is in huge pages, which come when they are touched.

    `whole`: so is what is left behind the last of them, at the cost of the rest of one: 3.6 MB come in 70 us,
    and in 490 with the last 1.5 MB in small pages.
    """
    if not _in_huge_pages(nbytes):
        return np.zeros(nbytes, np.uint8)
    if whole:
        nbytes = -(-nbytes // _HUGE_PAGE) * _HUGE_PAGE
    # Systems that have huge pages for memory of one process alone may have none for what is shared.
    mapped = mmap.mmap(-1, nbytes + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    room = np.frombuffer(mapped, np.uint8)
    begin = -room.ctypes.data % _HUGE_PAGE
    mapped.madvise(mmap.MADV_HUGEPAGE, begin, nbytes // _HUGE_PAGE * _HUGE_PAGE)
    return room[begin : begin + nbytes]


def _in_huge_pages(nbytes: int) -> bool:
    return nbytes >= _HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE")


def takes_direct_reads(path: str) -> bool:
    """Whether a file can be read directly, by trying: file systems in memory or over networks may refuse."""
    if not _FLAG:
        return False
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | _FLAG)
        try:
            os.preadv(descriptor, [aligned(PAGE).data], 0)
        finally:
            os.close(descriptor)
    except OSError:
        return False
    return True


def open_file(path: str, *, direct: bool) -> int:
    """Open a file for `read_file`; UsageError if the file system refuses direct reads."""
    try:
        # To open a pipe that nobody writes to would wait for ever.
        return os.open(path, os.O_RDONLY | os.O_NONBLOCK | (_FLAG if direct else 0))
    except OSError as error:
        if direct and error.errno == errno.EINVAL:
            raise refusal(path) from error
        raise


def refusal(path: str) -> UsageError:
    """Make the error for a file that cannot be read directly."""
    return UsageError(
        f"{path}: the file system does not take direct reads.", "Use io buffered, or leave io out."
    )


def read_file(descriptor: int, out: NDArray[np.uint8], rest: int, *, direct: bool) -> tuple[int, bytes]:
    """Read the first bytes of a file into `out`, whose address is a multiple of PAGE if `direct`.

    Returns how many bytes there were, at most ``out.size + rest``, and the last `rest`.
    """
    whole = out.size // PAGE * PAGE if direct else out.size
    ends = aligned(-(-(out.size - whole + rest) // PAGE) * PAGE) if direct else np.empty(rest, np.uint8)
    front, back = out[:whole].data, ends.data
    done = 0
    while done < out.size + rest:
        # One call may return less than was asked for, always so past 2 GiB.
        parts = (front[done:], back[max(0, done - whole) :])
        got = os.preadv(descriptor, [part for part in parts if part], done)
        done += got
        # Where a direct read ends inside a page the file ends, and none can begin there.
        if not got or (direct and done % PAGE):
            break
    out[whole:] = ends[: out.size - whole]
    return done, ends[out.size - whole :][:rest].tobytes()
