"""Memory of the host for devices: what a driver is asked for, by one that counts, and real copies."""

from __future__ import annotations

import ctypes
import gc
import mmap
from concurrent.futures import wait
from importlib import import_module
from time import sleep
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oocpr
from oocpr.engine.cuda.host_memory import (
    MAX_POOLED,
    MIN_REGISTERED,
    PIECE,
    Landing,
    allocate_pinned,
    copy,
    register,
)
from oocpr.sources.rmat import Rmat
from oocpr.store.direct_io import PAGE

from .conftest import RUNS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from oocpr.engine.cuda.device import Device

    from .pooled import PooledMachine


class DriverError(RuntimeError):
    """What CuPy raises if the driver cannot do what it is asked."""


class Driver:
    """A driver that keeps which memory is registered, and copies between addresses of the host."""

    def __init__(self, *, registers: bool = True) -> None:
        self.registers = registers
        self.registered: dict[int, int] = {}
        self.copied: list[tuple[int, bool]] = []  # bytes, and whether they were all that is registered
        self.runtime = SimpleNamespace(
            CUDARuntimeError=DriverError,
            memcpyDefault=DEFAULT,
            hostRegister=self.register,
            hostUnregister=self.unregister,
            memcpyAsync=self.copy,
        )

    def register(self, address: int, nbytes: int, flags: int) -> None:
        assert flags == 3
        if not self.registers:
            raise DriverError("operation not supported")
        self.registered[address] = nbytes

    def unregister(self, address: int) -> None:
        del self.registered[address]

    def copy(self, to: int, of: int, nbytes: int, kind: int, _stream: int) -> None:
        assert kind == DEFAULT
        ctypes.memmove(to, of, nbytes)
        by_device = self.registered in ({to: nbytes}, {of: nbytes})
        self.copied.append((nbytes, by_device))


DEFAULT = 4
"""Number of cudaMemcpyDefault."""

STREAM = SimpleNamespace(ptr=0, synchronize=lambda: None)


@given(first=st.integers(0, 2 * PAGE), size=st.integers(0, 5 * PAGE), bring=st.booleans(), can=st.booleans())
def test_a_copy_registers_whole_pages_and_changes_no_other_byte(
    first: int, size: int, bring: bool, can: bool
) -> None:
    driver = Driver(registers=can)
    host = np.random.default_rng(first).integers(0, 256, 8 * PAGE, np.uint8)
    there = np.arange(size, dtype=np.uint16).astype(np.uint8)
    here, expected = host[first : first + size], host.copy()
    if bring:
        expected[first : first + size] = there
    copy(driver.runtime, STREAM, here, there.ctypes.data, bring=bring)
    assert np.array_equal(host, expected)
    assert np.array_equal(here, there)
    assert not driver.registered
    assert sum(nbytes for nbytes, _ in driver.copied) == size
    begin, end = here.ctypes.data, here.ctypes.data + size
    pages = max(0, end // PAGE - -(-begin // PAGE)) * PAGE
    assert [nbytes for nbytes, by_device in driver.copied if by_device] == [pages] * (can and pages > 0)


def test_pinned_memory_is_registered_until_its_last_view_is_gone() -> None:
    driver = Driver()
    memory = allocate_pinned(SimpleNamespace(runtime=driver.runtime), MIN_REGISTERED + 5)
    address = memory.ctypes.data
    assert driver.registered == {address: MIN_REGISTERED + 5}
    assert not memory.any()
    view = memory[PAGE:].view(np.uint8)[3:9]
    del memory
    gc.collect()
    assert driver.registered
    view[:] = 1
    del view
    gc.collect()
    assert not driver.registered


@pytest.mark.parametrize(
    ("nbytes", "registers", "keeps"),
    [
        (0, True, True),
        (MAX_POOLED, True, True),
        (MAX_POOLED + 1, True, False),
        (MIN_REGISTERED - 1, True, False),
        (MIN_REGISTERED, False, False),
    ],
)
def test_the_driver_makes_what_is_small_or_cannot_be_registered(
    nbytes: int, registers: bool, keeps: bool
) -> None:
    made: list[int] = []
    kept: list[int] = []

    def maker(sizes: list[int]) -> Callable[[int], bytearray]:
        return lambda size: sizes.append(size) or bytearray(size)

    driver = Driver(registers=registers)
    cuda: Any = SimpleNamespace(
        runtime=driver.runtime,
        PinnedMemory=maker(made),
        PinnedMemoryPointer=lambda memory, _: memory,
        alloc_pinned_memory=maker(kept),
    )
    assert allocate_pinned(cuda, nbytes).size == nbytes
    assert (kept if keeps else made) == [max(1, nbytes)]
    assert not (made if keeps else kept)
    assert not driver.registered


@RUNS
def test_what_is_sent_while_kernels_run_is_not_overwritten_by_those_before(device: Device) -> None:
    nbytes = 1 << 26
    with device:
        pinned = device.pinned(nbytes)
        pinned[:] = 7
        before = device.xp.zeros(nbytes, np.uint8)
        for _ in range(100):
            before += np.uint8(1)
        del before
        there = device.receiving(nbytes)
        device.upload_async(there, pinned)
        device.synchronize()
        assert (device.bring(there) == 7).all()


@RUNS
@pytest.mark.parametrize("size", [1, 5 * PAGE + 3, 3 * MIN_REGISTERED + 1])
def test_numbers_come_back_from_a_device(device: Device, size: int) -> None:
    values = np.random.default_rng(size).random(size + 7)
    with device:
        there = device.xp.zeros(size)
        for first in range(7):
            device.put(there, values[first : first + size])
            assert np.array_equal(device.bring(there), values[first : first + size])
        device.put(there, values[::2][: size // 2 + 1].repeat(2)[:size])
        out = np.ones(size + 2)
        device.bring(there, out[1:-1])
    assert np.array_equal(out[1:-1], values[::2][: size // 2 + 1].repeat(2)[:size])
    assert out[0] == out[-1] == 1


@RUNS
def test_a_device_takes_memory_that_cannot_be_written_to(device: Device, tmp_path: Any) -> None:
    values = np.arange(MIN_REGISTERED // 4, dtype=np.uint64)
    (tmp_path / "values").write_bytes(values.tobytes())
    with (tmp_path / "values").open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    with device:
        there = device.xp.zeros(values.size, np.uint64)
        device.put(there, np.frombuffer(mapped, np.uint64))
        assert np.array_equal(device.bring(there), values)


@RUNS
@pytest.mark.parametrize("nbytes", [8, MIN_REGISTERED + 24])
def test_kernels_see_memory_of_the_host_and_the_host_what_is_sent(device: Device, nbytes: int) -> None:
    with device:
        there, here = device.mapped(nbytes // 8, np.uint64)
        here[:] = np.arange(nbytes // 8, dtype=np.uint64)
        there += np.uint64(5)
        device.synchronize()
        assert np.array_equal(here, np.arange(5, 5 + nbytes // 8, dtype=np.uint64))
        pinned = device.pinned(nbytes)
        pinned[:] = 7
        other = device.receiving(nbytes)
        device.upload_async(other, pinned).synchronize()
        assert np.array_equal(device.bring(other), pinned)


@RUNS
@pytest.mark.parametrize("size", [1, 5 * PAGE + 3, PIECE // 8, PIECE // 8 + 1, PIECE // 4 + 5])
def test_numbers_land_in_memory_that_was_made_before(device: Device, size: int) -> None:
    values = np.random.default_rng(size).random(size)
    landing = Landing(device, size)
    with device:
        there = device.xp.asarray(values)
        landing.pin_until(device.record_event())
        here = landing.bring(there)
    assert np.array_equal(here, values)
    here[:] = 1


class PinningDevice:
    """A device whose memory is the host's, by a driver that keeps what is registered, and what was sent."""

    def __init__(self, driver: Driver) -> None:
        self.driver, self.sent = driver, list[tuple[int, bool]]()

    def __enter__(self) -> None: ...

    def __exit__(self, *exception: object) -> None: ...

    def register(self, memory: NDArray[np.uint8]) -> Callable[[], Any] | None:
        return register(self.driver.runtime, memory)

    def send(self, there: NDArray[np.float64], here: NDArray[np.float64]) -> None:
        there[:] = here
        self.sent.append((there.nbytes, self.driver.registered.get(there.ctypes.data) == there.nbytes))

    def synchronize(self) -> None: ...


class EventAfter:
    """An event that is passed once it has been asked for a number of times."""

    def __init__(self, times: int) -> None:
        self.times = times

    @property
    def done(self) -> bool:
        self.times -= 1
        return self.times < 0

    def synchronize(self) -> None: ...


@pytest.mark.parametrize("registers", [True, False])
@pytest.mark.parametrize("brought", [True, False])
@pytest.mark.parametrize(("passes", "pinned"), [((), 0), ((0,), 0), ((1, 0, 1), 2), ((2, 5, 1), 3)])
def test_pieces_are_pinned_until_a_pass_ends_and_let_go_in_the_end(
    registers: bool, brought: bool, passes: tuple[int, ...], pinned: int
) -> None:
    driver = Driver(registers=registers)
    device = PinningDevice(driver)
    values = np.random.default_rng(5).random(PIECE // 4 + 3)
    landing = Landing(device, values.size)  # type: ignore[arg-type]
    wait([landing._touched])
    for times in passes:
        landing.pin_until(EventAfter(times))
    assert len(driver.registered) == pinned * registers
    if brought:
        here = landing.bring(values)
        assert device.sent == [(PIECE, registers), (PIECE, registers), (24, registers)]
        for _ in range(1000):
            if not driver.registered:
                break
            sleep(0.01)
        assert np.array_equal(here, values)
    del landing
    gc.collect()
    assert not driver.registered


def test_ranks_land_with_the_same_bits(
    machine: PooledMachine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    graph = oocpr.import_graph(Rmat(9), tmp_path / "g.zarr")
    landed = []
    monkeypatch.setattr(
        Landing, "bring", lambda self, array, bring=Landing.bring: landed.append(1) or bring(self, array)
    )
    expected = oocpr.pagerank(graph, device="cuda").to_numpy()
    assert not landed
    monkeypatch.setattr(import_module("oocpr.engine.cuda.vectors"), "LANDED_ROWS", graph.nodes)
    assert np.array_equal(oocpr.pagerank(graph, device="cuda").to_numpy(), expected)
    assert landed
