"""Takes a second to initialize, and writes down when."""

import os
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        began = time.monotonic()
        directory = pb_utils.get_model_dir()
        if os.path.exists(os.path.join(directory, "fails")):
            if args["model_instance_name"].endswith("_0"):
                raise RuntimeError("the first one fails")
            time.sleep(60)
        time.sleep(1)
        path = os.path.join(directory, "start_" + args["model_instance_name"])
        with open(path, "w") as file:
            file.write(f"{began} {time.monotonic()}")

    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("y", request.inputs()[0].as_numpy())])
            for request in requests
        ]
