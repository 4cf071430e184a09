"""Decoupled, without threads: all responses are sent before execute returns."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            for idx, value in enumerate(values):
                out = pb_utils.Tensor("OUT", np.array([value], np.int32))
                index = pb_utils.Tensor("IDX", np.array([idx], np.uint32))
                sender.send(pb_utils.InferenceResponse(output_tensors=[out, index]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return
