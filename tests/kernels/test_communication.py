"""Copies between devices, on a machine that is made up: what they do when a way changes what passes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from oocpr.engine.cuda.communication import PeerCopies


class DriverError(RuntimeError):
    """What CuPy raises."""

    def __init__(self, status: int) -> None:
        self.status = status


class Array:
    """An array of a device; its pointer finds it again."""

    def __init__(self, values: np.ndarray, device: Any) -> None:
        self.values, self.device = values, device
        self.data = SimpleNamespace(ptr=self)
        self.nbytes = values.nbytes

    def get(self) -> np.ndarray:
        return self.values.copy()

    def set(self, values: np.ndarray) -> None:
        self.values[:] = values


class Stream:
    """A stream, and the streams that it has waited for."""

    def __init__(self, ptr: int = 1, *, non_blocking: bool = False) -> None:  # noqa: ARG002
        self.ptr = ptr
        self.work: list[Any] = []

    def synchronize(self) -> None:
        """Nothing is left to wait for."""

    def wait_event(self, event: Event) -> None:
        assert event.of is not None, "an event is waited for that was not recorded"
        assert event.of is not self
        self.work.append(event.of.ptr)


class Event:
    """An event."""

    def __init__(self, *, disable_timing: bool) -> None:  # noqa: ARG002
        self.of: Stream | None = None

    def record(self, stream: Stream) -> None:
        self.of = stream


class Machine:
    """CuPy with devices that are near each other or not, and whose ways may change a bit."""

    def __init__(self, *, linked: bool, changes: bool = False, enabled: int = 0) -> None:
        self.current = 1
        self.sent = 0

        def copy(target: Array, to: int, source: Array, of: int, nbytes: int, stream: object) -> None:
            assert (target.device.id, source.device.id, nbytes) == (to, of, source.nbytes)
            assert stream == 1, "a copy holds up what both devices do"
            self.sent += 1
            target.values[:] = source.values
            target.values[-1] ^= changes

        def enable(peer: int) -> None:
            assert linked, "a device that cannot be reached is not asked"
            assert peer != self.current
            if enabled:
                raise DriverError(enabled)

        self.runtime = SimpleNamespace(
            memcpyPeerAsync=copy,
            deviceCanAccessPeer=lambda *_: int(linked),
            deviceEnablePeerAccess=enable,
            CUDARuntimeError=DriverError,
        )
        kernels = Stream(0)
        self.cuda = SimpleNamespace(
            runtime=self.runtime,
            get_current_stream=lambda: kernels,
            Device=lambda index: Current(self, index),
            Stream=Stream,
            Event=Event,
        )

    def asarray(self, values: np.ndarray) -> Array:
        return Array(values.copy(), Current(self, self.current))

    def zeros(self, count: int, dtype: Any) -> Array:
        return self.asarray(np.zeros(count, dtype))


class Current:
    """A device, current within a block."""

    def __init__(self, machine: Machine, index: int) -> None:
        self.machine, self.id = machine, index

    def __enter__(self) -> None:
        self.before, self.machine.current = self.machine.current, self.id

    def __exit__(self, *exception: object) -> None:
        self.machine.current = self.before


# Devices that are linked, whether their link was open before or not.
SEEN = ({"linked": True}, {"linked": True, "enabled": 704})


@pytest.mark.parametrize("source", [0, 1])
@pytest.mark.parametrize(
    "how",
    [
        {"linked": True},
        {"linked": True, "enabled": 704},
        {"linked": True, "enabled": 217},
        {"linked": False},
        {"linked": True, "changes": True},
    ],
)
def test_what_is_copied_arrives_as_it_was(how: dict[str, Any], source: int) -> None:
    if how.get("changes") and source == 1:
        pytest.skip("a device's own memory is not doubted")
    machine = Machine(**how)
    peers = PeerCopies(machine, 1)
    for count in (5, 9):
        with Current(machine, source):
            there = machine.asarray(np.arange(count, dtype=np.uint16) + 7)
        here = machine.zeros(count, np.uint16)
        assert peers.can_read(there) == (source == 1 or how in SEEN)
        peers.copy(here, there)
        assert np.array_equal(here.values, there.values)
    # Copies begin after the kernels before them, and kernels after them.
    assert machine.cuda.get_current_stream().work == [1] * machine.sent
    # One copy tries the way between two devices, and none goes over one that changes what passes.
    assert machine.sent == (source == 0) + (0 if how.get("changes") else 2)
