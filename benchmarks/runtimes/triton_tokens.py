"""A decoupled Python model whose tokens cost nothing: a thread sends one to each request in turn.

Copied as `model.py`. Engines of language models stream like this: each step yields a token for each sequence.
"""

import queue
import threading

import numpy as np
import triton_python_backend_utils as triton


class TritonPythonModel:
    """Sends as many tokens as a request asks for."""

    def __init__(self):
        self.begun = queue.SimpleQueue()
        threading.Thread(target=self.run, daemon=True).start()

    def execute(self, requests):
        for request in requests:
            tokens = int(triton.get_input_tensor_by_name(request, "tokens").as_numpy()[0])
            self.begun.put([request.get_response_sender(), tokens])

    def run(self):
        live = []
        while True:
            while not live or not self.begun.empty():
                live.append(self.begun.get())
            for each in live:
                text = triton.Tensor("text_output", np.array([b" token"], object))
                each[0].send(triton.InferenceResponse([text]))
                each[1] -= 1
                if not each[1]:
                    each[0].send(flags=triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            live = [each for each in live if each[1]]
