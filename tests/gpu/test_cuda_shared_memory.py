"""CUDA shared memory between tritonclient and a server: inputs read from it, results written to it."""

from collections.abc import Callable
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
