"""Decoupled and iterative: a token each time."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.at = {}

    def execute(self, requests):
        for request in requests:
            key = request.correlation_id()
            index = self.at.get(key, 0)
            self.at[key] = index + 1
            last = index + 1 == int(request.inputs()[0].as_numpy().reshape(-1)[0])
            response = pb_utils.InferenceResponse([pb_utils.Tensor("y", np.array([[index]], np.float32))])
            sender = request.get_response_sender()
            sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if last else 0)
            if not last:
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
