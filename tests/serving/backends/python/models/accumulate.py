"""A state in the server and one in the model, of the same sequence: both must agree."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        x, start, end, ready, corrid, state = (
            pb_utils.get_input_tensor_by_name(request, name).as_numpy()
            for name in ("x", "START", "END", "READY", "CORRID", "sum_in")
        )
        if not ready.reshape(-1)[0]:  # an empty slot
            return pb_utils.InferenceResponse([])
        key = request.correlation_id()
        assert corrid.reshape(-1)[0] == key
        assert bool(request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START) == bool(
            start.reshape(-1)[0]
        )
        assert bool(request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END) == bool(
            end.reshape(-1)[0]
        )
        if start.reshape(-1)[0]:
            self.sums[key] = 100.0
        self.sums[key] += float(x.sum())
        total = state + x.sum(axis=-1, keepdims=True).astype(np.float32)
        assert float(total.reshape(-1)[0]) == self.sums[key], (total, self.sums)
        y, kept = pb_utils.Tensor("y", total), pb_utils.Tensor("sum_out", total)
        return pb_utils.InferenceResponse([y, kept] if x.sum() < 1000 else [y])
