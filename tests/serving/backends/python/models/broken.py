"""Fails where its configuration's parameter says."""

import json
import os

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        where = json.loads(args["model_config"])["parameters"]["where"]["string_value"]
        if where == "initialize":
            raise RuntimeError("no weights")
        if where == "dies":
            os._exit(7)
        if where == "after":
            marker = os.path.join(pb_utils.get_model_dir(), "once")
            if os.path.exists(marker):
                os._exit(7)
            open(marker, "w").close()

    def execute(self, requests):
        os._exit(9)
