"""A model whose time does not depend on how busy the processors are."""

from pathlib import Path

_MODEL = """
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        time.sleep({sleep_s})
        if {fails}:
            raise RuntimeError("out of order")
        tensors = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", tensor)]) for tensor in tensors]
"""
_CONFIG = """backend: "python"
max_batch_size: 1
input [ { name: "INPUT0", data_type: TYPE_FP32, dims: [ 16 ] } ]
output [ { name: "OUTPUT0", data_type: TYPE_FP32, dims: [ 16 ] } ]
instance_group [ { count: 1 } ]
"""


def sleeping(models: Path, sleep_s: float = 0.05, fails: bool = False) -> None:
    """Write a Python model that takes `sleep_s` for each request."""
    version = models / "sleeping" / "1"
    version.mkdir(parents=True, exist_ok=True)
    (version / "model.py").write_text(
        _MODEL.replace("{sleep_s}", str(sleep_s)).replace("{fails}", str(fails)), encoding="utf-8"
    )
    (models / "sleeping" / "config.pbtxt").write_text(_CONFIG, encoding="utf-8")
