"""Asks the model that its configuration names, unless the number is negative."""

import json

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.other = json.loads(args["model_config"])["parameters"]["other"]["string_value"]

    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(request, "x")) for request in requests]

    def answer(self, x):
        if x.as_numpy()[0] < 0:
            return pb_utils.InferenceResponse([pb_utils.Tensor("y", x.as_numpy())])
        call = pb_utils.InferenceRequest(model_name=self.other, requested_output_names=["y"], inputs=[x])
        response = call.exec()
        return pb_utils.InferenceResponse(response.output_tensors(), response.error())
