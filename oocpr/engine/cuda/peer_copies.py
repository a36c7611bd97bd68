"""Copies from one CUDA device to another of the same host."""

from __future__ import annotations

import logging
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

_LOG = logging.getLogger(__name__)

_ENABLED_ALREADY = 704

TRIED = 1 << 18
"""Numbers of the copy that tries a way between two devices."""


class Way(NamedTuple):
    """How numbers come from a device.

    Attributes
    ----------
    straight
        Whether copies arrive as they were.
    seen
        Whether kernels may also read them there.
    """

    straight: bool
    seen: bool


class Peers:
    """Ways from other devices to one: straight over their link where that can be had, else through the host.

    A certificate is worth nothing where a push arrives changed, and there are machines whose devices say that
    they reach each other and do not. So each way is tried once. Over a link that holds kernels may read, too.

    Parameters
    ----------
    cupy
        The module.
    index
        Number of the device that the copies go to.
    """

    def __init__(self, cupy: Any, index: int) -> None:
        self._cupy = cupy
        self._index = index
        self._ways: dict[int, Way] = {}

    def sees(self, values: Any) -> bool:
        """Whether kernels of this device, which is current, may read an array of any device where it is."""
        return self._way(int(values.device.id)).seen

    def copy(self, array: Any, values: Any) -> None:
        """Copy an array of any device to one of this, which is current; behind what was launched here.

        Parameters
        ----------
        array, values
            Contiguous, of one dtype and length; `values` are there, and stay as they are meanwhile.
        """
        if self._way(int(values.device.id)).straight:
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

    def _way(self, source: int) -> Way:
        if source not in self._ways:
            self._ways[source] = Way(True, True) if source == self._index else self._opened(source)
        return self._ways[source]

    def _opened(self, source: int) -> Way:
        """Open the way from a device, and try whether what comes over it is what was sent."""
        runtime = self._cupy.cuda.runtime
        linked = bool(runtime.deviceCanAccessPeer(self._index, source))
        if linked:
            try:
                runtime.deviceEnablePeerAccess(source)
            except runtime.CUDARuntimeError as error:
                linked = error.status == _ENABLED_ALREADY
        sent = np.arange(TRIED, dtype=np.uint32) * np.uint32(2654435761)
        with self._cupy.cuda.Device(source):
            there = self._cupy.asarray(sent)
            self._cupy.cuda.get_current_stream().synchronize()
        here = self._cupy.zeros(TRIED, np.uint32)
        self._send(here, there)
        arrived = bool((here.get() == sent).all())
        if not arrived:
            _LOG.warning("copies from cuda:%d to cuda:%d arrive changed", source, self._index)
        way = "straight" if linked and arrived else "through the host"
        _LOG.info("pushes go from cuda:%d to cuda:%d %s", source, self._index, way)
        return Way(arrived, linked and arrived)
