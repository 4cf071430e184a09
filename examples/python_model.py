"""Put a business rule in front of a model: a Python model that calls another one and refuses what is unsure.

pip install 'tpx[onnx]' 'tritonclient[grpc]'
python examples/python_model.py models
"""

import sys
from pathlib import Path

import numpy as np
import tritonclient.grpc

import tpx
from tpx import examples

MODEL = """
import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.least = float(parameters["least_probability"]["string_value"])

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        image = pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy()
        if image.min() < 0 or image.max() > 16:
            return pb_utils.InferenceResponse([], pb_utils.TritonError("grey values are 0 to 16"))
        call = pb_utils.InferenceRequest(
            model_name="mnist",
            inputs=[pb_utils.Tensor("image", image)],
            requested_output_names=["probabilities"],
        )
        answer = call.exec()
        if answer.has_error():
            return pb_utils.InferenceResponse([], answer.error())
        probabilities = pb_utils.get_output_tensor_by_name(answer, "probabilities").as_numpy()
        digits = [str(row.argmax()) if row.max() >= self.least else "ask a person" for row in probabilities]
        decision = np.array(digits, dtype=object).reshape(-1, 1)
        return pb_utils.InferenceResponse([pb_utils.Tensor("DECISION", decision)])
"""

CONFIG = """
backend: "python"
max_batch_size: 16
input [ { name: "IMAGE", data_type: TYPE_FP32, dims: [ 1, 8, 8 ] } ]
output [ { name: "DECISION", data_type: TYPE_STRING, dims: [ 1 ] } ]
parameters { key: "least_probability" value { string_value: "0.9" } }
"""


def write(repository: Path) -> None:
    """Write the digit classifier of the examples, and the rule beside it."""
    examples.write(repository, ["mnist"])
    directory = repository / "read_digit"
    (directory / "1").mkdir(parents=True, exist_ok=True)
    (directory / "1" / "model.py").write_text(MODEL, encoding="utf-8")
    (directory / "config.pbtxt").write_text(CONFIG, encoding="utf-8")


def main(repository: Path) -> None:
    write(repository)
    one = np.zeros((8, 8), np.float32)
    one[:, 3:5] = 16
    nothing = np.zeros((8, 8), np.float32)
    images = np.stack([one, nothing])[:, None]
    with tpx.serve(repository) as server, server.client() as client:
        given = tritonclient.grpc.InferInput("IMAGE", list(images.shape), "FP32")
        given.set_data_from_numpy(images)
        decisions = client.infer("read_digit", [given]).as_numpy("DECISION")
    for name, decision in zip(("a stroke", "a white page"), decisions.ravel(), strict=True):
        print(f"{name}: {decision.decode()}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "models"))
