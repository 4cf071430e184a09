"""`mnist`: a small network trained on scikit-learn's 8x8 digits, shipped with the package.

`mnist_torch` is the same network as a PyTorch class with separate weights.
"""

import json
import struct
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tpx.examples.example import Example

PIXELS = 8
"""Digits are PIXELS x PIXELS gray values from 0 to 16, as in `sklearn.datasets.load_digits`."""
CLASSES = 10
HELD_OUT_EVERY = 5

CONFIG = """\
# Reads one handwritten digit of 8x8 grey values (0 to 16, as scikit-learn's load_digits has them).
# The labels are the class names that a classification request is answered with.
name: "mnist"
backend: "onnxruntime"
max_batch_size: 16
input [ { name: "image" data_type: TYPE_FP32 dims: [ 1, 8, 8 ] } ]
output [ { name: "probabilities" data_type: TYPE_FP32 dims: [ 10 ] label_filename: "labels.txt" } ]
dynamic_batching { }
"""


def held_out(labels: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.bool_]:
    """Mark the digits excluded from training: every fifth of each class, in the data set's order.

    Shapes: [n] -> [n]. This is the only definition of the split: tools/train_mnist.py trains on the
    rest, and the tests assert the accuracy on these digits.
    """
    marks = np.zeros(labels.shape, dtype=np.bool_)
    for digit in np.unique(labels):
        marks[np.flatnonzero(labels == digit)[::HELD_OUT_EVERY]] = True
    return marks


def _write_onnx(directory: Path) -> None:
    package = resources.files("tpx.examples")
    (directory / "1" / "model.onnx").write_bytes((package / "mnist.onnx").read_bytes())
    (directory / "labels.txt").write_bytes((package / "mnist_labels.txt").read_bytes())


MNIST = Example(
    name="mnist",
    description="a convolutional network trained on handwritten digits of 8x8 pixels",
    config=CONFIG,
    size_bytes=100 * 1024,
    write_files=_write_onnx,
)


TORCH_CONFIG = """\
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

TORCH_MODEL = '''\
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
    """Return a safetensors file of FP32 tensors: the length of a JSON index, the index, the tensors."""
    header: dict[str, object] = {}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [start, end]}
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)  # aligns the tensors to 8 bytes
    return struct.pack("<Q", len(head)) + head + b"".join(tensor.tobytes() for tensor in tensors.values())


def _write_torch(directory: Path) -> None:
    import onnx
    from onnx import numpy_helper

    package = resources.files("tpx.examples")
    network = onnx.load_from_string((package / "mnist.onnx").read_bytes())
    # conv1_weight there is conv1.weight here
    weights = {tensor.name.replace("_", "."): tensor for tensor in network.graph.initializer}
    data = safetensors({name: numpy_helper.to_array(tensor) for name, tensor in weights.items()})
    (directory / "1" / "model.safetensors").write_bytes(data)
    (directory / "1" / "model.py").write_text(TORCH_MODEL, encoding="utf-8")
    (directory / "labels.txt").write_bytes((package / "mnist_labels.txt").read_bytes())


MNIST_TORCH = Example(
    name="mnist_torch",
    description="the network of mnist as a PyTorch class with its weights",
    config=TORCH_CONFIG,
    size_bytes=100 * 1024,
    needs_onnx=True,
    needs="torch",
    write_files=_write_torch,
)
