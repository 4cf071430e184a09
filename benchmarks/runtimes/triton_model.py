"""An ONNX model in Triton's python backend; copied as `model.py`, runs in Triton's Python, not in ours.

Like tpx it runs a batch that the scheduler made in one call.
"""

import json
import time
from pathlib import Path

import numpy as np
import onnxruntime
import triton_python_backend_utils as triton


class TritonPythonModel:
    """One instance: one session."""

    def initialize(self, args):
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config["parameters"].items()}
        threads = int(parameters["intra_op_thread_count"])
        self.wait_s = int(parameters.get("wait_ms", 0)) / 1000
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        path = Path(args["model_repository"], args["model_version"], "model.onnx")
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.inputs = [item["name"] for item in config["input"]]
        self.outputs = [item["name"] for item in config["output"]]

    def execute(self, requests):
        if self.wait_s:
            time.sleep(self.wait_s)
        feeds = [
            {name: triton.get_input_tensor_by_name(request, name).as_numpy() for name in self.inputs}
            for request in requests
        ]
        if len(feeds) == 1:
            return [self.answer(self.session.run(self.outputs, feeds[0]))]
        rows = np.cumsum([len(feed[self.inputs[0]]) for feed in feeds])[:-1]
        batch = {name: np.concatenate([feed[name] for feed in feeds]) for name in self.inputs}
        results = [np.split(array, rows) for array in self.session.run(self.outputs, batch)]
        return [self.answer(arrays) for arrays in zip(*results, strict=True)]

    def answer(self, arrays):
        tensors = [triton.Tensor(name, array) for name, array in zip(self.outputs, arrays, strict=True)]
        return triton.InferenceResponse(tensors)
