"""The registered regions: names, kinds, bounds, and how long their memory is held."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.serving.fakes import ignore, request_of
from tests.serving.shared_memory.segments import descriptors, segment
from tpx.errors import AlreadyExists, Code, InvalidRequest, NotFound, Overloaded, TpxError, Unsupported
from tpx.protocol.memory_budget import MemoryBudget
from tpx.protocol.tensors import Buffer, Tensor
from tpx.protocol.v2 import SharedMemoryRange
from tpx.serving.request import InferRequest, InferResponse
from tpx.serving.shared_memory.regions import (
    CudaRegion,
    Region,
    RegionsInUse,
    SharedMemory,
    SharedMemoryLimits,
    SystemRegion,
)

SIZE = 64
MB = 1 << 20
HANDLE = bytes(range(64))


class FakeMemory:
    """Memory of a device, and what it was opened with."""

    def __init__(self, handle: bytes, device: int, byte_size: int) -> None:
        self.asked = (handle, device, byte_size)
        self.data = bytearray(byte_size)

    def read_into(self, memory: memoryview, offset: int) -> None:
        memory[:] = self.data[offset : offset + len(memory)]

    def write(self, offset: int, data: Buffer) -> None:
        self.data[offset : offset + len(data)] = data

    def gpu_address(self, offset: int) -> int:
        return 0x7F0000000000 + offset


def no_gpu(handle: bytes, device: int, byte_size: int) -> FakeMemory:
    raise Unsupported("there is no GPU")


@pytest.fixture
def key() -> Iterator[str]:
    """A page of shared memory that counts upwards."""
    with segment(4096, bytes(range(256)) * 16) as path:
        yield f"/{path.name}"


@pytest.fixture
def regions() -> SharedMemory:
    return SharedMemory(FakeMemory)


def system(name: str, key: str, offset: int = 0, byte_size: int = SIZE) -> SystemRegion:
    return SystemRegion(name=name, key=key, offset=offset, byte_size=byte_size)


def cuda(name: str = "g", device_id: int = 0, byte_size: int = SIZE) -> CudaRegion:
    return CudaRegion(name=name, device_id=device_id, byte_size=byte_size)


def place(region: str = "r", offset: int = 0, byte_size: int = 4) -> SharedMemoryRange:
    return SharedMemoryRange(region=region, offset=offset, byte_size=byte_size)


def read(regions: SharedMemory, *places: SharedMemoryRange) -> list[bytes]:
    tensors = [(Tensor("x", "UINT8", [p.byte_size], b""), p) for p in places]
    for (tensor, _), there in zip(tensors, regions.inputs(tensors), strict=True):
        there.read()
        tensor.data = there.memory
    return [bytes(tensor.data) for tensor, _ in tensors]


def refusal(kind: type[TpxError], act: Callable[[], object]) -> str:
    with pytest.raises(kind) as caught:
        act()
    assert type(caught.value) is kind
    return caught.value.message


# registering


def test_a_registered_region_is_read_at_its_name(regions: SharedMemory, key: str) -> None:
    regions.register_system(system("r", key))
    assert read(regions, place(offset=2), place(offset=60)) == [b"\2\3\4\5", b"\x3c\x3d\x3e\x3f"]


def test_a_region_of_a_gpu_is_opened_by_its_handle() -> None:
    opened: list[FakeMemory] = []

    def open_cuda(handle: bytes, device: int, byte_size: int) -> FakeMemory:
        opened.append(FakeMemory(handle, device, byte_size))
        return opened[-1]

    SharedMemory(open_cuda).register_cuda(cuda(device_id=3), HANDLE)
    assert [memory.asked for memory in opened] == [(HANDLE, 3, SIZE)]


@pytest.mark.parametrize("taken_by", ["system", "cuda"])
def test_a_name_is_taken_once_by_both_kinds_together(regions: SharedMemory, key: str, taken_by: str) -> None:
    if taken_by == "system":
        regions.register_system(system("r", key))
    else:
        regions.register_cuda(cuda("r"), HANDLE)
    expected = "shared memory region 'r' already in manager"
    assert refusal(AlreadyExists, lambda: regions.register_system(system("r", key))) == expected
    assert refusal(AlreadyExists, lambda: regions.register_cuda(cuda("r"), HANDLE)) == expected


def test_a_name_is_needed(regions: SharedMemory, key: str) -> None:
    message = "'region name' is necessary to register {} shared memory region"
    assert refusal(InvalidRequest, lambda: regions.register_system(system("", key))) == message.format(
        "system"
    )
    assert refusal(InvalidRequest, lambda: regions.register_cuda(cuda(""), HANDLE)) == message.format("cuda")


@pytest.mark.parametrize(
    ("offset", "byte_size"),
    [(0, 0), (0, -1), (0, 4097), (0, 2**63), (0, 2**64 - 1), (-4096, 64), (2**64 - 4096, 8192), (2**63, 64)],
)
def test_sizes_and_offsets_that_no_file_has_are_refused(
    regions: SharedMemory, key: str, offset: int, byte_size: int
) -> None:
    before = descriptors()
    message = refusal(InvalidRequest, lambda: regions.register_system(system("r", key, offset, byte_size)))
    assert message == "failed to register shared memory region 'r': invalid args"
    assert descriptors() <= before
    assert regions.status("", SystemRegion) == []


def test_failing_registrations_leave_no_descriptor(regions: SharedMemory, key: str) -> None:
    before = descriptors()
    for number in range(2000):
        with pytest.raises(InvalidRequest):
            regions.register_system(system(f"r{number}", key, 0, 1 << 40))
    assert descriptors() <= before


@pytest.mark.parametrize("handle", [b"", HANDLE[:-1], HANDLE + b"\0"])
def test_a_handle_of_another_length_is_refused(regions: SharedMemory, handle: bytes) -> None:
    assert refusal(InvalidRequest, lambda: regions.register_cuda(cuda(), handle)) == (
        "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t"
    )


@pytest.mark.parametrize("device", [-1, 2**31, 2**40])
def test_a_device_that_no_machine_has_is_refused(regions: SharedMemory, device: int) -> None:
    assert f"there is no device {device}" in refusal(
        InvalidRequest, lambda: regions.register_cuda(cuda(device_id=device), HANDLE)
    )


def test_without_a_gpu_the_documented_error_comes() -> None:
    assert refusal(InvalidRequest, lambda: SharedMemory(no_gpu).register_cuda(cuda(), HANDLE)) == (
        "failed to register CUDA shared memory region: 'g', GPUs not supported"
    )


def test_there_are_only_so_many_regions(key: str) -> None:
    regions = SharedMemory(FakeMemory, SharedMemoryLimits(max_regions=2))
    regions.register_system(system("a", key))
    regions.register_cuda(cuda("b"), HANDLE)
    with pytest.raises(Overloaded, match=r"region 'c': there are 2 already.*unregister some") as caught:
        regions.register_system(system("c", key))
    assert caught.value.code is Code.RESOURCE_EXHAUSTED
    regions.unregister("a", SystemRegion)
    regions.register_system(system("c", key))


def test_what_is_not_allowed_is_refused_whatever_it_asks_for(key: str) -> None:
    regions = SharedMemory(FakeMemory, SharedMemoryLimits(allowed=False))
    expected = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
    assert refusal(Unsupported, lambda: regions.register_system(system("", key))) == expected
    assert refusal(Unsupported, lambda: regions.register_cuda(cuda(), b"")) == expected
    assert refusal(Unsupported, lambda: regions.unregister("r", SystemRegion)) == expected
    assert regions.status("", SystemRegion) == []
    assert refusal(NotFound, lambda: regions.status("r", CudaRegion)) == (
        "Unable to find cuda shared memory region: 'r'"
    )


# status


def test_the_status_has_what_was_registered_by_name(regions: SharedMemory, key: str) -> None:
    b, a, g = system("b", key, byte_size=7), system("a", key), cuda()
    regions.register_system(b)
    regions.register_cuda(g, HANDLE)
    regions.register_system(a)
    assert regions.status("", SystemRegion) == [a, b]
    assert regions.status("b", SystemRegion) == [b]
    assert regions.status("", CudaRegion) == [g]
    assert regions.status("g", CudaRegion) == [g]


def test_the_status_of_what_is_not_there_says_which_kind(regions: SharedMemory, key: str) -> None:
    regions.register_system(system("r", key))
    regions.register_cuda(cuda(), HANDLE)
    kinds: list[tuple[str, type[Region], str]] = [
        ("x", SystemRegion, "Unable to find system shared memory region: 'x'"),
        ("x", CudaRegion, "Unable to find cuda shared memory region: 'x'"),
        (
            "r",
            CudaRegion,
            "The region named 'r' is registered as system shared memory, not CUDA shared memory",
        ),
        (
            "g",
            SystemRegion,
            "The region named 'g' is registered as CUDA shared memory, not system shared memory",
        ),
    ]
    for name, kind, message in kinds:
        assert refusal(NotFound, lambda name=name, kind=kind: regions.status(name, kind)) == message  # type: ignore[misc]


# unregistering


def test_unregistering_forgets_one_region_or_all_of_a_kind(regions: SharedMemory, key: str) -> None:
    for name in ("a", "b", "c"):
        regions.register_system(system(name, key))
    regions.register_cuda(cuda(), HANDLE)
    regions.unregister("b", SystemRegion)
    assert [region.name for region in regions.status("", SystemRegion)] == ["a", "c"]
    regions.unregister("", SystemRegion)
    assert regions.status("", SystemRegion) == []
    assert [region.name for region in regions.status("", CudaRegion)] == ["g"]


def test_unregistering_what_is_not_there_changes_nothing(regions: SharedMemory, key: str) -> None:
    regions.register_system(system("r", key))
    regions.unregister("x", SystemRegion)
    regions.unregister("r", CudaRegion)
    assert [region.name for region in regions.status("", SystemRegion)] == ["r"]


def test_memory_is_closed_when_the_region_is_unregistered(regions: SharedMemory, key: str) -> None:
    before = descriptors()
    for name in ("a", "b"):
        regions.register_system(system(name, key))
    assert descriptors() == before + 2
    regions.unregister("", SystemRegion)
    assert descriptors() <= before


def names(regions: SharedMemory) -> list[str]:
    return [each.name for each in regions.status("", SystemRegion)] + [
        each.name for each in regions.status("", CudaRegion)
    ]


def used(regions: SharedMemory, name: str) -> RegionsInUse:
    """A request that reads its input from a region is in flight."""
    found = regions.inputs([(Tensor("x", "UINT8", [1], b""), place(name, byte_size=1))])
    return RegionsInUse([there.registration for there in found], ignore)


def test_a_region_in_use_stays_until_the_last_response_of_the_last_request(
    regions: SharedMemory, key: str
) -> None:
    regions.register_system(system("r", key))
    requests = [used(regions, "r"), used(regions, "r")]
    part, last = InferResponse([]), InferResponse([])
    part.final = False
    for response in (part, last):
        regions.unregister("r", SystemRegion)
        assert names(regions) == ["r"]
        requests[0](request_of(), response)
    assert names(regions) == ["r"]
    late = used(regions, "r")  # as in Triton, where the name leads to it until then
    requests[1].end()
    assert refusal(AlreadyExists, lambda: regions.register_system(system("r", key)))
    late.end()
    assert names(regions) == []
    regions.register_system(system("r", key))
    used(regions, "r").end()
    assert names(regions) == ["r"]


def test_a_reply_that_fails_ends_the_use_of_its_regions_too(regions: SharedMemory, key: str) -> None:
    def fail(request: InferRequest, response: InferResponse) -> None:
        raise ValueError("it broke")

    regions.register_system(system("r", key))
    reply = RegionsInUse([regions.placement(place()).registration], fail)
    regions.unregister("r", SystemRegion)
    with pytest.raises(ValueError, match="it broke"):
        reply(request_of(), InferResponse([]))
    assert names(regions) == []


def test_unregistering_all_of_a_kind_waits_for_those_in_use(regions: SharedMemory, key: str) -> None:
    for name in ("c", "a", "b"):
        regions.register_system(system(name, key))
    regions.register_cuda(cuda(), HANDLE)
    requests = [used(regions, name) for name in ("c", "a", "g")]
    regions.unregister("", SystemRegion)
    assert names(regions) == ["a", "c", "g"]
    regions.unregister("", CudaRegion)
    regions.unregister("", CudaRegion)
    for request, left in zip(requests, (["a", "g"], ["g"], []), strict=True):
        request.end()
        assert names(regions) == left


def test_the_whole_region_and_nothing_of_it_can_be_read(regions: SharedMemory, key: str) -> None:
    regions.register_system(system("r", key))
    assert read(regions, place(byte_size=SIZE), place(offset=63, byte_size=0)) == [bytes(range(64)), b""]


def test_nothing_is_read_of_a_request_whose_inputs_are_too_large_together(key: str) -> None:
    regions = SharedMemory(FakeMemory, SharedMemoryLimits(max_input_bytes=100))
    regions.register_system(system("r", key))
    assert len(read(regions, place(byte_size=50), place(byte_size=50))) == 2
    message = refusal(InvalidRequest, lambda: check(regions, place(byte_size=51), place(byte_size=50)))
    assert message == (
        "inputs in shared memory have a byte_size (101 bytes) that exceeds the maximum allowed value of 100 "
        "bytes. Use --client-shm-max-input-size to increase the limit."
    )


def check(regions: SharedMemory, *places: SharedMemoryRange) -> int:
    return regions.check_inputs([(Tensor("x", "UINT8", [1], b""), each) for each in places])


def test_inputs_that_can_never_fit_the_memory_budget_are_refused(key: str) -> None:
    regions = SharedMemory(FakeMemory, budget=MemoryBudget(63))
    regions.register_system(system("r", key))
    assert check(regions, place(byte_size=63)) == 63
    message = refusal(InvalidRequest, lambda: check(regions, place(byte_size=64)))
    assert message == (
        "inputs in shared memory have a byte_size (64 bytes) that exceeds the memory for requests and "
        "answers, 63 bytes. Use --max-buffered-bytes to increase the limit."
    )


async def test_the_copy_of_an_input_is_charged_until_nothing_views_it() -> None:
    budget = MemoryBudget(4 * MB)
    regions = SharedMemory(FakeMemory, budget=budget)
    regions.register_cuda(cuda(byte_size=3 * MB), HANDLE)
    [found] = regions.inputs([(Tensor("x", "UINT8", [1], b""), place("g", byte_size=3 * MB))])
    assert 3 * MB <= budget.held < 4 * MB
    assert not regions.has_room(2 * MB)
    assert regions.has_room(1)  # small inputs are always read
    view = found.memory[:10]
    del found
    await asyncio.sleep(0)
    assert budget.held
    await asyncio.to_thread(view.release)
    assert regions.has_room(4 * MB)
    assert budget.held == 0


def test_a_range_that_is_not_there_comes_before_one_that_is_too_large(key: str) -> None:
    regions = SharedMemory(FakeMemory, SharedMemoryLimits(max_input_bytes=10))
    regions.register_system(system("r", key))
    assert "Unable to find" in refusal(NotFound, lambda: check(regions, place(byte_size=50), place("x")))


def test_a_machine_without_memory_for_an_input_refuses_the_request() -> None:
    size = 1 << 60
    regions = SharedMemory(lambda *_: FakeMemory(HANDLE, 0, 4), SharedMemoryLimits(max_input_bytes=size))
    regions.register_cuda(cuda(byte_size=size), HANDLE)
    with pytest.raises(Overloaded, match=f"no memory for {size} bytes of shared memory region 'g'") as caught:
        read(regions, place("g", byte_size=size))
    assert caught.value.code is Code.RESOURCE_EXHAUSTED


def test_an_output_that_is_larger_than_its_range_is_not_written(regions: SharedMemory, key: str) -> None:
    regions.register_system(system("r", key))
    before = (Path("/dev/shm") / key[1:]).read_bytes()
    placement = regions.placement(place(offset=8, byte_size=4))
    assert refusal(InvalidRequest, lambda: placement.put("y", b"abcde")) == (
        "shared memory size specified with the request for output 'y' (4 bytes) should be at least 5 bytes "
        "to hold the results"
    )
    assert (Path("/dev/shm") / key[1:]).read_bytes() == before
