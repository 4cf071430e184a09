"""As `slots`, with many responses to a request of nobody."""

import numpy as np
import triton_python_backend_utils as pb_utils

LARGE = np.zeros((1, 300_000), np.float32)
"""Goes through shared memory; several are more than a model may be ahead of its client."""


class TritonPythonModel:
    def execute(self, requests):
        for index, request in enumerate(requests):
            sender = request.get_response_sender()
            ready = pb_utils.get_input_tensor_by_name(request, "READY").as_numpy()[0, 0]
            y = np.array([[len(requests), index]], np.float32) if ready else LARGE
            for _ in range(1 if ready else 20):
                kept = pb_utils.Tensor("sum_out", np.zeros((1, 1), np.float32))
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("y", y), kept]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return
