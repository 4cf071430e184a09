"""Decoupled: says each word of its input in a response of its own, some in another way."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for word in request.inputs()[0].as_numpy().reshape(-1)[0].split(b" "):
                words = (
                    [word, word] if word == b"twice" else [word[:-1] + b"\xff" if word == b"bytes" else word]
                )
                said = pb_utils.Tensor("text_output", np.array(words, np.object_))
                given = {"parameters": {"n": 1}} if word == b"parameter" else {}
                if word == b"error":
                    given["error"] = pb_utils.TritonError("as asked")
                sender.send(pb_utils.InferenceResponse([] if word == b"error" else [said], **given))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
