"""CUDA shared memory between tritonclient and a server: inputs read from it, results written to it."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from tests.gpu import networks
from tests.gpu.conftest import Device, GpuServer, write_model
from tests.serving.backends.pytorch.opening import QUIET_JIT

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings(QUIET_JIT)]
ROWS = 64


@pytest.mark.parametrize("module", [tritonclient.http, tritonclient.grpc])
def test_inputs_and_results_lie_on_the_gpu(
    gpu: Device, serve: Callable[..., GpuServer], tmp_path: Path, module: Any
) -> None:
    cuda = pytest.importorskip("tritonclient.utils.cuda_shared_memory", reason="needs cuda-python")
    config, write = networks.FORMATS["torchscript"]
    write_model(tmp_path, "net", networks.IO + config + gpu.group(), lambda v: write(v, gpu.name))
    server = serve(tmp_path)
    rows = np.random.default_rng(0).normal(size=(ROWS, networks.WIDTH)).astype(np.float32)
    regions = {name: cuda.create_shared_memory_region(name, rows.nbytes, 0) for name in ("in", "out")}
    address = server.http if module is tritonclient.http else server.grpc
    try:
        with module.InferenceServerClient(address) as client:
            for name, region in regions.items():
                client.register_cuda_shared_memory(name, cuda.get_raw_handle(region), 0, rows.nbytes)
            given, wanted = module.InferInput("x", rows.shape, "FP32"), module.InferRequestedOutput("y")
            given.set_shared_memory("in", rows.nbytes)
            wanted.set_shared_memory("out", rows.nbytes)
            for turn in range(10):
                cuda.set_shared_memory_region(regions["in"], [rows + turn])
                client.infer("net", [given], outputs=[wanted])
                found = cuda.get_contents_as_numpy(regions["out"], np.float32, rows.shape)
                assert np.allclose(found, 3 * (rows + turn) + 1, atol=1e-4)
            client.unregister_cuda_shared_memory()
    finally:
        for region in regions.values():
            cuda.destroy_shared_memory_region(region)


def test_one_batch_has_inputs_on_the_gpu_and_in_messages(
    gpu: Device, serve: Callable[..., GpuServer], tmp_path: Path
) -> None:
    cuda = pytest.importorskip("tritonclient.utils.cuda_shared_memory", reason="needs cuda-python")
    config, write = networks.FORMATS["torchscript"]
    text = networks.IO + config + gpu.group() + "dynamic_batching { max_queue_delay_microseconds: 20000 }"
    write_model(tmp_path, "net", text, lambda v: write(v, gpu.name))
    server = serve(tmp_path)
    rows = np.random.default_rng(0).normal(size=(8, networks.WIDTH)).astype(np.float32)
    # not on a multiple of anything that a kernel may want
    region = cuda.create_shared_memory_region("in", rows.nbytes + 4, 0)
    cuda.set_shared_memory_region(region, [np.zeros(1, np.float32), rows])
    try:
        with tritonclient.http.InferenceServerClient(server.http, concurrency=8) as client:
            client.register_cuda_shared_memory("in", cuda.get_raw_handle(region), 0, rows.nbytes + 4)

            def ask(row: int) -> bool:
                given = tritonclient.http.InferInput("x", [1, networks.WIDTH], "FP32")
                if row % 2:
                    given.set_data_from_numpy(rows[row : row + 1])
                else:
                    size = rows[0].nbytes
                    given.set_shared_memory("in", size, offset=4 + row * size)
                found = client.infer("net", [given]).as_numpy("y")
                return np.allclose(found, 3 * rows[row : row + 1] + 1, atol=1e-4)

            for _ in range(10):
                with ThreadPoolExecutor(8) as clients:
                    assert all(clients.map(ask, range(8)))
            [counts] = client.get_inference_statistics("net")["model_stats"]
            assert counts["execution_count"] < 80
            client.unregister_cuda_shared_memory()
    finally:
        cuda.destroy_shared_memory_region(region)
