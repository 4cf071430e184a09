"""Says whether it is ready once it may, writes down how often it was asked, and executes for long."""

import os
import time

import triton_python_backend_utils as pb_utils


def wait_for(name):
    while not os.path.exists(os.path.join(pb_utils.get_model_dir(), name)):
        time.sleep(0.01)


class TritonPythonModel:
    def is_ready(self):
        directory = pb_utils.get_model_dir()
        with open(os.path.join(directory, "asked"), "a") as file:
            file.write("x")
        wait_for("may")
        return not os.path.exists(os.path.join(directory, "not"))

    def execute(self, requests):
        if requests[0].inputs()[0].as_numpy()[0] < 0:
            wait_for("end")
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("y", r.inputs()[0].as_numpy())]) for r in requests
        ]
