"""Decoupled: as many responses of as many elements as it is asked for, as fast as it can; tells how far it is."""

import os

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            count, size = request.inputs()[0].as_numpy().astype(int)
            sender = request.get_response_sender()
            for index in range(count):
                if sender.is_cancelled():
                    break
                sender.send(
                    pb_utils.InferenceResponse([pb_utils.Tensor("y", np.full(size, index, np.float32))])
                )
                path = os.path.join(pb_utils.get_model_dir(), "sent")
                with open(path + ".new", "w") as file:
                    file.write(str(index + 1))
                os.replace(path + ".new", path)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        if count == 0:
            raise RuntimeError("nothing to send")
