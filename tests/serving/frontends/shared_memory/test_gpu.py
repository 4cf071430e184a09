"""Inputs in GPU memory, over both protocols, with a driver whose GPU memory is this process's."""

import base64
import ctypes
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from tests.serving.frontends.shared_memory.requests import CUDA, ask, in_region
from tests.serving.installed import install
from tests.serving.live import Live, serving, write_models
from tests.serving.shared_memory.fake_driver import SIZE, Device, compiled_driver
from tests.serving.transports import Transport
from tpx.serving.backends.contract import Arrays, GpuRange, GpuTensor, InstanceSpec, ModelFiles
from tpx.serving.backends.table import BACKENDS
from tpx.serving.shared_memory.cuda import opener

IO = "input { name: 'x' data_type: TYPE_FP32 dims: -1 } output { name: 'y' data_type: TYPE_FP32 dims: -1 }"


class OnGpuBackend:
    """Opens nothing; its models double what they find at the addresses of their inputs."""

    default_filename = ""
    inline = False
    takes_gpu_memory = True

    def open(self, files: ModelFiles, config: Any) -> "OnGpuBackend":
        return self

    def complete(self, config: Any, *, default_max_batch_size: int) -> None:
        pass

    def check(self, config: Any) -> None:
        pass

    def executor(self, spec: InstanceSpec, config: Any) -> "OnGpuBackend":
        return self

    def execute(self, inputs: Arrays) -> Arrays:
        tensor = cast("GpuTensor", inputs["x"])
        data = b"".join(
            ctypes.string_at(part.address, part.size) if isinstance(part, GpuRange) else part
            for part in tensor.parts
        )
        return {"y": 2 * np.frombuffer(data, tensor.dtype).reshape(tensor.shape)}

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Device:
    """A GPU with a driver of its own."""
    directory = tmp_path_factory.mktemp("cuda")
    return Device(Path(shutil.copy(compiled_driver(directory), directory / "libcuda.so.1")))


@pytest.fixture(scope="module")
def live(device: Device, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server with this driver, and the model `there`, which takes GPU memory."""
    repository, site = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("site")
    write_models(repository)
    (repository / "there" / "1").mkdir(parents=True)
    (repository / "there" / "config.pbtxt").write_text(f"backend: 'on_gpu' max_batch_size: 8 {IO}")
    install(site, "on-gpu-backend", "", {BACKENDS.group: {"on_gpu": f"{__name__}:OnGpuBackend"}})
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        patch.setattr("tpx.serving.server.cuda.opener", lambda: opener(device.path))
        with serving(repository) as running:
            yield running


@pytest.mark.parametrize("model", ["double", "there"])
def test_repeated_requests_see_what_is_in_the_memory_now(
    live: Live, device: Device, transport: Transport, model: str
) -> None:
    address = device.allocate(0, SIZE)
    handle = {"b64": base64.b64encode(device.export(address)).decode()}
    body = {"raw_handle": handle, "device_id": 0, "byte_size": SIZE}
    assert live.http("POST", f"{CUDA}/region/r/register", json.dumps(body).encode()).status == 200
    try:
        for turn in range(6):
            row = np.array([turn, turn + 0.5], np.float32)
            ctypes.memmove(address + 8, row.tobytes(), 8)
            ask(transport, in_region(offset=8), in_region(offset=16), model)
            assert np.frombuffer(ctypes.string_at(address + 16, 8), np.float32).tolist() == (2 * row).tolist()
    finally:
        assert live.http("POST", f"{CUDA}/region/r/unregister").status == 200
