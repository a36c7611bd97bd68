"""Pushes from device to device: of several processes with NCCL, of one process by copies between peers.

All of a group take part in each round, in the same order, or the others wait for them; so a round begins only
once all have pushed, and who gives a run up aborts the group.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from oocpr.plan.device_memory import STAGED_NUMBERS

if TYPE_CHECKING:
    from oocpr.engine.cuda.device import Device

_LOG = logging.getLogger(__name__)

GROUP_TEST_NUMBERS = 1 << 16
"""Numbers that each member sends to try the paths."""


class Communicator:
    """One device's place in a group; its members meet while they do other things.

    If one of them never comes the others meet in vain, in a thread that ends with their process.
    """

    def __init__(self, device: Device, unique_id: Any, rank: int, size: int) -> None:
        self._device, self._unique_id, self._rank, self._size = device, unique_id, rank, size
        self._transport: Any = None
        self.try_again()

    def try_again(self) -> None:
        """Meet once more, and try the paths, for another run; all members do, and connect only once."""
        self._met: Future[bool] = Future()
        threading.Thread(target=self._meet, name="oocpr-meeting", daemon=True).start()

    def _meet(self) -> None:
        try:
            if self._transport is None:
                with self._device:
                    self._transport = self._device.connect(self._unique_id, self._rank, self._size)
            self._met.set_result(self._works())
        except RuntimeError as error:
            # NCCL's own class, and CUDA's, are known only if they are loaded.
            _LOG.warning("the devices of the workers do not reach each other: %s", error)
            self._met.set_result(False)
        except Exception as error:  # noqa: BLE001 whoever waits has to hear of it
            self._met.set_exception(error)

    def _works(self) -> bool:
        """Tell whether what each member sends arrives here as it was; all have to ask."""
        xp = self._device.xp
        begins = [GROUP_TEST_NUMBERS * member for member in range(self._size + 1)]
        sent = np.arange(begins[-1], dtype=np.uint32) * np.uint32(2654435761)
        right = True
        # Meanwhile others fill the pool up to its limit.
        with self._device, self._device.past_pool():
            own = xp.asarray(sent[begins[self._rank] : begins[self._rank + 1]])
            for begin, piece in self.gather(own, begins):
                right &= bool((piece == xp.asarray(sent[begin : begin + len(piece)])).all())
        return right

    async def meet(self) -> bool:
        """Wait until all have come; returns whether they reach each other."""
        return await asyncio.wrap_future(self._met)

    def gather(self, own: Any, begins: Sequence[int]) -> Iterator[tuple[int, Any]]:
        """Give the pushes of all members in pieces, each with its first row; all have to take all of them.

        `own` is this member's push, shape (rows,), of the device, and `begins` are the first row of each
        member and the number of nodes. A piece is good until the next one is asked for.
        """
        with self._device:
            room = self._device.xp.empty(min(STAGED_NUMBERS, begins[-1]), own.dtype)
        for root, (first, last) in enumerate(pairwise(begins)):
            for begin in range(first, last, STAGED_NUMBERS):
                piece = room[: min(STAGED_NUMBERS, last - begin)]
                source = piece
                if root == self._rank:
                    source = own[begin - first : begin - first + len(piece)]
                with self._device:
                    self._transport.broadcast(source, piece, root)
                yield begin, piece

    def abort(self, *, wait: bool = False) -> None:
        """Let nobody wait for the others any more; from any thread, and with `wait` until it is done."""
        transport = self._transport
        if transport is None:
            # Those that are still meeting cannot be told.
            self._met.add_done_callback(lambda _: self._transport is None or self._transport.abort())
        elif wait:
            transport.abort()
        else:
            # It takes half a second, also of members that nobody waits for.
            threading.Thread(target=transport.abort, name="oocpr-leaving").start()


_ENABLED_ALREADY = 704

PEER_TEST_NUMBERS = 1 << 18
"""Numbers of the copy that tries a path between two devices."""


class PeerPath(NamedTuple):
    """How numbers come from a device."""

    straight: bool  # copies arrive as they were
    seen: bool  # kernels may also read the numbers there


class PeerCopies:
    """Copies from other devices to that of `index`: over their link if it works, else through the host.

    A certificate is worth nothing if a push arrives changed, and there are machines whose devices say that
    they reach each other and do not. So each path is tried once. Over one that holds kernels may read, too.
    """

    def __init__(self, cupy: Any, index: int) -> None:
        self._cupy = cupy
        self._index = index
        self._paths: dict[int, PeerPath] = {}

    def can_read(self, values: Any) -> bool:
        """Whether kernels of this device, which is current, may read an array of any device where it is."""
        return self._path(int(values.device.id)).seen

    def copy(self, array: Any, values: Any) -> None:
        """Copy `values` of any device to an array of this, which is current, behind what was launched here.

        Both are contiguous, of one dtype and length; `values` are there, and stay as they are meanwhile.
        """
        if self._path(int(values.device.id)).straight:
            self._send(array, values)
        else:
            with values.device:
                passing = values.get()
            array.set(passing)

    def _send(self, array: Any, values: Any) -> None:
        # In the stream of the kernels, a copy between two devices waits for all that both are doing, also for
        # tiles on their way.
        cuda = self._cupy.cuda
        kernels, copies = cuda.get_current_stream(), self._copies
        self._follow(copies, kernels)
        cuda.runtime.memcpyPeerAsync(
            array.data.ptr, self._index, values.data.ptr, int(values.device.id), values.nbytes, copies.ptr
        )
        self._follow(kernels, copies)

    @cached_property
    def _copies(self) -> Any:
        return self._cupy.cuda.Stream(non_blocking=True)

    def _follow(self, later: Any, earlier: Any) -> None:
        """Let what is given to one stream from now on begin after what another has been given."""
        event = self._cupy.cuda.Event(disable_timing=True)
        event.record(earlier)
        later.wait_event(event)

    def _path(self, source: int) -> PeerPath:
        if source not in self._paths:
            self._paths[source] = PeerPath(True, True) if source == self._index else self._open_path(source)
        return self._paths[source]

    def _open_path(self, source: int) -> PeerPath:
        """Open the path from a device, and try whether what comes over it is what was sent."""
        runtime = self._cupy.cuda.runtime
        linked = bool(runtime.deviceCanAccessPeer(self._index, source))
        if linked:
            try:
                runtime.deviceEnablePeerAccess(source)
            except runtime.CUDARuntimeError as error:
                linked = error.status == _ENABLED_ALREADY
        sent = np.arange(PEER_TEST_NUMBERS, dtype=np.uint32) * np.uint32(2654435761)
        with self._cupy.cuda.Device(source):
            there = self._cupy.asarray(sent)
            self._cupy.cuda.get_current_stream().synchronize()
        here = self._cupy.zeros(PEER_TEST_NUMBERS, np.uint32)
        self._send(here, there)
        arrived = bool((here.get() == sent).all())
        if not arrived:
            _LOG.warning("copies from cuda:%d to cuda:%d arrive changed", source, self._index)
        way = "straight" if linked and arrived else "through the host"
        _LOG.info("pushes go from cuda:%d to cuda:%d %s", source, self._index, way)
        return PeerPath(arrived, linked and arrived)


def has_nccl() -> bool:
    """Whether this process has NCCL."""
    return _nccl() is not None


def new_unique_id() -> Any:
    """What a group is found by, from a process that has NCCL; it waits for the members from then on."""
    return _nccl().get_unique_id()


class NcclTransport:
    """Member `rank` of `size` that NCCL connects, found by what `new_unique_id` gave one of them."""

    def __init__(self, cupy: Any, unique_id: Any, rank: int, size: int) -> None:
        """Return once all have come."""
        self._cupy = cupy
        self._nccl = _nccl()
        self._members = self._nccl.NcclCommunicator(size, unique_id, rank)

    def broadcast(self, source: Any, target: Any, root: int) -> None:
        """Bring `source` of the member `root` to every member's `target`, behind what was launched.

        Both are contiguous and equally long; `source` counts at that member only.
        """
        stream = self._cupy.cuda.get_current_stream().ptr
        self._members.broadcast(
            source.data.ptr, target.data.ptr, target.nbytes, self._nccl.NCCL_UINT8, root, stream
        )

    def abort(self) -> None:
        """Let nobody wait for the others any more; from any thread."""
        self._members.abort()


def _nccl() -> Any:
    try:
        from cupy.cuda import nccl
    except ImportError:
        return None
    return nccl if nccl.available else None
