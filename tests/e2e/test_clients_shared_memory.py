"""Tensors in shared memory: the client library's own segments, over its four clients, and perf_analyzer."""

import itertools
import json
import os
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from tritonclient.utils import serialize_byte_tensor, shared_memory

from tests.e2e.foreign import SAMPLES, same
from tests.e2e.test_clients_tools import perf_analyzer, run, success_count

pytestmark = pytest.mark.e2e

Array = npt.NDArray[Any]
ROWS = np.arange(1, 33, dtype=np.float32).reshape(2, 16)
SIZE = ROWS.nbytes
WORDS = np.array([[b"", "日本".encode(), b"\0", b"x" * 3000]], dtype=np.object_)

_numbers = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A segment that the client library has created, and its key."""

    key: str
    size: int
    handle: Any

    def put(self, *arrays: Array, offset: int = 0) -> None:
        shared_memory.set_shared_memory_region(self.handle, arrays, offset=offset)

    def get(self, array: Array, offset: int = 0, datatype: Any = None) -> Array:
        """What is there, of the type and shape of `array`."""
        contents: Array = shared_memory.get_contents_as_numpy(
            self.handle, datatype or array.dtype, array.shape, offset=offset
        )
        return contents.copy()

    @property
    def file(self) -> Path:
        return Path("/dev/shm") / self.key.lstrip("/")


@contextmanager
def segment(size: int = 4 * SIZE) -> Iterator[Segment]:
    """A new segment."""
    key = f"/tpx_e2e_{os.getpid()}_{next(_numbers)}"
    handle = shared_memory.create_shared_memory_region(key, key, size)
    try:
        yield Segment(key=key, size=size, handle=handle)
    finally:
        shared_memory.destroy_shared_memory_region(handle)


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """One of the two blocking modules, which are spelled alike, and a client of it."""

    name: str
    module: ModuleType
    client: Any

    def input(self, name: str, array: Array, where: tuple[str, int, int], datatype: str = "FP32") -> Any:
        item = self.module.InferInput(name, array.shape, datatype)
        item.set_shared_memory(where[0], where[1], where[2])
        return item

    def output(self, name: str, where: tuple[str, int, int]) -> Any:
        item = self.module.InferRequestedOutput(name)
        item.set_shared_memory(where[0], where[1], where[2])
        return item

    def names(self) -> list[str]:
        """The registered regions."""
        if self.name == "grpc":
            return sorted(self.client.get_system_shared_memory_status(as_json=True).get("regions", {}))
        return [region["name"] for region in self.client.get_system_shared_memory_status()]

    @contextmanager
    def region(self, segment: Segment, name: str = "r", **where: int) -> Iterator[None]:
        """The segment, registered."""
        self.client.register_system_shared_memory(
            name, segment.key, where.pop("byte_size", segment.size), **where
        )
        try:
            yield
        finally:
            self.client.unregister_system_shared_memory(name)


@pytest.fixture(params=["http", "grpc"])
def library(request: pytest.FixtureRequest, http_address: str, grpc_address: str) -> Iterator[Library]:
    module = tritonclient.http if request.param == "http" else tritonclient.grpc
    with module.InferenceServerClient(http_address if request.param == "http" else grpc_address) as client:
        yield Library(name=request.param, module=module, client=client)
        assert library_is_clean(client)


def library_is_clean(client: Any) -> bool:
    """Every test unregisters what it has registered."""
    status = client.get_system_shared_memory_status()
    return not (status if isinstance(status, list) else status.regions)


def add_sub_inputs(library: Library) -> list[Any]:
    """ROWS and twice ROWS, at the beginning of region "r"."""
    return [library.input("INPUT0", ROWS, ("r", SIZE, 0)), library.input("INPUT1", ROWS, ("r", SIZE, SIZE))]


@pytest.mark.parametrize("datatype", [name for name in SAMPLES if name not in ("BYTES", "BF16")])
def test_every_bit_of_every_type_comes_back(library: Library, datatype: str) -> None:
    array = SAMPLES[datatype]
    model, size = f"echo_{datatype.lower()}", array.nbytes
    with segment(4096) as memory, library.region(memory):
        memory.put(array)
        inputs = [library.input("x", array, ("r", size, 0), datatype)]
        library.client.infer(model, inputs, outputs=[library.output("y", ("r", size, 2048))])
        assert same(memory.get(array, 2048), array)


def test_strings_come_back_with_their_lengths(library: Library) -> None:
    raw = serialize_byte_tensor(WORDS)
    size = len(raw.item())
    with segment(16384) as memory, library.region(memory):
        memory.put(raw)
        inputs = [library.input("x", WORDS, ("r", size, 0), "BYTES")]
        library.client.infer("echo_bytes", inputs, outputs=[library.output("y", ("r", 8000, 8192))])
        assert list(memory.get(WORDS, 8192, np.object_).ravel()) == list(WORDS.ravel())


def test_a_region_begins_within_its_segment(library: Library) -> None:
    with segment(3 * 4096) as memory, library.region(memory, offset=4096, byte_size=2 * 4096):
        memory.put(ROWS, ROWS * 2, offset=4096)
        outputs = [library.output("OUTPUT0", ("r", SIZE, 4096))]
        library.client.infer("add_sub", add_sub_inputs(library), outputs=outputs)
        assert same(memory.get(ROWS, 2 * 4096), ROWS * 3)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_perf_analyzer_measures_with_shared_memory(
    http_address: str, grpc_address: str, tmp_path: Path, protocol: str
) -> None:
    before = success_count(http_address, "mnist")
    report = tmp_path / "report.csv"
    run(
        *(perf_analyzer(), "-m", "mnist", "-i", protocol, "--concurrency-range", "2"),
        *("-u", http_address if protocol == "http" else grpc_address),
        *("--shared-memory", "system", "--output-shared-memory-size", "4096"),
        *("-p", "300", "-s", "999", "-r", "3", "-f", report),
        timeout_s=50,
    )
    assert report.read_text().count("\n") == 2
    assert success_count(http_address, "mnist") - before > 10
    with urllib.request.urlopen(
        f"http://{http_address}/v2/systemsharedmemory/status", timeout=10
    ) as response:
        assert json.loads(response.read()) == []
