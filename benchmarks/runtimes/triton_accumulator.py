"""Running sums of sequences in Triton's python backend; copied as `model.py`, runs in Triton's Python.

The same controls as the ONNX model that tpx serves, whose sums tpx keeps; here the model keeps them.
"""

import numpy as np
import triton_python_backend_utils as triton


class TritonPythonModel:
    """One instance; the sums are kept by correlation id."""

    def initialize(self, args):  # noqa: ARG002 (the backend gives it)
        self.sums = {}

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        given = {
            name: triton.get_input_tensor_by_name(request, name).as_numpy()
            for name in ("INPUT", "START", "END", "READY", "CORRID")
        }
        if not given["READY"][0, 0]:  # the slot of no sequence
            return triton.InferenceResponse([triton.Tensor("OUTPUT", given["INPUT"])])
        key = int(given["CORRID"][0, 0])
        total = given["INPUT"] if given["START"][0, 0] else self.sums[key] + given["INPUT"]
        if given["END"][0, 0]:
            self.sums.pop(key, None)
        else:
            self.sums[key] = total
        return triton.InferenceResponse([triton.Tensor("OUTPUT", total.astype(np.float32))])
