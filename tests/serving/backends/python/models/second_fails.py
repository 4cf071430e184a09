"""The second of its instances cannot be initialized, the first waits whether that is tried again."""

import os
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        tries = os.path.join(pb_utils.get_model_dir(), "tries")
        if args["model_instance_name"].endswith("_1"):
            with open(tries, "a") as file:
                file.write(".")
            raise RuntimeError("the second one fails")
        ends = time.monotonic() + 0.8
        while time.monotonic() < ends and not (os.path.exists(tries) and os.path.getsize(tries) > 1):
            time.sleep(0.01)

    def execute(self, requests):
        raise RuntimeError("it is never loaded")
