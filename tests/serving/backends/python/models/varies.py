"""Responses with other outputs and parameters each time."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            y = pb_utils.Tensor("y", np.array([1], np.float32))
            z = pb_utils.Tensor("z", np.array([2], np.float32))
            sender.send(pb_utils.InferenceResponse([], parameters={"n": True}))
            sender.send(pb_utils.InferenceResponse([y], parameters={"n": 1}))
            sender.send(pb_utils.InferenceResponse([z]))
            sender.send(pb_utils.InferenceResponse([]))
            sender.send(pb_utils.InferenceResponse([y, z], parameters={"n": True}))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
