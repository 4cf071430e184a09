"""`mnist`: a small network trained on scikit-learn's 8x8 digits, shipped with the package."""

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
input [
  {
    name: "image"
    data_type: TYPE_FP32
    dims: [ 1, 8, 8 ]
  }
]
output [
  {
    name: "probabilities"
    data_type: TYPE_FP32
    dims: [ 10 ]
    label_filename: "labels.txt"
  }
]
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


def _write(directory: Path) -> None:
    package = resources.files("tpx.examples")
    (directory / "1" / "model.onnx").write_bytes((package / "mnist.onnx").read_bytes())
    (directory / "labels.txt").write_bytes((package / "mnist_labels.txt").read_bytes())


MNIST = Example(
    name="mnist",
    description="a convolutional network trained on handwritten digits of 8x8 pixels",
    config=CONFIG,
    size_bytes=100 * 1024,
    needs_onnx=False,
    write_files=_write,
)
