"""Answers with as many zeros as it is asked for, by a sender where it is decoupled."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        policy = json.loads(args["model_config"]).get("model_transaction_policy", {})
        self.decoupled = policy.get("decoupled", False)

    def execute(self, requests):
        answers = [self.answer(request) for request in requests]
        if not self.decoupled:
            return answers
        for request, answer in zip(requests, answers):
            request.get_response_sender().send(answer, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None

    def answer(self, request):
        count = int(request.inputs()[0].as_numpy()[0])
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", np.zeros(count, np.float32))])
