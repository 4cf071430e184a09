import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def initialize(self, args):
        self.threads = []

    def execute(self, requests):
        for request in requests:
            thread = threading.Thread(target=self.respond, args=(request.get_response_sender(), request))
            self.threads.append(thread)
            thread.start()

    def respond(self, sender, request):
        values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        delays = pb_utils.get_input_tensor_by_name(request, "DELAY").as_numpy()
        for index, (value, delay) in enumerate(zip(values, delays)):
            time.sleep(delay / 1000)
            if sender.is_cancelled():
                break
            out = pb_utils.Tensor("OUT", np.array([value], np.int32))
            idx = pb_utils.Tensor("IDX", np.array([index], np.uint32))
            sender.send(pb_utils.InferenceResponse([out, idx]))
        sender.send(flags=FINAL)

    def finalize(self):
        for thread in self.threads:
            thread.join()
