"""The adapter to the CUDA driver, against a library of the same functions whose devices are plain memory.

It shows that handles, addresses and sizes pass as the driver wants them, not that a GPU takes them.
"""

import ctypes
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.serving.shared_memory.fake_driver import SIZE, Device, compiled_driver
from tests.serving.shared_memory.reading import read
from tpx.errors import InvalidRequest, Unsupported
from tpx.serving.shared_memory.cuda import CudaRegionMemory, opener
from tpx.serving.shared_memory.regions import CudaRegion, SharedMemory

Open = Callable[[bytes, int, int], CudaRegionMemory]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled_driver(tmp_path_factory.mktemp("cuda"))


@pytest.fixture
def device(compiled: Path, tmp_path: Path) -> Iterator[Device]:
    """A library of its own for each test: one that is loaded stays as it is."""
    device = Device(Path(shutil.copy(compiled, tmp_path / "libcuda.so")))
    yield device
    assert device.depth == 0
    assert device.opened == 0


@pytest.fixture
def open_handle(device: Device) -> Open:
    return opener(device.path)


def test_what_the_other_process_wrote_is_read(device: Device, open_handle: Open) -> None:
    address = device.allocate()
    ctypes.memmove(address, bytes(range(256)), 256)
    memory = open_handle(device.export(address), 0, SIZE)
    assert read(memory, 3, 4) == bytes([3, 4, 5, 6])
    assert read(memory, 0, 0) == b""


@pytest.mark.parametrize("data", [b"abcd", bytearray(b"abcd"), memoryview(b"xabcd")[1:]])
def test_what_is_written_has_arrived_when_the_write_returns(
    device: Device, open_handle: Open, data: bytes
) -> None:
    address = device.allocate()
    memory = open_handle(device.export(address), 0, SIZE)
    memory.write(8, data)
    memory.write(8, b"")
    assert ctypes.string_at(address, 16) == bytes(8) + b"abcd" + bytes(4)


def test_memory_of_another_device_is_reached_in_its_context(device: Device, open_handle: Open) -> None:
    memory = open_handle(device.export(device.allocate(1)), 1, SIZE)
    memory.write(0, b"there")
    assert read(memory, 0, 5) == b"there"


def test_the_context_of_before_is_current_again(device: Device, open_handle: Open) -> None:
    device.driver.cuInit(0)
    before = ctypes.c_void_p()
    device.driver.cuDevicePrimaryCtxRetain(ctypes.byref(before), 1)
    device.driver.cuCtxPushCurrent_v2(before)
    memory = open_handle(device.export(device.allocate(0)), 0, SIZE)
    memory.write(0, b"x")
    del memory
    after = ctypes.c_void_p()
    device.driver.cuCtxPopCurrent_v2(ctypes.byref(after))
    assert after.value == before.value


def test_a_devices_context_is_retained_once(device: Device, open_handle: Open) -> None:
    for _ in range(3):
        read(open_handle(device.export(device.allocate()), 0, SIZE), 0, 1)
    assert device.driver.fake_retained(0) == 1


def test_handles_are_opened_for_peers_too_and_closed_with_the_last_reference(
    device: Device, open_handle: Open
) -> None:
    memory = open_handle(device.export(device.allocate()), 0, SIZE)
    assert device.opened == 1
    assert device.driver.fake_flags() == 1
    del memory
    assert device.opened == 0


def test_a_handle_that_is_none_is_refused(open_handle: Open) -> None:
    with pytest.raises(InvalidRequest, match=r"^cuIpcOpenMemHandle_v2 failed: CUDA_ERROR_INVALID_VALUE$"):
        open_handle(bytes(64), 0, SIZE)


def test_every_byte_of_a_handle_reaches_the_driver(device: Device, open_handle: Open) -> None:
    handle = device.export(device.allocate())
    for index in (7, 8, 31, 63):
        wrong = bytearray(handle)
        wrong[index] ^= 0x55
        with pytest.raises(InvalidRequest, match="cuIpcOpenMemHandle_v2"):
            open_handle(bytes(wrong), 0, SIZE)
    open_handle(handle, 0, SIZE)


def test_more_bytes_than_the_allocation_has_are_refused_and_the_handle_is_closed(
    device: Device, open_handle: Open
) -> None:
    address = device.allocate()
    with pytest.raises(InvalidRequest) as caught:
        open_handle(device.export(address), 0, SIZE + 1)
    assert caught.value.message == f"the allocation has {SIZE} bytes, {SIZE + 1} were to be registered"
    assert device.opened == 0
    inside = device.export(address + 96)
    open_handle(inside, 0, SIZE - 96)
    with pytest.raises(InvalidRequest, match=f"has {SIZE - 96} bytes"):
        open_handle(inside, 0, SIZE)


def test_a_device_that_is_not_there_is_refused(device: Device, open_handle: Open) -> None:
    with pytest.raises(InvalidRequest, match=r"^cuDeviceGet failed: CUDA_ERROR_INVALID_DEVICE$"):
        open_handle(device.export(device.allocate()), 5, SIZE)


def test_a_copy_that_fails_is_an_error_of_the_request(device: Device, open_handle: Open) -> None:
    memory = open_handle(device.export(device.allocate()), 0, SIZE)
    with pytest.raises(InvalidRequest, match="cuMemcpyDtoH_v2 failed: CUDA_ERROR_INVALID_VALUE"):
        read(memory, SIZE - 1, 2)
    with pytest.raises(InvalidRequest, match="cuMemcpyHtoD_v2 failed: CUDA_ERROR_INVALID_VALUE"):
        memory.write(SIZE - 1, b"ab")


def test_without_a_driver_it_is_said_once_what_is_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    open_handle = opener(str(tmp_path / "libcuda.so.1"))
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            with pytest.raises(Unsupported, match=r"no CUDA driver: .*cannot open shared object file"):
                open_handle(bytes(64), 0, SIZE)
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert "CUDA shared memory can not be used: no CUDA driver" in caplog.text


def test_a_driver_without_a_gpu_is_unsupported(device: Device, open_handle: Open) -> None:
    device.driver.fake_have(0)
    with pytest.raises(Unsupported, match=r"the CUDA driver does not start: CUDA_ERROR_NO_DEVICE"):
        open_handle(bytes(64), 0, SIZE)


def test_a_region_of_a_gpu_is_registered_read_written_and_unregistered(
    device: Device, open_handle: Open
) -> None:
    regions = SharedMemory(open_handle)
    address = device.allocate()
    region = CudaRegion(name="g", device_id=0, byte_size=64)
    regions.register_cuda(region, device.export(address))
    assert regions.status("", CudaRegion) == [region]
    with pytest.raises(InvalidRequest) as caught:
        regions.register_cuda(CudaRegion(name="h", device_id=0, byte_size=64), bytes(64))
    assert caught.value.message == (
        "failed to register shared memory region 'h': invalid args: cuIpcOpenMemHandle_v2 failed: "
        "CUDA_ERROR_INVALID_VALUE"
    )
    regions.unregister("g", CudaRegion)
    assert device.opened == 0
