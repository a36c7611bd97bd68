"""What connects devices of several processes: NCCL, as CuPy has it."""

from __future__ import annotations

from typing import Any, Protocol


class Link(Protocol):
    """What devices of a group are connected by."""

    def broadcast(self, source: Any, target: Any, root: int) -> None:
        """Bring `source` of the member `root` to every member's `target`, behind what was launched.

        Both are contiguous and equally long; `source` counts at that member only.
        """

    def abort(self) -> None:
        """Let nobody wait for the others any more; from any thread."""


def new_key() -> Any:
    """Something that a group is found by; None where this process has no NCCL."""
    nccl = _nccl()
    return None if nccl is None else nccl.get_unique_id()


class NcclLink:
    """NCCL, as CuPy has it.

    Parameters
    ----------
    cupy
        The module.
    key
        What `new_key` gave one of the members.
    rank, size
        Number of this member, and how many there are; returns once all have come.
    """

    def __init__(self, cupy: Any, key: Any, rank: int, size: int) -> None:
        self._cupy = cupy
        self._nccl = _nccl()
        self._members = self._nccl.NcclCommunicator(size, key, rank)

    def broadcast(self, source: Any, target: Any, root: int) -> None:
        """See Link."""
        stream = self._cupy.cuda.get_current_stream().ptr
        self._members.broadcast(
            source.data.ptr, target.data.ptr, target.nbytes, self._nccl.NCCL_UINT8, root, stream
        )

    def abort(self) -> None:
        """See Link."""
        self._members.abort()


def _nccl() -> Any:
    try:
        from cupy.cuda import nccl
    except ImportError:
        return None
    return nccl if nccl.available else None
