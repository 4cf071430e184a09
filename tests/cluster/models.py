"""Python models of the tests: one whose time does not depend on how busy the processors are, and one that
remembers its requests.
"""

from pathlib import Path

_MODEL = """
import os
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        {work}
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", tensor)]) for tensor in tensors]
"""
_CONFIG = """backend: "python"
max_batch_size: 1
input [ { name: "INPUT0", data_type: TYPE_FP32, dims: [ 16 ] } ]
output [ { name: "OUTPUT0", data_type: TYPE_FP32, dims: [ 16 ] } ]
instance_group [ { count: {instances} } ]
"""


def sleeping(models: Path, sleep_s: float = 0.05, fails: bool = False, instances: int = 1) -> None:
    """Write a model that takes `sleep_s` for each request."""
    work = f"time.sleep({sleep_s})"
    if fails:
        work += '; raise RuntimeError("out of order")'
    _write(models / "sleeping", work, instances)


def recording(models: Path, values: Path) -> None:
    """Write a model that appends the first value of each request to a file, a line each."""
    work = f"""with open({str(values)!r}, "ab", 0) as file:
            for tensor in tensors:
                file.write(b"%d\\n" % tensor[0, 0])"""
    _write(models / "recording", work, 1)


def _write(model: Path, work: str, instances: int) -> None:
    (model / "1").mkdir(parents=True, exist_ok=True)
    (model / "1" / "model.py").write_text(_MODEL.replace("{work}", work), encoding="utf-8")
    (model / "config.pbtxt").write_text(_CONFIG.replace("{instances}", str(instances)), encoding="utf-8")
