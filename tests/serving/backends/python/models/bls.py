"""Calls the model that its parameters name, in the way that they name."""

import json
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        try:
            pb_utils.InferenceRequest(model_name="double", requested_output_names=["y"], inputs=[]).exec()
        except pb_utils.TritonModelException as error:
            assert "only supported during" in str(error), error
        else:
            raise AssertionError("initialize could call a model")

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        wanted = json.loads(request.parameters())
        x = pb_utils.get_input_tensor_by_name(request, "x")
        child = pb_utils.InferenceRequest(
            request_id=request.request_id(),
            correlation_id=request.correlation_id(),
            model_name=wanted["model"],
            model_version=wanted.get("version", -1),
            requested_output_names=["y"],
            inputs=[pb_utils.Tensor("x", x.as_numpy())],
            flags=request.flags(),
            trace=request.trace(),
            preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU),
            parameters={"what": wanted["what"]} if "what" in wanted else None,
        )
        if wanted.get("decoupled"):
            responses = child.exec(decoupled=True)
            if wanted.get("only_parameters"):
                values = [json.loads(response.parameters()).get("n", -1) for response in responses]
                return pb_utils.InferenceResponse([pb_utils.Tensor("y", np.array(values, np.float32))])
            parts = []
            for response in responses:
                if response.has_error():
                    return pb_utils.InferenceResponse(error=response.error())
                if response.output_tensors():
                    parts.append(pb_utils.get_output_tensor_by_name(response, "y").as_numpy())
                time.sleep(wanted.get("pause", 0))
                if len(parts) == wanted.get("enough"):
                    responses.cancel()
                    break
            if wanted.get("last"):
                parts = parts[-1:]
            return pb_utils.InferenceResponse([pb_utils.Tensor("y", np.concatenate(parts))])
        response = child.exec()
        if response.has_error():
            return pb_utils.InferenceResponse(error=response.error())
        return pb_utils.InferenceResponse([pb_utils.get_output_tensor_by_name(response, "y")])
