"""Python models whose tensors stay on the GPU, through DLPack."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc

from tests.gpu.conftest import Device, GpuServer, write_model

pytestmark = pytest.mark.gpu

MODEL = """
import torch
import triton_python_backend_utils as pb_utils
from torch.utils.dlpack import from_dlpack, to_dlpack

DEVICE = "{device}"


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x")
            tensor = from_dlpack(x.to_dlpack()).to(DEVICE)
            y = pb_utils.Tensor.from_dlpack("y", to_dlpack(tensor * 2))
            where = pb_utils.Tensor("where", __import__("numpy").array([tensor.device.type.encode()], object))
            responses.append(pb_utils.InferenceResponse([y, where]))
        return responses
"""
CONFIG = (
    'backend: "python" max_batch_size: 0 input [{ name: "x" data_type: TYPE_FP32 dims: [-1] }] '
    'output [{ name: "y" data_type: TYPE_FP32 dims: [-1] }, '
    '{ name: "where" data_type: TYPE_STRING dims: [1] }] '
    'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "no" } } '
)


def test_tensors_that_a_model_has_on_the_gpu_are_answers(
    device: Device, serve: Callable[..., GpuServer], tmp_path: Path
) -> None:
    code = MODEL.format(device=device.name)
    write_model(tmp_path, "twice", CONFIG + device.group(), lambda v: (v / "model.py").write_text(code))
    server = serve(tmp_path)
    x = np.arange(1000, dtype=np.float32)
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        for _ in range(20):
            given = tritonclient.grpc.InferInput("x", x.shape, "FP32").set_data_from_numpy(x)
            answer = client.infer("twice", [given])
            assert np.array_equal(answer.as_numpy("y"), 2 * x)
            assert answer.as_numpy("where")[0].decode() == device.name.split(":")[0]
