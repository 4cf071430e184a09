"""Business logic scripting with a decoupled model: the sum of all its responses, counted as they come."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            infer_request = pb_utils.InferenceRequest(
                model_name="square",
                inputs=[pb_utils.get_input_tensor_by_name(request, "IN")],
                requested_output_names=["OUT"],
            )
            total = 0
            for infer_response in infer_request.exec(decoupled=True):
                if infer_response.has_error():
                    raise pb_utils.TritonModelException(infer_response.error().message())
                if len(infer_response.output_tensors()) > 0:
                    output = pb_utils.get_output_tensor_by_name(infer_response, "OUT")
                    total += int(output.as_numpy()[0])
            tensor = pb_utils.Tensor("SUM", np.array([total], np.int32))
            responses.append(pb_utils.InferenceResponse(output_tensors=[tensor]))
        return responses
