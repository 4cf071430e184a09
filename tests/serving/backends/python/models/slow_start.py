"""Is initialized once four of its instances have begun to be."""

import os
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        directory = pb_utils.get_model_dir()
        if os.path.exists(os.path.join(directory, "fails")):
            if args["model_instance_name"].endswith("_0"):
                raise RuntimeError("the first one fails")
            time.sleep(3600)
        open(os.path.join(directory, "begins_" + args["model_instance_name"]), "w").close()
        ends = time.monotonic() + 20
        while sum(name.startswith("begins_") for name in os.listdir(directory)) < 4:
            if time.monotonic() > ends:
                raise RuntimeError("the others do not begin")
            time.sleep(0.01)

    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("y", request.inputs()[0].as_numpy())])
            for request in requests
        ]
