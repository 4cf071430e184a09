"""How many requests each execution had; slow enough for others to arrive meanwhile."""

import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.02)
        out = []
        for request in requests:
            x = request.inputs()[0].as_numpy()
            if (x < 0).any():
                out.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("below zero")))
            else:
                shape = (len(x), 1)
                out.append(
                    pb_utils.InferenceResponse(
                        [pb_utils.Tensor("y", np.full(shape, len(requests), np.float32))]
                    )
                )
        return out
