"""Decoupled: sends its first response once four requests are here, its second once the caller says so."""

import os
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            x = request.inputs()[0].as_numpy()
            sender = request.get_response_sender()
            place = os.path.join(pb_utils.get_model_dir(), str(int(x[0])))
            os.makedirs(place, exist_ok=True)
            open(os.path.join(place, str(int(x[1]))), "w").close()
            wait_for(lambda: len(os.listdir(place)) >= 4)
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("y", x)]))
            if x[0] == 2:
                wait_for(lambda: "go" in os.listdir(place))
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("y", -x)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def wait_for(ready):
    until = time.monotonic() + 10
    while not ready():
        if time.monotonic() > until:
            raise TimeoutError("the others did not come")
        time.sleep(0.002)
