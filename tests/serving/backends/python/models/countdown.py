"""Computes a request as often as its input says: how many requests were in each execution is the answer."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.left = {}
        self.most = 0

    def execute(self, requests):
        self.most = max(self.most, len(requests))
        return [self.answer(request) for request in requests]

    def answer(self, request):
        key = request.correlation_id()
        if not key:  # an empty slot
            return pb_utils.InferenceResponse([])
        starts = request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
        assert bool(starts) == (key not in self.left)
        if starts:
            self.left[key] = [int(request.inputs()[0].as_numpy().reshape(-1)[0]), 0]
        state = self.left[key]
        state[0] -= 1
        state[1] += 1
        if state[0] > 0:
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            return None
        del self.left[key]
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", np.array([[state[1]]], np.float32))])
