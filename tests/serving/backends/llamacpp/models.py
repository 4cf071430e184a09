"""A repository of language models: the example model in several configurations, and one of a user."""

import shutil
from pathlib import Path

import tpx

TINY = Path(tpx.__file__).parent / "examples" / "tiny.gguf"
_TEXTS = '''
import json
import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    """Sends the words of its input, as a model of Triton's vLLM backend would."""

    def execute(self, requests):
        for request in requests:
            inputs = {tensor.name(): tensor.as_numpy().reshape(-1)[0] for tensor in request.inputs()}
            sampling = json.loads(inputs.get("sampling_parameters", b"{}"))
            words = inputs["text_input"].decode().split()[: sampling.get("max_tokens")]
            sender = request.get_response_sender()
            for number, word in enumerate(words):
                reason = b"length" if number == len(words) - 1 else b"None"
                outputs = {"text_output": [word.encode()], "finish_reason": [reason]}
                tensors = [pb.Tensor(name, np.array(value, object)) for name, value in outputs.items()]
                counts = {"num_input_tokens": 7, "num_output_tokens": 1}
                tensors += [pb.Tensor(name, np.array([value], np.uint32)) for name, value in counts.items()]
                sender.send(pb.InferenceResponse(tensors))
            sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
'''
_TEXT_CONFIG = """
backend: "python"
model_transaction_policy { decoupled: true }
input [
  { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "stream" data_type: TYPE_BOOL dims: [ 1 ] optional: true },
  { name: "sampling_parameters" data_type: TYPE_STRING dims: [ 1 ] optional: true }
]
output [
  { name: "text_output" data_type: TYPE_STRING dims: [ -1 ] },
  { name: "finish_reason" data_type: TYPE_STRING dims: [ -1 ] },
  { name: "num_input_tokens" data_type: TYPE_UINT32 dims: [ 1 ] },
  { name: "num_output_tokens" data_type: TYPE_UINT32 dims: [ 1 ] }
]
"""


def write_tiny(repository: Path, name: str, backend: str = "llamacpp", **parameters: object) -> None:
    """The example model with parameters."""
    directory = repository / name / "1"
    directory.mkdir(parents=True)
    shutil.copy(TINY, directory / "model.gguf")
    values = "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
        for key, value in parameters.items()
    )
    (repository / name / "config.pbtxt").write_text(f'backend: "{backend}"\n{values}')


def write_texts(repository: Path, name: str) -> None:
    """A decoupled Python model with the tensors of Triton's vLLM backend."""
    directory = repository / name / "1"
    directory.mkdir(parents=True)
    (directory / "model.py").write_text(_TEXTS)
    (repository / name / "config.pbtxt").write_text(_TEXT_CONFIG)
