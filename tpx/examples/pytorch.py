"""`mnist_torch`: the trained digits network as a PyTorch class with separate weights."""

import json
import struct
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tpx.examples.example import Example

CONFIG = """\
# The network of the model mnist, as a class in 1/model.py and its weights in 1/model.safetensors.
# Inputs are called as the arguments of forward, outputs NAME__INDEX.
name: "mnist_torch"
backend: "pytorch"
runtime: "model.py"
max_batch_size: 16
input [ { name: "image" data_type: TYPE_FP32 dims: [ 1, 8, 8 ] } ]
output [ { name: "probabilities__0" data_type: TYPE_FP32 dims: [ 10 ] label_filename: "labels.txt" } ]
dynamic_batching { }
"""

MODEL = '''\
from torch import nn


class Digits(nn.Module):
    """Two convolutions, a pool, one linear layer: ten thousand parameters."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc = nn.Linear(32 * 4 * 4, 10)

    def forward(self, image):
        seen = self.conv2(self.conv1(image).relu()).relu()
        pooled = nn.functional.max_pool2d(seen, 2).flatten(1)
        return self.fc(pooled).softmax(1)
'''


def safetensors(tensors: Mapping[str, npt.NDArray[np.float32]]) -> bytes:
    """Return a safetensors file of FP32 tensors: the length of a JSON index, the index, and the
    tensors' bytes.
    """
    header: dict[str, object] = {}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [start, end]}
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)  # aligns the tensors to 8 bytes
    return struct.pack("<Q", len(head)) + head + b"".join(tensor.tobytes() for tensor in tensors.values())


def _write(directory: Path) -> None:
    import onnx
    from onnx import numpy_helper

    package = resources.files("tpx.examples")
    network = onnx.load_from_string((package / "mnist.onnx").read_bytes())
    # conv1_weight there is conv1.weight here
    weights = {tensor.name.replace("_", "."): tensor for tensor in network.graph.initializer}
    data = safetensors({name: numpy_helper.to_array(tensor) for name, tensor in weights.items()})
    (directory / "1" / "model.safetensors").write_bytes(data)
    (directory / "1" / "model.py").write_text(MODEL, encoding="utf-8")
    (directory / "labels.txt").write_bytes((package / "mnist_labels.txt").read_bytes())


MNIST_TORCH = Example(
    name="mnist_torch",
    description="the network of mnist as a PyTorch class with its weights",
    config=CONFIG,
    size_bytes=100 * 1024,
    needs_onnx=True,
    needs="torch",
    write_files=_write,
)
