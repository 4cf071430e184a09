"""Tensors in shared memory: registered over both protocols under names of our own, which go in every case."""

import asyncio
import ctypes
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.perf.clients.running import level, ran
from tests.serving.live import Live, serving, write_models
from tests.serving.shared_memory.fake_driver import compiled_driver
from tpx.argv import from_argv
from tpx.errors import MeasurementError, UsageError
from tpx.perf.clients.base import Region
from tpx.perf.connecting import open_model
from tpx.perf.inputs import shared_memory
from tpx.perf.inputs.shared_memory import CudaMemory, SystemMemory, TensorRegions
from tpx.perf.loops import event_loop
from tpx.perf.options import SessionSpec
from tpx.perf.run import run
from tpx.protocol.tensors import Tensor

BOTH = pytest.mark.parametrize("protocol", ["http", "grpc"])


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    repository: Path = tmp_path_factory.mktemp("models")
    write_models(repository)
    with serving(repository) as server:
        yield server


def at(live: Live, protocol: str, model: str) -> tuple[str, ...]:
    service = "HTTPService" if protocol == "http" else "GRPCInferenceService"
    return (
        "-i",
        protocol,
        "-u",
        f"127.0.0.1:{live.ports[service]}",
        "-m",
        model,
        "--shared-memory",
        "system",
    )


def regions(live: Live) -> list[str]:
    return [region["name"] for region in live.get("/v2/systemsharedmemory/status").json]


PREFIX = f"tpx_perf_{os.getpid()}_"


@pytest.fixture(autouse=True)
def names_of_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regions of these tests have names that no other process gives, as other tests run meanwhile."""
    monkeypatch.setattr(shared_memory, "PREFIX", PREFIX)


def files() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith(PREFIX)}  # noqa: PTH208


@BOTH
@pytest.mark.parametrize("model", ["double", "words"])
def test_requests_name_regions_that_are_there_for_as_long_as_the_run(
    live: Live, protocol: str, model: str
) -> None:
    async def scene() -> tuple[list[str], set[str]]:
        async with open_model(
            from_argv(SessionSpec, [*at(live, protocol, model), "--assume-shapes"])
        ) as connected:
            request = await asyncio.to_thread(regions, live)
            assert connected.requests.data.guesses
            return request, files()

    names, there = asyncio.run(scene())
    assert len(names) == 2
    assert all(name.startswith("tpx_perf_") for name in names)
    assert there == set(), "a registered region has no name in /dev/shm"
    assert regions(live) == []
    result = level(*at(live, protocol, model), "--request-count", "20", "--concurrency-range", "3")
    assert (result.requests, result.failed) == (20, 0)
    assert (regions(live), files()) == ([], set())


@BOTH
def test_inputs_that_are_shared_give_the_right_outputs(live: Live, protocol: str, tmp_path: Path) -> None:
    document = {
        "data": [{"x": [i, -i]} for i in range(50)],
        "validation_data": [{"y": [2 * i, -2 * i]} for i in range(50)],
    }
    path = tmp_path / "data.json"
    path.write_text(json.dumps(document))
    words = ("--input-data", str(path), "--shape", "x:2", "-b", "3", "--request-count", "60")
    report = ran(*at(live, protocol, "double"), *words)
    assert [(r.requests, r.failed) for r in report.levels] == [(60, 0)]


def test_what_is_not_ours_stays_registered(live: Live, tmp_path: Path) -> None:
    theirs = Path("/dev/shm/tpx_test_theirs")
    theirs.write_bytes(bytes(64))
    try:
        body = json.dumps({"key": "/tpx_test_theirs", "offset": 0, "byte_size": 64}).encode()
        live.http("POST", "/v2/systemsharedmemory/region/theirs/register", body)
        level(*at(live, "http", "double"), "--request-count", "5")
        assert regions(live) == ["theirs"]
    finally:
        live.http("POST", "/v2/systemsharedmemory/region/theirs/unregister", b"{}")
        theirs.unlink()


@BOTH
def test_regions_go_when_the_run_is_cancelled_or_fails(live: Live, protocol: str) -> None:
    async def cancelled() -> None:
        config = from_argv(
            SessionSpec, [*at(live, protocol, "double"), "--assume-shapes", "--request-count", "1000000"]
        )
        work = asyncio.ensure_future(run(config))
        for _ in range(400):
            if len(await asyncio.to_thread(regions, live)) == 2:
                break
            await asyncio.sleep(0.01)
        else:
            raise AssertionError("nothing was registered")
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work

    with asyncio.Runner(loop_factory=event_loop) as runner:
        runner.run(cancelled())
    assert (regions(live), files()) == ([], set())
    with pytest.raises(UsageError, match="max_batch_size"):
        ran(*at(live, protocol, "double"), "-b", "1000000")
    assert (regions(live), files()) == ([], set())


class Refusing:
    """Implements Registrar: takes one region and refuses the next."""

    def __init__(self) -> None:
        self.known: list[str] = []

    async def register(self, region: Region) -> None:
        if self.known:
            raise MeasurementError("failed to register shared memory: no more")
        self.known.append(region.name)

    async def unregister(self, region: Region) -> None:
        self.known.remove(region.name)


async def test_a_region_that_is_refused_takes_the_others_with_it() -> None:
    registrar = Refusing()
    shared = TensorRegions(registrar, "system", 64)
    shared.place_inputs([Tensor("x", "FP32", (2,), bytes(8))])
    shared._reserve_range("outputs", 8)
    with pytest.raises(MeasurementError, match="no more"):
        await shared.publish()
    assert len(registrar.known) == 1
    await shared.close()
    assert registrar.known == []
    assert files() == set()


async def test_a_region_that_is_still_in_use_is_given_up_a_little_later() -> None:
    class Busy(Refusing):
        refusals = 2

        async def unregister(self, region: Region) -> None:
            if self.refusals:
                self.refusals -= 1
                raise MeasurementError("it is currently in use")
            await super().unregister(region)

    registrar = Busy()
    shared = TensorRegions(registrar, "system", 64)
    shared.place_inputs([Tensor("x", "FP32", (2,), bytes(8))])
    await shared.publish()
    await shared.close()
    assert registrar.known == []


async def test_an_interrupt_does_not_keep_regions_from_going() -> None:
    class Slow(Refusing):
        async def register(self, region: Region) -> None:
            self.known.append(region.name)

        async def unregister(self, region: Region) -> None:
            await asyncio.sleep(0.02)
            await super().unregister(region)

    registrar = Slow()
    shared = TensorRegions(registrar, "system", 64)
    shared.place_inputs([Tensor("x", "FP32", (2,), bytes(8))])
    shared._reserve_range("outputs", 8)
    await shared.publish()
    closing = asyncio.ensure_future(shared.close())
    await asyncio.sleep(0.01)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert registrar.known == []
    assert files() == set()


def test_inputs_lie_apart_and_aligned(tmp_path: Path) -> None:
    shared = TensorRegions(Refusing(), "system", 64)
    tensors = [Tensor(name, "INT8", (size,), bytes([size]) * size) for name, size in (("a", 3), ("b", 70))]
    places = shared.place_inputs([*tensors, Tensor("empty", "INT8", (0,), b"")])
    try:
        assert [(p.offset, p.byte_size) for p in places.values()] == [(0, 3), (64, 70)]
        assert "empty" not in places
        (name,) = {place.region for place in places.values()}
        data = (Path("/dev/shm") / name).read_bytes()
        assert (data[:3], data[64:134]) == (b"\x03" * 3, b"\x46" * 70)
    finally:
        asyncio.run(shared.close())


def test_no_room_is_said_with_the_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot create .*/nowhere/x: No such file"):
        SystemMemory("x", tmp_path / "nowhere")
    memory = SystemMemory("x", tmp_path)
    with pytest.raises(UsageError, match=r"cannot hold .* bytes"):
        memory.region(1 << 60)
    memory.close()
    assert list(tmp_path.iterdir()) == []


# CUDA


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(compiled_driver(tmp_path_factory.mktemp("cuda")))


def test_a_machine_without_a_driver_is_told_what_is_missing(live: Live) -> None:
    if Path("/dev/nvidia0").exists():
        pytest.skip("there is a GPU")
    words = [*at(live, "http", "double")]
    words[words.index("system")] = "cuda"
    with pytest.raises(UsageError, match=r"--shared-memory cuda: .*needs an NVIDIA GPU and its driver"):
        ran(*words)


def test_what_was_written_is_on_the_device_and_its_handle_is_exported(library: str) -> None:
    driver = ctypes.CDLL(library)
    memory = CudaMemory("name", library)
    memory.write(64, np.arange(4, dtype=np.uint8).data)
    region = memory.region(128)
    assert (region.kind, region.name, region.byte_size, region.device) == ("cuda", "name", 128, 0)
    (address,) = np.frombuffer(region.handle[:8], "<u8").tolist()
    assert ctypes.string_at(address, 128) == bytes(64) + bytes([0, 1, 2, 3]) + bytes(60)
    memory.registered()
    memory.close()
    memory.close()
    assert driver.fake_depth() == 0
    assert driver.fake_live() == 0


def test_a_device_that_is_full_says_so(library: str) -> None:
    memory = CudaMemory("name", library)
    with pytest.raises(MeasurementError, match=r"1099511627776 bytes cannot be shared: cuMemAlloc_v2 failed"):
        memory.region(1 << 40)
    memory.close()


def test_regions_are_told_apart_by_their_kind() -> None:
    fields: dict[str, Any] = {"name": "x", "byte_size": 1}
    kinds: Sequence[str] = [Region(**fields, key="/x").kind, Region(**fields, handle=b"h").kind]
    assert kinds == ["system", "cuda"]
