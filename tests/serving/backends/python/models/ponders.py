"""Says whether it is ready once it may, and writes down how often it was asked."""

import os
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def is_ready(self):
        directory = pb_utils.get_model_dir()
        with open(os.path.join(directory, "asked"), "a") as file:
            file.write("x")
        while not os.path.exists(os.path.join(directory, "may")):
            time.sleep(0.01)
        return True

    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("y", r.inputs()[0].as_numpy())]) for r in requests
        ]
